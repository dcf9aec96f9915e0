//! JSON to protobuf, as Kubernetes' Go types encode it: fields in the order of their numbers, plain
//! fields even when they are zero, pointers only when they are set, maps in the order of their
//! keys.
//!
//! The cost is one map lookup per field of each message, and one copy of a nested message whose
//! length needs more than the one byte reserved for it.

use std::borrow::Cow;
use std::sync::LazyLock;

use base64::Engine;
use berth_apimachinery::packed;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::PREFIX;
use super::table::{Field, Kind, Many, Message, table};

/// The reason why an object could not be encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The kind is not in the table.
    #[error("no protobuf encoding is known for {kind} in {api_version:?}")]
    UnknownKind {
        /// Group and version, such as `apps/v1`.
        api_version: String,
        /// Kind, such as `Deployment`.
        kind: String,
    },
    /// A field has a value of the wrong type.
    #[error("{path} cannot be encoded in protobuf: {expected} is expected")]
    WrongType {
        /// Path of the field in the object.
        path: String,
        /// The expected type, with an article.
        expected: &'static str,
    },
}

impl EncodeError {
    fn wrong_type(expected: &'static str) -> EncodeError {
        EncodeError::WrongType { path: String::new(), expected }
    }

    /// Prefixes the path with `step`.
    fn put_below(&mut self, step: &str) {
        if let EncodeError::WrongType { path, .. } = self {
            let between = if path.is_empty() || path.starts_with('[') { "" } else { "." };
            *path = format!("{step}{between}{path}");
        }
    }
}

type Result<T = ()> = std::result::Result<T, EncodeError>;

/// Fields that were omitted from an encoded object because their values have the wrong type, at
/// most [`REPORTED_MAX`] of them.
pub type LeftOut = Vec<EncodeError>;

/// Maximum number of omitted fields to report for one object.
const REPORTED_MAX: usize = 16;

/// The output. A field with a value of the wrong type is encoded as if it were absent: one wrong
/// value must not make a list of thousands of objects fail.
#[derive(Default)]
struct Out {
    bytes: Vec<u8>,
    left_out: LeftOut,
}

impl Out {
    fn onto(bytes: &mut Vec<u8>) -> Out {
        Out { bytes: std::mem::take(bytes), left_out: LeftOut::new() }
    }

    fn leave_out(&mut self, error: EncodeError) {
        if self.left_out.len() < REPORTED_MAX {
            self.left_out.push(error);
        }
    }

    /// Prefixes the paths of the omitted fields after the first `before` with `step`.
    fn put_below(&mut self, before: usize, step: impl std::fmt::Display) {
        if self.left_out.len() > before {
            let step = step.to_string();
            self.left_out[before..].iter_mut().for_each(|error| error.put_below(&step));
        }
    }
}

impl std::ops::Deref for Out {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.bytes
    }
}

impl std::ops::DerefMut for Out {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

static NOTHING: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);

/// Encodes an object with apiVersion and kind as a complete response body: prefix and envelope. Its
/// `managedFields` may be [packed].
///
/// # Errors
/// The kind is not in the table, or a field has a value of the wrong type.
pub fn from_json(object: &Value) -> Result<Vec<u8>> {
    let (body, left_out) = from_json_lossy(object)?;
    left_out.into_iter().next().map_or(Ok(body), Err)
}

/// As [`from_json`], but fields with values of the wrong type are omitted. Returns the body and the
/// omitted fields.
///
/// # Errors
/// The kind is not in the table.
pub fn from_json_lossy(object: &Value) -> Result<(Vec<u8>, LeftOut)> {
    let mut out = Out::default();
    put_object(&mut out, object)?;
    Ok((out.bytes, out.left_out))
}

/// Appends the complete body of an object.
fn put_object(out: &mut Out, object: &Value) -> Result {
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
    put_as(out, text("apiVersion"), text("kind"), object)
}

