//! Helpers to build cells: access to fields, ages, and lists joined as kubectl shows them.

use berth_apimachinery::meta;
use berth_apimachinery::table::human_duration;
use jiff::Timestamp;
use serde_json::Value;

pub(super) const NONE: &str = "<none>";
pub(super) const UNKNOWN: &str = "<unknown>";
pub(super) const UNSET: &str = "<unset>";

/// A string field; empty if absent. `path` is a JSON pointer.
pub(super) fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

/// A string field; `otherwise` if it is absent or empty.
pub(super) fn text_or<'a>(object: &'a Value, path: &str, otherwise: &'a str) -> &'a str {
    Some(text(object, path)).filter(|text| !text.is_empty()).unwrap_or(otherwise)
}

/// An integer field; 0 if absent.
pub(super) fn number(object: &Value, path: &str) -> i64 {
    object.pointer(path).and_then(Value::as_i64).unwrap_or(0)
}

/// A boolean field; false if absent.
pub(super) fn flag(object: &Value, path: &str) -> bool {
    object.pointer(path).and_then(Value::as_bool).unwrap_or(false)
}

/// The items of a list; none if it is absent.
pub(super) fn items<'a>(object: &'a Value, path: &str) -> impl DoubleEndedIterator<Item = &'a Value> + 'a {
    object.pointer(path).and_then(Value::as_array).into_iter().flatten()
}

/// Number of entries of a list or map.
pub(super) fn count(object: &Value, path: &str) -> i64 {
    match object.pointer(path) {
        Some(Value::Array(list)) => list.len() as i64,
        Some(Value::Object(map)) => map.len() as i64,
        _ => 0,
    }
}

/// A field that is a number, string or boolean, as text; `otherwise` if it is absent.
pub(super) fn either_or(object: &Value, path: &str, otherwise: &str) -> String {
    match object.pointer(path) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        Some(Value::Bool(flag)) => flag.to_string(),
        _ => otherwise.to_owned(),
    }
}

pub(super) fn moment(object: &Value, path: &str) -> Option<Timestamp> {
    text(object, path).parse().ok()
}

/// Time since a timestamp field; `<unknown>` if absent.
pub(super) fn since(object: &Value, path: &str, now: Timestamp) -> String {
    moment(object, path).map_or_else(|| UNKNOWN.to_owned(), |then| span(then, now))
}

pub(super) fn span(from: Timestamp, to: Timestamp) -> String {
    human_duration(to.duration_since(from).as_secs())
}

/// Time since creation.
pub(super) fn age(object: &Value, now: Timestamp) -> Value {
    since(object, "/metadata/creationTimestamp", now).into()
}

/// Labels as `a=1,b=2`; `<none>` if empty.
pub(super) fn labels(map: Option<&Value>) -> String {
    let map = map.and_then(Value::as_object);
    let mut pairs: Vec<(&str, &str)> =
        map.into_iter().flatten().map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default())).collect();
    pairs.sort_unstable();
    let pairs = pairs.into_iter().map(|(key, value)| format!("{key}={value}"));
    joined(pairs, ",")
}

/// A LabelSelector as text; `<none>` if it is absent or empty.
pub(super) fn selector(selector: Option<&Value>) -> String {
    use berth_apimachinery::selector::LabelSelector;
    let Some(selector) = selector.filter(|value| !value.is_null()) else { return NONE.to_owned() };
    match LabelSelector::from_object(selector) {
        Ok(parsed) if parsed.is_empty() => NONE.to_owned(),
        Ok(parsed) => parsed.to_string(),
        Err(_) => "<error>".to_owned(),
    }
}

/// The joined parts; `<none>` if there are none.
pub(super) fn joined(parts: impl IntoIterator<Item = String>, separator: &str) -> String {
    let parts: Vec<String> = parts.into_iter().collect();
    if parts.is_empty() { NONE.to_owned() } else { parts.join(separator) }
}

/// Names and images of the containers under a pod spec.
pub(super) fn containers(object: &Value, spec: &str) -> (String, String) {
    let list = |field: &str| -> String {
        let path = format!("{spec}/containers");
        let texts: Vec<&str> = items(object, &path).map(|container| text(container, field)).collect();
        texts.join(",")
    };
    (list("/name"), list("/image"))
}

/// True if a condition of this type has the status True.
pub(super) fn has_condition(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_some_and(|condition| text(condition, "/status") == "True")
}

pub(super) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    items(object, "/status/conditions").find(|condition| text(condition, "/type") == kind)
}

pub(super) fn is_being_deleted(object: &Value) -> bool {
    meta::deletion_timestamp(object).is_some()
}
