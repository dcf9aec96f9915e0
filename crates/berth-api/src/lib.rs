//! The vocabulary: types of the API groups Berth serves or consumes, their CRDs, labels, annotations, conditions and reasons.
//!
//! Controllers and the binary speak Kubernetes through these types; the API server never sees them, it gets their definitions from [`crds`] and works on
//! JSON values. One source for both: a field, its default, its bounds and its validation rules stand once, at the field, and the definition is derived.
//! Nothing here decides or talks to a server; conversion and defaults are pure functions.

pub mod autoscaling;
pub mod berth;
mod crd;
pub mod frameworks;
pub mod jobset;
pub mod kueue;
pub mod monitoring;
mod published;
mod resource;
pub mod schema;
mod structural;

pub use crd::crds;
pub use resource::zero_time;
