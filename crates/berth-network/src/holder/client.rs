//! A client of a holder: finds it or starts it, and starts it again if it ends.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use berth_helper::wire::{receive, send};
use berth_pod_runtime::PodUid;
use ipnet::Ipv4Net;
use rustix::fs::{CWD, Mode, OFlags};
use socket2::Socket;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use super::{Described, Reply, Request, SOCKET, Start};
use crate::helper::HOLDER;
use crate::sides::Transport;

/// Time limit for a new holder to create its network.
const START_MAX: Duration = Duration::from_secs(20);
/// Time limit for a holder to carry out a command.
const CALL_MAX: Duration = Duration::from_secs(20);
/// Number of attempts to find or start a holder. A holder that is about to end may still answer.
const ATTEMPTS: u32 = 3;
/// Pause between attempts, and after a failure to start a holder again.
const RETRY: Duration = Duration::from_millis(500);
const ENDED: &str = "the process that holds the pod network ended";

/// Failure of a holder.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HolderError {
    #[error("the process that holds the pod network does not respond: {0}")]
    Unreachable(#[from] io::Error),
    #[error("{0}")]
    Refused(String),
    #[error(
        "the process that holds the pod network sent an unexpected response; stop the cluster's pods, so that the process ends"
    )]
    Unexpected,
}

/// A holder and its namespaces.
#[derive(Debug)]
pub(crate) struct Holder {
    folder: PathBuf,
    description: Described,
    /// The user namespace of the holder, to which the user namespaces of pods belong.
    user: OwnedFd,
    /// True if no earlier process used this network.
    is_new: bool,
    is_ending: Arc<AtomicBool>,
    /// Starts the holder again when it ends.
    keeper: JoinHandle<()>,
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

/// A connection that lasts as long as the holder and this client.
struct Watched {
    stream: UnixStream,
    description: Described,
    user: OwnedFd,
    network: OwnedFd,
}

impl Holder {
    /// Finds the holder of the network with this folder, or starts one with the range that `choose`
    /// returns. `program` is an executable that calls [`crate::helper::run`].
    pub(crate) async fn open(
        program: &Path,
        folder: &Path,
        services: Ipv4Net,
        choose: impl AsyncFn() -> Result<Ipv4Net, String>,
    ) -> Result<Self, HolderError> {
        let mut last = HolderError::Unexpected;
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                tokio::time::sleep(RETRY).await;
            }
            match watch(folder).await {
                Ok(watched) => return Ok(Self::of(program, folder, services, watched, None)),
                Err(HolderError::Unreachable(_)) => {}
                Err(error) => return Err(error),
            }
            let pods = choose().await.map_err(HolderError::Refused)?;
            match start(program, folder, Start { pods, services }, &[]).await {
                Ok(child) => match watch(folder).await {
                    Ok(watched) => return Ok(Self::of(program, folder, services, watched, Some(child))),
                    Err(error) => last = error,
                },
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// `child` is the holder if this process has started it.
    fn of(program: &Path, folder: &Path, services: Ipv4Net, watched: Watched, child: Option<Child>) -> Self {
        let is_new = child.is_some();
        let is_ending = Arc::new(AtomicBool::new(false));
        let Watched { stream, description, user, network } = watched;
        let kept = user.try_clone();
        let keeper = {
            let start = Start { pods: description.pods, services };
            let (program, folder, is_ending) = (program.to_owned(), folder.to_owned(), is_ending.clone());
            tokio::spawn(async move {
                let Ok(user) = kept else { return };
                keep(&program, &folder, start, (stream, child), [user, network], &is_ending).await;
            })
        };
        Self { folder: folder.to_owned(), description, user, is_new, is_ending, keeper }
    }

    /// Range of pod addresses.
    pub(crate) fn pods(&self) -> Ipv4Net {
        self.description.pods
    }

    /// Why pods cannot reach other networks.
    pub(crate) fn isolated(&self) -> Option<&str> {
        self.description.isolated.as_deref()
    }

    /// True if no earlier process used this network. Pods of an earlier process are not connected
    /// to it.
    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }

    /// The user namespace above those of pods.
    pub(crate) fn user_namespace(&self) -> io::Result<File> {
        Ok(File::from(self.user.try_clone()?))
    }

    /// A new socket in the pod network.
    pub(crate) async fn socket(&self, kind: Transport) -> io::Result<Socket> {
        let (_, fds) = call(&self.folder, &Request::Socket { kind }, &[]).await.map_err(io::Error::other)?;
        let socket = fds.into_iter().next().ok_or_else(|| io::Error::other(HolderError::Unexpected))?;
        Ok(Socket::from(socket))
    }

    /// Connects a pod's network namespace.
    pub(crate) async fn connect(&self, pod: &PodUid, namespace: File, address: Ipv4Addr) -> Result<(), HolderError> {
        let request = Request::Connect { pod: pod.clone(), address };
        call(&self.folder, &request, &[namespace.as_fd()]).await.map(drop)
    }

    /// Disconnects a pod.
    pub(crate) async fn disconnect(&self, pod: &PodUid) -> Result<(), HolderError> {
        call(&self.folder, &Request::Disconnect { pod: pod.clone() }, &[]).await.map(drop)
    }

