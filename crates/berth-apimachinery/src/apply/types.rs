//! The type model of server-side apply: scalars, structs, maps, sets and keyed lists.
//!
//! A [`Types`] is made once per kind and version, from a [`Schema`] or from the
//! structured-merge-diff form. A type may allow several shapes (any shape if a schema preserves
//! unknown fields). The value then determines the shape.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::path::PathElement;
use crate::builtin;
use crate::schema::{AdditionalProperties, ListType as SchemaListType, Schema, Type};

/// The kinds of scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// A string.
    String,
    /// Any number.
    Numeric,
    /// A boolean.
    Boolean,
    /// Any scalar.
    Untyped,
}

/// Whether a container is owned as a whole or field by field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relationship {
    /// Owned as a whole.
    Atomic,
    /// Owned field by field, or item by item.
    Granular,
}

/// The shapes that a value of a type may have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Atom {
    /// The scalar shape, if allowed.
    pub scalar: Option<Scalar>,
    /// The list shape, if allowed.
    pub list: Option<Arc<List>>,
    /// The map shape, if allowed.
    pub map: Option<Arc<MapType>>,
}

/// A list type.
#[derive(Clone, Debug, PartialEq)]
pub struct List {
    /// Type of the items.
    pub element: TypeRef,
    /// Atomic, or granular with items identified by value or by keys.
    pub relationship: Relationship,
    /// The key fields of items; empty for sets.
    pub keys: Vec<String>,
}

/// A map type: a struct, a free map, or both.
#[derive(Clone, Debug, PartialEq)]
pub struct MapType {
    /// Declared fields of a struct.
    pub fields: BTreeMap<String, Field>,
    /// Type of entries beyond the declared fields; `None` if none are allowed.
    pub element: Option<TypeRef>,
    /// Atomic, or granular by field.
    pub relationship: Relationship,
}

/// A declared field.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// Its type.
    pub type_ref: TypeRef,
    /// Its default, used for list keys that the client omits.
    pub default: Option<Value>,
}

/// A type, referenced by name or given inline.
#[derive(Clone, Debug, PartialEq)]
pub enum TypeRef {
    /// By name, with an optional relationship that overrides the named type's.
    Named(String, Option<Relationship>),
    /// Inline.
    Inline(Atom),
}

/// The named types.
#[derive(Clone, Debug, Default)]
pub struct Types {
    named: BTreeMap<String, Atom>,
}

/// The type of values without a schema: maps are granular, lists and scalars atomic.
pub const DEDUCED: &str = "__untyped_deduced_";
const UNTYPED_ATOMIC: &str = "__untyped_atomic_";

/// Adds the defaults of a built-in definition's fields. For ownership too, a port without a
/// protocol is a TCP port.
fn state_defaults(definition: &str, atom: &mut Atom) {
    let Some(map) = &mut atom.map else { return };
    for (name, field) in &mut Arc::make_mut(map).fields {
        if field.default.is_none() {
            field.default = builtin::default_of(definition, name).filter(|default| !default.is_object());
        }
    }
}

impl Types {
    /// The types of values without a schema.
    pub fn deduced() -> Self {
        let mut types = Types::default();
        types.add_untyped();
        types
    }

    fn add_untyped(&mut self) {
        let named = |name: &str| TypeRef::Named(name.to_owned(), None);
        let atomic_list = || {
            Some(Arc::new(List {
                element: named(UNTYPED_ATOMIC),
                relationship: Relationship::Atomic,
                keys: Vec::new(),
            }))
        };
        let map = |element: &str, relationship: Relationship| {
            Some(Arc::new(MapType { fields: BTreeMap::new(), element: Some(named(element)), relationship }))
        };
        let atomic =
            Atom { scalar: Some(Scalar::Untyped), list: atomic_list(), map: map(UNTYPED_ATOMIC, Relationship::Atomic) };
        let deduced =
            Atom { scalar: Some(Scalar::Untyped), list: atomic_list(), map: map(DEDUCED, Relationship::Granular) };
        self.named.insert(UNTYPED_ATOMIC.to_owned(), atomic);
        self.named.insert(DEDUCED.to_owned(), deduced);
    }

