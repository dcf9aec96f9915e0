//! Development commands: `cargo xtask conformance [DIR]` runs recorded cases,
//! `cargo xtask http-conformance` tests the Kubernetes API over HTTP, and `cargo xtask definitions`
//! generates the CustomResourceDefinitions.

mod conformance;
#[cfg(feature = "definitions")]
mod definitions;
#[cfg(feature = "http")]
mod http_conformance;

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some("conformance") => match conformance::Options::parse(args) {
            Ok(options) => conformance::main(&options),
            Err(message) => {
                eprintln!("xtask conformance: {message}");
                ExitCode::from(2)
            }
        },
        #[cfg(feature = "http")]
        Some("http-conformance") => match http_conformance::Options::parse(args) {
            Ok(options) => http_conformance::main(&options),
            Err(message) => {
                eprintln!("xtask http-conformance: {message}");
                ExitCode::from(2)
            }
        },
        #[cfg(feature = "definitions")]
        Some("definitions") => definitions::main(),
        other => {
            if let Some(other) = other {
                eprintln!("xtask: unknown command `{other}`");
            }
            eprintln!(
                "usage: cargo xtask conformance [DIR] [--suite NAME] [--case TEXT] [--verbose] [--output json] \
                 [--check] [--list-open] [--pack FILE]\n       cargo xtask http-conformance [--kubeconfig FILE] \
                 [--webhook-address HOST] [--walk NAME] [--verbose]\n       cargo xtask definitions"
            );
            ExitCode::from(2)
        }
    }
}

/// Root folder of the checkout, regardless of the working directory.
pub fn workspace_root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is one level below the root").to_path_buf()
}
