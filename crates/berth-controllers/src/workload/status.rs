//! Transitions of a Workload's status: reserved, admitted, evicted, released, requeued, finished
//! (semantics §17, §19–§22).
//!
//! The functions change a Workload in place and write nothing. Reasons and messages are Kueue's,
//! because users and programs rely on them.

use std::time::Duration;

use berth_api::kueue::reasons::{admission, eviction};
use berth_api::kueue::v1beta2::{
    Admission, AdmissionCheckState, CheckState, DelayedTopologyRequestState, GatePosition, PodSetRequest,
    ReclaimablePod, RequeueState, SchedulingStats, Workload, WorkloadSchedulingStatsEviction, WorkloadStatus,
};
use berth_api::kueue::{annotations, events};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt;

use crate::conditions::{self, NewCondition};
use crate::gates::{Gate, Gates};

/// The conditions of a workload.
pub fn conditions(workload: &Workload) -> &[Condition] {
    workload.status.as_ref().map_or(&[], |status| &status.conditions)
}

/// The condition of this type.
pub fn condition<'a>(workload: &'a Workload, type_: &str) -> Option<&'a Condition> {
    conditions::find(conditions(workload), type_)
}

/// The condition of this type, if it is True.
pub fn true_condition<'a>(workload: &'a Workload, type_: &str) -> Option<&'a Condition> {
    condition(workload, type_).filter(|condition| condition.status == "True")
}

/// True if the workload holds quota.
pub fn has_quota_reservation(workload: &Workload) -> bool {
    true_condition(workload, conditions::QUOTA_RESERVED).is_some()
}

/// True if the workload is admitted.
pub fn is_admitted(workload: &Workload) -> bool {
    true_condition(workload, conditions::ADMITTED).is_some()
}

/// True from an eviction until the next quota reservation.
pub fn is_evicted(workload: &Workload) -> bool {
    true_condition(workload, conditions::EVICTED).is_some()
}

/// True if the Workload represents a pod group.
pub(crate) fn is_pod_group(workload: &Workload) -> bool {
    workload.annotations().get(annotations::IS_GROUP_WORKLOAD).is_some_and(|value| value == "true")
}

/// True if the workload is finished.
pub fn is_finished(workload: &Workload) -> bool {
    true_condition(workload, conditions::FINISHED).is_some()
}

/// Progress of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Waits for quota.
    Pending,
    /// Holds quota, and waits for admission checks.
    QuotaReserved,
    /// May run.
    Admitted,
    /// Has finished.
    Finished,
}

impl Stage {
    /// The stage of a workload.
    pub fn of(workload: &Workload) -> Self {
        match workload {
            w if is_finished(w) => Stage::Finished,
            w if is_admitted(w) => Stage::Admitted,
            w if has_quota_reservation(w) => Stage::QuotaReserved,
            _ => Stage::Pending,
        }
    }

    /// True if a workload in this stage lost its quota and is pending again.
    pub fn fell_back_to(self, now: Stage) -> bool {
        matches!(self, Stage::QuotaReserved | Stage::Admitted) && now == Stage::Pending
    }
}

/// The cluster queue, the reason and the duration of an eviction, from the decision until quota was
/// released. `None` unless this change completes an eviction.
pub fn eviction_completed(
    old: Option<&Workload>,
    new: &Workload,
    now: Timestamp,
) -> Option<(String, String, Duration)> {
    let old = old.filter(|old| Stage::of(old).fell_back_to(Stage::of(new)))?;
    let queue = old.status.as_ref()?.admission.as_ref()?.cluster_queue.clone();
    let evicted = true_condition(new, conditions::EVICTED)?;
    let took = Duration::try_from(now.duration_since(evicted.last_transition_time.0)).unwrap_or_default();
    Some((queue, evicted.reason.clone(), took))
}

/// How long a finished workload ran, over all admissions; `None` unless it was admitted and is
/// finished.
pub fn total_execution_time(workload: &Workload) -> Option<Duration> {
    let finished = true_condition(workload, conditions::FINISHED)?.last_transition_time.0;
    true_condition(workload, conditions::ADMITTED)?;
    u64::try_from(execution_seconds(workload, finished)).ok().map(Duration::from_secs)
}

/// True if the workload is evicted for this reason.
pub fn is_evicted_by(workload: &Workload, reason: &str) -> bool {
    true_condition(workload, conditions::EVICTED).is_some_and(|condition| condition.reason == reason)
}

/// Sets the pods that no longer need quota, at most the count of each pod set. Returns true if
/// anything changed.
pub fn set_reclaimable_pods(workload: &mut Workload, reclaimable: Vec<ReclaimablePod>) -> bool {
    let reclaimable = within_pod_sets(workload, reclaimable);
    let known = workload.status.as_ref().map_or(&[][..], |status| &status.reclaimable_pods);
    if same_reclaimable_pods(known, &reclaimable) {
        return false;
    }
    status_mut(workload).reclaimable_pods = reclaimable;
    true
}

