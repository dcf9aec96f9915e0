//! Plans one step of a Job: from the Job, its pods and the time, the pods to create and to delete,
//! the status to write, and the events to record. The functions are pure.
//!
//! Counting is exactly-once across crashes. A pod has a finalizer until it is counted, in three
//! writes. First the status lists the UID of the terminated pod as uncounted; for an indexed
//! success, its index in `completedIndexes` is enough. Then the finalizer is removed. Then the UID
//! moves from the list to the counter. [`plan`] prepares the first two writes,
//! [`Plan::counted_status`] the third. Each can be repeated after a crash without counting a pod
//! twice. A step that finishes the Job needs no list: a finished Job is never counted again, so the
//! last counts are written with the terminal condition ([`Plan::final_status`]), and the finalizers
//! are removed afterwards.
//!
//! Not done here: adopting and releasing pods, and validating Jobs (the API server does).
//!
//! Sources: Kubernetes documentation "Jobs"; KEP-2307 (tracking without lingering pods), KEP-3850
//! (backoff limit per index), KEP-3939 (pod replacement policy), KEP-3329, KEP-3998.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_api::pod::node_of;
use berth_runtime::{PlannedEvent, stamp};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus};
use k8s_openapi::api::core::v1::Pod;

use super::backoff::{self, Backoff};
use super::facts::{
    self, INDEX_FAILURE_COUNT, INDEX_IGNORED_FAILURE_COUNT, completion_index, finish_time, has_condition, is_active,
    is_failed, is_indexed, is_suspended, is_terminating, is_tracked, job_spec, number_annotation, phase,
    replaces_only_failed_pods, true_condition, uid, valid_index,
};
use super::indexes::IndexSet;
use super::pods::{IndexFailures, build_pod};
use super::policy::{PodFailure, match_pod_failure_policy, match_success_policy};

/// Maximum number of pods created or deleted in one step, so that a large Job does not delay other
/// Jobs too long.
pub const PODS_PER_STEP_MAX: usize = 500;
/// Maximum number of pods counted in one step: keeps the UIDs in the status under 20 KB.
pub const UNCOUNTED_MAX: usize = 500;

/// A pod to be deleted.
#[derive(Clone, Debug)]
pub struct Removal {
    /// The pod.
    pub pod: Arc<Pod>,
    /// True to remove the tracking finalizer first, so that the deletion does not count as a
    /// failure.
    pub forget: bool,
}

/// The planned writes; the module's documentation describes their order.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Pods to create.
    pub create: Vec<Pod>,
    /// Pods to delete.
    pub remove: Vec<Removal>,
    /// The status to write before any finalizer is removed, if it differs from the current one.
    pub status: JobStatus,
    /// Pods whose tracking finalizer is removed after `status` is written.
    pub release: Vec<Arc<Pod>>,
    /// Events to record, in order.
    pub events: Vec<PlannedEvent>,
    /// Time after which to reconcile again even if no object changes.
    pub requeue_after: Option<Duration>,
    /// The back-off record to keep once `status` is written.
    pub backoff: Backoff,
    /// The terminal condition to set once all pods are counted and none terminates.
    finish: Option<JobCondition>,
    /// UIDs of the pods that have the finalizer before this step.
    tracked: BTreeSet<String>,
    /// True if more pods terminated than one step counts.
    is_capped: bool,
}

/// The inputs of a step, and the facts derived from them.
struct Step<'a> {
    job: &'a Job,
    pods: &'a [Arc<Pod>],
    now: Timestamp,
    /// `spec.completions`, zero when absent.
    completions: u32,
    /// Pods that are neither terminated nor deleted.
    active: Vec<Arc<Pod>>,
    /// Number of pods that are deleted but not terminated.
    terminating: usize,
    /// UIDs that the status lists as uncounted successes.
    uncounted_succeeded: BTreeSet<String>,
    /// UIDs that the status lists as uncounted failures.
    uncounted_failed: BTreeSet<String>,
    /// Indexes that succeeded according to the status.
    prior_succeeded: IndexSet,
    /// `prior_succeeded` and the indexes of succeeded pods that are not counted yet.
    succeeded_indexes: IndexSet,
    /// Indexes that failed permanently; `None` without `backoffLimitPerIndex`.
    failed_indexes: Option<IndexSet>,
    /// Per index without an active pod, the last failed pod. It keeps its finalizer because its
    /// annotations hold the index's failure count, which the replacement needs.
    failure_carriers: BTreeMap<u32, Arc<Pod>>,
    /// Number of successes, counted and uncounted.
    succeeded: i64,
    /// Number of failures, counted and uncounted.
    failed: i64,
}

