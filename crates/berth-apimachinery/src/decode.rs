//! Decodes bytes to JSON values: JSON and YAML with duplicate fields reported, and streams of
//! documents.
//!
//! YAML is decoded as Kubernetes' clients and server do: booleans may be `yes` and `off`, numbers
//! with a leading zero are octal, keys become strings. The parser limits aliases and document size.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::Spanned;

use crate::field;
use crate::trail::Trail;

/// Why bytes cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DecodeError(String);

/// A decoded value with the findings of strict field validation.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// The value; a duplicate field has its last value.
    pub value: Value,
    /// Paths of fields of a JSON document that occur more than once, e.g. `spec.foo`.
    pub duplicates: Vec<String>,
    /// Duplicate fields of a YAML document, by line: `line 9: key "foo" already set in map`.
    pub lines: Vec<String>,
}

/// Maximum number of duplicate fields to report.
const DUPLICATES_MAX: usize = 1000;

/// Decodes JSON and reports duplicate fields.
pub fn json(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    let mut duplicates = Vec::new();
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let start = Trail::start();
    let seed = Watchful { at: &start, named: Named::ByPath, repeated: &mut duplicates };
    let value = seed.deserialize(&mut deserializer).map_err(|e| DecodeError(e.to_string()))?;
    deserializer.end().map_err(|e| DecodeError(e.to_string()))?;
    Ok(Decoded { value, duplicates, lines: Vec::new() })
}

/// Calls `visit` with the path of each field of a JSON document, in the order of the document. The
/// second argument is true if the same object has an earlier field of that path. Stops at the first
/// error.
pub fn json_fields(bytes: &[u8], visit: &mut dyn FnMut(&str, bool)) {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let start = Trail::start();
    let _ = Fields { at: &start, visit }.deserialize(&mut deserializer);
}

/// Visits the fields below a path.
struct Fields<'a> {
    at: &'a Trail<'a>,
    visit: &'a mut dyn FnMut(&str, bool),
}

impl<'de> DeserializeSeed<'de> for Fields<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let mut index = 0;
        while items.next_element_seed(Fields { at: &self.at.index(index), visit: &mut *self.visit })?.is_some() {
            index += 1;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = entries.next_key::<String>()? {
            let at = self.at.name(&key);
            (self.visit)(&at.to_string(), seen.contains(&key));
            entries.next_value_seed(Fields { at: &at, visit: &mut *self.visit })?;
            seen.insert(key);
        }
        Ok(())
    }
}

/// Decodes one YAML document and reports duplicate fields.
pub fn yaml_watched(text: &str) -> Result<Decoded, DecodeError> {
    let mut lines = Vec::new();
    let read = serde_saphyr::with_deserializer_from_str_with_options(text, yaml_options(false), |deserializer| {
        let start = Trail::start();
        Watchful { at: &start, named: Named::ByLine, repeated: &mut lines }.deserialize(deserializer)
    });
    match read {
        Ok(value) => Ok(Decoded { value, duplicates: Vec::new(), lines }),
        // A document whose duplicates cannot be tracked may still be decodable.
        Err(_) => Ok(Decoded { value: yaml(text)?, duplicates: Vec::new(), lines: Vec::new() }),
    }
}

fn yaml_options(strict: bool) -> serde_saphyr::Options {
    let mut options = serde_saphyr::Options::default();
    options.strict_booleans = false;
    options.legacy_octal_numbers = true;
    options.duplicate_keys =
        if strict { serde_saphyr::DuplicateKeyPolicy::Error } else { serde_saphyr::DuplicateKeyPolicy::LastWins };
    options
}

/// Decodes one YAML document; the last of duplicate fields is used.
pub fn yaml(text: &str) -> Result<Value, DecodeError> {
    serde_saphyr::from_str_with_options(text, yaml_options(false))
        .map_err(|e| DecodeError(format!("error converting YAML to JSON: {e}")))
}

/// Decodes one YAML document and rejects duplicate fields.
pub fn yaml_strict(text: &str) -> Result<Value, DecodeError> {
    serde_saphyr::from_str_with_options(text, yaml_options(true))
        .map_err(|e| DecodeError(format!("error converting YAML to JSON: {e}")))
}

