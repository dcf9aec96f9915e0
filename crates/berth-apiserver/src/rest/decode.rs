//! Decodes a request body to an object of the expected kind: JSON or YAML, unknown and duplicate
//! fields, nulls, defaults.
//!
//! The order for custom resources follows upstream: metadata, prune, drop nulls, default. Built-in
//! objects are pruned by the published schema (as decoding into their Go types would) and defaulted
//! by their strategy.

use std::collections::HashMap;

use berth_apimachinery::meta::GroupVersionKind;
use berth_apimachinery::packed;
use berth_apimachinery::schema::{CoerceOptions, Root, coerce_metadata};
use berth_apimachinery::status::Status;
use berth_apimachinery::{decode, field, meta};
use serde_json::Value;

use super::call::Call;
use super::negotiate;
use super::options::FieldValidation;
use crate::registry::builtin_schema;

/// A decoded object, with the errors that field validation may ignore.
pub(crate) struct Decoded {
    pub(crate) object: Value,
    pub(crate) complaints: Complaints,
}

/// Unknown and duplicate fields: strict field validation rejects them, lenient validation warns
/// about them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Complaints {
    /// Duplicate keys of a YAML document, by line.
    lines: Vec<String>,
    /// `duplicate field "…"`, `unknown field "…"`.
    fields: Vec<String>,
}

impl Complaints {
    /// Duplicate keys of a document; `what` is a prefix that names the document if it is not the
    /// object.
    pub(crate) fn of_repeated(duplicates: Vec<String>, lines: Vec<String>, what: &str) -> Complaints {
        let fields = duplicates.into_iter().map(|field| format!("{what}{}", duplicate_field(&field))).collect();
        Complaints { lines, fields }
    }

    /// Unknown fields.
    pub(crate) fn of_unknown(unknown: Vec<String>, what: &str) -> Complaints {
        let fields = unknown.into_iter().map(|field| format!("{what}{}", unknown_field(&field))).collect();
        Complaints { lines: Vec::new(), fields }
    }

    pub(crate) fn extend(&mut self, others: Complaints) {
        self.lines.extend(others.lines);
        self.fields.extend(others.fields);
    }

    /// Sorts the fields of a JSON body in the order of the body, as Go's decoder of typed objects
    /// reports them.
    fn sort_as_in(&mut self, body: &[u8]) {
        if self.fields.len() < 2 {
            return;
        }
        let mut wanted: HashMap<String, usize> =
            self.fields.iter().map(|complaint| (complaint.clone(), usize::MAX)).collect();
        let mut turn = 0;
        decode::json_fields(body, &mut |path, is_repeated| {
            let complaint = if is_repeated { duplicate_field(path) } else { unknown_field(path) };
            if let Some(found) = wanted.get_mut(&complaint)
                && *found == usize::MAX
            {
                (*found, turn) = (turn, turn + 1);
            }
        });
        self.fields.sort_by_key(|complaint| wanted.get(complaint).copied());
    }

    fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.fields.is_empty()
    }

    /// All of them as one message: first the message of the YAML decoder, which has all its lines.
    fn text(&self) -> String {
        let of_yaml = yaml_errors(&self.lines);
        let all: Vec<&str> = of_yaml.as_deref().into_iter().chain(self.fields.iter().map(String::as_str)).collect();
        all.join(", ")
    }
}

fn duplicate_field(path: &str) -> String {
    format!("duplicate field \"{path}\"")
}

fn unknown_field(path: &str) -> String {
    format!("unknown field \"{path}\"")
}

fn yaml_errors(lines: &[String]) -> Option<String> {
    (!lines.is_empty()).then(|| format!("yaml: unmarshal errors:\n  {}", lines.join("\n  ")))
}

impl Call {
    /// The body as an object of the kind of this request (or of its subresource), with its fields
    /// unchanged.
    pub(crate) fn decode_body(&self) -> Result<Decoded, Status> {
        let expected = self.body_kind();
        self.decode_body_as(&expected.api_version(), &expected.kind)
    }

    /// The expected kind of a body: that of the subresource, or of the row.
    fn body_kind(&self) -> GroupVersionKind {
        match self.version().subresource(&self.info.subresource) {
            Some(subresource) => GroupVersionKind::new(&subresource.group, &subresource.version, &subresource.kind),
            None => GroupVersionKind::new(&self.row.group, &self.version().name, &self.row.kind),
        }
    }

    /// The body as an object of a built-in kind that is not stored, such as a scale, decoded as its
    /// type.
    pub(crate) fn typed_body(&mut self) -> Result<Value, Status> {
        let decoded = self.decode_body()?;
        self.read_as_body(decoded, false)
    }

