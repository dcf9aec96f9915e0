//! Decodes a built-in object as Kubernetes' Go types decode it.
//!
//! kube-apiserver decodes built-in kinds into Go structs. This walk has the same effect on a
//! document. A value of the wrong type is an error. An unknown field is dropped and reported. Nulls
//! are dropped, and so are values that Go omits: zeros and empty lists of fields that are not
//! pointers. Quantities and times are written in canonical form. Messages of type mismatches are
//! those of Go's decoder, because users search for them.
//!
//! Source: the documentation of Go's encoding/json, and of `resource.Quantity`, `metav1.Time` and
//! `metav1.MicroTime`.

use serde_json::{Number, Value, json};

use super::{AdditionalProperties, Otherwise, Reads, Schema, Type, formats, json_type};
use crate::quantity::Quantity;
use crate::trail::Trail;

/// Maximum number of unknown fields to report; a hostile object could have millions.
const REPORTED_MAX: usize = 1000;
const TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Time";
const MICRO_TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime";

impl Schema {
    /// Decodes an object of the built-in kind `kind`, whose definition this schema is, in place.
    /// Returns the paths of the unknown fields, which are removed.
    ///
    /// # Errors
    /// The first value that does not fit its field.
    pub fn read_typed(&self, kind: &str, value: &mut Value) -> Result<Vec<String>, String> {
        let mut reader = Reader { unknown: Vec::new() };
        let start = Trail::start();
        reader.value(self, value, Place { at: &start, fields: &start, holder: kind })?;
        Ok(reader.unknown)
    }
}

struct Reader {
    unknown: Vec<String>,
}

/// Position of the walk.
#[derive(Clone, Copy)]
struct Place<'a> {
    /// Path with list indices and map keys, for reports of unknown fields.
    at: &'a Trail<'a>,
    /// Path of field names alone, as Go's decoder reports mismatches.
    fields: &'a Trail<'a>,
    /// The struct that declares the field.
    holder: &'a str,
}

impl Place<'_> {
    fn mismatch(self, found: &str, wanted: &str) -> String {
        format!("json: cannot unmarshal {found} into Go struct field {}.{} of type {wanted}", self.holder, self.fields)
    }
}

impl Reader {
    fn value(&mut self, schema: &Schema, value: &mut Value, place: Place<'_>) -> Result<(), String> {
        let node = schema.target();
        if node.quantity {
            return quantity(value, place);
        }
        if node.int_or_string {
            return int_or_string(value);
        }
        match &node.reads {
            Some(Reads::NoFields) => return self.object(schema, node, value, place),
            Some(Reads::SchemaOr(schema, otherwise)) => return self.schema_or(schema, *otherwise, value, place),
            None => {}
        }
        let wrong = |value: &Value| Err(place.mismatch(json_type(value), &go_type(schema)));
        match node.schema_type {
            Some(Type::Array) => {
                let Value::Array(list) = value else { return wrong(value) };
                node.items.as_deref().map_or(Ok(()), |items| self.items(items, list, place))
            }
            Some(Type::String) => match value {
                Value::String(text) => self::text(schema, node, text, place),
                _ => wrong(value),
            },
            Some(Type::Boolean) => {
                if value.is_boolean() {
                    Ok(())
                } else {
                    wrong(value)
                }
            }
            Some(Type::Number) => {
                if value.is_number() {
                    Ok(())
                } else {
                    wrong(value)
                }
            }
            Some(Type::Integer) => match value {
                Value::Number(number) if fits(number, &node.format) => Ok(()),
                Value::Number(number) => Err(place.mismatch(&format!("number {number}"), &go_type(schema))),
                _ => wrong(value),
            },
            Some(Type::Object) if !node.preserve_unknown_fields => self.object(schema, node, value, place),
            Some(Type::Object) | None => Ok(()),
        }
    }

