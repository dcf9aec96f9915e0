//! The proxy of Services and host ports: listeners on their addresses, which pass connections and
//! datagrams on to endpoints.
//!
//! A port has a listener only while it has an endpoint, so the kernel refuses connections to a
//! Service without endpoints. The endpoint sees the machine's address as its client's.

mod rotation;
mod tcp;
mod udp;
mod wanted;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use berth_runtime::ObjectKey;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::published::Protocol;
use rotation::Rotation;
pub(crate) use wanted::{Place, Wanted, wanted};

/// Connections that are open at once, over all Services. Further ones are reset.
const CONNECTIONS_MAX: usize = 8192;

/// Where a listener listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Front {
    pub(crate) address: SocketAddr,
    pub(crate) protocol: Protocol,
    /// Only clients of this machine and of its pods are served.
    pub(crate) is_private: bool,
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
    /// Whether this process may not listen there, for example at a port below 1024.
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

/// The object that listeners belong to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    Service(ObjectKey),
    /// A pod with host ports.
    Pod(ObjectKey),
}

/// The listeners of all Services and host ports.
pub(crate) struct Proxy {
    listeners: Mutex<BTreeMap<Owner, BTreeMap<Front, Listener>>>,
    connections: Arc<Semaphore>,
    pods: ipnet::Ipv4Net,
}

impl Proxy {
    pub(crate) fn new(pods: ipnet::Ipv4Net) -> Self {
        Self { listeners: Mutex::default(), connections: Arc::new(Semaphore::new(CONNECTIONS_MAX)), pods }
    }

    /// Makes the listeners of an object those that are wanted. Open connections stay.
    ///
    /// # Errors
    /// The first address that cannot be served; all others are. Repeat the call.
    pub(crate) async fn set(&self, owner: Owner, wanted: Vec<Wanted>) -> Result<(), ListenError> {
        let mut missing = Vec::new();
        {
            let mut all = self.listeners.lock();
            let known = all.entry(owner.clone()).or_default();
            known.retain(|front, listener| wanted.iter().any(|it| it.front == *front) && !listener.task.is_finished());
            for want in wanted {
                match known.get(&want.front) {
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
            let front = want.front;
            match self.listen(want).await {
                Ok(listener) => {
                    self.listeners.lock().entry(owner.clone()).or_default().insert(front, listener);
                }
                Err(source) => {
                    failed.get_or_insert(ListenError { address: front.address, protocol: front.protocol, source });
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    async fn listen(&self, want: Wanted) -> io::Result<Listener> {
        let rotation = Arc::new(Rotation::new(want.endpoints, want.affinity));
        let pods = want.front.is_private.then_some(self.pods);
        let task = match want.front.protocol {
            Protocol::Tcp => {
                let listener = tcp::bind(want.front.address)?;
                tokio::spawn(tcp::serve(listener, rotation.clone(), self.connections.clone(), pods))
            }
            Protocol::Udp => {
                let socket = tokio::net::UdpSocket::bind(want.front.address).await?;
                tokio::spawn(udp::serve(Arc::new(socket), rotation.clone(), pods))
            }
        };
        Ok(Listener { rotation, task })
    }
}

/// Whether a listener serves a client. With `pods`, only clients of this machine and of the range are
/// served. A client of this machine has a loopback address or the address that it connects to.
fn serves(client: IpAddr, local: Option<IpAddr>, pods: Option<ipnet::Ipv4Net>) -> bool {
    let Some(pods) = pods else { return true };
    client.is_loopback() || Some(client) == local || matches!(client, IpAddr::V4(client) if pods.contains(&client))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_listener_serves_the_machine_and_its_pods_only() {
        let pods = Some("10.200.0.0/16".parse().unwrap());
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let local = Some(ip("192.0.2.1"));
        assert!(serves(ip("127.0.0.1"), local, pods));
        assert!(serves(ip("192.0.2.1"), local, pods));
        assert!(serves(ip("10.200.3.4"), local, pods));
        assert!(!serves(ip("192.0.2.7"), local, pods));
        assert!(serves(ip("192.0.2.7"), local, None));
    }
}
