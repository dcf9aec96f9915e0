//! Comparison with the rules of upstream's tests: an empty value equals an absent one, quantities
//! are compared by value, and transition times are ignored.

use berth_apimachinery::quantity::Quantity;
use serde_json::{Map, Value};

/// Differences between the expected and the actual value, one per line. Empty if they are equal.
/// Fields named in `ignore` do not count.
pub fn differences(want: &Value, got: &Value, ignore: &[&str]) -> Vec<String> {
    let mut lines = Vec::new();
    walk("", &normal(want, ignore), &normal(got, ignore), &mut lines);
    lines
}

/// The verdict for a list of differences.
pub fn verdict(lines: Vec<String>) -> Result<(), String> {
    if lines.is_empty() { Ok(()) } else { Err(lines.join("\n")) }
}

/// Fields that are never compared.
const IGNORED: &[&str] = &["lastTransitionTime", "resourceVersion", "managedFields"];

/// A value without ignored fields and empty parts, and with conditions in order of type.
pub fn normal(value: &Value, ignore: &[&str]) -> Value {
    match value {
        Value::Object(map) => {
            let mut out = Map::new();
            for (key, value) in map {
                if IGNORED.contains(&key.as_str()) || ignore.contains(&key.as_str()) {
                    continue;
                }
                let mut value = normal(value, ignore);
                if key == "conditions"
                    && let Value::Array(list) = &mut value
                {
                    list.sort_by_key(|condition| condition["type"].as_str().unwrap_or_default().to_owned());
                }
                if !is_empty(&value) {
                    out.insert(key.clone(), value);
                }
            }
            Value::Object(out)
        }
        Value::Array(list) => Value::Array(list.iter().map(|value| normal(value, ignore)).collect()),
        other => other.clone(),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

fn walk(path: &str, want: &Value, got: &Value, lines: &mut Vec<String>) {
    match (want, got) {
        (Value::Object(want), Value::Object(got)) => {
            for (key, value) in want {
                match got.get(key) {
                    Some(other) => walk(&format!("{path}.{key}"), value, other, lines),
                    None => lines.push(format!("{path}.{key}: want {value}, got nothing")),
                }
            }
            for (key, value) in got {
                if !want.contains_key(key) {
                    lines.push(format!("{path}.{key}: want nothing, got {value}"));
                }
            }
        }
        (Value::Array(want), Value::Array(got)) => {
            if want.len() != got.len() {
                lines.push(format!(
                    "{path}: want {} entries, got {}: {}",
                    want.len(),
                    got.len(),
                    Value::from(got.clone())
                ));
                return;
            }
            for (index, (want, got)) in want.iter().zip(got).enumerate() {
                walk(&format!("{path}[{index}]"), want, got, lines);
            }
        }
        (want, got) if want == got => {}
        (Value::String(want), Value::String(got)) if same_quantity(want, got) => {}
        (want, got) => lines.push(format!("{path}: want {want}, got {got}")),
    }
}

fn same_quantity(want: &str, got: &str) -> bool {
    match (Quantity::parse(want), Quantity::parse(got)) {
        (Ok(want), Ok(got)) => want == got,
        _ => false,
    }
}
