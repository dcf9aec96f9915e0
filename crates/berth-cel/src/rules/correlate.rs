//! Correlation of new values with the old values they replace.
//!
//! Fields and map entries correspond by name, items of keyed lists by their keys. Other list items
//! do not correspond.

use std::sync::{Arc, OnceLock};

use berth_apimachinery::schema::{AdditionalProperties, ListType, Schema};
use serde_json::Value as Json;

/// A value with its corresponding old value.
#[derive(Clone, Debug)]
pub struct Correlated<'a> {
    new: &'a Json,
    old: &'a Json,
    schema: Option<&'a Schema>,
    /// Caches the comparison, which is expensive for large values.
    unchanged: Arc<OnceLock<bool>>,
}

impl<'a> Correlated<'a> {
    /// A new and an old value of one schema node.
    pub fn new(new: &'a Json, old: &'a Json, schema: &'a Schema) -> Self {
        Correlated { new, old, schema: Some(schema), unchanged: Arc::new(OnceLock::new()) }
    }

    /// The new value and the old one.
    pub fn values(&self) -> (&'a Json, &'a Json) {
        (self.new, self.old)
    }

    /// The field or map entry of this name.
    pub fn key(&self, key: &str) -> Option<Correlated<'a>> {
        let schema = self.schema;
        let (new, old) = (self.new.as_object()?.get(key)?, self.old.as_object()?.get(key)?);
        let below = schema.and_then(|schema| match (schema.properties.get(key), &schema.additional_properties) {
            (Some(property), _) => Some(&**property),
            (None, Some(AdditionalProperties::Schema(values))) => Some(&**values),
            _ => None,
        });
        Some(Correlated { new, old, schema: below, unchanged: Arc::new(OnceLock::new()) })
    }

    /// The item at this index of the new list.
    pub fn index(&self, index: usize) -> Option<Correlated<'a>> {
        let schema = self.schema?;
        let new = self.new.as_array()?.get(index)?;
        let old = MapList::new(schema, self.old.as_array()?)?.get(new)?;
        Some(Correlated { new, old, schema: schema.items.as_deref(), unchanged: Arc::new(OnceLock::new()) })
    }

    /// True if old and new are equal; keyed lists and sets are compared in any order.
    pub fn is_unchanged(&self) -> bool {
        *self.unchanged.get_or_init(|| same(self.new, self.old, self.schema))
    }
}

fn same(new: &Json, old: &Json, schema: Option<&Schema>) -> bool {
    match (new, old) {
        (Json::Array(new), Json::Array(old)) => {
            if new.len() != old.len() {
                return false;
            }
            let items = schema.and_then(|schema| schema.items.as_deref());
            match schema.and_then(|schema| schema.list_type) {
                Some(ListType::Map) => {
                    let list = schema.and_then(|schema| MapList::new(schema, old));
                    new.iter().all(|item| {
                        list.as_ref().and_then(|list| list.get(item)).is_some_and(|old| same(item, old, items))
                    })
                }
                Some(ListType::Set) => new.iter().all(|item| old.contains(item)),
                _ => new.iter().zip(old).all(|(new, old)| same(new, old, items)),
            }
        }
        (Json::Object(new), Json::Object(old)) => {
            new.len() == old.len()
                && new.iter().all(|(key, value)| {
                    let below = schema.and_then(|schema| schema.property(key));
                    old.get(key).is_some_and(|old| same(value, old, below))
                })
        }
        _ => new == old,
    }
}

/// A list whose items are identified by keys.
#[derive(Debug)]
pub struct MapList<'a> {
    items: &'a [Json],
    schema: &'a Schema,
}

impl<'a> MapList<'a> {
    /// `None` unless the schema is that of a keyed list.
    pub fn new(schema: &'a Schema, items: &'a [Json]) -> Option<Self> {
        let is_map = schema.list_type == Some(ListType::Map) && !schema.list_map_keys.is_empty();
        is_map.then_some(MapList { items, schema })
    }

    /// The first item with the same keys as `wanted`.
    pub fn get(&self, wanted: &Json) -> Option<&'a Json> {
        let wanted = self.keys(wanted)?;
        self.items.iter().find(|item| self.keys(item).is_some_and(|keys| keys == wanted))
    }

    /// Values of the key fields; an absent field has its default. `None` if they are not scalars.
    fn keys<'i>(&'i self, item: &'i Json) -> Option<Vec<Option<&'i Json>>> {
        let item = item.as_object()?;
        self.schema
            .list_map_keys
            .iter()
            .map(|key| {
                let default = || self.schema.items.as_ref()?.properties.get(key)?.default.as_ref();
                match item.get(key).or_else(default) {
                    None => Some(None),
                    Some(Json::Null | Json::Object(_) | Json::Array(_)) => None,
                    Some(scalar) => Some(Some(scalar)),
                }
            })
            .collect()
    }
}
