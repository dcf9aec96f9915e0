//! Access to the operating system that only programs have: the async runtime, signals, entropy,
//! and the files and folders of the command line.

use std::fs::{DirBuilder, Permissions};
use std::future::Future;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use serde_json::Value;

/// Runs `program` to its end on a runtime that uses all cores. Remaining tasks then have one
/// second to end.
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

/// Like [`run`], for a program that checks something and returns true if it found nothing. The exit
/// codes are 0 if nothing was found, 1 if something was, and 2 if the check itself failed.
pub fn run_check(check: impl Future<Output = anyhow::Result<bool>>) -> ExitCode {
    const FAILED: u8 = 2;
    let code = run(async { check.await.map(|passed| if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }) });
    code.unwrap_or_else(|error| {
        eprintln!("berth: {}", in_full(&error));
        ExitCode::from(FAILED)
    })
}

/// Raises the limit on open files to the system's maximum. Every connection is an open file, and
/// shells start programs with a limit of 1,024. A failure is logged and does not prevent the
/// start.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!(%error, "cannot raise the limit on open files");
        }
    }
}

/// Makes the system use small pages only for memory that this process allocates from now on. The
/// allocator asks for huge pages of 2 MiB, which stay resident while a single object is left in
/// them: half of the memory of idle controllers. A failure is logged and prevents nothing.
pub fn use_small_pages() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "cannot do without huge pages");
    }
}

/// Makes a write beyond the limit on file sizes fail with an error. By default the system sends
/// SIGXFSZ, which ends the process.
fn survive_file_size_limit() {
    let kind = tokio::signal::unix::SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw());
    // The handler stays registered after the listener is dropped.
    if let Err(error) = tokio::signal::unix::signal(kind) {
        tracing::warn!(%error, "cannot handle SIGXFSZ: a write beyond the limit on file sizes will end the process");
    }
}

/// Waits for Ctrl-C or SIGTERM. Returns `interrupted` or `terminated`.
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

/// An unpredictable number, different at every start, so that identifiers do not repeat after a
/// restart.
pub fn entropy() -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).context("/dev/urandom")?;
    Ok(u64::from_le_bytes(bytes))
}

/// Creates a folder, and its parents, that only its owner can read. An existing folder is made
/// private if `is_ours` accepts the name of every entry. A folder with other content is left
/// unchanged.
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
            tracing::warn!(path = shown(), %error, "cannot make the folder private: other users may read it");
        }
    }
    Ok(())
}

const PRIVATE: u32 = 0o700;

/// A folder for this run alone, removed when dropped.
pub struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    /// Creates the folder under an unpredictable name. With a predictable name, another user could
    /// create it first and read its files.
    pub fn new(prefix: &str) -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("{prefix}-{:016x}", entropy()?));
        // Not recursive: an existing folder belongs to another process, which is an error.
        DirBuilder::new().mode(PRIVATE).create(&path).with_context(|| path.display().to_string())?;
        Ok(Self(path))
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // No file in it is needed after the process ends. A folder that cannot be removed does no
        // harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The text of an error and of its causes, outermost first. A cause whose text is part of the
/// previous one is omitted.
pub fn in_full(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain().map(ToString::to_string) {
        if parts.last().is_none_or(|last| !last.contains(&cause)) {
            parts.push(cause);
        }
    }
    parts.join(": ")
}

/// Prints a document. A reader that closes the pipe early (`| head`) is no error.
pub fn print(text: &str) -> anyhow::Result<()> {
    print_bytes(text.as_bytes())
}

/// Like [`print()`], for a file.
///
/// # Errors
/// See [`print()`].
pub fn print_bytes(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("cannot print"),
        _ => Ok(()),
    }
}

/// Reads and parses a YAML or JSON file.
pub fn read(path: &Path) -> anyhow::Result<Value> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    serde_saphyr::from_str(&text).map_err(|error| anyhow!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use berth_apiserver::tls::ListenError;

    use super::*;

    #[test]
    fn each_cause_of_an_error_is_printed_once() {
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
    fn a_folder_is_made_private_unless_it_has_other_content() {
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
    fn a_temporary_folder_is_private_and_has_a_unique_name() {
        let (one, two) =
            (TemporaryFolder::new("berth-test").expect("made"), TemporaryFolder::new("berth-test").expect("made"));
        assert_ne!(one.path(), two.path());
        assert_eq!(mode(one.path()), 0o700);
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists());
    }
}
