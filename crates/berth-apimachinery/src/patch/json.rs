//! JSON patch (RFC 6902) as the Kubernetes API serves it.
//!
//! Three deviations from the RFC, on which clients rely: a negative array index counts from the
//! end, `replace` of a missing map member adds it, and `test` considers a missing value equal to
//! null.

use serde_json::Value;

use super::{JSON_PATCH_OPERATIONS_MAX, PatchError};

/// Maximum number of bytes that all operations `copy` and `move` of one patch may copy: the size
/// limit of a request body.
const COPIED_BYTES_MAX: usize = 3 * 1024 * 1024;

/// One step of a patch.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Adds a value.
    Add(String, Value),
    /// Removes a value.
    Remove(String),
    /// Replaces a value.
    Replace(String, Value),
    /// Moves a value to another path.
    Move(String, String),
    /// Copies a value to another path.
    Copy(String, String),
    /// Requires a value at a path.
    Test(String, Value),
}

/// Reads a patch; anything but a list of known operations is malformed.
pub fn parse_json(patch: &Value) -> Result<Vec<Operation>, PatchError> {
    let malformed = |text: String| PatchError::Malformed(text);
    let Some(list) = patch.as_array() else {
        return Err(malformed(format!(
            "error decoding patch: json: cannot unmarshal {} into Go value of type jsonpatch.Patch",
            kind(patch)
        )));
    };
    if list.len() > JSON_PATCH_OPERATIONS_MAX {
        return Err(PatchError::TooManyOperations(list.len()));
    }
    list.iter()
        .map(|operation| {
            let text = |key: &str| operation.get(key).and_then(Value::as_str).map(str::to_owned);
            let missing = |key: &str| malformed(format!("operation missing {key} field"));
            let path = text("path").ok_or_else(|| missing("path"))?;
            let value = || operation.get("value").cloned().ok_or_else(|| missing("value"));
            let from = || text("from").ok_or_else(|| missing("from"));
            match text("op").as_deref() {
                Some("add") => Ok(Operation::Add(path, value()?)),
                Some("remove") => Ok(Operation::Remove(path)),
                Some("replace") => Ok(Operation::Replace(path, value()?)),
                Some("move") => Ok(Operation::Move(from()?, path)),
                Some("copy") => Ok(Operation::Copy(from()?, path)),
                Some("test") => Ok(Operation::Test(path, operation.get("value").cloned().unwrap_or_default())),
                Some(other) => Err(malformed(format!("Unexpected kind: {other}"))),
                None => Err(missing("op")),
            }
        })
        .collect()
}

fn kind(value: &Value) -> &'static str {
    crate::schema::json_type(value)
}

/// Applies a patch and returns the patched document. Fails if any operation fails.
pub fn apply_json(target: &Value, patch: &Value) -> Result<Value, PatchError> {
    let operations = parse_json(patch)?;
    let mut document = target.clone();
    let mut copied = 0;
    for operation in operations {
        if let Operation::Copy(from, _) | Operation::Move(from, _) = &operation {
            // Repeated copies of copies could otherwise exhaust memory.
            copied += get(&document, from).map_or(0, |value| value.to_string().len());
            if copied > COPIED_BYTES_MAX {
                return Err(PatchError::Unprocessable(format!(
                    "unable to complete the copy, the accumulated size increase of copy is {copied}, exceeding the limit {COPIED_BYTES_MAX}"
                )));
            }
        }
        apply(&mut document, operation)?;
    }
    Ok(document)
}

