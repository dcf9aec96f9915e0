//! Strategic merge patch: a merge patch that merges lists by key if the schema requires it.
//!
//! The schema defines the strategy per field (`x-kubernetes-patch-strategy`,
//! `x-kubernetes-patch-merge-key`); directives in the patch (`$patch`, `$retainKeys`,
//! `$setElementOrder/...`, `$deleteFromPrimitiveList/...`) refine it.
//!
//! Source: Kubernetes' API conventions and the design document
//! "preserve-order-in-strategic-merge-patch".

use serde_json::{Map, Value};

use super::{PatchError, same_type};
use crate::field;
use crate::schema::{AdditionalProperties, Schema};

pub(super) const PATCH: &str = "$patch";
pub(super) const RETAIN_KEYS: &str = "$retainKeys";
pub(super) const SET_ELEMENT_ORDER: &str = "$setElementOrder/";
pub(super) const DELETE_FROM_PRIMITIVE_LIST: &str = "$deleteFromPrimitiveList/";

/// Applies a strategic merge patch to an object.
pub fn apply_strategic(target: &Value, patch: &Value, schema: &Schema) -> Result<Value, PatchError> {
    let (Value::Object(target), Value::Object(patch)) = (target, patch) else {
        return Err(PatchError::Malformed("a strategic merge patch and its target must be objects".to_owned()));
    };
    let merged = Merger { to_object: true }.maps(target.clone(), patch.clone(), Some(schema))?;
    Ok(Value::Object(merged))
}

/// The merge strategy of a field.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Strategy<'a> {
    /// The schema of the field (for a list, of its items).
    pub schema: Option<&'a Schema>,
    /// True if the field is replaced as a whole.
    pub replace: bool,
    /// True if the field is a list that merges.
    pub merge: bool,
    /// True if the field is a map whose patches list the keys to retain.
    pub retain_keys: bool,
    /// The field that identifies items of a merging list; empty for lists of scalars.
    pub merge_key: &'a str,
}

/// The strategy of a map field. Without a schema it is the default; an unknown field of a schema
/// with fields is an error.
pub(super) fn strategy<'a>(schema: Option<&'a Schema>, name: &str) -> Result<Strategy<'a>, PatchError> {
    let Some(schema) = schema.map(Schema::target) else { return Ok(Strategy::default()) };
    let (property, declared) = match (schema.properties.get(name), &schema.additional_properties) {
        (Some(property), _) => (property, true),
        (None, Some(AdditionalProperties::Schema(entry))) => (entry, true),
        (None, _) if schema.properties.is_empty() || schema.preserve_unknown_fields => return Ok(Strategy::default()),
        (None, _) => return Err(PatchError::UnknownField(name.to_owned())),
    };
    debug_assert!(declared);
    let has = |strategy: &str| property.patch_strategy.iter().any(|s| s == strategy);
    let target = property.target();
    Ok(Strategy {
        schema: Some(target.items.as_deref().unwrap_or(target)),
        replace: has("replace"),
        merge: has("merge"),
        retain_keys: has("retainKeys"),
        merge_key: property.patch_merge_key.as_deref().unwrap_or_default(),
    })
}

/// Merges one map into another: a patch into an object, or a patch into a patch.
pub(super) struct Merger {
    /// True if the result is an object: directives are executed and removed, as are nulls that
    /// match no field. Otherwise the result is a patch and keeps them.
    pub to_object: bool,
}