    /// Decodes a schema or one of its alternatives. Such types have their own decoder, which
    /// ignores unknown fields.
    fn schema_or(
        &mut self,
        schema: &Schema,
        otherwise: Otherwise,
        value: &mut Value,
        place: Place<'_>,
    ) -> Result<(), String> {
        let known = self.unknown.len();
        let read = match (otherwise, value) {
            (_, value @ Value::Object(_)) => self.value(schema, value, place),
            (Otherwise::Flag, Value::Bool(_)) => Ok(()),
            (Otherwise::Flag, _) => Err(format!("{}: boolean or JSON schema expected", place.at)),
            (Otherwise::Schemas, Value::Array(list)) => self.items(schema, list, place),
            (Otherwise::Schemas, _) => Err(format!("{}: JSON schema or list of JSON schemas expected", place.at)),
            (Otherwise::Texts, Value::Array(list)) => {
                let text = Schema { schema_type: Some(Type::String), ..Schema::default() };
                self.items(&text, list, place)
            }
            (Otherwise::Texts, _) => Err(format!("{}: JSON schema or list of strings expected", place.at)),
        };
        self.unknown.truncate(known);
        read
    }

    fn items(&mut self, items: &Schema, list: &mut [Value], place: Place<'_>) -> Result<(), String> {
        for (i, item) in list.iter_mut().enumerate() {
            if item.is_null() {
                *item = zero(items);
                continue;
            }
            self.value(items, item, Place { at: &place.at.index(i), ..place })?;
        }
        Ok(())
    }

    fn object(&mut self, schema: &Schema, node: &Schema, value: &mut Value, place: Place<'_>) -> Result<(), String> {
        let Value::Object(map) = value else { return Err(place.mismatch(json_type(value), &go_type(schema))) };
        let entries = match &node.additional_properties {
            Some(AdditionalProperties::Schema(entries)) => Some(entries),
            _ => None,
        };
        if let Some(entries) = entries.filter(|_| node.properties.is_empty()) {
            for (name, entry) in map {
                if entry.is_null() {
                    *entry = zero(entries);
                    continue;
                }
                self.value(entries, entry, Place { at: &place.at.name(name), ..place })?;
            }
            return Ok(());
        }
        let holder = schema.reference.as_ref().map_or(place.holder, |reference| last(&reference.name));
        let mut outcome = Ok(());
        map.retain(|name, entry| {
            if outcome.is_err() {
                return true;
            }
            let at = place.at.name(name);
            let Some(property) = node.properties.get(name) else {
                if self.unknown.len() < REPORTED_MAX {
                    self.unknown.push(at.to_string());
                }
                return false;
            };
            if entry.is_null() {
                return false;
            }
            outcome = self.value(property, entry, Place { at: &at, fields: &place.fields.name(name), holder });
            !(property.omit_empty && is_empty(property, entry))
        });
        outcome
    }
}

/// Decodes a quantity, given as a string or number, and writes it in canonical form.
fn quantity(value: &mut Value, place: Place<'_>) -> Result<(), String> {
    let read = match &*value {
        Value::String(text) => Quantity::parse(text),
        other => Quantity::from_json(other),
    };
    let canonical = read.map_err(|error| format!("{}: {error}", place.at))?.to_string();
    if value.as_str() != Some(&canonical) {
        *value = Value::String(canonical);
    }
    Ok(())
}

fn int_or_string(value: &Value) -> Result<(), String> {
    let wrong = |found: &str| Err(format!("json: cannot unmarshal {found} into Go value of type int32"));
    match value {
        Value::String(_) => Ok(()),
        Value::Number(number) if fits(number, "int32") => Ok(()),
        Value::Number(number) => wrong(&format!("number {number}")),
        other => wrong(json_type(other)),
    }
}

