//! Plans one step of a JobSet: from the set, its jobs and the time, the jobs to create, delete,
//! suspend and resume, and the status to write. Pure.
//!
//! The order follows the life of a set. A finished set only cleans up. Jobs of earlier attempts are
//! deleted. Failures are evaluated before successes. Then the service, the claims and missing jobs
//! are created, and jobs are suspended or resumed.

use berth_runtime::{PlannedEvent, condition};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::jobset::constants::{
    ALL_JOBS_COMPLETED, COMPLETED, JOBS_READY, REPLICATED_JOB_NAME, RESTARTING, RESUME_JOBS, STARTUP_POLICY_COMPLETED,
    STARTUP_POLICY_IN_PROGRESS, SUSPENDED, SUSPENDED_JOBS,
};
use berth_api::jobset::v1alpha2::{JobSet, JobSetStatus, ReplicatedJob, ReplicatedJobStatus};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::children::{Children, label, replicated_job_statuses};
use super::conditions::{finished_condition, set_condition, true_condition};
use super::construct::{build_job, is_suspended, missing_jobs, service, volume_claims};
use super::failure::{Outcome, apply_failure_policy};
use super::gates::Gates;
use super::in_place;
use super::names::{job_name, replicas, set_name};
use super::policies::{dependencies_reached, has_started, is_in_order, successes, successes_needed, time_left};
use crate::job::facts;

/// Condition, reason and message while replicated jobs wait for earlier ones.
const IN_PROGRESS: (&str, &str, &str) =
    (STARTUP_POLICY_IN_PROGRESS, "InOrderStartupPolicyInProgress", "in order startup policy is in progress");
/// Condition, reason and message once the last replicated job has started.
const STARTED: (&str, &str, &str) =
    (STARTUP_POLICY_COMPLETED, "InOrderStartupPolicyCompleted", "in order startup policy has completed");

/// A job to resume.
#[derive(Clone, Debug)]
pub struct Resume {
    /// The suspended job. If it has a start time, the start time is removed first: the API server
    /// treats the template of a started job as immutable.
    pub job: Arc<Job>,
    /// The job to write.
    pub changed: Job,
}

/// The next writes, in the order of the fields.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Jobs to delete, after their pods.
    pub delete: Vec<Arc<Job>>,
    /// The headless service to create if it does not exist.
    pub service: Option<Service>,
    /// Claims to create if they do not exist.
    pub claims: Vec<PersistentVolumeClaim>,
    /// Jobs to create, without owner.
    pub create: Vec<Job>,
    /// Jobs to change: suspended or resized.
    pub update: Vec<Job>,
    /// Jobs to resume.
    pub resume: Vec<Resume>,
    /// The status to write, if it differs.
    pub status: JobSetStatus,
    /// Events, in order.
    pub events: Vec<PlannedEvent>,
    /// Time after which to reconcile again even if no object changes.
    pub again_after: Option<Duration>,
    /// True if the set's time to live has ended, so that it is deleted.
    pub delete_set: bool,
}

