//! Reconciling one Workload: admission checks, stopped queues, evictions, time limits and
//! completion (semantics §17, §19–§22).
//!
//! Pure, like the job integrations: caches in, plan out. The scheduler decides admission; this
//! function updates everything that follows from the states of the object and its queues.

use std::time::Duration;

use berth_api::kueue::reasons::{admission, deactivation, eviction, finished, pods_ready, requeue};
use berth_api::kueue::v1beta2::{
    CheckState, ClusterQueue, GatePosition, LocalQueue, PreemptionGateState, StopPolicy, Workload,
};
use berth_api::kueue::{annotations, events, labels};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{LimitRange, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, ResourceExt};

use super::checks;
use super::status::{self, Eviction};
use crate::concurrent_admission::{is_parent, is_variant, queue_of};
use crate::conditions;
use crate::configuration::WaitForPodsReady;
use crate::cool_down;
use crate::devices;
use crate::gates::Gate;
use crate::jobs::reconcile::{Context, remove_finalizer};
use crate::plan::{Plan, PlannedEvent, Step};
use crate::selector;
use crate::stores::controller_of;
use crate::translate::requests::adjust;
use crate::translate::validate;

/// Message of QuotaReserved=False when the workload is admissible and only needs to be evaluated by
/// the scheduler.
const PENDING_EVALUATION: &str = "Workload is pending evaluation in the scheduling queue";

const DEACTIVATED: &str = "The workload is deactivated";

/// True if the plan only replaces the reason why the workload was inadmissible with
/// [`PENDING_EVALUATION`].
pub(super) fn only_reports_admissible(before: &Workload, plan: &Plan<Workload>) -> bool {
    let [Step::PatchStatus(after)] = plan.steps.as_slice() else { return false };
    let waits = |workload| status::condition(workload, conditions::QUOTA_RESERVED).filter(|it| it.status == "False");
    let gates = |workload: &Workload| workload.status.as_ref().map(|status| status.preemption_gates.clone());
    let requeued = |workload| status::condition(workload, conditions::REQUEUED).map(|it| it.status.clone());
    waits(before).is_some()
        && requeued(before) == requeued(after)
        && waits(after).is_some_and(|condition| condition.message == PENDING_EVALUATION)
        && gates(before) == gates(after)
}

/// The plan for one workload.
pub fn reconcile(context: Context<'_>, workload: &Workload) -> Plan<Workload> {
    let reconcile = Reconcile { context, workload: workload.clone(), plan: Plan::default() };
    reconcile.run()
}

struct Reconcile<'a> {
    context: Context<'a>,
    workload: Workload,
    plan: Plan<Workload>,
}

