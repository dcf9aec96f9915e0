//! The cloud's handling of ProvisioningRequests: capacity for a group of pods, all at once or not
//! at all.
//!
//! There are three classes: `queued-provisioning.gke.io` (Dynamic Workload Scheduler) orders all
//! machines in one queued pool and one zone; `check-capacity` only checks for free capacity;
//! `best-effort-atomic-scale-up` checks, and then grows one ordinary pool. The capacity that is
//! reserved for a request is in its status and in the pool's resize requests. No other state is
//! kept.

mod capacity;
mod classes;
mod controller;
mod estimate;
mod obstacles;
mod parameters;
mod promised;
mod requested;
mod step;
mod tolerations;

pub use classes::Classes;
pub use controller::install;
pub use promised::Promised;
pub use requested::requested_pods;
pub use step::{Order, Step, World, booked, step};

/// Dynamic Workload Scheduler.
pub const QUEUED: &str = "queued-provisioning.gke.io";
/// Checks for capacity on existing nodes.
pub const CHECK_CAPACITY: &str = "check-capacity.autoscaling.x-k8s.io";
/// Grows one pool at once if existing nodes have no capacity.
pub const ATOMIC_SCALE_UP: &str = "best-effort-atomic-scale-up.autoscaling.x-k8s.io";

#[cfg(test)]
mod tests;
