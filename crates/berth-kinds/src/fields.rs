//! Field selectors: the selectable fields, and their values in an object.

use std::collections::BTreeMap;

use berth_apimachinery::meta;
use serde_json::Value;

use crate::crd::validate::next_step;

/// Path of a field in objects, if it is one of the `declared` fields (`.spec.color`).
pub fn place(declared: &[String], field: &str) -> Option<Vec<String>> {
    let known = declared.iter().find(|path| path.trim_start_matches('.') == field)?;
    // The name in a selector may differ from the path of the value.
    match field {
        "source" => steps("source.component"),
        "status.successful" => steps("status.succeeded"),
        _ => steps(known),
    }
}

/// The segments of a path such as `.spec.foo` or `.spec['a.b']`. The first dot is optional.
fn steps(path: &str) -> Option<Vec<String>> {
    let dotted = if path.starts_with(['.', '[']) { path.to_owned() } else { format!(".{path}") };
    let (mut steps, mut rest) = (Vec::new(), dotted.as_str());
    while !rest.is_empty() {
        let (step, after) = next_step(rest).ok()?;
        steps.push(step);
        rest = after;
    }
    Some(steps)
}

/// The value of a field other than name and namespace. `None` matches the empty string.
pub fn value(object: &Value, field: &str, place: &[String]) -> Option<String> {
    let value = place.iter().try_fold(object, |value, step| value.get(step)).and_then(text);
    value.or_else(|| absent(field, object))
}

/// The value that field selectors compare for a field that is missing in an object; `None` for the
/// empty string.
fn absent(field: &str, object: &Value) -> Option<String> {
    match field {
        "source" => object.get("reportingComponent").and_then(text),
        "spec.unschedulable" | "spec.hostNetwork" => Some("false".to_owned()),
        "status.successful" | "status.replicas" => Some("0".to_owned()),
        _ => None,
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// The selectable fields of a custom resource and their values: its name, its namespace if it has
/// one, and the fields that its definition has `declared` (`jsonPath` of its `selectableFields`).
pub fn of_custom_resource(object: &Value, declared: &[String]) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::from([("metadata.name".to_owned(), meta::name(object).to_owned())]);
    if !meta::namespace(object).is_empty() {
        fields.insert("metadata.namespace".to_owned(), meta::namespace(object).to_owned());
    }
    for path in declared {
        let field = path.trim_start_matches('.').to_owned();
        let found = place(declared, &field).and_then(|place| value(object, &field, &place));
        fields.insert(field, found.unwrap_or_default());
    }
    fields
}
