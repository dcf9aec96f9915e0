//! Bodies in protobuf, written with field numbers, so that this program needs no `.proto` files:
//!
//! ```yaml
//! protobuf:
//!   apiVersion: v1
//!   kind: ConfigMap
//!   fields: {1: {1: name}, 2: [{1: key, 2: value}]}   # metadata.name; one entry of the map `data`
//! ```
//!
//! A string is a string field, a map is a message, numbers and booleans are varints, and a list is
//! a repeated field. The numbers are those of the `.proto` files that Kubernetes publishes.
//!
//! In an expected response, the type of the expected value determines how the bytes are read.
//! `$any` matches anything, `$text` matches bytes that are not empty, and `$absent` matches a
//! missing field. Each item of an expected list must be among the received items.

use anyhow::{Context, bail};
use serde_json::{Map, Value};

/// Prefix of every encoded object.
const MAGIC: &[u8] = b"k8s\0";

/// Encodes an object in its envelope (`runtime.Unknown`).
pub fn encode(object: &Value) -> anyhow::Result<Vec<u8>> {
    let mut envelope = Vec::new();
    put(&mut envelope, 1, &serde_json::json!({"1": object["apiVersion"], "2": object["kind"]}))?;
    put_bytes(&mut envelope, 2, &message(fields(&object["fields"])?)?);
    Ok([MAGIC, &envelope].concat())
}

/// The first difference between the expected and an encoded object. `None` if they agree.
pub fn difference(expected: &Value, bytes: &[u8]) -> anyhow::Result<Option<String>> {
    let Some(envelope) = bytes.strip_prefix(MAGIC) else { bail!("not protobuf: {}", String::from_utf8_lossy(bytes)) };
    let expected =
        serde_json::json!({"1": {"1": expected["apiVersion"], "2": expected["kind"]}, "2": expected["fields"]});
    compare(fields(&expected)?, envelope, "")
}

/// The first difference between the expected and an encoded event of a watch. `bytes` is the frame
/// without its length.
pub fn event_difference(expected: &Value, bytes: &[u8]) -> anyhow::Result<Option<String>> {
    let parts = split(bytes)?;
    let part = |number| parts.iter().find(|part| part.0 == number).map(|part| &part.1);
    let Some(Field::Bytes(kind)) = part(1) else { bail!("the event has no type") };
    if expected["type"].as_str().unwrap_or_default().as_bytes() != *kind {
        return Ok(Some(format!("expected {}, got {}", expected["type"], String::from_utf8_lossy(kind))));
    }
    let Some(Field::Bytes(object)) = part(2) else { bail!("the event has no object") };
    let object = split(object)?;
    let Some((_, Field::Bytes(raw))) = object.iter().find(|part| part.0 == 1) else {
        bail!("the object of the event is empty")
    };
    difference(&expected["object"], raw)
}

fn fields(value: &Value) -> anyhow::Result<&Map<String, Value>> {
    value.as_object().with_context(|| format!("{value}: expected fields by number"))
}

fn number(name: &str) -> anyhow::Result<u64> {
    name.parse().with_context(|| format!("{name}: expected the number of a field"))
}

fn message(fields: &Map<String, Value>) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for (name, value) in fields {
        put(&mut bytes, number(name)?, value)?;
    }
    Ok(bytes)
}

fn put(out: &mut Vec<u8>, field: u64, value: &Value) -> anyhow::Result<()> {
    match value {
        Value::String(text) => put_bytes(out, field, text.as_bytes()),
        Value::Object(fields) => put_bytes(out, field, &message(fields)?),
        Value::Array(items) => items.iter().try_for_each(|item| put(out, field, item))?,
        other => {
            varint(out, field << 3);
            varint(out, as_varint(other)?);
        }
    }
    Ok(())
}

fn as_varint(value: &Value) -> anyhow::Result<u64> {
    let number = value.as_bool().map(i64::from).or(value.as_i64());
    // Negative numbers are encoded as two's complement.
    number
        .map(i64::cast_unsigned)
        .with_context(|| format!("{value}: expected a string, a message, a list or a whole number"))
}

fn put_bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    varint(out, field << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[derive(Debug)]
enum Field<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// A number of fixed size. No walk compares one.
    Other,
}

