//! The REST path, shared by all kinds. A request becomes a [`Call`] (resource, verb, user and
//! options), for which the verb's module returns the response.

mod call;
pub(crate) mod check;
mod component_status;
mod continue_token;
mod create;
mod decode;
mod delete;
mod disruption;
mod encode;
mod list;
mod log;
mod managed;
mod negotiate;
pub(crate) mod options;
mod patch;
mod response;
mod subresource;
mod update;
mod view;
mod warnings;
mod watch;

pub(crate) use call::Call;
pub(crate) use decode::take_unchanged;
pub(crate) use encode::partial;
pub(crate) use log::read as read_log;
pub(crate) use negotiate::{About, Encoding, Form, OFFERED, accept as accept_form, accept_header, plain};
pub(crate) use options::Options;
pub(crate) use response::{response, status_response, status_response_for, to_encoding};

use std::sync::Arc;
use std::time::Duration;

use berth_apimachinery::exposition::{Exposition, Format};
use berth_apimachinery::meta::GroupResource;
use berth_apimachinery::status::Status;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};

use crate::admission::Annotations;
use crate::aggregation::Forwarded;
use crate::completion::Disconnection;
use crate::connect::{self, Link, Wire};
use crate::discovery::Served;
use crate::health::Health;
use crate::protobuf::{self, DecodeError};
use crate::registry::{Origin, ResourceInfo};
use crate::request::{RequestInfo, check_path};
use crate::state::Kinds;
use crate::{ApiServer, Body, Metrics, UserInfo, aggregation, audit, auth, discovery, extension, health, openapi};

/// Maximum size of a request body, as upstream: 3 MiB.
const BODY_BYTES_MAX: usize = 3 * 1024 * 1024;

/// Time for a request's body to arrive, as upstream's limit for whole requests.
pub(crate) const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// Reads a request's body of at most [`BODY_BYTES_MAX`]. Fails unless it is complete within
/// `patience`.
pub(crate) async fn read_body<B>(body: B, patience: Duration) -> Result<Bytes, Status>
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: std::fmt::Display,
{
    // `Limited` needs errors that convert into boxed errors; the message is enough here.
    let body = body.map_err(|error| std::io::Error::other(error.to_string()));
    let body = Box::pin(Limited::new(body, BODY_BYTES_MAX)).collect();
    // A client that sends no body after its headers uses only a timer.
    let Ok(body) = tokio::time::timeout(patience, body).await else {
        return Err(Status::timeout("request did not complete within the allotted timeout", 0));
    };
    match body {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(too_long()),
        Err(error) => Err(Status::bad_request(format!("the body could not be read: {error}"))),
    }
}

/// Choices of an in-process client for all of its requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Choices {
    /// True if responses may omit `metadata.managedFields`.
    pub(crate) lean: bool,
    /// True if watches last for a day, with few bookmarks.
    pub(crate) long_watches: bool,
}

/// Responds to a request whose body has been read.
pub(crate) async fn handle(
    server: &ApiServer,
    mut parts: http::request::Parts,
    body: Bytes,
    user: UserInfo,
    client: Disconnection,
) -> Response<Body> {
    let query = parts.uri.query().unwrap_or_default().to_owned();
    let info = RequestInfo::parse(&parts.method, parts.uri.path(), &query);
    let mut record = audit_record(server, &parts, &info, &user);
    let annotations = Annotations::default();
    let link = Link::take(&mut parts.extensions);
    let result = async {
        check_path(&info.raw_path)?;
        let authenticated = record.as_ref().map(|_| user.clone());
        let user = auth::impersonate(&server.inner.objects, user, &mut parts.headers)?;
        if let (Some(record), Some(authenticated)) = (&mut record, authenticated) {
            record.sent(&body);
            if authenticated != user {
                record.impersonates(&user);
            }
        }
        let choices = parts.extensions.get::<Choices>().copied().unwrap_or_default();
        route(server, &parts.method, &parts.headers, info, &query, body, user, choices, client, &annotations, link)
            .await
    }
    .await;
    let response =
        result.unwrap_or_else(|status| status_response_for(&status, &negotiate::accept_header(&parts.headers)));
    if let Some(record) = record {
        record.responded(&response, annotations.take(), server.now());
    }
    tracing::debug!(method = %parts.method, uri = %parts.uri, code = response.status().as_u16(), "request");
    response
}

