//! Tests of the whole checkout: the walls between crates, agreement with the recorded cases, and the API over HTTP.

mod conformance;
mod http_conformance;
mod walls;

use std::io::Write;
use std::path::PathBuf;

fn workspace_root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lives one level below the root").to_path_buf()
}

/// Says something whether or not the test passes: the harness holds back only what the print macros write.
fn say(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
