//! Maintains the condition `Dangling` of FlowSchemas: whether the priority level that a schema
//! names is missing. It is written when a schema or a level changes, and checked when the server
//! starts.

use std::sync::Arc;

use berth_apimachinery::meta;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Method, Request, StatusCode, header};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::kind_hooks::{Commit, KindHook};
use crate::own_requests::OwnRequests;
use crate::registry::ResourceInfo;
use crate::state::State;

const GROUP: &str = "flowcontrol.apiserver.k8s.io";
const VERSION: &str = "v1";
const SCHEMAS: &str = "flowschemas";
const LEVELS: &str = "prioritylevelconfigurations";
/// Attempts to write a condition while other clients write the same schema.
const ATTEMPTS: usize = 16;
const DANGLING: &str = "Dangling";
/// Field manager of the condition: upstream's name for the consumer of the configuration.
const MANAGER: &str = "api-priority-and-fairness-config-consumer-v1";

/// The hook of FlowSchemas and PriorityLevelConfigurations.
pub(crate) struct FlowSchemas {
    state: Arc<State>,
}

impl KindHook for FlowSchemas {
    fn is_about(&self, row: &ResourceInfo) -> bool {
        row.group == GROUP && matches!(row.plural.as_str(), SCHEMAS | LEVELS)
    }

    fn after_commit<'a>(&'a self, requests: &'a dyn OwnRequests, commit: Commit<'a>) -> BoxFuture<'a, ()> {
        self.follow(requests, commit.object, commit.gone).boxed()
    }

    fn repair<'a>(&'a self, requests: &'a dyn OwnRequests) -> BoxFuture<'a, ()> {
        self.report_all(requests).boxed()
    }
}

impl FlowSchemas {
    pub(crate) fn new(state: Arc<State>) -> FlowSchemas {
        FlowSchemas { state }
    }

    /// Updates the affected conditions after a schema or a level was written or deleted.
    async fn follow(&self, requests: &dyn OwnRequests, object: &Value, gone: bool) {
        if meta::kind(object) == "FlowSchema" {
            if !gone {
                report_dangling(&self.state, requests, object).await;
            }
            return;
        }
        for schema in self.state.objects.list(GROUP, SCHEMAS, None) {
            if level_of(&schema) == meta::name(object) {
                report_dangling(&self.state, requests, &schema).await;
            }
        }
    }

    /// Updates all conditions when the server starts: earlier updates may have been lost.
    async fn report_all(&self, requests: &dyn OwnRequests) {
        for schema in self.state.objects.list(GROUP, SCHEMAS, None) {
            report_dangling(&self.state, requests, &schema).await;
        }
    }
}

fn level_of(schema: &Value) -> &str {
    schema["spec"]["priorityLevelConfiguration"]["name"].as_str().unwrap_or_default()
}

/// Writes the condition of a schema if it is out of date. The write requires the revision that was
/// read, because another writer may have seen a newer state of the level.
async fn report_dangling(state: &State, requests: &dyn OwnRequests, schema: &Value) {
    let name = meta::name(schema);
    for _ in 0..ATTEMPTS {
        let Some(current) = state.objects.get(GROUP, SCHEMAS, "", name) else { return };
        // If the schema was recreated, the write of the new schema updates its condition.
        if meta::uid(&current) != meta::uid(schema) {
            return;
        }
        let Some(condition) = condition(state, &current) else { return };
        let applied = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "FlowSchema",
            "metadata": {
                "name": name, "uid": meta::uid(schema), "resourceVersion": meta::resource_version(&current),
            },
            "status": {"conditions": [condition]},
        });
        let request = Request::builder()
            .method(Method::PATCH)
            .uri(format!("/apis/{GROUP}/{VERSION}/{SCHEMAS}/{name}/status?fieldManager={MANAGER}&force=true"))
            .header(header::CONTENT_TYPE, "application/apply-patch+yaml")
            .body(Full::new(Bytes::from(applied.to_string())));
        let Ok(request) = request else { return };
        let response = requests.send(request).await;
        if response.status() != StatusCode::CONFLICT {
            if !response.status().is_success() {
                tracing::debug!(name, status = %response.status(), "could not write the Dangling condition of a FlowSchema");
            }
            return;
        }
    }
    tracing::debug!(name, "gave up writing the Dangling condition of a FlowSchema: too many conflicting writes");
}

/// The condition that the schema should have; `None` if it already has this condition.
fn condition(state: &State, schema: &Value) -> Option<Value> {
    let level = level_of(schema);
    let references = format!("This FlowSchema references the PriorityLevelConfiguration object named \"{level}\"");
    let (status, reason, message) = match state.objects.get(GROUP, LEVELS, "", level) {
        Some(_) => ("False", "Found", format!("{references} and it exists")),
        None => ("True", "NotFound", format!("{references} but there is no such object")),
    };
    let conditions = schema["status"]["conditions"].as_array().into_iter().flatten();
    let known = conditions.into_iter().find(|it| it["type"] == DANGLING);
    if known.is_some_and(|it| it["status"] == status && it["reason"] == reason && it["message"] == message) {
        return None;
    }
    let since = known.filter(|it| it["status"] == status).map(|it| it["lastTransitionTime"].clone());
    Some(json!({
        "type": DANGLING, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": since.filter(Value::is_string).unwrap_or_else(|| state.timestamp()),
    }))
}
