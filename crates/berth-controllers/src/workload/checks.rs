//! Which admission checks a workload needs, and how the list in its status follows (semantics §17).

use std::collections::BTreeSet;

use berth_api::kueue::v1beta2::{AdmissionCheckState, CheckState, ClusterQueue, Workload};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::status::{has_quota_reservation, status_mut};

/// Checks this workload needs in this queue, in name order: before it has an admission those that cover every flavor of
/// the queue, afterwards those that concern a flavor it was given.
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

/// Makes the list of states hold exactly the required checks, sorted by name: missing ones are added as Pending, others
/// are dropped. Returns whether anything changed.
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

/// Sets one check's state; a check that is not there is added. The transition time moves with the state, unless the new
/// state brings its own.
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

/// Names of checks in a state.
pub fn in_state(workload: &Workload, state: CheckState) -> Vec<&AdmissionCheckState> {
    workload
        .status
        .iter()
        .flat_map(|status| status.admission_checks.iter())
        .filter(|check| check.state == state)
        .collect()
}

/// When a workload whose checks said Retry may queue again: the latest of their transition times plus their delays.
pub fn retry_at(workload: &Workload) -> Option<Timestamp> {
    in_state(workload, CheckState::Retry)
        .into_iter()
        // Without the time it began, a delay says nothing.
        .filter(|check| check.last_transition_time != berth_api::zero_time())
        .filter_map(|check| {
            let seconds = check.requeue_after_seconds?;
            check.last_transition_time.0.checked_add(jiff::SignedDuration::from_secs(i64::from(seconds))).ok()
        })
        .max()
}

/// A workload that was just given quota starts with the checks its flavors need; states of earlier attempts are kept.
pub fn sync_for_queue(workload: &mut Workload, queue: &ClusterQueue, now: Timestamp) -> bool {
    let required = required(workload, queue);
    let has = workload.status.as_ref().is_some_and(|status| !status.admission_checks.is_empty());
    if required.is_empty() && !has {
        return false;
    }
    sync(&mut status_mut(workload).admission_checks, &required, now)
}

/// Has it quota, and does a check still stand in the way?
pub fn is_waiting(workload: &Workload) -> bool {
    has_quota_reservation(workload) && !super::status::all_checks_ready(workload)
}
