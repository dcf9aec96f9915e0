//! Protobuf to JSON. Go encodes plain fields even when they are zero, and omits nil pointers. JSON
//! omits both, so zero values are dropped unless Go's JSON contains them.

use base64::Engine;
use serde_json::{Map, Number, Value, json};

use super::PREFIX;
use super::table::{Field, Kind, Many, Message, table};

/// Maximum nesting of messages. Of the built-in kinds only schemas in CustomResourceDefinitions
/// need more than half of it.
const DEPTH_MAX: usize = 96;

/// The reason why a body could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The body is not valid protobuf, or does not match the messages of its kind.
    #[error("the protobuf body is malformed: {0}")]
    Malformed(&'static str),
    /// The envelope names a kind that is not in the table.
    #[error("no protobuf encoding is known for {0}")]
    UnknownKind(String),
}

pub(super) const TRUNCATED: DecodeError = DecodeError::Malformed("it ends in the middle of a field");

/// Decodes the object in a body to JSON.
pub fn to_json(body: &[u8]) -> Result<Value, DecodeError> {
    let envelope = body.strip_prefix(PREFIX).ok_or(DecodeError::Malformed("the prefix is missing"))?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for part in parts(envelope) {
        match part? {
            (1, Wire::Bytes(type_meta)) => {
                for part in parts(type_meta) {
                    match part? {
                        (1, Wire::Bytes(bytes)) => api_version = text(bytes)?,
                        (2, Wire::Bytes(bytes)) => kind = text(bytes)?,
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            (3, Wire::Bytes(encoding)) if !encoding.is_empty() => {
                return Err(DecodeError::Malformed("the object has a content encoding"));
            }
            _ => {}
        }
    }
    let message = table()
        .of_kind(&api_version, &kind)
        .ok_or_else(|| DecodeError::UnknownKind(format!("{kind} in {api_version}")))?;
    let mut object = Map::new();
    read_message(raw, message, &mut object, 0)?;
    object.insert("apiVersion".to_owned(), api_version.into());
    object.insert("kind".to_owned(), kind.into());
    Ok(Value::Object(object))
}

/// One field on the wire.
#[derive(Clone, Copy)]
enum Wire<'a> {
    Number(u64),
    Double(u64),
    Float(u32),
    Bytes(&'a [u8]),
}

/// The fields of a message, in order.
fn parts(mut rest: &[u8]) -> impl Iterator<Item = Result<(u32, Wire<'_>), DecodeError>> {
    let mut failed = false;
    std::iter::from_fn(move || {
        if rest.is_empty() || failed {
            return None;
        }
        let part = next_part(&mut rest);
        failed = part.is_err();
        Some(part)
    })
}

fn next_part<'a>(rest: &mut &'a [u8]) -> Result<(u32, Wire<'a>), DecodeError> {
    let key = varint(rest)?;
    let number = u32::try_from(key >> 3).map_err(|_| DecodeError::Malformed("a field number is out of range"))?;
    let mut take = |length: usize| -> Result<&'a [u8], DecodeError> {
        let (taken, after) = rest.split_at_checked(length).ok_or(TRUNCATED)?;
        *rest = after;
        Ok(taken)
    };
    let wire = match key & 7 {
        0 => Wire::Number(varint(rest)?),
        1 => Wire::Double(u64::from_le_bytes(take(8)?.try_into().map_err(|_| TRUNCATED)?)),
        2 => {
            let length = usize::try_from(varint(rest)?).map_err(|_| TRUNCATED)?;
            let (taken, after) = rest.split_at_checked(length).ok_or(TRUNCATED)?;
            *rest = after;
            Wire::Bytes(taken)
        }
        5 => Wire::Float(u32::from_le_bytes(take(4)?.try_into().map_err(|_| TRUNCATED)?)),
        _ => return Err(DecodeError::Malformed("a field has an unknown wire type")),
    };
    Ok((number, wire))
}

fn varint(rest: &mut &[u8]) -> Result<u64, DecodeError> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first().ok_or(TRUNCATED)?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(DecodeError::Malformed("a number is too long"))
}