impl Reconcile<'_> {
    fn run(mut self) -> Plan<Workload> {
        self.decide();
        self.plan
    }

    fn write(&mut self) {
        self.plan.steps.push(Step::Patch(Box::new(self.workload.clone())));
    }

    fn write_status(&mut self) {
        // The write itself triggers the next reconcile, so no timer is needed.
        self.plan.requeue_after = None;
        self.plan.steps.push(Step::PatchStatus(Box::new(self.workload.clone())));
    }

    fn report(&mut self, event: PlannedEvent) {
        self.plan.steps.push(Step::Event(event));
    }

    fn decide(&mut self) {
        if status::is_finished(&self.workload) {
            return self.finished();
        }
        if self.orphaned() {
            return;
        }
        if self.workload.metadata.deletion_timestamp.is_some() {
            return;
        }
        if self.becomes_parent() {
            return;
        }
        if self.deactivation() || self.requeueing() || self.queue_stopped_or_gone() {
            return;
        }
        if self.admission_gates() || self.checks() || self.admitted_limits() {
            return;
        }
        if !status::has_quota_reservation(&self.workload) {
            self.unreserved();
        }
    }

    // -- devices ----------------------------------------------------------------------------------

    /// Why the devices of the workload cannot be counted (§2.9).
    fn device_problem(&self) -> Option<devices::Problem> {
        let specs = || self.adjusted_specs(&self.limit_ranges());
        self.context.stores.devices.charges(&self.workload, specs).err()
    }

    /// Reports that the devices cannot be counted, or removes that report. Returns true if the
    /// workload is inadmissible for it.
    fn devices(&mut self) -> bool {
        let (gates, now) = (self.context.gates, self.context.now);
        let reported = status::condition(&self.workload, conditions::REQUEUED)
            .is_some_and(|it| it.status == "False" && it.reason == requeue::INADMISSIBLE);
        let Some(problem) = self.device_problem() else {
            if reported {
                conditions::remove(&mut status::status_mut(&mut self.workload).conditions, conditions::REQUEUED);
                let reason = status::unreserved_reason(admission::PENDING_EVALUATION, admission::LEGACY_PENDING, gates);
                status::unset_quota_reservation(&mut self.workload, reason, PENDING_EVALUATION, gates, now);
            }
            return false;
        };
        let reason = status::unreserved_reason(admission::MISCONFIGURED, admission::LEGACY_INADMISSIBLE, gates);
        status::unset_quota_reservation(&mut self.workload, reason, &problem.message, gates, now);
        let (reason, message) = (requeue::INADMISSIBLE, &problem.requeue_message);
        status::set(&mut self.workload, conditions::REQUEUED, false, reason, message, now);
        true
    }

    // -- completion -------------------------------------------------------------------------------

    fn finished(&mut self) {
        let deleting = self.workload.metadata.deletion_timestamp.is_some();
        let owned = controller_of(self.workload.meta()).is_some();
        if deleting && !owned {
            if remove_finalizer(&mut self.workload) {
                self.write();
            }
            return;
        }
        let retention = self.context.config.object_retention_policies.as_ref();
        let Some(after) = retention.and_then(|r| r.workloads.as_ref()).and_then(|w| w.after_finished) else { return };
        let Some(finished) = status::true_condition(&self.workload, conditions::FINISHED) else { return };
        let elapsed = self.context.now.duration_since(finished.last_transition_time.0);
        let elapsed = Duration::try_from(elapsed).unwrap_or_default();
        if elapsed < after {
            return self.plan.requeue_within(after - elapsed);
        }
        if deleting {
            if remove_finalizer(&mut self.workload) {
                self.write();
            }
            return;
        }
        if remove_finalizer(&mut self.workload) {
            self.write();
        }
        self.plan.steps.push(Step::Delete(Box::new(self.workload.clone())));
        self.report(PlannedEvent::normal(events::DELETED, "Deleted finished workload due to elapsed retention"));
    }

    /// Handles a workload without owners. Returns true if the reconcile ends here.
    fn orphaned(&mut self) -> bool {
        if !self.workload.owner_references().is_empty() {
            return false;
        }
        let had_job = self.workload.labels().contains_key(labels::JOB_UID);
        let is_deleting = self.workload.metadata.deletion_timestamp.is_some();
        let finish = had_job && !is_deleting && self.context.gates.on(Gate::FinishOrphanedWorkloads);
        if finish {
            let message = "The workload's owner no longer exists";
            if status::finish(&mut self.workload, finished::OWNER_NOT_FOUND, message, self.context.now) {
                self.write_status();
            }
        }
        if (finish || is_deleting) && remove_finalizer(&mut self.workload) {
            self.write();
            return true;
        }
        finish || is_deleting
    }

    // -- concurrent admission ---------------------------------------------------------------------

    /// In a queue with concurrent admission, marks the workload as parent of variants, which are
    /// queued in its place (§23). Returns true if it was not marked yet.
    fn becomes_parent(&mut self) -> bool {
        let applies = self.context.gates.on(Gate::ConcurrentAdmission)
            && !is_parent(&self.workload)
            && !is_variant(&self.workload)
            && !status::has_quota_reservation(&self.workload);
        let queue = if applies { queue_of(self.context.stores, &self.workload) } else { None };
        if queue.is_none_or(|queue| queue.spec.concurrent_admission_policy.is_none()) {
            return false;
        }
        let label = labels::CONCURRENT_ADMISSION_PARENT.to_owned();
        self.workload.labels_mut().insert(label, "true".to_owned());
        self.write();
        true
    }

    /// True if the workload's variants are queued, hold quota and pass admission checks in its
    /// place.
    fn has_variants(&self) -> bool {
        self.context.gates.on(Gate::ConcurrentAdmission) && is_parent(&self.workload)
    }

    // -- deactivation and requeueing --------------------------------------------------------------

    fn deactivation(&mut self) -> bool {
        let now = self.context.now;
        let target = status::true_condition(&self.workload, conditions::DEACTIVATION_TARGET).cloned();
        if status::is_active(&self.workload) {
            if target.is_none() {
                return false;
            }
            self.workload.spec.active = Some(false);
            self.write();
            return true;
        }
        if status::is_evicted(&self.workload) {
            // Already evicted for another reason; a timer must not requeue a deactivated workload.
            let state = status::status_mut(&mut self.workload);
            if state.requeue_state.take().is_none() {
                return false;
            }
            conditions::remove(&mut state.conditions, conditions::DEACTIVATION_TARGET);
            self.write_status();
            return true;
        }
        let mut message = DEACTIVATED.to_owned();
        let mut cause = String::new();
        if let Some(target) = target {
            message = format!("{message} due to {}", target.message);
            cause = target.reason;
        }
        let admitted = status::is_admitted(&self.workload);
        let eviction = Eviction { reason: eviction::DEACTIVATED, cause: &cause, message: &message };
        status::evict(&mut self.workload, &eviction, self.context.gates, now);
        let state = status::status_mut(&mut self.workload);
        conditions::remove(&mut state.conditions, conditions::DEACTIVATION_TARGET);
        state.requeue_state = None;
        self.write_status();
        if admitted {
            let reason = match cause.is_empty() {
                true => eviction::DEACTIVATED.to_owned(),
                false => format!("{}{cause}", eviction::DEACTIVATED_DUE_TO),
            };
            self.report(PlannedEvent::normal(status::eviction_event(&reason), message));
        }
        true
    }

    /// Ends Requeued=False once its cause no longer exists (§19.3).
    fn requeueing(&mut self) -> bool {
        if !status::is_active(&self.workload) {
            return false;
        }
        let Some(requeued) =
            status::condition(&self.workload, conditions::REQUEUED).filter(|c| c.status == "False").cloned()
        else {
            return self.requeue_timer();
        };
        let (reason, message) = match requeued.reason.as_str() {
            reason if reason.starts_with(eviction::DEACTIVATED) => {
                status::status_mut(&mut self.workload).requeue_state = None;
                (requeue::REACTIVATED, "The workload was reactivated")
            }
            eviction::PODS_READY_TIMEOUT | eviction::ADMISSION_CHECK => {
                if let Some(left) = self.backoff_left() {
                    self.plan.requeue_within(left);
                    return false;
                }
                if let Some(state) = status::status_mut(&mut self.workload).requeue_state.as_mut() {
                    state.requeue_at = None;
                }
                (requeue::BACKOFF_FINISHED, "The workload backoff was finished")
            }
            eviction::CLUSTER_QUEUE_STOPPED => {
                if self.cluster_queue().is_none_or(|queue| stop_policy(queue.spec.stop_policy) != StopPolicy::None) {
                    return false;
                }
                (requeue::CLUSTER_QUEUE_RESTARTED, "The ClusterQueue was restarted after being stopped")
            }
            eviction::LOCAL_QUEUE_STOPPED => {
                if self.local_queue().is_none_or(|queue| stop_policy(queue.spec.stop_policy) != StopPolicy::None) {
                    return false;
                }
                (requeue::LOCAL_QUEUE_RESTARTED, "The LocalQueue was restarted after being stopped")
            }
            _ => return false,
        };
        status::set(&mut self.workload, conditions::REQUEUED, true, reason, message, self.context.now);
        self.write_status();
        true
    }

    /// Ends the back-off of a workload whose manager sets no condition Requeued: the integration of
    /// a job kind that Berth does not know.
    fn requeue_timer(&mut self) -> bool {
        if let Some(left) = self.backoff_left() {
            self.plan.requeue_within(left);
            return false;
        }
        if status::has_quota_reservation(&self.workload) {
            return false;
        }
        let state = self.workload.status.as_mut().and_then(|status| status.requeue_state.as_mut());
        if state.and_then(|state| state.requeue_at.take()).is_none() {
            return false;
        }
        self.write_status();
        true
    }

    fn backoff_left(&self) -> Option<Duration> {
        let state = self.workload.status.as_ref()?.requeue_state.as_ref()?;
        let left = state.requeue_at.as_ref()?.0.duration_since(self.context.now);
        Duration::try_from(left).ok().filter(|left| !left.is_zero())
    }

    // -- queues -----------------------------------------------------------------------------------

    fn local_queue(&self) -> Option<std::sync::Arc<LocalQueue>> {
        let namespace = self.workload.metadata.namespace.as_deref().unwrap_or_default();
        self.context.stores.local_queue(namespace, &self.workload.spec.queue_name)
    }

    fn cluster_queue(&self) -> Option<std::sync::Arc<ClusterQueue>> {
        let admission = self.workload.status.as_ref().and_then(|status| status.admission.as_ref());
        match admission {
            Some(admission) => self.context.stores.cluster_queue(&admission.cluster_queue),
            None => self.context.stores.cluster_queue(&self.local_queue()?.spec.cluster_queue),
        }
    }

    /// Evicts or releases workloads with quota whose queue was stopped or deleted (§21.3).
    fn queue_stopped_or_gone(&mut self) -> bool {
        if !status::has_quota_reservation(&self.workload) || status::is_evicted(&self.workload) {
            return false;
        }
        let local = self.local_queue();
        let cluster = self.cluster_queue();
        let name = self.workload.spec.queue_name.clone();
        let cluster_name = self
            .workload
            .status
            .as_ref()
            .and_then(|status| status.admission.as_ref())
            .map(|admission| admission.cluster_queue.clone())
            .unwrap_or_default();
        if status::is_admitted(&self.workload) {
            let drains = |policy: Option<StopPolicy>| stop_policy(policy) == StopPolicy::HoldAndDrain;
            let (reason, message) = if cluster.as_ref().is_some_and(|queue| drains(queue.spec.stop_policy)) {
                (eviction::CLUSTER_QUEUE_STOPPED, "The ClusterQueue is stopped")
            } else if local.as_ref().is_some_and(|queue| drains(queue.spec.stop_policy)) {
                (eviction::LOCAL_QUEUE_STOPPED, "The LocalQueue is stopped")
            } else {
                return false;
            };
            self.evict(reason, "", message);
            return true;
        }
        // A user made this reservation by hand, without a queue name, so its queues are unknown.
        if name.is_empty() {
            return false;
        }
        // A reservation by hand whose LocalQueue does not exist needs no checks.
        if local.is_none() && self.becomes_admitted() {
            return true;
        }
        let (granular, message) = match (&local, &cluster) {
            (None, _) => (admission::MISCONFIGURED, format!("LocalQueue {name} is terminating or missing")),
            (Some(queue), _) if queue.metadata.deletion_timestamp.is_some() => {
                (admission::MISCONFIGURED, format!("LocalQueue {name} is terminating or missing"))
            }
            (Some(queue), _) if stop_policy(queue.spec.stop_policy) != StopPolicy::None => {
                (admission::SUSPENDED, format!("LocalQueue {name} is stopped"))
            }
            (_, None) => (admission::MISCONFIGURED, format!("ClusterQueue {cluster_name} is terminating or missing")),
            (_, Some(queue)) if queue.metadata.deletion_timestamp.is_some() => {
                (admission::MISCONFIGURED, format!("ClusterQueue {cluster_name} is terminating or missing"))
            }
            (_, Some(queue)) if stop_policy(queue.spec.stop_policy) != StopPolicy::None => {
                (admission::SUSPENDED, format!("ClusterQueue {cluster_name} is stopped"))
            }
            _ => return false,
        };
        self.unset(granular, admission::LEGACY_INADMISSIBLE, &message);
        true
    }

    fn unset(&mut self, granular: &str, legacy: &str, message: &str) {
        let reason = status::unreserved_reason(granular, legacy, self.context.gates);
        if status::unset_quota_reservation(&mut self.workload, reason, message, self.context.gates, self.context.now) {
            self.write_status();
        }
    }

    fn evict(&mut self, reason: &str, cause: &str, message: &str) {
        let eviction = Eviction { reason, cause, message };
        status::evict(&mut self.workload, &eviction, self.context.gates, self.context.now);
        if !status::is_admitted(&self.workload) {
            status::sync_admitted(&mut self.workload, self.context.gates, self.context.now);
        }
        self.write_status();
        self.report(PlannedEvent::normal(status::eviction_event(reason), message));
    }

    // -- gates and checks -------------------------------------------------------------------------

    fn gated_by(&self) -> Option<String> {
        if !self.context.gates.on(Gate::AdmissionGatedBy) {
            return None;
        }
        self.workload.annotations().get(annotations::ADMISSION_GATED_BY).filter(|text| !text.is_empty()).cloned()
    }

    fn admission_gates(&mut self) -> bool {
        if status::is_admitted(&self.workload) || !status::is_active(&self.workload) {
            return false;
        }
        let was_gated = status::condition(&self.workload, conditions::QUOTA_RESERVED)
            .is_some_and(|condition| condition.status == "False" && condition.reason == admission::ADMISSION_GATED);
        match self.gated_by() {
            Some(gates) => {
                let message = format!("Admission is gated by: {gates}");
                self.unset(admission::ADMISSION_GATED, admission::ADMISSION_GATED, &message);
                if !was_gated {
                    self.report(PlannedEvent::normal(
                        events::ADMISSION_GATED,
                        format!("Workload admission is gated by: {gates}"),
                    ));
                }
                true
            }
            None if was_gated && self.context.gates.on(Gate::AdmissionGatedBy) => {
                self.unset(
                    admission::PENDING_EVALUATION,
                    admission::LEGACY_PENDING,
                    "AdmissionGatedBy cleared, waiting for quota reservation",
                );
                let message = "Admission gate cleared, workload is now admissible";
                self.report(PlannedEvent::normal(events::ADMISSION_GATE_CLEARED, message));
                true
            }
            None => false,
        }
    }

    fn checks(&mut self) -> bool {
        let (gates, now) = (self.context.gates, self.context.now);
        if status::is_evicted(&self.workload) || self.has_variants() {
            return false;
        }
        if let Some(queue) = self.cluster_queue()
            && checks::sync_for_queue(&mut self.workload, &queue, now)
        {
            if !status::is_admitted(&self.workload) && status::has_quota_reservation(&self.workload) {
                status::sync_admitted(&mut self.workload, gates, now);
            }
            self.write_status();
            return true;
        }
        if let Some(at) = checks::retry_at(&self.workload)
            && status::set_requeue_state(&mut self.workload, at, false)
        {
            self.write_status();
            return true;
        }
        if !status::has_quota_reservation(&self.workload) {
            return false;
        }
        let rejected = described(&checks::in_state(&self.workload, CheckState::Rejected));
        if let Some((plural, list)) = rejected
            && status::true_condition(&self.workload, conditions::DEACTIVATION_TARGET).is_none()
        {
            let text = format!("AdmissionCheck{plural} in Rejected state: {list}");
            status::set(
                &mut self.workload,
                conditions::DEACTIVATION_TARGET,
                true,
                deactivation::ADMISSION_CHECK,
                &text,
                now,
            );
            if !status::is_admitted(&self.workload) {
                status::sync_admitted(&mut self.workload, gates, now);
            }
            self.write_status();
            self.report(PlannedEvent::warning(events::ADMISSION_CHECK_REJECTED, format!("Deactivated due to {text}")));
            return true;
        }
        if let Some((plural, list)) = described(&checks::in_state(&self.workload, CheckState::Retry)) {
            let message = format!("Evicted due to AdmissionCheck{plural} in Retry state: {list}");
            self.evict(eviction::ADMISSION_CHECK, "", &message);
            return true;
        }
        if self.becomes_admitted() {
            return true;
        }
        if status::sync_admitted(&mut self.workload, gates, now) {
            self.write_status();
            return true;
        }
        false
    }

    /// Admits a workload that holds quota, if all its checks are ready. Returns false if nothing
    /// changes.
    fn becomes_admitted(&mut self) -> bool {
        let (gates, now) = (self.context.gates, self.context.now);
        let mut admitted = self.workload.clone();
        let changes = !status::is_admitted(&admitted) && status::sync_admitted(&mut admitted, gates, now);
        if !changes || !status::is_admitted(&admitted) {
            return false;
        }
        self.workload = admitted;
        self.write_status();
        let queue = self.workload.status.as_ref().and_then(|s| s.admission.as_ref());
        let queue = queue.map(|admission| admission.cluster_queue.clone()).unwrap_or_default();
        let seconds = status::seconds_since_reservation(&self.workload, now);
        let message = format!("Admitted by ClusterQueue {queue}, wait time since reservation was {seconds}s");
        self.report(PlannedEvent::normal(events::ADMITTED, message));
        true
    }

    // -- limits for admitted workloads ------------------------------------------------------------

    fn admitted_limits(&mut self) -> bool {
        // A variant's pods belong to its parent, and the limits apply there.
        let runs = status::is_admitted(&self.workload) && !is_variant(&self.workload);
        if !runs || status::is_evicted(&self.workload) {
            return false;
        }
        self.execution_time() || self.pods_ready()
    }

    fn execution_time(&mut self) -> bool {
        let Some(limit) = self.workload.spec.maximum_execution_time_seconds else { return false };
        if status::true_condition(&self.workload, conditions::DEACTIVATION_TARGET).is_some() {
            return false;
        }
        let left = i64::from(limit) - status::execution_seconds(&self.workload, self.context.now);
        if left > 0 {
            self.plan.requeue_within(Duration::from_secs(left.unsigned_abs()));
            return false;
        }
        let message = "exceeding the maximum execution time";
        status::set(
            &mut self.workload,
            conditions::DEACTIVATION_TARGET,
            true,
            deactivation::MAXIMUM_EXECUTION_TIME_EXCEEDED,
            message,
            self.context.now,
        );
        status::status_mut(&mut self.workload).accumulated_past_execution_time_seconds = None;
        self.write_status();
        let message = format!("The maximum execution time ({limit}s) exceeded");
        self.report(PlannedEvent::warning(events::MAXIMUM_EXECUTION_TIME_EXCEEDED, message));
        true
    }

    fn pods_ready(&mut self) -> bool {
        let Some(config) = self.context.config.pods_ready().cloned() else { return false };
        let timeouts = (Some(config.timeout()), config.recovery_timeout());
        let Some((cause, left)) = not_ready(&self.workload, timeouts.0, timeouts.1, self.context.now) else {
            return false;
        };
        if !left.is_zero() {
            self.plan.requeue_within(left);
            return false;
        }
        let count = self.workload.status.as_ref().and_then(|s| s.requeue_state.as_ref()).and_then(|s| s.count);
        let next = count.unwrap_or(0).saturating_add(1);
        if config.requeuing_strategy.backoff_limit_count.is_some_and(|limit| next > limit) {
            let message = "exceeding the maximum number of re-queuing retries";
            if status::set(
                &mut self.workload,
                conditions::DEACTIVATION_TARGET,
                true,
                deactivation::REQUEUING_LIMIT_EXCEEDED,
                message,
                self.context.now,
            ) {
                self.write_status();
            }
            return true;
        }
        let mut delay = backoff(&config, next);
        if cause == pods_ready::WAIT_FOR_START && self.can_use_another_flavor() {
            delay = Duration::ZERO;
        }
        if let Ok(at) = self.context.now.checked_add(SignedDuration::try_from(delay).unwrap_or(SignedDuration::MAX)) {
            status::set_requeue_state(&mut self.workload, at, true);
        }
        let key = berth_runtime::ObjectKey::of(&self.workload);
        self.evict(eviction::PODS_READY_TIMEOUT, cause, &format!("Exceeded the PodsReady timeout {key}"));
        true
    }

    /// True if cool-down is on, and the workload's queue has another flavor than those on which its
    /// pods did not start.
    fn can_use_another_flavor(&self) -> bool {
        let stores = self.context.stores;
        let is_cooling = |name: &str| stores.flavor(name).is_none_or(|flavor| cool_down::until(&flavor).is_some());
        let failed = cool_down::not_started(&self.workload, "").flavors;
        self.context.config.flavor_cool_down.is_some()
            && self.cluster_queue().is_some_and(|queue| cool_down::has_alternative(&queue, &failed, is_cooling))
    }

    // -- workloads without quota ------------------------------------------------------------------

    /// Sets the reason for missing quota, unless the scheduler has set one (§22, precedence).
    fn unreserved(&mut self) {
        let (gates, now) = (self.context.gates, self.context.now);
        let before = self.workload.clone();
        self.drop_withdrawn_admission();
        self.preemption_gates();
        let observability = gates.on(Gate::UnadmittedWorkloadsObservability);
        let known = status::condition(&self.workload, conditions::QUOTA_RESERVED).cloned();
        let evicted_for_deactivation = status::true_condition(&self.workload, conditions::EVICTED)
            .is_some_and(|condition| condition.reason.starts_with(eviction::DEACTIVATED));
        if !status::is_active(&self.workload) {
            // The condition Evicted has the cause.
            if evicted_for_deactivation && observability {
                status::unset_quota_reservation(&mut self.workload, admission::DEACTIVATED, DEACTIVATED, gates, now);
            }
        } else if status::is_on_hold(&self.workload) {
            // The pod integration sets and clears OnHold.
        } else if self.devices() {
            // Its devices cannot be counted.
        } else if let Some((granular, message)) = self.queue_problem() {
            let reason = status::unreserved_reason(granular, admission::LEGACY_INADMISSIBLE, gates);
            status::unset_quota_reservation(&mut self.workload, reason, &message, gates, now);
        } else if let Some(message) = self.inadmissible().filter(|_| observability) {
            status::unset_quota_reservation(&mut self.workload, admission::MISCONFIGURED, &message, gates, now);
        } else if let Some(known) = known {
            let stale = match known.reason.as_str() {
                admission::MISCONFIGURED => is_own_message(&known.message),
                admission::SUSPENDED | admission::LEGACY_INADMISSIBLE | admission::DEACTIVATED => true,
                admission::LEGACY_PENDING => observability,
                _ => false,
            };
            if stale {
                let reason = status::unreserved_reason(admission::PENDING_EVALUATION, admission::LEGACY_PENDING, gates);
                status::unset_quota_reservation(&mut self.workload, reason, PENDING_EVALUATION, gates, now);
            } else {
                status::sync_admitted(&mut self.workload, gates, now);
            }
        } else if gates.on(Gate::UnadmittedWorkloadsExplicitStatus) && observability {
            status::unset_quota_reservation(
                &mut self.workload,
                admission::PENDING_EVALUATION,
                PENDING_EVALUATION,
                gates,
                now,
            );
        }
        if self.workload != before {
            self.write_status();
        }
    }

    /// Drops an admission whose reservation another manager has set to False. A manager that
    /// applied an admission by server-side apply owns fewer of its fields once the scheduler has
    /// written it.
    fn drop_withdrawn_admission(&mut self) {
        let withdrawn = status::condition(&self.workload, conditions::QUOTA_RESERVED)
            .is_some_and(|condition| condition.status == "False");
        if withdrawn && let Some(status) = self.workload.status.as_mut() {
            status.admission = None;
        }
    }

    fn queue_problem(&self) -> Option<(&'static str, String)> {
        let name = &self.workload.spec.queue_name;
        let Some(local) = self.local_queue() else {
            // A workload without a queue waits until one is set.
            return (!name.is_empty()).then(|| (admission::MISCONFIGURED, format!("LocalQueue {name} doesn't exist")));
        };
        if stop_policy(local.spec.stop_policy) != StopPolicy::None {
            return Some((admission::SUSPENDED, format!("LocalQueue {name} is inactive")));
        }
        let cluster_name = &local.spec.cluster_queue;
        let Some(cluster) = self.context.stores.cluster_queue(cluster_name) else {
            return Some((admission::MISCONFIGURED, format!("ClusterQueue {cluster_name} doesn't exist")));
        };
        let conditions = cluster.status.as_ref().map_or(&[][..], |status| &status.conditions);
        let active = conditions::is_true(conditions, conditions::ACTIVE);
        if !active || stop_policy(cluster.spec.stop_policy) != StopPolicy::None {
            return Some((admission::SUSPENDED, format!("ClusterQueue {cluster_name} is inactive")));
        }
        None
    }

    /// Why the queue can never admit the workload in its current form (§2.8). Reported here because
    /// the scheduler may never evaluate the workload.
    fn inadmissible(&self) -> Option<String> {
        let stores = self.context.stores;
        let queue = self.cluster_queue()?;
        let namespace = self.workload.metadata.namespace.as_deref().unwrap_or_default();
        let Some(labels) = stores.namespace_labels(namespace) else {
            return Some(format!("workload namespace {namespace:?} does not exist"));
        };
        if !queue.spec.namespace_selector.as_ref().is_some_and(|selector| selector::matches(selector, &labels)) {
            return Some("workload namespace doesn't match ClusterQueue selector".to_owned());
        }
        let ranges = self.limit_ranges();
        validate::problem(&self.adjusted_specs(&ranges), &ranges)
    }

    /// LimitRanges of the workload's namespace.
    fn limit_ranges(&self) -> Vec<LimitRange> {
        let namespace = self.workload.metadata.namespace.as_deref().unwrap_or_default();
        let ranges = self.context.stores.limit_ranges.list_namespace(namespace);
        ranges.iter().map(|range| (**range).clone()).collect()
    }

    /// The pods of the workload's pod sets, with the requests that limits and LimitRanges imply.
    fn adjusted_specs(&self, ranges: &[LimitRange]) -> Vec<PodSpec> {
        let empty = PodSpec::default();
        let templates = self.workload.spec.pod_sets.iter().map(|set| set.template.spec.as_ref().unwrap_or(&empty));
        templates.map(|spec| adjust(spec, None, ranges)).collect()
    }

    /// Keeps one state per preemption gate of the spec; new gates are closed.
    fn preemption_gates(&mut self) {
        let gates = self.context.gates;
        if !gates.on(Gate::MultiKueueOrchestratedPreemption) && !gates.on(Gate::ConcurrentAdmission) {
            return;
        }
        let names: Vec<String> = self.workload.spec.preemption_gates.iter().map(|gate| gate.name.clone()).collect();
        let known = self.workload.status.as_ref().map(|status| status.preemption_gates.clone()).unwrap_or_default();
        let wanted: Vec<PreemptionGateState> = names
            .iter()
            .map(|name| {
                known.iter().find(|state| state.name == *name).cloned().unwrap_or_else(|| PreemptionGateState {
                    name: name.clone(),
                    position: GatePosition::Closed,
                    last_transition_time: Time(self.context.now),
                })
            })
            .collect();
        if wanted != known {
            status::status_mut(&mut self.workload).preemption_gates = wanted;
        }
    }
}

