//! API objects to engine to API objects: Kueue's controllers, job integrations, admission checks and webhook logic.
//!
//! Everything that decides is a pure function: it looks at [`Stores`] (caches of API objects) and one object, and returns
//! a plan of writes and events. The reconcilers carry plans out through a `kube::Client`; the conformance runner applies
//! them to recorded objects. What to admit, and whom to preempt, is the engine's decision; see [`translate`].
//!
//! What is deliberately absent: any knowledge of whether the cluster is real, embedded or simulated.

pub mod conditions;
pub mod config;
pub mod duration;
pub mod gates;
pub mod jobs;
pub mod keys;
pub mod plan;
pub mod podset;
pub mod priority;
pub mod selector;
pub mod stores;
pub mod workload;

pub use config::Config;
pub use gates::Gates;
pub use stores::Stores;
