//! Fields of definitions that belong to a feature. If the feature is off they are removed, unless
//! the stored definition uses them already.

use serde_json::Value;

/// Features of definitions that can be off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// `selectableFields` of versions.
    pub selectable_fields: bool,
    /// Ratcheting validation, with it `optionalOldSelf` of rules.
    pub ratcheting: bool,
    /// `observedGeneration` in the status and its conditions.
    pub observed_generation: bool,
}

impl Features {
    /// The features of this server.
    pub const SERVED: Features = Features { selectable_fields: true, ratcheting: true, observed_generation: true };
}

/// Removes the fields of features that are off, unless they were in use.
pub fn drop_disabled(definition: &mut Value, old: Option<&Value>, features: Features) {
    if !features.selectable_fields && !old.is_some_and(|old| versions(old).any(has_selectable_fields)) {
        for version in versions_mut(definition) {
            remove(version, "selectableFields");
        }
    }
    if !features.ratcheting && !old.is_some_and(|old| versions(old).any(uses_optional_old_self)) {
        for version in versions_mut(definition) {
            drop_everywhere(version, "optionalOldSelf");
        }
    }
    if !features.observed_generation
        && !old.is_some_and(|old| has_observed_generation(&old["status"]))
        && let Some(status) = definition.get_mut("status")
    {
        remove(status, "observedGeneration");
        for condition in status.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten() {
            remove(condition, "observedGeneration");
        }
    }
}

fn versions(definition: &Value) -> impl Iterator<Item = &Value> {
    definition["spec"]["versions"].as_array().into_iter().flatten()
}

fn versions_mut(definition: &mut Value) -> impl Iterator<Item = &mut Value> {
    definition.pointer_mut("/spec/versions").and_then(Value::as_array_mut).into_iter().flatten()
}

fn has_selectable_fields(version: &Value) -> bool {
    version["selectableFields"].as_array().is_some_and(|fields| !fields.is_empty())
}

fn has_observed_generation(status: &Value) -> bool {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    std::iter::once(status).chain(conditions).any(|holder| holder["observedGeneration"].as_i64().unwrap_or(0) != 0)
}

/// True if a rule in a version sets `optionalOldSelf`. A property of that name is not a rule: its
/// value is a schema.
fn uses_optional_old_self(value: &Value) -> bool {
    match value {
        Value::Object(map) => {
            map.get("optionalOldSelf").is_some_and(Value::is_boolean) || map.values().any(uses_optional_old_self)
        }
        Value::Array(list) => list.iter().any(uses_optional_old_self),
        _ => false,
    }
}

fn drop_everywhere(value: &mut Value, field: &str) {
    match value {
        Value::Object(map) => {
            map.retain(|key, value| key != field || !value.is_boolean());
            map.values_mut().for_each(|child| drop_everywhere(child, field));
        }
        Value::Array(list) => list.iter_mut().for_each(|child| drop_everywhere(child, field)),
        _ => {}
    }
}

fn remove(holder: &mut Value, field: &str) {
    if let Some(map) = holder.as_object_mut() {
        map.remove(field);
    }
}
