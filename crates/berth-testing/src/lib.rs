//! Visible skipping of tests.
//!
//! A test that needs a program or a file from outside the repository is skipped if that is missing.
//! Cargo hides the output of a passing test, so a skipped test would look like a passed test.
//! [`skip`] therefore writes a line that Cargo does not capture and that `.ci/run` counts. With
//! [`REQUIRE_ALL`], it fails the test.

pub mod tmux;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Environment variable that makes every skipped test fail, with any value. A CI machine that has
/// all programs and files sets it.
pub const REQUIRE_ALL: &str = "BERTH_REQUIRE_ALL_TESTS";

/// Reports that the running test, or a part of it, cannot run, and the reason.
///
/// # Panics
///
/// If [`REQUIRE_ALL`] is set.
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    assert!(std::env::var_os(REQUIRE_ALL).is_none(), "{REQUIRE_ALL} is set, and {test} cannot run: {reason}");
    // Cargo captures what `println!` writes, but not this.
    let _ = writeln!(std::io::stderr().lock(), "SKIPPED {test}: {reason}");
}

/// A file or folder of the material next to the repository (`../shared`). Skips the running test if
/// it is missing.
pub fn shared(path: &str) -> Option<PathBuf> {
    let found = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared")).join(path);
    if found.exists() {
        return Some(found);
    }
    skip(&format!("../shared/{path} is missing"));
    None
}

/// True if kubectl is installed. Skips the running test otherwise.
pub fn has_kubectl() -> bool {
    let answer = Command::new("kubectl").args(["version", "--client"]).output();
    let is_installed = answer.is_ok_and(|output| output.status.success());
    if !is_installed {
        skip("kubectl is not installed");
    }
    is_installed
}