/// True if the text starts like a JSON object.
pub fn looks_like_json(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

/// Decodes one document in JSON or YAML.
pub fn json_or_yaml(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    let text = std::str::from_utf8(bytes).map_err(|e| DecodeError(format!("not UTF-8: {e}")))?;
    if looks_like_json(text)
        && let Ok(decoded) = json(bytes)
    {
        return Ok(decoded);
    }
    yaml_watched(text)
}

/// Decodes a stream of documents: consecutive JSON objects, or YAML documents between `---` lines.
/// Empty documents are skipped.
pub fn documents(text: &str) -> Result<Vec<Value>, DecodeError> {
    let mut documents = Vec::new();
    let mut rest = text;
    if looks_like_json(text) {
        let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        loop {
            let offset = stream.byte_offset();
            match stream.next() {
                None => return Ok(documents),
                Some(Ok(value)) => documents.push(value),
                // A single JSON document may be followed by YAML; several may not.
                Some(Err(_)) if documents.len() <= 1 => {
                    rest = &text[offset..];
                    break;
                }
                Some(Err(error)) => return Err(DecodeError(error.to_string())),
            }
        }
    }
    for part in yaml_parts(rest) {
        if part.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
            continue;
        }
        let value = yaml(part)?;
        if !value.is_null() {
            documents.push(value);
        }
    }
    Ok(documents)
}

/// Encodes JSON with numbers in their shortest form, and whole floats without a fraction, as
/// Kubernetes' encoder does.
pub fn to_text(value: &Value) -> String {
    let mut text = String::new();
    write(value, &mut text);
    text
}

fn write(value: &Value, text: &mut String) {
    match value {
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() => {
                let magnitude = float.abs();
                if magnitude != 0.0 && !(1e-6..1e21).contains(&magnitude) {
                    // Exponents have a sign and no leading zeros.
                    text.push_str(&format!("{float:e}").replace('e', if magnitude < 1.0 { "e" } else { "e+" }));
                } else {
                    text.push_str(&format!("{float}"));
                }
            }
            _ => text.push_str(&number.to_string()),
        },
        Value::Array(list) => {
            text.push('[');
            for (i, item) in list.iter().enumerate() {
                if i > 0 {
                    text.push(',');
                }
                write(item, text);
            }
            text.push(']');
        }
        Value::Object(map) => {
            text.push('{');
            for (i, (key, item)) in map.iter().enumerate() {
                if i > 0 {
                    text.push(',');
                }
                text.push_str(&Value::from(key.as_str()).to_string());
                text.push(':');
                write(item, text);
            }
            text.push('}');
        }
        scalar => text.push_str(&scalar.to_string()),
    }
}

/// The texts between lines that begin with `---`.
fn yaml_parts(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if let Some(after) = line.strip_prefix("---")
            && after.chars().next().is_none_or(char::is_whitespace)
        {
            parts.push(&text[start..at]);
            start = at + line.len();
        }
        at += line.len();
    }
    parts.push(&text[start..]);
    parts
}

/// Deserializes a value and records duplicate fields.
struct Watchful<'a> {
    at: &'a Trail<'a>,
    named: Named,
    repeated: &'a mut Vec<String>,
}

/// How duplicate fields are reported.
#[derive(Clone, Copy)]
enum Named {
    /// By path, as JSON decoders report them.
    ByPath,
    /// By line, as YAML decoders report them.
    ByLine,
}

impl Watchful<'_> {
    fn below<'b>(&'b mut self, at: &'b Trail<'b>) -> Watchful<'b> {
        Watchful { at, named: self.named, repeated: &mut *self.repeated }
    }
}

