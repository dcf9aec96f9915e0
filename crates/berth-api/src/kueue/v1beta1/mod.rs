//! `kueue.x-k8s.io/v1beta1`, the earlier version, which is still served. Its types define the
//! schemas and read old manifests. Controllers use [`v1beta2`](super::v1beta2), and
//! [`conversion`](super::conversion) converts. Parts that did not change are types of v1beta2.

mod others;
mod queues;
mod workload;

pub use others::*;
pub use queues::*;
pub use workload::*;
