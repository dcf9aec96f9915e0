//! Runs the vendor's tools.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Why a tool gave no output.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ToolError {
    /// The program does not exist.
    #[error("{program} was not found: install it to use this check")]
    Missing {
        /// Name of the program.
        program: String,
    },
    /// The program failed.
    #[error("{program} failed with {status}: {message}")]
    Failed {
        /// Name of the program.
        program: String,
        /// Exit status.
        status: String,
        /// Last line that it wrote.
        message: String,
    },
    /// The program did not end in time.
    #[error("{program} did not end within {seconds} s")]
    TimedOut {
        /// Name of the program.
        program: String,
        /// The limit.
        seconds: u64,
    },
    /// The output has another form than expected.
    #[error("the output of {program} cannot be read: {problem}")]
    Unreadable {
        /// Name of the program.
        program: String,
        /// What was expected.
        problem: String,
    },
}

/// The output of a program of the system whose root folder is `root`.
///
/// A program that exceeds `timeout` is not stopped: on broken hardware it cannot be.
pub(crate) fn run(root: &Path, program: &str, arguments: &[&str], timeout: Duration) -> Result<String, ToolError> {
    // In tests, the described system contains the program.
    let own = root.join("usr/bin").join(program);
    let path = if own.exists() { own } else { PathBuf::from(program) };
    let mut command = Command::new(path);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let name = || program.to_owned();
    let child = command.spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => ToolError::Missing { program: name() },
        _ => ToolError::Failed { program: name(), status: "no start".to_owned(), message: error.to_string() },
    })?;
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        // The receiver is dropped after the timeout.
        let _ = sender.send(child.wait_with_output());
    });
    let output = match receiver.recv_timeout(timeout) {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => {
            let message = error.to_string();
            return Err(ToolError::Failed { program: name(), status: "an error".to_owned(), message });
        }
        Err(_) => return Err(ToolError::TimedOut { program: name(), seconds: timeout.as_secs() }),
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let last = |text: &str| text.lines().rev().find(|line| !line.trim().is_empty()).map(|line| line.trim().to_owned());
    let message = last(&errors).or_else(|| last(&text)).unwrap_or_else(|| "no output".to_owned());
    Err(ToolError::Failed { program: name(), status: output.status.to_string(), message })
}