impl Merger {
    pub(super) fn maps(
        &self,
        mut original: Map<String, Value>,
        mut patch: Map<String, Value>,
        schema: Option<&Schema>,
    ) -> Result<Map<String, Value>, PatchError> {
        match patch.remove(PATCH) {
            None => {}
            Some(Value::String(directive)) => match directive.as_str() {
                "replace" => return Ok(patch),
                "delete" => return Ok(Map::new()),
                "merge" => {}
                other => return Err(PatchError::Malformed(format!("Unknown patch type: {other} in map"))),
            },
            Some(other) => {
                return Err(PatchError::Malformed(format!("invalid value for the patch directive: {other}")));
            }
        }
        if let Some(keep) = patch.remove(RETAIN_KEYS) {
            self.retain_keys(&mut original, &patch, keep)?;
        }
        if self.to_object {
            self.ordered_lists(&mut original, &mut patch, schema)?;
        }
        for (key, value) in patch {
            if let Some(list) = key.strip_prefix(DELETE_FROM_PRIMITIVE_LIST) {
                if self.to_object {
                    delete_scalars(&mut original, list, &value);
                } else {
                    original.insert(key, value);
                }
                continue;
            }
            if value.is_null() {
                original.remove(&key);
                if self.to_object {
                    continue;
                }
            }
            let present = match original.remove(&key) {
                Some(present) if same_type(&present, &value) => present,
                _ => {
                    original.insert(key, self.taken(value));
                    continue;
                }
            };
            let merged = match (present, value) {
                (Value::Object(present), Value::Object(value)) => {
                    let strategy = strategy(schema, &key)?;
                    if strategy.replace {
                        self.taken(Value::Object(value))
                    } else {
                        Value::Object(self.maps(present, value, strategy.schema)?)
                    }
                }
                (Value::Array(present), Value::Array(value)) if !key.starts_with(SET_ELEMENT_ORDER) => {
                    Value::Array(self.lists(present, value, strategy(schema, &key)?)?)
                }
                (_, value) => value,
            };
            original.insert(key, merged);
        }
        if !self.to_object {
            self.sort_combined(&mut original, schema)?;
        }
        Ok(original)
    }

    /// A value that is inserted unchanged. An object loses directives and nulls in maps; a patch
    /// loses deletions of items that cannot exist.
    fn taken(&self, mut value: Value) -> Value {
        if self.to_object {
            drop_directives(&mut value);
        } else if let Value::Array(list) = &mut value {
            list.retain(|item| item.get(PATCH).is_none());
        }
        value
    }

    /// Sorts the lists of a combined patch in the order it requests, deletions last.
    fn sort_combined(&self, patch: &mut Map<String, Value>, schema: Option<&Schema>) -> Result<(), PatchError> {
        let directives: Vec<String> = patch.keys().filter(|key| key.starts_with(SET_ELEMENT_ORDER)).cloned().collect();
        for directive in directives {
            let name = &directive[SET_ELEMENT_ORDER.len()..];
            let merge_key = strategy(schema, name)?.merge_key;
            let Some(Value::Array(order)) = patch.get(&directive).cloned() else { continue };
            if let Some(Value::Array(list)) = patch.get_mut(name) {
                sort_by_order(list, &order, merge_key);
            }
        }
        Ok(())
    }

    fn retain_keys(
        &self,
        original: &mut Map<String, Value>,
        patch: &Map<String, Value>,
        keep: Value,
    ) -> Result<(), PatchError> {
        let Value::Array(kept) = &keep else {
            return Err(PatchError::Malformed(format!("invalid value for {RETAIN_KEYS}: must be a list")));
        };
        if !self.to_object {
            original.insert(RETAIN_KEYS.to_owned(), keep);
            return Ok(());
        }
        let kept: Vec<&str> = kept.iter().filter_map(Value::as_str).collect();
        for key in patch.keys() {
            let key = key
                .strip_prefix(SET_ELEMENT_ORDER)
                .or_else(|| key.strip_prefix(DELETE_FROM_PRIMITIVE_LIST))
                .unwrap_or(key);
            if !kept.contains(&key) && !patch.get(key).is_some_and(Value::is_null) {
                return Err(PatchError::Malformed(format!(
                    "bad patch format: {RETAIN_KEYS} must contain every field of the patch, but not {}",
                    field::quote(key)
                )));
            }
        }
        original.retain(|key, _| kept.contains(&key.as_str()));
        Ok(())
    }

