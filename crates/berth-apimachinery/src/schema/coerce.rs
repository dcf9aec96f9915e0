//! Strict decoding of `metadata` as ObjectMeta, wherever a schema declares a whole object.
//!
//! Custom resources and resources embedded in them carry free-form JSON in `metadata`. A field that
//! does not fit ObjectMeta is an error or, in stored data, dropped. Later code can then rely on
//! strings for names and on string maps for labels.

use serde_json::{Map, Value};

use super::{AdditionalProperties, Schema};
use crate::field::{self, Path};
use crate::trail::Trail;

/// Options of the decoding.
#[derive(Clone, Copy, Debug, Default)]
pub struct CoerceOptions {
    /// True if the root object, not only objects embedded in it, is a resource.
    pub is_resource_root: bool,
    /// True to drop a field that cannot be decoded instead of rejecting the object.
    pub drop_invalid_fields: bool,
}

/// Decodes `metadata` of the object and of all objects embedded in it, in place. Returns the paths
/// of fields that ObjectMeta does not have; these are removed from the value.
pub fn coerce_metadata(
    schema: Option<&Schema>,
    value: &mut Value,
    options: CoerceOptions,
) -> Result<Vec<String>, field::Error> {
    let mut walk = Walk { options, unknown: Vec::new() };
    walk.value(schema, value, options.is_resource_root, &Path::root(), &Trail::start())?;
    walk.unknown.sort();
    Ok(walk.unknown)
}

struct Walk {
    options: CoerceOptions,
    unknown: Vec<String>,
}

