//! Sets defaults, and drops nulls that mean "absent".
//!
//! Source: the Kubernetes documentation of CustomResourceDefinitions, "Defaulting and Nullable": a
//! default replaces a missing value, and a null unless the field is nullable; a null without a
//! default in a field that is not nullable is dropped.

use serde_json::Value;

use super::{AdditionalProperties, Schema, is_unwanted_null};

impl Schema {
    /// Sets defaults at every depth. Existing values, even empty ones, stay.
    pub fn apply_defaults(&self, value: &mut Value) {
        let node = self.target();
        if !node.has_defaults && self.reference.is_none() {
            return;
        }
        match value {
            Value::Object(map) => {
                for (name, property) in &node.properties {
                    let Some(default) = &property.default else { continue };
                    match map.get_mut(name) {
                        Some(present) if is_unwanted_null(present, property) => *present = default.clone(),
                        Some(_) => {}
                        None => {
                            map.insert(name.clone(), default.clone());
                        }
                    }
                }
                for (name, entry) in map {
                    match (node.properties.get(name), &node.additional_properties) {
                        (Some(property), _) => property.apply_defaults(entry),
                        (None, Some(AdditionalProperties::Schema(schema))) => schema.default_entry(entry),
                        _ => {}
                    }
                }
            }
            Value::Array(list) => {
                if let Some(items) = &node.items {
                    for item in list {
                        items.default_entry(item);
                    }
                }
            }
            _ => {}
        }
    }

    /// Defaults a list item or map entry: a null is replaced by the default, then the walk
    /// continues into the value.
    fn default_entry(&self, value: &mut Value) {
        if let Some(default) = &self.default
            && is_unwanted_null(value, self)
        {
            *value = default.clone();
        }
        self.apply_defaults(value);
    }

    /// Drops null fields that are not nullable and have no default. Runs before
    /// [`Schema::apply_defaults`].
    pub fn drop_nulls(&self, value: &mut Value) {
        let node = self.target();
        match value {
            Value::Object(map) => {
                map.retain(|name, entry| {
                    let schema = match (node.properties.get(name), &node.additional_properties) {
                        (Some(property), _) => property,
                        (None, Some(AdditionalProperties::Schema(schema))) => schema,
                        _ => return true,
                    };
                    if is_unwanted_null(entry, schema) && schema.default.is_none() {
                        return false;
                    }
                    schema.drop_nulls(entry);
                    true
                });
            }
            Value::Array(list) => {
                if let Some(items) = &node.items {
                    list.iter_mut().for_each(|item| items.drop_nulls(item));
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn defaults_replace_missing_values_and_keep_empty_ones() {
        let schema = Schema::parse_crd(&json!({"type": "object", "properties": {
            "a": {"type": "string", "default": "x"},
            "list": {"type": "array", "items": {"type": "object", "properties": {"b": {"type": "integer", "default": 1}}}}
        }}))
        .expect("parses");
        let mut value = json!({"list": [{}, {"b": 2}]});
        schema.apply_defaults(&mut value);
        assert_eq!(value, json!({"a": "x", "list": [{"b": 1}, {"b": 2}]}));
        let mut value = json!({"a": ""});
        schema.apply_defaults(&mut value);
        assert_eq!(value, json!({"a": ""}));
    }

    #[test]
    fn a_null_without_default_is_dropped() {
        let schema = Schema::parse_crd(&json!({"type": "object", "properties": {
            "a": {"type": "string"}, "b": {"type": "string", "nullable": true}, "c": {"type": "string", "default": "x"}
        }}))
        .expect("parses");
        let mut value = json!({"a": null, "b": null, "c": null});
        schema.drop_nulls(&mut value);
        schema.apply_defaults(&mut value);
        assert_eq!(value, json!({"b": null, "c": "x"}));
    }
}