/// True for messages about causes that this controller evaluates too, which therefore end when it
/// finds none of them.
fn is_own_message(message: &str) -> bool {
    let of_queue = (message.starts_with("LocalQueue ") || message.starts_with("ClusterQueue "))
        && (message.ends_with("doesn't exist")
            || message.ends_with("is terminating or missing")
            || message.ends_with("not found"));
    let of_workload = ["workload namespace ", validate::INVALID, validate::BEYOND_LIMIT_RANGES];
    of_queue || of_workload.iter().any(|start| message.starts_with(start))
}

/// Formats checks as `"a" (message); "b"`, together with the plural ending for the list.
fn described(checks: &[&berth_api::kueue::v1beta2::AdmissionCheckState]) -> Option<(&'static str, String)> {
    if checks.is_empty() {
        return None;
    }
    let one = |check: &&berth_api::kueue::v1beta2::AdmissionCheckState| match check.message.is_empty() {
        true => format!("{:?}", check.name),
        false => format!("{:?} ({})", check.name, check.message),
    };
    let plural = if checks.len() > 1 { "s" } else { "" };
    Some((plural, checks.iter().map(one).collect::<Vec<_>>().join("; ")))
}

fn stop_policy(policy: Option<StopPolicy>) -> StopPolicy {
    policy.unwrap_or(StopPolicy::None)
}

