//! Conditions in the status of a CustomResourceDefinition.

use berth_apimachinery::meta;
use serde_json::{Map, Value, json};

/// One condition, without its times.
pub struct Condition<'a> {
    /// `Established`, `NamesAccepted`, `Terminating`, …
    pub kind: &'a str,
    /// `True`, `False` or `Unknown`.
    pub status: &'a str,
    /// Reason in CamelCase.
    pub reason: &'a str,
    /// Message for users.
    pub message: &'a str,
}

fn list(definition: &Value) -> impl Iterator<Item = &Value> {
    definition["status"]["conditions"].as_array().into_iter().flatten()
}

/// The condition of that type.
pub fn find<'a>(definition: &'a Value, kind: &str) -> Option<&'a Value> {
    list(definition).find(|condition| condition["type"] == kind)
}

/// True if the definition has the condition `kind` with `status`.
pub fn has_status(definition: &Value, kind: &str, status: &str) -> bool {
    find(definition, kind).is_some_and(|condition| condition["status"] == status)
}

/// True if the definition has the condition `kind` with status True.
pub fn is_true(definition: &Value, kind: &str) -> bool {
    has_status(definition, kind, "True")
}

/// Sets a condition. Its transition time becomes `now` if its status changes or it had no time.
pub fn set(definition: &mut Value, condition: &Condition<'_>, now: &str) {
    let map = meta::map_mut(definition);
    let status = meta::map_mut(map.entry("status").or_insert_with(|| json!({})));
    let conditions = status.entry("conditions").or_insert_with(|| json!([]));
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(conditions) = conditions.as_array_mut() else { return };
    let position = conditions.iter().position(|other| other["type"] == condition.kind);
    let mut new = match position {
        Some(at) => conditions[at].as_object().cloned().unwrap_or_default(),
        None => Map::new(),
    };
    let timed = new.get("lastTransitionTime").is_some_and(Value::is_string);
    if !timed || new.get("status").is_none_or(|status| *status != condition.status) {
        new.insert("lastTransitionTime".to_owned(), now.into());
    }
    let fields = [
        ("type", condition.kind),
        ("status", condition.status),
        ("reason", condition.reason),
        ("message", condition.message),
    ];
    for (field, text) in fields {
        new.insert(field.to_owned(), text.into());
    }
    match position {
        Some(at) => conditions[at] = Value::Object(new),
        None => conditions.push(Value::Object(new)),
    }
}

/// Removes the condition of that type.
pub fn remove(definition: &mut Value, kind: &str) {
    if let Some(conditions) = definition.pointer_mut("/status/conditions").and_then(Value::as_array_mut) {
        conditions.retain(|condition| condition["type"] != kind);
    }
}

/// The finalizers of a definition without one of them.
pub fn finalizers_without<'a>(definition: &'a Value, finalizer: &str) -> Vec<&'a str> {
    meta::finalizers(definition).into_iter().filter(|own| *own != finalizer).collect()
}
