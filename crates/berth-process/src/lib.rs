//! The parts of a process that the command line and the benches share.
//!
//! [`process`] has the async runtime, signals, entropy, folders and files. [`connect`] makes
//! Kubernetes clients from a kubeconfig or a pod's service account, and counts their requests.
//! [`limit`] limits the rate of those requests. [`listen`] has small HTTP servers.

pub mod connect;
pub mod limit;
pub mod listen;
pub mod process;

/// Objects are JSON trees of many small strings: allocating them takes a quarter of a run's time,
/// and this allocator is faster than the system's. It is declared here and not in `berth`, which
/// the profile `release` compiles without optimization.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Prints a line on the standard output. Errors are ignored, so that a closed output does not end a
/// server.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}
