//! Bodies in protobuf, written by field numbers, so that nothing here knows a kind:
//!
//! ```yaml
//! protobuf:
//!   apiVersion: v1
//!   kind: ConfigMap
//!   fields: {1: {1: name}, 2: [{1: key, 2: value}]}   # metadata.name; one entry of the map `data`
//! ```
//!
//! A text is a text, a map is a message, a number and a boolean are varints, a list is a repeated field. The numbers are those
//! of the `.proto` files that Kubernetes publishes. In an answer, what is expected says how bytes are to be read; `$any`
//! stands for anything, `$text` for bytes that are not empty, a field that must not be there is `$absent`, and each item of a list must be among those that came.

use anyhow::{Context, bail};
use serde_json::{Map, Value};

/// What stands before every object.
const MAGIC: &[u8] = b"k8s\0";

/// An object with its envelope.
pub fn encode(object: &Value) -> anyhow::Result<Vec<u8>> {
    let mut envelope = Vec::new();
    put(&mut envelope, 1, &serde_json::json!({"1": object["apiVersion"], "2": object["kind"]}))?;
    put_bytes(&mut envelope, 2, &message(fields(&object["fields"])?)?);
    Ok([MAGIC, &envelope].concat())
}

/// The first difference between an object with its envelope and what is expected of it.
pub fn difference(expected: &Value, bytes: &[u8]) -> anyhow::Result<Option<String>> {
    let Some(envelope) = bytes.strip_prefix(MAGIC) else { bail!("no protobuf: {}", String::from_utf8_lossy(bytes)) };
    let about = serde_json::json!({"1": {"1": expected["apiVersion"], "2": expected["kind"]}, "2": expected["fields"]});
    compare(fields(&about)?, envelope, "")
}

/// The first difference between an event of a watch, without its length, and what is expected of it.
pub fn event_difference(expected: &Value, bytes: &[u8]) -> anyhow::Result<Option<String>> {
    let parts = split(bytes)?;
    let part = |number| parts.iter().find(|part| part.0 == number).map(|part| &part.1);
    let Some(Field::Bytes(kind)) = part(1) else { bail!("an event without a type") };
    if expected["type"].as_str().unwrap_or_default().as_bytes() != *kind {
        return Ok(Some(format!("expected {}, got {}", expected["type"], String::from_utf8_lossy(kind))));
    }
    let Some(Field::Bytes(object)) = part(2) else { bail!("an event without an object") };
    let object = split(object)?;
    let Some((_, Field::Bytes(raw))) = object.iter().find(|part| part.0 == 1) else { bail!("an event of nothing") };
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
    // Negative ones are sent as two's complement.
    number
        .map(i64::cast_unsigned)
        .with_context(|| format!("{value}: expected a text, a message, a list or a whole number"))
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
    /// Fixed-size numbers; nothing that is walked has one.
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
    bail!("a number without an end")
}

fn compare(expected: &Map<String, Value>, bytes: &[u8], at: &str) -> anyhow::Result<Option<String>> {
    let parts = split(bytes).with_context(|| format!("{at}: no message"))?;
    for (name, expected) in expected {
        let at = format!("{at}{}{name}", if at.is_empty() { "" } else { "." });
        let number = number(name)?;
        let came: Vec<&Field<'_>> = parts.iter().filter(|part| part.0 == number).map(|part| &part.1).collect();
        let wanted = match expected {
            Value::Array(items) => items.iter().collect(),
            one => vec![one],
        };
        for wanted in wanted {
            if wanted == "$absent" {
                if came.is_empty() {
                    continue;
                }
                return Ok(Some(format!("{at}: expected nothing")));
            }
            let mut last = format!("{at}: expected {wanted}, got nothing");
            let mut found = false;
            for field in &came {
                match one(wanted, field, &at)? {
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

fn one(wanted: &Value, field: &Field<'_>, at: &str) -> anyhow::Result<Option<String>> {
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
    fn what_is_written_is_found() {
        let object = json!({"apiVersion": "v1", "kind": "X", "fields": {"1": {"1": "n"}, "2": [{"1": "k"}, {"1": "l"}], "3": 300}});
        let bytes = encode(&object).expect("encoded");
        assert_eq!(
            bytes,
            *b"k8s\0\x0a\x07\x0a\x02v1\x12\x01X\x12\x12\x0a\x03\x0a\x01n\x12\x03\x0a\x01k\x12\x03\x0a\x01l\x18\xac\x02"
        );
        let differs = |fields: Value| {
            let expected = json!({"apiVersion": "v1", "kind": "X", "fields": fields});
            difference(&expected, &bytes).expect("readable")
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