/// Plans one step of a set that this controller manages and that is not being deleted. `jobs` are
/// the jobs that it controls, `pods` its pods, which only the in-place restart strategy reads.
pub fn plan(set: &JobSet, jobs: &[Arc<Job>], pods: &[Arc<Pod>], gates: Gates, now: Timestamp) -> Plan {
    let children = Children::of(set, jobs.iter().cloned(), gates);
    let mut plan = Plan { status: set.status.clone().unwrap_or_default(), ..Plan::default() };
    plan.status.replicated_jobs_status = replicated_job_statuses(set, &children, gates);
    if finished_condition(set.status.as_ref()).is_some() {
        // Jobs that are already being deleted need no second delete.
        plan.delete = not_going(&children.active);
        match time_left(set, now) {
            Ok(Some(Duration::ZERO)) => plan.delete_set = true,
            Ok(left) => plan.again_after = left,
            // Another client wrote a status without a time: the set is kept.
            Err(_) => {}
        }
        return plan;
    }
    plan.delete = not_going(&children.previous);
    plan.note_restart_over(set, now);
    if !children.failed.is_empty() {
        let outcome = apply_failure_policy(set, &mut plan.status, &children.failed, now);
        plan.tell_failure(outcome);
        return plan;
    }
    if !children.successful.is_empty() {
        let policy = set.spec.success_policy.as_ref();
        if successes(policy, children.successful.iter().map(Arc::as_ref)) >= successes_needed(set) {
            let (reason, message) = ALL_JOBS_COMPLETED;
            plan.status.terminal_state = COMPLETED.to_owned();
            plan.set(false, condition(COMPLETED, true, reason, message, now));
            // Other jobs are deleted when the finished set is reconciled next.
            return plan;
        }
    }
    if gates.in_place_restart && in_place::is_in_place(set) {
        let pods: Vec<&Pod> = pods.iter().map(Arc::as_ref).collect();
        match in_place::reconcile(set, &mut plan.status, &pods, now) {
            Ok(in_place::Verdict::Failed(outcome)) => {
                plan.tell_failure(outcome);
                return plan;
            }
            Ok(_) => {}
            Err(error) => plan.events.push(PlannedEvent::warning("InPlaceRestartFailed", error.to_string())),
        }
    }
    plan.service = service(set);
    plan.claims = volume_claims(set);
    plan.make_jobs(set, &children, gates, now);
    if is_suspended(set) {
        plan.hold(&children, now);
    } else {
        plan.let_go(set, &children, gates, now);
    }
    plan.update.extend(resized_jobs(set, &children.active, gates));
    plan
}

impl Plan {
    /// Plans missing jobs. If the replicated jobs start in order, only those of the first one that
    /// has not started are planned.
    fn make_jobs(&mut self, set: &JobSet, children: &Children, gates: Gates, now: Timestamp) {
        let in_order = is_in_order(set.spec.startup_policy.as_ref()) && !is_suspended(set);
        let replica_counts: BTreeMap<String, i32> =
            set.spec.replicated_jobs.iter().map(|entry| (entry.name.clone(), replicas(entry))).collect();
        for entry in &set.spec.replicated_jobs {
            let status = self.status_of(entry);
            if in_order && has_started(replicas(entry), status) {
                continue;
            }
            if !dependencies_reached(entry, &replica_counts, &self.status.replicated_jobs_status) {
                continue;
            }
            self.create.extend(missing_jobs(set, entry, children, gates));
            if in_order {
                let (type_, reason, message) = IN_PROGRESS;
                self.set(false, condition(type_, true, reason, message, now));
                return;
            }
        }
        if in_order {
            let (type_, reason, message) = STARTED;
            self.set(false, condition(type_, true, reason, message, now));
        }
    }

    fn hold(&mut self, children: &Children, now: Timestamp) {
        for job in children.active.iter().filter(|job| !facts::is_suspended(job)) {
            let mut held = job.as_ref().clone();
            held.spec.get_or_insert_default().suspend = Some(true);
            self.update.push(held);
        }
        let (reason, message) = SUSPENDED_JOBS;
        self.set(false, condition(SUSPENDED, true, reason, message, now));
    }

    fn let_go(&mut self, set: &JobSet, children: &Children, gates: Gates, now: Timestamp) {
        let in_order = is_in_order(set.spec.startup_policy.as_ref());
        let replica_counts: BTreeMap<String, i32> =
            set.spec.replicated_jobs.iter().map(|entry| (entry.name.clone(), replicas(entry))).collect();
        let mut held: BTreeMap<&str, Vec<&Arc<Job>>> = BTreeMap::new();
        for job in children.active.iter().filter(|job| facts::is_suspended(job)) {
            held.entry(label(job, REPLICATED_JOB_NAME).unwrap_or_default()).or_default().push(job);
        }
        for entry in &set.spec.replicated_jobs {
            if in_order && has_started(replicas(entry), self.status_of(entry)) {
                continue;
            }
            if !dependencies_reached(entry, &replica_counts, &self.status.replicated_jobs_status) {
                continue;
            }
            for job in held.remove(entry.name.as_str()).into_iter().flatten() {
                self.resume.push(Resume { job: job.clone(), changed: resumed(set, entry, job, gates) });
            }
            if in_order {
                break;
            }
        }
        let (reason, message) = RESUME_JOBS;
        self.set(false, condition(SUSPENDED, false, reason, message, now));
    }