fn apply(document: &mut Value, operation: Operation) -> Result<(), PatchError> {
    match operation {
        Operation::Add(path, value) => {
            check_depth(&path, &value)?;
            add(document, &path, value, "add")
        }
        Operation::Remove(path) => remove(document, &path, "remove").map(|_| ()),
        Operation::Replace(path, value) => {
            check_depth(&path, &value)?;
            replace(document, &path, value)
        }
        Operation::Move(from, path) => {
            if path.starts_with(&format!("{from}/")) {
                return Err(PatchError::Unprocessable(format!("move operation cannot move {from} into itself")));
            }
            let value = remove(document, &from, "move")?;
            check_depth(&path, &value)?;
            add(document, &path, value, "move")
        }
        Operation::Copy(from, path) => {
            let value = get(document, &from).cloned().ok_or_else(|| no_such(&from, "copy"))?;
            check_depth(&path, &value)?;
            add(document, &path, value, "copy")
        }
        Operation::Test(path, value) => match get(document, &path) {
            Some(actual) if *actual == value => Ok(()),
            // A missing member tests equal to null.
            None if value.is_null() => Ok(()),
            None => Err(no_such(&path, "test")),
            Some(_) => Err(PatchError::Unprocessable(format!("testing value {path} failed: test failed"))),
        },
    }
}

/// Maximum nesting depth of an object after a patch: the JSON parser rejects more than 127 levels.
const DEPTH_MAX: usize = 120;

/// Rejects a value that would be nested too deep at its path. The depth limit of request bodies
/// applies to every document, so recursive walks cannot overflow the stack.
fn check_depth(path: &str, value: &Value) -> Result<(), PatchError> {
    fn depth(value: &Value) -> usize {
        match value {
            Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
            Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
            _ => 0,
        }
    }
    if path.matches('/').count() + depth(value) > DEPTH_MAX {
        return Err(PatchError::Unprocessable(format!(
            "{path}: the patched object would be nested too deep: at most {DEPTH_MAX} levels are allowed"
        )));
    }
    Ok(())
}

fn no_such(path: &str, operation: &str) -> PatchError {
    PatchError::Unprocessable(format!(
        "{operation} operation does not apply: doc is missing path: {path}: missing value"
    ))
}

fn unescape(step: &str) -> String {
    step.replace("~1", "/").replace("~0", "~")
}

fn steps(path: &str) -> Option<Vec<String>> {
    if path.is_empty() {
        return Some(Vec::new());
    }
    Some(path.strip_prefix('/')?.split('/').map(unescape).collect())
}

/// The position that an index refers to in a list of this length; negative indexes count from the
/// end.
fn position(step: &str, length: usize) -> Option<usize> {
    match step.strip_prefix('-') {
        Some(back) => length.checked_sub(back.parse::<usize>().ok().filter(|back| *back > 0)?),
        None => step.parse().ok(),
    }
}

fn get<'a>(document: &'a Value, path: &str) -> Option<&'a Value> {
    steps(path)?.iter().try_fold(document, |value, step| match value {
        Value::Object(map) => map.get(step),
        Value::Array(list) => list.get(position(step, list.len())?),
        _ => None,
    })
}

fn parent<'a>(document: &'a mut Value, path: &str, operation: &str) -> Result<(&'a mut Value, String), PatchError> {
    let mut steps = steps(path).ok_or_else(|| no_such(path, operation))?;
    let last = steps.pop().ok_or_else(|| no_such(path, operation))?;
    let mut value = document;
    for step in &steps {
        let next = match value {
            Value::Object(map) => map.get_mut(step),
            Value::Array(list) => position(step, list.len()).and_then(|i| list.get_mut(i)),
            _ => None,
        };
        value = next.ok_or_else(|| no_such(path, operation))?;
    }
    Ok((value, last))
}

fn add(document: &mut Value, path: &str, value: Value, operation: &str) -> Result<(), PatchError> {
    if path.is_empty() {
        *document = value;
        return Ok(());
    }
    match parent(document, path, operation)? {
        (Value::Object(map), last) => {
            map.insert(last, value);
        }
        (Value::Array(list), last) => {
            let at = match last.as_str() {
                "-" => Some(list.len()),
                // An `add` at index -1 appends to the list.
                step if step.starts_with('-') => position(step, list.len() + 1),
                step => step.parse().ok(),
            };
            let at = at.filter(|at| *at <= list.len()).ok_or_else(|| no_such(path, operation))?;
            list.insert(at, value);
        }
        _ => return Err(no_such(path, operation)),
    }
    Ok(())
}

