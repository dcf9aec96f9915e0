//! Forwards the traffic of pods to other networks, with the machine's addresses.
//!
//! The kernel delivers TCP connections and datagrams of pods to transparent sockets in the pod
//! network's namespace ([`crate::linux::Links::divert`]). Both TCP connections, that of the pod and
//! that to the destination, are the kernel's. The pod's connection is therefore established before
//! the destination has accepted. If the destination does not accept, the pod's connection is reset.
//! Other protocols, such as ICMP, are not forwarded.

use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, setsockopt, sockopt};
use parking_lot::Mutex;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{Start, inside};
use crate::proxy::tcp::{relay, reset};
use crate::sides::Transport;

/// Maximum number of open connections to other networks. Additional ones are reset.
const CONNECTIONS_MAX: usize = 8192;
/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// Time limit for a destination to accept a connection.
const CONNECT: Duration = Duration::from_secs(60);
/// Maximum number of pairs of a pod's socket and a destination. Datagrams of additional pairs are
/// dropped.
const FLOWS_MAX: usize = 4096;
/// Time without datagrams after which a pair is forgotten.
const FLOW_IDLE: Duration = Duration::from_secs(60);
/// Like [`FLOW_IDLE`], for questions about names, which have one answer each.
const NAME_IDLE: Duration = Duration::from_secs(10);
const NAME_PORT: u16 = 53;
/// Maximum size of a datagram.
const DATAGRAM_MAX: usize = 65_535;
/// Pause after an error of a socket, such as too many open files.
const PAUSE: Duration = Duration::from_millis(50);

/// The transparent sockets.
pub(super) struct Listeners {
    tcp: socket2::Socket,
    udp: socket2::Socket,
}

impl Listeners {
    /// Binds both sockets to free ports of the gateway. The calling thread is in the pod network's
    /// namespace.
    pub(super) fn bind(gateway: Ipv4Addr) -> io::Result<Self> {
        let address = SocketAddr::from((gateway, 0));
        let bound = |kind: Transport| {
            let socket = kind.create(address)?;
            socket.set_ip_transparent_v4(true)?;
            socket.bind(&address.into())?;
            Ok::<_, io::Error>(socket)
        };
        let (tcp, udp) = (bound(Transport::Stream)?, bound(Transport::Datagram)?);
        tcp.listen(BACKLOG)?;
        setsockopt(&udp, sockopt::Ipv4OrigDstAddr, &true)?;
        Ok(Self { tcp, udp })
    }

    /// The ports of the TCP socket and the UDP socket.
    pub(super) fn ports(&self) -> io::Result<(u16, u16)> {
        let port = |socket: &socket2::Socket| {
            socket.local_addr().map(|address| address.as_socket().map_or(0, |address| address.port()))
        };
        Ok((port(&self.tcp)?, port(&self.udp)?))
    }
}

/// A request for a socket in the pod network's namespace that represents a destination to a pod.
pub(super) struct SocketRequest {
    destination: SocketAddr,
    pod: SocketAddr,
    answer: oneshot::Sender<io::Result<std::net::UdpSocket>>,
}

impl SocketRequest {
    /// Creates the socket. The calling thread is in the pod network's namespace.
    pub(super) fn answer(self) {
        let _ = self.answer.send(inside::impersonate(self.destination, self.pod));
    }
}

/// Forwards traffic as long as the future is polled. The calling thread is in the machine's network
/// namespace.
pub(super) async fn serve(listeners: Listeners, start: Start, sockets: mpsc::Sender<SocketRequest>) {
    let Ok(tcp) = TcpListener::from_std(listeners.tcp.into()) else { return };
    let Ok(udp) = UdpSocket::from_std(listeners.udp.into()) else { return };
    tokio::join!(connections(tcp, start), datagrams(udp, start, sockets));
}

/// True if traffic to this destination is forwarded. The machine's loopback addresses are private
/// to the machine.
fn is_outside(destination: Ipv4Addr, start: Start) -> bool {
    let is_own = start.pods.contains(&destination) || start.services.contains(&destination);
    let is_unicast = !destination.is_multicast() && !destination.is_broadcast() && destination.octets()[0] != 0;
    !is_own && is_unicast && !destination.is_loopback()
}

async fn connections(listener: TcpListener, start: Start) {
    let limit = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let destination = match stream.local_addr() {
            Ok(SocketAddr::V4(destination)) if is_outside(*destination.ip(), start) => destination,
            _ => {
                reset(&stream);
                continue;
            }
        };
        let Ok(permit) = limit.clone().try_acquire_owned() else {
            reset(&stream);
            continue;
        };
        tokio::spawn(async move {
            let _permit = permit;
            match tokio::time::timeout(CONNECT, TcpStream::connect(SocketAddr::V4(destination))).await {
                Ok(Ok(server)) => relay(stream, server).await,
                _ => reset(&stream),
            }
        });
    }
}

