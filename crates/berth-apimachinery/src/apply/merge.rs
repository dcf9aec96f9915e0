//! Merging an applied object over a live one.
//!
//! Applied values replace live ones; fields that the configuration omits stay. Items that only the
//! live object has keep their position before the items that follow them. Applied items keep the
//! order of the configuration.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::path::PathElement;
use super::types::{List, MapType, Relationship, TypeRef, Types};
use super::walk::{Shape, TypeError, check_scalar, elements, shapes};

/// Merges `applied` over `live`. Duplicates are tolerated in `live` only.
pub fn merge(types: &Types, type_ref: &TypeRef, live: &Value, applied: &Value) -> Result<Value, TypeError> {
    let mut path = Vec::new();
    let merged = Merger { types }.value(type_ref, Some(live), Some(applied), &mut path)?;
    Ok(merged.unwrap_or(Value::Null))
}

struct Merger<'a> {
    types: &'a Types,
}

impl Merger<'_> {
    fn value(
        &self,
        type_ref: &TypeRef,
        live: Option<&Value>,
        applied: Option<&Value>,
        path: &mut Vec<PathElement>,
    ) -> Result<Option<Value>, TypeError> {
        let (decides, other) = match (live, applied) {
            (None, None) => return Ok(None),
            (Some(live), None) => (live, None),
            (live, Some(applied)) => (applied, live),
        };
        let atom = shapes(self.types, type_ref, path)?;
        match atom.shape(decides) {
            Shape::Map(map) => self.maps(map, live, applied, path),
            Shape::List(list) => self.lists(list, live, applied, path),
            Shape::Scalar(scalar) => {
                check_scalar(scalar, decides, path)?;
                if let Some(other) = other
                    && !other.is_array()
                    && !other.is_object()
                {
                    check_scalar(scalar, other, path)?;
                }
                Ok(Some(decides.clone()))
            }
            Shape::None => Err(TypeError::new(path, "schema error: invalid atom")),
        }
    }

    fn maps(
        &self,
        map: &MapType,
        live: Option<&Value>,
        applied: Option<&Value>,
        path: &mut Vec<PathElement>,
    ) -> Result<Option<Value>, TypeError> {
        let empty = Map::new();
        let live_map = live.and_then(Value::as_object).unwrap_or(&empty);
        let applied_map = applied.and_then(Value::as_object).unwrap_or(&empty);
        // If both maps are null or empty, there is nothing to merge. The applied value is used,
        // because null and an empty map differ.
        if map.relationship == Relationship::Atomic || (live_map.is_empty() && applied_map.is_empty()) {
            return Ok(applied.or(live).cloned());
        }
        let mut merged = Map::new();
        let mut merge = |name: &String, live: Option<&Value>, applied: Option<&Value>| -> Result<(), TypeError> {
            path.push(PathElement::field(name));
            let Some(type_ref) = map.entry(name) else {
                return Err(TypeError::new(path, "field not declared in schema"));
            };
            if let Some(value) = self.value(type_ref, live, applied, path)? {
                merged.insert(name.clone(), value);
            }
            path.pop();
            Ok(())
        };
        for (name, live) in live_map {
            merge(name, Some(live), applied_map.get(name))?;
        }
        for (name, applied) in applied_map.iter().filter(|(name, _)| !live_map.contains_key(*name)) {
            merge(name, None, Some(applied))?;
        }
        Ok(Some(Value::Object(merged)))
    }

    fn lists<'v>(
        &self,
        list: &List,
        live: Option<&'v Value>,
        applied: Option<&'v Value>,
        path: &mut Vec<PathElement>,
    ) -> Result<Option<Value>, TypeError> {
        let items = |value: Option<&'v Value>| value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let (live_items, applied_items) = (items(live), items(applied));
        if list.relationship == Relationship::Atomic || (live_items.is_empty() && applied_items.is_empty()) {
            return Ok(applied.or(live).cloned());
        }
        let live_elements = elements(self.types, list, live_items, path)?;
        let applied_elements = elements(self.types, list, applied_items, path)?;
        let mut live_at: BTreeMap<&PathElement, Option<&Value>> = BTreeMap::new();
        for (element, item) in live_elements.iter().zip(live_items) {
            // A duplicated live item cannot be merged: the applied item does not identify one copy.
            live_at.entry(element).and_modify(|found| *found = None).or_insert(Some(item));
        }
        let mut applied_at: BTreeMap<&PathElement, usize> = BTreeMap::new();
        for (i, element) in applied_elements.iter().enumerate() {
            if applied_at.insert(element, i).is_some() {
                return Err(TypeError::new(path, format!("duplicate entries for key {element}")));
            }
        }
        let mut merged = Vec::with_capacity(live_items.len().max(applied_items.len()));
        // Applied items that are also live, in applied order: the live list is copied up to the
        // next of them.
        let mut shared = applied_elements.iter().filter(|element| live_at.contains_key(element)).peekable();
        let mut cursor = 0;
        let keep_live =
            |cursor: &mut usize, until: Option<&PathElement>, merged: &mut Vec<Value>, path: &mut Vec<PathElement>| {
                while let Some(element) = live_elements.get(*cursor) {
                    if Some(element) == until {
                        return Ok(());
                    }
                    if !applied_at.contains_key(element) {
                        path.push(element.clone());
                        merged.extend(self.value(&list.element, Some(&live_items[*cursor]), None, path)?);
                        path.pop();
                    }
                    *cursor += 1;
                }
                Ok::<(), TypeError>(())
            };
        for (element, item) in applied_elements.iter().zip(applied_items) {
            keep_live(&mut cursor, shared.peek().copied(), &mut merged, path)?;
            path.push(element.clone());
            let live = live_at.get(element).copied().flatten();
            merged.extend(self.value(&list.element, live, Some(item), path)?);
            path.pop();
            if shared.peek() == Some(&element) {
                shared.next();
                cursor += 1;
            }
        }
        keep_live(&mut cursor, None, &mut merged, path)?;
        Ok(Some(Value::Array(merged)))
    }
}
