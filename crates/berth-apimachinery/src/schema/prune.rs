//! Removes fields that the schema does not declare, and reports their paths.
//!
//! The paths have the form of field-validation warnings: `spec.containers[0].foo`. In an embedded
//! resource apiVersion, kind and metadata are always known; the content of metadata is handled by
//! metadata coercion.

use std::fmt::Write;

use serde_json::Value;

use super::{AdditionalProperties, Root, Schema};

/// Maximum number of unknown fields to report; a hostile object could have millions.
const REPORTED_MAX: usize = 1000;

impl Schema {
    /// Removes unknown fields and returns their paths.
    pub fn prune(&self, value: &mut Value, root: Root) -> Vec<String> {
        let mut pruner = Pruner { path: String::new(), unknown: Vec::new() };
        pruner.value(value, Some(self), root == Root::Resource);
        pruner.unknown
    }

    /// The paths of unknown fields. The value is not changed.
    pub fn unknown_fields(&self, value: &Value, root: Root) -> Vec<String> {
        // Pruning changes the value; strict validation of a valid object is rare enough to pay for
        // a copy.
        self.prune(&mut value.clone(), root)
    }
}

/// The walk that prunes a value. In a value without a schema, every field is unknown.
pub(super) struct Pruner {
    path: String,
    unknown: Vec<String>,
}

impl Pruner {
    fn value(&mut self, value: &mut Value, schema: Option<&Schema>, is_resource: bool) {
        let node = schema.map(Schema::target);
        if node.is_some_and(|node| node.preserve_unknown_fields) {
            return self.known_parts(value, node, is_resource);
        }
        match value {
            Value::Object(map) => {
                let meta = is_resource || node.is_some_and(|node| node.embedded_resource);
                let mut dropped = Vec::new();
                for (name, entry) in map.iter_mut() {
                    if meta && is_meta_field(name) {
                        continue;
                    }
                    match node.and_then(|node| known_entry(node, name)) {
                        Some(entry_schema) => self.below_name(name, |pruner| pruner.value(entry, entry_schema, false)),
                        None => dropped.push(name.clone()),
                    }
                }
                for name in dropped {
                    // apiVersion, kind and metadata of the root value are removed without a report.
                    if !(self.path.is_empty() && is_meta_field(&name)) {
                        self.below_name(&name, Pruner::report);
                    }
                    map.remove(&name);
                }
            }
            Value::Array(list) => {
                let items = node.and_then(|node| node.items.as_deref());
                for (index, item) in list.iter_mut().enumerate() {
                    self.below_index(index, |pruner| pruner.value(item, items, false));
                }
            }
            _ => {}
        }
    }

    /// Walks a part that preserves unknown fields: only its declared fields are pruned inside.
    fn known_parts(&mut self, value: &mut Value, node: Option<&Schema>, is_resource: bool) {
        match value {
            Value::Object(map) => {
                let meta = is_resource || node.is_some_and(|node| node.embedded_resource);
                for (name, entry) in map.iter_mut() {
                    if meta && is_meta_field(name) {
                        continue;
                    }
                    if let Some(Some(schema)) = node.and_then(|node| known_entry(node, name)) {
                        self.below_name(name, |pruner| pruner.value(entry, Some(schema), false));
                    }
                }
            }
            Value::Array(list) => {
                if let Some(items) = node.and_then(|node| node.items.as_deref()) {
                    for (index, item) in list.iter_mut().enumerate() {
                        self.below_index(index, |pruner| pruner.value(item, Some(items), false));
                    }
                }
            }
            _ => {}
        }
    }

    fn below_name(&mut self, name: &str, walk: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        if length > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        walk(self);
        self.path.truncate(length);
    }

    fn below_index(&mut self, index: usize, walk: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        // Writing to a string cannot fail.
        let _ = write!(self.path, "[{index}]");
        walk(self);
        self.path.truncate(length);
    }

    fn report(&mut self) {
        if self.unknown.len() < REPORTED_MAX {
            self.unknown.push(self.path.clone());
        }
    }
}

/// The schema of a map entry: `None` for an unknown entry, `Some(None)` for a known entry without a
/// schema.
fn known_entry<'a>(node: &'a Schema, name: &str) -> Option<Option<&'a Schema>> {
    match (node.properties.get(name), &node.additional_properties) {
        (Some(property), _) => Some(Some(property)),
        (None, Some(AdditionalProperties::Schema(schema))) => Some(Some(schema)),
        (None, Some(AdditionalProperties::Allowed(_))) => Some(None),
        (None, None) => None,
    }
}

fn is_meta_field(name: &str) -> bool {
    matches!(name, "apiVersion" | "kind" | "metadata")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn unknown_fields_are_removed_and_named() {
        let schema =
            Schema::parse_crd(&json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
                "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}
            }}}}))
            .expect("parses");
        let mut value = json!({"kind": "K", "spec": {"x": 1, "list": [{"a": "", "b": ""}], "free": {"y": 1}}});
        let unknown = schema.prune(&mut value, Root::Resource);
        assert_eq!(unknown, ["spec.list[0].b", "spec.x"]);
        assert_eq!(value, json!({"kind": "K", "spec": {"list": [{"a": ""}], "free": {"y": 1}}}));
    }
}
