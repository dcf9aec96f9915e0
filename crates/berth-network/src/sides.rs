//! The two places in which this process has sockets: the machine's network, and the pod network if
//! that is in a namespace of its own.
//!
//! A process without privileges cannot enter the pod network's namespace. The namespace's holder
//! creates the sockets there ([`crate::holder`]).

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
#[cfg(target_os = "linux")]
use std::sync::Arc;

use ipnet::Ipv4Net;
use socket2::{Domain, Socket, Type};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};

#[cfg(target_os = "linux")]
use crate::holder::Holder;

/// Kind of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Transport {
    /// TCP.
    Stream,
    /// UDP.
    Datagram,
}

impl Transport {
    /// Creates a socket in the network namespace of this thread. It does not block.
    pub(crate) fn create(self, address: SocketAddr) -> io::Result<Socket> {
        let kind = match self {
            Self::Stream => Type::STREAM,
            Self::Datagram => Type::DGRAM,
        };
        let socket = Socket::new(Domain::for_address(address), kind, None)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    }
}

/// Creates sockets on the side of an address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sides {
    /// The ranges of the pod network, if it is in a namespace of its own.
    inside: Vec<Ipv4Net>,
    #[cfg(target_os = "linux")]
    holder: Option<Arc<Holder>>,
}

impl Sides {
    /// The sides of a pod network in the namespace of a holder, with these ranges.
    #[cfg(target_os = "linux")]
    pub(crate) fn of(holder: Arc<Holder>, inside: Vec<Ipv4Net>) -> Self {
        Self { inside, holder: Some(holder) }
    }

    /// True if the address is in a pod network that the machine cannot reach.
    pub(crate) fn is_inside(&self, address: IpAddr) -> bool {
        matches!(address, IpAddr::V4(address) if self.inside.iter().any(|range| range.contains(&address)))
    }

    /// A new socket to bind to an address of this machine or of the pod network, or to connect to
    /// it.
    pub(crate) async fn socket(&self, address: SocketAddr, kind: Transport) -> io::Result<Socket> {
        #[cfg(target_os = "linux")]
        if let Some(holder) = &self.holder
            && self.is_inside(address.ip())
        {
            return holder.socket(kind).await;
        }
        kind.create(address)
    }

    /// Opens a TCP connection.
    pub(crate) async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let socket = self.socket(address, Transport::Stream).await?;
        TcpSocket::from_std_stream(socket.into()).connect(address).await
    }

    /// A socket that sends datagrams to an address and receives the responses.
    pub(crate) async fn datagrams_to(&self, address: SocketAddr) -> io::Result<UdpSocket> {
        let socket = self.socket(address, Transport::Datagram).await?;
        socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)).into())?;
        socket.connect(&address.into())?;
        UdpSocket::from_std(socket.into())
    }
}
