//! Recorded cases of the Kubernetes API machinery.
//!
//! Each suite is a function from a case to a verdict, beside its neighbours in one of the modules below. Only what the
//! cases' `want` asserts is compared; texts in `observed` are not.

mod custom;
mod managed;
mod ownership;
mod patches;
mod validation;
mod values;

use serde_json::Value;

#[cfg(feature = "cel")]
pub use custom::errors;

use super::{Case, Runner, Verdict};

/// The runner of a suite, if it belongs to this module.
pub fn runner(suite: &str) -> Option<Runner> {
    custom::runner(suite)
        .or_else(|| managed::runner(suite))
        .or_else(|| ownership::runner(suite))
        .or_else(|| patches::runner(suite))
        .or_else(|| validation::runner(suite))
        .or_else(|| values::runner(suite))
}

/// The case's input field, or null.
fn input<'a>(case: &'a Case, field: &str) -> &'a Value {
    case.input.get(field).unwrap_or(&Value::Null)
}

/// The case's input field as text, or empty.
fn input_text<'a>(case: &'a Case, field: &str) -> &'a str {
    input(case, field).as_str().unwrap_or_default()
}

/// What the case wants in a field, or null.
fn want<'a>(case: &'a Case, field: &str) -> &'a Value {
    case.want.get(field).unwrap_or(&Value::Null)
}

/// Whether a `want.error` asks for a failure: `true`, or a text.
fn wants_error(case: &Case) -> bool {
    match want(case, "error") {
        Value::Bool(error) => *error,
        Value::String(error) => !error.is_empty(),
        _ => false,
    }
}

/// Agreement, or both sides.
fn equal(what: &str, got: &Value, wanted: &Value) -> Verdict {
    if same(got, wanted) { Ok(()) } else { Err(format!("{what}: got {got}, want {wanted}")) }
}

/// Equality in which `1` and `1.0` are the same, whatever the order of keys.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        (a, b) => a == b,
    }
}

/// A result that should have been an error, or the other way round.
fn outcome<T>(case: &Case, result: Result<T, impl std::fmt::Display>) -> Result<Option<T>, String> {
    match (result, wants_error(case)) {
        (Ok(value), false) => Ok(Some(value)),
        (Err(_), true) => Ok(None),
        (Ok(_), true) => Err(format!("must fail with {}", want(case, "error"))),
        (Err(error), false) => Err(format!("failed: {error}")),
    }
}