fn remove(document: &mut Value, path: &str, operation: &str) -> Result<Value, PatchError> {
    if path.is_empty() {
        return Ok(document.take());
    }
    match parent(document, path, operation)? {
        (Value::Object(map), last) => map.remove(&last),
        (Value::Array(list), last) => {
            position(&last, list.len()).filter(|at| *at < list.len()).map(|at| list.remove(at))
        }
        _ => None,
    }
    .ok_or_else(|| no_such(path, operation))
}

fn replace(document: &mut Value, path: &str, value: Value) -> Result<(), PatchError> {
    if path.is_empty() {
        *document = value;
        return Ok(());
    }
    match parent(document, path, "replace")? {
        (Value::Object(map), last) => {
            map.insert(last, value);
        }
        (Value::Array(list), last) => {
            let at =
                position(&last, list.len()).filter(|at| *at < list.len()).ok_or_else(|| no_such(path, "replace"))?;
            list[at] = value;
        }
        _ => return Err(no_such(path, "replace")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(target: Value, patch: Value) -> Result<Value, PatchError> {
        apply_json(&target, &patch)
    }

    #[test]
    fn operations_follow_rfc_6902() {
        let patch = json!([
            {"op": "add", "path": "/a/-", "value": 3}, {"op": "remove", "path": "/a/0"}, {"op": "copy", "from": "/a", "path": "/b"},
            {"op": "move", "from": "/c~1d", "path": "/e"}, {"op": "test", "path": "/e", "value": null}
        ]);
        assert_eq!(check(json!({"a": [1, 2], "c/d": null}), patch), Ok(json!({"a": [2, 3], "b": [2, 3], "e": null})));
    }

    #[test]
    fn replacing_a_missing_member_adds_it_and_minus_one_is_the_last_item() {
        let patch =
            json!([{"op": "replace", "path": "/x", "value": 1}, {"op": "replace", "path": "/a/-1", "value": 9}]);
        assert_eq!(check(json!({"a": [1, 2]}), patch), Ok(json!({"a": [1, 9], "x": 1})));
    }

    #[test]
    fn copies_of_copies_are_limited() {
        let doubling = json!({"op": "copy", "from": "/a", "path": "/a/-"});
        let patch = Value::Array(vec![doubling; 100]);
        assert!(matches!(check(json!({"a": ["xxxxxxxxxxxxxxxx"]}), patch), Err(PatchError::Unprocessable(_))));
    }

    #[test]
    fn a_failing_test_is_unprocessable_and_an_unknown_operation_malformed() {
        let failing = check(json!({}), json!([{"op": "test", "path": "/x", "value": 1}]));
        assert!(matches!(failing, Err(PatchError::Unprocessable(_))));
        assert!(matches!(check(json!({}), json!({})), Err(PatchError::Malformed(_))));
        assert!(matches!(check(json!({}), json!([{"op": "burn", "path": ""}])), Err(PatchError::Malformed(_))));
    }

    #[test]
    fn copies_of_copies_cannot_exceed_the_nesting_limit() {
        let nested = |levels: usize| (0..levels).fold(json!(1), |value, _| json!([value]));
        let document = json!({"data": {"x": nested(100)}});
        let deeper = "/data/x".to_owned() + &"/0".repeat(99);
        let refused = apply_json(&document, &json!([{"op": "copy", "from": "/data/x", "path": deeper}]));
        assert!(
            matches!(&refused, Err(PatchError::Unprocessable(said)) if said.contains("nested too deep")),
            "{refused:?}"
        );
        let moved = apply_json(&document, &json!([{"op": "move", "from": "/data/x", "path": "/data/y"}]));
        assert_eq!(moved.expect("as deep as before")["data"]["y"], nested(100));
    }
}
