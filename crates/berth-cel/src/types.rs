//! Static types of the checker.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

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