/// Decodes a string with a format: a time, or bytes.
fn text(schema: &Schema, node: &Schema, text: &mut String, place: Place<'_>) -> Result<(), String> {
    match node.format.as_str() {
        "date-time" => {
            let is_micro = schema.reference.as_ref().is_some_and(|reference| reference.name == MICRO_TIME);
            let (layout, format) = match is_micro {
                true => ("2006-01-02T15:04:05.000000Z07:00", "%Y-%m-%dT%H:%M:%S.%6fZ"),
                false => ("2006-01-02T15:04:05Z07:00", "%Y-%m-%dT%H:%M:%SZ"),
            };
            // MicroTime requires six fraction digits; other times accept any number of them.
            let digits = text.get(20..).map_or(0, |rest| rest.bytes().take_while(u8::is_ascii_digit).count());
            let is_micros = text.as_bytes().get(19) == Some(&b'.') && digits == 6;
            let shaped = text.as_bytes().get(10) == Some(&b'T') && text.len() >= 20 && (is_micros || !is_micro);
            let time = text.parse::<jiff::Timestamp>().ok().filter(|_| shaped);
            let time =
                time.ok_or_else(|| format!("{}: parsing time {text:?} as {layout:?}: it does not match", place.at))?;
            let canonical = time.strftime(format).to_string();
            if *text != canonical {
                *text = canonical;
            }
        }
        "byte" if formats::check("byte", text) == Some(false) => {
            return Err(format!("{}: illegal base64 data", place.at));
        }
        _ => {}
    }
    Ok(())
}

fn fits(number: &Number, format: &str) -> bool {
    match format {
        "int32" => number.as_i64().is_some_and(|number| i32::try_from(number).is_ok()),
        _ => number.as_i64().is_some(),
    }
}

/// True if Go omits a field with this value, provided that it is `omitempty`.
fn is_empty(schema: &Schema, value: &Value) -> bool {
    match value {
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        // Go writes an empty struct and omits an empty map.
        Value::Object(map) => map.is_empty() && !schema.preserve_unknown_fields && schema.properties.is_empty(),
        Value::Null => true,
    }
}

/// The value that a null is replaced with where a value is required: the zero value of its type.
fn zero(schema: &Schema) -> Value {
    let node = schema.target();
    match node.schema_type {
        _ if node.quantity => json!("0"),
        _ if node.int_or_string => json!(0),
        Some(Type::Array) => json!([]),
        Some(Type::String) if matches!(node.format.as_str(), "date-time") => Value::Null,
        Some(Type::String) => json!(""),
        Some(Type::Boolean) => json!(false),
        Some(Type::Number | Type::Integer) => json!(0),
        Some(Type::Object) if !node.preserve_unknown_fields => json!({}),
        Some(Type::Object) | None => Value::Null,
    }
}

/// The Go type, as far as it follows from the published definitions: named string types are
/// `string` here.
fn go_type(schema: &Schema) -> String {
    let node = schema.target();
    match (node.schema_type, &schema.reference) {
        (Some(Type::String), Some(reference)) if matches!(reference.name.as_str(), TIME | MICRO_TIME) => {
            "string".to_owned()
        }
        (Some(Type::String), _) if node.format == "byte" => "[]uint8".to_owned(),
        (Some(Type::String), _) => "string".to_owned(),
        (Some(Type::Boolean), _) => "bool".to_owned(),
        (Some(Type::Number), _) => "float64".to_owned(),
        (Some(Type::Integer), _) if node.format == "int32" => "int32".to_owned(),
        (Some(Type::Integer), _) => "int64".to_owned(),
        (Some(Type::Array), _) => format!("[]{}", node.items.as_deref().map(go_type).unwrap_or_default()),
        (_, Some(reference)) => {
            let package = reference.name.rsplit('.').nth(1).unwrap_or_default();
            format!("{package}.{}", last(&reference.name))
        }
        (_, None) => match &node.additional_properties {
            Some(AdditionalProperties::Schema(entries)) => format!("map[string]{}", go_type(entries)),
            _ => "map[string]interface {}".to_owned(),
        },
    }
}

