//! The ProvisioningRequest admission check: a workload with quota asks the cluster's autoscaler for all its nodes at once,
//! and runs when they are there (semantics §18).
//!
//! [`requests`] says what a workload needs and what its request looks like, [`decide`] is the state machine from requests to
//! check states, [`check`] says whether an AdmissionCheck is usable; `controller` carries all of it out.

pub mod check;
pub mod controller;
pub mod decide;
pub mod requests;
#[cfg(test)]
mod tests;

/// Name of this check's controller in AdmissionChecks.
pub const CONTROLLER_NAME: &str = "kueue.x-k8s.io/provisioning-request";