    /// The type behind a reference; `None` for an unknown name, or if the relationship overrides
    /// that of a scalar.
    pub fn resolve<'a>(&'a self, type_ref: &'a TypeRef) -> Option<std::borrow::Cow<'a, Atom>> {
        use std::borrow::Cow;
        match type_ref {
            TypeRef::Inline(atom) => Some(Cow::Borrowed(atom)),
            TypeRef::Named(name, relationship) => {
                let atom = self.named.get(name)?;
                let Some(relationship) = *relationship else { return Some(Cow::Borrowed(atom)) };
                let mut atom = atom.clone();
                overlay(&mut atom, relationship).then_some(())?;
                Some(Cow::Owned(atom))
            }
        }
    }

    /// Reads the structured-merge-diff form: `{"types": [{"name": ..., "map"|"list"|"scalar":
    /// ...}]}`.
    pub fn from_definition(definition: &Value) -> Self {
        let mut types = Types::default();
        for entry in definition.get("types").and_then(Value::as_array).into_iter().flatten() {
            if let Some(name) = entry.get("name").and_then(Value::as_str) {
                types.named.insert(name.to_owned(), read_atom(entry));
            }
        }
        types
    }

    /// The types of a schema; the root is [`Types::root`].
    pub fn from_schema(schema: &Schema) -> Self {
        let mut types = Types::deduced();
        let mut root = types.convert(schema);
        if let TypeRef::Inline(Atom { map: Some(map), .. }) = &mut root
            && map.fields.is_empty()
            && !schema.preserve_unknown_fields
            && schema.additional_properties.is_none()
        {
            // Whole objects allow only declared fields.
            Arc::make_mut(map).element = None;
        }
        if let TypeRef::Inline(atom) = root {
            types.named.insert(ROOT.to_owned(), atom);
        } else if let Some(atom) = types.resolve(&root).map(std::borrow::Cow::into_owned) {
            types.named.insert(ROOT.to_owned(), atom);
        }
        types
    }

    /// The reference to the outermost type of [`Types::from_schema`].
    pub fn root() -> TypeRef {
        TypeRef::Named(ROOT.to_owned(), None)
    }

    fn convert(&mut self, schema: &Schema) -> TypeRef {
        if let Some(reference) = &schema.reference {
            let name = reference.name.clone();
            if !self.named.contains_key(&name) {
                // Registered before it is complete, because a definition may refer to itself.
                self.named.insert(name.clone(), Atom::default());
                let mut atom = match self.convert(schema.target_or_empty()) {
                    TypeRef::Inline(atom) => atom,
                    named => self.resolve(&named).map(std::borrow::Cow::into_owned).unwrap_or_default(),
                };
                state_defaults(&name, &mut atom);
                self.named.insert(name.clone(), atom);
            }
            return TypeRef::Named(name, schema.atomic_map.then_some(Relationship::Atomic));
        }
        let scalar = |scalar: Scalar| TypeRef::Inline(Atom { scalar: Some(scalar), ..Atom::default() });
        // Times are strings on the wire but untyped scalars here, as are quantities.
        if schema.int_or_string || schema.quantity || schema.format == "date-time" {
            return scalar(Scalar::Untyped);
        }
        match schema.schema_type {
            Some(Type::String) => scalar(Scalar::String),
            Some(Type::Integer | Type::Number) => scalar(Scalar::Numeric),
            Some(Type::Boolean) => scalar(Scalar::Boolean),
            Some(Type::Array) => {
                let element = match &schema.items {
                    Some(items) => self.convert(items),
                    None => TypeRef::Named(DEDUCED.to_owned(), None),
                };
                let merges = schema.patch_strategy.iter().any(|strategy| strategy == "merge");
                let (relationship, keys) = match schema.list_type {
                    Some(SchemaListType::Set) => (Relationship::Granular, Vec::new()),
                    Some(SchemaListType::Map) => (Relationship::Granular, schema.list_map_keys.clone()),
                    Some(SchemaListType::Atomic) => (Relationship::Atomic, Vec::new()),
                    // Items of built-in lists without a list type are identified by the strategic
                    // merge patch key.
                    None if merges => (Relationship::Granular, schema.patch_merge_key.iter().cloned().collect()),
                    None => (Relationship::Atomic, Vec::new()),
                };
                TypeRef::Inline(Atom { list: Some(Arc::new(List { element, relationship, keys })), ..Atom::default() })
            }
            Some(Type::Object) | None => {
                let says_nothing = schema.properties.is_empty() && schema.additional_properties.is_none();
                if says_nothing && (schema.preserve_unknown_fields || schema.schema_type.is_none()) {
                    let relationship = schema.atomic_map.then_some(Relationship::Atomic);
                    return TypeRef::Named(DEDUCED.to_owned(), relationship);
                }
                let mut fields = BTreeMap::new();
                for (name, property) in &schema.properties {
                    let field = Field { type_ref: self.convert(property), default: property.default.clone() };
                    fields.insert(name.clone(), field);
                }
                if schema.embedded_resource {
                    for name in ["apiVersion", "kind"] {
                        let type_ref = scalar(Scalar::String);
                        fields.entry(name.to_owned()).or_insert(Field { type_ref, default: None });
                    }
                    // A schema's rules for metadata restrict its values; the fields of metadata are
                    // the same for every object.
                    fields.insert("metadata".to_owned(), Field { type_ref: object_meta(), default: None });
                }
                let element = match &schema.additional_properties {
                    Some(AdditionalProperties::Schema(entry)) => Some(self.convert(entry)),
                    _ if schema.preserve_unknown_fields => Some(TypeRef::Named(DEDUCED.to_owned(), None)),
                    Some(AdditionalProperties::Allowed(true)) => Some(TypeRef::Named(DEDUCED.to_owned(), None)),
                    // Apply accepts any content in an object without declared fields; pruning
                    // removes unknown fields.
                    _ if fields.is_empty() => Some(TypeRef::Named(DEDUCED.to_owned(), None)),
                    _ => None,
                };
                let relationship = if schema.atomic_map { Relationship::Atomic } else { Relationship::Granular };
                TypeRef::Inline(Atom {
                    map: Some(Arc::new(MapType { fields, element, relationship })),
                    ..Atom::default()
                })
            }
        }
    }

