//! Commands in running containers, attached clients, and connections to the pod's ports.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use berth_helper::wire::{receive, send};
use berth_pod_runtime::{ContainerId, StreamName};
use bytes::Bytes;
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;

use super::output::Output;
use super::pod::{Live, Pod};
use super::spawn::PidNamespace;
use crate::options::Level;
use crate::protocol::{AttachStreams, Entry, ExecEntry, Go, Reply, Report, Request, WireError};

/// Number of bytes of input to read at once.
const CHUNK_BYTES: usize = 64 << 10;

fn live(pod: &Pod, id: &ContainerId) -> Result<Rc<Live>, WireError> {
    let container = pod.find(id).ok_or_else(|| WireError::NotFound(format!("container {id} was not started")))?;
    container.live().ok_or_else(|| WireError::NotFound(format!("container {id} has ended")))
}

/// Runs a command and sends its exit code to the client. The client has the other ends of the
/// command's streams.
pub(super) async fn run(
    pod: &Rc<Pod>,
    stream: &UnixStream,
    id: &ContainerId,
    command: Vec<String>,
    tty: bool,
    streams: Vec<OwnedFd>,
) -> Result<Reply, WireError> {
    let live = live(pod, id)?;
    let isolated = pod.launch.level != Level::Plain;
    let namespace = if isolated && !pod.launch.config.host_pid {
        PidNamespace::Of(live.handle.try_clone()?)
    } else {
        PidNamespace::Inherited
    };
    let helper = pod.children.start(&pod.init, namespace)?;
    let mut program = live.program.clone();
    if tty && !program.env.iter().any(|(name, _)| name == "TERM") {
        program.env.push(("TERM".to_owned(), "xterm".to_owned()));
    }
    let (group, security) = (live.group.clone(), live.config.security.clone());
    let entry = ExecEntry { group, command, tty, isolated, program, security };
    {
        let mut fds: Vec<BorrowedFd<'_>> = streams.iter().map(AsFd::as_fd).collect();
        if isolated {
            fds.insert(0, live.handle.as_fd());
        }
        send(&helper.control, &Entry::Exec(Box::new(entry)), &fds).await?;
    }
    // Only the command may hold its ends of the streams, so that the client sees when it closes
    // them.
    drop(streams);
    let terminal = match receive::<Report>(&helper.control).await? {
        Some((Report::Ready(_), mut fds)) => fds.pop(),
        Some((Report::Failed(error), _)) => return Err(error),
        None => return Err(WireError::Internal(format!("container {id}: the command ended while it was set up"))),
    };
    let fds: Vec<BorrowedFd<'_>> = terminal.iter().map(AsFd::as_fd).collect();
    send(stream, &Reply::Done, &fds).await?;
    drop(terminal);
    send(&helper.control, &Go, &[]).await?;
    if let Ok(Some((Report::Failed(error), _))) = receive::<Report>(&helper.control).await {
        return Err(error);
    }
    let mut ended = helper.ended;
    tokio::select! {
        ended = &mut ended => Ok(Reply::Exited { code: ended.map_or(137, |ended| ended.code) }),
        // The client sends nothing more. A message or the end of the stream means that it has
        // disconnected.
        _ = receive::<Request>(stream) => {
            if let Some(pid) = i32::try_from(helper.pid).ok().and_then(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process_group(pid, Signal::KILL);
            }
            let _ = rustix::process::pidfd_send_signal(&helper.handle, Signal::KILL);
            Ok(Reply::Exited { code: 137 })
        }
    }
}

/// Copies data between a container's streams and a client's pipes until the container ends.
pub(super) async fn attach(
    pod: &Rc<Pod>,
    stream: &UnixStream,
    id: &ContainerId,
    wanted: AttachStreams,
    pipes: Vec<OwnedFd>,
) -> Result<Reply, WireError> {
    let container = pod.find(id).ok_or_else(|| WireError::NotFound(format!("container {id} was not started")))?;
    let live = live(pod, id)?;
    let output = &live.output;
    let mut pipes = pipes.into_iter();
    let mut next = || pipes.next().ok_or_else(|| WireError::Internal("a pipe is missing".to_owned()));
    let mut copies = Vec::new();
    for (is_wanted, name) in [(wanted.stdout, StreamName::Stdout), (wanted.stderr, StreamName::Stderr)] {
        if is_wanted {
            let pipe = pipe::Sender::from_owned_fd(next()?)?;
            copies.push(tokio::task::spawn_local(copy_out(output.subscribe(name), pipe)));
        }
    }
    if wanted.stdin {
        let pipe = pipe::Receiver::from_owned_fd(next()?)?;
        tokio::task::spawn_local(copy_in(output.clone(), pipe, live.config.stdin_once));
    }
    let terminal: Vec<BorrowedFd<'_>> = output.terminal.iter().map(|terminal| terminal.as_fd()).collect();
    send(stream, &Reply::Done, &terminal).await?;
    drop(live);
    let code = tokio::select! {
        code = container.ended() => code,
        _ = receive::<Request>(stream) => {
            copies.iter().for_each(tokio::task::JoinHandle::abort);
            0
        }
    };
    for copy in copies {
        let _ = copy.await;
    }
    Ok(Reply::Exited { code })
}

async fn copy_out(mut chunks: mpsc::Receiver<Bytes>, mut pipe: pipe::Sender) {
    while let Some(chunk) = chunks.recv().await {
        if pipe.write_all(&chunk).await.is_err() {
            return;
        }
    }
}

async fn copy_in(output: Rc<Output>, mut pipe: pipe::Receiver, once: bool) {
    let mut buffer = vec![0; CHUNK_BYTES];
    while let Ok(read @ 1..) = pipe.read(&mut buffer).await {
        let mut stdin = output.stdin.lock().await;
        let Some(stdin) = &mut *stdin else { return };
        if stdin.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
    if once {
        output.stdin.lock().await.take();
    }
}

/// Connects to a port of the pod. If the pod has a network namespace, the supervisor is in it.
pub(super) async fn connect(pod: &Pod, port: u16) -> Result<std::net::TcpStream, WireError> {
    let mut hosts = vec!["127.0.0.1".to_owned(), "::1".to_owned()];
    if pod.launch.level == Level::Plain || pod.launch.shared_network {
        hosts.splice(0..0, pod.launch.ips.iter().cloned());
    }
    let mut last = None;
    for host in hosts {
        match TcpStream::connect((host.as_str(), port)).await {
            Ok(stream) => return Ok(stream.into_std()?),
            Err(error) if last.is_none() => last = Some(error),
            Err(_) => {}
        }
    }
    let reason = last.map_or_else(String::new, |error| error.to_string());
    Err(WireError::Internal(format!("pod {}: port {port}: {reason}", pod.launch.config.uid)))
}
