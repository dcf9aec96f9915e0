//! Maps, and sets of constants.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde_json::{Map as JsonMap, Value as Json};

use super::{List, Outcome, Text, Value, untyped, view};
use crate::decl::{Decl, DeclKind};
use crate::error::EvalError;

/// A map: borrowed from JSON, or created by an expression.
#[derive(Clone, Debug)]
pub enum Map<'a> {
    /// Entries, or fields, of an object.
    Json(&'a JsonMap<String, Json>, Option<&'a Decl>),
    /// Entries created by an expression.
    Owned(Arc<OwnedMap<'a>>),
}

/// A map created by an expression.
#[derive(Clone, Debug, Default)]
pub struct OwnedMap<'a> {
    entries: BTreeMap<Key, (Value<'a>, Value<'a>)>,
    /// The value of every key that has no entry. Such a key is still not in the map.
    default: Option<Box<Value<'a>>>,
}

/// A key, equal across number types.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Key {
    Bool(bool),
    Int(i64),
    /// An integer beyond the range of `i64`.
    Uint(u64),
    /// The bits of a float that equals no integer. No map contains such a key.
    Double(u64),
    String(Box<str>),
}

/// A set of simple constants for lookups.
#[derive(Debug)]
pub(crate) struct Constants {
    /// Separate from the other constants, so that a string is looked up without copying it.
    texts: HashSet<Box<str>>,
    others: HashSet<Key>,
}

impl Constants {
    /// The items of a list; `None` if an item has no simple type.
    pub(crate) fn of(list: &List<'_>) -> Option<Constants> {
        let mut constants = Constants { texts: HashSet::new(), others: HashSet::new() };
        for item in list.iter() {
            match item.ok()? {
                Value::String(text) => {
                    constants.texts.insert((*text).into());
                }
                // NaN has no key: it equals no value, itself included.
                item @ (Value::Bool(_) | Value::Int(_) | Value::Uint(_) | Value::Double(_)) => {
                    constants.others.extend(Key::of(&item));
                }
                _ => return None,
            }
        }
        Some(constants)
    }

    /// True if a value [equals](Value::equals) one of the constants.
    pub(crate) fn contains(&self, item: &Value<'_>) -> bool {
        match item {
            Value::Unknown(json) => self.contains(&untyped(json)),
            Value::String(text) => self.texts.contains(&**text),
            item => Key::of(item).is_some_and(|key| self.others.contains(&key)),
        }
    }
}

/// The first integer beyond the range of `i64`.
const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;

impl Key {
    fn of(value: &Value<'_>) -> Option<Key> {
        Some(match value {
            Value::Bool(value) => Key::Bool(*value),
            Value::Int(value) => Key::Int(*value),
            Value::Uint(value) => i64::try_from(*value).map_or(Key::Uint(*value), Key::Int),
            // A whole float finds the integer it equals. Both bounds are powers of two, so the
            // range is exact.
            Value::Double(value) if value.fract() == 0.0 && (-TWO_TO_63..TWO_TO_63).contains(value) => {
                Key::Int(*value as i64)
            }
            Value::Double(value) if value.fract() == 0.0 && (TWO_TO_63..2.0 * TWO_TO_63).contains(value) => {
                Key::Uint(*value as u64)
            }
            Value::Double(value) if !value.is_nan() => Key::Double(value.to_bits()),
            Value::String(text) => Key::String((**text).into()),
            _ => return None,
        })
    }
}

impl<'a> OwnedMap<'a> {
    /// An empty map that has this value for every other key.
    pub(crate) fn with_default(value: Value<'a>) -> Self {
        OwnedMap { entries: BTreeMap::new(), default: Some(Box::new(value)) }
    }

    /// Adds an entry; fails if the key has an invalid type or exists already.
    pub(crate) fn insert(&mut self, key: Value<'a>, value: Value<'a>) -> Result<(), EvalError> {
        let plain = match &key {
            Value::Double(_) => None,
            other => Key::of(other),
        };
        let Some(plain) = plain else {
            return Err(EvalError::message(format!("unsupported key type: {}", key.type_name())));
        };
        if self.entries.contains_key(&plain) {
            let shown = key.to_json().map(|json| json.to_string()).unwrap_or_default();
            return Err(EvalError::message(format!("insert failed: key {} already exists", shown.trim_matches('"'))));
        }
        self.entries.insert(plain, (key, value));
        Ok(())
    }

