//! The simulated kubelet: bound pods start, run for their time, and end.
//!
//! A pod's life is written in its status as it happens (start, running since, restarts), and what happens next is
//! computed from there and from [`run::RunPlan`]: a restart of this process loses nothing and runs nothing twice.

mod controller;
mod ephemeral;
mod life;
mod resize;
pub mod run;

pub use controller::install;
pub use life::{Step, step};