/// Plans one step of an unfinished Job that this controller manages. `pods` are the pods that the
/// Job controls, in name order; `record` is its back-off record.
pub fn plan(job: &Job, pods: &[Arc<Pod>], record: Backoff, now: Timestamp) -> Plan {
    let mut step = Step::new(job, pods, now);
    let mut plan = Plan { status: job.status.clone().unwrap_or_default(), ..Plan::default() };
    let newly_terminated = step.newly_terminated();
    let waiting = record.after(&newly_terminated.succeeded, &newly_terminated.failed);
    step.failed += newly_terminated.counted_failures;
    if !is_indexed(job) {
        step.succeeded += newly_terminated.succeeded.len() as i64;
    }
    if plan.status.start_time.is_none() && !is_suspended(job) {
        plan.status.start_time = Some(stamp(now));
    }
    let start_time = plan.status.start_time.clone();
    let mut finish = step.interim_condition(start_time.as_ref().map(|at| at.0), &mut plan);

    // Delete the pods of a finishing Job; create or delete pods of any other.
    let mut active = step.active.len();
    let mut ready = step.active.iter().filter(|pod| has_condition(pod, "Ready")).count();
    if finish.is_some() {
        let removals = step.active.iter().map(|pod| Removal { pod: pod.clone(), forget: false });
        plan.remove = removals.collect();
    } else {
        if !is_deleted_job(job) {
            step.manage_pods(&waiting, &mut plan);
        }
        active = active + plan.create.len() - plan.remove.len();
        let complete = match job_spec(job).completions {
            // A work queue is complete after the first success, once no worker is active.
            None => step.succeeded > 0 && active == 0,
            Some(completions) => step.succeeded >= i64::from(completions) && active == 0,
        };
        if complete {
            finish = Some(condition(
                "SuccessCriteriaMet",
                "CompletionsReached",
                "Reached expected number of succeeded pods",
                now,
            ));
        } else if !is_deleted_job(job) {
            step.update_suspended_condition(&mut plan);
        }
        active = step.active.len();
    }
    active -= plan.remove.len();
    ready -= plan.remove.iter().filter(|removal| has_condition(&removal.pod, "Ready")).count();
    plan.status.active = count(active + plan.create.len());
    plan.status.ready = Some(to_i32(ready));
    plan.status.terminating = Some(to_i32(step.terminating + plan.remove.len()));
    step.count(finish, record, &mut plan);
    plan
}

/// Pods that terminated since the status was written.
struct NewlyTerminated {
    /// Finish times of the succeeded pods.
    succeeded: Vec<Timestamp>,
    /// Finish times of the failed pods.
    failed: Vec<Timestamp>,
    /// Number of the failures that count towards the backoff limit.
    counted_failures: i64,
}

impl<'a> Step<'a> {
    fn new(job: &'a Job, pods: &'a [Arc<Pod>], now: Timestamp) -> Self {
        let spec = job_spec(job);
        let status = job.status.clone().unwrap_or_default();
        let completions = spec.completions.and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
        let uncounted = status.uncounted_terminated_pods.unwrap_or_default();
        let uncounted_succeeded: BTreeSet<_> = uncounted.succeeded.into_iter().flatten().collect();
        let uncounted_failed: BTreeSet<_> = uncounted.failed.into_iter().flatten().collect();
        let mut step = Step {
            job,
            pods,
            now,
            completions,
            active: pods.iter().filter(|pod| is_active(pod)).cloned().collect(),
            terminating: pods.iter().filter(|pod| is_terminating(pod)).count(),
            succeeded: i64::from(status.succeeded.unwrap_or(0)) + uncounted_succeeded.len() as i64,
            failed: i64::from(status.failed.unwrap_or(0)) + uncounted_failed.len() as i64,
            uncounted_succeeded,
            uncounted_failed,
            prior_succeeded: IndexSet::default(),
            succeeded_indexes: IndexSet::default(),
            failed_indexes: None,
            failure_carriers: BTreeMap::new(),
        };
        if is_indexed(job) {
            step.prior_succeeded = IndexSet::parse(status.completed_indexes.as_deref().unwrap_or(""), completions);
            let ended = pods.iter().filter(|pod| phase(pod) == "Succeeded" && is_tracked(pod));
            let new: BTreeSet<u32> = ended.filter_map(|pod| valid_index(pod, completions)).collect();
            step.succeeded_indexes = step.prior_succeeded.union(&new);
            step.succeeded = step.succeeded_indexes.len() as i64;
            if let Some(limit) = spec.backoff_limit_per_index {
                step.find_failed_indexes(status.failed_indexes.as_deref().unwrap_or(""), limit);
            }
        }
        step
    }

