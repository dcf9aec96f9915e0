//! The holder's thread in the pod network's namespace: creates the network and serves clients.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use berth_helper::Lock;
use berth_helper::wire::{receive, send, send_blocking};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};

use super::outward::{Listeners, SocketRequest};
use super::{Described, LOCK, Reply, Request, SOCKET, Start};
use crate::identity::Identity;
use crate::linux::{Diversion, Links};
use crate::sides::Transport;

/// Time without clients and pods after which the holder ends, and interval of the checks.
const IDLE: Duration = Duration::from_secs(2);
/// Pause after a failure to accept a client, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// What the thread needs.
pub(super) struct Inside {
    pub(super) start: Start,
    /// Folder of the network's records. It is the working directory as well.
    pub(super) folder: PathBuf,
    /// Connection to the client that started the holder.
    pub(super) control: OwnedFd,
    pub(super) lock: Lock,
    /// Receives the listeners for traffic to other networks.
    pub(super) listeners: oneshot::Sender<Listeners>,
    /// Requests of the other thread for sockets in this namespace.
    pub(super) sockets: mpsc::Receiver<SocketRequest>,
}

/// The network, for the tasks that serve clients.
struct State {
    links: Links,
    description: Described,
    namespaces: [File; 2],
    clients: watch::Sender<usize>,
    is_ending: Cell<bool>,
    ended: watch::Sender<bool>,
}

/// Serves the network until it is no longer needed.
pub(super) fn run(inside: Inside) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("event loop: {error}"))?;
    tokio::task::LocalSet::new().block_on(&runtime, serve(inside))
}

async fn serve(inside: Inside) -> Result<(), String> {
    let Inside { start, folder, control, lock, listeners, mut sockets } = inside;
    let opened = Links::open(Identity::of(&folder), &folder, None, Some(start.pods), true).await;
    let links = opened.map_err(|error| error.to_string())?;
    let isolated = match divert(&links, start).await {
        Ok(bound) => {
            let _ = listeners.send(bound);
            None
        }
        Err(error) => Some(error),
    };
    let description = Described { pods: start.pods, isolated };
    let open = |path: &str| File::open(path).map_err(|error| format!("{path}: {error}"));
    let namespaces = [open("/proc/thread-self/ns/user")?, open("/proc/thread-self/ns/net")?];
    let _ = std::fs::remove_file(SOCKET);
    // The path is relative, because the path of a socket is limited to 107 bytes.
    let listener = UnixListener::bind(SOCKET).map_err(|error| format!("socket: {error}"))?;
    let reply = Reply::Network(description.clone());
    send_blocking(control.as_fd(), &reply, &[namespaces[0].as_fd(), namespaces[1].as_fd()])
        .map_err(|error| format!("first response: {error}"))?;
    drop(control);
    let state = Rc::new(State {
        links,
        description,
        namespaces,
        clients: watch::Sender::new(0),
        is_ending: Cell::new(false),
        ended: watch::Sender::new(false),
    });
    let mut ended = state.ended.subscribe();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => drop(tokio::task::spawn_local(connection(state.clone(), stream))),
                Err(_) => tokio::time::sleep(PAUSE).await,
            },
            Some(request) = sockets.recv() => request.answer(),
            () = unused(&state, &lock) => break,
            _ = ended.wait_for(|ended| *ended) => break,
        }
    }
    let _ = std::fs::remove_file(SOCKET);
    Ok(())
}

/// Delivers the traffic of pods to other networks to new listeners.
async fn divert(links: &Links, start: Start) -> Result<Listeners, String> {
    let gateway = links.ranges().gateway;
    let bound = Listeners::bind(gateway).map_err(|error| format!("transparent sockets: {error}"))?;
    let ports = bound.ports().map_err(|error| format!("transparent sockets: {error}"))?;
    let to = Diversion { tcp: ports.0, udp: ports.1 };
    links.divert(start.services, to).await.map_err(|error| error.to_string())?;
    Ok(bound)
}

/// Returns once the network has had neither a client nor a pod for a while, or its folder has been
/// removed.
async fn unused(state: &State, lock: &Lock) {
    let mut clients = state.clients.subscribe();
    loop {
        let _ = clients.wait_for(|count| *count == 0).await;
        // No client disconnects pods that end now: the kernel does, once nothing uses their
        // namespaces.
        state.links.forget_namespaces();
        tokio::time::sleep(IDLE).await;
        let is_unused =
            *clients.borrow() == 0 && (!lock.is_at(Path::new(LOCK)) || state.links.is_empty().await.unwrap_or(false));
        if is_unused && *clients.borrow() == 0 {
            return;
        }
    }
}

/// Carries out the command of one connection.
async fn connection(state: Rc<State>, stream: UnixStream) {
    let Ok(Some((request, fds))) = receive::<Request>(&stream).await else { return };
    match request {
        Request::Watch => {
            state.clients.send_modify(|count| *count += 1);
            let reply = Reply::Network(state.description.clone());
            let namespaces = [state.namespaces[0].as_fd(), state.namespaces[1].as_fd()];
            if send(&stream, &reply, &namespaces).await.is_ok() {
                // The client sends nothing more.
                let _ = receive::<Request>(&stream).await;
            }
            state.clients.send_modify(|count| *count -= 1);
        }
        Request::Socket { kind } => {
            let created = kind.create(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
            let (reply, socket) = match created {
                Ok(socket) => (Reply::Done, Some(socket)),
                Err(error) => (Reply::Failed(error.to_string()), None),
            };
            let fds: Vec<BorrowedFd<'_>> = socket.iter().map(|socket| socket.as_fd()).collect();
            let _ = send(&stream, &reply, &fds).await;
        }
        other => {
            let reply = match change(&state, other, fds).await {
                Ok(()) => Reply::Done,
                Err(error) => Reply::Failed(error),
            };
            let _ = send(&stream, &reply, &[]).await;
            if state.is_ending.get() {
                state.ended.send_replace(true);
            }
        }
    }
}

/// Changes the network.
async fn change(state: &State, request: Request, fds: Vec<OwnedFd>) -> Result<(), String> {
    let links = &state.links;
    let changed = match request {
        Request::Connect { pod, address } => {
            let namespace = fds.into_iter().next().ok_or("the message lacks the pod's network namespace")?;
            links.connect(&pod, File::from(namespace), address).await
        }
        Request::Disconnect { pod } => links.disconnect(&pod).await,
        Request::Retain { pods } => links.retain(pods.iter()).await,
        Request::End => {
            state.is_ending.set(true);
            links.remove().await
        }
        Request::Watch | Request::Socket { .. } => Ok(()),
    };
    changed.map_err(|error| error.to_string())
}

/// Creates a socket that receives datagrams of a pod to another network, and sends responses in the
/// name of their destination.
pub(super) fn impersonate(destination: SocketAddr, pod: SocketAddr) -> io::Result<std::net::UdpSocket> {
    let socket = Transport::Datagram.create(destination)?;
    socket.set_ip_transparent_v4(true)?;
    socket.set_reuse_address(true)?;
    socket.bind(&destination.into())?;
    socket.connect(&pod.into())?;
    Ok(socket.into())
}
