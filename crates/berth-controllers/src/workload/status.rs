//! How a Workload's status moves: reserved, admitted, evicted, released, requeued, finished (semantics §17, §19–§22).
//!
//! Every function here takes a Workload and changes it in place; none writes anything. Reasons and messages are Kueue's,
//! because people and programs read them.

use std::time::Duration;

use berth_api::kueue::events;
use berth_api::kueue::reasons::{admission, eviction};
use berth_api::kueue::v1beta2::{
    Admission, AdmissionCheckState, CheckState, DelayedTopologyRequestState, GatePosition, PodSetRequest,
    ReclaimablePod, RequeueState, SchedulingStats, Workload, WorkloadSchedulingStatsEviction, WorkloadStatus,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::conditions::{self, NewCondition};
use crate::gates::{Gate, Gates};

/// The conditions of a workload.
pub fn conditions(workload: &Workload) -> &[Condition] {
    workload.status.as_ref().map_or(&[], |status| &status.conditions)
}

/// The condition of a type.
pub fn condition<'a>(workload: &'a Workload, type_: &str) -> Option<&'a Condition> {
    conditions::find(conditions(workload), type_)
}

/// The condition of a type, when it is True.
pub fn true_condition<'a>(workload: &'a Workload, type_: &str) -> Option<&'a Condition> {
    condition(workload, type_).filter(|condition| condition.status == "True")
}

/// Does it hold quota?
pub fn has_quota_reservation(workload: &Workload) -> bool {
    true_condition(workload, conditions::QUOTA_RESERVED).is_some()
}

/// Is it admitted?
pub fn is_admitted(workload: &Workload) -> bool {
    true_condition(workload, conditions::ADMITTED).is_some()
}

/// Is it being thrown out, or was it, and has not come back since?
pub fn is_evicted(workload: &Workload) -> bool {
    true_condition(workload, conditions::EVICTED).is_some()
}

/// Is it done?
pub fn is_finished(workload: &Workload) -> bool {
    true_condition(workload, conditions::FINISHED).is_some()
}

/// How far a workload has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It waits for quota.
    Pending,
    /// It holds quota and waits for its checks.
    QuotaReserved,
    /// It may run.
    Admitted,
    /// It is done.
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

    /// Did it lose what it held and queue again?
    pub fn fell_back_to(self, now: Stage) -> bool {
        matches!(self, Stage::QuotaReserved | Stage::Admitted) && now == Stage::Pending
    }
}

/// How long an eviction took, from its decision to the return of the quota, with the queue it left and the reason;
/// nothing unless this change completes one.
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

/// How long a finished workload ran, over all its admissions; nothing unless it was admitted and is finished.
pub fn total_execution_time(workload: &Workload) -> Option<Duration> {
    let finished = true_condition(workload, conditions::FINISHED)?.last_transition_time.0;
    true_condition(workload, conditions::ADMITTED)?;
    u64::try_from(execution_seconds(workload, finished)).ok().map(Duration::from_secs)
}

/// Was it thrown out for this reason?
pub fn is_evicted_by(workload: &Workload, reason: &str) -> bool {
    true_condition(workload, conditions::EVICTED).is_some_and(|condition| condition.reason == reason)
}

/// Says which of its pods no longer need quota; never more of a pod set than it has. Returns whether anything changed.
pub fn set_reclaimable_pods(workload: &mut Workload, reclaimable: Vec<ReclaimablePod>) -> bool {
    let reclaimable = within_pod_sets(workload, reclaimable);
    let known = workload.status.as_ref().map_or(&[][..], |status| &status.reclaimable_pods);
    if same_reclaimable_pods(known, &reclaimable) {
        return false;
    }
    status_mut(workload).reclaimable_pods = reclaimable;
    true
}

/// The list with no count above its pod set's.
pub fn within_pod_sets(workload: &Workload, mut reclaimable: Vec<ReclaimablePod>) -> Vec<ReclaimablePod> {
    for pods in &mut reclaimable {
        if let Some(set) = workload.spec.pod_sets.iter().find(|set| set.name == pods.name) {
            pods.count = pods.count.min(set.count);
        }
    }
    reclaimable
}

/// Do two lists say the same, in whatever order?
pub fn same_reclaimable_pods(a: &[ReclaimablePod], b: &[ReclaimablePod]) -> bool {
    a.len() == b.len() && a.iter().all(|pods| b.contains(pods))
}

/// `spec.active`, true unless somebody said otherwise.
pub fn is_active(workload: &Workload) -> bool {
    workload.spec.active.unwrap_or(true)
}

/// Is it kept out of its queue on purpose (QuotaReserved=False, reason OnHold)?
pub fn is_on_hold(workload: &Workload) -> bool {
    condition(workload, conditions::QUOTA_RESERVED)
        .is_some_and(|condition| condition.status == "False" && condition.reason == admission::ON_HOLD)
}

/// The status, made when absent.
pub fn status_mut(workload: &mut Workload) -> &mut WorkloadStatus {
    workload.status.get_or_insert_default()
}

/// Sets a condition with the generation that was looked at. Returns whether anything changed.
pub fn set(workload: &mut Workload, type_: &str, status: bool, reason: &str, message: &str, now: Timestamp) -> bool {
    let generation = workload.metadata.generation;
    let new = NewCondition { type_, status, reason, message, generation };
    conditions::set(&mut status_mut(workload).conditions, new, now)
}