/// A YAML key as a string; scalars that are not strings are converted.
struct Key(String);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Key, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Key;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string key")
            }

            fn visit_str<E>(self, text: &str) -> Result<Key, E> {
                Ok(Key(text.to_owned()))
            }

            fn visit_string<E>(self, text: String) -> Result<Key, E> {
                Ok(Key(text))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

impl<'de> DeserializeSeed<'de> for Watchful<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Watchful<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        // Integers beyond 63 bits are floats in Kubernetes.
        Ok(i64::try_from(value).map_or_else(|_| Value::from(value as f64), Value::from))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let here = self.at;
            let at = here.index(list.len());
            match items.next_element_seed(self.below(&at))? {
                Some(item) => list.push(item),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        loop {
            let (key, line) = match self.named {
                Named::ByPath => match entries.next_key::<String>()? {
                    Some(key) => (key, 0),
                    None => return Ok(Value::Object(map)),
                },
                Named::ByLine => match entries.next_key::<Spanned<Key>>()? {
                    Some(key) => (key.value.0, key.referenced.line()),
                    None => return Ok(Value::Object(map)),
                },
            };
            let here = self.at;
            let at = here.name(&key);
            if map.contains_key(&key) && self.repeated.len() < DUPLICATES_MAX {
                self.repeated.push(match self.named {
                    Named::ByPath => at.to_string(),
                    Named::ByLine => format!("line {line}: key {} already set in map", field::quote(&key)),
                });
            }
            let value = entries.next_value_seed(self.below(&at))?;
            map.insert(key, value);
        }
    }
}

/// Removes null values at any depth: Go treats them as missing.
pub fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(without_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json as value;

    #[test]
    fn duplicate_fields_are_reported() {
        let decoded = json(br#"{"spec": {"a": 1, "a": 2, "list": [{"b": 1, "b": 1}]}}"#).expect("is JSON");
        assert_eq!(decoded.duplicates, ["spec.a", "spec.list[0].b"]);
        assert_eq!(decoded.value["spec"]["a"], 2);
    }

    #[test]
    fn yaml_is_decoded_as_in_kubernetes() {
        let text = "mode: 0644\non: yes\nname: \"yes\"\n1: x\nwhen: 2020-01-01\n";
        assert_eq!(
            yaml(text).expect("is YAML"),
            value!({"mode": 420, "on": true, "name": "yes", "1": "x", "when": "2020-01-01"})
        );
        assert!(yaml_strict("a: 1\na: 2\n").is_err());
        assert_eq!(yaml("a: 1\na: 2\n").expect("is YAML"), value!({"a": 2}));
    }

    #[test]
    fn duplicate_yaml_keys_are_reported_by_line() {
        let text = "\nspec:\n  foo: a\n  foo: b\n  list:\n  - {b: 1, b: 2}\n  on: 1\n  \"on\": 2\n7: x\n";
        let decoded = yaml_watched(text).expect("is YAML");
        let keys = [(4, "foo"), (6, "b"), (8, "on")];
        assert_eq!(decoded.lines, keys.map(|(line, key)| format!("line {line}: key \"{key}\" already set in map")));
        assert_eq!(decoded.value, yaml(text).expect("is YAML"));
        assert_eq!(decoded.value, value!({"spec": {"foo": "b", "list": [{"b": 2}], "on": 2}, "7": "x"}));
        let sound = "mode: 0644\non: yes\nnothing: ~\nlist: [1.5, 9223372036854775807, x]\na: &a {b: 1}\nc: *a\n";
        let decoded = yaml_watched(sound).expect("is YAML");
        assert_eq!((decoded.value, decoded.lines), (yaml(sound).expect("is YAML"), Vec::new()));
        for odd in ["? [a]\n: 1\n", "true: 1\n1.5: 2\n", "a: !!str 1\n", "- 1\n- ~\n", "x\n", "null: 1\n", "{a: {b: [}"]
        {
            assert_eq!(yaml_watched(odd).ok().map(|it| it.value), yaml(odd).ok(), "{odd}");
        }
        assert_eq!(yaml_watched("").expect("is empty").value, yaml("").expect("is empty"));
    }

    #[test]
    fn a_stream_is_split_into_documents_without_comments() {
        let text = "# first\n---\na: 1\n--- # second\nb: 2\n---\n# nothing\n";
        assert_eq!(documents(text).expect("is a stream"), [value!({"a": 1}), value!({"b": 2})]);
        assert_eq!(documents("{\"a\":1}{\"b\":2}").expect("is a stream"), [value!({"a": 1}), value!({"b": 2})]);
        assert!(documents("").expect("is a stream").is_empty());
    }
}
