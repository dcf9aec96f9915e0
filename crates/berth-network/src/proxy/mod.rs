//! The proxy of Services and host ports. Its listeners forward connections and datagrams to
//! endpoints.
//!
//! A port has a listener only while it has an endpoint, so the kernel refuses connections to a
//! Service without endpoints. An endpoint sees the machine's address as the address of its client.

mod rotation;
pub(crate) mod tcp;
mod udp;
mod wanted;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use berth_runtime::ObjectKey;
use parking_lot::Mutex;
use socket2::Socket;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::published::Protocol;
use crate::sides::{Sides, Transport};
use rotation::Rotation;
pub(crate) use wanted::{Place, Wanted, wanted};

/// Maximum number of open connections over all Services. Additional ones are reset.
const CONNECTIONS_MAX: usize = 8192;

/// The address of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ListenAddress {
    pub(crate) address: SocketAddr,
    pub(crate) protocol: Protocol,
    pub(crate) clients: Clients,
}

/// The clients that a listener serves.
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "only Linux has bridges"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Clients {
    /// All clients that can reach it.
    All,
    /// This machine and its pods.
    Machine,
    /// Like `Machine`. Other clusters may listen at the same address for their own pods.
    MachineFirst,
    /// The pods at this cluster's bridge.
    Bridge,
}

/// A failure to listen.
#[derive(Debug, thiserror::Error)]
#[error("{protocol:?} {address} cannot be served: {source}")]
pub(crate) struct ListenError {
    address: SocketAddr,
    protocol: Protocol,
    source: io::Error,
}

impl ListenError {
    /// True if this process lacks the permission to listen there, for example on a port below 1024.
    pub(crate) fn is_forbidden(&self) -> bool {
        self.source.kind() == io::ErrorKind::PermissionDenied
    }
}

struct Listener {
    rotation: Arc<Rotation>,
    task: JoinHandle<()>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The object to which listeners belong.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    Service(ObjectKey),
    /// A pod with host ports.
    Pod(ObjectKey),
}

/// The listeners of all Services and host ports.
pub(crate) struct Proxy {
    listeners: Mutex<BTreeMap<Owner, BTreeMap<ListenAddress, Listener>>>,
    connections: Arc<Semaphore>,
    insiders: Arc<Insiders>,
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "only Linux has bridges"))]
    bridge: String,
    sides: Sides,
}

/// The clients of this machine and of its pods.
#[derive(Debug)]
pub(crate) struct Insiders {
    /// Addresses of pods.
    pub(crate) pods: ipnet::Ipv4Net,
    /// Addresses of this machine.
    pub(crate) machine: Vec<Ipv4Addr>,
}

impl Proxy {
    /// A proxy without listeners. `bridge` is the interface to which pods are connected.
    pub(crate) fn new(insiders: Insiders, bridge: String, sides: Sides) -> Self {
        let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        Self { listeners: Mutex::default(), connections, insiders: Arc::new(insiders), bridge, sides }
    }

    /// Replaces the listeners of an object. Open connections are kept.
    ///
    /// # Errors
    /// The first address that cannot be served. All others are served. Repeat the call.
    pub(crate) async fn set(&self, owner: Owner, wanted: Vec<Wanted>) -> Result<(), ListenError> {
        let mut missing = Vec::new();
        {
            let mut all = self.listeners.lock();
            let known = all.entry(owner.clone()).or_default();
            known.retain(|listen_at, listener| {
                wanted.iter().any(|it| it.listen_at == *listen_at) && !listener.task.is_finished()
            });
            for want in wanted {
                match known.get(&want.listen_at) {
                    Some(listener) => listener.rotation.set(want.endpoints, want.affinity),
                    None => missing.push(want),
                }
            }
            if known.is_empty() && missing.is_empty() {
                all.remove(&owner);
            }
        }
        let mut failed = None;
        for want in missing {
            let listen_at = want.listen_at;
            match self.listen(want).await {
                Ok(listener) => {
                    self.listeners.lock().entry(owner.clone()).or_default().insert(listen_at, listener);
                }
                Err(source) => {
                    failed.get_or_insert(ListenError {
                        address: listen_at.address,
                        protocol: listen_at.protocol,
                        source,
                    });
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    async fn listen(&self, want: Wanted) -> io::Result<Listener> {
        let rotation = Arc::new(Rotation::new(want.endpoints, want.affinity));
        let insiders = (want.listen_at.clients != Clients::All).then(|| self.insiders.clone());
        let task = match want.listen_at.protocol {
            Protocol::Tcp => {
                let listener = tcp::listen(self.bind(want.listen_at).await?)?;
                let connections = self.connections.clone();
                tokio::spawn(tcp::serve(listener, rotation.clone(), connections, insiders, self.sides.clone()))
            }
            Protocol::Udp => {
                let socket = tokio::net::UdpSocket::from_std(self.bind(want.listen_at).await?.into())?;
                tokio::spawn(udp::serve(Arc::new(socket), rotation.clone(), insiders, self.sides.clone()))
            }
        };
        Ok(Listener { rotation, task })
    }

    /// A socket that is bound to its address.
    async fn bind(&self, listen_at: ListenAddress) -> io::Result<Socket> {
        let kind = if listen_at.protocol == Protocol::Tcp { Transport::Stream } else { Transport::Datagram };
        let socket = self.sides.socket(listen_at.address, kind).await?;
        if listen_at.protocol == Protocol::Tcp {
            // Connections of a closed listener may still exist.
            socket.set_reuse_address(true)?;
        }
        #[cfg(target_os = "linux")]
        if matches!(listen_at.clients, Clients::MachineFirst | Clients::Bridge) {
            socket.set_reuse_port(true)?;
            if listen_at.clients == Clients::Bridge {
                socket.bind_device(Some(self.bridge.as_bytes()))?;
            }
        }
        socket.bind(&listen_at.address.into())?;
        Ok(socket)
    }
}

/// True if a listener serves a client. Without `insiders`, it serves all clients. A client on this
/// machine has one of the machine's addresses, or the address to which it connects.
fn serves(client: IpAddr, local: Option<IpAddr>, insiders: Option<&Insiders>) -> bool {
    let Some(insiders) = insiders else { return true };
    let is_inside = |client: Ipv4Addr| insiders.pods.contains(&client) || insiders.machine.contains(&client);
    client.is_loopback() || Some(client) == local || matches!(client, IpAddr::V4(client) if is_inside(client))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_listener_serves_the_machine_and_its_pods_only() {
        let insiders =
            Insiders { pods: "10.200.0.0/16".parse().unwrap(), machine: vec![Ipv4Addr::new(198, 51, 100, 1)] };
        let insiders = Some(&insiders);
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let local = Some(ip("192.0.2.1"));
        assert!(serves(ip("127.0.0.1"), local, insiders));
        assert!(serves(ip("192.0.2.1"), local, insiders));
        assert!(serves(ip("10.200.3.4"), local, insiders));
        assert!(serves(ip("198.51.100.1"), local, insiders));
        assert!(!serves(ip("192.0.2.7"), local, insiders));
        assert!(serves(ip("192.0.2.7"), local, None));
    }
}
