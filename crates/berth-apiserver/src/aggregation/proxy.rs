//! Forwards a request to the aggregated API server of its group version, and streams the response
//! back.

use std::time::Duration;

use berth_apimachinery::status::Status;
use bytes::Bytes;
use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use http_body_util::Full;

use super::Remote;
use crate::auth::request_header::RequestHeaders;
use crate::webhook::connection;
use crate::webhook::service;
use crate::{Body, Objects, UserInfo, forwarding};

/// Maximum time until a response starts. Kubernetes has this limit for a whole request that is not
/// a watch.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Headers that are forwarded in neither direction, apart from those of the connection. With
/// `Accept-Encoding`, the response would be compressed twice.
const OWN_HEADERS: [HeaderName; 4] =
    [header::HOST, header::CONTENT_LENGTH, header::AUTHORIZATION, header::ACCEPT_ENCODING];

/// A request to forward.
pub(crate) struct Forwarded<'a> {
    pub(crate) method: &'a Method,
    pub(crate) path: &'a str,
    pub(crate) query: &'a str,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) user: &'a UserInfo,
}

/// Returns the response of the aggregated API server `remote`.
///
/// # Errors
/// 503 if the server is marked as unavailable or the connection fails, 504 if no response starts in
/// time, and 400 for a request to upgrade the connection.
pub(crate) async fn forward(
    objects: &Objects,
    remote: &Remote,
    request: Forwarded<'_>,
) -> Result<Response<Body>, Status> {
    if request.headers.contains_key(header::UPGRADE) {
        return Err(Status::bad_request("connections to aggregated API servers cannot be upgraded"));
    }
    let unavailable =
        |why: &str| Status::service_unavailable(format!("{}/{} is not available: {why}", remote.group, remote.version));
    match &remote.available {
        Some((true, _)) => {}
        Some((false, message)) => return Err(unavailable(message)),
        None => return Err(unavailable("its API server has not been checked yet")),
    }
    match tokio::time::timeout(ANSWER_TIMEOUT, send(objects, remote, request)).await {
        Ok(answer) => answer.map_err(|why| unavailable(&why)),
        Err(_) => Err(Status::timeout("the aggregated API server did not respond in time", 0)),
    }
}

/// Sends a request over a new connection. The error is the reason if there is no response.
pub(super) async fn send(objects: &Objects, remote: &Remote, request: Forwarded<'_>) -> Result<Response<Body>, String> {
    let (host, port) = remote.address(objects).map_err(|why| why.to_string())?;
    let name = service::server_name(&remote.namespace, &remote.service);
    let stream = connection::open(objects, &host, port, name.clone(), remote.tls.clone()?).await?;
    let mut sent = Request::builder()
        .method(request.method)
        .uri(forwarding::target(request.path, request.query))
        .body(Full::new(request.body))
        .map_err(|error| error.to_string())?;
    *sent.headers_mut() = headers(request.headers, request.user);
    let host = HeaderValue::from_str(&format!("{name}:{}", remote.port)).map_err(|error| error.to_string())?;
    sent.headers_mut().insert(header::HOST, host);
    let response = forwarding::exchange(stream, sent, "an aggregated API server").await;
    let (mut parts, body) = response.map_err(|error| error.to_string())?.into_parts();
    remove_own(&mut parts.headers);
    Ok(Response::from_parts(parts, Body::incoming(body, "response of an aggregated API server")))
}

fn remove_own(headers: &mut HeaderMap) {
    forwarding::remove_connection_headers(headers);
    for name in OWN_HEADERS {
        headers.remove(name);
    }
}

/// The headers to forward. Headers of the connection and identity headers of the client are
/// removed. Identity headers for `user` are added.
fn headers(given: &HeaderMap, user: &UserInfo) -> HeaderMap {
    let standard = RequestHeaders::standard();
    let mut headers = given.clone();
    let claims: Vec<HeaderName> = given
        .keys()
        .filter(|name| standard.is_one(name.as_str()) || name.as_str().starts_with("impersonate-"))
        .cloned()
        .collect();
    remove_own(&mut headers);
    for name in claims {
        headers.remove(name);
    }
    for (name, value) in standard.headers(user) {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            headers.append(name, value);
        }
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_headers_of_the_client_are_replaced_by_the_servers() {
        let given = HeaderMap::from_iter([
            (HeaderName::from_static("x-remote-user"), HeaderValue::from_static("system:admin")),
            (HeaderName::from_static("x-remote-extra-scope"), HeaderValue::from_static("all")),
            (header::ACCEPT, HeaderValue::from_static("application/json")),
            (header::AUTHORIZATION, HeaderValue::from_static("Bearer secret")),
        ]);
        let mut user = UserInfo::new("ann", &["team-a", "team-b"]);
        user.extra.insert("example.com/a b".to_owned(), vec!["1".to_owned()]);
        let sent = headers(&given, &user);
        assert_eq!(sent.get_all("x-remote-user").iter().collect::<Vec<_>>(), ["ann"]);
        let groups: Vec<_> = sent.get_all("x-remote-group").iter().map(|value| value.to_str().unwrap()).collect();
        assert_eq!(groups, ["team-a", "team-b", "system:authenticated"]);
        assert_eq!(sent["x-remote-extra-example.com%2fa%20b"], "1");
        assert!(sent.contains_key(header::ACCEPT) && !sent.contains_key(header::AUTHORIZATION));
        assert!(!sent.contains_key("x-remote-extra-scope"));
        // The headers decode to the same user.
        let pairs: Vec<_> = sent.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        let read = RequestHeaders::standard().user(&pairs).expect("a user");
        assert_eq!((read.name, read.groups, read.extra), (user.name, user.groups, user.extra));
    }
}
