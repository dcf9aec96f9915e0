//! The process runtime on systems other than Linux: every entry point returns an error.

use std::sync::Arc;

use berth_pod_runtime::{Result, RuntimeError, SandboxNetwork};

use crate::{Isolation, Options};

/// The process runtime, which does not exist on this system.
pub enum ProcessRuntime {}

impl ProcessRuntime {
    /// Returns an error, because pods can run as processes on Linux only.
    ///
    /// # Errors
    /// Always.
    pub async fn prepare(_: Options) -> Result<Prepared> {
        Err(RuntimeError::Unsupported("pods run as processes on Linux only; use simulated nodes".to_owned()))
    }
}

/// A node's folder, which cannot be prepared on this system.
pub enum Prepared {}

impl Prepared {
    /// The isolation of pods.
    pub fn isolation(&self) -> &Isolation {
        match *self {}
    }

    /// Never called.
    ///
    /// # Errors
    /// None.
    pub async fn open(self, _: Option<Arc<dyn SandboxNetwork>>) -> Result<ProcessRuntime> {
        match self {}
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