    /// Adds the entries of another map.
    pub(crate) fn insert_all(&mut self, from: &Map<'a>) -> Result<(), EvalError> {
        for key in from.keys() {
            if let Some(value) = from.get(&key) {
                self.insert(key, value?)?;
            }
        }
        Ok(())
    }

    fn get(&self, key: &Value<'_>) -> Option<&Value<'a>> {
        let entry = self.entries.get(&Key::of(key)?).map(|(_, value)| value);
        entry.or(self.default.as_deref())
    }

    fn contains(&self, key: &Value<'_>) -> bool {
        Key::of(key).is_some_and(|key| self.entries.contains_key(&key))
    }
}

impl<'a> Map<'a> {
    /// The number of entries.
    pub fn len(&self) -> usize {
        match self {
            Map::Json(map, _) => map.len(),
            Map::Owned(map) => map.entries.len(),
        }
    }

    /// True if the map is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn is_object(&self) -> bool {
        matches!(self, Map::Json(_, Some(Decl { kind: DeclKind::Object(_), .. })))
    }

    /// The value under a string key; for objects, the field with this (escaped) name.
    pub(crate) fn get_str(&self, key: &str) -> Option<Outcome<'a>> {
        match self {
            Map::Json(map, Some(Decl { kind: DeclKind::Object(fields), .. })) => {
                let field = fields.get(key)?;
                Some(view(map.get(&field.name)?, Some(&field.decl)))
            }
            Map::Json(map, decl) => {
                let value = map.get(key)?;
                match decl.map(|decl| &decl.kind) {
                    Some(DeclKind::Map(values)) => Some(view(value, Some(values))),
                    Some(DeclKind::EmptyMap) => None,
                    _ => Some(view(value, None)),
                }
            }
            Map::Owned(map) => map.get(&Value::String(Text::Owned(key.into()))).cloned().map(Ok),
        }
    }

    /// The entries that match their declaration.
    pub fn entries(&self) -> Vec<(Value<'a>, Value<'a>)> {
        let entry = |key: Value<'a>| Some((key.clone(), self.get(&key)?.ok()?));
        self.keys().into_iter().filter_map(entry).collect()
    }

    pub(crate) fn get(&self, key: &Value<'a>) -> Option<Outcome<'a>> {
        match (self, key) {
            (_, Value::String(key)) => self.get_str(key),
            (Map::Owned(map), key) => map.get(key).cloned().map(Ok),
            _ => None,
        }
    }

    /// True if the map has an entry with this key.
    pub(crate) fn contains(&self, key: &Value<'a>) -> bool {
        match self {
            Map::Owned(map) => map.contains(key),
            Map::Json(..) => self.get(key).is_some(),
        }
    }

    pub(crate) fn keys(&self) -> Vec<Value<'a>> {
        match self {
            Map::Json(map, Some(Decl { kind: DeclKind::Object(fields), .. })) => fields
                .iter()
                .filter(|(_, field)| !field.is_alias && map.contains_key(&field.name))
                .map(|(name, _)| Value::from(name.as_str()))
                .collect(),
            Map::Json(_, Some(Decl { kind: DeclKind::EmptyMap, .. })) => Vec::new(),
            Map::Json(map, _) => map.keys().map(|key| Value::from(key.as_str())).collect(),
            Map::Owned(map) => map.entries.values().map(|(key, _)| key.clone()).collect(),
        }
    }

    pub(super) fn equals(&self, other: &Map<'a>) -> Result<bool, EvalError> {
        if let (Map::Json(a, Some(decl)), Map::Json(b, Some(_))) = (self, other)
            && let DeclKind::Object(fields) = &decl.kind
        {
            if a.len() != b.len() {
                return Ok(false);
            }
            for (name, value) in *a {
                let Some(old) = b.get(name) else { return Ok(false) };
                let field = fields.values().find(|field| field.name == *name);
                // Undeclared fields can still differ.
                let same = match field {
                    Some(field) => view(value, Some(&field.decl))?.equals(&view(old, Some(&field.decl))?)?,
                    None => value == old,
                };
                if !same {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
        let keys = self.keys();
        if keys.len() != other.keys().len() {
            return Ok(false);
        }
        for key in keys {
            match (self.get(&key), other.get(&key)) {
                (Some(a), Some(b)) => {
                    if !a?.equals(&b?)? {
                        return Ok(false);
                    }
                }
                _ => return Ok(false),
            }
        }
        Ok(true)
    }
}
