//! Questions about names of other domains, which are forwarded to the host's name servers.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

/// Time limit for one name server. Clients wait for five seconds in total.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum size of a UDP message from a name server.
const UDP_MAX: usize = 65_535;
const DNS_PORT: u16 = 53;

/// Transport of a question. The answer uses the same transport. A truncated answer therefore
/// reaches the client, which repeats its question over TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Udp,
    Tcp,
}

/// Sends a question to the name servers in order. Returns the first answer.
pub(super) async fn forward(question: &[u8], transport: Transport, servers: &[IpAddr]) -> Option<Vec<u8>> {
    for server in servers {
        let address = SocketAddr::new(*server, DNS_PORT);
        let asked = async {
            match transport {
                Transport::Udp => over_udp(question, address).await,
                Transport::Tcp => over_tcp(question, address).await,
            }
        };
        match tokio::time::timeout(TIMEOUT, asked).await {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(error)) => tracing::debug!(%server, %error, "a name server of the host could not be reached"),
            Err(_) => tracing::debug!(%server, "a name server of the host did not answer in time"),
        }
    }
    None
}

async fn over_udp(question: &[u8], server: SocketAddr) -> io::Result<Vec<u8>> {
    let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // Each question uses a socket of its own, and therefore an unpredictable port.
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(question).await?;
    let mut buffer = vec![0; UDP_MAX];
    loop {
        let length = socket.recv(&mut buffer).await?;
        // Other messages are late or forged.
        if length >= 12 && buffer[..2] == question[..2] {
            buffer.truncate(length);
            return Ok(buffer);
        }
    }
}

async fn over_tcp(question: &[u8], server: SocketAddr) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    write_framed(&mut stream, question).await?;
    let length = usize::from(stream.read_u16().await?);
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

/// Writes a message after two bytes with its length.
pub(super) async fn write_framed(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    stream.write_all(&[&length.to_be_bytes(), message].concat()).await
}
