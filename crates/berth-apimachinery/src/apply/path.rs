//! Steps of a path to an owned field, and their order.

use std::cmp::Ordering;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value};

/// One step: a field or map key, a list item by its keys, a set item by its value, or a list item
/// by its index.
#[derive(Clone, Debug)]
pub enum PathElement {
    /// `f:name`
    Field(String),
    /// `k:{"name":"a"}`; sorted by key name
    Key(Vec<(String, Value)>),
    /// `v:"a"`
    Value(Value),
    /// `i:0`
    Index(i64),
}

/// Why a step could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("path element {0}")]
pub struct PathError(pub String);

impl PathElement {
    /// A field step.
    pub fn field(name: &str) -> Self {
        PathElement::Field(name.to_owned())
    }

    /// A keyed step; the order of keys does not matter.
    pub fn keyed(keys: impl IntoIterator<Item = (String, Value)>) -> Self {
        let mut keys: Vec<(String, Value)> = keys.into_iter().collect();
        keys.sort_by(|(a, _), (b, _)| a.cmp(b));
        PathElement::Key(keys)
    }

    /// Reads the text form. Returns `None` for an unknown kind of step, so that newer data stays
    /// readable.
    pub fn parse(text: &str) -> Result<Option<Self>, PathError> {
        let malformed = |why: &str| PathError(format!("{}: {why}", crate::field::quote(text)));
        let (kind, rest) = text
            .split_once(':')
            .filter(|(kind, _)| kind.len() == 1)
            .ok_or_else(|| malformed("expected a letter and a colon"))?;
        let json = |rest: &str| serde_json::from_str::<Value>(rest).map_err(|e| malformed(&e.to_string()));
        Ok(Some(match kind {
            "f" => PathElement::Field(rest.to_owned()),
            "v" => PathElement::Value(json(rest)?),
            "i" => PathElement::Index(rest.parse().map_err(|_| malformed("expected a number"))?),
            "k" => PathElement::keyed(serde_json::from_str::<Keys>(rest).map_err(|e| malformed(&e.to_string()))?.0),
            _ => return Ok(None),
        }))
    }

    /// The text form used in `fieldsV1`.
    pub fn to_text(&self) -> String {
        match self {
            PathElement::Field(name) => ["f:", name].concat(),
            PathElement::Key(keys) => {
                let map: Map<String, Value> = keys.iter().cloned().collect();
                format!("k:{}", Value::Object(map))
            }
            PathElement::Value(value) => format!("v:{value}"),
            PathElement::Index(index) => format!("i:{index}"),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            PathElement::Field(_) => 0,
            PathElement::Key(_) => 1,
            PathElement::Value(_) => 2,
            PathElement::Index(_) => 3,
        }
    }
}

/// The keys of a keyed step, in their written form.
struct Keys(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Keys(Vec::new()))
    }
}

impl<'de> Visitor<'de> for Keys {
    type Value = Keys;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of keys")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Keys, A::Error> {
        while let Some((key, value)) = map.next_entry::<String, Value>()? {
            // The last of duplicate keys is used.
            self.0.retain(|(other, _)| *other != key);
            self.0.push((key, value));
        }
        Ok(self)
    }
}

impl Ord for PathElement {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (PathElement::Field(a), PathElement::Field(b)) => a.cmp(b),
            (PathElement::Key(a), PathElement::Key(b)) => {
                let pairs =
                    a.iter().zip(b).map(|((a_key, a), (b_key, b))| a_key.cmp(b_key).then_with(|| compare_values(a, b)));
                pairs.fold(Ordering::Equal, Ordering::then).then(a.len().cmp(&b.len()))
            }
            (PathElement::Value(a), PathElement::Value(b)) => compare_values(a, b),
            (PathElement::Index(a), PathElement::Index(b)) => a.cmp(b),
            (a, b) => a.rank().cmp(&b.rank()),
        }
    }
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for PathElement {}

impl fmt::Display for PathElement {
    /// The form used in conflict messages: `.field`, `[key="value"]`, `[="value"]`, `[0]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathElement::Field(name) => write!(f, ".{name}"),
            PathElement::Key(keys) => {
                let keys: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
                write!(f, "[{}]", keys.join(","))
            }
            PathElement::Value(value) => write!(f, "[={value}]"),
            PathElement::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// The total order of values: numbers (by size, regardless of their spelling), strings, booleans,
/// lists, maps, null.
pub fn compare_values(a: &Value, b: &Value) -> Ordering {
    fn rank(value: &Value) -> u8 {
        match value {
            Value::Number(_) => 0,
            Value::String(_) => 1,
            Value::Bool(_) => 2,
            Value::Array(_) => 3,
            Value::Object(_) => 4,
            Value::Null => 5,
        }
    }
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => match (a.as_i64(), b.as_i64()) {
            (Some(a), Some(b)) => a.cmp(&b),
            _ => a.as_f64().unwrap_or_default().total_cmp(&b.as_f64().unwrap_or_default()),
        },
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Array(a), Value::Array(b)) => {
            let items = a.iter().zip(b).map(|(a, b)| compare_values(a, b));
            items.fold(Ordering::Equal, Ordering::then).then(a.len().cmp(&b.len()))
        }
        (Value::Object(a), Value::Object(b)) => {
            let mut a: Vec<_> = a.iter().collect();
            let mut b: Vec<_> = b.iter().collect();
            a.sort_by_key(|(key, _)| *key);
            b.sort_by_key(|(key, _)| *key);
            let entries =
                a.iter().zip(&b).map(|((a_key, a), (b_key, b))| a_key.cmp(b_key).then_with(|| compare_values(a, b)));
            entries.fold(Ordering::Equal, Ordering::then).then(a.len().cmp(&b.len()))
        }
        (a, b) => rank(a).cmp(&rank(b)),
    }
}

/// Equality in which `1` and `1.0` are the same.
pub fn equal_values(a: &Value, b: &Value) -> bool {
    compare_values(a, b).is_eq()
}

/// A path as conflict messages show it.
pub fn path_text(path: &[PathElement]) -> String {
    path.iter().map(ToString::to_string).collect()
}