/// The datagrams between a pod's socket and a destination.
struct Flow {
    outside: Arc<UdpSocket>,
    used: Arc<Mutex<Instant>>,
    task: JoinHandle<()>,
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn datagrams(listener: UdpSocket, start: Start, sockets: mpsc::Sender<SocketRequest>) {
    let mut flows: BTreeMap<(SocketAddr, SocketAddr), Flow> = BTreeMap::new();
    let mut buffer = vec![0; DATAGRAM_MAX];
    loop {
        let received = listener.async_io(Interest::READABLE, || receive(listener.as_raw_fd(), &mut buffer)).await;
        let Ok((length, pod, destination)) = received else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        if !is_outside(*destination.ip(), start) {
            continue;
        }
        let key = (SocketAddr::V4(pod), SocketAddr::V4(destination));
        if flows.get(&key).is_some_and(|flow| flow.task.is_finished()) {
            flows.remove(&key);
        }
        if !flows.contains_key(&key) {
            if flows.len() >= FLOWS_MAX {
                flows.retain(|_, flow| !flow.task.is_finished());
            }
            if flows.len() >= FLOWS_MAX {
                continue;
            }
            let Ok(flow) = open(key.0, key.1, &sockets).await else { continue };
            flows.insert(key, flow);
        }
        // The pair's own socket in the pod network receives the next datagrams.
        if let Some(flow) = flows.get(&key) {
            *flow.used.lock() = Instant::now();
            // Programs expect losses of datagrams.
            let _ = flow.outside.send(&buffer[..length]).await;
        }
    }
}

/// Receives a datagram. Returns its length, its sender and its destination.
fn receive(socket: RawFd, buffer: &mut [u8]) -> io::Result<(usize, SocketAddrV4, SocketAddrV4)> {
    let mut space = nix::cmsg_space!(nix::libc::sockaddr_in);
    let mut parts = [IoSliceMut::new(buffer)];
    let message = recvmsg::<SockaddrIn>(socket, &mut parts, Some(&mut space), MsgFlags::MSG_DONTWAIT)?;
    let lacking = || io::Error::new(io::ErrorKind::InvalidData, "a datagram without its addresses");
    let destination = message.cmsgs()?.find_map(|part| match part {
        ControlMessageOwned::Ipv4OrigDstAddr(address) => Some(SocketAddrV4::from(SockaddrIn::from(address))),
        _ => None,
    });
    let sender = message.address.map(SocketAddrV4::from).ok_or_else(lacking)?;
    Ok((message.bytes, sender, destination.ok_or_else(lacking)?))
}

async fn open(pod: SocketAddr, destination: SocketAddr, sockets: &mpsc::Sender<SocketRequest>) -> io::Result<Flow> {
    let (answer, answered) = oneshot::channel();
    let gone = |_| io::Error::other("the thread in the pod network ended");
    sockets.send(SocketRequest { destination, pod, answer }).await.map_err(|_| gone(()))?;
    let inside = UdpSocket::from_std(answered.await.map_err(|_| gone(()))??)?;
    let outside = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
    outside.connect(destination).await?;
    let (outside, used) = (Arc::new(outside), Arc::new(Mutex::new(Instant::now())));
    let idle = if destination.port() == NAME_PORT { NAME_IDLE } else { FLOW_IDLE };
    let (far, seen) = (outside.clone(), used.clone());
    let task = tokio::spawn(async move {
        let out = copy(&inside, &far, &seen);
        let back = copy(&far, &inside, &seen);
        let unused = async {
            loop {
                let until = *seen.lock() + idle;
                if until <= Instant::now() {
                    return;
                }
                tokio::time::sleep_until(until).await;
            }
        };
        tokio::select! {
            () = out => {}
            () = back => {}
            () = unused => {}
        }
    });
    Ok(Flow { outside, used, task })
}

/// Copies datagrams until one of the sockets fails, for example because the destination has closed
/// its port.
async fn copy(from: &UdpSocket, to: &UdpSocket, used: &Mutex<Instant>) {
    let mut buffer = vec![0; DATAGRAM_MAX];
    while let Ok(length) = from.recv(&mut buffer).await {
        *used.lock() = Instant::now();
        let _ = to.send(&buffer[..length]).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unicast_addresses_of_other_networks_are_forwarded() {
        let start = Start { pods: "10.200.0.0/16".parse().unwrap(), services: "10.96.0.0/12".parse().unwrap() };
        let check = |text: &str| is_outside(text.parse().unwrap(), start);
        for outside in ["192.0.2.1", "10.201.0.1", "8.8.8.8", "172.16.0.1"] {
            assert!(check(outside), "{outside}");
        }
        for own in ["10.200.0.1", "10.96.0.1", "127.0.0.1", "127.65.0.1", "0.0.0.0", "0.1.2.3", "224.0.0.1"] {
            assert!(!check(own), "{own}");
        }
        assert!(!check("255.255.255.255"));
    }
}
