//! Semantic equality of values that are written differently.
//!
//! Immutable fields are compared by meaning. A client that reads an object and writes it back may
//! change its JSON: Go's types encode an empty struct for an absent one, and omit an empty list, an
//! empty string or a false flag.

use serde_json::Value;

use crate::schema::{AdditionalProperties, Schema};
use crate::{builtin, zeros};

/// True if both values mean the same, where absent, null, an empty map and an empty list are equal.
/// For values of Kubernetes' own types, [`same_as`] is more precise.
pub fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(fields), Value::Object(others)) => {
            fields.iter().all(|(name, field)| same(field, others.get(name).unwrap_or(&Value::Null)))
                && others.iter().all(|(name, other)| fields.contains_key(name) || says_nothing(other))
        }
        (Value::Array(items), Value::Array(others)) => {
            items.len() == others.len() && items.iter().zip(others).all(|(item, other)| same(item, other))
        }
        (a, b) => a == b || (says_nothing(a) && says_nothing(b)),
    }
}

fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.values().all(says_nothing),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// True if both values mean the same to a type of Kubernetes, such as
/// `io.k8s.api.core.v1.PodTemplateSpec`. Beyond [`same`], the zero value of a field that is not a
/// pointer equals an absent field, and quantities are compared by amount.
pub fn same_as(definition: &str, a: &Value, b: &Value) -> bool {
    if a == b {
        return true;
    }
    match (read_as(definition, a), read_as(definition, b)) {
        (Some(a), Some(b)) => same(&a, &b),
        _ => same(a, b),
    }
}

/// The value as a type of Kubernetes decodes and encodes it. `None` if the type cannot hold the
/// value or would drop a part of it.
fn read_as(definition: &str, value: &Value) -> Option<Value> {
    let schema = builtin::document().definition(definition)?;
    let mut read = value.clone();
    let forgotten = schema.read_typed(definition, &mut read).ok()?;
    leave_out_zeros(&schema, definition, &mut read);
    forgotten.is_empty().then_some(read)
}

/// Removes the zero values that the type would write for absent fields.
fn leave_out_zeros(schema: &Schema, definition: &str, value: &mut Value) {
    let node = schema.target();
    match value {
        Value::Object(fields) if !node.properties.is_empty() => {
            let pointers = zeros::pointers(definition);
            fields.retain(|name, field| {
                if let Some(property) = node.properties.get(name) {
                    leave_out_zeros(property, definition_of(property), field);
                }
                !is_zero(field) || pointers.as_ref().is_none_or(|pointers| pointers.contains(name.as_str()))
            });
        }
        Value::Object(entries) => {
            if let Some(AdditionalProperties::Schema(of)) = &node.additional_properties {
                entries.values_mut().for_each(|entry| leave_out_zeros(of, definition_of(of), entry));
            }
        }
        Value::Array(items) => {
            if let Some(of) = node.items.as_deref() {
                items.iter_mut().for_each(|item| leave_out_zeros(of, definition_of(of), item));
            }
        }
        _ => {}
    }
}

fn definition_of(schema: &Schema) -> &str {
    schema.reference.as_ref().map_or("", |reference| reference.name.as_str())
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TEMPLATE: &str = "io.k8s.api.core.v1.PodTemplateSpec";

    #[test]
    fn absent_null_and_empty_values_are_equal() {
        let plain = json!({"a": 1, "list": [{"x": "y"}]});
        for more in [json!({"b": {}}), json!({"b": null}), json!({"b": []}), json!({"b": {"c": {"d": null}}})] {
            let mut wordy = plain.clone();
            wordy.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
            wordy["list"][0]["z"] = more;
            assert!(same(&plain, &wordy) && same(&wordy, &plain), "{wordy}");
        }
        for other in [json!({"a": 2, "list": [{"x": "y"}]}), json!({"a": 1, "list": []}), json!({"a": 1}), json!(null)]
        {
            assert!(!same(&plain, &other) && !same(&other, &plain), "{other}");
        }
        assert!(!same(&json!([{}]), &json!([])), "the number of items matters");
        assert!(!same(&json!({"a": false}), &json!({})), "a false flag may differ from an absent one");
    }

    #[test]
    fn zero_values_of_plain_fields_equal_absent_ones() {
        let template = |env: Value, grace: Value, cpu: &str| {
            json!({"metadata": {"creationTimestamp": null}, "spec": {"terminationGracePeriodSeconds": grace, "containers": [
                {"name": "c", "env": [env], "resources": {"requests": {"cpu": cpu}}}]}})
        };
        let one = template(json!({"name": "A", "value": ""}), Value::Null, "1000m");
        let mut other = template(json!({"name": "A"}), Value::Null, "1");
        other.as_object_mut().expect("a map").remove("metadata");
        assert!(same_as(TEMPLATE, &one, &other));
        assert!(!same(&one, &other));
        let at_once = template(json!({"name": "A"}), json!(0), "1");
        assert!(!same_as(TEMPLATE, &other, &at_once), "a pointer to zero is a zero");
        assert!(!same_as(TEMPLATE, &other, &template(json!({"name": "A"}), Value::Null, "2")));
    }

    #[test]
    fn an_always_written_zero_equals_an_absent_value() {
        const SET: &str = "io.k8s.api.apps.v1.StatefulSetSpec";
        let set = |more: Value| {
            let mut set = json!({"replicas": 1, "template": {"metadata": {"labels": {"a": ""}}}});
            set.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
            set
        };
        assert!(same_as(SET, &set(json!({})), &set(json!({"serviceName": "", "podManagementPolicy": ""}))));
        assert!(!same_as(SET, &set(json!({})), &set(json!({"serviceName": "s"}))));
        assert!(!same_as(SET, &set(json!({})), &set(json!({"replicas": 0}))));
        assert!(!same_as(SET, &set(json!({})), &set(json!({"template": {}}))), "an empty label is a label");
    }

    #[test]
    fn values_that_the_type_would_drop_are_compared_unchanged() {
        let (one, other) = (json!({"spec": {"later": 1}}), json!({"spec": {"later": 2}}));
        assert!(!same_as(TEMPLATE, &one, &other));
        assert!(
            !same_as(TEMPLATE, &json!({"spec": "x"}), &json!({"spec": "y"})),
            "values that the type cannot hold are compared unchanged"
        );
    }
}
