//! Fields of CustomResourceDefinition objects that the server sets: defaults and status (accepted
//! names, conditions, stored versions).

use berth_apimachinery::meta;
use serde_json::{Value, json};

use super::conditions::{self, Condition};
use super::names::{self, Taken};
use super::validate::approval;

/// Finalizer of a definition until its objects are deleted.
pub const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// True if the definition can be served: its names were accepted once.
pub fn is_accepted(definition: &Value) -> bool {
    conditions::is_true(definition, "Established")
}

/// Sets the defaults of optional fields.
pub fn default(definition: &mut Value) {
    let Some(spec) = definition.get_mut("spec").and_then(Value::as_object_mut) else { return };
    let conversion = spec.entry("conversion").or_insert_with(|| json!({}));
    if let Some(conversion) = conversion.as_object_mut() {
        conversion.entry("strategy").or_insert_with(|| "None".into());
        if conversion["strategy"] == "Webhook"
            && let Some(service) = conversion
                .get_mut("webhook")
                .and_then(|hook| hook.get_mut("clientConfig"))
                .and_then(|client| client.get_mut("service"))
            && service.is_object()
            && service.get("port").is_none_or(Value::is_null)
        {
            service["port"] = 443.into();
        }
    }
    default_names(spec);
    default_stored_versions(definition);
}

/// A new definition has its storage version as its only stored version.
fn default_stored_versions(definition: &mut Value) {
    let versions = definition["spec"]["versions"].as_array().into_iter().flatten();
    let Some(storage) = versions.into_iter().find(|version| version["storage"] == true) else { return };
    let storage = storage["name"].clone();
    let status = meta::map_mut(meta::map_mut(definition).entry("status").or_insert_with(|| json!({})));
    let stored = status.entry("storedVersions").or_insert_with(|| json!([]));
    if stored.as_array().is_none_or(Vec::is_empty) {
        *stored = json!([storage]);
    }
}

fn default_names(spec: &mut serde_json::Map<String, Value>) {
    let Some(names) = spec.get_mut("names").and_then(Value::as_object_mut) else { return };
    let kind = names.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
    let is_empty = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().is_empty();
    if is_empty(names.get("singular")) && !kind.is_empty() {
        names.insert("singular".to_owned(), kind.to_lowercase().into());
    }
    if is_empty(names.get("listKind")) && !kind.is_empty() {
        names.insert("listKind".to_owned(), format!("{kind}List").into());
    }
}

/// Adds the storage version to the stored versions.
fn add_stored_version(definition: &mut Value) {
    default_stored_versions(definition);
    let storage: Vec<Value> = definition["spec"]["versions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|version| version["storage"] == true)
        .map(|version| version["name"].clone())
        .collect();
    if let Some(stored) = definition.pointer_mut("/status/storedVersions").and_then(Value::as_array_mut) {
        for name in storage {
            if !stored.contains(&name) {
                stored.push(name);
            }
        }
    }
}

/// Updates the status: accepted names, conditions, stored versions. In a real cluster, controllers
/// do this shortly after the write.
pub fn set_status(definition: &mut Value, taken: &Taken, now: &str) {
    add_stored_version(definition);
    names::accept(definition, taken, now);
    names::establish(definition, now);
    let kind = "KubernetesAPIApprovalPolicyConformant";
    match approval::condition(definition) {
        Some((status, reason, message)) => {
            conditions::set(definition, &Condition { kind, status, reason, message: &message }, now);
        }
        None => conditions::remove(definition, kind),
    }
}

/// Sets the condition that the objects of a definition are being deleted with it.
pub fn set_terminating(definition: &mut Value, now: &str) {
    let condition = Condition {
        kind: "Terminating",
        status: "True",
        reason: "InstanceDeletionInProgress",
        message: "CustomResource deletion is in progress",
    };
    conditions::set(definition, &condition, now);
}
