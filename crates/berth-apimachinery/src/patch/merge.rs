//! JSON merge patch (RFC 7396): applying, computing (two-way and three-way), and comparing patches.

use serde_json::{Map, Value};

use super::{PatchError, same_type};

/// Applies a merge patch: maps merge, null removes, everything else replaces.
pub fn apply_merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        target.clone_from(patch);
        return;
    };
    let target = crate::meta::map_mut(target);
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            apply_merge(target.entry(key.as_str()).or_insert(Value::Null), value);
        }
    }
}

/// The merge patch that turns one map into another.
pub fn merge_diff(from: &Value, to: &Value) -> Value {
    let (Value::Object(from), Value::Object(to)) = (from, to) else { return to.clone() };
    let mut patch = Map::new();
    for (key, new) in to {
        match from.get(key) {
            Some(old) if old == new => {}
            Some(old @ Value::Object(_)) if new.is_object() => {
                let below = merge_diff(old, new);
                if below.as_object().is_some_and(|below| !below.is_empty()) {
                    patch.insert(key.clone(), below);
                }
            }
            _ => {
                patch.insert(key.clone(), new.clone());
            }
        }
    }
    for key in from.keys().filter(|key| !to.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    Value::Object(patch)
}

/// Splits a patch into its nulls and all other changes. Maps that are empty in one half are dropped
/// from it; maps that were empty in the patch belong to the second half.
pub fn split_nulls(patch: &Value) -> (Value, Value) {
    let (mut nulls, mut others) = (Map::new(), Map::new());
    for (key, value) in patch.as_object().into_iter().flatten() {
        match value {
            Value::Null => {
                nulls.insert(key.clone(), Value::Null);
            }
            Value::Object(map) if !map.is_empty() => {
                let (below_nulls, below_others) = split_nulls(value);
                for (half, below) in [(&mut nulls, below_nulls), (&mut others, below_others)] {
                    if below.as_object().is_some_and(|below| !below.is_empty()) {
                        half.insert(key.clone(), below);
                    }
                }
            }
            _ => {
                others.insert(key.clone(), value.clone());
            }
        }
    }
    (Value::Object(nulls), Value::Object(others))
}

/// The merge patch of a client that last wrote `original`, now wants `modified`, and finds
/// `current`. Additions and changes lead from current to modified, deletions from original to
/// modified.
pub fn three_way_merge(original: &Value, modified: &Value, current: &Value) -> Value {
    let empty = Value::Object(Map::new());
    let or_empty = |value: &Value| if value.is_null() { empty.clone() } else { value.clone() };
    let (_, changes) = split_nulls(&merge_diff(&or_empty(current), &or_empty(modified)));
    let (deletions, _) = split_nulls(&merge_diff(&or_empty(original), &or_empty(modified)));
    combine(deletions, changes)
}

/// Merges one patch into another. Nulls are kept, because they are deletions.
fn combine(mut under: Value, over: Value) -> Value {
    match (under.as_object_mut(), over) {
        (Some(under_map), Value::Object(over_map)) => {
            for (key, value) in over_map {
                let below = under_map.remove(&key).unwrap_or(Value::Null);
                under_map.insert(key, combine(below, value));
            }
            under
        }
        (_, over) => over,
    }
}

/// True if two patches set the same path to different values. JSON types are compared too: `0` and
/// `0.0` conflict.
pub fn has_conflicts(a: &Value, b: &Value) -> Result<bool, PatchError> {
    Ok(match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            for (key, value) in a {
                if let Some(other) = b.get(key)
                    && has_conflicts(value, other)?
                {
                    return Ok(true);
                }
            }
            false
        }
        (Value::Array(a), Value::Array(b)) => {
            if a.len() != b.len() {
                return Ok(true);
            }
            for (value, other) in a.iter().zip(b) {
                if has_conflicts(value, other)? {
                    return Ok(true);
                }
            }
            false
        }
        (a, b) => !same_type(a, b) || a != b,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn null_removes_and_maps_merge() {
        let mut target = json!({"a": {"b": 1, "c": 2}, "d": [1]});
        apply_merge(&mut target, &json!({"a": {"b": null, "x": {"y": null}}, "d": [2]}));
        assert_eq!(target, json!({"a": {"c": 2, "x": {}}, "d": [2]}));
    }

    #[test]
    fn fields_added_by_other_clients_survive_a_three_way_patch() {
        let patch = three_way_merge(&json!({"a": 1, "b": 1}), &json!({"a": 2}), &json!({"a": 1, "b": 1, "theirs": 1}));
        assert_eq!(patch, json!({"a": 2, "b": null}));
    }
}
