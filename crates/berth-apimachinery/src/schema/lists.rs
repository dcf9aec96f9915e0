//! Validates unique list items (`x-kubernetes-list-type` set and map), and resources embedded in
//! other resources.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::{AdditionalProperties, ListType, Root, Schema};
use crate::field::{Error, Path};
use crate::validation;
use crate::{field, names};

impl Schema {
    /// Reports duplicate items of sets and of keyed lists.
    pub fn validate_lists(&self, value: &Value, path: &Path<'_>) -> Vec<Error> {
        let mut errors = Vec::new();
        self.lists(value, path, &mut errors);
        errors
    }

    fn lists(&self, value: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
        let node = self.target();
        if !node.has_distinct {
            return;
        }
        match value {
            Value::Array(list) => {
                if let Some(items) = &node.items {
                    for (i, item) in list.iter().enumerate() {
                        items.lists(item, &path.index(i), errors);
                    }
                }
                match node.list_type {
                    Some(ListType::Set) => distinct(list, path, errors, |item| Some(item.clone())),
                    Some(ListType::Map) => {
                        for (i, item) in list.iter().enumerate() {
                            if !item.is_object() && !item.is_null() {
                                let detail = "must be an object for an array of list-type map";
                                errors.push(Error::invalid(&path.index(i), item.clone(), detail));
                            }
                        }
                        distinct(list, path, errors, |item| match item {
                            Value::Object(item) => Some(keys_of(item, node)),
                            // A null item has no keys, like an item that sets none of them.
                            Value::Null => Some(Value::Object(Map::new())),
                            _ => None,
                        });
                    }
                    _ => {}
                }
            }
            Value::Object(map) => {
                for (name, entry) in map {
                    match (node.properties.get(name), &node.additional_properties) {
                        (Some(property), _) => property.lists(entry, &path.child(name), errors),
                        (None, Some(AdditionalProperties::Schema(schema))) => {
                            schema.lists(entry, &path.key(name), errors)
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }

    /// Validates apiVersion, kind and metadata of the object (if it is a resource) and of embedded
    /// objects.
    pub fn validate_embedded(&self, value: &Value, root: Root, path: &Path<'_>) -> Vec<Error> {
        let mut errors = Vec::new();
        self.embedded(value, root == Root::Resource, path, &mut errors);
        errors
    }

    fn embedded(&self, value: &Value, is_resource: bool, path: &Path<'_>, errors: &mut Vec<Error>) {
        let node = self.target();
        if !is_resource && !node.embedded_resource && !node.has_embedded {
            return;
        }
        match value {
            Value::Object(map) => {
                if is_resource || node.embedded_resource {
                    embedded_resource(map, path, errors);
                }
                for (name, entry) in map {
                    match (node.properties.get(name), &node.additional_properties) {
                        (Some(property), _) => property.embedded(entry, false, &path.child(name), errors),
                        (None, Some(AdditionalProperties::Schema(schema))) => {
                            schema.embedded(entry, false, &path.key(name), errors);
                        }
                        _ => {}
                    }
                }
            }
            Value::Array(list) => {
                if let Some(items) = &node.items {
                    for (i, item) in list.iter().enumerate() {
                        items.embedded(item, false, &path.index(i), errors);
                    }
                }
            }
            _ => {}
        }
    }
}

/// The key fields of an item, with defaults for those it omits.
fn keys_of(item: &Map<String, Value>, list: &Schema) -> Value {
    let mut keys = Map::new();
    for key in &list.list_map_keys {
        let default = || {
            list.items.as_ref().and_then(|items| items.target().properties.get(key)).and_then(|key| key.default.clone())
        };
        if let Some(value) = item.get(key).cloned().or_else(default) {
            keys.insert(key.clone(), value);
        }
    }
    Value::Object(keys)
}

/// Reports each repeated identity once, at the second item that has it.
fn distinct(list: &[Value], path: &Path<'_>, errors: &mut Vec<Error>, identity: impl Fn(&Value) -> Option<Value>) {
    if list.len() < 2 {
        return;
    }
    let mut seen: HashSet<String> = HashSet::with_capacity(list.len());
    let mut reported: HashSet<String> = HashSet::new();
    for (i, item) in list.iter().enumerate() {
        let Some(identity) = identity(item) else { continue };
        let text = canonical(&identity);
        if !seen.insert(text.clone()) && reported.insert(text) {
            errors.push(Error::duplicate(&path.index(i), identity));
        }
    }
}

/// A canonical text of a value: an integer and the float of the same value are equal.
fn canonical(value: &Value) -> String {
    match value {
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 9.0e15 => {
                (float as i64).to_string()
            }
            _ => number.to_string(),
        },
        Value::Array(list) => format!("[{}]", list.iter().map(canonical).collect::<Vec<_>>().join(",")),
        Value::Object(map) => {
            let mut entries: Vec<String> =
                map.iter().map(|(key, value)| format!("{}:{}", field::quote(key), canonical(value))).collect();
            entries.sort();
            format!("{{{}}}", entries.join(","))
        }
        other => other.to_string(),
    }
}

fn embedded_resource(map: &Map<String, Value>, path: &Path<'_>, errors: &mut Vec<Error>) {
    let text = |name: &str| map.get(name).and_then(Value::as_str).unwrap_or_default();
    for name in ["apiVersion", "kind"] {
        if text(name).is_empty() {
            errors.push(Error::required(&path.child(name), ""));
        }
    }
    let kind = text("kind");
    if !kind.is_empty() {
        let messages = names::is_dns1035_label(&kind.to_lowercase());
        if !messages.is_empty() {
            let detail = format!("may have mixed case, but should otherwise match: {}", messages.join(","));
            errors.push(Error::invalid(&path.child("kind"), kind, detail));
        }
    }
    let api_version = text("apiVersion");
    if !api_version.is_empty() && crate::meta::GroupVersion::parse(api_version).is_err() {
        let detail = format!("unexpected GroupVersion string: {api_version}");
        errors.push(Error::invalid(&path.child("apiVersion"), api_version, detail));
    }
    let Some(metadata) = map.get("metadata") else { return };
    let path = path.child("metadata");
    let named = |name: &str| metadata.get(name).and_then(Value::as_str).unwrap_or_default();
    // An embedded object may be a template without a name, so only present fields are checked.
    for (name, check) in [
        ("name", names::is_path_segment_name as fn(&str) -> Vec<String>),
        ("generateName", names::is_path_segment_prefix),
        ("namespace", names::is_dns1123_label),
    ] {
        if !named(name).is_empty() {
            errors.extend(
                check(named(name)).into_iter().map(|message| Error::invalid(&path.child(name), named(name), message)),
            );
        }
    }
    let part = |name: &str| metadata.get(name).unwrap_or(&Value::Null);
    errors.extend(validation::validate_labels(part("labels"), &path.child("labels")));
    errors.extend(validation::validate_annotations(part("annotations"), &path.child("annotations")));
    errors.extend(validation::validate_owner_references(part("ownerReferences"), &path.child("ownerReferences")));
    errors.extend(validation::validate_finalizers(part("finalizers"), &path.child("finalizers")));
}
