//! Static types of the checker.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

/// A type of the language.
#[derive(Clone, Debug, PartialEq)]
pub enum Type {
    /// A type that is known only at run time.
    Dyn,
    /// The type of an ill-typed expression. It unifies with every type, so that one mistake is
    /// reported once.
    Error,
    /// `null`.
    Null,
    /// Boolean.
    Bool,
    /// 64-bit signed integer.
    Int,
    /// 64-bit unsigned integer.
    Uint,
    /// 64-bit float.
    Double,
    /// String.
    String,
    /// Octets.
    Bytes,
    /// Timestamp.
    Timestamp,
    /// Duration.
    Duration,
    /// A list with items of a type.
    List(Arc<Type>),
    /// A map with keys and values of a type.
    Map(Arc<Type>, Arc<Type>),
    /// An optional value.
    Optional(Arc<Type>),
    /// The type of a type.
    Type(Option<Arc<Type>>),
    /// A type of a library, e.g. `net.IP`.
    Opaque(&'static str),
    /// An object with fields.
    Object(Arc<ObjectType>),
    /// A type parameter, bound at each use.
    Param(u32),
}

/// A type with fields.
#[derive(Debug)]
pub struct ObjectType {
    /// Name of the type in messages.
    pub name: String,
    /// Types of the fields by their name in expressions; `None` allows every field.
    pub fields: Option<BTreeMap<String, Type>>,
}

impl ObjectType {
    /// A type with the given fields.
    pub fn new(
        name: impl Into<String>,
        fields: impl IntoIterator<Item = (impl Into<String>, Type)>,
    ) -> Arc<ObjectType> {
        let fields = fields.into_iter().map(|(name, type_)| (name.into(), type_)).collect();
        Arc::new(ObjectType { name: name.into(), fields: Some(fields) })
    }

    /// The type of a field, if there is one.
    pub fn field(&self, name: &str) -> Option<Type> {
        match &self.fields {
            Some(fields) => fields.get(name).cloned(),
            None => Some(Type::Dyn),
        }
    }
}

/// Object types are equal if their names are, as upstream.
impl PartialEq for ObjectType {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Type {
    /// A list of items of a type.
    pub fn list(item: Type) -> Type {
        Type::List(Arc::new(item))
    }

    /// A map.
    pub fn map(key: Type, value: Type) -> Type {
        Type::Map(Arc::new(key), Arc::new(value))
    }

    /// An optional value.
    pub fn optional(value: Type) -> Type {
        Type::Optional(Arc::new(value))
    }

    pub(crate) fn is_dyn_or_error(&self) -> bool {
        matches!(self, Type::Dyn | Type::Error)
    }

    /// The name of the type as a value, without parameters.
    pub(crate) fn name(&self) -> &str {
        match self {
            Type::Dyn | Type::Param(_) => "dyn",
            Type::Error => "error",
            Type::Null => "null_type",
            Type::Bool => "bool",
            Type::Int => "int",
            Type::Uint => "uint",
            Type::Double => "double",
            Type::String => "string",
            Type::Bytes => "bytes",
            Type::Timestamp => "google.protobuf.Timestamp",
            Type::Duration => "google.protobuf.Duration",
            Type::List(_) => "list",
            Type::Map(..) => "map",
            Type::Optional(_) => "optional_type",
            Type::Type(_) => "type",
            Type::Opaque(name) => name,
            Type::Object(object) => &object.name,
        }
    }
}

/// The type as error messages spell it.
impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Error => f.write_str("!error!"),
            Type::Null => f.write_str("null"),
            Type::Timestamp => f.write_str("timestamp"),
            Type::Duration => f.write_str("duration"),
            Type::List(item) => write!(f, "list({item})"),
            Type::Map(key, value) => write!(f, "map({key}, {value})"),
            Type::Optional(value) => write!(f, "optional_type({value})"),
            Type::Type(Some(of)) => write!(f, "type({of})"),
            other => f.write_str(other.name()),
        }
    }
}

