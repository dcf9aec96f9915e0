//! What only a program may touch: signals, entropy, its runtime, files named on the command line.

use std::future::Future;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use serde_json::Value;

/// Runs to the end on a runtime with all cores; gives tasks that are left a second.
pub fn run(program: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start")?;
    raise_file_limit();
    let code = runtime.block_on(async {
        survive_file_size_limit();
        program.await
    });
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    code
}

/// Allows this process as many open files as the system lets it have: a connection each, thousands of clients. Shells start
/// programs with 1,024. Failing to is no reason not to start.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!(%error, "the limit on open files stays as it is");
        }
    }
}

/// A file that may not grow any more is an error of one write, to be answered; by default the system ends the process instead.
fn survive_file_size_limit() {
    let kind = tokio::signal::unix::SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw());
    // Once listened for, it ends nobody; whether anybody listens on does not matter.
    if let Err(error) = tokio::signal::unix::signal(kind) {
        tracing::warn!(%error, "a limit on the size of files will end the process");
    }
}

/// Waits for Ctrl-C or SIGTERM; says which.
pub async fn signal() -> anyhow::Result<&'static str> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?;
    Ok(tokio::select! {
        biased;
        _ = interrupt.recv() => "interrupted",
        _ = terminate.recv() => "terminated",
    })
}

/// A number nobody can guess, and that differs at every start: identifiers must not repeat over a restart.
pub fn entropy() -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).context("/dev/urandom")?;
    Ok(u64::from_le_bytes(bytes))
}

/// An error and what caused it, outermost first. Some errors say in their own words what caused them: that is not said twice.
pub fn in_full(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain().map(ToString::to_string) {
        if parts.last().is_none_or(|last| !last.contains(&cause)) {
            parts.push(cause);
        }
    }
    parts.join(": ")
}

/// Reads a YAML or JSON file.
pub fn read(path: &Path) -> anyhow::Result<Value> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    serde_saphyr::from_str(&text).map_err(|error| anyhow!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use berth_apiserver::tls::ListenError;

    use super::*;

    #[test]
    fn what_caused_an_error_is_said_once() {
        let source = std::io::Error::from(std::io::ErrorKind::AddrInUse);
        let text = source.to_string();
        let address = ([127, 0, 0, 1], 6443).into();
        let error = anyhow::Error::from(ListenError::Bind { address, source }).context("choose another");
        assert_eq!(in_full(&error), format!("choose another: listening on 127.0.0.1:6443: {text}"));
        let error = anyhow!("no such file").context("a.yaml");
        assert_eq!(in_full(&error), "a.yaml: no such file");
    }
}
