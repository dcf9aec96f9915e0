//! Upgrades an HTTP/1.1 request to a connection of another protocol.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use berth_apimachinery::status::Status;
use bytes::Bytes;
use http::header::{self, HeaderName};
use http::{Extensions, HeaderMap, HeaderValue, Method, Response, StatusCode};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;

use super::session::Carrier;
use crate::Body;

/// Header of SPDY clients with the protocols that they support, the preferred one first.
const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
/// Header of an error with the protocols that the server supports.
const ACCEPTED_PROTOCOLS: HeaderName = HeaderName::from_static("x-accepted-stream-protocol-versions");

/// The parts of a request, other than its path, that a connection needs.
pub(crate) struct Wire<'a> {
    pub(crate) method: &'a Method,
    pub(crate) headers: &'a HeaderMap,
    /// Raw query string.
    pub(crate) query: &'a str,
    pub(crate) link: Link,
    /// The body, of a client in this process. The listener's requests have it in `link`.
    pub(crate) body: Bytes,
}

/// The listener's data about the connection of a request. Requests of clients in this process have
/// none.
#[derive(Default)]
pub(crate) struct Link {
    upgrade: Option<OnUpgrade>,
    carrier: Option<Carrier>,
    body: Option<StreamedBody>,
}

impl Link {
    /// Removes the link from a request and returns it.
    pub(crate) fn take(extensions: &mut Extensions) -> Link {
        Link { upgrade: extensions.remove(), carrier: extensions.remove(), body: extensions.remove() }
    }

    /// The request's body, if it was not read yet.
    pub(super) fn body(&mut self) -> Option<hyper::body::Incoming> {
        self.body.take()?.0.lock().take()
    }

    /// Exempts the connection from the time limit for unread data.
    pub(crate) fn lift_unread_limit(&self) {
        if let Some(carrier) = &self.carrier {
            carrier.unread.lift();
        }
    }
}

/// The body of a forwarded request, which is streamed.
#[derive(Clone)]
pub(crate) struct StreamedBody(Arc<Mutex<Option<hyper::body::Incoming>>>);

impl StreamedBody {
    pub(crate) fn new(body: hyper::body::Incoming) -> StreamedBody {
        StreamedBody(Arc::new(Mutex::new(Some(body))))
    }
}

/// The protocol change that a request asks for.
pub(super) enum Upgrade {
    /// WebSocket, with the value of `Sec-WebSocket-Accept` and the subprotocols that the client
    /// supports, the preferred one first.
    WebSocket { accept: String, protocols: Vec<String> },
    /// SPDY/3.1, with the subprotocols that the client supports.
    Spdy { protocols: Vec<String> },
}

/// The items of comma-separated headers.
fn items(headers: &HeaderMap, name: &HeaderName) -> Vec<String> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(','))
        .map(|item| item.trim().to_owned())
        .filter(|item| !item.is_empty())
        .collect()
}

/// True if a request asks to change the protocol of its connection.
pub(super) fn is_requested(headers: &HeaderMap) -> bool {
    let connection = items(headers, &header::CONNECTION);
    connection.iter().any(|item| item.eq_ignore_ascii_case("upgrade")) && headers.contains_key(header::UPGRADE)
}

/// Whether a request asks for a WebSocket.
pub(super) fn is_websocket(headers: &HeaderMap) -> bool {
    is_requested(headers) && items(headers, &header::UPGRADE).iter().any(|item| item.eq_ignore_ascii_case("websocket"))
}

/// The protocol change that a request asks for.
///
/// # Errors
/// 400 for a request without `Upgrade`, or to an unsupported protocol.
pub(super) fn requested(wire: &Wire<'_>) -> Result<Upgrade, Status> {
    if !is_requested(wire.headers) || wire.link.upgrade.is_none() {
        return Err(Status::bad_request("Upgrade request required"));
    }
    let wanted = items(wire.headers, &header::UPGRADE);
    let wants = |name: &str| wanted.iter().any(|item| item.eq_ignore_ascii_case(name));
    if wants("SPDY/3.1") {
        return Ok(Upgrade::Spdy { protocols: items(wire.headers, &STREAM_PROTOCOL) });
    }
    if !wants("websocket") {
        let wanted = wanted.join(", ");
        return Err(Status::bad_request(format!("Upgrade: {wanted} is not supported; use websocket or SPDY/3.1")));
    }
    if *wire.method != Method::GET {
        return Err(Status::bad_request("a WebSocket begins with a GET request"));
    }
    if wire.headers.get(header::SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
        return Err(Status::bad_request("Sec-WebSocket-Version: 13 is the supported version"));
    }
    let key = wire.headers.get(header::SEC_WEBSOCKET_KEY);
    let key = key.ok_or_else(|| Status::bad_request("the header Sec-WebSocket-Key is missing"))?;
    let protocols = items(wire.headers, &header::SEC_WEBSOCKET_PROTOCOL);
    Ok(Upgrade::WebSocket { accept: accept_key(key.as_bytes()), protocols })
}

