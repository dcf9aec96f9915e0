//! The process runtime on systems other than Linux: every entry point returns an error.

use berth_pod_runtime::{Result, RuntimeError};

use crate::{Isolation, Options};

/// The process runtime, which does not exist on this system.
pub enum ProcessRuntime {}

impl ProcessRuntime {
    /// Returns an error, because pods can run as processes on Linux only.
    ///
    /// # Errors
    /// Always.
    pub async fn open(_: Options) -> Result<(Self, Isolation)> {
        Err(RuntimeError::Unsupported("pods run as processes on Linux only; use simulated nodes".to_owned()))
    }
}

/// The supervisor of a pod, which does not exist on this system.
pub mod supervisor {
    use std::path::Path;
    use std::process::ExitCode;

    /// Always fails.
    pub fn main(_: &Path) -> ExitCode {
        ExitCode::FAILURE
    }
}

/// The entry helper of a container, which does not exist on this system.
pub mod init {
    use std::process::ExitCode;

    /// Always fails.
    pub fn main() -> ExitCode {
        ExitCode::FAILURE
    }
}
