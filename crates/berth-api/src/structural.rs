//! Turns a derived JSON Schema into the structural schema of a CustomResourceDefinition, as
//! `controller-gen` would write it.
//!
//! `schemars` derives one self-contained schema per root type, for the serialized form of the type.
//! A property that is always written is required; one that can be omitted is optional, like
//! `omitempty` upstream. This pass removes keywords that Kubernetes does not support (null as a
//! type, titles), expands the private keywords described in [`schema`](crate::schema), and fills in
//! the definitions that Kubernetes publishes. The result is structural because it is built from
//! supported keywords only.

use schemars::JsonSchema;
use schemars::generate::{Contract, SchemaSettings};
use serde_json::{Map, Value, json};

use crate::published::Published;

/// Makes schemas; caches the published definitions that it has resolved.
#[derive(Default)]
pub(crate) struct Structural {
    published: Published,
}

impl Structural {
    /// The schema of the root type `T`, with `apiVersion`, `kind` and `metadata`.
    pub(crate) fn root<T: JsonSchema>(&mut self) -> Value {
        let mut settings = SchemaSettings::draft2020_12();
        settings.inline_subschemas = true;
        settings.meta_schema = None;
        settings.contract = Contract::Serialize;
        let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
        self.node(&mut schema);
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

    fn node(&mut self, schema: &mut Value) {
        let Some(node) = schema.as_object_mut() else { return };
        for unknown in ["$schema", "title"] {
            node.remove(unknown);
        }
        unwrap_nullable(node);
        if node.contains_key("x-embed") {
            // Nothing below this node needs to be expanded: it is structural already.
            return self.embed(node);
        }
        expand_list(node);
        expand_rules(node);
        if node.remove("x-no-format").is_some() {
            node.remove("format");
        }
        for key in ["items", "additionalProperties"] {
            if let Some(inner) = node.get_mut(key) {
                self.node(inner);
            }
        }
        let mut required: Vec<String> =
            node.get("required").and_then(Value::as_array).map(|r| strings(r)).unwrap_or_default();
        if let Some(properties) = node.get_mut("properties").and_then(Value::as_object_mut) {
            for (name, property) in properties.iter_mut() {
                self.node(property);
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
            node.remove("required");
        } else {
            node.insert("required".into(), required.into());
        }
    }

    /// Replaces the keyword `x-embed` with the published definition that it names. The property's
    /// own keywords override those of the definition.
    fn embed(&mut self, node: &mut Map<String, Value>) {
        let Some(Value::String(name)) = node.remove("x-embed") else { return };
        if let Value::Object(definition) = self.published.schema(&name) {
            for (key, value) in definition {
                node.entry(key).or_insert(value);
            }
        }
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