/// An overload of a function.
#[derive(Clone, Debug)]
pub(crate) struct Overload {
    pub member: bool,
    /// Parameter types; the target of a method comes first.
    pub params: Vec<Type>,
    pub result: Type,
    /// The compatibility version (minor) that introduced it.
    pub since: u32,
}

/// Every function with its overloads.
pub(crate) static FUNCTIONS: LazyLock<BTreeMap<&'static str, Vec<Overload>>> = LazyLock::new(|| {
    let mut functions: BTreeMap<&'static str, Vec<Overload>> = BTreeMap::new();
    for (since, signatures) in crate::library::SIGNATURES {
        for signature in signatures.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (name, overload) = parse_signature(signature, *since)
                .unwrap_or_else(|| panic!("a signature of the library cannot be read: {signature}"));
            functions.entry(name).or_default().push(overload);
        }
    }
    functions
});

/// Parses `target :: name(param, param) result`, or without a target for plain functions. Capital
/// letters are type parameters.
fn parse_signature(text: &'static str, since: u32) -> Option<(&'static str, Overload)> {
    let (target, rest) = match text.split_once(" :: ") {
        Some((target, rest)) => (Some(target), rest),
        None => (None, text),
    };
    let open = rest.find('(')?;
    let name = &rest[..open];
    let close = rest.rfind(") ")?;
    let mut params: Vec<Type> = Vec::new();
    if let Some(target) = target {
        params.push(parse_type(target)?);
    }
    for param in split_params(&rest[open + 1..close]) {
        params.push(parse_type(param)?);
    }
    let result = parse_type(rest[close + 2..].trim())?;
    Some((name, Overload { member: target.is_some(), params, result, since }))
}

fn split_params(text: &'static str) -> Vec<&'static str> {
    let mut depth = 0;
    text.split(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    })
    .map(str::trim)
    .filter(|param| !param.is_empty())
    .collect()
}

fn parse_type(text: &'static str) -> Option<Type> {
    if let (Some(open), true) = (text.find('('), text.ends_with(')')) {
        let mut params = split_params(&text[open + 1..text.len() - 1]).into_iter().map(parse_type);
        let first = params.next()??;
        return Some(match &text[..open] {
            "list" => Type::list(first),
            "map" => Type::map(first, params.next()??),
            "opt" => Type::optional(first),
            "type" => Type::Type(Some(Arc::new(first))),
            _ => return None,
        });
    }
    Some(match text {
        "dyn" => Type::Dyn,
        "null" => Type::Null,
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "timestamp" => Type::Timestamp,
        "duration" => Type::Duration,
        "type" => Type::Type(None),
        "A" => Type::Param(0),
        "B" => Type::Param(1),
        opaque => Type::Opaque(opaque),
    })
}

/// The type with this name, if the name is a value in expressions.
pub(crate) fn type_named(name: &str) -> Option<Type> {
    Some(match name {
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "null_type" => Type::Null,
        "list" => Type::list(Type::Dyn),
        "map" => Type::map(Type::Dyn, Type::Dyn),
        "type" => Type::Type(None),
        "dyn" => Type::Dyn,
        "optional_type" => Type::optional(Type::Dyn),
        "google.protobuf.Timestamp" => Type::Timestamp,
        "google.protobuf.Duration" => Type::Duration,
        "net.IP" => Type::Opaque("net.IP"),
        "net.CIDR" => Type::Opaque("net.CIDR"),
        "kubernetes.URL" => Type::Opaque("kubernetes.URL"),
        "kubernetes.Quantity" => Type::Opaque("kubernetes.Quantity"),
        "kubernetes.Semver" => Type::Opaque("kubernetes.Semver"),
        "kubernetes.NamedFormat" => Type::Opaque("kubernetes.NamedFormat"),
        _ => return None,
    })
}