/// Limits each count to that of its pod set.
pub fn within_pod_sets(workload: &Workload, mut reclaimable: Vec<ReclaimablePod>) -> Vec<ReclaimablePod> {
    for pods in &mut reclaimable {
        if let Some(set) = workload.spec.pod_sets.iter().find(|set| set.name == pods.name) {
            pods.count = pods.count.min(set.count);
        }
    }
    reclaimable
}

/// True if both lists have the same entries in any order.
pub fn same_reclaimable_pods(a: &[ReclaimablePod], b: &[ReclaimablePod]) -> bool {
    a.len() == b.len() && a.iter().all(|pods| b.contains(pods))
}

/// `spec.active`; true by default.
pub fn is_active(workload: &Workload) -> bool {
    workload.spec.active.unwrap_or(true)
}

/// True if the workload is deliberately not queued (QuotaReserved=False, reason OnHold).
pub fn is_on_hold(workload: &Workload) -> bool {
    condition(workload, conditions::QUOTA_RESERVED)
        .is_some_and(|condition| condition.status == "False" && condition.reason == admission::ON_HOLD)
}

/// The status, created if missing.
pub fn status_mut(workload: &mut Workload) -> &mut WorkloadStatus {
    workload.status.get_or_insert_default()
}

/// Sets a condition with the workload's generation. Returns true if anything changed.
pub fn set(workload: &mut Workload, type_: &str, status: bool, reason: &str, message: &str, now: Timestamp) -> bool {
    let generation = workload.metadata.generation;
    let new = NewCondition { type_, status, reason, message, generation };
    conditions::set(&mut status_mut(workload).conditions, new, now)
}

/// Reserves quota: sets the admission and QuotaReserved=True, and ends the conditions of an earlier
/// eviction (§19.5).
pub fn set_quota_reservation(workload: &mut Workload, admission: Admission, now: Timestamp) {
    let message = format!("Quota reserved in ClusterQueue {}", admission.cluster_queue);
    status_mut(workload).admission = Some(admission);
    set(workload, conditions::QUOTA_RESERVED, true, admission::QUOTA_RESERVED, &message, now);
    for type_ in [conditions::EVICTED, conditions::PREEMPTED, conditions::BLOCKED_ON_PREEMPTION_GATES] {
        if let Some(old) = true_condition(workload, type_) {
            let message = format!("Previously: {}", old.message);
            set(workload, type_, false, admission::QUOTA_RESERVED, &message, now);
        }
    }
}

/// Releases quota, or reports why none is reserved yet: QuotaReserved=False, no admission, and
/// Admitted is updated. Returns true if anything changed.
pub fn unset_quota_reservation(
    workload: &mut Workload,
    reason: &str,
    message: &str,
    gates: &Gates,
    now: Timestamp,
) -> bool {
    let mut changed = set(workload, conditions::QUOTA_RESERVED, false, reason, message, now);
    changed |= status_mut(workload).admission.take().is_some();
    changed |= sync_admitted(workload, gates, now);
    changed
}

/// The reason of QuotaReserved=False: granular, or as older versions report it, depending on the
/// gate.
pub fn unreserved_reason<'a>(granular: &'a str, legacy: &'a str, gates: &Gates) -> &'a str {
    if gates.on(Gate::UnadmittedWorkloadsObservability) { granular } else { legacy }
}

/// True if all admission checks are Ready, or there are none.
pub fn all_checks_ready(workload: &Workload) -> bool {
    workload
        .status
        .as_ref()
        .is_none_or(|status| status.admission_checks.iter().all(|check| check.state == CheckState::Ready))
}

fn has_pending_topology(workload: &Workload, gates: &Gates) -> bool {
    gates.on(Gate::TopologyAwareScheduling)
        && workload.status.as_ref().and_then(|status| status.admission.as_ref()).is_some_and(|admission| {
            admission
                .pod_set_assignments
                .iter()
                .any(|assignment| assignment.delayed_topology_request == Some(DelayedTopologyRequestState::Pending))
        })
}

