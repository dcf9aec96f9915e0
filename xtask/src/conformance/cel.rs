//! Recorded cases of Kubernetes' expressions (CEL): rules of custom resources, the function library, policies.

mod definitions;
mod library;
mod mutations;
mod policies;
mod rules;

use serde_json::Value;

use super::{Case, Runner, Verdict};

/// The runner of a suite, if it belongs to this module.
pub fn runner(suite: &str) -> Option<Runner> {
    rules::runner(suite)
        .or_else(|| library::runner(suite))
        .or_else(|| policies::runner(suite))
        .or_else(|| mutations::runner(suite))
        .or_else(|| definitions::runner(suite))
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

/// A flag, or false.
fn flag(value: &Value, field: &str) -> bool {
    value.get(field).and_then(Value::as_bool).unwrap_or_default()
}

/// Agreement when equal.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: T, wanted: T) -> Verdict {
    if got == wanted { Ok(()) } else { Err(format!("{what}:\n  got    {got:?}\n  wanted {wanted:?}")) }
}