/// As [`put_object`], with apiVersion and kind from the caller.
fn put_as(out: &mut Out, api_version: &str, kind: &str, object: &Value) -> Result {
    let message = of_kind(api_version, kind)?;
    let object = object.as_object().ok_or(EncodeError::wrong_type("an object"))?;
    put_head(out, api_version, kind);
    nested(out, RAW, |out| {
        put_message(out, message, object);
        Ok(())
    })?;
    out.extend_from_slice(TAIL);
    Ok(())
}

fn of_kind(api_version: &str, kind: &str) -> Result<&'static Message> {
    table()
        .of_kind(api_version, kind)
        .ok_or_else(|| EncodeError::UnknownKind { api_version: api_version.to_owned(), kind: kind.to_owned() })
}

/// Number of the envelope's field that holds the object.
const RAW: u32 = 2;
/// The last fields of the envelope: empty content encoding and content type.
const TAIL: &[u8] = &[3 << 3 | 2, 0, 4 << 3 | 2, 0];

/// Appends the prefix, and the envelope up to the object.
fn put_head(out: &mut Vec<u8>, api_version: &str, kind: &str) {
    out.extend_from_slice(PREFIX);
    let mut type_meta = Vec::with_capacity(api_version.len() + kind.len() + 4);
    put_bytes(&mut type_meta, 1, api_version.as_bytes());
    put_bytes(&mut type_meta, 2, kind.as_bytes());
    put_bytes(out, 1, &type_meta);
}

/// Writes lists item by item. The total length precedes the items. A caller that cannot hold them
/// all encodes each item twice: once to measure, once to send.
pub struct ListEncoder {
    head: Vec<u8>,
    items: &'static Field,
    item: &'static Message,
    /// The encoded metadata of the list.
    metadata: Vec<u8>,
    /// True if the metadata precedes the items. In v1beta1 it follows them.
    metadata_first: bool,
}

impl ListEncoder {
    /// An encoder for lists of the given kind.
    ///
    /// # Errors
    /// The kind is not in the table, or the metadata has a value of the wrong type.
    pub fn new(api_version: &str, list_kind: &str, metadata: &Value) -> Result<ListEncoder> {
        let unknown = || EncodeError::UnknownKind { api_version: api_version.to_owned(), kind: list_kind.to_owned() };
        let message = of_kind(api_version, list_kind)?;
        let (meta_field, items) = message.named("metadata").zip(message.named("items")).ok_or_else(unknown)?;
        let Kind::Message(item) = items.kind else { return Err(unknown()) };
        let mut head = Vec::new();
        put_head(&mut head, api_version, list_kind);
        let mut encoded = Out::default();
        put_single(&mut encoded, meta_field.number, meta_field.kind, Some(metadata))?;
        Ok(ListEncoder {
            head,
            items,
            item: table().at(item),
            metadata: encoded.bytes,
            metadata_first: meta_field.number < items.number,
        })
    }

    /// Appends an item. Fields with values of the wrong type are omitted and returned.
    ///
    /// # Errors
    /// The item is not an object; nothing is appended.
    pub fn put_item(&self, out: &mut Vec<u8>, object: &Value) -> Result<LeftOut> {
        let map = object.as_object().ok_or(EncodeError::wrong_type("an object"))?;
        let mut item = Out::onto(out);
        let put = nested(&mut item, self.items.number, |out| {
            put_message(out, self.item, map);
            Ok(())
        });
        *out = item.bytes;
        put.map(|()| item.left_out)
    }

    /// The bytes before the items, which have `length` bytes in total.
    pub fn before(&self, length: usize) -> Vec<u8> {
        let mut out = self.head.clone();
        put_key(&mut out, RAW, BYTES);
        put_varint(&mut out, (length + self.metadata.len()) as u64);
        if self.metadata_first {
            out.extend_from_slice(&self.metadata);
        }
        out
    }

    /// The bytes after the items.
    pub fn after(&self) -> Vec<u8> {
        let metadata: &[u8] = if self.metadata_first { &[] } else { &self.metadata };
        [metadata, TAIL].concat()
    }
}

