//! What the command line and the benches share: the operating system's side of a process, and the way to a Kubernetes
//! API.
//!
//! [`process`] has the async runtime, signals, entropy, folders and files; [`connect`] makes clients from kubeconfigs
//! or a pod's service account and counts their requests; [`limit`] limits those requests.

pub mod connect;
pub mod limit;
pub mod process;

/// Prints a line for whoever started the process; a server does not die because nobody reads any more.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}
