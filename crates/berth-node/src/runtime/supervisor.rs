//! The runtime's side of a supervisor: starts it, sends requests to it, and checks whether it
//! lives.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process::{Child, Stdio};
use std::time::Duration;

use berth_helper::wire::{receive, send};
use berth_pod_runtime::{Result, RuntimeError};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use tokio::net::UnixStream;

use crate::folder::PodFolder;
use crate::helper::Helper;
use crate::protocol::{Reply, Request};
use crate::supervisor::{READY, SOCKET};

/// A connection to a supervisor over which one request was sent.
pub(crate) struct Connection(UnixStream);

impl Connection {
    /// Connects, and sends a request with its file descriptors.
    pub async fn open(folder: &PodFolder, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<Self> {
        let stream = connect(folder).await.map_err(|error| unreachable(folder, &error))?;
        send(&stream, request, fds).await.map_err(|error| unreachable(folder, &error))?;
        Ok(Self(stream))
    }

    /// The next response; `None` if the supervisor has ended.
    pub async fn next(&self) -> Option<(Reply, Vec<OwnedFd>)> {
        receive(&self.0).await.ok().flatten()
    }

    /// Sends a request and returns the response.
    pub async fn call(folder: &PodFolder, request: &Request) -> Result<Reply> {
        let connection = Self::open(folder, request, &[]).await?;
        let (reply, _) = connection.next().await.ok_or_else(|| gone(folder))?;
        Ok(reply)
    }
}

/// Connects to the socket through a file descriptor of its folder, because the path of a socket is
/// limited to 107 bytes.
async fn connect(folder: &PodFolder) -> std::io::Result<UnixStream> {
    let opened =
        rustix::fs::openat(CWD, folder.path(), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    UnixStream::connect(format!("/proc/self/fd/{}/{SOCKET}", opened.as_fd().as_raw_fd())).await
}

fn unreachable(folder: &PodFolder, error: &std::io::Error) -> RuntimeError {
    RuntimeError::NotFound(format!("supervisor of {}: {error}", folder.path().display()))
}

/// The error of a call whose supervisor ended before it responded.
pub(crate) fn gone(folder: &PodFolder) -> RuntimeError {
    RuntimeError::NotFound(format!("the supervisor of {} ended", folder.path().display()))
}

/// Starts a supervisor and waits until it accepts commands. Its standard input is the user
/// namespace of the pod network, if pods must be in that namespace.
pub(crate) async fn spawn(helper: &Helper, folder: &PodFolder, user_namespace: Option<File>) -> Result<Child> {
    let failed = |error: std::io::Error| RuntimeError::Internal(format!("supervisor {}: {error}", helper.0.display()));
    let log = File::options().create(true).append(true).open(folder.supervisor_log()).map_err(failed)?;
    let mut command = helper.supervisor(folder.path());
    command.stdin(user_namespace.map_or_else(Stdio::null, Stdio::from)).stdout(Stdio::piped()).stderr(log);
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

/// True if a supervisor serves the folder, which means that it holds the lock. The check takes a
/// shared lock for a moment, so that concurrent checks do not disturb each other.
pub(crate) fn is_alive(folder: &PodFolder) -> bool {
    let Ok(lock) = File::options().append(true).open(folder.lock()) else { return false };
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared).is_err()
}

/// Maximum number of attempts to take the lock of a pod's folder.
const LOCK_ATTEMPTS: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Takes the lock, so that no supervisor can serve the folder. Returns `None` if the folder does
/// not exist.
///
/// # Errors
/// A supervisor serves the folder, or the lock cannot be opened.
#[expect(clippy::disallowed_methods, reason = "blocks a thread of its own and waits in real time")]
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
        // A concurrent check holds the lock for a moment.
        std::thread::sleep(LOCK_PAUSE);
    }
    Err(RuntimeError::Internal(format!("{}: a supervisor of this pod is still running", folder.path().display())))
}