/// Starts the audit record of a request, if the audit policy records it.
fn audit_record(
    server: &ApiServer,
    parts: &http::request::Parts,
    info: &RequestInfo,
    user: &UserInfo,
) -> Option<audit::Record> {
    let log = server.inner.config.audit.as_ref()?;
    let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (sent_id, user_agent) = (header(audit::ID_HEADER), header("user-agent"));
    let id = if sent_id.is_empty() { server.new_request_id() } else { sent_id.to_owned() };
    let uri = parts.uri.path_and_query().map(|it| it.as_str()).unwrap_or_default();
    audit::Record::start(log, &audit::Arrival { id: &id, uri, info, user, user_agent, time: server.now() })
}

fn metrics_response(server: &ApiServer, metrics: &dyn Metrics, headers: &HeaderMap) -> Response<Body> {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let format = Format::accepted(accept);
    let mut exposition = Exposition::new(format);
    server.inner.figures.write(&mut exposition);
    metrics.write(&mut exposition);
    let mut response = Response::new(Body::from(Bytes::from(exposition.finish())));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(format.media()));
    response
}

/// 404 for a path that no handler serves: plain text, as it concerns no kind.
fn nothing_there() -> Response<Body> {
    let mut response = Response::new(Body::from("404 page not found\n".to_owned()));
    *response.status_mut() = StatusCode::NOT_FOUND;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Replaces a protobuf body by the same object in JSON.
fn from_protobuf(call: &mut Call) -> Result<(), Status> {
    let media = call.content_type.split(';').next().unwrap_or_default().trim();
    if call.body.is_empty() || media != protobuf::MEDIA_TYPE {
        return Ok(());
    }
    let value = protobuf::to_json(&call.body).map_err(|error| match error {
        DecodeError::UnknownKind(_) => Status::unsupported_media_type(&negotiate::BODIES),
        DecodeError::Malformed(_) => Status::bad_request(error.to_string()),
    })?;
    let text = value.to_string();
    // One byte can become six in JSON, which is the form that is stored and sent.
    if text.len() > BODY_BYTES_MAX {
        return Err(too_long());
    }
    call.body = Bytes::from(text);
    "application/json".clone_into(&mut call.content_type);
    Ok(())
}

fn too_long() -> Status {
    Status::request_entity_too_large(format!("limit is {BODY_BYTES_MAX}"))
}

async fn route(
    server: &ApiServer,
    method: &Method,
    headers: &HeaderMap,
    info: RequestInfo,
    query: &str,
    body: Bytes,
    user: UserInfo,
    choices: Choices,
    client: Disconnection,
    annotations: &Annotations,
    link: Link,
) -> Result<Response<Body>, Status> {
    auth::authorize(&server.inner.objects, &info, &user)?;
    if let Some(extension) = extension::find(&server.inner.config.extensions, &info) {
        let asked = extension::Asked { info: &info, query, user: &user };
        // Boxed: few requests are for extensions, and the future would enlarge every request's.
        return Box::pin(extension::answer(extension, asked, headers, &body)).await;
    }
    let kinds = server.kinds();
    if let Some(remote) = server.inner.services.find(&kinds.registry, &info) {
        let (path, user) = (info.raw_path.as_str(), &user);
        // Boxed: forwarding is rare, and its future would enlarge every request's.
        let forwarded = Forwarded { method, path, query, headers, body, user };
        return Box::pin(aggregation::forward(&server.inner.objects, &remote, forwarded)).await;
    }
    if !info.is_resource_request {
        return Ok(path_response(server, &kinds, &info, query, headers));
    }
    if matches!(info.api_prefix.as_str(), "api") != info.api_group.is_empty() {
        return Ok(nothing_there());
    }
    let Some(row) = kinds.registry.get(&info.api_group, &info.resource).cloned() else {
        // Only groups of built-in kinds respond with a Status.
        let is_builtin = |row: &&Arc<ResourceInfo>| !matches!(row.origin, Origin::Custom(_));
        let known = kinds.registry.rows().filter(is_builtin).any(|row| row.group == info.api_group);
        return if known { Err(Status::no_such_path()) } else { Ok(nothing_there()) };
    };
    let version = row
        .versions
        .iter()
        .position(|version| version.name == info.api_version && version.served)
        .ok_or_else(Status::no_such_path)?;
    if connect::is_connection(&info) {
        // Boxed: few requests are connections, and their future would enlarge every request's.
        let wire = Wire { method, headers, query, link, body };
        return Box::pin(connect::handle(server, info, row, version, user, annotations, wire)).await;
    }
    if info.subresource == "log" {
        // A person may stop reading a log that is followed. The amount of unread data is limited.
        link.lift_unread_limit();
    }
    let custom = kinds.custom.get(&(row.group.clone(), row.plural.clone())).cloned();
    let mut call = Call::new(server, info, row, version, custom, headers, query, body, user)?;
    call.negotiated.lean = choices.lean;
    call.long_watches = choices.long_watches;
    call.annotations = annotations.clone();
    call.client = client;
    call.check_scope()?;
    let verb = call.check_verb(method)?;
    call.check_name()?;
    from_protobuf(&mut call)?;
    let mut response = dispatch(&mut call, &verb).await;
    if call.info.subresource == "log" {
        let wire = Wire { method, headers, query, link, body: Bytes::new() };
        response = response.and_then(|response| connect::over_websocket(wire, response));
    }
    let (mut response, warnings) = match response {
        Ok(response) => (response, call.warnings),
        Err(status) => (status_response_for(&status, &negotiate::accept_header(headers)), call.warnings),
    };
    warnings::put(&warnings, response.headers_mut());
    Ok(response)
}

/// The response to a request for a path and not for a resource: metrics, health, discovery and
/// documents.
fn path_response(
    server: &ApiServer,
    kinds: &Kinds,
    info: &RequestInfo,
    query: &str,
    headers: &HeaderMap,
) -> Response<Body> {
    if let Some(metrics) = server.inner.config.metrics.as_ref().filter(|_| info.path == "/metrics") {
        return metrics_response(server, metrics.as_ref(), headers);
    }
    if let Some(response) = server.tokens().and_then(|tokens| auth::issuer::response(&tokens, info, headers)) {
        return response;
    }
    let health = Health { store: server.store().as_ref(), is_started: server.is_started() };
    if let Some(response) = health::response(&health, info, query) {
        return response;
    }
    let served = Served::new(&kinds.registry, &server.inner.config.extensions, &server.inner.services);
    discovery::handle(&served, info, headers)
        .or_else(|| openapi::handle(&kinds.registry, &kinds.documents, server.tokens().is_some(), info, headers))
        .unwrap_or_else(nothing_there)
}

async fn dispatch(call: &mut Call, verb: &str) -> Result<Response<Body>, Status> {
    if call.row.origin == Origin::Virtual {
        return match verb {
            "create" => subresource::review(call).await,
            _ => component_status::response(call, verb),
        };
    }
    if !call.info.subresource.is_empty() {
        return subresource::handle(call, verb).await;
    }
    match verb {
        "get" => list::get(call),
        "list" => {
            list::check_options(call)?;
            list::list(call)
        }
        "watch" => watch::watch(call),
        "create" => create::create(call).await,
        "update" => update::replace(call).await,
        "patch" => patch::patch(call).await,
        "delete" => delete::delete(call).await,
        "deletecollection" => {
            list::check_options(call)?;
            delete::delete_collection(call).await
        }
        other => Err(Status::method_not_supported(&GroupResource::new(&call.row.group, &call.row.plural), other)),
    }
}
