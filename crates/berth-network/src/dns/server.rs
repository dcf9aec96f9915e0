//! The sockets of the name server.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{Name, RData, RecordType};
use ipnet::Ipv4Net;
use parking_lot::RwLock;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{Semaphore, watch};

use super::answer::{self, Parsed};
use super::forward::{Transport, forward, write_framed};
use super::zone::{Answer, Zone};
use crate::plain::Loopback;
use crate::resolvers;
use crate::sides::{Sides, Transport as SocketKind};

/// Maximum number of questions to process at the same time. More wait in the socket's buffer.
const QUESTIONS_MAX: usize = 512;
/// Maximum number of open TCP connections.
const CONNECTIONS_MAX: usize = 128;
/// Maximum number of TCP connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// Time after which an idle TCP connection is closed.
const IDLE: Duration = Duration::from_secs(10);
/// Time to wait for the cluster's objects after a start. Without them, the server would report
/// existing names as nonexistent.
const START_WAIT: Duration = Duration::from_secs(4);
/// Maximum number of aliases to follow for one question.
const ALIASES_MAX: usize = 8;
/// Pause after an error of a socket, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum size of a question, which is the size of a UDP datagram.
const QUESTION_MAX: usize = 4096;

/// The zone of a cluster, and whether it is complete.
pub(crate) struct Names {
    pub(crate) zone: RwLock<Zone>,
    filled: watch::Sender<bool>,
    /// Address of this server. Questions must not be forwarded to it.
    own: Ipv4Addr,
    outsiders: Option<Outsiders>,
}

/// Clients on this machine that are not pods of the cluster, if they reach Services at other
/// addresses than pods do.
pub(crate) struct Outsiders {
    /// Range of pod addresses.
    pub(crate) pods: Ipv4Net,
    /// Range of cluster IPs.
    pub(crate) services: Ipv4Net,
    /// The addresses of Services for these clients.
    pub(crate) loopback: Arc<Loopback>,
}

impl Names {
    pub(crate) fn new(zone: Zone, own: Ipv4Addr, outsiders: Option<Outsiders>) -> Self {
        Self { zone: RwLock::new(zone), filled: watch::Sender::new(false), own, outsiders }
    }

    /// Replaces cluster IPs in an answer with the addresses that the client can reach.
    fn translate(&self, answer: &mut Answer, client: IpAddr) {
        let Some(outsiders) = &self.outsiders else { return };
        let is_pod = |client: Ipv4Addr| outsiders.pods.contains(&client) && client != self.own;
        if matches!(client, IpAddr::V4(client) if is_pod(client)) {
            return;
        }
        for record in answer.answers.iter_mut().chain(&mut answer.additionals) {
            if let RData::A(A(address)) = &mut record.data
                && outsiders.services.contains(&*address)
            {
                *address = outsiders.loopback.service(*address);
            }
        }
    }

    /// Marks the zone as complete. From then on, names that it does not contain do not exist.
    pub(crate) fn set_filled(&self) {
        self.filled.send_replace(true);
    }

    fn lookup(&self, name: &Name, kind: RecordType) -> Option<Answer> {
        self.zone.read().lookup(name, kind)
    }

    fn upstream(&self) -> Vec<IpAddr> {
        // Read again for each question, because a laptop moves between networks.
        resolvers::of_host().into_iter().filter(|server| *server != IpAddr::V4(self.own)).collect()
    }

    /// The answer to one message; `None` if the message gets no answer.
    async fn answer(&self, bytes: &[u8], transport: Transport, client: IpAddr) -> Option<Vec<u8>> {
        let encode = |question: Option<&Message>, answer: Message| match transport {
            Transport::Udp => answer::for_udp(question, answer),
            Transport::Tcp => answer::encode(&answer),
        };
        let (message, query) = match answer::parse(bytes) {
            Parsed::Question(message, query) => (message, query),
            Parsed::Refused(refusal) => return encode(None, refusal),
            Parsed::Ignored => return None,
        };
        let Some(found) = self.lookup(query.name(), query.query_type()) else {
            let answered = forward(bytes, transport, &self.upstream()).await;
            return answered.or_else(|| encode(None, answer::reply(&message, ResponseCode::ServFail)));
        };
        let mut filled = self.filled.subscribe();
        let is_filled = *filled.borrow_and_update()
            || tokio::time::timeout(START_WAIT, filled.wait_for(|filled| *filled)).await.is_ok_and(|it| it.is_ok());
        if !is_filled {
            return encode(None, answer::reply(&message, ResponseCode::ServFail));
        }
        let mut found = self.lookup(query.name(), query.query_type()).unwrap_or(found);
        self.follow(&mut found, query.query_type()).await;
        self.translate(&mut found, client);
        let authority = self.zone.read().authority();
        encode(Some(&message), answer::local(&message, found, authority))
    }

