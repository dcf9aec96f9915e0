//! Field-by-field comparison of two objects of one type.

use std::collections::BTreeMap;

use serde_json::Value;

use super::path::{PathElement, equal_values};
use super::set::{Pattern, Set};
use super::types::{List, MapType, Relationship, TypeRef, Types};
use super::walk::{Shape, TypeError, elements, shapes};

/// The fields in which two objects differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Fields that only the new object has, containers included.
    pub added: Set,
    /// Fields that both objects have, with different values.
    pub modified: Set,
    /// Fields that only the old object has, containers included.
    pub removed: Set,
}

impl Comparison {
    /// True if the two objects are equal.
    pub fn is_same(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }

    /// The comparison without `fields` and everything below them.
    #[must_use]
    pub fn excluding(&self, fields: &Set) -> Comparison {
        Comparison {
            added: self.added.recursive_difference(fields),
            modified: self.modified.recursive_difference(fields),
            removed: self.removed.recursive_difference(fields),
        }
    }

    /// The comparison limited to the fields that the pattern keeps.
    #[must_use]
    pub fn filtered(&self, pattern: &Pattern) -> Comparison {
        Comparison {
            added: self.added.filtered(pattern),
            modified: self.modified.filtered(pattern),
            removed: self.removed.filtered(pattern),
        }
    }
}

/// Compares two values of a type. Either may contain duplicate list items.
pub fn compare(types: &Types, type_ref: &TypeRef, old: &Value, new: &Value) -> Result<Comparison, TypeError> {
    let mut comparer = Comparer { types, path: Vec::new(), result: Comparison::default() };
    comparer.value(type_ref, Some(old), Some(new))?;
    Ok(comparer.result)
}

struct Comparer<'a> {
    types: &'a Types,
    path: Vec<PathElement>,
    result: Comparison,
}

