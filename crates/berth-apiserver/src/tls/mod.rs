//! The TLS listener: accepts connections, authenticates requests, and passes them to
//! [`crate::ApiServer::handle`]. HTTP/1.1 and HTTP/2 share one port, by ALPN.
//!
//! Every resource that an unauthenticated client can occupy has a limit: connections, the
//! handshake, the time until a request's headers are complete, their size, streams per connection,
//! and the time that a client may leave sent data unread. The server limits bodies where it reads
//! them. Watches have no time limit here: the server ends them, or a shutdown does after its grace
//! period. [`crate::connect`] serves a connection that changed its protocol. Such a connection
//! still counts as a connection of the listener, and ends with the listener.

mod timed_stream;
mod trust;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use berth_apimachinery::status::Status;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::{ACCEPT, CACHE_CONTROL, DATE, HeaderValue};
use http::{Request, Response};
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use crate::auth::authn::Authenticator;
use crate::completion::Disconnection;
use crate::connect::{Carrier, Sessions, Unread};
use crate::fairness::{self, Fairness};
use crate::{ApiServer, Body, RequestInfo, UserInfo, audit, compression, connect, own_service, rest};

use timed_stream::TimedStream;
pub use trust::{Certificates, OWN_NAME};
use trust::{ClientCertificate, Trust};

/// Maximum number of connections; further ones wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 16 * 1024;
/// Maximum size of all headers of a request, as Go's default.
const HEADER_BYTES_MAX: u32 = 1024 * 1024;
/// Concurrent requests on an HTTP/2 connection, as in kube-apiserver.
const STREAMS_MAX: u32 = 250;
/// Interval of keep-alive pings on idle HTTP/2 connections, and the time for a reply.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// Time without traffic after which the kernel probes whether a client is connected, and the
/// interval of its probes. This detects a lost client of a session without data.
const PROBE_INTERVAL: Duration = Duration::from_secs(30);
/// Time for open requests, including watches, to finish after shutdown began.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(500);

/// Why the listener could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address cannot be bound.
    #[error("listening on {address}: {source}")]
    Bind {
        /// The requested address.
        address: SocketAddr,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The certificate, its key or the certificate authority cannot be used.
    #[error("TLS set-up: {0}")]
    Tls(String),
}

/// A bound socket with its certificates, before it accepts connections.
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    trust: Arc<watch::Sender<Arc<Trust>>>,
    now: RealTime,
    limits: TimeLimits,
}

/// Time limits for idle or stalled clients.
#[derive(Clone, Copy, Debug)]
pub struct TimeLimits {
    /// Time for a TLS handshake. The default is many times the need of a slow link.
    pub handshake: Duration,
    /// Over HTTP/1.1: time from the connection (or the last response on it) until the next
    /// request's headers are complete. Over HTTP/2: time until the connection preface is complete.
    pub headers: Duration,
    /// Time for a request's body to arrive.
    pub body: Duration,
    /// Time for which a client may leave sent data unread.
    pub unread: Duration,
}

impl Default for TimeLimits {
    fn default() -> Self {
        TimeLimits {
            handshake: Duration::from_secs(10),
            headers: Duration::from_secs(90),
            body: rest::BODY_TIMEOUT,
            unread: Duration::from_secs(60),
        }
    }
}

/// The real time, for checking certificates. The clock of an embedded cluster may run faster.
pub type RealTime = Arc<dyn Fn() -> jiff::Timestamp + Send + Sync>;

/// Changes the certificates of a listener that is serving.
#[derive(Clone)]
pub struct CertificatesHandle(Arc<watch::Sender<Arc<Trust>>>);

impl CertificatesHandle {
    /// Replaces the certificates for new connections; open connections keep theirs. On error
    /// nothing changes.
    pub fn replace(&self, certificates: &Certificates) -> Result<(), ListenError> {
        self.0.send_replace(Arc::new(Trust::new(certificates).map_err(ListenError::Tls)?));
        Ok(())
    }
}

impl Listener {
    /// Binds `address` (port 0: any free one). Client certificates are checked at the time that
    /// `now` returns.
    pub async fn bind(
        address: SocketAddr,
        certificates: &Certificates,
        now: RealTime,
    ) -> Result<Listener, ListenError> {
        let trust = Arc::new(Trust::new(certificates).map_err(ListenError::Tls)?);
        let bind = |source| ListenError::Bind { address, source };
        let socket = TcpListener::bind(address).await.map_err(bind)?;
        let address = socket.local_addr().map_err(bind)?;
        let (trust, limits) = (Arc::new(watch::Sender::new(trust)), TimeLimits::default());
        Ok(Listener { socket, address, trust, now, limits })
    }

    /// Replaces the time limits for stalled clients.
    #[must_use]
    pub fn with_time_limits(self, limits: TimeLimits) -> Listener {
        Listener { limits, ..self }
    }

    /// A handle to replace the certificates later.
    pub fn certificates(&self) -> CertificatesHandle {
        CertificatesHandle(self.trust.clone())
    }