    /// Sets `failed_indexes` and `carriers`. `prior` is `status.failedIndexes`, `limit` is
    /// `backoffLimitPerIndex`.
    fn find_failed_indexes(&mut self, prior: &str, limit: i32) {
        let prior = IndexSet::parse(prior, self.completions);
        let mut new = BTreeSet::new();
        let mut last: BTreeMap<u32, &Arc<Pod>> = BTreeMap::new();
        for pod in self.pods.iter().filter(|pod| is_tracked(pod) && is_failed(pod, self.job)) {
            let Some(index) = valid_index(pod, self.completions) else { continue };
            let exhausted = i64::from(number_annotation(pod, INDEX_FAILURE_COUNT).unwrap_or(0)) >= i64::from(limit);
            match match_pod_failure_policy(self.job, pod) {
                PodFailure::FailIndex => _ = new.insert(index),
                PodFailure::Count | PodFailure::FailJob(_) if exhausted => _ = new.insert(index),
                _ => {}
            }
            let slot = last.entry(index).or_insert(pod);
            if all_failures(slot) <= all_failures(pod) {
                *slot = pod;
            }
        }
        let failed = prior.union(&new);
        let busy: BTreeSet<u32> = self.active.iter().filter_map(|pod| completion_index(pod)).collect();
        self.failure_carriers = last
            .into_iter()
            .filter(|(index, _)| {
                !failed.contains(*index) && !self.succeeded_indexes.contains(*index) && !busy.contains(index)
            })
            .map(|(index, pod)| (index, pod.clone()))
            .collect();
        self.failed_indexes = Some(failed);
    }

    /// True if the pod's index is below the Job's completions, or the Job is not indexed.
    fn has_valid_index(&self, pod: &Pod) -> bool {
        !is_indexed(self.job) || valid_index(pod, self.completions).is_some()
    }

    fn newly_terminated(&self) -> NewlyTerminated {
        let mut ends = NewlyTerminated { succeeded: Vec::new(), failed: Vec::new(), counted_failures: 0 };
        for pod in self.pods.iter().filter(|pod| is_tracked(pod) && self.has_valid_index(pod)) {
            if phase(pod) == "Succeeded" {
                if !self.uncounted_succeeded.contains(uid(pod)) {
                    ends.succeeded.push(finish_time(pod, self.now));
                }
            } else if is_failed(pod, self.job) && !self.uncounted_failed.contains(uid(pod)) {
                ends.failed.push(finish_time(pod, self.now));
                if match_pod_failure_policy(self.job, pod) != PodFailure::Ignore {
                    ends.counted_failures += 1;
                }
            }
        }
        ends
    }