    /// Adds the types that every whole object has: apiVersion, kind, and metadata with its lists.
    pub fn with_object_meta(mut self) -> Self {
        let field = |type_ref: TypeRef| Field { type_ref, default: None };
        let text = || TypeRef::Inline(Atom { scalar: Some(Scalar::String), ..Atom::default() });
        if let Some(root) = self.named.get_mut(ROOT).and_then(|atom| atom.map.as_mut()) {
            let root = Arc::make_mut(root);
            root.fields.insert("apiVersion".to_owned(), field(text()));
            root.fields.insert("kind".to_owned(), field(text()));
            root.fields.insert("metadata".to_owned(), field(object_meta()));
        }
        self
    }
}

const ROOT: &str = "__root_";

/// The type of metadata, for objects and embedded objects.
fn object_meta() -> TypeRef {
    let scalar = |scalar: Scalar| TypeRef::Inline(Atom { scalar: Some(scalar), ..Atom::default() });
    let list = |element: TypeRef, keys: &[&str], relationship: Relationship| {
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        TypeRef::Inline(Atom { list: Some(Arc::new(List { element, relationship, keys })), ..Atom::default() })
    };
    let map = |element: TypeRef, relationship: Relationship| {
        let map = MapType { fields: BTreeMap::new(), element: Some(element), relationship };
        TypeRef::Inline(Atom { map: Some(Arc::new(map)), ..Atom::default() })
    };
    let field = |type_ref: TypeRef| Field { type_ref, default: None };
    let texts = || map(scalar(Scalar::String), Relationship::Granular);
    let mut owner = BTreeMap::new();
    for name in ["apiVersion", "kind", "name", "uid"] {
        owner.insert(name.to_owned(), field(scalar(Scalar::String)));
    }
    for name in ["controller", "blockOwnerDeletion"] {
        owner.insert(name.to_owned(), field(scalar(Scalar::Boolean)));
    }
    let owner = TypeRef::Inline(Atom {
        map: Some(Arc::new(MapType { fields: owner, element: None, relationship: Relationship::Atomic })),
        ..Atom::default()
    });
    let mut meta = BTreeMap::new();
    for name in ["name", "generateName", "namespace", "selfLink", "uid", "resourceVersion"] {
        meta.insert(name.to_owned(), field(scalar(Scalar::String)));
    }
    for name in ["creationTimestamp", "deletionTimestamp"] {
        meta.insert(name.to_owned(), field(scalar(Scalar::Untyped)));
    }
    for name in ["generation", "deletionGracePeriodSeconds"] {
        meta.insert(name.to_owned(), field(scalar(Scalar::Numeric)));
    }
    meta.insert("labels".to_owned(), field(texts()));
    meta.insert("annotations".to_owned(), field(texts()));
    meta.insert("finalizers".to_owned(), field(list(scalar(Scalar::String), &[], Relationship::Granular)));
    meta.insert("ownerReferences".to_owned(), field(list(owner, &["uid"], Relationship::Granular)));
    let deduced = || TypeRef::Named(DEDUCED.to_owned(), None);
    meta.insert("managedFields".to_owned(), field(list(deduced(), &[], Relationship::Atomic)));
    let meta = MapType { fields: meta, element: None, relationship: Relationship::Granular };
    TypeRef::Inline(Atom { map: Some(Arc::new(meta)), ..Atom::default() })
}

