//! Recorded cases of the Kubernetes API server.

use super::Runner;

/// The runner of a suite, if it belongs to this module.
pub fn runner(suite: &str) -> Option<Runner> {
    let _ = suite;
    None
}
