//! Forwards a request over a connection to a pod, and returns its response.

use berth_apimachinery::status::Status;
use berth_pod_runtime::Duplex;
use http::header;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Either, Full};
use hyper_util::rt::TokioIo;

use super::super::upgrade;
use super::html::Links;
use crate::connect::Wire;
use crate::{Body, forwarding};

/// A request to forward.
pub(super) struct Forwarded<'a> {
    /// Path for the program in the pod, raw.
    pub(super) path: &'a str,
    /// Path of this server that leads to the pod.
    pub(super) prefix: &'a str,
    /// Host and port of the pod.
    pub(super) authority: String,
    pub(super) wire: Wire<'a>,
}

/// Forwards a request. Returns the program's response, or the response that changes the protocol.
///
/// # Errors
/// 503 if the program does not respond.
pub(super) async fn forward(stream: Box<dyn Duplex>, request: Forwarded<'_>) -> Result<Response<Body>, Status> {
    let Forwarded { path, prefix, authority, mut wire } = request;
    let unreachable = |why: &dyn std::fmt::Display| {
        Status::service_unavailable(format!("error trying to reach service: {authority}: {why}"))
    };
    let path = if path.is_empty() { "/" } else { path };
    let body = match wire.link.body() {
        Some(body) => Either::Left(body),
        None => Either::Right(Full::new(std::mem::take(&mut wire.body))),
    };
    let mut sent = Request::builder()
        .method(wire.method)
        .uri(forwarding::target(path, wire.query))
        .body(body)
        .map_err(|error| Status::bad_request(error.to_string()))?;
    *sent.headers_mut() = request_headers(wire.headers, prefix, path, &authority);
    let host = sent.headers()[header::HOST].clone();
    let response = forwarding::exchange(TokioIo::new(stream), sent, "a pod").await;
    let mut response = response.map_err(|error| unreachable(&error))?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let upgraded = hyper::upgrade::on(&mut response);
        let headers = response.headers().clone();
        return upgrade::to_any(wire.link, headers, move |mut client| async move {
            let Ok(pod) = upgraded.await else { return };
            let copied = tokio::io::copy_bidirectional(&mut client, &mut TokioIo::new(pod)).await;
            if let Err(error) = copied {
                tracing::debug!(%error, "upgraded connection to a pod");
            }
        });
    }
    let (mut parts, body) = response.into_parts();
    forwarding::remove_connection_headers(&mut parts.headers);
    if let Some(location) = parts.headers.get(header::LOCATION).and_then(|location| location.to_str().ok())
        && let Some(location) = relocated(location, prefix, host.to_str().unwrap_or_default())
        && let Ok(location) = HeaderValue::try_from(location)
    {
        parts.headers.insert(header::LOCATION, location);
    }
    let body = Body::incoming(body, "response of a pod");
    if !is_page(&parts.headers) {
        return Ok(Response::from_parts(parts, body));
    }
    // Links change the length of a page.
    parts.headers.remove(header::CONTENT_LENGTH);
    let (prefix, host) = (prefix.to_owned(), host.to_str().unwrap_or_default().to_owned());
    let links = Links::new(move |link: &str| relocated(link, &prefix, &host));
    Ok(Response::from_parts(parts, with_links(body, links)))
}

/// Whether a response is a web page that is not compressed.
fn is_page(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_html = text(header::CONTENT_TYPE).split(';').next().is_some_and(|kind| kind.trim() == "text/html");
    is_html && matches!(text(header::CONTENT_ENCODING), "" | "identity")
}

/// A page with its links changed, as it arrives.
fn with_links<F>(body: Body, links: Links<F>) -> Body
where
    F: Fn(&str) -> Option<String> + Send + 'static,
{
    Body::stream(futures::stream::unfold(Some((body, links)), |state| async move {
        let (mut body, mut links) = state?;
        loop {
            let Some(Ok(frame)) = body.frame().await else { return Some((links.finish().into(), None)) };
            let Ok(data) = frame.into_data() else { continue };
            let changed = links.push(&data);
            if !changed.is_empty() {
                return Some((changed.into(), Some((body, links))));
            }
        }
    }))
}

