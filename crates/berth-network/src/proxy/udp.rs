//! Datagrams to Services. Each client has a socket to its endpoint until neither side sends any
//! more.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{Insiders, rotation::Rotation, serves};
use crate::sides::Sides;

/// Time without datagrams after which a client may get another endpoint.
const IDLE: Duration = Duration::from_secs(60);
/// Maximum number of clients of one port. Datagrams of additional clients are dropped.
const FLOWS_MAX: usize = 1024;
/// Maximum size of a datagram.
const DATAGRAM_MAX: usize = 65_535;
/// Pause after an error of the socket.
const PAUSE: Duration = Duration::from_millis(50);

struct Flow {
    endpoint: SocketAddr,
    socket: Arc<UdpSocket>,
    used: Arc<Mutex<Instant>>,
    /// Task that forwards the endpoint's datagrams to the client.
    answers: JoinHandle<()>,
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.answers.abort();
    }
}

pub(super) async fn serve(
    socket: Arc<UdpSocket>,
    rotation: Arc<Rotation>,
    insiders: Option<Arc<Insiders>>,
    sides: Sides,
) {
    let local = socket.local_addr().ok().map(|address| address.ip());
    let mut flows: BTreeMap<SocketAddr, Flow> = BTreeMap::new();
    let mut buffer = vec![0; DATAGRAM_MAX];
    loop {
        let (length, client) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            // The kernel reports here that a client has closed its port.
            Err(error) => {
                tracing::debug!(%error, "a datagram to a Service could not be received");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        if !serves(client.ip(), local, insiders.as_deref()) {
            continue;
        }
        let is_live = |flow: &Flow| rotation.has(flow.endpoint) && !flow.answers.is_finished();
        if flows.get(&client).is_some_and(|flow| !is_live(flow)) {
            flows.remove(&client);
        }
        if !flows.contains_key(&client) {
            if flows.len() >= FLOWS_MAX {
                flows.retain(|_, flow| is_live(flow));
            }
            if flows.len() >= FLOWS_MAX {
                continue;
            }
            let Some(flow) = open(&socket, client, &rotation, &sides).await else { continue };
            flows.insert(client, flow);
        }
        if let Some(flow) = flows.get(&client) {
            *flow.used.lock() = Instant::now();
            // An error means that an earlier datagram was refused. Clients of UDP expect losses.
            let _ = flow.socket.send(&buffer[..length]).await;
        }
    }
}

async fn open(front: &Arc<UdpSocket>, client: SocketAddr, rotation: &Rotation, sides: &Sides) -> Option<Flow> {
    let endpoint = *rotation.choose(client.ip()).first()?;
    let socket = sides.datagrams_to(endpoint).await.ok()?;
    rotation.chosen(client.ip(), endpoint);
    let (socket, used) = (Arc::new(socket), Arc::new(Mutex::new(Instant::now())));
    let answers = tokio::spawn(pass_back(front.clone(), socket.clone(), client, used.clone()));
    Some(Flow { endpoint, socket, used, answers })
}

/// Forwards the endpoint's datagrams to the client until neither side sends any more.
async fn pass_back(front: Arc<UdpSocket>, socket: Arc<UdpSocket>, client: SocketAddr, used: Arc<Mutex<Instant>>) {
    let mut buffer = vec![0; DATAGRAM_MAX];
    loop {
        let until = *used.lock() + IDLE;
        match tokio::time::timeout_at(until, socket.recv(&mut buffer)).await {
            Ok(Ok(length)) => {
                *used.lock() = Instant::now();
                let _ = front.send_to(&buffer[..length], client).await;
            }
            // The endpoint's port is closed.
            Ok(Err(_)) => return,
            Err(_) if used.lock().elapsed() >= IDLE => return,
            Err(_) => {}
        }
    }
}
