//! The vocabulary: types of the API groups Berth serves or consumes, their CRDs, labels, annotations, conditions and reasons.

pub mod autoscaling;
pub mod berth;
mod crd;
pub mod jobset;
pub mod kueue;
pub mod monitoring;
mod published;
mod resource;
pub mod schema;
mod structural;

pub use crd::crds;
pub use resource::zero_time;