fn text(bytes: &[u8]) -> Result<String, DecodeError> {
    String::from_utf8(bytes.to_vec()).map_err(|_| DecodeError::Malformed("a string is not UTF-8"))
}

/// Reads a message's fields into `object`.
fn read_message(
    bytes: &[u8],
    message: &Message,
    object: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), DecodeError> {
    if depth > DEPTH_MAX {
        return Err(DecodeError::Malformed("messages are nested too deep"));
    }
    for part in parts(bytes) {
        let (number, wire) = part?;
        match message.field(number) {
            // A field that is newer than the table is ignored. It has no name to report.
            None => {}
            Some(Field { name: "", kind: Kind::Message(inner), .. }) => {
                if let Wire::Bytes(bytes) = wire {
                    read_message(bytes, table().at(*inner), object, depth + 1)?;
                }
            }
            Some(field) => read_field(field, wire, object, depth)?,
        }
    }
    Ok(())
}

fn read_field(field: &Field, wire: Wire<'_>, object: &mut Map<String, Value>, depth: usize) -> Result<(), DecodeError> {
    match field.many {
        Many::List => {
            let list = object.entry(field.name).or_insert_with(|| json!([]));
            if let Value::Array(list) = list {
                push_items(list, wire, field.kind, depth)?;
            }
        }
        Many::Map => {
            let Wire::Bytes(entry) = wire else { return Err(DecodeError::Malformed("a map entry is not a message")) };
            let (key, value) = map_entry(entry, field.kind, depth)?;
            if let Value::Object(map) = object.entry(field.name).or_insert_with(|| json!({})) {
                map.insert(key, value);
            }
        }
        Many::Value | Many::Optional => {
            let value = single(wire, field.kind, depth)?;
            let zero = match &value {
                Value::Null => return Ok(()),
                _ if matches!(field.kind, Kind::Raw) => false,
                Value::Bool(flag) => !flag,
                Value::Number(number) => number.as_f64() == Some(0.0),
                Value::String(text) => text.is_empty() && field.kind != Kind::IntOrString,
                _ => false,
            };
            if !zero || field.shown || field.many == Many::Optional {
                object.insert(field.name.to_owned(), value);
            }
        }
    }
    Ok(())
}

fn push_items(list: &mut Vec<Value>, wire: Wire<'_>, kind: Kind, depth: usize) -> Result<(), DecodeError> {
    match wire {
        // Numbers may be packed.
        Wire::Bytes(mut packed) if kind == Kind::Integer => {
            while !packed.is_empty() {
                list.push(Value::from(varint(&mut packed)? as i64));
            }
        }
        wire => list.push(single(wire, kind, depth)?),
    }
    Ok(())
}

fn map_entry(entry: &[u8], kind: Kind, depth: usize) -> Result<(String, Value), DecodeError> {
    let (mut key, mut value) = (String::new(), None);
    for part in parts(entry) {
        match part? {
            (1, Wire::Bytes(bytes)) => key = text(bytes)?,
            (2, wire) => value = Some(single(wire, kind, depth + 1)?),
            _ => {}
        }
    }
    let empty = || match kind {
        Kind::Texts => json!([]),
        Kind::Text | Kind::Bytes => json!(""),
        Kind::Integer | Kind::Double => json!(0),
        Kind::Flag => json!(false),
        Kind::Quantity => json!("0"),
        _ => json!({}),
    };
    Ok((key, value.unwrap_or_else(empty)))
}

