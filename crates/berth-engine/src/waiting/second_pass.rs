//! Workloads that hold quota and need a second pass: for a delayed topology or a failed node
//! (§17.6).

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::WorkloadId;
use crate::model::{CheckState, Time, Workload};

/// First delay, and maximum delay.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);

/// Workloads waiting for their second pass.
#[derive(Debug, Default)]
pub(crate) struct SecondPass {
    due: BTreeMap<WorkloadId, Entry>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    at: Option<Time>,
    attempt: u32,
}

/// True if a workload needs a second pass.
pub(crate) fn needs_second_pass(facts: &Workload) -> bool {
    let Some(admission) = &facts.admission else { return false };
    if facts.finished || facts.evicted.is_some() || facts.on_hold {
        return false;
    }
    let delayed = admission.pod_sets.iter().any(|set| set.delayed_topology_pending == Some(true));
    let checks_ready = facts.checks.iter().all(|check| check.state == CheckState::Ready);
    let on_failed_node = !facts.unhealthy_nodes.is_empty()
        && admission.pod_sets.iter().filter_map(|set| set.topology.as_ref()).any(|topology| {
            topology
                .domains
                .iter()
                .any(|domain| domain.values.last().is_some_and(|node| facts.unhealthy_nodes.contains(node)))
        });
    (delayed && checks_ready && !facts.admitted) || on_failed_node
}

impl SecondPass {
    /// Schedules a workload's next second pass: after one second, then after twice the last delay.
    /// True if it was not scheduled already.
    pub fn schedule(&mut self, id: WorkloadId, now: Time) -> bool {
        let entry = self.due.entry(id).or_insert(Entry { at: None, attempt: 0 });
        if entry.at.is_some() {
            return false;
        }
        let delay = FIRST.saturating_mul(1 << entry.attempt.min(10)).min(LONGEST);
        entry.attempt += 1;
        entry.at = Some(now.after(delay));
        true
    }

    pub fn forget(&mut self, id: WorkloadId) {
        self.due.remove(&id);
    }

    /// True if a workload's next second pass is scheduled.
    #[cfg(feature = "lab")]
    pub fn awaits(&self, id: WorkloadId) -> bool {
        self.due.get(&id).is_some_and(|entry| entry.at.is_some())
    }

    /// Removes and returns the workloads whose second pass is due.
    pub fn take_due(&mut self, now: Time) -> Vec<WorkloadId> {
        let mut due = Vec::new();
        for (id, entry) in &mut self.due {
            if entry.at.is_some_and(|at| at <= now) {
                entry.at = None;
                due.push(*id);
            }
        }
        due
    }

    pub fn next_due(&self) -> Option<Time> {
        self.due.values().filter_map(|entry| entry.at).min()
    }
}