/// Updates the condition Admitted (§17.1). When an admission ends, its duration is added to the
/// accumulated execution time. Returns true if anything changed.
pub fn sync_admitted(workload: &mut Workload, gates: &Gates, now: Timestamp) -> bool {
    let reserved = has_quota_reservation(workload);
    let ready = all_checks_ready(workload);
    let pending_topology = has_pending_topology(workload, gates);
    let admitted = reserved && ready && !pending_topology;
    let known = condition(workload, conditions::ADMITTED).cloned();
    let was = known.as_ref().is_some_and(|condition| condition.status == "True");
    if admitted {
        return !was && set(workload, conditions::ADMITTED, true, admission::ADMITTED, "The workload is admitted", now);
    }
    let observability = gates.on(Gate::UnadmittedWorkloadsObservability);
    if !observability && !was {
        // Without granular reasons, a workload that was never admitted has no such condition.
        return false;
    }
    if !reserved && known.is_none() && condition(workload, conditions::QUOTA_RESERVED).is_none() {
        return false;
    }
    let (reason, message) = match (reserved, ready) {
        (false, false) if !observability => (
            admission::LEGACY_NO_RESERVATION_UNSATISFIED_CHECKS,
            "The workload has no reservation and not all checks ready",
        ),
        (false, _) => (admission::NO_RESERVATION, "The workload has no reservation"),
        (true, false) if observability => {
            (admission::UNSATISFIED_ADMISSION_CHECKS, "The workload has not all checks ready")
        }
        (true, false) => (admission::LEGACY_UNSATISFIED_CHECKS, "The workload has not all checks ready"),
        (true, true) => (admission::PENDING_DELAYED_TOPOLOGY_REQUESTS, "There are pending delayed topology requests"),
    };
    if let Some(condition) = known.filter(|_| was)
        && condition.last_transition_time != berth_api::zero_time()
    {
        let seconds = now.duration_since(condition.last_transition_time.0).as_secs().max(0);
        let status = status_mut(workload);
        let past = status.accumulated_past_execution_time_seconds.unwrap_or(0);
        status.accumulated_past_execution_time_seconds =
            Some(past.saturating_add(i32::try_from(seconds).unwrap_or(i32::MAX)));
    }
    set(workload, conditions::ADMITTED, false, reason, message, now)
}

/// The reason for an eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction<'a> {
    /// Reason of the condition Evicted.
    pub reason: &'a str,
    /// Underlying cause (`WaitForStart`, `RequeuingLimitExceeded`), or empty.
    pub cause: &'a str,
    /// Message.
    pub message: &'a str,
}

/// Evicts the workload (§19.1). It keeps its quota until its job has stopped.
pub fn evict(workload: &mut Workload, eviction: &Eviction<'_>, gates: &Gates, now: Timestamp) {
    let reason = if eviction.reason == eviction::DEACTIVATED && !eviction.cause.is_empty() {
        format!("{}DueTo{}", eviction.reason, eviction.cause)
    } else {
        eviction.reason.to_owned()
    };
    set(workload, conditions::EVICTED, true, &reason, eviction.message, now);
    reset_checks(workload, now);
    let blocked = true_condition(workload, conditions::BLOCKED_ON_PREEMPTION_GATES).is_some();
    let status = status_mut(workload);
    status.cluster_name = None;
    status.nominated_cluster_names.clear();
    status.unhealthy_nodes.clear();
    if gates.on(Gate::MultiKueueOrchestratedPreemption) || gates.on(Gate::ConcurrentAdmission) {
        for gate in &mut status.preemption_gates {
            if gate.position != GatePosition::Closed {
                gate.position = GatePosition::Closed;
                gate.last_transition_time = Time(now);
            }
        }
    }
    let evictions = &mut status.scheduling_stats.get_or_insert_with(SchedulingStats::default).evictions;
    match evictions.iter_mut().find(|e| e.reason == eviction.reason && e.underlying_cause == eviction.cause) {
        Some(known) => known.count = known.count.saturating_add(1),
        None => evictions.push(WorkloadSchedulingStatsEviction {
            reason: eviction.reason.to_owned(),
            underlying_cause: eviction.cause.to_owned(),
            count: 1,
        }),
    }
    if blocked {
        set(
            workload,
            conditions::BLOCKED_ON_PREEMPTION_GATES,
            false,
            conditions::EVICTED,
            "The workload was evicted, its preemption gates are closed again",
            now,
        );
    }
}

/// Reason of the event that reports an eviction; `reason` is that of the condition Evicted.
pub fn eviction_event(reason: &str) -> String {
    format!("{}{reason}", events::EVICTED_DUE_TO)
}

/// Resets all admission checks to Pending, after an eviction.
pub fn reset_checks(workload: &mut Workload, now: Timestamp) {
    let Some(status) = workload.status.as_mut() else { return };
    for check in &mut status.admission_checks {
        if check.state == CheckState::Pending {
            continue;
        }
        let retry_count = match check.state {
            CheckState::Retry => Some(check.retry_count.unwrap_or(0).saturating_add(1)),
            _ => check.retry_count,
        };
        *check = AdmissionCheckState {
            name: std::mem::take(&mut check.name),
            state: CheckState::Pending,
            last_transition_time: Time(now),
            message: format!("Reset to Pending after eviction. Previously: {}", check.state),
            // Check controllers of other projects continue their back-off from it.
            requeue_after_seconds: check.requeue_after_seconds,
            retry_count,
            pod_set_updates: Vec::new(),
        };
    }
}