    /// Decodes an object as the type of [bodies](Call::typed_body), and reports unknown fields as
    /// `fieldValidation` requests. `patched` selects the form of error messages.
    pub(crate) fn read_as_body(&mut self, decoded: Decoded, patched: bool) -> Result<Value, Status> {
        let Decoded { mut object, mut complaints } = decoded;
        let expected = self.body_kind();
        self.check_kind(&mut object, &expected.api_version(), &expected.kind)?;
        if let Some(schema) = builtin_schema(&expected.group, &expected.version, &expected.kind) {
            let unknown =
                schema.read_typed(&expected.kind, &mut object).map_err(|error| self.unreadable(&error, patched))?;
            complaints.extend(Complaints::of_unknown(unknown, ""));
            if !patched {
                complaints.sort_as_in(&self.body);
            }
        }
        self.complain(complaints, patched)?;
        Ok(object)
    }

    /// The body as an object of the given kind.
    pub(crate) fn decode_body_as(&self, api_version: &str, kind: &str) -> Result<Decoded, Status> {
        negotiate::content_type(&self.content_type)?;
        if self.body.is_empty() {
            return Err(Status::bad_request(format!(
                "the body of the request is empty: a {kind} in {api_version} is expected"
            )));
        }
        let decode::Decoded { value: mut object, duplicates, lines } =
            decode::json_or_yaml(&self.body).map_err(|error| {
                Status::bad_request(format!(
                    "error decoding {kind} in version {:?}: {error}",
                    api_version.rsplit('/').next().unwrap_or_default()
                ))
            })?;
        self.check_kind(&mut object, api_version, kind)?;
        Ok(Decoded { object, complaints: Complaints::of_repeated(duplicates, lines, "") })
    }

