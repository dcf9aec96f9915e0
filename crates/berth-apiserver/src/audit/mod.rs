//! The audit log: users, their requests and the outcomes, as `audit.k8s.io/v1` Events, one JSON
//! object a line.
//!
//! An impersonated request has both identities: `user` authenticated, and the request ran as
//! `impersonatedUser`.

pub mod policy;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::{Value, json};

use crate::admission::webhooks::review::user_info;
use crate::auth::Attributes;
use crate::{Body, RequestInfo, UserInfo, protobuf};
use policy::{Decision, Level, Policy, Stage};

/// Header with the id of a request, in its audit record and in its response, so that a client can
/// find one by the other. The client may choose the id.
pub(crate) const ID_HEADER: &str = "audit-id";

/// The id of a request: the one in its header, else a new one, which is added to `headers`.
pub(crate) fn identify(headers: &mut http::HeaderMap, new_id: impl FnOnce() -> String) -> http::HeaderValue {
    if let Some(id) = headers.get(ID_HEADER).filter(|id| !id.is_empty()) {
        return id.clone();
    }
    let id = http::HeaderValue::from_str(&new_id()).expect("an id is hexadecimal digits and dashes");
    headers.insert(ID_HEADER, id.clone());
    id
}

/// Destination of audit events.
pub trait Sink: Send + Sync {
    /// Writes one event, a JSON object without line breaks. Must not block for long; events that
    /// cannot be written are dropped.
    fn write(&self, event: &str);
}

/// The audit log of a server.
#[derive(Clone)]
pub struct Log {
    /// Decides which requests are recorded, and in how much detail.
    pub policy: Arc<Policy>,
    /// Destination of the events.
    pub sink: Arc<dyn Sink>,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// The audit record of one request, started at its arrival.
pub(crate) struct Record {
    log: Log,
    decision: Decision,
    event: Value,
}

/// The facts known when a request arrives.
pub(crate) struct Arrival<'a> {
    pub(crate) id: &'a str,
    pub(crate) uri: &'a str,
    pub(crate) info: &'a RequestInfo,
    pub(crate) user: &'a UserInfo,
    pub(crate) user_agent: &'a str,
    pub(crate) time: jiff::Timestamp,
}

/// A request body (JSON or protobuf) as JSON.
fn parsed(body: &[u8]) -> Option<Value> {
    if body.starts_with(protobuf::PREFIX) { protobuf::to_json(body).ok() } else { serde_json::from_slice(body).ok() }
}

fn micro_time(time: jiff::Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

impl Record {
    /// Starts the record of a request; `None` if the policy does not record it.
    pub(crate) fn start(log: &Log, arrival: &Arrival<'_>) -> Option<Record> {
        let info = arrival.info;
        let decision = log.policy.decide(&Attributes::of(info), arrival.user);
        if decision.level == Level::None {
            return None;
        }
        let mut event = json!({
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": decision.level.name(),
            "auditID": arrival.id,
            "requestURI": arrival.uri,
            "verb": info.verb,
            "user": user_info(arrival.user),
            "requestReceivedTimestamp": micro_time(arrival.time),
        });
        if !arrival.user_agent.is_empty() {
            event["userAgent"] = arrival.user_agent.into();
        }
        if info.is_resource_request {
            let mut reference = json!({"resource": info.resource, "apiVersion": info.api_version});
            for (field, text) in [
                ("apiGroup", &info.api_group),
                ("namespace", &info.namespace),
                ("name", &info.name),
                ("subresource", &info.subresource),
            ] {
                if !text.is_empty() {
                    reference[field] = text.as_str().into();
                }
            }
            event["objectRef"] = reference;
        }
        let record = Record { log: log.clone(), decision, event };
        record.write(Stage::RequestReceived, arrival.time);
        Some(record)
    }

    /// Records that the request runs as another user.
    pub(crate) fn impersonates(&mut self, user: &UserInfo) {
        self.event["impersonatedUser"] = user_info(user);
    }

    /// Records the request's body, if the audit level includes it.
    pub(crate) fn sent(&mut self, body: &Bytes) {
        if self.decision.level >= Level::Request && !body.is_empty() {
            self.event["requestObject"] = self.object(body);
        }
    }

    /// Records the response; `annotations` come from admission. For a stream, records that it
    /// started; its events are not recorded.
    pub(crate) fn responded(
        mut self,
        response: &Response<Body>,
        annotations: BTreeMap<String, String>,
        time: jiff::Timestamp,
    ) {
        let code = response.status();
        let mut status = json!({"metadata": {}, "code": code.as_u16()});
        let body = response.body().bytes();
        if code.is_client_error() || code.is_server_error() {
            let parsed = body.and_then(|body| parsed(body)).unwrap_or_default();
            for field in ["status", "reason", "message"] {
                if parsed[field].is_string() {
                    status[field] = parsed[field].clone();
                }
            }
        }
        self.event["responseStatus"] = status;
        self.event["annotations"] = json!({
            "authorization.k8s.io/decision": if code == StatusCode::FORBIDDEN { "forbid" } else { "allow" },
        });
        for (key, value) in annotations {
            self.event["annotations"][key] = value.into();
        }
        if self.decision.level == Level::RequestResponse
            && let Some(body) = body
        {
            self.event["responseObject"] = self.object(body);
        }
        let stage = if body.is_some() { Stage::ResponseComplete } else { Stage::ResponseStarted };
        self.write(stage, time);
    }

    fn object(&self, body: &[u8]) -> Value {
        let Some(mut object) = parsed(body) else { return Value::Null };
        if self.decision.omit_managed_fields {
            berth_apimachinery::meta::take_managed_fields(&mut object);
            for item in object.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
                berth_apimachinery::meta::take_managed_fields(item);
            }
        }
        object
    }

    fn write(&self, stage: Stage, time: jiff::Timestamp) {
        if self.decision.omit_stages.contains(&stage) {
            return;
        }
        let mut event = self.event.clone();
        event["stage"] = stage.name().into();
        event["stageTimestamp"] = micro_time(time).into();
        self.log.sink.write(&event.to_string());
    }
}
