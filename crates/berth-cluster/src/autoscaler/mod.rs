//! The cluster autoscaler: pools grow for pods that fit nowhere, are made where none can serve, and shrink when idle.
//!
//! Like the original it looks at the cluster every scan interval, but only at intervals in which something changed or
//! a timer ran out, so that an idle cluster costs nothing in virtual time. How long a node has been idle is written on
//! the node (the `DeletionCandidateOfClusterAutoscaler` taint), so a restart does not start over.

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