    /// The interim condition of a Job that will finish: FailureTarget or SuccessCriteriaMet. `None`
    /// if the Job continues.
    fn interim_condition(&self, start: Option<Timestamp>, plan: &mut Plan) -> Option<JobCondition> {
        let spec = job_spec(self.job);
        // An earlier step may have decided already.
        if let Some(met) = true_condition(self.job, "SuccessCriteriaMet") {
            return Some(met.clone());
        }
        if let Some(target) = true_condition(self.job, "FailureTarget") {
            return Some(target.clone());
        }
        let fail = |reason: &str, message: &str| Some(condition("FailureTarget", reason, message, self.now));
        let failing = self.pods.iter().filter(|pod| is_failed(pod, self.job));
        let fatal = failing.map(|pod| match_pod_failure_policy(self.job, pod)).find_map(|judgement| match judgement {
            PodFailure::FailJob(message) => Some(message),
            _ => None,
        });
        if let Some(message) = fatal {
            return fail("PodFailurePolicy", &message);
        }
        // With a limit per index, the whole Job has no limit by default.
        let default_limit = if spec.backoff_limit_per_index.is_some() { i32::MAX } else { 6 };
        let limit = i64::from(spec.backoff_limit.unwrap_or(default_limit));
        if self.failed > limit || self.restarts_exceed(limit) {
            return fail("BackoffLimitExceeded", "Job has reached the specified backoff limit");
        }
        if let (Some(seconds), Some(start), false) = (spec.active_deadline_seconds, start, is_suspended(self.job)) {
            let elapsed = self.now.duration_since(start);
            let allowed = jiff::SignedDuration::from_secs(seconds);
            if elapsed >= allowed {
                return fail("DeadlineExceeded", "Job was active longer than specified deadline");
            }
            plan.requeue_within(Duration::try_from(allowed - elapsed).unwrap_or_default());
        }
        if let Some(failed) = &self.failed_indexes {
            let (failed, total) = (failed.len() as i64, (failed.len() + self.succeeded_indexes.len()) as i64);
            if spec.max_failed_indexes.is_some_and(|max| failed > i64::from(max)) {
                let message = "Job has exceeded the specified maximal number of failed indexes";
                return fail("MaxFailedIndexesExceeded", message);
            }
            if failed > 0 && total >= i64::from(self.completions) {
                return fail("FailedIndexes", "Job has failed indexes");
            }
        }
        let policy = spec.success_policy.as_ref().filter(|_| is_indexed(self.job))?;
        let message = match_success_policy(policy, self.completions, &self.succeeded_indexes)?;
        Some(condition("SuccessCriteriaMet", "SuccessPolicy", &message, self.now))
    }