    /// Checks that apiVersion and kind are those of the path; adds them if they are absent.
    pub(crate) fn check_kind(&self, object: &mut Value, api_version: &str, kind: &str) -> Result<(), Status> {
        let Some(map) = object.as_object_mut() else {
            return Err(Status::bad_request(format!("an object of kind {kind} is expected")));
        };
        for field in ["apiVersion", "kind"] {
            if map.get(field).is_some_and(|value| !value.is_string()) {
                return Err(Status::bad_request(format!("{field} must be a string")));
            }
        }
        if map.get("metadata").is_some_and(|value| !value.is_object() && !value.is_null()) {
            return Err(Status::bad_request("metadata must be an object"));
        }
        let text = |map: &serde_json::Map<String, Value>, field: &str| {
            map.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let (own_version, own_kind) = (text(map, "apiVersion"), text(map, "kind"));
        if own_version.is_empty() {
            map.insert("apiVersion".to_owned(), api_version.into());
        } else if own_version != api_version {
            return Err(Status::bad_request(format!(
                "the API version in the data ({own_version}) does not match the expected API version ({api_version})"
            )));
        }
        if own_kind.is_empty() {
            map.insert("kind".to_owned(), kind.into());
        } else if own_kind != kind {
            return Err(Status::bad_request(format!(
                "the kind in the data ({own_kind}) does not match the expected kind ({kind})"
            )));
        }
        Ok(())
    }

    /// Adapts a decoded object to its schema: coerces metadata, removes unknown fields (reporting
    /// them as `fieldValidation` requests), removes nulls and adds defaults. `patched` selects the
    /// form of error messages.
    pub(crate) fn complete(&mut self, decoded: Decoded, patched: bool) -> Result<Value, Status> {
        let mut object = self.complete_shape(decoded, patched)?;
        self.strategy().default(&mut object);
        Ok(object)
    }

    /// [`Call::complete`] without the defaults of the kind's strategy.
    fn complete_shape(&mut self, decoded: Decoded, patched: bool) -> Result<Value, Status> {
        let Decoded { mut object, mut complaints } = decoded;
        packed::disarm(&mut object);
        let version = self.version().name.clone();
        if let Some(schema) = self.row.schema(&version) {
            if self.custom.is_none() {
                // Built-in kinds have no defaults in their schemas.
                let unknown =
                    schema.read_typed(&self.row.kind, &mut object).map_err(|error| self.unreadable(&error, patched))?;
                complaints.extend(Complaints::of_unknown(unknown, ""));
                if !patched {
                    complaints.sort_as_in(&self.body);
                }
            } else {
                let options = CoerceOptions { is_resource_root: true, drop_invalid_fields: false };
                let unknown = coerce_metadata(Some(&schema), &mut object, options)
                    .map_err(|error| self.undecodable(&error.to_string()))?;
                // Fields of the object's own metadata come first, those of embedded objects last.
                let (own, embedded) = unknown.into_iter().partition(|field| field.starts_with("metadata."));
                complaints.extend(Complaints::of_unknown(own, ""));
                complaints.extend(Complaints::of_unknown(schema.prune(&mut object, Root::Resource), ""));
                complaints.extend(Complaints::of_unknown(embedded, ""));
                schema.drop_nulls(&mut object);
            }
            schema.apply_defaults(&mut object);
        }
        drop_empty_metadata(&mut object);
        self.complain(complaints, patched)?;
        Ok(object)
    }

    /// [`Call::complete`] for the result of patching `old`: unchanged parts are not checked again.
    pub(crate) fn complete_changed(&mut self, mut object: Value, old: &Value) -> Result<Value, Status> {
        let kept = take_unchanged(&mut object, old);
        let map = meta::map_mut(&mut object);
        for field in ["apiVersion", "kind"] {
            if let Some((field, value)) = kept.iter().find(|(kept, _)| kept == field) {
                map.insert(field.clone(), value.clone());
            }
        }
        let mut object = self.complete_shape(Decoded { object, complaints: self.of_patch.clone() }, true)?;
        meta::map_mut(&mut object).extend(kept);
        self.strategy().default(&mut object);
        Ok(object)
    }

    /// Unknown and duplicate fields: an error, warnings, or nothing.
    pub(crate) fn complain(&mut self, complaints: Complaints, patched: bool) -> Result<(), Status> {
        match self.options.field_validation {
            _ if complaints.is_empty() => Ok(()),
            FieldValidation::Ignore => Ok(()),
            FieldValidation::Warn => {
                self.warn(complaints);
                Ok(())
            }
            FieldValidation::Strict => {
                Err(self.unreadable(&format!("strict decoding error: {}", complaints.text()), patched))
            }
        }
    }

    /// Reports the duplicate keys of an applied configuration. It is decoded as YAML, also if it is
    /// JSON.
    pub(crate) fn complain_of_applied(&mut self, lines: Vec<String>) -> Result<(), Status> {
        let Some(text) = yaml_errors(&lines) else { return Ok(()) };
        match self.options.field_validation {
            FieldValidation::Ignore => {}
            FieldValidation::Warn => self.warn(Complaints { lines, fields: Vec::new() }),
            FieldValidation::Strict => {
                let text = format!("error strict decoding YAML: error converting YAML to JSON: {text}");
                return Err(Status::bad_request(text));
            }
        }
        Ok(())
    }

    /// Adds each warning once, also if a patch is retried after a conflict.
    fn warn(&mut self, complaints: Complaints) {
        for complaint in complaints.lines.into_iter().chain(complaints.fields) {
            if !self.warnings.contains(&complaint) {
                self.warnings.push(complaint);
            }
        }
    }

    /// The response to a built-in object that does not match its type.
    fn unreadable(&self, why: &str, patched: bool) -> Status {
        if !patched {
            return self.undecodable(why);
        }
        // The body could be decoded, but the patch does not fit. Upstream then names neither kind
        // nor object.
        let error = field::Error::invalid_without_value(&field::Path::new("patch"), why);
        Status::invalid(&meta::GroupKind::new("", ""), "", &[error])
    }

    fn undecodable(&self, why: &str) -> Status {
        let GroupVersionKind { kind, version, .. } = self.body_kind();
        Status::bad_request(format!("{kind} in version \"{version}\" cannot be handled as a {kind}: {why}"))
    }
}

/// Removes and returns the fields of `object` that equal those of `old`. They are valid already,
/// even if they would be rejected today. Metadata is not removed.
pub(crate) fn take_unchanged(object: &mut Value, old: &Value) -> Vec<(String, Value)> {
    let same = |(field, value): &(&String, &Value)| *field != "metadata" && old.get(*field) == Some(*value);
    let map = meta::map_mut(object);
    let unchanged: Vec<String> = map.iter().filter(same).map(|(field, _)| field.clone()).collect();
    unchanged.into_iter().filter_map(|field| map.remove_entry(&field)).collect()
}

/// Nulls and empty maps and lists in metadata are equivalent to absent fields. Clients often send
/// `creationTimestamp: null`.
pub(crate) fn drop_empty_metadata(object: &mut Value) {
    meta::metadata_mut(object).retain(|_, value| match value {
        Value::Null => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        _ => true,
    });
}
