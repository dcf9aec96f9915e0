//! Values of expressions. Values of objects are borrowed views of JSON, typed by their declaration;
//! only values that an expression creates are owned.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use berth_apimachinery::quantity::Quantity;
use serde_json::{Map as JsonMap, Number, Value as Json};

use crate::decl::{Decl, DeclKind, ListKind};
use crate::eval::EvalError;
use crate::library::{Check, Cidr, Decision, NamedFormat, Semver, Url, parse_duration, parse_timestamp};
use crate::types::Type;

/// A value.
#[derive(Clone, Debug)]
pub enum Value<'a> {
    /// `null`.
    Null,
    /// A boolean.
    Bool(bool),
    /// A signed integer.
    Int(i64),
    /// An unsigned integer.
    Uint(u64),
    /// A float.
    Double(f64),
    /// A string.
    String(Text<'a>),
    /// Octets.
    Bytes(Arc<[u8]>),
    /// A timestamp.
    Timestamp(Timestamp),
    /// A duration, in nanoseconds.
    Duration(i64),
    /// A list.
    List(List<'a>),
    /// A map, or an object with declared fields.
    Map(Map<'a>),
    /// An optional value.
    Optional(Option<Arc<Value<'a>>>),
    /// A type.
    Type(Type),
    /// An object created by an expression (`Object.spec{...}`, `JSONPatch{...}`).
    Struct(Arc<Struct<'a>>),
    /// An untyped value, which supports only equality.
    Unknown(&'a Json),
    /// The variables of a policy.
    Variables,
    /// An IP address.
    Ip(IpAddr),
    /// An IP network.
    Cidr(Cidr),
    /// A URL.
    Url(Arc<Url>),
    /// A quantity.
    Quantity(Quantity),
    /// A semantic version.
    Semver(Arc<Semver>),
    /// A named format.
    Format(&'static NamedFormat),
    /// An incomplete authorization check.
    Check(Arc<Check>),
    /// The result of an authorization check.
    Decision(Arc<Decision>),
}

/// A string, borrowed if possible.
#[derive(Clone, Debug)]
pub enum Text<'a> {
    /// A part of an object or expression.
    Borrowed(&'a str),
    /// Created by an expression.
    Owned(Arc<str>),
}

impl std::ops::Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Text::Borrowed(text) => text,
            Text::Owned(text) => text,
        }
    }
}

/// A timestamp.
#[derive(Clone, Copy, Debug)]
pub struct Timestamp {
    /// Seconds since 1970 in UTC.
    pub seconds: i64,
    /// Nanoseconds within the second.
    pub nanos: u32,
    /// Offset of the original zone from UTC in seconds, positive to the east. Only the text form
    /// shows it.
    pub offset: i32,
}

impl PartialEq for Timestamp {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Timestamp {}

impl PartialOrd for Timestamp {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timestamp {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.seconds, self.nanos).cmp(&(other.seconds, other.nanos))
    }
}

impl Timestamp {
    /// True for years 1 to 9999.
    pub(crate) fn is_in_range(seconds: i64) -> bool {
        (-62_135_596_800..=253_402_300_799).contains(&seconds)
    }

    pub(crate) fn checked(seconds: i64, nanos: u32, offset: i32) -> Result<Timestamp, EvalError> {
        if Timestamp::is_in_range(seconds) {
            Ok(Timestamp { seconds, nanos, offset })
        } else {
            Err(EvalError::message("timestamp out of range"))
        }
    }
}

/// A list: borrowed from JSON, or created by an expression.
#[derive(Clone, Debug)]
pub enum List<'a> {
    /// Items of an object.
    Json(&'a [Json], Option<&'a Decl>),
    /// Items created by an expression.
    Owned(Arc<Vec<Value<'a>>>),
}

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

/// An object created by an expression.
#[derive(Clone, Debug)]
pub struct Struct<'a> {
    /// The name of its type.
    pub name: String,
    /// The fields that the expression sets.
    pub fields: BTreeMap<String, Value<'a>>,
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

    fn get(&self, key: &Value<'_>) -> Option<&Value<'a>> {
        self.entries.get(&Key::of(key)?).map(|(_, value)| value)
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Value::String(Text::Borrowed(text))
    }
}

impl From<String> for Value<'_> {
    fn from(text: String) -> Self {
        Value::String(Text::Owned(text.into()))
    }
}

impl<'a> From<Vec<Value<'a>>> for Value<'a> {
    fn from(items: Vec<Value<'a>>) -> Self {
        Value::List(List::Owned(Arc::new(items)))
    }
}

impl<'a> List<'a> {
    /// The number of items.
    pub fn len(&self) -> usize {
        match self {
            List::Json(items, _) => items.len(),
            List::Owned(items) => items.len(),
        }
    }

    /// True if the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The item at an index, if it exists and matches its declaration.
    pub fn item(&self, index: usize) -> Option<Value<'a>> {
        self.get(index)?.ok()
    }

    pub(crate) fn get(&self, index: usize) -> Option<Result<Value<'a>, EvalError>> {
        match self {
            List::Json(items, decl) => Some(view(items.get(index)?, decl.and_then(Decl::items))),
            List::Owned(items) => items.get(index).cloned().map(Ok),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Result<Value<'a>, EvalError>> + '_ {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    fn kind(&self) -> Option<&'a ListKind> {
        match self {
            List::Json(_, Some(Decl { kind: DeclKind::List { kind, .. }, .. })) => Some(kind),
            _ => None,
        }
    }

    /// The values of the key `fields` of an item, for keyed lists.
    fn keys(item: &Value<'a>, fields: &[String]) -> Vec<Option<Value<'a>>> {
        fields
            .iter()
            .map(|field| match item {
                // Looked up by the name in the object, because keys need not be identifiers.
                Value::Map(Map::Json(map, _)) => map.get(field).map(untyped),
                Value::Map(map) => map.get_str(field).and_then(Result::ok),
                _ => None,
            })
            .collect()
    }

    pub(crate) fn equals(&self, other: &List<'a>) -> Result<bool, EvalError> {
        if self.len() != other.len() {
            return Ok(false);
        }
        let unordered = match (self.kind(), other.kind()) {
            (Some(kind), _) if *kind != ListKind::Atomic => Some(kind),
            (_, Some(kind)) if *kind != ListKind::Atomic => Some(kind),
            _ => None,
        };
        let Some(kind) = unordered else {
            for (a, b) in self.iter().zip(other.iter()) {
                if !a?.equals(&b?)? {
                    return Ok(false);
                }
            }
            return Ok(true);
        };
        let mut rest: Vec<Value<'a>> = other.iter().collect::<Result<_, _>>()?;
        for item in self.iter() {
            let item = item?;
            let found = match kind {
                ListKind::Map(fields) => {
                    let keys = List::keys(&item, fields);
                    rest.iter().position(|other| same_keys(&keys, &List::keys(other, fields)))
                }
                _ => rest.iter().position(|other| item.equals(other).unwrap_or(false)),
            };
            let Some(found) = found else { return Ok(false) };
            if !item.equals(&rest.swap_remove(found))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// `a + b`: appended, or merged if the left list is a set or keyed list.
    pub(crate) fn concat(&self, other: &List<'a>) -> Result<Value<'a>, EvalError> {
        let mut items: Vec<Value<'a>> = self.iter().collect::<Result<_, _>>()?;
        match self.kind() {
            Some(ListKind::Set) => {
                for item in other.iter() {
                    let item = item?;
                    if !contains(&items, &item)? {
                        items.push(item);
                    }
                }
            }
            Some(ListKind::Map(fields)) => {
                for item in other.iter() {
                    let item = item?;
                    let keys = List::keys(&item, fields);
                    match items.iter().position(|mine| same_keys(&keys, &List::keys(mine, fields))) {
                        Some(found) => items[found] = item,
                        None => items.push(item),
                    }
                }
                // A merged list keeps its keys for later comparisons.
                return Ok(Value::List(List::Owned(Arc::new(items))));
            }
            _ => {
                for item in other.iter() {
                    items.push(item?);
                }
            }
        }
        Ok(Value::List(List::Owned(Arc::new(items))))
    }
}

fn same_keys(a: &[Option<Value<'_>>], b: &[Option<Value<'_>>]) -> bool {
    a.iter().zip(b).all(|(a, b)| match (a, b) {
        (Some(a), Some(b)) => a.equals(b).unwrap_or(false),
        (None, None) => true,
        _ => false,
    })
}

pub(crate) fn contains<'a>(items: &[Value<'a>], wanted: &Value<'a>) -> Result<bool, EvalError> {
    for item in items {
        if item.equals(wanted)? {
            return Ok(true);
        }
    }
    Ok(false)
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
    pub(crate) fn get_str(&self, key: &str) -> Option<Result<Value<'a>, EvalError>> {
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

    pub(crate) fn get(&self, key: &Value<'a>) -> Option<Result<Value<'a>, EvalError>> {
        match (self, key) {
            (_, Value::String(key)) => self.get_str(key),
            (Map::Owned(map), key) => map.get(key).cloned().map(Ok),
            _ => None,
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

    fn equals(&self, other: &Map<'a>) -> Result<bool, EvalError> {
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

/// A JSON value typed by its declaration; without one, typed by its JSON type.
pub(crate) fn view<'a>(json: &'a Json, decl: Option<&'a Decl>) -> Result<Value<'a>, EvalError> {
    let Some(decl) = decl else { return Ok(untyped(json)) };
    if json.is_null() {
        return if decl.nullable {
            Ok(Value::Null)
        } else {
            Err(EvalError::message("invalid data, got null for schema with nullable=false"))
        };
    }
    let wrong = |text: &str| Err(EvalError::message(format!("invalid data, expected {text}")));
    match &decl.kind {
        DeclKind::Unknown => Ok(Value::Unknown(json)),
        DeclKind::IntOrString => match json {
            Json::String(text) => Ok(Value::from(text.as_str())),
            Json::Number(number) if number.is_i64() => Ok(untyped(json)),
            _ => wrong("XIntOrString value to be either a string or integer"),
        },
        DeclKind::Object(_) | DeclKind::Map(_) | DeclKind::EmptyMap => match json {
            Json::Object(map) => Ok(Value::Map(Map::Json(map, Some(decl)))),
            _ => wrong("a map for the provided schema with type=object"),
        },
        DeclKind::List { .. } => match json {
            Json::Array(items) => Ok(Value::List(List::Json(items, Some(decl)))),
            _ => wrong("an array for the provided schema with type=array"),
        },
        DeclKind::Bool => match json {
            Json::Bool(value) => Ok(Value::Bool(*value)),
            other => wrong(&format!("bool, got {}", go_type(other))),
        },
        DeclKind::Int => match json {
            Json::Number(number) if number.is_i64() => Ok(untyped(json)),
            other => wrong(&format!("int, got {}", go_type(other))),
        },
        DeclKind::Double => match json {
            Json::Number(number) => Ok(Value::Double(number.as_f64().unwrap_or(f64::NAN))),
            other => wrong(&format!("float, got {}", go_type(other))),
        },
        DeclKind::String | DeclKind::Bytes | DeclKind::Date | DeclKind::DateTime | DeclKind::Duration => {
            let Json::String(text) = json else { return wrong(&format!("string, got {}", go_type(json))) };
            formatted(text, &decl.kind)
        }
    }
}

fn formatted<'a>(text: &'a str, kind: &DeclKind) -> Result<Value<'a>, EvalError> {
    let invalid = |what: &str| EvalError::message(format!("Invalid {what} formatted string {text}"));
    match kind {
        DeclKind::Bytes => crate::library::bytes_of(text).map(Value::Bytes).ok_or_else(|| invalid("byte")),
        DeclKind::Date => {
            parse_timestamp(&format!("{text}T00:00:00Z")).map(Value::Timestamp).ok_or_else(|| invalid("date"))
        }
        DeclKind::DateTime => parse_timestamp(text).map(Value::Timestamp).ok_or_else(|| invalid("date-time")),
        DeclKind::Duration => berth_apimachinery::times::parse_duration(text)
            .ok()
            .and_then(|duration| i64::try_from(duration.as_nanos()).ok())
            .or_else(|| parse_duration(text))
            .map(Value::Duration)
            .ok_or_else(|| invalid("duration")),
        _ => Ok(Value::from(text)),
    }
}

fn go_type(json: &Json) -> &'static str {
    match json {
        Json::Null => "<nil>",
        Json::Bool(_) => "bool",
        Json::Number(number) if number.is_f64() => "float64",
        Json::Number(_) => "int64",
        Json::String(_) => "string",
        Json::Array(_) => "[]interface {}",
        Json::Object(_) => "map[string]interface {}",
    }
}

/// A JSON value without a declaration.
pub fn untyped(json: &Json) -> Value<'_> {
    match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Value::Int(value),
            (None, Some(value)) => Value::Uint(value),
            _ => Value::Double(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::List(List::Json(items, None)),
        Json::Object(map) => Value::Map(Map::Json(map, None)),
    }
}

impl<'a> Value<'a> {
    /// The type as a value, without parameters.
    pub(crate) fn type_(&self) -> Type {
        match self {
            Value::Null => Type::Null,
            Value::Bool(_) => Type::Bool,
            Value::Int(_) => Type::Int,
            Value::Uint(_) => Type::Uint,
            Value::Double(_) => Type::Double,
            Value::String(_) => Type::String,
            Value::Bytes(_) => Type::Bytes,
            Value::Timestamp(_) => Type::Timestamp,
            Value::Duration(_) => Type::Duration,
            Value::List(_) => Type::list(Type::Dyn),
            Value::Map(Map::Json(_, Some(decl))) if matches!(decl.kind, DeclKind::Object(_)) => decl.type_.clone(),
            Value::Map(_) | Value::Variables => Type::map(Type::Dyn, Type::Dyn),
            Value::Optional(_) => Type::optional(Type::Dyn),
            Value::Type(_) => Type::Type(None),
            Value::Struct(value) => {
                Type::Object(Arc::new(crate::types::ObjectType { name: value.name.clone(), fields: None }))
            }
            Value::Unknown(_) => Type::Dyn,
            Value::Ip(_) => Type::Opaque("net.IP"),
            Value::Cidr(_) => Type::Opaque("net.CIDR"),
            Value::Url(_) => Type::Opaque("kubernetes.URL"),
            Value::Quantity(_) => Type::Opaque("kubernetes.Quantity"),
            Value::Semver(_) => Type::Opaque("kubernetes.Semver"),
            Value::Format(_) => Type::Opaque("kubernetes.NamedFormat"),
            Value::Check(check) => Type::Opaque(check.type_name()),
            Value::Decision(_) => Type::Opaque("kubernetes.authorization.Decision"),
        }
    }

    /// The name of the type.
    pub fn type_name(&self) -> String {
        self.type_().name().to_owned()
    }

    /// The size for cost accounting: the length of strings, lists and maps, one for other values.
    pub(crate) fn size(&self) -> u64 {
        let size = match self {
            Value::String(text) => text.chars().count(),
            Value::Bytes(bytes) => bytes.len(),
            Value::List(list) => list.len(),
            Value::Map(map) => map.len(),
            Value::Unknown(Json::Object(map)) => map.len(),
            Value::Unknown(Json::Array(items)) => items.len(),
            Value::Cidr(cidr) => cidr.octets(),
            Value::Ip(IpAddr::V4(_)) => 4,
            Value::Ip(IpAddr::V6(_)) => 16,
            _ => 1,
        };
        size as u64
    }

    /// `==`. Values of different types are unequal; numbers compare by value. Fails if data does
    /// not match its declaration.
    pub(crate) fn equals(&self, other: &Value<'a>) -> Result<bool, EvalError> {
        Ok(match (self, other) {
            (Value::Null, Value::Null) => true,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::Int(_) | Value::Uint(_) | Value::Double(_), Value::Int(_) | Value::Uint(_) | Value::Double(_)) => {
                self.compare(other) == Some(Ordering::Equal)
            }
            (Value::String(a), Value::String(b)) => **a == **b,
            (Value::Bytes(a), Value::Bytes(b)) => a == b,
            (Value::Timestamp(a), Value::Timestamp(b)) => a == b,
            (Value::Duration(a), Value::Duration(b)) => a == b,
            (Value::List(a), Value::List(b)) => a.equals(b)?,
            (Value::Map(a), Value::Map(b)) => a.equals(b)?,
            (Value::Optional(a), Value::Optional(b)) => match (a, b) {
                (Some(a), Some(b)) => a.equals(b)?,
                (None, None) => true,
                _ => false,
            },
            (Value::Type(a), Value::Type(b)) => a.name() == b.name(),
            (Value::Struct(a), Value::Struct(b)) => {
                if a.name != b.name || a.fields.len() != b.fields.len() {
                    return Ok(false);
                }
                for (name, value) in &a.fields {
                    match b.fields.get(name) {
                        Some(other) if value.equals(other)? => {}
                        _ => return Ok(false),
                    }
                }
                true
            }
            (Value::Unknown(a), Value::Unknown(b)) => a == b,
            (Value::Unknown(a), b) | (b, Value::Unknown(a)) => untyped(a).equals(b)?,
            (Value::Ip(a), Value::Ip(b)) => a == b,
            (Value::Cidr(a), Value::Cidr(b)) => a == b,
            (Value::Url(a), Value::Url(b)) => a == b,
            (Value::Quantity(a), Value::Quantity(b)) => a == b,
            (Value::Semver(a), Value::Semver(b)) => a.compare(b) == Ordering::Equal,
            (Value::Format(a), Value::Format(b)) => std::ptr::eq(*a, *b),
            _ => false,
        })
    }

    /// The order of two values of an ordered type; `None` if they are not ordered.
    pub(crate) fn compare(&self, other: &Value<'a>) -> Option<Ordering> {
        Some(match (self, other) {
            (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
            (Value::Int(a), Value::Int(b)) => a.cmp(b),
            (Value::Uint(a), Value::Uint(b)) => a.cmp(b),
            (Value::Double(a), Value::Double(b)) => a.partial_cmp(b)?,
            (Value::Int(a), Value::Uint(b)) => u64::try_from(*a).map_or(Ordering::Less, |a| a.cmp(b)),
            (Value::Uint(a), Value::Int(b)) => u64::try_from(*b).map_or(Ordering::Greater, |b| a.cmp(&b)),
            (Value::Int(a), Value::Double(b)) => compare_whole(i128::from(*a), *b)?,
            (Value::Uint(a), Value::Double(b)) => compare_whole(i128::from(*a), *b)?,
            (Value::Double(a), Value::Int(b)) => compare_whole(i128::from(*b), *a)?.reverse(),
            (Value::Double(a), Value::Uint(b)) => compare_whole(i128::from(*b), *a)?.reverse(),
            (Value::String(a), Value::String(b)) => (**a).cmp(&**b),
            (Value::Bytes(a), Value::Bytes(b)) => a.cmp(b),
            (Value::Timestamp(a), Value::Timestamp(b)) => a.cmp(b),
            (Value::Duration(a), Value::Duration(b)) => a.cmp(b),
            _ => return None,
        })
    }

    /// The value as JSON; `None` if JSON cannot represent it.
    pub fn to_json(&self) -> Option<Json> {
        Some(match self {
            Value::Null => Json::Null,
            Value::Bool(value) => Json::Bool(*value),
            Value::Int(value) => Json::from(*value),
            Value::Uint(value) => Json::from(*value),
            Value::Double(value) => Json::Number(Number::from_f64(*value)?),
            Value::String(text) => Json::from(&**text),
            Value::Bytes(bytes) => Json::from(crate::library::text_of_bytes(bytes)),
            Value::Timestamp(at) => Json::from(crate::library::format_timestamp(*at)),
            Value::Duration(nanos) => Json::from(crate::library::format_duration(*nanos)),
            Value::List(list) => Json::Array(list.iter().map(|item| item.ok()?.to_json()).collect::<Option<_>>()?),
            Value::Map(Map::Json(map, None)) => Json::Object((*map).clone()),
            Value::Map(map) => {
                let mut fields = JsonMap::new();
                for key in map.keys() {
                    let value = map.get(&key)?.ok()?.to_json()?;
                    let Json::String(key) = key.to_json()? else { return None };
                    fields.insert(key, value);
                }
                Json::Object(fields)
            }
            Value::Struct(value) => {
                let fields = value.fields.iter().map(|(name, value)| Some((name.clone(), value.to_json()?)));
                Json::Object(fields.collect::<Option<_>>()?)
            }
            Value::Unknown(json) => (*json).clone(),
            Value::Optional(Some(value)) => value.to_json()?,
            Value::Quantity(quantity) => Json::from(quantity.to_string()),
            _ => return None,
        })
    }
}

/// Compares an integer with a float exactly.
fn compare_whole(whole: i128, float: f64) -> Option<Ordering> {
    if float.is_nan() {
        return None;
    }
    if float >= 1e30 {
        return Some(Ordering::Less);
    }
    if float <= -1e30 {
        return Some(Ordering::Greater);
    }
    let floor = float.floor();
    match whole.cmp(&(floor as i128)) {
        Ordering::Equal if float > floor => Some(Ordering::Less),
        order => Some(order),
    }
}