    /// Ends the restart once every replicated job has started again.
    fn note_restart_over(&mut self, set: &JobSet, now: Timestamp) {
        let all_started =
            set.spec.replicated_jobs.iter().all(|entry| has_started(replicas(entry), self.status_of(entry)));
        if all_started && true_condition(Some(&self.status), RESTARTING).is_some() {
            self.set(false, condition(RESTARTING, false, JOBS_READY, "all jobs are ready after the restart", now));
        }
    }

    fn status_of(&self, entry: &ReplicatedJob) -> Option<&ReplicatedJobStatus> {
        self.status.replicated_jobs_status.iter().find(|status| status.name == entry.name)
    }

    /// Sets a condition; a change is reported as an event.
    fn set(&mut self, is_warning: bool, new: Condition) {
        if set_condition(&mut self.status, new.clone()) {
            self.events.push(PlannedEvent::with_warning(is_warning, new.reason, new.message));
        }
    }

    fn tell_failure(&mut self, outcome: Outcome) {
        let event = outcome.condition.map(|condition| (condition.reason, condition.message)).or(outcome.event);
        self.events.extend(event.map(|(reason, message)| PlannedEvent::warning(reason, message)));
    }
}

/// The job as it must run. Since the job was created, a queueing system may have added labels, node
/// selectors, tolerations and gates to the set's template, in order to place the pods.
///
/// Upstream only adds to the job's node selector and tolerations. A set that was moved to a flavor
/// with different label keys could then never be scheduled. Here they follow the template.
fn resumed(set: &JobSet, entry: &ReplicatedJob, job: &Job, gates: Gates) -> Job {
    let mut changed = job.clone();
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let index = (0..replicas(entry)).find(|index| job_name(set_name(set), &entry.name, *index) == name);
    let fresh = build_job(set, entry, index.unwrap_or(0), gates).spec.unwrap_or_default().template;
    let spec = changed.spec.get_or_insert_default();
    let fresh_meta = fresh.metadata.unwrap_or_default();
    let meta = spec.template.metadata.get_or_insert_default();
    if let Some(labels) = fresh_meta.labels {
        meta.labels.get_or_insert_default().extend(labels);
    }
    if let Some(annotations) = fresh_meta.annotations {
        meta.annotations.get_or_insert_default().extend(annotations);
    }
    let fresh = fresh.spec.unwrap_or_default();
    let pod = spec.template.spec.get_or_insert_default();
    pod.node_selector = fresh.node_selector;
    pod.tolerations = fresh.tolerations;
    pod.scheduling_gates = fresh.scheduling_gates;
    spec.suspend = Some(false);
    if let Some(status) = &mut changed.status {
        status.start_time = None;
    }
    changed
}

/// The active jobs of an elastic set that was resized, with the parallelism and completions of the
/// set's template. These are jobs in which both values differ from the template: a change of only
/// one of the two is not a valid resize.
pub fn resized_jobs(set: &JobSet, active: &[Arc<Job>], gates: Gates) -> Vec<Job> {
    let mut resized = Vec::new();
    for job in active.iter().filter(|_| gates.elastic_jobset) {
        let entry = label(job, REPLICATED_JOB_NAME);
        let entry = set.spec.replicated_jobs.iter().find(|known| Some(known.name.as_str()) == entry);
        let Some(wanted) = entry.and_then(|entry| entry.template.spec.as_ref()) else { continue };
        let spec = facts::job_spec(job);
        let differs = |wanted: Option<i32>, present: Option<i32>| wanted.is_some() && wanted != present;
        if differs(wanted.parallelism, spec.parallelism) && differs(wanted.completions, spec.completions) {
            let mut job = job.as_ref().clone();
            let spec = job.spec.get_or_insert_default();
            spec.parallelism = wanted.parallelism;
            spec.completions = wanted.completions;
            resized.push(job);
        }
    }
    resized
}

fn not_going(jobs: &[Arc<Job>]) -> Vec<Arc<Job>> {
    jobs.iter().filter(|job| job.metadata.deletion_timestamp.is_none()).cloned().collect()
}
