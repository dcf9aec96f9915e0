//! Removes fields from an object, or reduces an object to given fields.

use serde_json::{Map, Value};

use super::path::PathElement;
use super::set::Set;
use super::types::{Relationship, TypeRef, Types};
use super::walk::{Shape, TypeError, shapes};

/// The value without the fields of a set. A container that loses all its fields becomes null.
pub fn remove(types: &Types, type_ref: &TypeRef, value: &Value, fields: &Set) -> Result<Value, TypeError> {
    Cutter { types, keep: false, with_keys: false }.value(type_ref, value, fields)
}

/// Only the fields of a set. Keys of list items are kept if they are in the set, or if requested.
pub fn extract(
    types: &Types,
    type_ref: &TypeRef,
    value: &Value,
    fields: &Set,
    with_keys: bool,
) -> Result<Value, TypeError> {
    Cutter { types, keep: true, with_keys }.value(type_ref, value, fields)
}

struct Cutter<'a> {
    types: &'a Types,
    /// True to keep the fields of the set, false to remove them.
    keep: bool,
    with_keys: bool,
}

impl Cutter<'_> {
    fn value(&self, type_ref: &TypeRef, value: &Value, fields: &Set) -> Result<Value, TypeError> {
        let atom = shapes(self.types, type_ref, &[])?;
        let none = Set::new();
        match (atom.shape(value), value) {
            (Shape::Map(_), Value::Object(entries)) if entries.is_empty() => Ok(value.clone()),
            (Shape::List(_), Value::Array(items)) if items.is_empty() => Ok(value.clone()),
            (Shape::Map(map), Value::Object(entries)) => {
                if map.relationship == Relationship::Atomic {
                    return Ok(if self.keep { value.clone() } else { Value::Null });
                }
                let mut kept = Map::new();
                for (name, entry) in entries {
                    let element = PathElement::field(name);
                    let Some(type_ref) = map.entry(name) else { continue };
                    if let Some(entry) = self.part(type_ref, entry, &element, fields, &none)? {
                        kept.insert(name.clone(), entry);
                    }
                }
                Ok(if kept.is_empty() { Value::Null } else { Value::Object(kept) })
            }
            (Shape::List(list), Value::Array(items)) => {
                if list.relationship == Relationship::Atomic {
                    return Ok(if self.keep { value.clone() } else { Value::Null });
                }
                let mut kept = Vec::new();
                for item in items {
                    let element = list.element_of(self.types, item).map_err(|problem| TypeError::new(&[], problem))?;
                    let Some(mut part) = self.part(&list.element, item, &element, fields, &none)? else { continue };
                    if self.keep && self.with_keys && !part.is_null() {
                        restore_keys(&mut part, item, &list.keys);
                    }
                    kept.push(part);
                }
                Ok(if kept.is_empty() { Value::Null } else { Value::Array(kept) })
            }
            (Shape::Scalar(_), value) => Ok(value.clone()),
            _ => Ok(Value::Null),
        }
    }

    /// The remainder of an entry or item; `None` if it is removed as a whole.
    fn part(
        &self,
        type_ref: &TypeRef,
        value: &Value,
        element: &PathElement,
        fields: &Set,
        none: &Set,
    ) -> Result<Option<Value>, TypeError> {
        let member = fields.has_element(element);
        let below = fields.below(element);
        match (self.keep, member, below) {
            (false, true, _) | (true, false, None) => Ok(None),
            (false, false, None) => Ok(Some(value.clone())),
            (_, _, below) => self.value(type_ref, value, below.unwrap_or(none)).map(Some),
        }
    }
}

fn restore_keys(part: &mut Value, item: &Value, keys: &[String]) {
    if keys.is_empty() {
        return;
    }
    let map = crate::meta::map_mut(part);
    for key in keys {
        if let Some(value) = item.get(key) {
            map.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
}
