//! Kueue's API, group `kueue.x-k8s.io`: its kinds, and the names its controllers write.

pub mod annotations;
pub mod conditions;
pub mod constants;
pub mod conversion;
pub mod events;
pub mod labels;
pub mod reasons;
#[cfg(feature = "schema")]
pub mod v1beta1;
pub mod v1beta2;
