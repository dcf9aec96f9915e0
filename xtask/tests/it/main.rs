//! Tests of the whole checkout: the walls between crates, agreement with the recorded cases, and the API over HTTP.

mod conformance;
mod http_conformance;
mod walls;

use std::path::PathBuf;

fn workspace_root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lives one level below the root").to_path_buf()
}