    /// The bound address, with the actual port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown` completes. Then gives open requests a short time to finish, and
    /// returns. The futures are boxed, so that the code of requests is compiled in this crate, with
    /// its level of optimization, and not in the crate that awaits it.
    pub fn serve(
        self,
        server: ApiServer,
        authenticator: Arc<Authenticator>,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> BoxFuture<'static, ()> {
        self.boxed(server, authenticator, Box::pin(shutdown))
    }

    #[inline(never)]
    fn boxed(
        self,
        server: ApiServer,
        authenticator: Arc<Authenticator>,
        shutdown: BoxFuture<'static, ()>,
    ) -> BoxFuture<'static, ()> {
        Box::pin(self.accept(server, authenticator, shutdown))
    }

    async fn accept(self, server: ApiServer, authenticator: Arc<Authenticator>, mut shutdown: BoxFuture<'static, ()>) {
        let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let fairness = Arc::new(Fairness::start(server.inner.figures.clone(), server.store_handle()));
        let (closing, closed) = watch::channel(false);
        let sessions = Sessions::default();
        let mut connections = tokio::task::JoinSet::new();
        let own_service = tokio::spawn(own_service::keep(server.clone(), self.address));
        loop {
            let slot = tokio::select! {
                biased;
                () = &mut shutdown => break,
                slot = slots.clone().acquire_owned() => Arc::new(slot.expect("the semaphore is never closed")),
            };
            let accepted = tokio::select! {
                biased;
                () = &mut shutdown => break,
                accepted = self.socket.accept() => accepted,
            };
            // Remove the results of finished connections, so that the set does not grow.
            while connections.try_join_next().is_some() {}
            match accepted {
                Ok((stream, peer)) => {
                    let connection = Connection {
                        trust: self.trust.borrow().clone(),
                        now: self.now.clone(),
                        server: server.clone(),
                        authenticator: authenticator.clone(),
                        fairness: fairness.clone(),
                        closed: closed.clone(),
                        sessions: sessions.clone(),
                        slot,
                        limits: self.limits,
                    };
                    connections.spawn(connection.serve(stream, peer));
                }
                Err(error) => {
                    // The process is out of file descriptors, or the peer has disconnected already.
                    // Neither is a reason to stop. The pause keeps the former from looping.
                    tracing::warn!(%error, "could not accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        drop(self.socket);
        own_service.abort();
        closing.send_replace(true);
        let all_ended = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(SHUTDOWN_GRACE, all_ended).await.is_err() {
            tracing::debug!("closing connections with open requests");
        }
        connections.shutdown().await;
        sessions.shutdown().await;
    }
}

/// State of the task that serves one connection.
struct Connection {
    trust: Arc<Trust>,
    now: RealTime,
    server: ApiServer,
    authenticator: Arc<Authenticator>,
    fairness: Arc<Fairness>,
    /// True once the listener shuts down.
    closed: watch::Receiver<bool>,
    sessions: Sessions,
    /// The connection's share of [`CONNECTIONS_MAX`].
    slot: Arc<OwnedSemaphorePermit>,
    limits: TimeLimits,
}

impl Connection {
    async fn serve(self, stream: TcpStream, peer: SocketAddr) {
        // Small responses and watch events must not wait for each other.
        let _ = stream.set_nodelay(true);
        let probes = socket2::TcpKeepalive::new().with_time(PROBE_INTERVAL).with_interval(PROBE_INTERVAL);
        let _ = socket2::SockRef::from(&stream).set_tcp_keepalive(&probes);
        let acceptor = TlsAcceptor::from(self.trust.config.clone());
        let stream = match tokio::time::timeout(self.limits.handshake, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%peer, %error, "TLS handshake failed"),
            Err(_) => return tracing::debug!(%peer, "TLS handshake timed out"),
        };
        let certificate = self.trust.client(stream.get_ref().1.peer_certificates(), (self.now)());
        let (server, authenticator, fairness, now) = (self.server, self.authenticator, self.fairness, self.now);
        let limits = self.limits;
        let unread = Unread::limited();
        let carrier = Carrier { sessions: self.sessions, slot: self.slot, unread: unread.clone() };
        let service = hyper::service::service_fn(move |mut request: Request<hyper::body::Incoming>| {
            let (server, authenticator, fairness) = (server.clone(), authenticator.clone(), fairness.clone());
            request.extensions_mut().insert(carrier.clone());
            let certificate = match &certificate {
                // The client's certificate may expire while its connection is open.
                ClientCertificate::Trusted { until, .. } if now().as_second() > *until => ClientCertificate::Untrusted,
                certificate => certificate.clone(),
            };
            async move {
                let response = respond(&server, &authenticator, &fairness, certificate, request, limits.body).await;
                Ok::<_, Infallible>(response)
            }
        });
        // ALPN has chosen the protocol. Detecting it from the first bytes could wait forever.
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let stream = TimedStream::new(stream, limits.unread).lifted_by(unread);
        let ended = if is_http2 {
            let stream = TokioIo::new(stream.with_preface_limit(limits.headers));
            let connection = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_concurrent_streams(STREAMS_MAX)
                .max_header_list_size(HEADER_BYTES_MAX)
                .keep_alive_interval(KEEP_ALIVE_INTERVAL)
                .keep_alive_timeout(KEEP_ALIVE_INTERVAL)
                .serve_connection(stream, service);
            until_closed(connection, self.closed, http2::Connection::graceful_shutdown).await
        } else {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(limits.headers)
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades();
            until_closed(connection, self.closed, http1::UpgradeableConnection::graceful_shutdown).await
        };
        if let Err(error) = ended {
            tracing::debug!(%peer, %error, "connection ended");
        }
    }
}

/// Drives a connection to its end. Once the listener has `closed`, `shut_down` lets the connection
/// finish only its open requests.
async fn until_closed<C>(
    connection: C,
    mut closed: watch::Receiver<bool>,
    shut_down: impl FnOnce(Pin<&mut C>),
) -> Result<(), hyper::Error>
where
    C: Future<Output = Result<(), hyper::Error>>,
{
    tokio::pin!(connection);
    tokio::select! {
        ended = &mut connection => return ended,
        // Changes once, or fails if the listener has ended.
        _ = closed.changed() => {}
    }
    shut_down(connection.as_mut());
    connection.await
}

/// Authenticates a request and returns its response. `body_limit` is the time for the body to
/// arrive.
async fn respond(
    server: &ApiServer,
    authenticator: &Authenticator,
    fairness: &Arc<Fairness>,
    certificate: ClientCertificate,
    mut request: Request<hyper::body::Incoming>,
    body_limit: Duration,
) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let accept = request.headers().get(ACCEPT).cloned();
    let may_compress = compression::is_wanted(&request);
    let audit_id = audit::identify(request.headers_mut(), || server.new_request_id());
    let authenticated = match certificate {
        ClientCertificate::Absent => authenticator.authenticate(None, &path, request.headers_mut()),
        ClientCertificate::Trusted { user, .. } => authenticator.authenticate(Some(user), &path, request.headers_mut()),
        // An untrusted certificate does not fall back to anonymous access, even on public paths.
        ClientCertificate::Untrusted => {
            authenticator.authenticate(None, &path, request.headers_mut()).and_then(|user| {
                if user == UserInfo::anonymous() { Err(Status::unauthorized("Unauthorized")) } else { Ok(user) }
            })
        }
    };
    let mut response = match authenticated {
        Ok(user) => respond_in_turn(server, fairness, user, request, body_limit).await,
        Err(status) => status_response(&status, accept.as_ref()),
    };
    // Responses depend on the user: intermediaries must not cache them, unless the response allows
    // it itself.
    let headers = response.headers_mut();
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
    // Cluster time, which may differ from real time: clients compute ages from this header.
    if let Some(date) = date(server.now()) {
        headers.entry(DATE).or_insert(date);
    }
    // An aggregated API server received the audit id with the request, and sets this header itself.
    headers.entry(audit::ID_HEADER).or_insert(audit_id);
    if may_compress { compression::apply(response) } else { response }
}

/// A time in HTTP's format (RFC 9110, section 5.6.7); `None` for a year it cannot express.
fn date(now: jiff::Timestamp) -> Option<HeaderValue> {
    let text = jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&now).ok()?;
    HeaderValue::try_from(text).ok()
}