/// The value of `Sec-WebSocket-Accept` for a client's key (RFC 6455, section 4.2.2).
fn accept_key(key: &[u8]) -> String {
    let mut context = ring::digest::Context::new(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY);
    context.update(key);
    context.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    STANDARD.encode(context.finish())
}

/// The first protocol of the client that the server supports.
///
/// # Errors
/// 400 if the server supports none of them.
pub(super) fn choose<'a, T>(
    wanted: &[String],
    spoken: &'a [(&'static str, T)],
) -> Result<&'a (&'static str, T), Status> {
    let found = wanted.iter().find_map(|wanted| spoken.iter().find(|(name, _)| name == wanted));
    found.ok_or_else(|| {
        let spoken: Vec<&str> = spoken.iter().map(|(name, _)| *name).filter(|name| !name.is_empty()).collect();
        Status::bad_request(format!(
            "unable to upgrade: no protocol of the client ({}) is supported; supported are {}",
            wanted.join(", "),
            spoken.join(", ")
        ))
    })
}

/// The response of a failed [`choose`] for SPDY, as upstream: 403 with the supported protocols.
pub(super) fn unsupported<T>(error: &Status, spoken: &[(&'static str, T)]) -> Response<Body> {
    let mut response = Response::new(Body::from(error.message.clone()));
    *response.status_mut() = StatusCode::FORBIDDEN;
    for (name, _) in spoken {
        response.headers_mut().append(ACCEPTED_PROTOCOLS, HeaderValue::from_static(name));
    }
    response
}

/// A connection after its change of protocol.
pub(super) type Io = TokioIo<Upgraded>;

/// Responds with 101 and serves the connection with `session` in a new task.
fn switch<F>(
    link: Link,
    headers: impl IntoIterator<Item = (HeaderName, HeaderValue)>,
    session: impl FnOnce(Io) -> F + Send + 'static,
) -> Result<Response<Body>, Status>
where
    F: Future<Output = ()> + Send + 'static,
{
    let (Some(upgrade), Some(carrier)) = (link.upgrade, link.carrier) else {
        return Err(Status::bad_request("Upgrade request required"));
    };
    carrier.unread.lift();
    let Carrier { sessions, slot, .. } = carrier;
    sessions.spawn(async move {
        match upgrade.await {
            Ok(upgraded) => session(TokioIo::new(upgraded)).await,
            Err(error) => tracing::debug!(%error, "the client disconnected before its connection was upgraded"),
        }
        drop(slot);
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    response.headers_mut().extend(headers);
    Ok(response)
}

/// Changes to a WebSocket with the subprotocol `protocol`; empty for a client that named none.
pub(super) fn to_websocket<F>(
    link: Link,
    accept: &str,
    protocol: &'static str,
    session: impl FnOnce(Io) -> F + Send + 'static,
) -> Result<Response<Body>, Status>
where
    F: Future<Output = ()> + Send + 'static,
{
    let accept = HeaderValue::from_str(accept).map_err(|error| Status::internal(error.to_string()))?;
    let mut headers =
        vec![(header::UPGRADE, HeaderValue::from_static("websocket")), (header::SEC_WEBSOCKET_ACCEPT, accept)];
    if !protocol.is_empty() {
        headers.push((header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol)));
    }
    switch(link, headers, session)
}

/// Changes to SPDY/3.1 that carries `protocol`.
pub(super) fn to_spdy<F>(
    link: Link,
    protocol: &'static str,
    session: impl FnOnce(Io) -> F + Send + 'static,
) -> Result<Response<Body>, Status>
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut headers = vec![(header::UPGRADE, HeaderValue::from_static("SPDY/3.1"))];
    if !protocol.is_empty() {
        headers.push((STREAM_PROTOCOL, HeaderValue::from_static(protocol)));
    }
    switch(link, headers, session)
}

/// Changes to the protocol that the program behind a proxy has chosen; `headers` are from its
/// response.
pub(super) fn to_any<F>(
    link: Link,
    headers: HeaderMap,
    session: impl FnOnce(Io) -> F + Send + 'static,
) -> Result<Response<Body>, Status>
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut response = switch(link, [], session)?;
    *response.headers_mut() = headers;
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accept_key_is_that_of_the_standards_example() {
        assert_eq!(accept_key(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn the_clients_preferred_protocol_is_chosen_and_unknown_ones_are_reported() {
        let spoken = [("v5", 5), ("v4", 4)];
        let wanted = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(choose(&wanted(&["v6", "v4", "v5"]), &spoken).unwrap().1, 4);
        let error = choose(&wanted(&["v6"]), &spoken).unwrap_err();
        assert!(error.message.contains("(v6) is supported; supported are v5, v4"), "{}", error.message);
    }
}
