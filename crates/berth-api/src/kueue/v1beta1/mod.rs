//! `kueue.x-k8s.io/v1beta1`, the earlier version, still served. Types exist for the schemas and for reading old manifests; controllers work with
//! [`v1beta2`](super::v1beta2), and [`conversion`](super::conversion) translates. Parts that did not change are those of v1beta2.

mod others;
mod queues;
mod workload;

pub use others::*;
pub use queues::*;
pub use workload::*;
