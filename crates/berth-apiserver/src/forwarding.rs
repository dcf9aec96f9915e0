//! Requests that are forwarded to another server over a new HTTP/1.1 connection: to an aggregated
//! API server, or to a pod.

use http::header::{self, HeaderName};
use http::{HeaderMap, Request, Response};
use hyper::body::{Body, Incoming};
use hyper::rt::{Read, Write};

/// Headers that concern one connection (RFC 9110, section 7.6.1).
const CONNECTION_HEADERS: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Removes the headers of a connection, and those that `Connection` names.
pub(crate) fn remove_connection_headers(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::try_from(name.trim()).ok())
        .collect();
    for name in CONNECTION_HEADERS.into_iter().chain(named) {
        headers.remove(name);
    }
}

/// The target of a request with this path and raw query.
pub(crate) fn target(path: &str, query: &str) -> String {
    let separator = if query.is_empty() { "" } else { "?" };
    format!("{path}{separator}{query}")
}

/// Sends a request over a connection, and returns the response as soon as it starts. The connection
/// lives until the response's body has been read or dropped, or until an upgraded connection is
/// closed. `peer` names the server in logs.
pub(crate) async fn exchange<B>(
    stream: impl Read + Write + Unpin + Send + 'static,
    request: Request<B>,
    peer: &'static str,
) -> hyper::Result<Response<Incoming>>
where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "connection to {peer}");
        }
    });
    sender.send_request(request).await
}
