//! The cluster autoscaler: grows node pools for unschedulable pods, creates pools if no existing
//! pool fits, and removes unneeded nodes.
//!
//! Like the Kubernetes cluster autoscaler, it works in scan intervals. It skips intervals in which
//! no object changed and no timer expired, so that an idle cluster has no cost in virtual time. A
//! taint on the node (`DeletionCandidateOfClusterAutoscaler`) records the time since which it is
//! unneeded, so that this time survives a restart.

mod binpack;
mod controller;
mod provision;
mod scale_down;
mod scale_up;
mod view;

pub use binpack::{Packed, pack};
pub use controller::install;
pub use provision::derive_pool;
pub use scale_down::{CANDIDATE_TAINT, ScaleDown, plan_scale_down};
pub use scale_up::{Growth, ScaleUp, plan_scale_up};
pub use view::{View, is_complete};

#[cfg(test)]
mod tests;
