//! API types of the groups that Berth serves or consumes, with their CRDs, labels, annotations,
//! conditions and reasons.
//!
//! Controllers and the binary use these types for Kubernetes objects. The API server takes the
//! definitions from [`crds`] and works on JSON values. Both have one source: a field's default,
//! bounds and validation rules are declared at the field, and the definition is generated from them
//! (`cargo xtask definitions`, feature `schema`).
//! This crate makes no decisions and connects to no server; conversion and defaults are pure
//! functions.

pub mod appwrapper;
pub mod autoscaling;
pub mod berth;
mod crd;
pub mod devices;
pub mod frameworks;
mod frameworks_kubeflow;
mod frameworks_leader_worker_set;
mod frameworks_ray;
mod frameworks_spark;
mod frameworks_trainer;
pub mod jobset;
pub mod json;
pub mod kueue;
pub mod monitoring;
pub mod pod;
mod published;
mod resource;
pub mod scheduling;
#[cfg(feature = "schema")]
pub mod schema;

pub use berth_apimachinery::well_known;
pub use crd::crds;
pub use resource::zero_time;

// Without the feature, the derive macro generates nothing and accepts the attributes.
#[cfg(not(feature = "schema"))]
pub(crate) use berth_schema::JsonSchema;
#[cfg(feature = "schema")]
pub(crate) use schemars::JsonSchema;
