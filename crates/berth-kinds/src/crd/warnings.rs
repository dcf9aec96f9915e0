//! Warnings for the writer of a definition: unknown formats, which are not validated.

use std::collections::BTreeSet;

use berth_apimachinery::schema::is_known_format;
use serde_json::Value;

/// Warnings about `definition`, without those that apply to `old` too.
pub fn unknown_formats(definition: &Value, old: Option<&Value>) -> Vec<String> {
    let mut before = BTreeSet::new();
    if let Some(old) = old {
        collect(old, &mut before);
    }
    let mut now = BTreeSet::new();
    collect(definition, &mut now);
    now.difference(&before).map(|format| format!("unrecognized format \"{format}\"")).collect()
}

fn collect(definition: &Value, formats: &mut BTreeSet<String>) {
    for version in definition["spec"]["versions"].as_array().into_iter().flatten() {
        collect_below(&version["schema"]["openAPIV3Schema"], formats);
    }
}

fn collect_below(schema: &Value, formats: &mut BTreeSet<String>) {
    let is_text = matches!(schema["type"].as_str(), None | Some("" | "string"));
    let format = schema["format"].as_str().unwrap_or_default();
    if is_text && !format.is_empty() && !is_known_format(format) {
        formats.insert(format.to_owned());
    }
    for property in schema["properties"].as_object().into_iter().flatten() {
        collect_below(property.1, formats);
    }
    for key in ["items", "additionalProperties", "not"] {
        if schema[key].is_object() {
            collect_below(&schema[key], formats);
        }
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        for child in schema[key].as_array().into_iter().flatten() {
            collect_below(child, formats);
        }
    }
}
