//! What cases of the Kubernetes suites are read with.

use serde_json::Value;

use super::{Case, Verdict};

/// The case's input field, or null.
pub fn input<'a>(case: &'a Case, field: &str) -> &'a Value {
    case.data.pointer("/input").and_then(|input| input.get(field)).unwrap_or(&Value::Null)
}

/// What the case wants in a field, or null.
pub fn want<'a>(case: &'a Case, field: &str) -> &'a Value {
    case.data.pointer("/want").and_then(|want| want.get(field)).unwrap_or(&Value::Null)
}

/// A text field, or empty.
pub fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Agreement when equal.
pub fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: T, wanted: T) -> Verdict {
    if got == wanted { Ok(()) } else { Err(format!("{what}:\n  got    {got:?}\n  wanted {wanted:?}")) }
}
