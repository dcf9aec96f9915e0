//! Migrates stored field sets to a changed schema.
//!
//! If a container became atomic within a version, every owner of one of its parts now owns the
//! whole container. If it became granular, nothing changes: the container's path remains a member.

use serde_json::Value;

use super::path::PathElement;
use super::set::Set;
use super::types::{DEDUCED, MapType, Relationship, TypeRef, Types};
use super::walk::{Shape, TypeError, shapes};

/// The set rewritten for this type, or `None` if the set already fits, which is the usual case.
pub fn reconcile(types: &Types, type_ref: &TypeRef, value: &Value, set: &Set) -> Result<Option<Set>, TypeError> {
    if !enters_atomic(types, type_ref, Some(value), set)? {
        return Ok(None);
    }
    let rewritten = walk(types, type_ref, Some(value), set)?.1;
    Ok((rewritten != *set).then_some(rewritten))
}

/// True if the set contains a part of an atomic value.
fn enters_atomic(types: &Types, type_ref: &TypeRef, value: Option<&Value>, set: &Set) -> Result<bool, TypeError> {
    let atom = shapes(types, type_ref, &[])?;
    match atom.shape(value.unwrap_or(&Value::Null)) {
        Shape::Map(map) if is_deduced(map) => Ok(false),
        Shape::Map(map) if map.relationship == Relationship::Atomic => Ok(!set.is_empty()),
        Shape::Map(map) => {
            for (element, _, below) in set.entries().filter(|(_, _, below)| !below.is_empty()) {
                if let PathElement::Field(name) = element
                    && let Some(type_ref) = map.entry(name)
                    && enters_atomic(types, type_ref, value.and_then(|value| value.get(name)), below)?
                {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        Shape::List(list) if list.relationship == Relationship::Atomic => Ok(!set.is_empty()),
        Shape::List(list) => {
            for (_, _, below) in set.entries().filter(|(_, _, below)| !below.is_empty()) {
                if enters_atomic(types, &list.element, None, below)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        Shape::Scalar(_) | Shape::None => Ok(false),
    }
}

/// Whether the node itself must be owned, and the set to own below it.
fn walk(types: &Types, type_ref: &TypeRef, value: Option<&Value>, set: &Set) -> Result<(bool, Set), TypeError> {
    let atom = shapes(types, type_ref, &[])?;
    match atom.shape(value.unwrap_or(&Value::Null)) {
        Shape::Map(map) if is_deduced(map) => Ok((false, set.clone())),
        Shape::Map(map) if map.relationship == Relationship::Atomic => Ok((!set.is_empty(), Set::new())),
        Shape::Map(map) => {
            let mut rewritten = Set::new();
            for (element, member, below) in set.entries() {
                let entry = match element {
                    PathElement::Field(name) => {
                        map.entry(name).map(|type_ref| (type_ref, value.and_then(|value| value.get(name))))
                    }
                    _ => None,
                };
                put(types, entry, element, member, below, &mut rewritten)?;
            }
            Ok((false, rewritten))
        }
        Shape::List(list) if list.relationship == Relationship::Atomic => Ok((!set.is_empty(), Set::new())),
        Shape::List(list) => {
            // The item that a step identifies is not looked up: that would dominate the cost, and
            // only items of untyped lists could change the result.
            let mut rewritten = Set::new();
            for (element, member, below) in set.entries() {
                put(types, Some((&list.element, None)), element, member, below, &mut rewritten)?;
            }
            Ok((false, rewritten))
        }
        Shape::Scalar(_) | Shape::None => Ok((false, set.clone())),
    }
}

fn put(
    types: &Types,
    entry: Option<(&TypeRef, Option<&Value>)>,
    element: &PathElement,
    member: bool,
    below: &Set,
    rewritten: &mut Set,
) -> Result<(), TypeError> {
    let (itself, below) = match entry {
        Some((type_ref, value)) if !below.is_empty() => walk(types, type_ref, value, below)?,
        _ => (false, below.clone()),
    };
    if member || itself {
        rewritten.insert_element(element.clone());
    }
    rewritten.insert_below(element.clone(), below);
    Ok(())
}

/// True if a map has no declared fields and entries of any type. Such a map has no granularity that
/// a schema change could alter.
fn is_deduced(map: &MapType) -> bool {
    map.fields.is_empty() && map.element == Some(TypeRef::Named(DEDUCED.to_owned(), None))
}

/// The set, extended by every named struct field that has members below it. Removing the set then
/// also removes the emptied structs.
pub(super) fn with_named_fields(types: &Types, type_ref: &TypeRef, set: &Set) -> Set {
    let Some(atom) = types.resolve(type_ref) else { return set.clone() };
    let mut result = Set::new();
    for (element, member, below) in set.entries() {
        let (type_ref, named) = match (element, &atom.map, &atom.list) {
            (PathElement::Field(name), Some(map), _) => (map.entry(name), map.fields.contains_key(name)),
            (_, _, Some(list)) => (Some(&list.element), false),
            _ => (None, false),
        };
        if member || (named && !below.is_empty()) {
            result.insert_element(element.clone());
        }
        let below = match type_ref {
            Some(type_ref) if !below.is_empty() => with_named_fields(types, type_ref, below),
            _ => below.clone(),
        };
        result.insert_below(element.clone(), below);
    }
    result
}
