//! Recorded cases of Kueue's engine: scheduler, preemption, flavor assignment, queues, caches, topology.
//!
//! Objects of a case go through the translator the controllers use and enter the engine as events; what comes out is
//! compared field by field. What the suites share is in [`world`]; [`compare`] finds the smallest differences.

mod compare;
mod schedule;
mod world;

use super::Runner;

/// The runner of a suite, if it belongs to this module.
pub fn runner(suite: &str) -> Option<Runner> {
    Some(match suite {
        "schedule"
        | "schedule-fair-sharing"
        | "schedule-recompute-preemption"
        | "schedule-concurrent-admission"
        | "schedule-tas"
        | "schedule-admission-fair-sharing" => schedule::cycles,
        "schedule-two-cycles" => schedule::two_cycles,
        "schedule-preserve-scan" => schedule::preserve_scan,
        _ => return None,
    })
}
