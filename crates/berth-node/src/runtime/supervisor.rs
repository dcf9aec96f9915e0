//! The runtime's side of a supervisor: starting it, asking it, and noticing its end.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use berth_pod_runtime::{Result, RuntimeError};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use tokio::net::UnixStream;

use crate::folder::PodFolder;
use crate::options::Helper;
use crate::protocol::wire::{receive, send};
use crate::protocol::{Reply, Request};
use crate::supervisor::{READY, SOCKET};

/// A connection to a supervisor, which has sent one request.
pub(crate) struct Connection(UnixStream);

impl Connection {
    /// Connects and sends a request with its descriptors.
    pub async fn open(folder: &PodFolder, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<Self> {
        let stream = connect(folder).await.map_err(|error| unreachable(folder, &error))?;
        send(&stream, request, fds).await.map_err(|error| unreachable(folder, &error))?;
        Ok(Self(stream))
    }

    /// The next answer; `None` if the supervisor has gone.
    pub async fn next(&self) -> Option<(Reply, Vec<OwnedFd>)> {
        receive(&self.0).await.ok().flatten()
    }

    /// Sends a request and returns its answer.
    pub async fn ask(folder: &PodFolder, request: &Request) -> Result<Reply> {
        let connection = Self::open(folder, request, &[]).await?;
        let (reply, _) = connection.next().await.ok_or_else(|| gone(folder))?;
        Ok(reply)
    }
}

/// Connects to the socket through a descriptor of its folder, because the path of a socket is
/// limited to 107 bytes.
async fn connect(folder: &PodFolder) -> std::io::Result<UnixStream> {
    let opened =
        rustix::fs::openat(CWD, folder.path(), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    UnixStream::connect(format!("/proc/self/fd/{}/{SOCKET}", opened.as_fd().as_raw_fd())).await
}

fn unreachable(folder: &PodFolder, error: &std::io::Error) -> RuntimeError {
    RuntimeError::NotFound(format!("supervisor of {}: {error}", folder.path().display()))
}

/// The error of a call whose supervisor ended meanwhile.
pub(crate) fn gone(folder: &PodFolder) -> RuntimeError {
    RuntimeError::NotFound(format!("the supervisor of {} ended", folder.path().display()))
}

/// Starts a supervisor and waits until it accepts commands.
pub(crate) async fn spawn(helper: &Helper, folder: &PodFolder) -> Result<Child> {
    let failed =
        |error: std::io::Error| RuntimeError::Internal(format!("supervisor {}: {error}", helper.program.display()));
    let log = File::options().create(true).append(true).open(folder.supervisor_log()).map_err(failed)?;
    let mut command = Command::new(&helper.program);
    command.args(&helper.supervisor).arg(folder.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    let waiting = tokio::task::spawn_blocking(move || {
        let mut child = command.spawn()?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        if line.trim_end() == READY {
            return Ok(child);
        }
        let status = child.wait()?;
        let reason = if line.trim_end().is_empty() { status.to_string() } else { line.trim_end().to_owned() };
        Err(std::io::Error::other(reason))
    });
    waiting.await.map_err(|error| RuntimeError::Internal(error.to_string()))?.map_err(failed)
}

/// True if a supervisor serves the folder: it holds the lock for as long as it lives. The check takes
/// a shared lock for a moment, so that checks do not see each other.
pub(crate) fn is_alive(folder: &PodFolder) -> bool {
    let Ok(lock) = File::options().append(true).open(folder.lock()) else { return false };
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared).is_err()
}

/// Attempts to take the lock of a pod's folder, and the pause between them.
const LOCK_ATTEMPTS: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Keeps supervisors from serving the folder. `None` if there is no folder.
///
/// # Errors
/// A supervisor serves it, or the lock cannot be opened.
#[expect(clippy::disallowed_methods, reason = "runs on a thread of its own, in the machine's time")]
pub(crate) fn lock(folder: &PodFolder) -> Result<Option<File>> {
    let lock = match File::options().create(true).append(true).open(folder.lock()) {
        Ok(lock) => lock,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(RuntimeError::Internal(format!("{}: {error}", folder.lock().display()))),
    };
    for _ in 0..LOCK_ATTEMPTS {
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Ok(Some(lock));
        }
        // A check holds the lock for a moment.
        std::thread::sleep(LOCK_PAUSE);
    }
    Err(RuntimeError::Internal(format!("{}: a supervisor serves the pod", folder.path().display())))
}
