//! Tests of the whole checkout: the walls between crates, and agreement with the recorded cases.

mod conformance;
mod walls;

use std::path::PathBuf;

fn workspace_root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lives one level below the root").to_path_buf()
}