impl Comparer<'_> {
    fn value(&mut self, type_ref: &TypeRef, old: Option<&Value>, new: Option<&Value>) -> Result<(), TypeError> {
        // A value that only one object has differs as a whole.
        match (old, new) {
            (None, None) => return Ok(()),
            (None, Some(new)) => {
                let below = self.whole(type_ref, new)?;
                self.result.added.insert_whole(&self.path, below);
                return Ok(());
            }
            (Some(old), None) => {
                let below = self.whole(type_ref, old)?;
                self.result.removed.insert_whole(&self.path, below);
                return Ok(());
            }
            _ => {}
        }
        let atom = shapes(self.types, type_ref, &self.path)?;
        match (old, new) {
            // The value changed its shape: its old fields are removed, and its new fields are
            // added.
            (Some(was), Some(is)) if atom.possible(was) != atom.possible(is) => {
                self.shaped(atom.shape(was), old, new)?;
                self.shaped(atom.shape(is), old, new)
            }
            (_, Some(value)) | (Some(value), None) => self.shaped(atom.shape(value), old, new),
            (None, None) => Ok(()),
        }
    }

    fn shaped(&mut self, shape: Shape<'_>, old: Option<&Value>, new: Option<&Value>) -> Result<(), TypeError> {
        match shape {
            Shape::Map(map) => self.maps(map, old, new),
            Shape::List(list) => self.lists(list, old, new),
            Shape::Scalar(_) => {
                self.leaf(old, new);
                Ok(())
            }
            Shape::None => Err(TypeError::new(&self.path, "schema error: invalid atom")),
        }
    }

    /// All fields below a value that only one object has: every container and all of its parts.
    fn whole(&mut self, type_ref: &TypeRef, value: &Value) -> Result<Set, TypeError> {
        let atom = shapes(self.types, type_ref, &self.path)?;
        let mut set = Set::new();
        match (atom.shape(value), value) {
            (Shape::Map(map), Value::Object(entries)) if map.relationship == Relationship::Granular => {
                for (name, entry) in entries {
                    let element = PathElement::field(name);
                    let Some(type_ref) = map.entry(name) else {
                        self.path.push(element);
                        return Err(TypeError::new(&self.path, "field not declared in schema"));
                    };
                    let below = self.whole(type_ref, entry)?;
                    set.insert_whole(&[element], below);
                }
            }
            (Shape::List(list), Value::Array(items)) if list.relationship == Relationship::Granular => {
                let elements = elements(self.types, list, items, &self.path)?;
                for (i, (element, item)) in elements.iter().zip(items).enumerate() {
                    // Duplicate items are one field, regardless of their content.
                    let duplicated = elements.iter().enumerate().any(|(j, other)| i != j && other == element);
                    let below = if duplicated { Set::new() } else { self.whole(&list.element, item)? };
                    set.insert_whole(std::slice::from_ref(element), below);
                }
            }
            (Shape::None, _) => return Err(TypeError::new(&self.path, "schema error: invalid atom")),
            _ => {}
        }
        Ok(set)
    }

    fn leaf(&mut self, old: Option<&Value>, new: Option<&Value>) {
        match (old, new) {
            (None, Some(_)) => self.result.added.insert(&self.path),
            (Some(_), None) => self.result.removed.insert(&self.path),
            (Some(old), Some(new)) if !equal_values(old, new) => self.result.modified.insert(&self.path),
            _ => {}
        }
    }

    fn maps(&mut self, map: &MapType, old: Option<&Value>, new: Option<&Value>) -> Result<(), TypeError> {
        let old_map = old.and_then(Value::as_object).filter(|map| !map.is_empty());
        let new_map = new.and_then(Value::as_object).filter(|map| !map.is_empty());
        if map.relationship == Relationship::Atomic || (old_map.is_none() && new_map.is_none()) {
            self.leaf(old, new);
            return Ok(());
        }
        let old_get = |name: &str| old_map.and_then(|map| map.get(name));
        let new_get = |name: &str| new_map.and_then(|map| map.get(name));
        let added = new_map.into_iter().flatten().map(|(name, _)| name).filter(|name| old_get(name).is_none());
        let names: Vec<&String> = old_map.into_iter().flatten().map(|(name, _)| name).chain(added).collect();
        for name in names {
            let (old, new) = (old_get(name), new_get(name));
            if old == new {
                continue;
            }
            self.path.push(PathElement::field(name));
            let Some(type_ref) = map.entry(name) else {
                return Err(TypeError::new(&self.path, "field not declared in schema"));
            };
            self.value(type_ref, old, new)?;
            self.path.pop();
        }
        Ok(())
    }

    fn lists<'v>(&mut self, list: &List, old: Option<&'v Value>, new: Option<&'v Value>) -> Result<(), TypeError> {
        let items = |value: Option<&'v Value>| value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let (old_items, new_items) = (items(old), items(new));
        if list.relationship == Relationship::Atomic || (old_items.is_empty() && new_items.is_empty()) {
            self.leaf(old, new);
            return Ok(());
        }
        let mut pairs: BTreeMap<PathElement, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
        for (element, item) in elements(self.types, list, old_items, &self.path)?.into_iter().zip(old_items) {
            pairs.entry(element).or_default().0.push(item);
        }
        for (element, item) in elements(self.types, list, new_items, &self.path)?.into_iter().zip(new_items) {
            pairs.entry(element).or_default().1.push(item);
        }
        for (element, (old, new)) in pairs {
            self.path.push(element);
            match (&old[..], &new[..]) {
                ([], [new]) => self.value(&list.element, None, Some(new))?,
                ([old], []) => self.value(&list.element, Some(old), None)?,
                ([old], [new]) => self.value(&list.element, Some(old), Some(new))?,
                // Duplicate items are one field, regardless of their content.
                ([], _) => self.result.added.insert(&self.path),
                (_, []) => self.result.removed.insert(&self.path),
                // One item became several, or several became one: only one side has separate fields
                // for it.
                ([old], _) => {
                    self.value(&list.element, Some(old), None)?;
                    self.result.added.insert(&self.path);
                }
                (_, [new]) => {
                    self.result.removed.insert(&self.path);
                    self.value(&list.element, None, Some(new))?;
                }
                (old, new) => {
                    let same = old.len() == new.len() && old.iter().zip(new).all(|(old, new)| equal_values(old, new));
                    if !same {
                        self.result.modified.insert(&self.path);
                    }
                }
            }
            self.path.pop();
        }
        Ok(())
    }
}