    /// True if the container restarts reach the backoff limit. They count only for restart policy
    /// OnFailure.
    fn restarts_exceed(&self, limit: i64) -> bool {
        let template = &job_spec(self.job).template;
        if template.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()) != Some("OnFailure") {
            return false;
        }
        let running = self.pods.iter().filter(|pod| matches!(phase(pod), "Running" | "Pending"));
        let restarts: i64 =
            running.flat_map(|pod| facts::container_statuses(pod)).map(|status| i64::from(status.restart_count)).sum();
        if limit == 0 { restarts > 0 } else { restarts >= limit }
    }

    /// Plans the creation or deletion of pods, never both in one step, to reach the desired number.
    fn manage_pods(&self, waiting: &Backoff, plan: &mut Plan) {
        let spec = job_spec(self.job);
        let forget = |pod: &Arc<Pod>| Removal { pod: pod.clone(), forget: true };
        if is_suspended(self.job) {
            plan.remove = self.active.iter().map(forget).collect();
            return;
        }
        let active = self.active.len();
        let parallelism = spec.parallelism.map_or(1, |n| usize::try_from(n).unwrap_or(0));
        let wanted = match spec.completions {
            None if self.succeeded > 0 => active,
            None => parallelism,
            Some(completions) => {
                let left = i64::from(completions) - self.succeeded;
                usize::try_from(left).unwrap_or(0).min(parallelism)
            }
        };
        // Too many pods, or pods of duplicate or invalid indexes: delete those first.
        let surplus = self.surplus(active.saturating_sub(wanted));
        if !surplus.is_empty() {
            plan.remove = surplus.iter().take(PODS_PER_STEP_MAX).map(forget).collect();
            return;
        }
        let leaving = if replaces_only_failed_pods(self.job) { self.terminating } else { 0 };
        let lacking = wanted.saturating_sub(leaving + active).min(PODS_PER_STEP_MAX);
        if lacking == 0 {
            return;
        }
        if self.failed_indexes.is_none() {
            let wait = waiting.remaining(self.now);
            if !wait.is_zero() {
                plan.requeue_within(wait);
                return;
            }
        }
        if !is_indexed(self.job) {
            plan.create = (0..lacking).map(|_| build_pod(self.job, None, None)).collect();
            return;
        }
        // With a limit per index, each index has its own back-off.
        for index in self.pending_indexes(lacking) {
            let failures = match (&self.failed_indexes, self.failure_carriers.get(&index)) {
                (None, _) => None,
                (Some(_), None) => Some(IndexFailures::default()),
                (Some(_), Some(previous)) => {
                    let times = u32::try_from(all_failures(previous) + 1).unwrap_or(u32::MAX);
                    let wait = backoff::remaining(times, finish_time(previous, self.now), self.now);
                    if !wait.is_zero() {
                        plan.requeue_within(wait);
                        continue;
                    }
                    Some(self.failures_after(previous))
                }
            };
            plan.create.push(build_pod(self.job, Some(index), failures));
        }
    }

    /// The failure counts of an index including the failure of `previous`.
    fn failures_after(&self, previous: &Pod) -> IndexFailures {
        let mut failures = IndexFailures {
            counted: number_annotation(previous, INDEX_FAILURE_COUNT).unwrap_or(0),
            ignored: number_annotation(previous, INDEX_IGNORED_FAILURE_COUNT).unwrap_or(0),
        };
        let slot = match match_pod_failure_policy(self.job, previous) {
            PodFailure::Ignore => &mut failures.ignored,
            _ => &mut failures.counted,
        };
        *slot = slot.saturating_add(1);
        failures
    }

    /// The lowest `count` indexes that have not succeeded, have not failed and have no pod.
    fn pending_indexes(&self, count: usize) -> Vec<u32> {
        let mut taken: BTreeSet<u32> = self.active.iter().filter_map(|pod| completion_index(pod)).collect();
        if replaces_only_failed_pods(self.job) {
            let leaving = self.pods.iter().filter(|pod| is_terminating(pod));
            taken.extend(leaving.filter_map(|pod| completion_index(pod)));
        }
        let settled = match &self.failed_indexes {
            Some(failed) => self.succeeded_indexes.union_set(failed),
            None => self.succeeded_indexes.clone(),
        };
        settled.union(&taken).first_missing(count, self.completions)
    }

    /// Active pods to delete: duplicates of an index, pods without a valid index, and further pods
    /// until there are `at_least`, in the order of [`deletion_rank`].
    fn surplus(&self, at_least: usize) -> Vec<Arc<Pod>> {
        let mut surplus = Vec::new();
        let mut left: Vec<Arc<Pod>> = Vec::new();
        if is_indexed(self.job) {
            let mut by_index: BTreeMap<Option<u32>, Vec<Arc<Pod>>> = BTreeMap::new();
            for pod in &self.active {
                by_index.entry(valid_index(pod, self.completions)).or_default().push(pod.clone());
            }
            for (index, mut pods) in by_index {
                pods.sort_by_cached_key(|pod| deletion_rank(pod));
                match (index, pods.pop()) {
                    (Some(_), Some(kept)) => {
                        left.push(kept);
                        surplus.append(&mut pods);
                    }
                    (None, last) => {
                        surplus.append(&mut pods);
                        surplus.extend(last);
                    }
                    (Some(_), None) => {}
                }
            }
        } else {
            left = self.active.clone();
        }
        if surplus.len() < at_least {
            left.sort_by_cached_key(|pod| deletion_rank(pod));
            surplus.extend(left.into_iter().take(at_least - surplus.len()));
        }
        surplus
    }

    /// Updates the condition Suspended.
    fn update_suspended_condition(&self, plan: &mut Plan) {
        let (status, reason, message, event) = if is_suspended(self.job) {
            ("True", "JobSuspended", "Job suspended", "Suspended")
        } else {
            ("False", "JobResumed", "Job resumed", "Resumed")
        };
        let new = JobCondition { status: status.into(), ..condition("Suspended", reason, message, self.now) };
        let conditions = plan.status.conditions.as_mut();
        let known = conditions.and_then(|list| list.iter_mut().find(|condition| condition.type_ == "Suspended"));
        match known {
            Some(known) if known.status == status => return,
            Some(known) => *known = new,
            // A Job that was never suspended does not have the condition.
            None if status == "False" => return,
            None => plan.status.conditions.get_or_insert_default().push(new),
        }
        if status == "False" {
            // `activeDeadlineSeconds` counts from the resumption.
            plan.status.start_time = Some(stamp(self.now));
        }
        plan.event(false, event, message);
    }

    /// Puts the terminated pods into the status, and plans the removal of their finalizers.
    fn count(&self, finish: Option<JobCondition>, record: Backoff, plan: &mut Plan) {
        let indexed = is_indexed(self.job);
        let fails_rest = finish.as_ref().is_some_and(|finish| finish.type_ == "FailureTarget");
        let mut uncounted = plan.status.uncounted_terminated_pods.take().unwrap_or_default();
        let mut succeeded = uncounted.succeeded.take().unwrap_or_default();
        let mut failed = uncounted.failed.take().unwrap_or_default();
        plan.tracked = self.pods.iter().filter(|pod| is_tracked(pod)).map(|pod| uid(pod).to_owned()).collect();
        // An earlier step may have removed finalizers and crashed before its last write.
        settle_counts(&mut plan.status, &mut succeeded, &mut failed, &plan.tracked);

        let forgotten: BTreeSet<&str> =
            plan.remove.iter().filter(|removal| removal.forget).map(|removal| uid(&removal.pod)).collect();
        let mut pods: Vec<&Arc<Pod>> = self.pods.iter().filter(|pod| is_tracked(pod)).collect();
        if indexed {
            // In index order, so that `completedIndexes` of a capped step stays short.
            pods.sort_by_key(|pod| completion_index(pod));
        }
        let mut new_indexes = BTreeSet::new();
        let (mut ends_succeeded, mut ends_failed) = (Vec::new(), Vec::new());
        for pod in pods {
            let is_failed = is_failed(pod, self.job);
            if forgotten.contains(uid(pod)) || !self.may_release(pod, is_failed, finish.is_some()) {
                continue;
            }
            plan.release.push(pod.clone());
            let is_new = !self.uncounted_failed.contains(uid(pod)) && !self.uncounted_succeeded.contains(uid(pod));
            if phase(pod) == "Succeeded" && !self.uncounted_failed.contains(uid(pod)) {
                if is_new {
                    ends_succeeded.push(finish_time(pod, self.now));
                }
                match valid_index(pod, self.completions) {
                    Some(index) if indexed && !self.prior_succeeded.contains(index) => _ = new_indexes.insert(index),
                    _ if !indexed && is_new => succeeded.push(uid(pod).to_owned()),
                    _ => {}
                }
            } else if (is_failed || fails_rest) && is_new && self.has_valid_index(pod) {
                if is_failed {
                    ends_failed.push(finish_time(pod, self.now));
                }
                if match_pod_failure_policy(self.job, pod) != PodFailure::Ignore {
                    failed.push(uid(pod).to_owned());
                }
            }
            if new_indexes.len() + succeeded.len() + failed.len() >= UNCOUNTED_MAX {
                plan.is_capped = true;
                break;
            }
        }
        plan.backoff = record.after(&ends_succeeded, &ends_failed);
        if indexed {
            let set = self.prior_succeeded.union(&new_indexes);
            plan.status.succeeded = count(set.len());
            plan.status.completed_indexes = (!set.is_empty()).then(|| set.to_string());
            plan.status.failed_indexes = self.failed_indexes.as_ref().map(IndexSet::to_string);
        }
        uncounted.succeeded = (!succeeded.is_empty()).then_some(succeeded);
        uncounted.failed = (!failed.is_empty()).then_some(failed);
        plan.status.uncounted_terminated_pods = Some(uncounted);
        if let Some(interim) = finish {
            let terminal = if interim.type_ == "FailureTarget" { "Failed" } else { "Complete" };
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            plan.finish = Some(condition(terminal, &text(&interim.reason), &text(&interim.message), self.now));
            let conditions = plan.status.conditions.get_or_insert_default();
            if !conditions.iter().any(|known| known.type_ == interim.type_ && known.status == "True") {
                conditions.push(interim);
            }
        }
    }

    /// True if the pod's finalizer may be removed in this step.
    fn may_release(&self, pod: &Arc<Pod>, is_failed: bool, is_finishing: bool) -> bool {
        if is_deleted_job(self.job) || is_finishing || phase(pod) == "Succeeded" {
            return true;
        }
        let carries = completion_index(pod).and_then(|index| self.failure_carriers.get(&index));
        is_failed && carries.is_none_or(|carrier| uid(carrier) != uid(pod))
    }
}