    /// Adds the records of an alias, because clients expect them in the same answer.
    async fn follow(&self, answer: &mut Answer, kind: RecordType) {
        for _ in 0..ALIASES_MAX {
            let Some(alias) = answer.alias.take() else { return };
            if let Some(next) = self.lookup(&alias, kind) {
                answer.answers.extend(next.answers);
                answer.alias = next.alias;
                continue;
            }
            let mut question = Message::query();
            question.metadata.recursion_desired = true;
            question.add_query(Query::query(alias, kind));
            let Ok(bytes) = question.to_vec() else { return };
            let Some(bytes) = forward(&bytes, Transport::Udp, &self.upstream()).await else { return };
            if let Ok(next) = Message::from_vec(&bytes) {
                answer.answers.extend(next.answers);
            }
        }
    }
}

/// The bound sockets of the name server.
pub(crate) struct Sockets {
    udp: UdpSocket,
    tcp: TcpListener,
}

impl Sockets {
    /// Binds both sockets to one address.
    pub(crate) async fn bind(sides: &Sides, address: SocketAddr) -> io::Result<Self> {
        let udp = sides.socket(address, SocketKind::Datagram).await?;
        udp.bind(&address.into())?;
        let tcp = sides.socket(address, SocketKind::Stream).await?;
        tcp.set_reuse_address(true)?;
        tcp.bind(&address.into())?;
        tcp.listen(BACKLOG)?;
        Ok(Self { udp: UdpSocket::from_std(udp.into())?, tcp: TcpListener::from_std(tcp.into())? })
    }

    /// Answers questions until the future is dropped.
    pub(crate) async fn serve(self, names: Arc<Names>) {
        tokio::join!(serve_udp(Arc::new(self.udp), names.clone()), serve_tcp(self.tcp, names));
    }
}

async fn serve_udp(socket: Arc<UdpSocket>, names: Arc<Names>) {
    let limit = Arc::new(Semaphore::new(QUESTIONS_MAX));
    let mut tasks = tokio::task::JoinSet::new();
    let mut buffer = vec![0; QUESTION_MAX];
    loop {
        while tasks.try_join_next().is_some() {}
        let permit = limit.clone().acquire_owned().await.expect("the semaphore is never closed");
        let (length, client) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(error) => {
                tracing::debug!(%error, "the DNS server could not receive a query");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let (bytes, socket, names) = (buffer[..length].to_vec(), socket.clone(), names.clone());
        tasks.spawn(async move {
            let _permit = permit;
            if let Some(answer) = names.answer(&bytes, Transport::Udp, client.ip()).await {
                // If the client has not received the answer, it repeats the question.
                let _ = socket.send_to(&answer, client).await;
            }
        });
    }
}

async fn serve_tcp(listener: TcpListener, names: Arc<Names>) {
    let limit = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut tasks = tokio::task::JoinSet::new();
    loop {
        while tasks.try_join_next().is_some() {}
        let permit = limit.clone().acquire_owned().await.expect("the semaphore is never closed");
        let (stream, client) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "the name server could not accept a connection");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let names = names.clone();
        tasks.spawn(async move {
            let _permit = permit;
            serve_stream(stream, client.ip(), &names).await;
        });
    }
}

/// Answers the questions of one connection in order, until it is idle or closed.
async fn serve_stream(mut stream: TcpStream, client: IpAddr, names: &Names) {
    loop {
        let read = async {
            let length = usize::from(stream.read_u16().await?);
            let mut question = vec![0; length];
            stream.read_exact(&mut question).await.map(|_| question)
        };
        let Ok(Ok(question)) = tokio::time::timeout(IDLE, read).await else { return };
        let Some(answer) = names.answer(&question, Transport::Tcp, client).await else { return };
        match tokio::time::timeout(IDLE, write_framed(&mut stream, &answer)).await {
            Ok(Ok(())) => {}
            _ => return,
        }
    }
}
