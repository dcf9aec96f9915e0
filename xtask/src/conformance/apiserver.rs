//! Recorded cases of the Kubernetes API server.
//!
//! Each suite is a function from a case to a verdict, in a module with its neighbours.

mod access;
mod audit;
mod definitions;
mod requests;
mod webhooks;

use serde_json::Value;

use super::{Case, Runner, Verdict};

/// The runner of a suite, if it belongs to this module.
pub fn runner(suite: &str) -> Option<Runner> {
    access::runner(suite)
        .or_else(|| audit::runner(suite))
        .or_else(|| definitions::runner(suite))
        .or_else(|| requests::runner(suite))
        .or_else(|| webhooks::runner(suite))
}

/// The case's input field, or null.
fn input<'a>(case: &'a Case, field: &str) -> &'a Value {
    case.data.pointer("/input").and_then(|input| input.get(field)).unwrap_or(&Value::Null)
}

/// What the case wants in a field, or null.
fn want<'a>(case: &'a Case, field: &str) -> &'a Value {
    case.data.pointer("/want").and_then(|want| want.get(field)).unwrap_or(&Value::Null)
}

/// A text field, or empty.
fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// The texts of a list, none when it is absent.
fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Agreement when equal.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: T, wanted: T) -> Verdict {
    if got == wanted { Ok(()) } else { Err(format!("{what}: {got:?}, wanted {wanted:?}")) }
}
