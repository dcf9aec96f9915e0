//! Commands to the supervisor.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use berth_helper::wire::{receive, send};
use tokio::net::UnixStream;

use super::pod::Pod;
use super::{container, exec, limits};
use crate::protocol::{Reply, Request, WireError};

/// Serves one connection: reads a request and sends its responses.
pub(super) async fn connection(pod: Rc<Pod>, stream: UnixStream) {
    let Ok(Some((request, fds))) = receive::<Request>(&stream).await else { return };
    let is_last = matches!(request, Request::Shutdown);
    let answer = answer(&pod, &stream, request, fds).await;
    let reply = answer.unwrap_or_else(Reply::Error);
    // A client that has disconnected needs no response.
    let _ = send(&stream, &reply, &[]).await;
    if is_last {
        pod.release();
    }
}

async fn answer(pod: &Rc<Pod>, stream: &UnixStream, request: Request, fds: Vec<OwnedFd>) -> Result<Reply, WireError> {
    match request {
        Request::Watch => {
            watch(pod, stream).await;
            Ok(Reply::Done)
        }
        Request::Start(config) => {
            // A start continues if its client disconnects.
            let pod = pod.clone();
            let start = tokio::task::spawn_local(async move { container::start(&pod, *config).await });
            let started = start.await.map_err(|error| WireError::Internal(error.to_string()))?;
            started.map(Reply::Container)
        }
        Request::Stop { id, grace_ms } => {
            container::stop(pod, &id, Duration::from_millis(grace_ms)).map(|()| Reply::Done)
        }
        Request::Limit(limits) => limits::update(pod, &limits).map(|()| Reply::Done),
        Request::Shutdown => {
            pod.clone().shut_down().await;
            Ok(Reply::Done)
        }
        Request::Exec { id, command, tty } => exec::run(pod, stream, &id, command, tty, fds).await,
        Request::Attach { id, streams } => exec::attach(pod, stream, &id, streams, fds).await,
        Request::Connect { port } => {
            let socket = exec::connect(pod, port).await?;
            send(stream, &Reply::Done, &[socket.as_fd()]).await?;
            Ok(Reply::Done)
        }
    }
}

/// Sends the containers' states until the client disconnects.
async fn watch(pod: &Pod, stream: &UnixStream) {
    let mut changes = pod.changes();
    loop {
        changes.mark_unchanged();
        if send(stream, &Reply::Containers(pod.containers()), &[]).await.is_err() {
            return;
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            _ = receive::<Request>(stream) => return,
        }
    }
}