impl Walk {
    fn value(
        &mut self,
        schema: Option<&Schema>,
        value: &mut Value,
        is_resource: bool,
        path: &Path<'_>,
        prefix: &Trail<'_>,
    ) -> Result<(), field::Error> {
        let node = schema.map(Schema::target);
        match value {
            Value::Object(map) => {
                if is_resource || node.is_some_and(|node| node.embedded_resource) {
                    self.resource(map, path, prefix)?;
                }
                let Some(node) = node else { return Ok(()) };
                for (name, entry) in map {
                    if is_resource && name == "metadata" {
                        continue;
                    }
                    let below = prefix.name(name);
                    match (node.properties.get(name), &node.additional_properties) {
                        (Some(property), _) => self.value(Some(property), entry, false, &path.child(name), &below)?,
                        (None, Some(AdditionalProperties::Schema(schema))) => {
                            self.value(Some(schema), entry, false, &path.key(name), &below)?;
                        }
                        _ => {}
                    }
                }
            }
            Value::Array(list) => {
                let Some(items) = node.and_then(|node| node.items.as_deref()) else { return Ok(()) };
                for (i, item) in list.iter_mut().enumerate() {
                    self.value(Some(items), item, false, &path.index(i), &prefix.index(i))?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn resource(
        &mut self,
        map: &mut Map<String, Value>,
        path: &Path<'_>,
        prefix: &Trail<'_>,
    ) -> Result<(), field::Error> {
        for name in ["apiVersion", "kind"] {
            match map.get(name) {
                None | Some(Value::String(_)) => {}
                Some(_) if self.options.drop_invalid_fields => {
                    map.remove(name);
                }
                Some(other) => return Err(field::Error::invalid(&path.child(name), other.clone(), "must be a string")),
            }
        }
        let Some(metadata) = map.get_mut("metadata") else { return Ok(()) };
        match metadata.take() {
            Value::Object(fields) => {
                let (decoded, unknown) =
                    decode_metadata(fields, self.options.drop_invalid_fields).map_err(|message| {
                        field::Error::invalid(&path.child("metadata"), Value::Object(Map::new()), message)
                    })?;
                *metadata = Value::Object(decoded);
                let prefix = prefix.name("metadata");
                self.unknown.extend(unknown.into_iter().map(|field| format!("{prefix}.{field}")));
            }
            other if self.options.drop_invalid_fields => *metadata = other,
            other => return Err(field::Error::invalid(&path.child("metadata"), other, "must be an object")),
        }
        Ok(())
    }
}

/// The content type of a field of ObjectMeta.
#[derive(Clone, Copy)]
enum Shape {
    Text,
    Integer,
    Boolean,
    Time,
    Raw,
    TextMap,
    TextList,
    StructList(&'static [(&'static str, Shape, bool)]),
}

/// Name, shape, and whether an empty value is written.
const META: &[(&str, Shape, bool)] = &[
    ("name", Shape::Text, false),
    ("generateName", Shape::Text, false),
    ("namespace", Shape::Text, false),
    ("selfLink", Shape::Text, false),
    ("uid", Shape::Text, false),
    ("resourceVersion", Shape::Text, false),
    ("generation", Shape::Integer, false),
    ("creationTimestamp", Shape::Time, false),
    ("deletionTimestamp", Shape::Time, false),
    ("deletionGracePeriodSeconds", Shape::Integer, true),
    ("labels", Shape::TextMap, false),
    ("annotations", Shape::TextMap, false),
    ("finalizers", Shape::TextList, false),
    (
        "ownerReferences",
        Shape::StructList(&[
            ("apiVersion", Shape::Text, true),
            ("kind", Shape::Text, true),
            ("name", Shape::Text, true),
            ("uid", Shape::Text, true),
            ("controller", Shape::Boolean, true),
            ("blockOwnerDeletion", Shape::Boolean, true),
        ]),
        false,
    ),
    (
        "managedFields",
        Shape::StructList(&[
            ("manager", Shape::Text, false),
            ("operation", Shape::Text, false),
            ("apiVersion", Shape::Text, false),
            ("time", Shape::Time, false),
            ("fieldsType", Shape::Text, false),
            ("fieldsV1", Shape::Raw, false),
            ("subresource", Shape::Text, false),
        ]),
        false,
    ),
];

/// Decodes metadata. Returns the decoded metadata and the paths (relative to metadata) of unknown
/// fields.
///
/// With `drop_malformed`, a field that cannot be decoded is dropped as a whole; otherwise it is an
/// error.
pub fn decode_metadata(
    fields: Map<String, Value>,
    drop_malformed: bool,
) -> Result<(Map<String, Value>, Vec<String>), String> {
    let mut decoded = Map::new();
    let mut unknown = Vec::new();
    for (name, value) in fields {
        let Some((_, shape, keep_empty)) = META.iter().find(|(known, _, _)| *known == name) else {
            unknown.push(name);
            continue;
        };
        let mut unknown_below = Vec::new();
        let start = Trail::start();
        match decode(value, *shape, *keep_empty, &start.name(&name), &mut unknown_below) {
            Ok(Some(value)) => {
                decoded.insert(name, value);
                unknown.extend(unknown_below);
            }
            Ok(None) => unknown.extend(unknown_below),
            Err(_) if drop_malformed => {}
            Err((at, found, wanted)) => {
                return Err(format!(
                    "json: cannot unmarshal {found} into Go struct field ObjectMeta.{at} of type {wanted}"
                ));
            }
        }
    }
    Ok((decoded, unknown))
}

type Mismatch = (String, &'static str, &'static str);

fn decode(
    value: Value,
    shape: Shape,
    keep_empty: bool,
    at: &Trail<'_>,
    unknown: &mut Vec<String>,
) -> Result<Option<Value>, Mismatch> {
    let mismatch = |value: &Value, wanted: &'static str| (at.to_string(), json_type(value), wanted);
    Ok(match (shape, value) {
        (_, Value::Null) => None,
        (Shape::Raw, value) => Some(value),
        (Shape::Text, value @ Value::String(_)) => {
            Some(value).filter(|value| keep_empty || value.as_str().is_some_and(|text| !text.is_empty()))
        }
        (Shape::Text, value) => return Err(mismatch(&value, "string")),
        (Shape::Integer, value) => match value.as_i64() {
            Some(0) if !keep_empty => None,
            Some(_) => Some(value),
            None => return Err(mismatch(&value, "int64")),
        },
        (Shape::Boolean, value @ Value::Bool(_)) => Some(value),
        (Shape::Boolean, value) => return Err(mismatch(&value, "bool")),
        (Shape::Time, value) => match value.as_str() {
            Some("") => None,
            Some(text) if text.parse::<jiff::Timestamp>().is_ok() => Some(value),
            _ => return Err(mismatch(&value, "time.Time")),
        },
        (Shape::TextMap, Value::Object(mut map)) => {
            for entry in map.values_mut() {
                match entry {
                    Value::String(_) => {}
                    Value::Null => *entry = Value::from(""),
                    other => return Err(mismatch(other, "string")),
                }
            }
            Some(Value::Object(map)).filter(|map| map.as_object().is_some_and(|map| !map.is_empty()))
        }
        (Shape::TextMap, value) => return Err(mismatch(&value, "map[string]string")),
        (Shape::TextList, Value::Array(mut list)) => {
            for entry in &mut list {
                match entry {
                    Value::String(_) => {}
                    Value::Null => *entry = Value::from(""),
                    other => return Err(mismatch(other, "string")),
                }
            }
            (!list.is_empty()).then_some(Value::Array(list))
        }
        (Shape::TextList, value) => return Err(mismatch(&value, "[]string")),
        (Shape::StructList(fields), Value::Array(list)) => {
            let mut decoded = Vec::with_capacity(list.len());
            for (i, item) in list.into_iter().enumerate() {
                decoded.push(decode_struct(item, fields, &at.index(i), unknown)?);
            }
            (!decoded.is_empty()).then_some(Value::Array(decoded))
        }
        (Shape::StructList(_), value) => return Err(mismatch(&value, "[]v1.OwnerReference")),
    })
}

fn decode_struct(
    item: Value,
    fields: &[(&'static str, Shape, bool)],
    at: &Trail<'_>,
    unknown: &mut Vec<String>,
) -> Result<Value, Mismatch> {
    let map = match item {
        Value::Object(map) => map,
        Value::Null => Map::new(),
        other => return Err((at.to_string(), json_type(&other), "v1.OwnerReference")),
    };
    let mut decoded = Map::new();
    for (name, value) in map {
        match fields.iter().find(|(known, _, _)| *known == name) {
            Some((_, shape, keep_empty)) => {
                if let Some(value) = decode(value, *shape, *keep_empty, &at.name(&name), unknown)? {
                    decoded.insert(name, value);
                }
            }
            None => unknown.push(at.name(&name).to_string()),
        }
    }
    for (name, shape, keep_empty) in fields {
        if *keep_empty && matches!(shape, Shape::Text) && !decoded.contains_key(*name) {
            decoded.insert((*name).to_owned(), Value::from(""));
        }
    }
    Ok(Value::Object(decoded))
}

/// The type of a JSON value as Go's decoder names it.
pub(crate) fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