/// The client's headers for the program in a pod: without the credentials for this server, and with
/// the path by which the client reached the pod.
fn request_headers(given: &HeaderMap, prefix: &str, path: &str, authority: &str) -> HeaderMap {
    let mut headers = given.clone();
    let upgrade = given.get(header::UPGRADE).filter(|_| upgrade::is_requested(given)).cloned();
    forwarding::remove_connection_headers(&mut headers);
    // The HTTP library sets the length of the body, and has responded to `Expect`.
    for name in [header::AUTHORIZATION, header::CONTENT_LENGTH, header::EXPECT] {
        headers.remove(name);
    }
    if let Some(upgrade) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, upgrade);
    }
    // Over HTTP/2, the host is not a header.
    if !headers.contains_key(header::HOST) {
        let host = HeaderValue::try_from(authority).unwrap_or(HeaderValue::from_static("localhost"));
        headers.insert(header::HOST, host);
    }
    let forwarded = [
        ("x-forwarded-uri", format!("{prefix}{path}")),
        ("x-forwarded-host", headers[header::HOST].to_str().unwrap_or_default().to_owned()),
        ("x-forwarded-proto", "https".to_owned()),
    ];
    for (name, value) in forwarded {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    }
    headers
}

/// A redirect within the pod as a path of this server; `None` for others.
fn relocated(location: &str, prefix: &str, host: &str) -> Option<String> {
    let path = match location.split_once("://") {
        Some((_, rest)) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            (authority == host).then_some(path)?
        }
        None => Some(location).filter(|path| path.starts_with('/') && !path.starts_with("//"))?,
    };
    (!path.starts_with(prefix)).then(|| format!("{prefix}{path}"))
}

#[cfg(test)]
mod tests {
    use http::header::HeaderName;

    use super::*;

    #[test]
    fn redirects_within_the_pod_lead_back_through_the_proxy() {
        let prefix = "/api/v1/namespaces/a/pods/p/proxy";
        let to = |location: &str| relocated(location, prefix, "127.0.0.1:6443");
        assert_eq!(to("/login?next=/").as_deref(), Some("/api/v1/namespaces/a/pods/p/proxy/login?next=/"));
        let absolute = "https://127.0.0.1:6443/x";
        assert_eq!(to(absolute).as_deref(), Some("/api/v1/namespaces/a/pods/p/proxy/x"));
        for other in ["relative", "//example.com/x", "https://example.com/x", "/api/v1/namespaces/a/pods/p/proxy/x"] {
            assert_eq!(to(other), None, "{other}");
        }
    }

    #[test]
    fn credentials_and_headers_of_the_connection_stay_here() {
        let given = HeaderMap::from_iter([
            (header::AUTHORIZATION, HeaderValue::from_static("Bearer secret")),
            (header::CONNECTION, HeaderValue::from_static("close, x-mine")),
            (HeaderName::from_static("x-mine"), HeaderValue::from_static("1")),
            (header::ACCEPT, HeaderValue::from_static("text/html")),
            (header::TRANSFER_ENCODING, HeaderValue::from_static("chunked")),
        ]);
        let sent = request_headers(&given, "/prefix", "/path", "10.0.0.1:80");
        let names: Vec<&str> = sent.keys().map(HeaderName::as_str).collect();
        let mut sorted = names.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, ["accept", "host", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-uri"]);
        assert_eq!(sent[header::HOST], "10.0.0.1:80");
        assert_eq!(sent["x-forwarded-uri"], "/prefix/path");
        let upgrade = HeaderMap::from_iter([
            (header::CONNECTION, HeaderValue::from_static("keep-alive, Upgrade")),
            (header::UPGRADE, HeaderValue::from_static("websocket")),
        ]);
        let sent = request_headers(&upgrade, "", "/", "10.0.0.1:80");
        assert_eq!(sent[header::CONNECTION], "Upgrade");
        assert_eq!(sent[header::UPGRADE], "websocket");
    }
}