/// The name of the struct within a definition's name.
fn last(definition: &str) -> &str {
    definition.rsplit('.').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin;
    use crate::meta::GroupVersionKind;

    fn read(kind: &str, value: Value) -> Result<(Value, Vec<String>), String> {
        let schema = builtin::document().by_gvk(&GroupVersionKind::new("", "v1", kind)).expect("is published");
        let mut value = value;
        let unknown = schema.read_typed(kind, &mut value)?;
        Ok((value, unknown))
    }

    #[test]
    fn unknown_fields_are_reported_at_any_depth() {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "colour": 1,
            "ownerReferences": [{"name": "o", "size": 2}], "labels": {"any": "thing"}},
            "spec": {"containers": [{"name": "c", "shape": "round"}]}, "extra": {}});
        let (pod, mut unknown) = read("Pod", pod).expect("reads");
        unknown.sort();
        assert_eq!(
            unknown,
            ["extra", "metadata.colour", "metadata.ownerReferences[0].size", "spec.containers[0].shape"]
        );
        assert_eq!(
            pod,
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "ownerReferences": [{"name": "o"}],
                "labels": {"any": "thing"}}, "spec": {"containers": [{"name": "c"}]}})
        );
    }

    #[test]
    fn nulls_read_as_absent_or_zero() {
        let pod = json!({"metadata": {"name": "p", "creationTimestamp": null, "labels": {"a": null}, "finalizers": null},
            "status": null, "spec": {"hostNetwork": null, "nodeSelector": null, "containers": [
                {"name": "c", "args": ["x", null], "resources": {"limits": {"cpu": null}}}, null]}});
        let (pod, unknown) = read("Pod", pod).expect("reads");
        assert!(unknown.is_empty());
        assert_eq!(
            pod,
            json!({"metadata": {"name": "p", "labels": {"a": ""}}, "spec": {"containers": [
                {"name": "c", "args": ["x", ""], "resources": {"limits": {"cpu": "0"}}}, {}]}})
        );
    }

    #[test]
    fn mismatches_are_reported_in_the_words_of_gos_decoder() {
        let says = |value: Value| read("Pod", value).expect_err("does not fit");
        assert_eq!(
            says(json!({"metadata": {"labels": {"a": 1}}})),
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string"
        );
        assert_eq!(
            says(json!({"spec": {"containers": {}}})),
            "json: cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container"
        );
        assert_eq!(
            says(json!({"spec": {"priority": 3_000_000_000_u32}})),
            "json: cannot unmarshal number 3000000000 into Go struct field PodSpec.spec.priority of type int32"
        );
        assert_eq!(
            says(json!({"spec": "x"})),
            "json: cannot unmarshal string into Go struct field Pod.spec of type v1.PodSpec"
        );
        assert!(
            says(json!({"spec": {"overhead": {"cpu": "much"}}}))
                .starts_with("spec.overhead.cpu: quantities must match")
        );
        assert!(
            says(json!({"metadata": {"deletionTimestamp": "soon"}}))
                .starts_with("metadata.deletionTimestamp: parsing time")
        );
    }

    fn read_definition(value: Value) -> Result<(Value, Vec<String>), String> {
        let kind = GroupVersionKind::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
        let schema = builtin::document().by_gvk(&kind).expect("is published");
        let mut value = value;
        let unknown = schema.read_typed("CustomResourceDefinition", &mut value)?;
        Ok((value, unknown))
    }

    fn definition(schema: Value, subresources: Value) -> Value {
        let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
            "subresources": subresources});
        json!({"spec": {"group": "g", "scope": "Cluster", "names": {"plural": "p", "kind": "K"}, "versions": [version]}})
    }

    #[test]
    fn schemas_and_their_alternatives_are_kept() {
        let whole = json!({"type": "object",
            "properties": {"list": {"items": {"type": "string", "minLength": 0}}, "open": {"additionalItems": false}},
            "additionalProperties": {"items": [{"type": "object"}, {"enum": [null, 1, "x"], "default": {"any": 1}}]},
            "dependencies": {"a": ["b"], "c": {"not": {"additionalProperties": true}}}});
        let same = definition(whole, json!({"status": {}}));
        assert_eq!(read_definition(same.clone()).expect("reads"), (same, Vec::new()));
        let zeros = json!({"items": {"nullable": false, "title": "", "typ": "x"}, "dependencies": {"a": [null]}});
        let (read, unknown) = read_definition(definition(zeros, json!({"status": {"x": 1}}))).expect("reads");
        assert_eq!(read, definition(json!({"items": {}, "dependencies": {"a": [""]}}), json!({"status": {}})));
        assert_eq!(
            unknown,
            ["spec.versions[0].subresources.status.x"],
            "unknown fields below an alternative to a schema are not reported"
        );
    }

    #[test]
    fn a_value_that_is_neither_schema_nor_alternative_is_rejected() {
        let says = |schema: Value| read_definition(definition(schema, json!({}))).expect_err("does not fit");
        let at = "spec.versions[0].schema.openAPIV3Schema";
        assert_eq!(says(json!({"items": "x"})), format!("{at}.items: JSON schema or list of JSON schemas expected"));
        assert_eq!(
            says(json!({"properties": {"a": {"additionalProperties": "yes"}}})),
            format!("{at}.properties.a.additionalProperties: boolean or JSON schema expected")
        );
        assert_eq!(
            says(json!({"additionalItems": 1})),
            format!("{at}.additionalItems: boolean or JSON schema expected")
        );
        assert_eq!(
            says(json!({"dependencies": {"a": "b"}})),
            format!("{at}.dependencies.a: JSON schema or list of strings expected")
        );
        let below =
            "json: cannot unmarshal number into Go struct field JSONSchemaProps.spec.versions.schema.openAPIV3Schema";
        assert_eq!(says(json!({"dependencies": {"a": [1]}})), format!("{below}.dependencies of type string"));
        assert_eq!(says(json!({"items": {"type": 1}})), format!("{below}.items.type of type string"));
        assert_eq!(
            says(json!({"items": [{"not": {"items": [{"title": 1}]}}]})),
            format!("{below}.items.not.items.title of type string")
        );
        let status = read_definition(definition(json!({}), json!({"status": true}))).expect_err("does not fit");
        assert_eq!(
            status,
            "json: cannot unmarshal bool into Go struct field CustomResourceSubresources.spec.versions.subresources.status \
             of type v1.CustomResourceSubresourceStatus"
        );
    }

    #[test]
    fn zeros_are_kept_where_they_differ_from_absent_values() {
        let pod = json!({"metadata": {"name": "", "labels": {}, "ownerReferences": []}, "spec": {
            "hostNetwork": false, "priority": 0, "enableServiceLinks": false, "nodeSelector": {}, "tolerations": [],
            "securityContext": {}, "containers": [{"name": "", "image": "", "args": [], "env": [{"name": "A", "value": ""}],
                "ports": [{"containerPort": 0, "hostPort": 0}]}]}});
        let (pod, _) = read("Pod", pod).expect("reads");
        assert_eq!(
            pod,
            json!({"metadata": {}, "spec": {"priority": 0, "enableServiceLinks": false, "securityContext": {},
                "containers": [{"name": "", "env": [{"name": "A"}], "ports": [{"containerPort": 0}]}]}})
        );
    }

    #[test]
    fn quantities_and_times_are_written_in_canonical_form() {
        let quota = json!({"spec": {"hard": {"cpu": 1.5, "memory": "1024Mi", "pods": 4}}});
        let (quota, _) = read("ResourceQuota", quota).expect("reads");
        assert_eq!(quota["spec"]["hard"], json!({"cpu": "1500m", "memory": "1Gi", "pods": "4"}));
        let event =
            json!({"eventTime": "2024-01-01T02:00:00.000000+01:00", "firstTimestamp": "2024-01-01T00:00:00.5Z"});
        let (event, _) = read("Event", event).expect("reads");
        assert_eq!(event["eventTime"], "2024-01-01T01:00:00.000000Z");
        assert_eq!(event["firstTimestamp"], "2024-01-01T00:00:00Z");
    }
}
