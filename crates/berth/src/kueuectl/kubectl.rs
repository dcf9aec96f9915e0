//! Commands that kubectl runs: `berth get`, `describe`, `edit` and `patch`, and `delete` of queues
//! and flavors.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::anyhow;
use clap::Args;

/// Arguments for kubectl.
#[derive(Args)]
pub struct Arguments {
    /// The kind, the name and kubectl's options.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// Replaces this process by `kubectl VERB ARGUMENTS`.
pub fn run(verb: &str, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    exec(verb, &arguments.arguments)
}

/// Replaces this process by `kubectl VERB WORDS`. Returns only if that fails.
pub fn exec(verb: &str, words: &[OsString]) -> anyhow::Result<ExitCode> {
    let error = Command::new("kubectl").arg(verb).args(words).exec();
    Err(anyhow!(error).context(format!("berth {verb} runs kubectl, which must be in $PATH")))
}
