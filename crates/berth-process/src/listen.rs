//! Small HTTP servers of a component: health, metrics, webhooks, pages. HTTP/1.1 and HTTP/2,
//! optionally with TLS. Connections, handshakes and headers have limits.
//!
//! Nothing here is generic, and futures are boxed. Therefore the code of connections is compiled in
//! this crate, and not in `berth`, which the profile `release` compiles without optimization.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

/// Maximum number of concurrent connections. Further connections wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 256;
/// Time limit of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit from a connection, or its last response, to the complete headers of the next request.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(60);

pub use berth_controllers::configuration::BindAddress;

/// Binds an address; `None` if it is disabled. `what` names the option in errors.
pub async fn bind(address: BindAddress, what: &str) -> anyhow::Result<Option<TcpListener>> {
    let bound = match address {
        BindAddress::Off => return Ok(None),
        BindAddress::At(address) => TcpListener::bind(address).await,
        // One socket serves both address families, where the machine has both.
        BindAddress::Any(port) => match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
            Ok(listener) => Ok(listener),
            Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await,
        },
    };
    bound.map(Some).with_context(|| format!("{what}: cannot listen on this address"))
}

/// The body of a response: whole, or a stream.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;
/// A response in preparation.
pub type Answer = BoxFuture<'static, Response<Body>>;
/// Responds to requests.
pub type Handler = Arc<dyn Fn(Request<Incoming>) -> Answer + Send + Sync>;

/// Serves until dropped. `tls` returns the certificate for each handshake.
#[inline(never)]
pub fn serve(
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    handler: Handler,
) -> BoxFuture<'static, ()> {
    Box::pin(accept_all(listener, tls, handler))
}

async fn accept_all(listener: TcpListener, tls: Option<Arc<rustls::ServerConfig>>, handler: Handler) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let acceptor = tls.map(TlsAcceptor::from);
    // Dropping the set closes the connections.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let slot = slots.clone().acquire_owned().await.expect("the semaphore is never closed");
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, peer)) => {
                let (acceptor, handler) = (acceptor.clone(), handler.clone());
                connections.spawn(async move {
                    accept(stream, peer, acceptor, handler).await;
                    drop(slot);
                });
            }
            Err(error) => {
                // The process is out of file descriptors, or the peer gave up. Neither is a reason
                // to stop. The pause prevents a busy loop in the first case.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// The client's certificate chain, its own certificate first. The client has proved that it has the
/// key. The chain is not verified yet.
#[derive(Clone)]
pub struct PeerCertificates(pub Arc<[CertificateDer<'static>]>);

/// Origin of a request.
#[derive(Clone, Copy)]
pub struct Peer(SocketAddr);

impl Peer {
    /// True if the request comes from 127.0.0.1 or ::1 and therefore from this machine or pod (such
    /// as through a port-forward). Other addresses of 127.0.0.0/8 do not count, because some
    /// proxies forward remote requests from there.
    pub fn is_here(self) -> bool {
        [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)].contains(&self.0.ip().to_canonical())
    }
}

async fn accept(stream: TcpStream, peer: SocketAddr, acceptor: Option<TlsAcceptor>, handler: Handler) {
    let _ = stream.set_nodelay(true);
    let Some(acceptor) = acceptor else { return converse(stream, peer, None, handler).await };
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => {
            let shown = stream.get_ref().1.peer_certificates().map(|chain| PeerCertificates(chain.to_vec().into()));
            converse(stream, peer, shown, handler).await;
        }
        Ok(Err(error)) => tracing::debug!(%peer, %error, "TLS handshake"),
        Err(_) => tracing::debug!(%peer, "TLS handshake took too long"),
    }
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: SocketAddr,
    shown: Option<PeerCertificates>,
    handler: Handler,
) {
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        if let Some(shown) = &shown {
            request.extensions_mut().insert(shown.clone());
        }
        let answer = handler(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_READ_TIMEOUT);
    builder.http2().timer(TokioTimer::new());
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%peer, %error, "connection ended");
    }
}

/// A response of plain text.
pub fn text(code: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    answer(code, "text/plain; charset=utf-8", text)
}

/// A response of a media type.
pub fn answer(code: StatusCode, media: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Full::new(body.into()).boxed_unsync());
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    response
}
