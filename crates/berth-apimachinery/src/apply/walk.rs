//! Validates a value against its type, and computes the set of fields it has.

use std::borrow::Cow;

use serde_json::Value;

use super::path::{PathElement, path_text};
use super::set::Set;
use super::types::{Atom, List, MapType, Relationship, Scalar, TypeRef, Types};

/// The error for a value that does not match its type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", fault_text(.faults))]
pub struct TypeError {
    /// The faults, each prefixed with its path. At least one.
    faults: Vec<String>,
}

/// Maximum number of faults that an error names.
const FAULTS_MAX: usize = 1000;

impl TypeError {
    pub(super) fn new(path: &[PathElement], problem: impl std::fmt::Display) -> Self {
        TypeError { faults: vec![format!("{}: {problem}", path_text(path))] }
    }
}

fn fault_text(faults: &[String]) -> String {
    match faults {
        [fault] => fault.clone(),
        faults => faults.iter().fold("errors:".to_owned(), |text, fault| format!("{text}\n  {fault}")),
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

/// The shape of a value.
#[derive(Clone, Copy)]
pub(super) enum Shape<'a> {
    Map(&'a MapType),
    Scalar(Scalar),
    List(&'a List),
    None,
}

impl Atom {
    /// The shape of a value: its own, if the type allows it. Otherwise (and for null) the first
    /// that the type allows of map, scalar and list.
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

    /// The shapes that a value allows: its own, or, for null, all shapes of the type.
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

/// Validates a whole value: the error names every fault. Duplicate items of keyed lists and sets
/// are rejected unless `allow_duplicates`.
pub fn validate(types: &Types, type_ref: &TypeRef, value: &Value, allow_duplicates: bool) -> Result<(), TypeError> {
    let mut validator = Validator { types, allow_duplicates, faults: Vec::new() };
    validator.value(type_ref, value, &mut Vec::new());
    if validator.faults.is_empty() { Ok(()) } else { Err(TypeError { faults: validator.faults }) }
}

struct Validator<'a> {
    types: &'a Types,
    allow_duplicates: bool,
    faults: Vec<String>,
}

impl Validator<'_> {
    fn note(&mut self, error: TypeError) {
        let room = FAULTS_MAX.saturating_sub(self.faults.len());
        self.faults.extend(error.faults.into_iter().take(room));
    }

    fn value(&mut self, type_ref: &TypeRef, value: &Value, path: &mut Vec<PathElement>) {
        let atom = match shapes(self.types, type_ref, path) {
            Ok(atom) => atom,
            Err(error) => return self.note(error),
        };
        match atom.shape(value) {
            Shape::Map(map) => self.map(map, value, path),
            Shape::Scalar(scalar) => {
                if let Err(error) = check_scalar(scalar, value, path) {
                    self.note(error);
                }
            }
            Shape::List(list) => self.list(list, value, path),
            Shape::None => self.note(TypeError::new(path, "schema error: invalid atom")),
        }
    }

    fn map(&mut self, map: &MapType, value: &Value, path: &mut Vec<PathElement>) {
        let entries = match value {
            Value::Null => return,
            Value::Object(entries) => entries,
            other => return self.note(TypeError::new(path, format!("expected map, got {other}"))),
        };
        for (name, entry) in entries {
            path.push(PathElement::field(name));
            match map.entry(name) {
                Some(type_ref) => self.value(type_ref, entry, path),
                None => self.note(TypeError::new(path, "field not declared in schema")),
            }
            path.pop();
        }
    }

    fn list(&mut self, list: &List, value: &Value, path: &mut Vec<PathElement>) {
        let items = match value {
            Value::Null => return,
            Value::Array(items) => items,
            other => return self.note(TypeError::new(path, format!("expected list, got {other}"))),
        };
        let mut seen = Set::new();
        for (i, item) in items.iter().enumerate() {
            let element = match list.relationship {
                Relationship::Atomic => Ok(PathElement::Index(i as i64)),
                Relationship::Granular => list.element_of(self.types, item),
            };
            let element = match element {
                Ok(element) => element,
                // An item without an identifying step has no path for faults inside it.
                Err(problem) => {
                    self.note(TypeError::new(path, format!("element {i}: {problem}")));
                    continue;
                }
            };
            if list.relationship == Relationship::Granular && !self.allow_duplicates {
                if seen.has_element(&element) {
                    self.note(TypeError::new(path, format!("duplicate entries for key {element}")));
                }
                seen.insert_element(element.clone());
            }
            path.push(element);
            self.value(&list.element, item, path);
            path.pop();
        }
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

/// The set of fields of a value. Scalars and atomic containers are one field. The parts of granular
/// containers are fields; the container itself is one only if it is a list item, an entry that the
/// type does not declare, null, or an empty map.
pub fn to_set(types: &Types, type_ref: &TypeRef, value: &Value) -> Result<Set, TypeError> {
    let mut path = Vec::new();
    Ok(collect(types, type_ref, value, &mut path)?.below)
}

/// Whether a node is a member itself, and the set below it.
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
                // A duplicated item is owned only as a whole, because its step does not identify
                // one copy.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::Schema;

    fn types() -> Types {
        let metadata = json!({"type": "object", "properties": {"name": {"type": "string"}}});
        let template =
            json!({"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"metadata": metadata}});
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "foo": {"type": "string"},
            "bare": {"type": "object"},
            "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
            "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "template": template,
        }}}});
        Types::from_schema(&Schema::parse_crd(&schema).expect("a schema")).with_object_meta()
    }

    fn faults(object: &Value) -> String {
        validate(&types(), &Types::root(), object, false).expect_err("is wrong").to_string()
    }

    #[test]
    fn every_fault_is_reported() {
        let object = json!({"apiVersion": "x.dev/v1", "kind": "X", "metadata": {"name": "x", "odd": 1}, "odd": 1, "odder": 2,
            "spec": {"foo": 1, "bare": {"x": 1}, "list": [{"a": "x", "b": "y"}, {"c": "z"}, {"a": 2}], "set": ["a", {}, "a"],
                     "template": {"metadata": {"name": "n", "labels": {"a": "b"}, "odd": 1}, "odd": 1}}});
        let wanted = [
            "errors:",
            ".metadata.odd: field not declared in schema",
            ".odd: field not declared in schema",
            ".odder: field not declared in schema",
            ".spec.foo: expected string, got 1",
            ".spec.list[0].b: field not declared in schema",
            ".spec.list[1].c: field not declared in schema",
            ".spec.list[2].a: expected string, got 2",
            ".spec.set: element 1: associative list without keys has an element that's a map type",
            ".spec.set: duplicate entries for key [=\"a\"]",
            ".spec.template.metadata.odd: field not declared in schema",
            ".spec.template.odd: field not declared in schema",
        ];
        let mut found: Vec<String> = faults(&object).lines().map(|line| line.trim_start().to_owned()).collect();
        found[1..].sort();
        let mut wanted: Vec<String> = wanted.iter().map(|line| (*line).to_owned()).collect();
        wanted[1..].sort();
        assert_eq!(found, wanted);
        assert_eq!(faults(&json!({"odd": 1})), ".odd: field not declared in schema");
    }

    #[test]
    fn the_number_of_reported_faults_is_limited() {
        let object: serde_json::Map<String, Value> =
            (0..FAULTS_MAX + 10).map(|i| (format!("f{i}"), json!(1))).collect();
        assert_eq!(faults(&Value::Object(object)).lines().count(), FAULTS_MAX + 1);
    }
}
