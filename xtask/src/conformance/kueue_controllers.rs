//! Recorded cases of Kueue's controllers, webhooks and job integrations. They run through the
//! functions that Berth's controllers call.

mod compare;
mod configuration;
mod core;
mod generic_job;
mod jobs;
mod limits;
mod provisioning;
mod pure;
mod slices;
mod status;
mod webhooks;
mod workloads;

use serde::de::DeserializeOwned;
use serde_json::Value;

use berth_controllers::{Gate, Gates};

use super::{Case, Runner};

/// The runner of a suite, if it belongs to this module.
pub fn runner(suite: &str) -> Option<Runner> {
    jobs::runner(suite)
        .or_else(|| webhooks::runner(suite))
        .or_else(|| core::runner(suite))
        .or_else(|| provisioning::runner(suite))
        .or_else(|| pure::runner(suite))
        .or_else(|| limits::runner(suite))
        .or_else(|| status::runner(suite))
        .or_else(|| configuration::runner(suite))
        .or_else(|| generic_job::runner(suite))
        .or_else(|| slices::runner(suite))
        .or_else(|| workloads::runner(suite))
}

/// The gates of a case: those that it sets, the others at their defaults.
fn gates(case: &Case) -> Gates {
    let mut gates = Gates::default();
    for (name, on) in case.data["featureGates"].as_object().into_iter().flatten() {
        let gate = Gate::named(name).expect("unknown gates are rejected before a case runs");
        gates.set(gate, *on == true);
    }
    gates
}

/// The clock of a case. The Unix epoch if the case has none.
fn now(case: &Case) -> jiff::Timestamp {
    case.data["now"].as_str().and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// An input field as a typed value. The type's default if the field is absent or null.
fn input<T: DeserializeOwned + Default>(case: &Case, field: &str) -> Result<T, String> {
    read(&case.input[field]).map_err(|e| format!("input.{field}: {e}"))
}

fn read<T: DeserializeOwned + Default>(value: &Value) -> Result<T, String> {
    if value.is_null() {
        return Ok(T::default());
    }
    serde_json::from_value(value.clone()).map_err(|e| e.to_string())
}
