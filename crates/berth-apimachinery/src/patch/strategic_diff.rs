//! Computes strategic merge patches: the two-way patch between two objects, and the three-way patch
//! of `kubectl apply`.

use serde_json::{Map, Value};

use super::merge::has_conflicts;
use super::strategic::{
    DELETE_FROM_PRIMITIVE_LIST, Merger, PATCH, RETAIN_KEYS, SET_ELEMENT_ORDER, Strategy, same_item, sort_by_order,
    strategy,
};
use super::{PatchError, same_type};
use crate::schema::Schema;

/// The strategic merge patch that turns one object into another.
pub fn two_way_strategic(original: &Value, modified: &Value, schema: &Schema) -> Result<Value, PatchError> {
    let options = Options { changes: true, deletions: true, order: true, retain_keys: false };
    Ok(Value::Object(diff_maps(&map(original), &map(modified), Some(schema), options)?))
}

/// The patch of a client that last wrote `original`, now wants `modified`, and finds `current`.
/// Without `overwrite`, a different change to the same field by another client is an error.
pub fn three_way_strategic(
    original: &Value,
    modified: &Value,
    current: &Value,
    schema: &Schema,
    overwrite: bool,
) -> Result<Value, PatchError> {
    let (original, modified, current) = (map(original), map(modified), map(current));
    let changes = Options { changes: true, deletions: false, order: true, retain_keys: false };
    let delta = diff_maps(&current, &modified, Some(schema), changes)?;
    let deletions = Options { changes: false, deletions: true, order: true, retain_keys: false };
    let deletions = diff_maps(&original, &modified, Some(schema), deletions)?;
    let patch = Value::Object(Merger { to_object: false }.maps(deletions, delta, Some(schema))?);
    if !overwrite {
        let everything = Options { changes: true, deletions: true, order: true, retain_keys: false };
        let changed = Value::Object(diff_maps(&original, &current, Some(schema), everything)?);
        if strategic_conflicts(&patch, &changed, Some(schema))? {
            return Err(PatchError::Conflict { patch: pretty(&patch), changed: pretty(&changed) });
        }
    }
    Ok(patch)
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

fn map(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

#[derive(Clone, Copy)]
struct Options {
    changes: bool,
    deletions: bool,
    order: bool,
    retain_keys: bool,
}

fn diff_maps(
    original: &Map<String, Value>,
    modified: &Map<String, Value>,
    schema: Option<&Schema>,
    options: Options,
) -> Result<Map<String, Value>, PatchError> {
    let mut patch = Map::new();
    let mut kept: Vec<&str> = Vec::new();
    for (key, new) in modified {
        if options.retain_keys && !new.is_null() {
            kept.push(key);
        }
        let Some(old) = original.get(key) else {
            if options.changes {
                patch.insert(key.clone(), new.clone());
            }
            continue;
        };
        if old == new {
            continue;
        }
        match (old, new) {
            (Value::Object(old), Value::Object(new)) => {
                let strategy = strategy(schema, key)?;
                if strategy.replace {
                    if options.changes {
                        patch.insert(key.clone(), Value::Object(new.clone()));
                    }
                    continue;
                }
                let options = Options { retain_keys: strategy.retain_keys, ..options };
                let below = diff_maps(old, new, strategy.schema, options)?;
                if !below.is_empty() {
                    patch.insert(key.clone(), Value::Object(below));
                }
            }
            (Value::Array(old), Value::Array(new)) => {
                let strategy = strategy(schema, key)?;
                if strategy.merge {
                    let options = Options { retain_keys: strategy.retain_keys, ..options };
                    diff_lists(key, old, new, strategy, options, &mut patch)?;
                } else if options.changes {
                    patch.insert(key.clone(), Value::Array(new.clone()));
                }
            }
            _ => {
                if options.changes {
                    patch.insert(key.clone(), new.clone());
                }
            }
        }
    }
    if options.deletions {
        for key in original.keys().filter(|key| !modified.contains_key(*key)) {
            patch.insert(key.clone(), Value::Null);
        }
    }
    let loses_field = || original.iter().any(|(key, value)| !value.is_null() && !modified.contains_key(key));
    if !kept.is_empty() && (!patch.is_empty() || loses_field()) {
        kept.sort_unstable();
        patch.insert(RETAIN_KEYS.to_owned(), Value::from(kept));
    }
    Ok(patch)
}

fn diff_lists(
    key: &str,
    original: &[Value],
    modified: &[Value],
    strategy: Strategy<'_>,
    options: Options,
    patch: &mut Map<String, Value>,
) -> Result<(), PatchError> {
    if original.is_empty() {
        if !modified.is_empty() && options.changes {
            patch.insert(key.to_owned(), Value::Array(modified.to_vec()));
        }
        return Ok(());
    }
    let is_maps = original.first().or(modified.first()).is_some_and(Value::is_object);
    let (changes, deletions) = if is_maps {
        (diff_items(original, modified, strategy, options)?, Vec::new())
    } else {
        diff_scalars(original, modified, options)
    };
    let moved = if is_maps {
        let keys = |list: &[Value]| list.iter().map(|item| item.get(strategy.merge_key).cloned()).collect::<Vec<_>>();
        keys(original) != keys(modified)
    } else {
        original != modified
    };
    let ordered = options.order
        && ((options.changes && (!changes.is_empty() || moved)) || (options.deletions && !changes.is_empty()));
    if ordered && !modified.is_empty() {
        let order = if is_maps {
            modified.iter().map(|item| key_only(item, strategy.merge_key)).collect()
        } else {
            modified.to_vec()
        };
        patch.insert(format!("{SET_ELEMENT_ORDER}{key}"), Value::Array(order));
    }
    if !changes.is_empty() {
        patch.insert(key.to_owned(), Value::Array(changes));
    }
    if !deletions.is_empty() {
        patch.insert(format!("{DELETE_FROM_PRIMITIVE_LIST}{key}"), Value::Array(deletions));
    }
    Ok(())
}

fn key_only(item: &Value, merge_key: &str) -> Value {
    let mut map = Map::new();
    if let Some(value) = item.get(merge_key) {
        map.insert(merge_key.to_owned(), value.clone());
    }
    Value::Object(map)
}

fn diff_items(
    original: &[Value],
    modified: &[Value],
    strategy: Strategy<'_>,
    options: Options,
) -> Result<Vec<Value>, PatchError> {
    let merge_key = strategy.merge_key;
    let mut changes = Vec::new();
    for new in modified {
        let Value::Object(new_map) = new else {
            return Err(PatchError::Unprocessable(format!("cannot compare {new} with maps")));
        };
        let Some(key_value) = new_map.get(merge_key) else {
            return Err(PatchError::Unprocessable(format!(
                "map: {new} does not contain declared merge key: {merge_key}"
            )));
        };
        match original.iter().find(|old| same_item(old, new, merge_key)) {
            Some(Value::Object(old)) => {
                let mut below = diff_maps(old, new_map, strategy.schema, options)?;
                if !below.is_empty() {
                    below.insert(merge_key.to_owned(), key_value.clone());
                    changes.push(Value::Object(below));
                }
            }
            _ if options.changes => changes.push(new.clone()),
            _ => {}
        }
    }
    if options.deletions {
        let mut gone: Vec<&Value> =
            original.iter().filter(|old| !modified.iter().any(|new| same_item(old, new, merge_key))).collect();
        gone.sort_by_key(|item| match item.get(merge_key) {
            Some(Value::String(text)) => text.clone(),
            other => other.map(Value::to_string).unwrap_or_default(),
        });
        for item in gone {
            let mut deletion = Map::new();
            deletion.insert(PATCH.to_owned(), Value::from("delete"));
            if let Some(value) = item.get(merge_key) {
                deletion.insert(merge_key.to_owned(), value.clone());
            }
            changes.push(Value::Object(deletion));
        }
    }
    Ok(changes)
}

fn diff_scalars(original: &[Value], modified: &[Value], options: Options) -> (Vec<Value>, Vec<Value>) {
    let mut added: Vec<Value> = Vec::new();
    let mut gone: Vec<Value> = Vec::new();
    if options.changes {
        for value in modified.iter().filter(|value| !original.contains(value)) {
            if !added.contains(value) {
                added.push(value.clone());
            }
        }
        sort_by_order(&mut added, modified, "");
    }
    if options.deletions {
        for value in original.iter().filter(|value| !modified.contains(value)) {
            if !gone.contains(value) {
                gone.push(value.clone());
            }
        }
    }
    (added, gone)
}

/// True if two patches set the same path to different values. Items of merging lists are identified
/// by their key.
fn strategic_conflicts(a: &Value, b: &Value, schema: Option<&Schema>) -> Result<bool, PatchError> {
    let (Value::Object(a), Value::Object(b)) = (a, b) else { return has_conflicts(a, b) };
    let directive = |map: &Map<String, Value>| map.get(PATCH).cloned();
    if (a.contains_key(PATCH) || b.contains_key(PATCH)) && directive(a) != directive(b) {
        return Ok(true);
    }
    for (key, mine) in a {
        let Some(theirs) = b.get(key) else { continue };
        let conflict = match (mine, theirs) {
            // Orders, deletions of scalars and retained keys do not change values.
            _ if key == PATCH
                || key == RETAIN_KEYS
                || key.starts_with(SET_ELEMENT_ORDER)
                || key.starts_with(DELETE_FROM_PRIMITIVE_LIST) =>
            {
                false
            }
            (mine, theirs) if !same_type(mine, theirs) => true,
            (Value::Object(_), Value::Object(_)) => {
                let strategy = strategy(schema, key)?;
                if strategy.replace { mine != theirs } else { strategic_conflicts(mine, theirs, strategy.schema)? }
            }
            (Value::Array(mine), Value::Array(theirs)) => {
                let strategy = strategy(schema, key)?;
                if !strategy.merge {
                    has_conflicts(&Value::Array(mine.clone()), &Value::Array(theirs.clone()))?
                } else if strategy.merge_key.is_empty() {
                    false
                } else {
                    let mut any = false;
                    for item in mine {
                        if let Some(other) = theirs.iter().find(|other| same_item(item, other, strategy.merge_key)) {
                            any |= strategic_conflicts(item, other, strategy.schema)?;
                        }
                    }
                    any
                }
            }
            (mine, theirs) => mine != theirs,
        };
        if conflict {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_three_way_patch_keeps_items_of_other_clients() {
        let schema = Schema::parse_crd(&json!({"type": "object", "properties": {
            "env": {"type": "array", "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "name",
                "items": {"type": "object", "properties": {"name": {"type": "string"}, "value": {"type": "string"}}}}}}))
        .expect("parses");
        let original = json!({"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]});
        let modified = json!({"env": [{"name": "A", "value": "2"}]});
        let current =
            json!({"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}, {"name": "T", "value": "1"}]});
        let patch = three_way_strategic(&original, &modified, &current, &schema, true).expect("diffs");
        let result = super::super::apply_strategic(&current, &patch, &schema).expect("applies");
        assert_eq!(result, json!({"env": [{"name": "A", "value": "2"}, {"name": "T", "value": "1"}]}));
    }
}
