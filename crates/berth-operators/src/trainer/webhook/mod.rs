//! The rules of Trainer's admission webhooks, as pure functions for an API server: [`default_job`],
//! [`validate_job`] and [`validate_runtime`]. The rules of the definitions' schemas are not
//! repeated here.

mod job;
mod runtime;
mod torchtune;

use std::sync::Arc;

pub use job::{Judged, default_job, validate_job};
pub use runtime::validate_runtime;
use serde_json::Value;

/// Reads a stored object by group, plural name of the resource, namespace and name.
pub type Lookup<'a> = &'a dyn Fn(&str, &str, &str, &str) -> Option<Arc<Value>>;
