//! The changes that an update of a custom resource may make, and the changes that increase its
//! generation.
//!
//! Behaviour after Kubernetes' custom resource strategies (conformance suites
//! `cr-prepare-for-update`, `cr-status-prepare-for-update`).

use berth_apimachinery::meta;
use serde_json::{Map, Value};

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

/// Prepares a write to the resource itself: restores the status if it has its own subresource, and
/// increases the generation if anything but metadata changed.
pub fn prepare(new: &mut Value, old: &Value, status_subresource: bool) {
    if status_subresource && new.get("status") != old.get("status") {
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

/// Prepares a status update: only `status` and `managedFields` may change. Most of what a client
/// sends (or a patch produces) is unchanged, and comparing costs less than copying.
pub fn prepare_status(new: &mut Value, old: &Value) {
    restore(meta::map_mut(new), old, &["status", "metadata"]);
    match (new.get_mut("metadata"), old.get("metadata")) {
        (Some(Value::Object(metadata)), Some(old)) if old.is_object() => restore(metadata, old, &["managedFields"]),
        (_, old) => put(new, "metadata", old),
    }
}

/// Makes a map equal to another one, except for some fields.
fn restore(map: &mut Map<String, Value>, old: &Value, but: &[&str]) {
    let empty = Map::new();
    let old = old.as_object().unwrap_or(&empty);
    map.retain(|field, _| but.contains(&field.as_str()) || old.contains_key(field));
    for (field, value) in old.iter().filter(|(field, _)| !but.contains(&field.as_str())) {
        if map.get(field) != Some(value) {
            map.insert(field.clone(), value.clone());
        }
    }
}