/// For an admitted workload whose pods are not ready: the underlying cause, and the time left until
/// the eviction (§20.3). `None` if no limit applies.
pub fn not_ready(
    workload: &Workload,
    timeout: Option<Duration>,
    recovery_timeout: Option<Duration>,
    now: Timestamp,
) -> Option<(&'static str, Duration)> {
    let admitted = status::true_condition(workload, conditions::ADMITTED)?;
    let ready = status::condition(workload, conditions::PODS_READY);
    if ready.is_some_and(|condition| condition.status == "True") {
        return None;
    }
    let (cause, limit, since) = match ready.filter(|condition| condition.reason == pods_ready::WAIT_FOR_RECOVERY) {
        Some(condition) => (pods_ready::WAIT_FOR_RECOVERY, recovery_timeout?, condition.last_transition_time.0),
        None => (pods_ready::WAIT_FOR_START, timeout?, admitted.last_transition_time.0),
    };
    let elapsed = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    Some((cause, limit.saturating_sub(elapsed)))
}

/// Backoff before the n-th requeue after a PodsReady timeout: the base, doubled each time, up to
/// the maximum.
pub fn backoff(config: &WaitForPodsReady, count: i32) -> Duration {
    let seconds = |value: i32| u64::from(u32::try_from(value).unwrap_or(0));
    let base = seconds(config.requeuing_strategy.backoff_base_seconds);
    let max = seconds(config.requeuing_strategy.backoff_max_seconds);
    let doublings = u32::try_from(count.saturating_sub(1)).unwrap_or(0);
    let factor = 1u64.checked_shl(doublings).filter(|_| doublings < 63).unwrap_or(u64::MAX);
    Duration::from_secs(base.saturating_mul(factor).min(max))
}