impl Plan {
    /// The final status of a Job that this step finishes, to be written before the finalizers are
    /// removed. `None` if the Job does not finish, or if pods must still be created or deleted.
    pub fn final_status(&mut self, now: Timestamp) -> Option<JobStatus> {
        if self.finish.is_none() || !self.remove.is_empty() || !self.create.is_empty() {
            return None;
        }
        let mut tracked = self.tracked.clone();
        for pod in &self.release {
            tracked.remove(uid(pod));
        }
        let settled = self.counted_status(self.status.clone(), &tracked, now);
        self.finish.is_none().then_some(settled)
    }

    /// The status after the finalizers of all pods but `still_tracked` (UIDs) are removed:
    /// uncounted pods are counted, and the Job finishes if none is left. `status` is the last
    /// written status.
    pub fn counted_status(
        &mut self,
        mut status: JobStatus,
        still_tracked: &BTreeSet<String>,
        now: Timestamp,
    ) -> JobStatus {
        let mut uncounted = status.uncounted_terminated_pods.take().unwrap_or_default();
        let mut succeeded = uncounted.succeeded.take().unwrap_or_default();
        let mut failed = uncounted.failed.take().unwrap_or_default();
        settle_counts(&mut status, &mut succeeded, &mut failed, still_tracked);
        let all_counted = succeeded.is_empty() && failed.is_empty();
        uncounted.succeeded = (!succeeded.is_empty()).then_some(succeeded);
        uncounted.failed = (!failed.is_empty()).then_some(failed);
        status.uncounted_terminated_pods = Some(uncounted);
        let none_terminating = status.terminating.unwrap_or(0) == 0;
        if let Some(terminal) = self.finish.take_if(|_| all_counted && none_terminating && !self.is_capped) {
            let terminal =
                JobCondition { last_probe_time: Some(stamp(now)), last_transition_time: Some(stamp(now)), ..terminal };
            let reason = terminal.reason.clone().unwrap_or_default();
            let message = terminal.message.clone().unwrap_or_default();
            if terminal.type_ == "Complete" {
                status.completion_time = Some(stamp(now));
                self.event(false, "Completed", "Job completed");
            } else {
                self.event(true, &reason, &message);
            }
            status.conditions.get_or_insert_default().push(terminal);
        }
        status
    }

