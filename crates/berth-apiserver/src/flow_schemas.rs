//! FlowSchemas say whether the priority level they name is there: condition `Dangling`, written when a schema or a level was, and
//! looked at when the server starts.

use std::sync::Arc;

use berth_apimachinery::meta;
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::registry::ResourceInfo;
use crate::{ApiServer, UserInfo, completion};

const GROUP: &str = "flowcontrol.apiserver.k8s.io";
const VERSION: &str = "v1";
const SCHEMAS: &str = "flowschemas";
const LEVELS: &str = "prioritylevelconfigurations";
/// How often a condition is tried to be written while others write the schema.
const ATTEMPTS: usize = 16;
const DANGLING: &str = "Dangling";
/// As whom the condition is applied: what upstream calls whoever reads the configuration.
const MANAGER: &str = "api-priority-and-fairness-config-consumer-v1";

/// Whether a row is one of those the condition depends on.
pub(crate) fn is_about(row: &ResourceInfo) -> bool {
    row.group == GROUP && matches!(row.plural.as_str(), SCHEMAS | LEVELS)
}

/// After a schema or a level was written or has gone.
pub(crate) async fn follow(server: ApiServer, object: Arc<Value>, gone: bool) {
    if meta::kind(&object) == "FlowSchema" {
        if !gone {
            tell(&server, &object).await;
        }
        return;
    }
    for schema in server.inner.objects.list(GROUP, SCHEMAS, None) {
        if level_of(&schema) == meta::name(&object) {
            tell(&server, &schema).await;
        }
    }
}

/// At a start: what could not be told before.
pub(crate) async fn repair(server: &ApiServer) {
    for schema in server.inner.objects.list(GROUP, SCHEMAS, None) {
        tell(server, &schema).await;
    }
}

fn level_of(schema: &Value) -> &str {
    schema["spec"]["priorityLevelConfiguration"]["name"].as_str().unwrap_or_default()
}

/// Writes the condition of a schema, unless that is what it says. Guarded by the revision that was looked at: somebody who saw
/// the level later may have written first.
async fn tell(server: &ApiServer, schema: &Value) {
    let name = meta::name(schema);
    for _ in 0..ATTEMPTS {
        let Some(current) = server.inner.objects.get(GROUP, SCHEMAS, "", name) else { return };
        // Another one of this name is looked at when it is written.
        if meta::uid(&current) != meta::uid(schema) {
            return;
        }
        let Some(condition) = condition(server, &current) else { return };
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
        let response = completion::to_the_end(server.handle(request, UserInfo::master("system:apiserver"))).await;
        if response.status() != StatusCode::CONFLICT {
            if !response.status().is_success() {
                tracing::debug!(name, status = %response.status(), "a FlowSchema does not say whether its level is there");
            }
            return;
        }
    }
    tracing::debug!(name, "a FlowSchema is written too often to say whether its level is there");
}

/// What a schema should say and does not.
fn condition(server: &ApiServer, schema: &Value) -> Option<Value> {
    let level = level_of(schema);
    let references = format!("This FlowSchema references the PriorityLevelConfiguration object named \"{level}\"");
    let (status, reason, message) = match server.inner.objects.get(GROUP, LEVELS, "", level) {
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
        "lastTransitionTime": since.filter(Value::is_string).unwrap_or_else(|| server.timestamp()),
    }))
}
