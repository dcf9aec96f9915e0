//! Validation rules shared by many kinds: a field is set, is one of a list, is a name, is within
//! bounds.

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::names;
use berth_apimachinery::validation::NameCheck;
use serde_json::Value;

/// Maximum number of validation errors in a response. An object may have a million errors, which
/// would make the response unreadable.
pub const ERRORS_MAX: usize = 1000;

/// A string field; empty if absent.
pub(super) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// The items of a list; empty if the list is absent.
pub(super) fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// A number field; zero if it is absent or null.
pub(super) fn number(value: &Value, field: &str) -> i64 {
    value[field].as_i64().unwrap_or_default()
}

/// Reports an error if a string field is empty or absent. Returns true if it is set.
pub(super) fn required(value: &Value, field: &str, path: &Path<'_>, errors: &mut Vec<Error>) -> bool {
    let missing = text(value, field).is_empty();
    if missing {
        errors.push(Error::required(&path.child(field), ""));
    }
    !missing
}

/// Reports each problem that a name check finds.
pub(super) fn named(name: &str, check: NameCheck, path: &Path<'_>, errors: &mut Vec<Error>) {
    errors.extend(check(name).into_iter().map(|message| Error::invalid(path, name, message)));
}

/// Reports an error if a field is set to an unknown value.
pub(super) fn supported(value: &Value, field: &str, known: &[&str], path: &Path<'_>, errors: &mut Vec<Error>) {
    if let Some(given) = value[field].as_str().filter(|given| !known.contains(given)) {
        errors.push(Error::not_supported(&path.child(field), given, known));
    }
}

/// Reports errors if a number is not a valid user or group ID. Absent values are valid.
pub(super) fn id(value: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    if let Some(id) = value.as_i64() {
        errors.extend(names::is_user_id(id).into_iter().map(|message| Error::invalid(path, id, message)));
    }
}

/// Reports an error if a number is not a port number.
pub(super) fn port_number(port: i64, path: &Path<'_>, errors: &mut Vec<Error>) {
    errors.extend(names::is_port_number(port).into_iter().map(|message| Error::invalid(path, port, message)));
}

/// Reports errors if a value is neither a port number nor a port name.
pub(super) fn port(port: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    match port.as_str() {
        Some(name) => named(name, names::is_port_name, path, errors),
        None => port_number(port.as_i64().unwrap_or_default(), path, errors),
    }
}

/// Reports errors if a path is absolute or contains `..`.
pub(super) fn local_path(target: &str, path: &Path<'_>, errors: &mut Vec<Error>) {
    if target.starts_with('/') {
        errors.push(Error::invalid(path, target, "must be a relative path"));
    }
    no_backsteps(target, path, errors);
}

/// Reports an error if a path contains `..`.
pub(super) fn no_backsteps(target: &str, path: &Path<'_>, errors: &mut Vec<Error>) {
    if target.split('/').any(|step| step == "..") {
        errors.push(Error::invalid(path, target, "must not contain '..'"));
    }
}
