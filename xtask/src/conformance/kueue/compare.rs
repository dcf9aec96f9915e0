//! Comparison of results with expectations: normal forms and differences.

use std::collections::BTreeMap;

use berth_api::kueue::v1beta2 as api;
use berth_apimachinery::quantity::Quantity;
use berth_controllers::translate::admission::decode;
use serde_json::{Map, Value, json};

/// The differences between two values, one line per path. Empty if they are equal.
pub fn differences(path: &str, want: &Value, got: &Value) -> Vec<String> {
    match (want, got) {
        (Value::Object(want), Value::Object(got)) => {
            let keys: std::collections::BTreeSet<&String> = want.keys().chain(got.keys()).collect();
            keys.into_iter()
                .flat_map(|key| {
                    let null = Value::Null;
                    let child = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    differences(&child, want.get(key).unwrap_or(&null), got.get(key).unwrap_or(&null))
                })
                .collect()
        }
        (Value::Array(want), Value::Array(got)) if want.len() == got.len() => want
            .iter()
            .zip(got)
            .enumerate()
            .flat_map(|(at, (want, got))| differences(&format!("{path}[{at}]"), want, got))
            .collect(),
        (want, got) if want == got => Vec::new(),
        (want, got) => vec![format!("{path}: want {want}, got {got}")],
    }
}

/// The verdict for a list of differences.
pub fn verdict(differences: Vec<String>) -> Result<(), String> {
    if differences.is_empty() { Ok(()) } else { Err(differences.join("\n")) }
}

/// A workload in normal form: without time stamps and bookkeeping, and with conditions in order of
/// type.
pub fn workload(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for key in ["resourceVersion", "creationTimestamp", "managedFields"] {
            metadata.remove(key);
        }
    }
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        if let Some(Value::Array(conditions)) = status.get_mut("conditions") {
            for condition in conditions.iter_mut().filter_map(Value::as_object_mut) {
                condition.remove("lastTransitionTime");
                condition.remove("observedGeneration");
            }
            conditions.sort_by_key(|condition| condition["type"].as_str().unwrap_or_default().to_owned());
        }
        if let Some(Value::Array(checks)) = status.get_mut("admissionChecks") {
            for check in checks.iter_mut().filter_map(Value::as_object_mut) {
                check.remove("lastTransitionTime");
            }
        }
    }
    normal(&object)
}

/// A value in normal form: without nulls and empty parts, with quantities in decimal form and
/// topology assignments as lists of domains.
pub fn normal(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            if map.contains_key("levels")
                && map.contains_key("slices")
                && let Ok(assignment) = serde_json::from_value::<api::TopologyAssignment>(value.clone())
            {
                return topology(&assignment);
            }
            let mut normal_map = Map::new();
            for (key, value) in map {
                let value = if matches!(key.as_str(), "resourceUsage" | "resources" | "requests" | "limits") {
                    quantities(value)
                } else {
                    normal(value)
                };
                let empty = value.is_null()
                    || value.as_object().is_some_and(Map::is_empty)
                    || value.as_array().is_some_and(Vec::is_empty)
                    || value == json!("");
                if !empty {
                    normal_map.insert(key.clone(), value);
                }
            }
            Value::Object(normal_map)
        }
        Value::Array(list) => Value::Array(list.iter().map(normal).collect()),
        other => other.clone(),
    }
}

fn topology(assignment: &api::TopologyAssignment) -> Value {
    let decoded = decode(assignment);
    let domains: Vec<Value> = decoded
        .domains
        .iter()
        .map(
            |domain| json!({"values": domain.values.iter().map(|it| &**it).collect::<Vec<_>>(), "count": domain.count}),
        )
        .collect();
    json!({"levels": decoded.levels.iter().map(|it| &**it).collect::<Vec<_>>(), "domains": domains})
}

fn quantities(value: &Value) -> Value {
    let Value::Object(map) = value else { return normal(value) };
    if map.values().any(|value| !value.is_string()) {
        return normal(value);
    }
    let by_value = map.iter().map(|(key, text)| {
        let text = text.as_str().unwrap_or_default();
        (key.clone(), json!(Quantity::parse(text).map_or_else(|_| text.to_owned(), |quantity| quantity.decimal())))
    });
    Value::Object(by_value.collect())
}

/// Sorts each list of a map of key lists, and removes empty lists.
pub fn sorted_lists(value: &Value) -> Value {
    if value.is_null() {
        return json!({});
    }
    let Ok(lists) = serde_json::from_value::<BTreeMap<String, Vec<String>>>(value.clone()) else {
        return value.clone();
    };
    let sorted = lists.into_iter().filter(|(_, list)| !list.is_empty()).map(|(key, mut list)| {
        list.sort();
        (key, list)
    });
    json!(sorted.collect::<BTreeMap<_, _>>())
}
