//! The ProvisioningRequest admission check: a workload with quota requests all its nodes from the
//! cluster's autoscaler at once, and starts when they are provisioned (semantics §18).
//!
//! [`requests`] computes what a workload needs and its request, [`decide`] turns requests into
//! check states, [`check`] validates AdmissionChecks, and `controller` executes the decisions.

pub mod check;
pub mod controller;
pub mod decide;
pub mod requests;
#[cfg(test)]
mod tests;

/// Name of this check's controller in AdmissionChecks.
pub const CONTROLLER_NAME: &str = "kueue.x-k8s.io/provisioning-request";