    /// Executes `$setElementOrder/x` together with the patch of list `x`.
    fn ordered_lists(
        &self,
        original: &mut Map<String, Value>,
        patch: &mut Map<String, Value>,
        schema: Option<&Schema>,
    ) -> Result<(), PatchError> {
        let directives: Vec<String> = patch.keys().filter(|key| key.starts_with(SET_ELEMENT_ORDER)).cloned().collect();
        for directive in directives {
            let name = &directive[SET_ELEMENT_ORDER.len()..];
            let Some(Value::Array(order)) = patch.remove(&directive) else {
                return Err(PatchError::Malformed(format!("{directive} must be a list")));
            };
            let strategy = strategy(schema, name)?;
            let changes = match patch.get(name) {
                Some(Value::Array(_)) => match patch.remove(name) {
                    Some(Value::Array(changes)) => Some(changes),
                    _ => None,
                },
                // A null deletes the list, regardless of the requested order.
                Some(_) => continue,
                None => None,
            };
            if let Some(changes) = &changes {
                check_order(changes, &order, strategy.merge_key)?;
            }
            let present = match original.get(name) {
                Some(Value::Array(present)) => Some(present.clone()),
                _ => None,
            };
            let server_order = present.clone().unwrap_or_default();
            let merged = match (present, changes) {
                (None, None) => continue,
                (Some(present), None) => present,
                (None, Some(changes)) => {
                    let mut value = Value::Array(changes);
                    drop_directives(&mut value);
                    match value {
                        Value::Array(list) => list,
                        _ => Vec::new(),
                    }
                }
                (Some(present), Some(changes)) => self.lists(present, changes, strategy)?,
            };
            let server_order = succeed(server_order, &merged, strategy.merge_key);
            let sorted = in_order(merged, &order, &server_order, strategy.merge_key);
            original.insert(name.to_owned(), Value::Array(sorted));
        }
        Ok(())
    }

    fn lists(
        &self,
        present: Vec<Value>,
        changes: Vec<Value>,
        strategy: Strategy<'_>,
    ) -> Result<Vec<Value>, PatchError> {
        if !strategy.merge {
            let Value::Array(list) = self.taken(Value::Array(changes)) else { return Ok(Vec::new()) };
            return Ok(list);
        }
        if present.is_empty() && changes.is_empty() {
            return Ok(changes);
        }
        let first = present.first().or(changes.first());
        if !first.is_some_and(Value::is_object) {
            let mut merged: Vec<Value> = Vec::with_capacity(present.len() + changes.len());
            for value in present.iter().chain(&changes) {
                if !merged.contains(value) {
                    merged.push(value.clone());
                }
            }
            return Ok(in_order(merged, &changes, &present, ""));
        }
        let key = strategy.merge_key;
        if key.is_empty() {
            return Err(PatchError::Unprocessable("cannot merge lists of maps without a merge key".to_owned()));
        }
        let server_order = present.clone();
        let mut merged = present;
        let mut plain: Vec<Map<String, Value>> = Vec::new();
        let mut replace = false;
        for change in changes {
            let Value::Object(mut change) = change else {
                return Err(PatchError::Unprocessable(format!("cannot merge {change} into a list of maps")));
            };
            match change.get(PATCH).and_then(Value::as_str) {
                None if change.contains_key(PATCH) => {
                    return Err(PatchError::Malformed(format!(
                        "invalid value for the patch directive: {}",
                        change[PATCH]
                    )));
                }
                None => plain.push(change),
                // In a patch of patches, a deletion is data.
                Some("delete") if !self.to_object => plain.push(change),
                Some("delete") => {
                    let Some(wanted) = change.remove(key) else {
                        return Err(PatchError::Unprocessable(
                            "delete patch type with no merge key defined".to_owned(),
                        ));
                    };
                    merged.retain(|item| item.get(key) != Some(&wanted));
                }
                Some("replace") => replace = true,
                Some(other) => return Err(PatchError::Malformed(format!("Unknown patch type: {other} in a list"))),
            }
        }
        if replace {
            return Ok(plain.into_iter().map(|item| self.taken(Value::Object(item))).collect());
        }
        let order: Vec<Value> = plain.iter().cloned().map(Value::Object).collect();
        for change in plain {
            let Some(wanted) = change.get(key) else {
                let shown = Value::Object(change);
                return Err(PatchError::Unprocessable(format!(
                    "map: {shown} does not contain declared merge key: {key}"
                )));
            };
            match merged.iter().position(|item| item.get(key) == Some(wanted)) {
                Some(at) => {
                    let Value::Object(item) = merged[at].take() else { continue };
                    merged[at] = Value::Object(self.maps(item, change, strategy.schema)?);
                }
                None => merged.push(self.taken(Value::Object(change))),
            }
        }
        Ok(in_order(merged, &order, &server_order, key))
    }
}

