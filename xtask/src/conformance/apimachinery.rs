//! Recorded cases of the Kubernetes API machinery. Each suite is a function from a case to a
//! verdict.
//!
//! Most suites compare `want` only. `observed` records what upstream did but its tests do not
//! assert.

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

/// An input field of the case, or null.
fn input<'a>(case: &'a Case, field: &str) -> &'a Value {
    case.input.get(field).unwrap_or(&Value::Null)
}

/// An input field of the case as a string, or empty.
fn input_text<'a>(case: &'a Case, field: &str) -> &'a str {
    input(case, field).as_str().unwrap_or_default()
}

/// An expected field of the case, or null.
fn want<'a>(case: &'a Case, field: &str) -> &'a Value {
    case.want.get(field).unwrap_or(&Value::Null)
}

/// True if `want.error` expects a failure: it is `true` or a string.
fn wants_error(case: &Case) -> bool {
    match want(case, "error") {
        Value::Bool(error) => *error,
        Value::String(error) => !error.is_empty(),
        _ => false,
    }
}

/// Agrees if both values are equal; otherwise the difference shows both.
fn equal(what: &str, got: &Value, wanted: &Value) -> Verdict {
    if same(got, wanted) { Ok(()) } else { Err(format!("{what}: got {got}, want {wanted}")) }
}

/// Compares two values. `1` equals `1.0`, and the order of keys does not matter.
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

/// Compares a result with `want.error`. Returns the value, or `None` for an expected error.
fn outcome<T>(case: &Case, result: Result<T, impl std::fmt::Display>) -> Result<Option<T>, String> {
    match (result, wants_error(case)) {
        (Ok(value), false) => Ok(Some(value)),
        (Err(_), true) => Ok(None),
        (Ok(_), true) => Err(format!("want error {}, got none", want(case, "error"))),
        (Err(error), false) => Err(format!("want no error, got {error}")),
    }
}
