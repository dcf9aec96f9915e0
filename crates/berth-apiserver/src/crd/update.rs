//! What an update of a custom resource may change, and what counts as a change of its specification.
//!
//! Behaviour after Kubernetes' custom resource strategies (conformance suites `cr-prepare-for-update`,
//! `cr-status-prepare-for-update`).

use berth_apimachinery::meta;
use serde_json::Value;

fn put(object: &mut Value, field: &str, value: Option<&Value>) {
    let map = meta::map_mut(object);
    match value {
        Some(value) => {
            map.insert(field.to_owned(), value.clone());
        }
        None => {
            map.remove(field);
        }
    }
}

/// Prepares a write to the resource itself: where status has its own subresource it stays, and the generation counts
/// whatever else changed besides metadata.
pub fn prepare(new: &mut Value, old: &Value, status_subresource: bool) {
    if status_subresource {
        put(new, "status", old.get("status"));
    }
    if changes_specification(new, old) {
        meta::set_generation(new, meta::generation(old) + 1);
    }
}

fn changes_specification(new: &Value, old: &Value) -> bool {
    let (Some(new), Some(old)) = (new.as_object(), old.as_object()) else { return false };
    let differs = |(key, value): (&String, &Value)| key != "metadata" && old.get(key) != Some(value);
    new.iter().any(differs) || old.keys().any(|key| key != "metadata" && !new.contains_key(key))
}

/// Prepares a write to the status: it is all that changes, and who manages which field.
pub fn prepare_status(new: &mut Value, old: &Value) {
    let managed = new.get("metadata").and_then(|metadata| metadata.get("managedFields")).cloned();
    let status = new.get("status").cloned();
    *new = old.clone();
    put(new, "status", status.as_ref());
    if let Some(metadata) = new.get_mut("metadata").filter(|metadata| metadata.is_object()) {
        put(metadata, "managedFields", managed.as_ref());
    }
}
