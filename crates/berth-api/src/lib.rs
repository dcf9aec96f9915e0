//! The vocabulary: types of the API groups Berth serves or consumes, their CRDs, labels, annotations, conditions and reasons.

pub mod autoscaling;
pub mod berth;
pub mod jobset;
pub mod kueue;
mod resource;
pub mod schema;

pub use resource::zero_time;
