//! The cloud's answer to ProvisioningRequests: capacity for a group of pods, all at once or not at all.
//!
//! Three classes: `queued-provisioning.gke.io` (Dynamic Workload Scheduler) orders all machines in one queued pool and
//! one zone; `check-capacity` only looks; `best-effort-atomic-scale-up` looks and then grows one ordinary pool. What a
//! request has been promised is in its status and in the pool's resize requests, nothing is remembered beside.

mod controller;
mod requested;
mod step;

pub use controller::install;
pub use requested::requested_pods;
pub use step::{Order, Step, World, booked, step};

/// Dynamic Workload Scheduler.
pub const QUEUED: &str = "queued-provisioning.gke.io";
/// Looks for room on existing nodes.
pub const CHECK_CAPACITY: &str = "check-capacity.autoscaling.x-k8s.io";
/// Grows one pool at once if existing nodes have no room.
pub const ATOMIC_SCALE_UP: &str = "best-effort-atomic-scale-up.autoscaling.x-k8s.io";

#[cfg(test)]
mod tests;
