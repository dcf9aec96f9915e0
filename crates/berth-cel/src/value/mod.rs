//! Values of expressions. Values of objects are borrowed views of JSON, typed by their declaration;
//! only values that an expression creates are owned.

mod list;
mod map;
mod named_format;
mod network;
mod semver;
mod text;
mod time;
mod url;
mod view;

pub use list::List;
pub(crate) use list::contains;
pub(crate) use map::Constants;
pub use map::{Map, OwnedMap};
pub use named_format::NamedFormat;
pub(crate) use named_format::{NAMED_FORMATS, named_format};
pub use network::Cidr;
pub(crate) use network::{parse_cidr, parse_ip};
pub use semver::Semver;
pub use text::Text;
pub(crate) use text::{bytes_of, text_of_bytes, text_of_double};
pub use time::Timestamp;
pub(crate) use time::{CYCLE_YEARS, format_duration, offset_of, parse_duration};
pub use url::Url;
pub use view::untyped;
pub(crate) use view::view;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use berth_apimachinery::quantity::Quantity;
use serde_json::{Map as JsonMap, Number, Value as Json};

use crate::authorization::{Check, Verdict};
use crate::decl::DeclKind;
use crate::error::EvalError;
use crate::types::{ObjectType, Type};

/// The result of an evaluation.
pub(crate) type Outcome<'a> = Result<Value<'a>, EvalError>;

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
    Decision(Arc<Verdict>),
}

/// An object created by an expression.
#[derive(Clone, Debug)]
pub struct Struct<'a> {
    /// The name of its type.
    pub name: String,
    /// The fields that the expression sets.
    pub fields: BTreeMap<String, Value<'a>>,
}

impl From<Check> for Value<'_> {
    fn from(check: Check) -> Self {
        Value::Check(Arc::new(check))
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
            Value::Struct(value) => Type::Object(Arc::new(ObjectType { name: value.name.clone(), fields: None })),
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

    /// The size for cost accounting: the length of strings, octets, lists and maps, the number of
    /// octets of addresses and networks, and one for other values.
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
            Value::Bytes(bytes) => Json::from(text_of_bytes(bytes)),
            Value::Timestamp(at) => Json::from(at.to_string()),
            Value::Duration(nanos) => Json::from(format_duration(*nanos)),
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
