//! Answers as bytes: objects, lists, Tables, metadata-only forms, Status.

use std::sync::Arc;

use berth_apimachinery::status::Status;
use berth_apimachinery::{managed_text, meta, packed, table};
use berth_store::{Committed, Record};
use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

use super::call::Call;
use super::negotiate::{Encoding, Form};
use super::view::View;
use crate::{Body, printers};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const YAML: HeaderValue = HeaderValue::from_static("application/yaml");

/// A Status as an answer.
pub(crate) fn status_response(status: &Status) -> Response<Body> {
    let mut response = Response::new(Body::from(to_bytes(&status.to_value())));
    *response.status_mut() = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    if let Some(seconds) = status.details.as_ref().map(|details| details.retry_after_seconds).filter(|s| *s > 0) {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// The text of a value; of an object with a packed list, what that says.
pub(crate) fn to_bytes(value: &Value) -> Bytes {
    let mut text = Vec::new();
    packed::write(value, &mut text);
    Bytes::from(text)
}

/// An answer of JSON bytes that are complete.
pub(crate) fn json_response(code: StatusCode, bytes: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(bytes.into());
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}

/// A stored object's text, without `managedFields` for who does without.
pub(crate) fn text_of(record: &Record, lean: bool) -> [Bytes; 2] {
    if lean { record.without_managed_fields() } else { [record.bytes(), Bytes::new()] }
}

/// The same in one piece.
pub(crate) fn bytes_of(record: &Record, lean: bool) -> Bytes {
    if lean { Bytes::from(text_of(record, lean).concat()) } else { record.bytes() }
}

/// An object as a write left it, with its record when that is what the client sees.
pub(crate) struct Stored {
    object: Arc<Value>,
    record: Option<Arc<Record>>,
}

impl Stored {
    /// What a commit stored, seen through `view`.
    pub(crate) fn new(view: &View, committed: Committed) -> Stored {
        match view.convert_if_needed(&committed.value) {
            Some(converted) => Stored { object: Arc::new(converted), record: None },
            None => Stored { object: committed.value, record: Some(committed.record) },
        }
    }
}

impl From<Arc<Value>> for Stored {
    fn from(object: Arc<Value>) -> Stored {
        Stored { object, record: None }
    }
}

impl std::ops::Deref for Stored {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.object
    }
}

impl Call {
    /// The object of a write as the answer.
    pub(crate) fn stored_response(&self, code: StatusCode, stored: &Stored) -> Result<Response<Body>, Status> {
        let plain = self.negotiated.form == Form::Object
            && self.negotiated.encoding == Encoding::Json
            && self.options.pretty != Some(true);
        match &stored.record {
            Some(record) if plain => Ok(json_response(code, bytes_of(record, self.negotiated.lean))),
            _ => self.object_response(code, stored),
        }
    }

    /// One object as the answer, in the form that was asked for.
    pub(crate) fn object_response(&self, code: StatusCode, object: &Value) -> Result<Response<Body>, Status> {
        match &self.negotiated.form {
            Form::Object => self.value_response(code, object),
            _ => self.value_response(code, &self.shape_one(object, true)),
        }
    }

    /// A value as the answer, as JSON or YAML.
    pub(crate) fn value_response(&self, code: StatusCode, value: &Value) -> Result<Response<Body>, Status> {
        match self.negotiated.encoding {
            Encoding::Json if self.options.pretty == Some(true) => {
                let value = packed::expanded(value);
                let mut text =
                    serde_json::to_vec_pretty(&value).map_err(|error| Status::internal(error.to_string()))?;
                text.push(b'\n');
                Ok(json_response(code, text))
            }
            Encoding::Json => Ok(json_response(code, to_bytes(value))),
            Encoding::Yaml => {
                let text = serde_saphyr::to_string(&packed::expanded(value))
                    .map_err(|error| Status::internal(error.to_string()))?;
                let mut response = json_response(code, text);
                response.headers_mut().insert(header::CONTENT_TYPE, YAML);
                Ok(response)
            }
        }
    }

    /// One object in the negotiated form; `with_columns` is false for all but the first Table of a watch.
    pub(crate) fn shape_one(&self, object: &Value, with_columns: bool) -> Value {
        match &self.negotiated.form {
            Form::Object => packed::expanded(object).into_owned(),
            Form::Metadata(version) => partial(object, version),
            Form::Table(version) => {
                let mut shaped = self.table(std::slice::from_ref(object), version, with_columns);
                shaped["metadata"] = json!({"resourceVersion": meta::resource_version(object)});
                shaped
            }
        }
    }

    /// Objects as a Table.
    pub(crate) fn table<T: std::borrow::Borrow<Value>>(
        &self,
        objects: &[T],
        version: &str,
        with_columns: bool,
    ) -> Value {
        let columns = printers::columns(&self.row, self.version());
        let now = self.server.now();
        let rows: Vec<Value> = objects
            .iter()
            .map(|object| {
                let object = object.borrow();
                let cells = printers::cells(&self.row, self.version(), object, now);
                let mut row = table::row(cells, object, self.options.include_object);
                if let Some(object) = row.get_mut("object") {
                    packed::expand(object);
                }
                row
            })
            .collect();
        let mut table = table::table(&columns, rows, json!({}), with_columns);
        table["apiVersion"] = Value::String(format!("meta.k8s.io/{version}"));
        table
    }
}

/// Writes the text of the metadata of a stored object, as its own object: cut out, not parsed, as whoever watches metadata
/// watches all of it.
pub(crate) fn put_partial(out: &mut BytesMut, record: &Record, version: &str, lean: bool) {
    let text = bytes_of(record, lean);
    let Some((metadata, _)) = managed_text::metadata(&text) else {
        out.put_slice(&to_bytes(&partial(&record.value(), version)));
        return;
    };
    out.put_slice(b"{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/");
    out.put_slice(version.as_bytes());
    out.put_slice(b"\",\"metadata\":");
    out.put_slice(&text[metadata]);
    out.put_u8(b'}');
}

/// The metadata of an object, as its own object.
pub(crate) fn partial(object: &Value, version: &str) -> Value {
    let mut partial = json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": format!("meta.k8s.io/{version}"),
        "metadata": object.get("metadata").cloned().unwrap_or_else(|| json!({})),
    });
    packed::expand(&mut partial);
    partial
}
