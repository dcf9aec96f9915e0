//! Subresources that connect a client to a pod, a service or a node: `exec`, `attach`,
//! `portforward` and `proxy`.
//!
//! A request is authorized and admitted (operation CONNECT) like any other. The HTTP connection
//! then changes its protocol: to a WebSocket ([`websocket`]) or to SPDY ([`spdy`]). A separate task
//! serves the session. The session counts as a connection of the listener until it ends.
//! [`PodStreams`] provides the programs of a session. This module does not depend on a pod runtime.

mod command;
mod containers;
mod options;
mod port_forward;
mod proxy;
mod session;
mod spdy;
mod streams;
mod upgrade;
mod websocket;

pub(crate) use containers::selected as selected_container;
pub(crate) use session::{Carrier, Sessions, Unread};
pub use streams::{Command, Container, Dial, Forward, PodStreams};
pub(crate) use upgrade::{Link, StreamedBody, Wire};

use std::sync::Arc;

use berth_apimachinery::status::Status;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use serde_json::Value;

use crate::admission::{Annotations, Operation};
use crate::auth::{self, Attributes};
use crate::registry::ResourceInfo;
use crate::rest::Call;
use crate::{ApiServer, Body, RequestInfo, UserInfo};
use upgrade::Upgrade;

/// True if a request is for a subresource of this module.
pub(crate) fn is_connection(info: &RequestInfo) -> bool {
    let is_stream = matches!(info.subresource.as_str(), "exec" | "attach" | "portforward");
    is_proxy(info) || (info.is_resource_request && info.api_group.is_empty() && info.resource == "pods" && is_stream)
}

/// True if a request is forwarded to a pod, a service or a node.
pub(crate) fn is_proxy(info: &RequestInfo) -> bool {
    info.is_resource_request
        && info.api_group.is_empty()
        && info.subresource == "proxy"
        && matches!(info.resource.as_str(), "pods" | "services" | "nodes")
}

/// Responds to a request for a subresource of this module.
pub(crate) async fn handle(
    server: &ApiServer,
    info: RequestInfo,
    row: Arc<ResourceInfo>,
    version: usize,
    user: UserInfo,
    annotations: &Annotations,
    wire: Wire<'_>,
) -> Result<Response<Body>, Status> {
    // Query and `Accept` of a proxied request are meant for the program behind the proxy. The query
    // parameters of other requests are not those of objects.
    let mut call = Call::new(server, info, row, version, None, &HeaderMap::new(), "", Bytes::new(), user)?;
    call.annotations = annotations.clone();
    call.check_scope()?;
    check_verb(&call, wire.method)?;
    if is_proxy(&call.info) {
        let options = options::proxy(&call);
        admit(&mut call, options).await?;
        return proxy::handle(&call, wire).await;
    }
    if call.info.parts.len() > 3 {
        return Err(Status::no_such_path());
    }
    let pod = call.stored()?.value();
    authorize_create(&call)?;
    let options = options::of(&call.info.subresource, wire.query)?;
    let options = admit(&mut call, options).await?;
    match call.info.subresource.as_str() {
        "portforward" => port_forward::handle(&call, &pod, &options, wire),
        _ => command::handle(&call, pod, &options, wire),
    }
}

/// Sends the body of a response over a WebSocket if the request asks for that protocol. Some
/// clients read logs in this way.
pub(crate) fn over_websocket(wire: Wire<'_>, response: Response<Body>) -> Result<Response<Body>, Status> {
    if response.status() != StatusCode::OK || !upgrade::is_websocket(wire.headers) {
        return Ok(response);
    }
    let Upgrade::WebSocket { accept, protocols } = upgrade::requested(&wire)? else { return Ok(response) };
    let (protocol, format) = websocket::body::choose(&protocols)?;
    let body = response.into_body();
    upgrade::to_websocket(wire.link, &accept, protocol, move |io| websocket::body::serve(io, format, body))
}

/// A proxy forwards every method; the other subresources support GET and POST.
fn check_verb(call: &Call, method: &Method) -> Result<(), Status> {
    let passed_on = is_proxy(&call.info) && matches!(*method, Method::OPTIONS | Method::HEAD);
    if passed_on {
        return Ok(());
    }
    call.check_verb(method).map(drop)
}

/// Returns 403 unless the user may `create` the subresource. A WebSocket begins with a GET, and the
/// permission to read must not suffice to run commands (as upstream since 1.35).
fn authorize_create(call: &Call) -> Result<(), Status> {
    let attributes = Attributes { verb: "create", ..Attributes::of(&call.info) };
    let decision = auth::decide(&call.server.inner.objects, &attributes, &call.user);
    if decision.allowed { Ok(()) } else { Err(attributes.forbidden(&call.user, &decision.reason)) }
}

/// Runs admission with the operation CONNECT. Returns the options, which webhooks may have changed.
async fn admit(call: &mut Call, options: Value) -> Result<Value, Status> {
    let name = call.info.name.clone();
    let mut request = call.admission(Operation::Connect, &name, Some(options), None);
    call.server.inner.admission.mutate(&mut request).await?;
    call.server.inner.admission.validate(&mut request).await?;
    request.object.take().ok_or_else(|| Status::internal("an admission plugin removed the options"))
}

/// The [`PodStreams`] of this server; 503 if it has none.
fn pod_streams(call: &Call) -> Result<Arc<dyn PodStreams>, Status> {
    call.server.inner.config.pod_streams.clone().ok_or_else(|| {
        let (what, name) = (&call.info.subresource, &call.info.name);
        Status::bad_request(format!(
            "{what} is not possible for {} {name}: this server is not connected to the nodes that run pods",
            call.row.singular
        ))
    })
}

/// Sends an error of a kubelet as plain text, as clients expect; other errors as a Status.
fn kubelet_error(status: Status) -> Result<Response<Body>, Status> {
    if status.reason != "InternalError" {
        return Err(status);
    }
    let mut response = Response::new(Body::from(status.message));
    *response.status_mut() = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, text);
    Ok(response)
}

/// Rejects a pod that is not assigned to a node yet.
fn check_has_node(pod: &Value, name: &str) -> Result<(), Status> {
    match pod["spec"]["nodeName"].as_str() {
        None | Some("") => Err(Status::bad_request(format!("pod {name} does not have a host assigned"))),
        Some(_) => Ok(()),
    }
}
