//! Turns a derived JSON Schema into the structural schema of a CustomResourceDefinition, as
//! `controller-gen` would write it.
//!
//! `schemars` derives one self-contained schema per root type, for the serialized form of the type.
//! A property that is always written is required; one that can be omitted is optional, like
//! `omitempty` upstream. This pass removes keywords that Kubernetes does not support (null as a
//! type, titles), and expands the private keywords described in [`schema`](super), except
//! `x-embed`. The result is structural because it is built from supported keywords only.

use kube::core::schema::{OptionalEnum, OptionalIntOrString, StructuralSchemaRewriter};
use schemars::JsonSchema;
use schemars::generate::{Contract, SchemaSettings};
use schemars::transform::AddNullable;
use serde_json::{Map, Value, json};

use crate::crd::EMBED;

/// The schema of the root type `T`, with `apiVersion`, `kind` and `metadata`.
pub(super) fn root<T: JsonSchema>() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    settings.contract = Contract::Serialize;
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    node(&mut schema);
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.insert(
            "apiVersion".into(),
            described("string", "Group and version of this representation of the object."),
        );
        properties.insert("kind".into(), described("string", "Kind of the object."));
        properties.insert("metadata".into(), json!({ "type": "object" }));
    }
    schema
}

/// The schema of the root type `T` with the rules of kube's derive macro, which the kinds of
/// Berth's own have: an optional field accepts null, and a field with a default is not required.
pub(super) fn nullable_root<T: JsonSchema>() -> Value {
    let mut settings = SchemaSettings::openapi3();
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    let settings = settings
        .with_transform(AddNullable::default())
        .with_transform(StructuralSchemaRewriter)
        .with_transform(OptionalEnum)
        .with_transform(OptionalIntOrString);
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

fn node(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    for unknown in ["$schema", "title"] {
        fields.remove(unknown);
    }
    unwrap_nullable(fields);
    if fields.contains_key(EMBED) {
        // Nothing below this node needs to be expanded: it will be structural.
        return;
    }
    expand_list(fields);
    expand_rules(fields);
    if fields.remove("x-no-format").is_some() {
        fields.remove("format");
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = fields.get_mut(key) {
            node(inner);
        }
    }
    let mut required: Vec<String> =
        fields.get("required").and_then(Value::as_array).map(|r| strings(r)).unwrap_or_default();
    if let Some(properties) = fields.get_mut("properties").and_then(Value::as_object_mut) {
        for (name, property) in properties.iter_mut() {
            node(property);
            let Some(property) = property.as_object_mut() else { continue };
            if property.remove("x-optional").is_some() {
                required.retain(|r| r != name);
            }
            if property.remove("x-required").is_some() && !required.contains(name) {
                required.push(name.clone());
            }
        }
    }
    required.sort();
    if required.is_empty() {
        fields.remove("required");
    } else {
        fields.insert("required".into(), required.into());
    }
}

fn described(kind: &str, description: &str) -> Value {
    json!({ "type": kind, "description": description })
}

fn strings(list: &[Value]) -> Vec<String> {
    list.iter().filter_map(|value| value.as_str().map(str::to_owned)).collect()
}

/// `Option<T>` is derived as "T or null"; the API uses absent fields instead of null.
fn unwrap_nullable(node: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = node.get_mut("type") {
        types.retain(|t| t != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            node.insert("type".into(), only);
        }
    }
    if let Some(Value::Array(values)) = node.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    let is_null = |schema: &Value| schema["type"] == "null";
    let Some(Value::Array(alternatives)) = node.get("anyOf") else { return };
    if !alternatives.iter().any(is_null) {
        return;
    }
    let Some(Value::Array(alternatives)) = node.remove("anyOf") else { return };
    for alternative in alternatives.into_iter().filter(|schema| !is_null(schema)) {
        if let Value::Object(alternative) = alternative {
            for (key, value) in alternative {
                node.entry(key).or_insert(value);
            }
        }
    }
}

fn expand_list(node: &mut Map<String, Value>) {
    let Some(Value::String(list)) = node.remove("x-list") else { return };
    match list.split_once(':') {
        Some((kind, keys)) => {
            node.insert("x-kubernetes-list-type".into(), kind.into());
            node.insert("x-kubernetes-list-map-keys".into(), keys.split(',').collect());
        }
        None => {
            node.insert("x-kubernetes-list-type".into(), list.into());
        }
    }
}

fn expand_rules(node: &mut Map<String, Value>) {
    let Some(Value::Array(rules)) = node.remove("x-rules") else { return };
    let rules: Vec<Value> = rules.iter().map(|rule| json!({ "rule": rule[0], "message": rule[1] })).collect();
    node.insert("x-kubernetes-validations".into(), rules.into());
}
