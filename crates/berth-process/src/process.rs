//! What only a program may touch: signals, entropy, its runtime, files named on the command line.

use std::fs::{DirBuilder, Permissions};
use std::future::Future;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
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

/// Makes a folder that only its owner can look into, with those above it. One that is there is taken from others when
/// nothing is in it that `is_ours` does not know: a folder that serves other ends too stays as it is.
pub fn private_folder(path: &Path, is_ours: impl Fn(&str) -> bool) -> anyhow::Result<()> {
    let shown = || path.display().to_string();
    let found = match std::fs::metadata(path) {
        Ok(found) if !found.is_dir() => bail!("{}: is not a folder", shown()),
        Ok(found) => found,
        Err(_) => return DirBuilder::new().recursive(true).mode(PRIVATE).create(path).with_context(shown),
    };
    let mode = found.permissions().mode();
    let shared_on_purpose = mode & 0o7000 != 0;
    if mode & 0o077 == 0 || shared_on_purpose {
        return Ok(());
    }
    let mut entries = std::fs::read_dir(path).with_context(shown)?;
    if entries.all(|entry| entry.is_ok_and(|entry| entry.file_name().to_str().is_some_and(&is_ours))) {
        let tightened = std::fs::set_permissions(path, Permissions::from_mode(mode & 0o700));
        if let Err(error) = tightened {
            tracing::warn!(path = shown(), %error, "others may look into the folder");
        }
    }
    Ok(())
}

const PRIVATE: u32 = 0o700;

/// A folder for this run alone, gone when dropped.
pub struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    /// Makes it, under a name that nobody can know beforehand: whoever makes it first could read what is put there.
    pub fn new(prefix: &str) -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("{prefix}-{:016x}", entropy()?));
        // Not recursive: one that is there already is somebody else's, which is an error.
        DirBuilder::new().mode(PRIVATE).create(&path).with_context(|| path.display().to_string())?;
        Ok(Self(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // Nothing in it outlives the process; one that cannot be removed does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
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

/// Prints a document. Whoever reads it may have enough before its end (`| head`).
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("cannot print"),
        _ => Ok(()),
    }
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

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).expect("a folder").permissions().mode() & 0o7777
    }

    #[test]
    fn a_folder_is_its_owners_alone_unless_it_serves_other_ends() {
        let above = tempfile::tempdir().expect("a folder");
        let ours = |name: &str| name == "ours";
        let path = above.path().join("a/b");
        private_folder(&path, ours).expect("made");
        assert_eq!((mode(&path), mode(&above.path().join("a"))), (0o700, 0o700));
        let open = |mode| std::fs::set_permissions(&path, Permissions::from_mode(mode)).expect("set");
        open(0o755);
        std::fs::write(path.join("ours"), "").expect("written");
        private_folder(&path, ours).expect("there");
        assert_eq!(mode(&path), 0o700);
        open(0o1777);
        private_folder(&path, ours).expect("there");
        assert_eq!(mode(&path), 0o1777);
        open(0o755);
        std::fs::write(path.join("theirs"), "").expect("written");
        private_folder(&path, ours).expect("there");
        assert_eq!(mode(&path), 0o755);
        let error = private_folder(&path.join("ours"), ours).expect_err("a file").to_string();
        assert!(error.ends_with("ours: is not a folder"), "{error}");
    }

    #[test]
    fn a_temporary_folder_is_private_and_has_a_name_of_its_own() {
        let (one, two) =
            (TemporaryFolder::new("berth-test").expect("made"), TemporaryFolder::new("berth-test").expect("made"));
        assert_ne!(one.path(), two.path());
        assert_eq!(mode(one.path()), 0o700);
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists());
    }
}
