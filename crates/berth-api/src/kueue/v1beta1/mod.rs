//! `kueue.x-k8s.io/v1beta1`, the earlier version, still served. Its types serve for schemas and for
//! reading old manifests. Controllers use [`v1beta2`](super::v1beta2), and
//! [`conversion`](super::conversion) converts. Unchanged parts are those of v1beta2.

mod others;
mod queues;
mod workload;

pub use others::*;
pub use queues::*;
pub use workload::*;