    /// UIDs of the Job's pods that have the finalizer before this step.
    pub fn tracked(&self) -> &BTreeSet<String> {
        &self.tracked
    }

    /// Reconciles again after this time at the latest.
    fn requeue_within(&mut self, after: Duration) {
        self.requeue_after = Some(self.requeue_after.map_or(after, |known| known.min(after)));
    }

    fn event(&mut self, is_warning: bool, reason: &str, message: &str) {
        self.events.push(PlannedEvent::with_warning(is_warning, reason, message));
    }
}

/// Moves the UIDs of pods without the finalizer from the lists into the counters.
fn settle_counts(
    status: &mut JobStatus,
    succeeded: &mut Vec<String>,
    failed: &mut Vec<String>,
    tracked: &BTreeSet<String>,
) {
    for (list, counter) in [(succeeded, &mut status.succeeded), (failed, &mut status.failed)] {
        let before = list.len();
        list.retain(|uid| tracked.contains(uid));
        let counted = to_i32(before - list.len());
        if counted > 0 {
            *counter = Some(counter.unwrap_or(0).saturating_add(counted));
        }
    }
}

/// Number of earlier failures of this pod's index, counted and ignored.
fn all_failures(pod: &Pod) -> u64 {
    let number = |key| u64::from(number_annotation(pod, key).unwrap_or(0));
    number(INDEX_FAILURE_COUNT) + number(INDEX_IGNORED_FAILURE_COUNT)
}

/// Sort key for the deletion of active pods, first to be deleted first: pods without a node, not
/// running, not ready, younger. The name breaks ties.
fn deletion_rank(pod: &Pod) -> (bool, u8, bool, std::cmp::Reverse<Option<Timestamp>>, String) {
    let is_assigned = node_of(pod).is_some();
    let phase = match phase(pod) {
        "Running" => 2,
        "Unknown" => 1,
        _ => 0,
    };
    let created = pod.metadata.creation_timestamp.as_ref().map(|at| at.0);
    (is_assigned, phase, has_condition(pod, "Ready"), std::cmp::Reverse(created), facts::name(pod).to_owned())
}

fn is_deleted_job(job: &Job) -> bool {
    job.metadata.deletion_timestamp.is_some()
}

fn condition(type_: &str, reason: &str, message: &str, now: Timestamp) -> JobCondition {
    JobCondition {
        type_: type_.into(),
        status: "True".into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
        last_probe_time: Some(stamp(now)),
        last_transition_time: Some(stamp(now)),
    }
}

/// The value of a counter in the status: `None` for zero.
fn count(number: usize) -> Option<i32> {
    (number > 0).then(|| to_i32(number))
}

fn to_i32(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
