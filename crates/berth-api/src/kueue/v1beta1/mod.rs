//! `kueue.x-k8s.io/v1beta1`, the earlier version, which is still served. Its types only define the
//! schemas: controllers use [`v1beta2`](super::v1beta2), and [`conversion`](super::conversion)
//! converts objects as JSON. Parts that did not change are types of v1beta2.

mod others;
mod queues;
mod workload;

pub use others::*;
pub use queues::*;
pub use workload::*;
