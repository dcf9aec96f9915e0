//! Checking a value against its type, and the set of fields it has.

use std::borrow::Cow;

use serde_json::Value;

use super::path::{PathElement, path_text};
use super::set::Set;
use super::types::{Atom, List, MapType, Relationship, Scalar, TypeRef, Types};

/// A value does not have its type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {problem}")]
pub struct TypeError {
    /// Where.
    pub at: String,
    /// What is wrong.
    pub problem: String,
}

impl TypeError {
    pub(super) fn new(path: &[PathElement], problem: impl Into<String>) -> Self {
        TypeError { at: path_text(path), problem: problem.into() }
    }
}

/// The shapes a reference allows for a value.
pub(super) fn shapes<'a>(
    types: &'a Types,
    type_ref: &'a TypeRef,
    path: &[PathElement],
) -> Result<Cow<'a, Atom>, TypeError> {
    types.resolve(type_ref).ok_or_else(|| TypeError::new(path, "schema error: no type found"))
}

/// The shape a value takes.
#[derive(Clone, Copy)]
pub(super) enum Shape<'a> {
    Map(&'a MapType),
    Scalar(Scalar),
    List(&'a List),
    None,
}

impl Atom {
    /// The shape of a value: its own, if the type allows that; else (and for null) map before scalar before list, as far as
    /// the type allows.
    pub(super) fn shape(&self, value: &Value) -> Shape<'_> {
        match (value, &self.map, self.scalar, &self.list) {
            (Value::Array(_), _, _, Some(list)) => Shape::List(list),
            (Value::Object(_), Some(map), _, _) => Shape::Map(map),
            (Value::Bool(_) | Value::Number(_) | Value::String(_), _, Some(scalar), _) => Shape::Scalar(scalar),
            (_, Some(map), _, _) => Shape::Map(map),
            (_, None, Some(scalar), _) => Shape::Scalar(scalar),
            (_, None, None, Some(list)) => Shape::List(list),
            (_, None, None, None) => Shape::None,
        }
    }

    /// Which shapes a value leaves possible: its own, or all the type has.
    pub(super) fn possible(&self, value: &Value) -> (bool, bool, bool) {
        let (map, scalar, list) = (self.map.is_some(), self.scalar.is_some(), self.list.is_some());
        match value {
            Value::Array(_) if list => (false, false, true),
            Value::Object(_) if map => (true, false, false),
            Value::Bool(_) | Value::Number(_) | Value::String(_) if scalar => (false, true, false),
            _ => (map, scalar, list),
        }
    }
}

/// Checks a value. Duplicate items of keyed lists and sets are refused unless they are old.
pub fn validate(types: &Types, type_ref: &TypeRef, value: &Value, allow_duplicates: bool) -> Result<(), TypeError> {
    let mut path = Vec::new();
    Validator { types, allow_duplicates }.value(type_ref, value, &mut path)
}

struct Validator<'a> {
    types: &'a Types,
    allow_duplicates: bool,
}

impl Validator<'_> {
    fn value(&self, type_ref: &TypeRef, value: &Value, path: &mut Vec<PathElement>) -> Result<(), TypeError> {
        let atom = shapes(self.types, type_ref, path)?;
        match atom.shape(value) {
            Shape::Map(map) => self.map(map, value, path),
            Shape::Scalar(scalar) => check_scalar(scalar, value, path),
            Shape::List(list) => self.list(list, value, path),
            Shape::None => Err(TypeError::new(path, "schema error: invalid atom")),
        }
    }

    fn map(&self, map: &MapType, value: &Value, path: &mut Vec<PathElement>) -> Result<(), TypeError> {
        let entries = match value {
            Value::Null => return Ok(()),
            Value::Object(entries) => entries,
            other => return Err(TypeError::new(path, format!("expected map, got {other}"))),
        };
        for (name, entry) in entries {
            path.push(PathElement::field(name));
            let Some(type_ref) = map.entry(name) else {
                return Err(TypeError::new(path, "field not declared in schema"));
            };
            self.value(type_ref, entry, path)?;
            path.pop();
        }
        Ok(())
    }

    fn list(&self, list: &List, value: &Value, path: &mut Vec<PathElement>) -> Result<(), TypeError> {
        let items = match value {
            Value::Null => return Ok(()),
            Value::Array(items) => items,
            other => return Err(TypeError::new(path, format!("expected list, got {other}"))),
        };
        let mut seen = Set::new();
        for (i, item) in items.iter().enumerate() {
            let element = match list.relationship {
                Relationship::Atomic => PathElement::Index(i as i64),
                Relationship::Granular => list
                    .element_of(self.types, item)
                    .map_err(|problem| TypeError::new(path, format!("element {i}: {problem}")))?,
            };
            if list.relationship == Relationship::Granular && !self.allow_duplicates {
                if seen.has_element(&element) {
                    return Err(TypeError::new(path, format!("duplicate entries for key {element}")));
                }
                seen.insert_element(element.clone());
            }
            path.push(element);
            self.value(&list.element, item, path)?;
            path.pop();
        }
        Ok(())
    }
}

