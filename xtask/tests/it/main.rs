//! Tests of the whole checkout: dependencies between crates, agreement with the recorded cases, and
//! the API over HTTP.

mod circles;
mod conformance;
mod dependencies;
mod http_conformance;

use std::io::Write;
use std::path::PathBuf;

fn workspace_root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is one level below the root").to_path_buf()
}

/// Prints a string even if the test passes. The harness captures only the output of the print
/// macros.
fn print_uncaptured(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