impl MapType {
    /// The type of an entry; `None` if the entry is not allowed.
    pub(super) fn entry(&self, name: &str) -> Option<&TypeRef> {
        self.fields.get(name).map(|field| &field.type_ref).or(self.element.as_ref())
    }
}

impl List {
    /// The step that identifies an item of a granular list.
    pub(super) fn element_of(&self, types: &Types, item: &Value) -> Result<PathElement, String> {
        if self.keys.is_empty() {
            return match item {
                Value::Object(_) => Err("associative list without keys has an element that's a map type".to_owned()),
                Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
                Value::Null => Err("associative list without keys has an element that's an explicit null".to_owned()),
                scalar => Ok(PathElement::Value(scalar.clone())),
            };
        }
        let Value::Object(map) = item else {
            return Err(match item {
                Value::Null => "associative list with keys may not have a null element".to_owned(),
                _ => "associative list with keys may not have non-map elements".to_owned(),
            });
        };
        let element = types.resolve(&self.element);
        let default = |key: &str| {
            let fields = &element.as_ref()?.map.as_ref()?.fields;
            fields.get(key)?.default.clone()
        };
        let keys: Vec<(String, Value)> = self
            .keys
            .iter()
            .filter_map(|key| Some((key.clone(), map.get(key).cloned().or_else(|| default(key))?)))
            .collect();
        if keys.is_empty() {
            return Err(format!(
                "associative list with keys has an element that omits all key fields {} (and doesn't have default values for any key fields)",
                self.keys.iter().map(|key| crate::field::quote(key)).collect::<Vec<_>>().join(", ")
            ));
        }
        Ok(PathElement::keyed(keys))
    }
}

fn read_atom(value: &Value) -> Atom {
    Atom {
        scalar: value.get("scalar").and_then(Value::as_str).map(|scalar| match scalar {
            "string" => Scalar::String,
            "numeric" => Scalar::Numeric,
            "boolean" => Scalar::Boolean,
            _ => Scalar::Untyped,
        }),
        list: value.get("list").map(|list| {
            Arc::new(List {
                element: read_ref(list.get("elementType").unwrap_or(&Value::Null)),
                relationship: match list.get("elementRelationship").and_then(Value::as_str) {
                    Some("associative") => Relationship::Granular,
                    _ => Relationship::Atomic,
                },
                keys: list
                    .get("keys")
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .map(str::to_owned)
                    .collect(),
            })
        }),
        map: value.get("map").map(|map| {
            let fields = map.get("fields").and_then(Value::as_array).into_iter().flatten().filter_map(|field| {
                let type_ref = read_ref(field.get("type").unwrap_or(&Value::Null));
                Some((
                    field.get("name")?.as_str()?.to_owned(),
                    Field { type_ref, default: field.get("default").cloned() },
                ))
            });
            Arc::new(MapType {
                fields: fields.collect(),
                element: map.get("elementType").map(read_ref),
                relationship: match map.get("elementRelationship").and_then(Value::as_str) {
                    Some("atomic") => Relationship::Atomic,
                    _ => Relationship::Granular,
                },
            })
        }),
    }
}

/// Reads a type reference of the structured-merge-diff form.
pub fn read_ref(value: &Value) -> TypeRef {
    let relationship =
        value.get("elementRelationship").and_then(Value::as_str).map(|relationship| match relationship {
            "atomic" => Relationship::Atomic,
            _ => Relationship::Granular,
        });
    match value.get("namedType").and_then(Value::as_str) {
        Some(name) => TypeRef::Named(name.to_owned(), relationship),
        None => {
            let mut atom = read_atom(value);
            if let Some(relationship) = relationship {
                overlay(&mut atom, relationship);
            }
            TypeRef::Inline(atom)
        }
    }
}

/// Overrides the relationship of a container; `false` if the type is not a container.
fn overlay(atom: &mut Atom, relationship: Relationship) -> bool {
    match (&mut atom.map, &mut atom.list) {
        (Some(map), _) => Arc::make_mut(map).relationship = relationship,
        (None, Some(list)) => Arc::make_mut(list).relationship = relationship,
        (None, None) => return false,
    }
    true
}