fn delete_scalars(original: &mut Map<String, Value>, list: &str, values: &Value) {
    if let (Some(Value::Array(present)), Value::Array(values)) = (original.get_mut(list), values) {
        present.retain(|value| !values.contains(value));
    }
}

fn is_directive(key: &str) -> bool {
    key == PATCH
        || key == RETAIN_KEYS
        || key.starts_with(SET_ELEMENT_ORDER)
        || key.starts_with(DELETE_FROM_PRIMITIVE_LIST)
}

/// Removes directives, items that exist only to be deleted, and nulls in maps. Nulls in lists of
/// scalars are data.
fn drop_directives(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|key, value| !is_directive(key) && !value.is_null());
            map.values_mut().for_each(drop_directives);
        }
        Value::Array(list) => {
            list.retain(|item| !matches!(item.get(PATCH).and_then(Value::as_str), Some("delete" | "replace")));
            list.iter_mut().for_each(drop_directives);
        }
        _ => {}
    }
}

/// True if two list items have the same identity.
pub(super) fn same_item(a: &Value, b: &Value, merge_key: &str) -> bool {
    if merge_key.is_empty() { a == b } else { a.get(merge_key).is_some() && a.get(merge_key) == b.get(merge_key) }
}

fn index_in(list: &[Value], item: &Value, merge_key: &str) -> Option<usize> {
    list.iter().position(|other| same_item(other, item, merge_key))
}

/// Sorts by position in `order`; items that `order` omits keep their relative order at the end.
pub(super) fn sort_by_order(items: &mut [Value], order: &[Value], merge_key: &str) {
    items.sort_by_key(|item| index_in(order, item, merge_key).unwrap_or(usize::MAX));
}

/// The old order, with new items in the positions that deletions freed at its end. That many new
/// items of a list of maps count as existing ones.
fn succeed(mut server_order: Vec<Value>, merged: &[Value], merge_key: &str) -> Vec<Value> {
    if merge_key.is_empty() {
        return server_order;
    }
    let length = server_order.len();
    let new: Vec<Value> =
        merged.iter().filter(|item| index_in(&server_order, item, merge_key).is_none()).cloned().collect();
    server_order.retain(|item| index_in(merged, item, merge_key).is_some());
    server_order.extend(new);
    server_order.truncate(length);
    server_order
}

/// Items that `order` names, in that order, with the other items between them as close as possible
/// to their position in `server_order`.
fn in_order(merged: Vec<Value>, order: &[Value], server_order: &[Value], merge_key: &str) -> Vec<Value> {
    let (mut ordered, mut others): (Vec<Value>, Vec<Value>) =
        merged.into_iter().partition(|item| index_in(order, item, merge_key).is_some());
    sort_by_order(&mut ordered, order, merge_key);
    sort_by_order(&mut others, server_order, merge_key);
    let mut result = Vec::with_capacity(ordered.len() + others.len());
    let (mut ordered, mut others) = (ordered.into_iter().peekable(), others.into_iter().peekable());
    while let (Some(other), Some(next)) = (others.peek(), ordered.peek()) {
        let before = match (index_in(server_order, other, merge_key), index_in(server_order, next, merge_key)) {
            (Some(other), Some(next)) => other < next,
            _ => false,
        };
        result.extend(if before { others.next() } else { ordered.next() });
    }
    result.extend(ordered);
    result.extend(others);
    result
}

