//! Encodes objects for responses: as stored, as Tables, or only their metadata.

use std::sync::Arc;

use berth_apimachinery::status::Status;
use berth_apimachinery::{managed_text, meta, packed, table};
use berth_store::{Committed, Record};
use bytes::{BufMut, Bytes, BytesMut};
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::call::Call;
use super::negotiate::{Encoding, Form};
use super::response::{json_response, response, to_bytes, to_encoding};
use super::view::View;
use crate::{Body, printers};

/// The JSON text of a stored object, in two parts; without `managedFields` for clients that opted
/// out (`lean`).
pub(crate) fn text_of(record: &Record, lean: bool) -> [Bytes; 2] {
    if lean { record.without_managed_fields() } else { [record.bytes(), Bytes::new()] }
}

/// As [`text_of`], in one piece.
pub(crate) fn bytes_of(record: &Record, lean: bool) -> Bytes {
    if lean { Bytes::from(text_of(record, lean).concat()) } else { record.bytes() }
}

/// The object after a write, with its record if the client sees the stored form.
pub(crate) struct Stored {
    object: Arc<Value>,
    record: Option<Arc<Record>>,
}

impl Stored {
    /// The committed object in the version of `view`.
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
    /// The response of a write: the stored object.
    pub(crate) fn stored_response(&self, code: StatusCode, stored: &Stored) -> Result<Response<Body>, Status> {
        let plain = self.negotiated.form == Form::Object
            && self.negotiated.encoding == Encoding::Json
            && self.options.pretty != Some(true);
        match &stored.record {
            Some(record) if plain => Ok(json_response(code, bytes_of(record, self.negotiated.lean))),
            _ => self.object_response(code, stored),
        }
    }

    /// A response with one object in the negotiated form.
    pub(crate) fn object_response(&self, code: StatusCode, object: &Value) -> Result<Response<Body>, Status> {
        match &self.negotiated.form {
            Form::Object => self.value_response(code, object),
            Form::Metadata(version) => self.value_response(code, &partial_packed(object, version)),
            Form::Table(_) => self.value_response(code, &self.shape_one(object, true)),
        }
    }

    /// A response with a value in the negotiated encoding.
    pub(crate) fn value_response(&self, code: StatusCode, value: &Value) -> Result<Response<Body>, Status> {
        let encoding = self.negotiated.encoding;
        if encoding != Encoding::Json || self.options.pretty != Some(true) {
            return Ok(response(code, encoding, to_encoding(encoding, value)?));
        }
        let mut text =
            serde_json::to_vec_pretty(&packed::expanded(value)).map_err(|error| Status::internal(error.to_string()))?;
        text.push(b'\n');
        Ok(json_response(code, text))
    }

    /// One object in the negotiated form; `with_columns` is false for all but the first Table of a
    /// watch.
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

/// Writes a stored object's metadata as a PartialObjectMetadata. The metadata is copied from the
/// JSON text without parsing it, because clients that watch metadata mostly watch all objects.
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

/// The metadata of an object as a PartialObjectMetadata.
pub(crate) fn partial(object: &Value, version: &str) -> Value {
    let mut partial = partial_packed(object, version);
    packed::expand(&mut partial);
    partial
}

/// As [`partial`], with `managedFields` unchanged.
pub(crate) fn partial_packed(object: &Value, version: &str) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": format!("meta.k8s.io/{version}"),
        "metadata": object.get("metadata").cloned().unwrap_or_else(|| json!({})),
    })
}

/// The metadata of a stored object as a PartialObjectMetadata with packed `managedFields`. Parses
/// no other part of the JSON text.
pub(crate) fn partial_of_record(record: &Record, version: &str) -> Value {
    let text = record.bytes();
    let parsed = managed_text::metadata(&text)
        .and_then(|(metadata, _)| packed::parse(&[b"{\"metadata\":", &text[metadata], b"}"].concat()).ok());
    match parsed {
        Some(object) => partial_packed(&object, version),
        None => partial_packed(&record.value(), version),
    }
}
