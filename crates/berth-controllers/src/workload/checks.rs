//! The admission checks that a workload needs, and the list of their states in its status
//! (semantics §17).

use std::collections::BTreeSet;

use berth_api::kueue::v1beta2::{AdmissionCheckState, CheckState, ClusterQueue, Workload};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::status::{has_quota_reservation, status_mut};

/// Names of the checks that this workload needs in this queue. Before admission, these are the
/// checks that cover every flavor of the queue; afterwards, the checks for any assigned flavor.
pub fn required(workload: &Workload, queue: &ClusterQueue) -> BTreeSet<String> {
    let Some(strategy) = &queue.spec.admission_checks_strategy else { return BTreeSet::new() };
    let all: BTreeSet<&str> = queue
        .spec
        .resource_groups
        .iter()
        .flat_map(|group| group.flavors.iter().map(|flavor| flavor.name.as_str()))
        .collect();
    let assigned: Option<BTreeSet<&str>> =
        workload.status.as_ref().and_then(|status| status.admission.as_ref()).map(|admission| {
            admission.pod_set_assignments.iter().flat_map(|a| a.flavors.values().map(String::as_str)).collect()
        });
    strategy
        .admission_checks
        .iter()
        .filter(|rule| {
            let on: BTreeSet<&str> = match rule.on_flavors.is_empty() {
                true => all.clone(),
                false => rule.on_flavors.iter().map(String::as_str).collect(),
            };
            match &assigned {
                Some(assigned) => !on.is_disjoint(assigned),
                None => all.is_subset(&on),
            }
        })
        .map(|rule| rule.name.clone())
        .collect()
}

/// Updates the list of states to exactly the required checks, sorted by name: missing ones are
/// added as Pending, others are removed. Returns true if anything changed.
pub fn sync(states: &mut Vec<AdmissionCheckState>, required: &BTreeSet<String>, now: Timestamp) -> bool {
    let before = states.clone();
    states.retain(|state| required.contains(&state.name));
    for name in required {
        if !states.iter().any(|state| state.name == *name) {
            states.push(AdmissionCheckState {
                name: name.clone(),
                state: CheckState::Pending,
                last_transition_time: Time(now),
                ..AdmissionCheckState::default()
            });
        }
    }
    states.sort_by(|a, b| a.name.cmp(&b.name));
    *states != before
}

/// Sets the state of one check, which is added if missing. The transition time changes with the
/// state, unless the new state has its own.
pub fn set_state(states: &mut Vec<AdmissionCheckState>, mut new: AdmissionCheckState, now: Timestamp) {
    let unset = berth_api::zero_time();
    match states.iter_mut().find(|state| state.name == new.name) {
        Some(old) => {
            if new.last_transition_time == unset {
                let moved = old.state != new.state;
                new.last_transition_time = if moved { Time(now) } else { old.last_transition_time.clone() };
            }
            *old = new;
        }
        None => {
            if new.last_transition_time == unset {
                new.last_transition_time = Time(now);
            }
            states.push(new);
        }
    }
}

/// The checks in a state.
pub fn in_state(workload: &Workload, state: CheckState) -> Vec<&AdmissionCheckState> {
    workload
        .status
        .iter()
        .flat_map(|status| status.admission_checks.iter())
        .filter(|check| check.state == state)
        .collect()
}

/// When a workload with checks in state Retry may be queued again: the latest transition time plus
/// delay. `None` without a delay.
pub fn retry_at(workload: &Workload) -> Option<Timestamp> {
    in_state(workload, CheckState::Retry)
        .into_iter()
        // A delay counts from the transition time, so a state without one is skipped.
        .filter(|check| check.last_transition_time != berth_api::zero_time())
        .filter_map(|check| {
            let seconds = check.requeue_after_seconds?;
            check.last_transition_time.0.checked_add(jiff::SignedDuration::from_secs(i64::from(seconds))).ok()
        })
        .max()
}

/// Updates the list of states to the checks that the workload needs in its queue; states from
/// earlier attempts are kept. Returns true if anything changed.
pub fn sync_for_queue(workload: &mut Workload, queue: &ClusterQueue, now: Timestamp) -> bool {
    let required = required(workload, queue);
    let has = workload.status.as_ref().is_some_and(|status| !status.admission_checks.is_empty());
    if required.is_empty() && !has {
        return false;
    }
    sync(&mut status_mut(workload).admission_checks, &required, now)
}

/// True if the workload has a quota reservation and a check is not Ready.
pub fn is_waiting(workload: &Workload) -> bool {
    has_quota_reservation(workload) && !super::status::all_checks_ready(workload)
}