/// Gives quota: admission and QuotaReserved=True; what an earlier eviction left is answered (§19.5).
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

/// Takes quota away, or says why there is none yet: QuotaReserved=False, no admission, Admitted follows. Returns whether
/// anything changed.
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

/// The reason of QuotaReserved=False: granular, or the one older versions used.
pub fn unreserved_reason<'a>(granular: &'a str, legacy: &'a str, gates: &Gates) -> &'a str {
    if gates.on(Gate::UnadmittedWorkloadsObservability) { granular } else { legacy }
}

/// Are all its admission checks Ready? True when it has none.
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

/// Makes condition Admitted say whether it may run (§17.1). Time it was admitted is added up when that ends. Returns
/// whether anything changed.
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
        // Before the granular reasons existed, a workload that never was admitted had no such condition.
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

/// Why a workload is thrown out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction<'a> {
    /// Reason of condition Evicted.
    pub reason: &'a str,
    /// What lies behind it (`WaitForStart`, `RequeuingLimitExceeded`), or nothing.
    pub cause: &'a str,
    /// Message.
    pub message: &'a str,
}

/// Throws it out (§19.1): quota stays until its job has stopped.
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

/// Reason of the event that reports an eviction for `reason`, which is that of condition Evicted.
pub fn eviction_event(reason: &str) -> String {
    format!("{}{reason}", events::EVICTED_DUE_TO)
}

/// Checks that were decided are undecided again after an eviction.
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
            requeue_after_seconds: None,
            retry_count,
            pod_set_updates: Vec::new(),
        };
    }
}

/// Throws it out for another workload (§11.1).
pub fn preempt(workload: &mut Workload, reason: &str, message: &str, gates: &Gates, now: Timestamp) {
    evict(workload, &Eviction { reason: eviction::PREEMPTED, cause: "", message }, gates, now);
    set(workload, conditions::PREEMPTED, true, reason, message, now);
}

/// Is a workload that was evicted for this reason queued again at once? It had to make room, its place broke, or it left for
/// a sibling that is ahead of it in the queue: should that fail, it is there again.
fn comes_back_at_once(reason: &str) -> bool {
    [eviction::PREEMPTED, eviction::NODE_FAILURES, eviction::FLAVOR_MIGRATION].contains(&reason)
}

/// The eviction is complete, its job has stopped: quota goes back (§19.2). Nothing happens without an eviction.
pub fn release_after_eviction(workload: &mut Workload, gates: &Gates, now: Timestamp) -> bool {
    let Some(evicted) = true_condition(workload, conditions::EVICTED).cloned() else { return false };
    let mut changed = set(
        workload,
        conditions::REQUEUED,
        comes_back_at_once(&evicted.reason),
        &evicted.reason,
        &evicted.message,
        now,
    );
    let reason = unreserved_reason(admission::PENDING_EVALUATION, admission::LEGACY_PENDING, gates);
    changed |= unset_quota_reservation(workload, reason, &evicted.message, gates, now);
    changed
}

/// Makes a workload wait until `at`, never moving an earlier decision forward. Returns whether anything changed.
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

/// Marks it done. Returns false when it was already.
pub fn finish(workload: &mut Workload, reason: &str, message: &str, now: Timestamp) -> bool {
    if is_finished(workload) {
        return false;
    }
    set(workload, conditions::FINISHED, true, reason, message, now)
}

/// Writes what its pod sets ask for in total. Returns whether that was not there already.
pub fn set_resource_requests(workload: &mut Workload, requests: Vec<PodSetRequest>) -> bool {
    let status = status_mut(workload);
    if status.resource_requests == requests {
        return false;
    }
    status.resource_requests = requests;
    true
}

/// Seconds it has been admitted so far, over all admissions.
pub fn execution_seconds(workload: &Workload, now: Timestamp) -> i64 {
    let past = workload.status.as_ref().and_then(|s| s.accumulated_past_execution_time_seconds).unwrap_or(0);
    let current = true_condition(workload, conditions::ADMITTED)
        .map_or(0, |condition| now.duration_since(condition.last_transition_time.0).as_secs().max(0));
    i64::from(past).saturating_add(current)
}

/// Seconds between the reservation and now, or since it was queued, for messages.
pub fn seconds_since_reservation(workload: &Workload, now: Timestamp) -> i64 {
    true_condition(workload, conditions::QUOTA_RESERVED)
        .map_or(0, |condition| now.duration_since(condition.last_transition_time.0).as_secs().max(0))
}

/// Seconds it waited for quota, rounded: since it was made, or since it came back after an eviction. Without a creation
/// time, as long as Kueue can count (2^63 nanoseconds).
pub fn seconds_queued(workload: &Workload, now: Timestamp) -> i64 {
    const LONGEST: f64 = i64::MAX as f64 / 1e9;
    let created = workload.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let requeued = true_condition(workload, conditions::REQUEUED).map(|condition| condition.last_transition_time.0);
    let since = requeued.into_iter().chain(created).max();
    let seconds = since.map_or(LONGEST, |since| now.duration_since(since).as_secs_f64());
    seconds.clamp(0.0, LONGEST).round_ties_even() as i64
}
