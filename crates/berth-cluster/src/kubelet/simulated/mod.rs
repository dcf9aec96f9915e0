//! The simulated kubelet: starts bound pods, runs them for their duration, and terminates them.
//!
//! The next step of a pod is computed from its status (start time, start of the run, restarts) and
//! from [`run::RunPlan`]. All state is in the pod's status, so a restart of this process loses
//! nothing and runs no container twice.

mod controller;
pub mod ids;
mod missing;
pub mod run;
mod step;

pub use controller::install;
pub use step::{Simulation, Step, step};