pub(super) fn check_scalar(scalar: Scalar, value: &Value, path: &[PathElement]) -> Result<(), TypeError> {
    let (fits, expected) = match scalar {
        Scalar::String => (value.is_string(), "string"),
        Scalar::Numeric => (value.is_number(), "numeric (int or float)"),
        Scalar::Boolean => (value.is_boolean(), "boolean"),
        Scalar::Untyped => (true, ""),
    };
    if fits || value.is_null() {
        Ok(())
    } else {
        Err(TypeError::new(path, format!("expected {expected}, got {value}")))
    }
}

/// The set of fields a value has. Scalars and atomic containers are one field; of granular containers the parts count,
/// and the container itself only where it is a free map key or list item, or empty.
pub fn to_set(types: &Types, type_ref: &TypeRef, value: &Value) -> Result<Set, TypeError> {
    let mut path = Vec::new();
    Ok(collect(types, type_ref, value, &mut path)?.below)
}

/// Whether a node is a member itself, and what is below it.
#[derive(Default)]
struct Fields {
    itself: bool,
    below: Set,
}

impl Fields {
    const LEAF: fn() -> Fields = || Fields { itself: true, below: Set::new() };
}

fn collect(types: &Types, type_ref: &TypeRef, value: &Value, path: &mut Vec<PathElement>) -> Result<Fields, TypeError> {
    let atom = shapes(types, type_ref, path)?;
    match atom.shape(value) {
        Shape::Map(map) if map.relationship == Relationship::Atomic => Ok(Fields::LEAF()),
        Shape::Map(map) => {
            let mut fields = Fields::default();
            for (name, entry) in value.as_object().into_iter().flatten() {
                let element = PathElement::field(name);
                path.push(element.clone());
                let Some(type_ref) = map.entry(name) else {
                    return Err(TypeError::new(path, "field not declared in schema"));
                };
                let part = collect(types, type_ref, entry, path)?;
                path.pop();
                let empty = entry.is_null() || entry.as_object().is_some_and(serde_json::Map::is_empty);
                if part.itself || empty || !map.fields.contains_key(name) {
                    fields.below.insert_element(element.clone());
                }
                fields.below.insert_below(element, part.below);
            }
            Ok(fields)
        }
        Shape::List(list) if list.relationship == Relationship::Atomic => Ok(Fields::LEAF()),
        Shape::List(list) => {
            let mut fields = Fields::default();
            let items: &[Value] = value.as_array().map(Vec::as_slice).unwrap_or_default();
            let elements = elements(types, list, items, path)?;
            for (item, element) in items.iter().zip(&elements) {
                // Of an item that occurs twice only the item as a whole is owned: nobody can say which one is meant.
                let duplicated = elements.iter().filter(|other| *other == element).count() > 1;
                if !duplicated {
                    path.push(element.clone());
                    let part = collect(types, &list.element, item, path)?;
                    path.pop();
                    fields.below.insert_below(element.clone(), part.below);
                }
                fields.below.insert_element(element.clone());
            }
            Ok(fields)
        }
        Shape::Scalar(_) => Ok(Fields::LEAF()),
        Shape::None => Err(TypeError::new(path, "schema error: invalid atom")),
    }
}

/// The identifying steps of a granular list's items.
pub(super) fn elements(
    types: &Types,
    list: &List,
    items: &[Value],
    path: &[PathElement],
) -> Result<Vec<PathElement>, TypeError> {
    items
        .iter()
        .enumerate()
        .map(|(i, item)| {
            list.element_of(types, item).map_err(|problem| TypeError::new(path, format!("element {i}: {problem}")))
        })
        .collect()
}
