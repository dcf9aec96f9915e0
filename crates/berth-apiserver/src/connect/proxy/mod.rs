//! `proxy`: HTTP requests that are forwarded to a port of a pod or a service, or handled for a
//! node's kubelet. Method, path, query, headers and bodies are forwarded; bodies are streamed.

mod forward;
mod html;
mod node;
mod resource_metrics;
mod target;

use std::sync::Arc;
use std::time::Duration;

use berth_apimachinery::meta;
use berth_apimachinery::status::Status;
use berth_pod_runtime::Duplex;
use http::{HeaderValue, Method, Response, StatusCode, header};
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{PodStreams, Wire};
use crate::rest::Call;
use crate::webhook::connection;
use crate::{Body, RequestInfo, forwarding};
use target::{Backend, Endpoint, Scheme};

/// Maximum time to open a connection to a pod.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Number of path segments up to `proxy`, in a namespace and outside.
const SEGMENTS: [usize; 2] = [7, 5];

/// The request's path below `proxy` as sent, with its leading `/`; empty if the path ends with
/// `proxy`.
pub(super) fn path_below(info: &RequestInfo) -> &str {
    let count = SEGMENTS[usize::from(info.namespace.is_empty())];
    let path = info.raw_path.as_str();
    // Segments are counted in the decoded path, in which an escaped slash is a slash too.
    let is_slash = |at: usize| {
        let rest = &path.as_bytes()[at..];
        rest[0] == b'/' || rest.get(..3).is_some_and(|escape| escape.eq_ignore_ascii_case(b"%2f"))
    };
    let mut slashes =
        (0..path.len()).filter(|at| is_slash(*at)).skip_while(|at| path[..*at].bytes().all(|it| it == b'/'));
    slashes.nth(count - 1).map_or("", |at| &path[at..])
}

/// Responds to a request that was admitted.
pub(super) async fn handle(call: &Call, wire: Wire<'_>) -> Result<Response<Body>, Status> {
    let path = path_below(&call.info);
    if path.starts_with('%') {
        return Err(Status::bad_request("the path below proxy begins with an escaped slash; expected /"));
    }
    let backend = Backend::parse(&call.info.name)
        .ok_or_else(|| Status::bad_request(format!("invalid {} request {:?}", call.row.singular, call.info.name)))?;
    if call.row.plural == "nodes" {
        return node::handle(call, &backend, path, wire).await;
    }
    let endpoint = endpoint(call, &backend)?;
    if path.is_empty() && matches!(*wire.method, Method::GET | Method::HEAD) {
        return Ok(to_folder(&call.info.raw_path, wire.query));
    }
    let streams = super::pod_streams(call)?;
    wire.link.lift_unread_limit();
    let stream = connect(call, &*streams, &endpoint, backend.scheme).await?;
    let prefix = call.info.raw_path.strip_suffix(path).unwrap_or_default();
    let request = forward::Forwarded { path, prefix, authority: endpoint.authority(), wire };
    forward::forward(stream, request).await
}

/// Relative links of a page need a path that ends with `/`.
fn to_folder(path: &str, query: &str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    if let Ok(location) = HeaderValue::try_from(forwarding::target(&format!("{path}/"), query)) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// The endpoint for a request to a pod or a service.
fn endpoint(call: &Call, backend: &Backend) -> Result<Endpoint, Status> {
    let objects = &call.server.inner.objects;
    let namespace = call.namespace();
    let not_found = || Status::not_found(&call.group_resource(), &backend.name);
    let object = objects.get("", &call.row.plural, namespace, &backend.name).ok_or_else(not_found)?;
    if call.row.plural == "pods" {
        let port = target::pod_port(&object, backend)?;
        let address = object["status"]["podIP"].as_str().unwrap_or_default().to_owned();
        return Ok(Endpoint { address, port, pod: Some(backend.name.clone()) });
    }
    let slices = objects.list("discovery.k8s.io", "endpointslices", Some(namespace));
    let slices: Vec<Arc<Value>> = slices
        .into_iter()
        .filter(|slice| meta::label(slice, "kubernetes.io/service-name") == Some(&backend.name))
        .collect();
    let endpoints = target::service_endpoints(&object, &slices, backend)?;
    // Requests are spread over the endpoints at random.
    let random = call.server.new_request_id().bytes().fold(0_usize, |sum, byte| sum * 31 % 65_521 + usize::from(byte));
    let count = endpoints.len();
    endpoints.into_iter().nth(random % count.max(1)).ok_or_else(|| target::no_endpoints(&backend.name))
}

/// Opens a connection to an endpoint. As upstream, the certificates of pods are not verified: they
/// have no name that the server could check.
async fn connect(
    call: &Call,
    streams: &dyn PodStreams,
    endpoint: &Endpoint,
    scheme: Scheme,
) -> Result<Box<dyn Duplex>, Status> {
    let unreachable = |why: &dyn std::fmt::Display| {
        Status::service_unavailable(format!("error trying to reach service: {}: {why}", endpoint.authority()))
    };
    let pod = endpoint.pod.as_ref().and_then(|pod| call.server.inner.objects.get("", "pods", call.namespace(), pod));
    let opening = async {
        match pod {
            Some(pod) => streams.connect(&pod, endpoint.port).await,
            None => {
                let address = endpoint.outside_address()?;
                let stream = TcpStream::connect((address, endpoint.port)).await.map_err(|error| unreachable(&error))?;
                Ok(Box::new(stream) as Box<dyn Duplex>)
            }
        }
    };
    let opened = timeout(CONNECT_TIMEOUT, opening).await;
    let stream = opened.map_err(|_| unreachable(&"the connection could not be opened in time"))??;
    if scheme == Scheme::Http {
        return Ok(stream);
    }
    let config = connection::authenticated(None, true, None).map_err(|why| unreachable(&why))?;
    let name = ServerName::try_from(endpoint.address.clone());
    let name = name.or_else(|_| ServerName::try_from("localhost")).map_err(|error| unreachable(&error))?;
    let handshake = tokio_rustls::TlsConnector::from(config).connect(name.to_owned(), stream);
    match timeout(CONNECT_TIMEOUT, handshake).await {
        Ok(Ok(stream)) => Ok(Box::new(stream)),
        Ok(Err(error)) => Err(unreachable(&error)),
        Err(_) => Err(unreachable(&"the TLS handshake did not complete in time")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_below_proxy_is_forwarded_unchanged() {
        for (path, below) in [
            ("/api/v1/namespaces/a/pods/p/proxy", ""),
            ("/api/v1/namespaces/a/pods/p/proxy/", "/"),
            ("/api/v1/namespaces/a/services/https:s:web/proxy/x//y%2Fz/", "/x//y%2Fz/"),
            ("/api/v1/nodes/n/proxy/stats/summary", "/stats/summary"),
            ("//api/v1/namespaces/a%2Fpods/p/proxy/x%2Fy", "/x%2Fy"),
        ] {
            assert_eq!(path_below(&RequestInfo::parse(&Method::GET, path, "")), below, "{path}");
        }
    }

    #[test]
    fn a_path_without_a_slash_is_redirected() {
        let response = to_folder("/api/v1/namespaces/a/pods/p/proxy", "a=b");
        assert_eq!(response.status(), 301);
        assert_eq!(response.headers()[header::LOCATION], "/api/v1/namespaces/a/pods/p/proxy/?a=b");
    }
}