/// Appends an event of a watch: its length in four bytes, and the event with the object in its
/// envelope. Fields with values of the wrong type are omitted and returned.
///
/// # Errors
/// The kind is not in the table; nothing is appended.
pub fn put_event(out: &mut Vec<u8>, event: &str, object: &Value) -> Result<LeftOut> {
    let start = out.len();
    let mut frame = Out::onto(out);
    frame.extend_from_slice(&[0; 4]);
    put_bytes(&mut frame, 1, event.as_bytes());
    let put = nested(&mut frame, 2, |out| nested(out, 1, |out| put_object(out, object)));
    *out = frame.bytes;
    if let Err(error) = put {
        out.truncate(start);
        return Err(error);
    }
    let length = u32::try_from(out.len() - start - 4).unwrap_or(u32::MAX);
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    Ok(frame.left_out)
}

const VARINT: u32 = 0;
const DOUBLE: u32 = 1;
const BYTES: u32 = 2;

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_key(out: &mut Vec<u8>, number: u32, wire: u32) {
    put_varint(out, u64::from(number << 3 | wire));
}

fn put_integer(out: &mut Vec<u8>, number: u32, value: i64) {
    put_key(out, number, VARINT);
    // Negative numbers are sign-extended to 64 bits, regardless of their width.
    put_varint(out, value as u64);
}

fn put_bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    put_key(out, number, BYTES);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a length-delimited field with the bytes that `content` writes. One byte is reserved for
/// the length, which is usually enough.
fn nested(out: &mut Out, number: u32, content: impl FnOnce(&mut Out) -> Result) -> Result {
    put_key(out, number, BYTES);
    let start = out.len();
    out.push(0);
    content(out)?;
    let length = out.len() - start - 1;
    if length < 0x80 {
        out[start] = length as u8;
        return Ok(());
    }
    let mut prefix = Vec::with_capacity(10);
    put_varint(&mut prefix, length as u64);
    out.splice(start..=start, prefix);
    Ok(())
}

fn put_message(out: &mut Out, message: &Message, object: &Map<String, Value>) {
    for field in &message.fields {
        let (start, before) = (out.len(), out.left_out.len());
        let Err(error) = put_field(out, field, object) else {
            if !field.name.is_empty() {
                out.put_below(before, field.name);
            }
            continue;
        };
        out.truncate(start);
        out.left_out.truncate(before);
        out.leave_out(error);
        out.put_below(before, field.name);
        if field.many == Many::Value {
            // An absent value is valid for every type.
            let _ = put_single(out, field.number, field.kind, None);
        }
    }
}

fn put_field(out: &mut Out, field: &Field, object: &Map<String, Value>) -> Result {
    if let ("", Kind::Message(inner)) = (field.name, field.kind) {
        return nested(out, field.number, |out| {
            put_message(out, table().at(inner), object);
            Ok(())
        });
    }
    let value = object.get(field.name).filter(|value| !value.is_null());
    match (field.many, value) {
        (Many::Value, value) => put_single(out, field.number, field.kind, value),
        (_, None) => Ok(()),
        (Many::Optional, Some(_)) => put_single(out, field.number, field.kind, value),
        (Many::List, Some(Value::Array(items))) => match value.and_then(packed::text_of) {
            Some(text) if field.name == "managedFields" => put_managed_fields(out, field, text),
            _ => put_items(out, field.number, field.kind, items),
        },
        (Many::List, Some(_)) => Err(EncodeError::wrong_type("a list")),
        (Many::Map, Some(Value::Object(map))) => {
            put_map(out, field, map);
            Ok(())
        }
        (Many::Map, Some(_)) => Err(EncodeError::wrong_type("an object")),
    }
}

fn put_items(out: &mut Out, number: u32, kind: Kind, items: &[Value]) -> Result {
    for (index, item) in items.iter().enumerate() {
        let before = out.left_out.len();
        put_single(out, number, kind, Some(item)).map_err(|mut error| {
            error.put_below(&format!("[{index}]"));
            error
        })?;
        out.put_below(before, format_args!("[{index}]"));
    }
    Ok(())
}

