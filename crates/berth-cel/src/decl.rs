//! Declared types of objects, derived from structural schemas.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_apimachinery::schema::{AdditionalProperties, ListType, Schema, Type as SchemaType};

use crate::escape::{escape, is_keyword};
use crate::types::{ObjectType, Type};

/// Maximum request size in bytes; bounds estimated sizes where a schema has no limit.
pub(crate) const REQUEST_BYTES_MAX: u64 = 3 * 1024 * 1024;

/// The declaration of a schema node for expressions.
#[derive(Debug)]
pub struct Decl {
    pub(crate) kind: DeclKind,
    pub(crate) nullable: bool,
    pub(crate) type_: Type,
    /// Minimum size of a value in a request, in bytes.
    pub(crate) min_size: u64,
    /// Maximum number of characters, items or entries; `None` for scalars without a length.
    pub(crate) max_elements: Option<u64>,
}

#[derive(Debug)]
pub(crate) enum DeclKind {
    /// An untyped value: unknown fields are preserved, and expressions can only compare it.
    Unknown,
    IntOrString,
    Bool,
    Int,
    Double,
    String,
    Bytes,
    Date,
    DateTime,
    Duration,
    /// Fields by escaped name.
    Object(BTreeMap<String, Field>),
    Map(Arc<Decl>),
    /// An object without declared fields.
    EmptyMap,
    List {
        items: Arc<Decl>,
        kind: ListKind,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListKind {
    Atomic,
    Set,
    Map(Vec<String>),
}

#[derive(Debug)]
pub(crate) struct Field {
    /// The field name in the object.
    pub name: String,
    pub decl: Arc<Decl>,
    /// True for a second name of the same field.
    pub is_alias: bool,
}

impl Decl {
    /// The declaration of a schema; `None` if the schema lacks types that rules need.
    ///
    /// `resource` marks whole objects, whose apiVersion, kind, name and generateName are always
    /// visible.
    pub fn of_schema(schema: &Schema, resource: bool, name: &str) -> Option<Arc<Decl>> {
        declare(schema.target(), resource, name, 0).map(Arc::new)
    }

    pub(crate) fn items(&self) -> Option<&Decl> {
        match &self.kind {
            DeclKind::List { items, .. } => Some(items),
            _ => None,
        }
    }

    /// The declared type.
    pub fn type_(&self) -> &Type {
        &self.type_
    }

    /// Maximum size of a value in a request, in characters, items or entries.
    pub fn max_elements(&self) -> Option<u64> {
        self.max_elements
    }

    /// The declaration at a path of field names, `@items`, `@keys` and `@values`.
    pub(crate) fn at(&self, path: &[&str]) -> Option<&Decl> {
        static KEY: std::sync::LazyLock<Decl> =
            std::sync::LazyLock::new(|| Decl::simple(DeclKind::String, Type::String, 2));
        path.iter().try_fold(self, |node, step| match (&node.kind, *step) {
            (DeclKind::List { items, .. }, "@items") => Some(&**items),
            (DeclKind::Map(values), "@values") => Some(&**values),
            (DeclKind::Map(_), "@keys") => Some(&*KEY),
            (DeclKind::Object(fields), name) => fields.get(name).map(|field| &*field.decl),
            _ => None,
        })
    }

    fn simple(kind: DeclKind, type_: Type, min_size: u64) -> Decl {
        Decl { kind, nullable: false, type_, min_size, max_elements: None }
    }

    /// A string without constraints.
    fn text() -> Decl {
        Decl { max_elements: Some(REQUEST_BYTES_MAX - 2), ..Decl::simple(DeclKind::String, Type::String, 2) }
    }
}

/// Maximum depth of declarations; references of built-in kinds may be recursive.
const DEPTH_MAX: usize = 64;

fn declare(schema: &Schema, resource: bool, name: &str, depth: usize) -> Option<Decl> {
    if depth > DEPTH_MAX {
        return None;
    }
    let mut decl = declare_kind(schema, resource, name, depth)?;
    decl.nullable = schema.nullable;
    Some(decl)
}

fn declare_kind(schema: &Schema, resource: bool, name: &str, depth: usize) -> Option<Decl> {
    if schema.int_or_string {
        let decl = Decl::simple(DeclKind::IntOrString, Type::Dyn, 1);
        let max = schema.max_length.map_or(REQUEST_BYTES_MAX - 2, |max| max.saturating_mul(4));
        return Some(Decl { max_elements: Some(max), ..decl });
    }
    let resource = resource && matches!(schema.schema_type, None | Some(SchemaType::Object));
    let schema_type = if resource { Some(SchemaType::Object) } else { schema.schema_type };
    match schema_type {
        Some(SchemaType::Array) => {
            let items = schema.items.as_ref()?.target();
            let items = declare(items, items.embedded_resource, &format!("{name}.@idx"), depth + 1)?;
            let most = most_items(items.min_size);
            let max = schema.max_items.map_or(most, |max| max.min(most));
            let kind = match schema.list_type {
                Some(ListType::Set) => ListKind::Set,
                Some(ListType::Map) => ListKind::Map(schema.list_map_keys.clone()),
                _ => ListKind::Atomic,
            };
            let type_ = Type::list(items.type_.clone());
            let decl = Decl::simple(DeclKind::List { items: Arc::new(items), kind }, type_, 2);
            Some(Decl { max_elements: Some(max), ..decl })
        }
        Some(SchemaType::Object) => {
            if let Some(AdditionalProperties::Schema(values)) = &schema.additional_properties
                && !resource
            {
                let values = values.target();
                let values = declare(values, values.embedded_resource, &format!("{name}.@elem"), depth + 1)?;
                let max = schema.max_properties.unwrap_or_else(|| most_entries(values.min_size));
                let type_ = Type::map(Type::String, values.type_.clone());
                let decl = Decl::simple(DeclKind::Map(Arc::new(values)), type_, 2);
                return Some(Decl { max_elements: Some(max), ..decl });
            }
            Some(declare_object(schema, resource, name, depth))
        }
        Some(SchemaType::String) => Some(declare_text(schema)),
        Some(SchemaType::Boolean) => Some(Decl::simple(DeclKind::Bool, Type::Bool, 4)),
        Some(SchemaType::Number) => Some(Decl::simple(DeclKind::Double, Type::Double, 1)),
        Some(SchemaType::Integer) => Some(Decl::simple(DeclKind::Int, Type::Int, 1)),
        None => None,
    }
}

fn declare_object(schema: &Schema, resource: bool, name: &str, depth: usize) -> Decl {
    let mut fields: BTreeMap<String, Field> = BTreeMap::new();
    // An object takes at least two bytes (`{}`), and every required field without a default adds to
    // it.
    let mut min_size = 2;
    let mut add = |field: &str, decl: Decl, required: bool| {
        if required {
            min_size += field.len() as u64 + decl.min_size + 4;
        }
        let decl = Arc::new(decl);
        if is_keyword(field) && !matches!(field, "true" | "false" | "null" | "in") {
            // Reserved words are also accepted unescaped where they can only be a field name.
            let alias = Field { name: field.to_owned(), decl: decl.clone(), is_alias: true };
            fields.insert(field.to_owned(), alias);
        }
        if let Some(escaped) = escape(field) {
            fields.insert(escaped, Field { name: field.to_owned(), decl, is_alias: false });
        }
    };
    let adds_metadata = resource && !declares_metadata(schema);
    for (field, property) in &schema.properties {
        if adds_metadata && matches!(field.as_str(), "apiVersion" | "kind" | "metadata") {
            continue;
        }
        let target = property.target();
        let below = format!("{name}.{}", escape(field).unwrap_or_default());
        if let Some(decl) = declare(target, target.embedded_resource, &below, depth + 1) {
            let required = schema.required.iter().any(|name| name == field) && property.default.is_none();
            add(field, decl, required);
        }
    }
    if adds_metadata {
        add("apiVersion", Decl::text(), false);
        add("kind", Decl::text(), false);
        let mut names = Schema { schema_type: Some(SchemaType::Object), ..Schema::default() };
        for field in ["name", "generateName"] {
            let text = Schema { schema_type: Some(SchemaType::String), ..Schema::default() };
            names.properties.insert(field.to_owned(), Arc::new(text));
        }
        if let Some(decl) = declare(&names, false, &format!("{name}.metadata"), depth + 1) {
            add("metadata", decl, false);
        }
    }
    let types = fields.iter().map(|(name, field)| (name.clone(), field.decl.type_.clone()));
    let type_ = Type::Object(ObjectType::new(name, types));
    let kind = if !schema.properties.is_empty() || resource {
        DeclKind::Object(fields)
    } else if schema.preserve_unknown_fields {
        DeclKind::Unknown
    } else {
        DeclKind::EmptyMap
    };
    Decl::simple(kind, type_, min_size)
}

/// True if a schema itself declares the metadata fields that rules may always use. The default
/// declarations are then not needed.
fn declares_metadata(schema: &Schema) -> bool {
    let is = |schema: Option<&Arc<Schema>>, wanted: SchemaType| {
        schema.is_some_and(|schema| schema.target().schema_type == Some(wanted))
    };
    let text = |name: &str| is(schema.properties.get(name), SchemaType::String);
    let metadata = schema.properties.get("metadata");
    text("kind")
        && text("apiVersion")
        && is(metadata, SchemaType::Object)
        && metadata.is_some_and(|metadata| {
            let names = &metadata.target().properties;
            is(names.get("name"), SchemaType::String) && is(names.get("generateName"), SchemaType::String)
        })
}

fn declare_text(schema: &Schema) -> Decl {
    let most = |min: u64| Some(estimated_text(schema).unwrap_or(REQUEST_BYTES_MAX - min));
    match schema.format.as_str() {
        "byte" => Decl {
            max_elements: schema.max_length.or_else(|| most(2)),
            ..Decl::simple(DeclKind::Bytes, Type::Bytes, 2)
        },
        "duration" => Decl { max_elements: most(2), ..Decl::simple(DeclKind::Duration, Type::Duration, 3) },
        "date" => Decl { max_elements: most(2), ..Decl::simple(DeclKind::Date, Type::Timestamp, 12) },
        "date-time" => Decl { max_elements: most(2), ..Decl::simple(DeclKind::DateTime, Type::Timestamp, 21) },
        _ => {
            let max = match (schema.max_length, &schema.enumeration) {
                // Lengths are in characters of up to four bytes.
                (Some(max), _) => Some(max.saturating_mul(4)),
                (None, Some(values)) if !values.is_empty() => values
                    .iter()
                    .map(|value| value.as_str().map_or_else(|| value.to_string().len(), str::len) as u64)
                    .max(),
                _ => most(2),
            };
            Decl { max_elements: max, ..Decl::simple(DeclKind::String, Type::String, 2) }
        }
    }
}

/// Maximum length of a string with a known format.
fn estimated_text(schema: &Schema) -> Option<u64> {
    match schema.format.as_str() {
        "duration" | "date-time" => Some(32),
        "date" => Some(12),
        _ => None,
    }
}

/// A list item takes at least its value and a comma.
fn most_items(min_size: u64) -> u64 {
    (REQUEST_BYTES_MAX - 2) / (min_size + 1)
}

/// A map entry takes at least two quotes, a colon, a comma and its value.
fn most_entries(min_size: u64) -> u64 {
    (REQUEST_BYTES_MAX - 2) / (min_size + 6)
}