    /// Disconnects all pods but these.
    pub(crate) async fn retain<'a>(&self, pods: impl Iterator<Item = &'a PodUid>) -> Result<(), HolderError> {
        call(&self.folder, &Request::Retain { pods: pods.cloned().collect() }, &[]).await.map(drop)
    }

    /// Removes the network and ends the holder.
    pub(crate) async fn remove(&self) -> Result<(), HolderError> {
        self.is_ending.store(true, Ordering::Relaxed);
        call(&self.folder, &Request::End, &[]).await.map(drop)
    }
}

/// Starts a holder in the same namespaces whenever the current one ends.
async fn keep(
    program: &Path,
    folder: &Path,
    with: Start,
    mut holder: (UnixStream, Option<Child>),
    namespaces: [OwnedFd; 2],
    is_ending: &AtomicBool,
) {
    let fds = [namespaces[0].as_fd(), namespaces[1].as_fd()];
    loop {
        let _ = receive::<Reply>(&holder.0).await;
        if let Some(mut child) = holder.1.take() {
            // It has closed its connection, so it has ended or is about to.
            let _ = tokio::task::spawn_blocking(move || child.wait()).await;
        }
        if is_ending.load(Ordering::Relaxed) {
            return;
        }
        tracing::warn!("the process that holds the pod network ended; starting it again");
        holder = loop {
            let again = match watch(folder).await {
                Err(HolderError::Unreachable(_)) => match start(program, folder, with, &fds).await {
                    Ok(child) => watch(folder).await.map(|watched| (watched.stream, Some(child))),
                    Err(error) => Err(error),
                },
                other => other.map(|watched| (watched.stream, None)),
            };
            match again {
                Ok(again) => break again,
                Err(error) => tracing::error!(%error, "the holder of the pod network does not start"),
            }
            tokio::time::sleep(RETRY).await;
        };
    }
}

/// Starts a holder and waits until its network exists.
async fn start(
    program: &Path,
    folder: &Path,
    with: Start,
    namespaces: &[BorrowedFd<'_>],
) -> Result<Child, HolderError> {
    let (own, other) = StdStream::pair()?;
    own.set_nonblocking(true)?;
    let stream = UnixStream::from_std(own)?;
    let mut command = Command::new(program);
    command.arg(HOLDER).arg(folder).env(berth_helper::ENVIRONMENT.0, berth_helper::ENVIRONMENT.1);
    command.stdin(Stdio::from(OwnedFd::from(other))).stdout(Stdio::null()).stderr(Stdio::null());
    let spawned = tokio::task::spawn_blocking(move || command.spawn()).await.map_err(io::Error::other)?;
    let mut child = spawned?;
    let answered = tokio::time::timeout(START_MAX, async {
        send(&stream, &with, namespaces).await?;
        receive::<Reply>(&stream).await
    });
    let answered = answered.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let failed = match answered {
        Ok(Some((Reply::Network(_), _))) => None,
        Ok(Some((Reply::Failed(reason), _))) => Some(HolderError::Refused(reason)),
        Ok(Some((Reply::Done, _))) => Some(HolderError::Unexpected),
        Ok(None) => Some(io::Error::other(ENDED).into()),
        Err(error) => Some(error.into()),
    };
    let Some(error) = failed else { return Ok(child) };
    let _ = child.kill();
    let _ = tokio::task::spawn_blocking(move || child.wait()).await;
    Err(error)
}

/// Opens the lasting connection to a holder.
async fn watch(folder: &Path) -> Result<Watched, HolderError> {
    let stream = connect(folder).await?;
    let asked = async {
        send(&stream, &Request::Watch, &[]).await?;
        receive::<Reply>(&stream).await
    };
    let answered = tokio::time::timeout(CALL_MAX, asked).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?;
    let (reply, fds) = answered?.ok_or_else(|| io::Error::other(ENDED))?;
    let mut fds = fds.into_iter();
    match (reply, fds.next(), fds.next()) {
        (Reply::Network(description), Some(user), Some(network)) => Ok(Watched { stream, description, user, network }),
        (Reply::Failed(reason), ..) => Err(HolderError::Refused(reason)),
        _ => Err(HolderError::Unexpected),
    }
}

/// Sends a command over a connection of its own and returns the response.
async fn call(folder: &Path, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(Reply, Vec<OwnedFd>), HolderError> {
    let asked = async {
        let stream = connect(folder).await?;
        send(&stream, request, fds).await?;
        receive::<Reply>(&stream).await?.ok_or_else(|| io::Error::other(ENDED))
    };
    let answered = tokio::time::timeout(CALL_MAX, asked).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?;
    match answered? {
        (Reply::Failed(reason), _) => Err(HolderError::Refused(reason)),
        other => Ok(other),
    }
}

/// Connects to the socket through a file descriptor of its folder, because the path of a socket is
/// limited to 107 bytes.
async fn connect(folder: &Path) -> io::Result<UnixStream> {
    let opened = rustix::fs::openat(CWD, folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    UnixStream::connect(format!("/proc/self/fd/{}/{SOCKET}", opened.as_fd().as_raw_fd())).await
}