/// Appends the entries of packed `managedFields`. The owned fields of an entry are copied as text,
/// without parsing them.
fn put_managed_fields(out: &mut Out, field: &Field, text: &str) -> Result {
    let Kind::Message(place) = field.kind else { return Err(EncodeError::wrong_type("a list")) };
    let message = table().at(place);
    let entries: Vec<std::collections::BTreeMap<Cow<'_, str>, &RawValue>> =
        serde_json::from_str(text).map_err(|_| EncodeError::wrong_type("a list of objects"))?;
    for entry in &entries {
        nested(out, field.number, |out| {
            for field in &message.fields {
                let value = entry.get(field.name).map(|value| value.get()).filter(|value| *value != "null");
                match (field.kind, value) {
                    (Kind::Raw, Some(text)) => put_raw(out, field.number, text.as_bytes()),
                    (_, Some(text)) => {
                        let value: Value =
                            serde_json::from_str(text).map_err(|_| EncodeError::wrong_type("a JSON value"))?;
                        put_single(out, field.number, field.kind, Some(&value))?;
                    }
                    (_, None) if field.many == Many::Value => put_single(out, field.number, field.kind, None)?,
                    (_, None) => {}
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn put_raw(out: &mut Vec<u8>, number: u32, text: &[u8]) {
    let mut raw = Vec::with_capacity(text.len() + 4);
    put_bytes(&mut raw, 1, text);
    put_bytes(out, number, &raw);
}

fn put_map(out: &mut Out, field: &Field, map: &Map<String, Value>) {
    // `Map` is ordered by the bytes of its keys, as maps that Go encodes.
    for (key, value) in map {
        let (start, before) = (out.len(), out.left_out.len());
        let entry = nested(out, field.number, |out| {
            put_bytes(out, 1, key.as_bytes());
            match (value, field.kind) {
                // Byte slices are the only values of maps that can be nil.
                (Value::Null, Kind::Bytes) => Ok(()),
                _ => put_single(out, 2, field.kind, Some(value)),
            }
        });
        if let Err(error) = entry {
            out.truncate(start);
            out.left_out.truncate(before);
            out.leave_out(error);
        }
        out.put_below(before, key);
    }
}

/// Appends a value. An absent or null value is encoded as Go's zero value.
fn put_single(out: &mut Out, number: u32, kind: Kind, value: Option<&Value>) -> Result {
    let value = value.filter(|value| !value.is_null());
    match kind {
        Kind::Text => put_bytes(out, number, text(value)?.as_bytes()),
        Kind::Flag => put_integer(out, number, i64::from(flag(value)?)),
        Kind::Integer => put_integer(out, number, integer(value)?),
        Kind::Double => {
            let double = value.map_or(Some(0.0), Value::as_f64).ok_or(EncodeError::wrong_type("a number"))?;
            put_key(out, number, DOUBLE);
            out.extend_from_slice(&double.to_le_bytes());
        }
        Kind::Bytes => put_bytes(out, number, &bytes(text(value)?)?),
        Kind::Texts => return nested(out, number, |out| put_texts(out, 1, value)),
        Kind::Quantity => {
            let text = match value {
                Some(Value::Number(number)) => Cow::Owned(number.to_string()),
                Some(value) => Cow::Borrowed(text(Some(value))?),
                None => Cow::Borrowed("0"),
            };
            return nested(out, number, |out| {
                put_bytes(out, 1, text.as_bytes());
                Ok(())
            });
        }
        Kind::IntOrString => {
            let (is_text, integer, text) = match value {
                Some(Value::String(text)) => (1, 0, text.as_str()),
                value => (0, integer(value)?, ""),
            };
            return nested(out, number, |out| {
                put_integer(out, 1, is_text);
                put_integer(out, 2, integer);
                put_bytes(out, 3, text.as_bytes());
                Ok(())
            });
        }
        Kind::Time | Kind::MicroTime => {
            let time = time(value)?;
            return nested(out, number, |out| {
                if let Some(time) = time {
                    let (seconds, nanos) = whole_seconds(time);
                    put_integer(out, 1, seconds);
                    put_integer(out, 2, if kind == Kind::Time { 0 } else { nanos / 1000 * 1000 });
                }
                Ok(())
            });
        }
        Kind::Raw => match value {
            Some(value) => put_raw(out, number, value.to_string().as_bytes()),
            None => put_bytes(out, number, &[]),
        },
        Kind::SchemaOrArray | Kind::SchemaOrFlag | Kind::SchemaOrTexts => {
            return nested(out, number, |out| put_schema_or_other(out, kind, value));
        }
        Kind::Message(place) => {
            let object = match value {
                Some(value) => value.as_object().ok_or(EncodeError::wrong_type("an object"))?,
                None => &NOTHING,
            };
            return nested(out, number, |out| {
                put_message(out, table().at(place), object);
                Ok(())
            });
        }
    }
    Ok(())
}

/// Appends the fields of a message that has a schema or another value.
fn put_schema_or_other(out: &mut Out, kind: Kind, value: Option<&Value>) -> Result {
    match (kind, value) {
        (Kind::SchemaOrFlag, value) => {
            // `allows` is true for a schema: the schema itself restricts the values.
            let is_schema = value.is_some_and(Value::is_object);
            put_integer(out, 1, i64::from(is_schema || flag(value)?));
            if is_schema { put_single(out, 2, schema_kind()?, value) } else { Ok(()) }
        }
        (Kind::SchemaOrArray, Some(Value::Array(schemas))) => put_items(out, 2, schema_kind()?, schemas),
        (Kind::SchemaOrArray, None) => Ok(()),
        (Kind::SchemaOrArray, schema) | (_, schema @ Some(Value::Object(_))) => {
            put_single(out, 1, schema_kind()?, schema)
        }
        (_, texts) => put_texts(out, 2, texts),
    }
}

fn schema_kind() -> Result<Kind> {
    let place = table().place("apiextensions.v1.JSONSchemaProps");
    place.map(Kind::Message).ok_or(EncodeError::wrong_type("no schema"))
}

fn text(value: Option<&Value>) -> Result<&str> {
    value.map_or(Some(""), Value::as_str).ok_or(EncodeError::wrong_type("a string"))
}

fn flag(value: Option<&Value>) -> Result<bool> {
    value.map_or(Some(false), Value::as_bool).ok_or(EncodeError::wrong_type("true or false"))
}

fn integer(value: Option<&Value>) -> Result<i64> {
    let Some(value) = value else { return Ok(0) };
    let unsigned = || value.as_u64().map(|value| value as i64);
    let whole = || value.as_f64().filter(|value| value.fract() == 0.0 && value.abs() < 2f64.powi(63));
    value
        .as_i64()
        .or_else(unsigned)
        .or_else(|| whole().map(|it| it as i64))
        .ok_or(EncodeError::wrong_type("an integer"))
}

fn put_texts(out: &mut Vec<u8>, number: u32, list: Option<&Value>) -> Result {
    let items = list.map_or(Some(&[][..]), |list| list.as_array().map(Vec::as_slice));
    for item in items.ok_or(EncodeError::wrong_type("a list"))? {
        put_bytes(out, number, text(Some(item).filter(|item| !item.is_null()))?.as_bytes());
    }
    Ok(())
}

fn bytes(text: &str) -> Result<Vec<u8>> {
    let engine = &base64::engine::general_purpose::STANDARD;
    let decoded = engine.decode(text).or_else(|_| {
        // Line breaks are ignored.
        engine.decode(text.replace(['\r', '\n'], ""))
    });
    decoded.map_err(|_| EncodeError::wrong_type("base64"))
}

/// A point in time; `None` for Go's zero time.
fn time(value: Option<&Value>) -> Result<Option<jiff::Timestamp>> {
    let text = text(value)?;
    if text.is_empty() || text == "0001-01-01T00:00:00Z" {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| EncodeError::wrong_type("an RFC 3339 timestamp"))
}

/// Seconds since the epoch, and nanoseconds, which are never negative.
fn whole_seconds(time: jiff::Timestamp) -> (i64, i64) {
    let (seconds, nanos) = (time.as_second(), i64::from(time.subsec_nanosecond()));
    if nanos < 0 { (seconds - 1, nanos + 1_000_000_000) } else { (seconds, nanos) }
}
