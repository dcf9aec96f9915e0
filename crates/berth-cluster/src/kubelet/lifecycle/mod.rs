//! The decisions of a kubelet about a pod. They do not depend on the runtime.
//!
//! [`decide()`] is a pure function of [`Facts`]: the pod, the runs of its containers, the results
//! of their probes, and the time. It returns a [`Decision`]: the containers to start and to stop,
//! the pod's new status, events, and when to decide again. It is level-triggered: an action that
//! was not carried out is part of the next decision again.
//!
//! For a simulated pod, the runs are computed from its status and the time. For a pod that runs as
//! processes, the runtime reports them.

mod backoff;
mod blocks;
mod containers;
mod decide;
mod facts;
mod status;

#[cfg(test)]
mod tests;

pub use backoff::{BackOff, restart_delay, shown};
pub use blocks::{CONFIG_ERROR, ERR_IMAGE_PULL, IMAGE_BACK_OFF, blocked_events};
pub use containers::{Member, members};
pub use decide::decide;
pub use facts::{Blocked, Decision, End, Ending, Facts, Health, PodEvent, Run, RunState, Runs, Start};
pub use status::{UNKNOWN_EXIT_CODE, UNKNOWN_REASON, runs_in_status};