fn split(mut bytes: &[u8]) -> anyhow::Result<Vec<(u64, Field<'_>)>> {
    let mut parts = Vec::new();
    while !bytes.is_empty() {
        let key = take_varint(&mut bytes)?;
        let field = match key & 7 {
            0 => Field::Varint(take_varint(&mut bytes)?),
            2 => {
                let length = usize::try_from(take_varint(&mut bytes)?)?;
                Field::Bytes(take(&mut bytes, length)?)
            }
            1 => take(&mut bytes, 8).map(|_| Field::Other)?,
            5 => take(&mut bytes, 4).map(|_| Field::Other)?,
            other => bail!("wire type {other}"),
        };
        parts.push((key >> 3, field));
    }
    Ok(parts)
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> anyhow::Result<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(length).context("a field ends early")?;
    *bytes = rest;
    Ok(taken)
}

fn take_varint(bytes: &mut &[u8]) -> anyhow::Result<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(bytes, 1)?[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    bail!("a varint does not end")
}

fn compare(expected: &Map<String, Value>, bytes: &[u8], at: &str) -> anyhow::Result<Option<String>> {
    let parts = split(bytes).with_context(|| format!("{at}: not a message"))?;
    for (name, expected) in expected {
        let at = format!("{at}{}{name}", if at.is_empty() { "" } else { "." });
        let number = number(name)?;
        let received: Vec<&Field<'_>> = parts.iter().filter(|part| part.0 == number).map(|part| &part.1).collect();
        let wanted = match expected {
            Value::Array(items) => items.iter().collect(),
            item => vec![item],
        };
        for wanted in wanted {
            if wanted == "$absent" {
                if received.is_empty() {
                    continue;
                }
                return Ok(Some(format!("{at}: expected nothing")));
            }
            let mut last = format!("{at}: expected {wanted}, got nothing");
            let mut found = false;
            for field in &received {
                match compare_field(wanted, field, &at)? {
                    None => found = true,
                    Some(difference) => last = difference,
                }
            }
            if !found {
                return Ok(Some(last));
            }
        }
    }
    Ok(None)
}

/// The first difference between an expected value and one occurrence of a field.
fn compare_field(wanted: &Value, field: &Field<'_>, at: &str) -> anyhow::Result<Option<String>> {
    let differs = |got: String| Ok(Some(format!("{at}: expected {wanted}, got {got}")));
    match (wanted, field) {
        (Value::String(text), _) if text == "$any" => Ok(None),
        (Value::Object(fields), Field::Bytes(bytes)) => compare(fields, bytes, at),
        (Value::String(text), Field::Bytes(bytes)) if text == "$text" && !bytes.is_empty() => Ok(None),
        (Value::String(text), Field::Bytes(bytes)) if text.as_bytes() == *bytes => Ok(None),
        (_, Field::Bytes(bytes)) => differs(format!("{:?}", String::from_utf8_lossy(bytes))),
        (_, Field::Varint(got)) if as_varint(wanted).is_ok_and(|wanted| wanted == *got) => Ok(None),
        (_, Field::Varint(got)) => differs(got.to_string()),
        (_, Field::Other) => differs("a number of fixed size".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_encoded_object_agrees_with_its_fields_only() {
        let object = json!({"apiVersion": "v1", "kind": "X", "fields": {"1": {"1": "n"}, "2": [{"1": "k"}, {"1": "l"}], "3": 300}});
        let bytes = encode(&object).expect("encoded");
        assert_eq!(
            bytes,
            *b"k8s\0\x0a\x07\x0a\x02v1\x12\x01X\x12\x12\x0a\x03\x0a\x01n\x12\x03\x0a\x01k\x12\x03\x0a\x01l\x18\xac\x02"
        );
        let differs = |fields: Value| {
            let expected = json!({"apiVersion": "v1", "kind": "X", "fields": fields});
            difference(&expected, &bytes).expect("valid protobuf")
        };
        assert_eq!(differs(json!({"1": {"1": "$text"}, "2": [{"1": "l"}], "3": 300, "4": "$absent"})), None);
        assert_eq!(differs(json!({"1": {"1": "m"}})), Some("2.1.1: expected \"m\", got \"n\"".to_owned()));
        assert_eq!(differs(json!({"2": [{"1": "m"}]})), Some("2.2.1: expected \"m\", got \"l\"".to_owned()));
        assert_eq!(differs(json!({"3": 2})), Some("2.3: expected 2, got 300".to_owned()));
        assert_eq!(differs(json!({"3": "$absent"})), Some("2.3: expected nothing".to_owned()));
        assert_eq!(differs(json!({"4": "x"})), Some("2.4: expected \"x\", got nothing".to_owned()));
        assert!(difference(&object, b"{}").is_err());
    }
}