/// Decodes one value. Some messages, such as times and quantities, are not objects in JSON.
fn single(wire: Wire<'_>, kind: Kind, depth: usize) -> Result<Value, DecodeError> {
    let bytes = match wire {
        Wire::Bytes(bytes) => bytes,
        Wire::Number(number) if kind == Kind::Flag => return Ok((number != 0).into()),
        // Negative numbers are sign-extended to 64 bits, regardless of their width.
        Wire::Number(number) if kind == Kind::Integer => return Ok((number as i64).into()),
        Wire::Double(bits) if kind == Kind::Double => return Ok(double(f64::from_bits(bits))),
        Wire::Float(bits) if kind == Kind::Double => return Ok(double(f32::from_bits(bits).into())),
        _ => return Err(DecodeError::Malformed("a field has a value of another type")),
    };
    let find = |wanted: u32| parts(bytes).filter_map(Result::ok).find(|(number, _)| *number == wanted);
    let number = |wanted: u32| match find(wanted) {
        Some((_, Wire::Number(number))) => number as i64,
        _ => 0,
    };
    let content = |wanted: u32| match find(wanted) {
        Some((_, Wire::Bytes(bytes))) => bytes,
        _ => &[],
    };
    let schema = |number: u32| match find(number) {
        Some((_, wire @ Wire::Bytes(_))) => single(wire, schema_kind()?, depth + 1).map(Some),
        _ => Ok(None),
    };
    match kind {
        Kind::Bytes => Ok(base64::engine::general_purpose::STANDARD.encode(bytes).into()),
        Kind::Text => Ok(text(bytes)?.into()),
        Kind::Flag | Kind::Integer | Kind::Double => Err(DecodeError::Malformed("a field has a value of another type")),
        Kind::Texts => texts(bytes, 1),
        Kind::Quantity => Ok(text(content(1))?.into()),
        Kind::IntOrString => Ok(if number(1) == 1 { text(content(3))?.into() } else { number(2).into() }),
        // An empty message is Go's zero time: no timestamp.
        Kind::Time | Kind::MicroTime if bytes.is_empty() => Ok(Value::Null),
        Kind::Time => time(number(1), 0, "%Y-%m-%dT%H:%M:%SZ"),
        Kind::MicroTime => time(number(1), number(2), "%Y-%m-%dT%H:%M:%S.%6fZ"),
        Kind::Raw => match content(1) {
            [] => Ok(Value::Null),
            raw => serde_json::from_slice(raw).map_err(|_| DecodeError::Malformed("embedded JSON is not JSON")),
        },
        Kind::SchemaOrArray => match schema(1)? {
            Some(schema) => Ok(schema),
            None => {
                let mut schemas = Vec::new();
                for part in parts(bytes) {
                    if let (2, wire) = part? {
                        schemas.push(single(wire, schema_kind()?, depth + 1)?);
                    }
                }
                Ok(Value::Array(schemas))
            }
        },
        Kind::SchemaOrFlag => Ok(schema(2)?.unwrap_or_else(|| (number(1) != 0).into())),
        Kind::SchemaOrTexts => match schema(1)? {
            Some(schema) => Ok(schema),
            None => texts(bytes, 2),
        },
        Kind::Message(place) => {
            let mut object = Map::new();
            read_message(bytes, table().at(place), &mut object, depth + 1)?;
            Ok(Value::Object(object))
        }
    }
}

fn schema_kind() -> Result<Kind, DecodeError> {
    let place = table().place("apiextensions.v1.JSONSchemaProps");
    place.map(Kind::Message).ok_or(DecodeError::Malformed("no schema is known"))
}

fn texts(bytes: &[u8], number: u32) -> Result<Value, DecodeError> {
    let mut list = Vec::new();
    for part in parts(bytes) {
        if let (found, Wire::Bytes(bytes)) = part?
            && found == number
        {
            list.push(Value::from(text(bytes)?));
        }
    }
    Ok(Value::Array(list))
}

fn double(value: f64) -> Value {
    // JSON has whole numbers without a decimal point.
    if value.fract() == 0.0 && value.abs() < 2f64.powi(53) {
        return (value as i64).into();
    }
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

fn time(seconds: i64, nanos: i64, format: &str) -> Result<Value, DecodeError> {
    let nanos = i32::try_from(nanos).unwrap_or_default();
    let time = jiff::Timestamp::new(seconds, nanos).map_err(|_| DecodeError::Malformed("a time is out of range"))?;
    Ok(time.strftime(format).to_string().into())
}
