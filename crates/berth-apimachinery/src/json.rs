//! Fast serialization of JSON values to text.
//!
//! Every write of the server serializes an object, and most of it is strings that need no escaping.
//! The check for characters to escape processes many bytes at a time. The output is that of
//! `serde_json`.

use serde_json::{Map, Value};

/// Appends the text of a value.
pub(crate) fn put(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(_) => put_slowly(out, value),
        Value::String(text) => put_string(out, text),
        Value::Array(items) => {
            let mut before = b'[';
            for item in items {
                out.push(before);
                put(out, item);
                before = b',';
            }
            if items.is_empty() {
                out.push(before);
            }
            out.push(b']');
        }
        Value::Object(map) => put_members(out, map, |out, _, value| put(out, value)),
    }
}

/// Appends the text of an object; `value_of` writes the values of its members.
pub(crate) fn put_members(
    out: &mut Vec<u8>,
    map: &Map<String, Value>,
    mut value_of: impl FnMut(&mut Vec<u8>, &str, &Value),
) {
    let mut before = b'{';
    for (key, value) in map {
        out.push(before);
        put_string(out, key);
        out.push(b':');
        value_of(out, key, value);
        before = b',';
    }
    if map.is_empty() {
        out.push(before);
    }
    out.push(b'}');
}

/// Appends a string with its quotes.
pub(crate) fn put_string(out: &mut Vec<u8>, text: &str) {
    if needs_escape(text) {
        return put_slowly(out, text);
    }
    out.reserve(text.len() + 2);
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
}

/// True if the string contains a character that must be escaped.
pub(crate) fn needs_escape(text: &str) -> bool {
    let is_special = |byte: &u8| (*byte < b' ') | (*byte == b'"') | (*byte == b'\\');
    // Each chunk is checked without an early exit, so that the compiler can vectorize the check.
    let mut pieces = text.as_bytes().chunks_exact(16);
    let found = pieces.any(|piece| piece.iter().fold(false, |found, byte| found | is_special(byte)));
    found || pieces.remainder().iter().any(is_special)
}

fn put_slowly(out: &mut Vec<u8>, value: &(impl serde::Serialize + ?Sized)) {
    serde_json::to_writer(out, value).expect("writing a JSON value to a vector does not fail");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(value: &Value) -> String {
        let mut out = Vec::new();
        put(&mut out, value);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn values_are_written_as_serde_json_writes_them() {
        let values = [
            json!(null),
            json!([true, false, [], {}, [[]], {"": {}}]),
            json!({"a": 1, "b": -1.5, "c": u64::MAX, "d": 1e300, "e": "", "\"": "\\", "long": "x".repeat(40)}),
        ];
        for value in values {
            assert_eq!(text(&value), value.to_string());
        }
    }

    #[test]
    fn a_character_to_escape_is_found_at_any_position() {
        for code in (0..0x100).chain([0x2028, 0x1f600]) {
            let character = char::from_u32(code).expect("a character");
            for before in 0..20 {
                for after in [0, 1, 15, 16, 17] {
                    let string = format!("{}{character}{}", "x".repeat(before), "y".repeat(after));
                    let value = json!({ string.clone(): string });
                    assert_eq!(text(&value), value.to_string());
                }
            }
        }
    }
}
