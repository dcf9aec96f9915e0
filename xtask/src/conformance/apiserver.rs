//! Recorded cases of the Kubernetes API server. Each suite is a function from a case to a verdict.

mod access;
mod audit;
mod definitions;
mod requests;
mod webhooks;

use serde_json::Value;

use super::Runner;
use super::fields::{input, same, text, want};

/// The runner of a suite, if it belongs to this module.
pub fn runner(suite: &str) -> Option<Runner> {
    access::runner(suite)
        .or_else(|| audit::runner(suite))
        .or_else(|| definitions::runner(suite))
        .or_else(|| requests::runner(suite))
        .or_else(|| webhooks::runner(suite))
}

/// The strings of a list. Empty if the list is absent.
fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}