/// Evicts the workload in favor of another one (§11.1).
pub fn preempt(workload: &mut Workload, reason: &str, message: &str, gates: &Gates, now: Timestamp) {
    evict(workload, &Eviction { reason: eviction::PREEMPTED, cause: "", message }, gates, now);
    set(workload, conditions::PREEMPTED, true, reason, message, now);
}

/// True if a workload that is evicted for this reason is requeued without backoff. It was
/// preempted, or its nodes failed, or a variant on a preferred flavor replaced it. That variant
/// comes before it in the queue, and if it fails, this workload must be queued again.
fn requeues_at_once(reason: &str) -> bool {
    [eviction::PREEMPTED, eviction::NODE_FAILURES, eviction::FLAVOR_MIGRATION].contains(&reason)
}

/// True if a single pod, which is not part of a group, owns the workload.
pub fn is_of_a_pod(workload: &Workload) -> bool {
    matches!(workload.owner_references(), [owner] if owner.kind == "Pod") && !is_pod_group(workload)
}

/// Completes an eviction once the job has stopped: releases quota and requeues (§19.2). Does
/// nothing without an eviction. Returns true if anything changed.
pub fn release_after_eviction(workload: &mut Workload, gates: &Gates, now: Timestamp) -> bool {
    let Some(evicted) = true_condition(workload, conditions::EVICTED).cloned() else { return false };
    // A workload of a single pod ends with the pod, so nothing could use another admission.
    let ends = gates.on(Gate::SkipReassignmentForPodOwnedWorkloads) && is_of_a_pod(workload);
    let requeued = requeues_at_once(&evicted.reason) && !ends;
    let mut changed = set(workload, conditions::REQUEUED, requeued, &evicted.reason, &evicted.message, now);
    let reason = unreserved_reason(admission::PENDING_EVALUATION, admission::LEGACY_PENDING, gates);
    changed |= unset_quota_reservation(workload, reason, &evicted.message, gates, now);
    changed
}

/// Sets the time until which the workload is not queued, unless a later one is set; `count_it`
/// counts a retry. Returns true if anything changed.
pub fn set_requeue_state(workload: &mut Workload, at: Timestamp, count_it: bool) -> bool {
    let status = status_mut(workload);
    let state = status.requeue_state.get_or_insert_with(RequeueState::default);
    let mut changed = false;
    if count_it {
        state.count = Some(state.count.unwrap_or(0).saturating_add(1));
        changed = true;
    }
    if state.requeue_at.as_ref().is_none_or(|known| known.0 < at) {
        state.requeue_at = Some(Time(at));
        changed = true;
    }
    changed
}

/// Marks the workload finished. Returns false if it was already finished.
pub fn finish(workload: &mut Workload, reason: &str, message: &str, now: Timestamp) -> bool {
    if is_finished(workload) {
        return false;
    }
    set(workload, conditions::FINISHED, true, reason, message, now)
}

/// Sets the total requests of its pod sets. Returns true if anything changed.
pub fn set_resource_requests(workload: &mut Workload, requests: Vec<PodSetRequest>) -> bool {
    let status = status_mut(workload);
    if status.resource_requests == requests {
        return false;
    }
    status.resource_requests = requests;
    true
}

/// Seconds that the workload has been admitted so far, over all admissions.
pub fn execution_seconds(workload: &Workload, now: Timestamp) -> i64 {
    let past = workload.status.as_ref().and_then(|s| s.accumulated_past_execution_time_seconds).unwrap_or(0);
    let current = true_condition(workload, conditions::ADMITTED)
        .map_or(0, |condition| now.duration_since(condition.last_transition_time.0).as_secs().max(0));
    i64::from(past).saturating_add(current)
}

/// Seconds since quota was reserved; zero without a reservation. For messages.
pub fn seconds_since_reservation(workload: &Workload, now: Timestamp) -> i64 {
    true_condition(workload, conditions::QUOTA_RESERVED)
        .map_or(0, |condition| now.duration_since(condition.last_transition_time.0).as_secs().max(0))
}

/// Seconds that the workload waited for quota, rounded: since its creation, or since it was
/// requeued after an eviction. Without a creation time, the longest duration that Kueue can
/// represent (2^63 nanoseconds).
pub fn seconds_queued(workload: &Workload, now: Timestamp) -> i64 {
    const LONGEST: f64 = i64::MAX as f64 / 1e9;
    let created = workload.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let requeued = true_condition(workload, conditions::REQUEUED).map(|condition| condition.last_transition_time.0);
    let since = requeued.into_iter().chain(created).max();
    let seconds = since.map_or(LONGEST, |since| now.duration_since(since).as_secs_f64());
    seconds.clamp(0.0, LONGEST).round_ties_even() as i64
}