/// Reads the request's body, which may take long, and executes the request when its user has a
/// turn.
async fn respond_in_turn(
    server: &ApiServer,
    turns: &Arc<Fairness>,
    user: UserInfo,
    request: Request<hyper::body::Incoming>,
    body_limit: Duration,
) -> Response<Body> {
    let (mut parts, body) = request.into_parts();
    let accept = parts.headers.get(ACCEPT).cloned();
    let info = RequestInfo::parse(&parts.method, parts.uri.path(), parts.uri.query().unwrap_or_default());
    let body = if connect::is_proxy(&info) {
        // The body is forwarded as a stream.
        parts.extensions.insert(connect::StreamedBody::new(body));
        Bytes::new()
    } else {
        match rest::read_body(body, body_limit).await {
            Ok(body) => body,
            Err(status) => return status_response(&status, accept.as_ref()),
        }
    };
    let query = parts.uri.query().unwrap_or_default();
    let flow = fairness::flow_of(&info, query, &user, &server.inner.config.controllers);
    let (bytes, server, client) = (body.len(), server.clone(), Disconnection::default());
    let disconnection = client.clone();
    let request = async move { rest::handle(&server, parts, body, user, disconnection).await };
    match turns.complete(flow, bytes, client, request).await {
        Ok(response) => response,
        Err(status) => status_response(&status, accept.as_ref()),
    }
}

/// A Status as a response in an encoding that the `Accept` header allows.
fn status_response(status: &Status, accept: Option<&HeaderValue>) -> Response<Body> {
    let accept = accept.and_then(|value| value.to_str().ok()).unwrap_or_default();
    rest::status_response_for(status, accept)
}