/// Checks that the items of a list patch come in the order that the patch requests.
fn check_order(changes: &[Value], order: &[Value], merge_key: &str) -> Result<(), PatchError> {
    let mut from = 0;
    for change in changes.iter().filter(|change| change.get(PATCH).and_then(Value::as_str).is_none()) {
        match order[from..].iter().position(|item| same_item(item, change, merge_key)) {
            Some(at) => from += at,
            None if merge_key.is_empty() || change.get(merge_key).is_some() => {
                let (changes, order) = (Value::from(changes.to_vec()), Value::from(order.to_vec()));
                return Err(PatchError::Unprocessable(format!(
                    "The order in patch list:\n{changes}\n doesn't match $setElementOrder list:\n{order}\n"
                )));
            }
            // The merge reports this error, with the key.
            None => {}
        }
    }
    Ok(())
}

/// Sorts every merging list at every depth: by merge key, or by value for scalars. Used to compare
/// objects whose list order does not matter.
pub fn sort_merge_lists(value: &Value, schema: &Schema) -> Result<Value, PatchError> {
    sorted(value, Some(schema))
}

fn sorted(value: &Value, schema: Option<&Schema>) -> Result<Value, PatchError> {
    let Value::Object(map) = value else { return Ok(value.clone()) };
    let mut result = Map::new();
    for (key, entry) in map {
        let entry = match entry {
            Value::Array(list) => {
                let name = key.strip_prefix(DELETE_FROM_PRIMITIVE_LIST).unwrap_or(key);
                if name.starts_with(SET_ELEMENT_ORDER) || name == RETAIN_KEYS {
                    entry.clone()
                } else {
                    let strategy = strategy(schema, name)?;
                    let mut list = list.clone();
                    if strategy.merge {
                        for item in &mut list {
                            *item = sorted(item, strategy.schema)?;
                        }
                        let text = |item: &Value| match item.get(strategy.merge_key).unwrap_or(item) {
                            Value::String(text) => text.clone(),
                            other => other.to_string(),
                        };
                        list.sort_by_key(text);
                        if !list.first().is_some_and(Value::is_object) {
                            list.dedup();
                        }
                    }
                    Value::Array(list)
                }
            }
            Value::Object(_) => sorted(entry, strategy(schema, key)?.schema)?,
            _ => entry.clone(),
        };
        result.insert(key.clone(), entry);
    }
    Ok(Value::Object(result))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> std::sync::Arc<Schema> {
        Schema::parse_crd(&json!({"type": "object", "properties": {
            "containers": {"type": "array", "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "name",
                "items": {"type": "object", "properties": {"name": {"type": "string"}, "image": {"type": "string"}}}},
            "finalizers": {"type": "array", "items": {"type": "string"}, "x-kubernetes-patch-strategy": "merge"},
            "args": {"type": "array", "items": {"type": "string"}}
        }}))
        .expect("parses")
    }

    fn check(target: Value, patch: Value) -> Value {
        apply_strategic(&target, &patch, &schema()).expect("applies")
    }

    #[test]
    fn lists_with_a_key_merge_item_by_item() {
        let target = json!({"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}], "args": ["x"]});
        let patch =
            json!({"containers": [{"name": "b", "image": "2"}, {"name": "a", "$patch": "delete"}], "args": ["y"]});
        assert_eq!(check(target, patch), json!({"containers": [{"name": "b", "image": "2"}], "args": ["y"]}));
    }

    #[test]
    fn scalars_are_deleted_by_a_parallel_list() {
        let patch = json!({"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c"]});
        // Without a requested order, the items of the patch come first.
        assert_eq!(check(json!({"finalizers": ["a", "b"]}), patch), json!({"finalizers": ["c", "b"]}));
    }

    #[test]
    fn the_requested_order_keeps_other_items_in_place() {
        let target = json!({"containers": [{"name": "a"}, {"name": "theirs"}, {"name": "b"}]});
        let patch = json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}], "containers": []});
        assert_eq!(check(target, patch), json!({"containers": [{"name": "theirs"}, {"name": "b"}, {"name": "a"}]}));
    }
}
