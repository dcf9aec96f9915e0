//! Plans one step of an MPIJob: from the job, its objects and the time, the writes, the new status
//! and the events. Pure.
//!
//! Source: `pkg/controller` of Kubeflow's MPI operator 0.8.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::scheduling::PodGroupSpec;
use berth_runtime::{PlannedEvent, stamp};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use kube::ResourceExt;

use super::objects::{self, Facts, PRIVATE_KEY, PUBLIC_KEY};
use super::types::Spec;
use crate::training::conditions::types::{CREATED, FAILED, RUNNING, SUCCEEDED, SUSPENDED};
use crate::training::conditions::{Condition, JobStatus, Operator, ReplicaStatus};
use crate::training::gang::{self, Members};
use crate::training::objects::labels;
use crate::training::plan::{is_terminating, phase};
use crate::training::types::{CleanPodPolicy, SchedulingPolicy};

/// Replica types in the status.
const LAUNCHER: &str = "Launcher";
const WORKER: &str = "Worker";
/// Maximum length of a message in the status, in bytes.
const MESSAGE_BYTES_MAX: usize = 1024;
/// Maximum number of workers that one step creates. The next step creates more.
const CREATE_MAX: usize = 500;

/// What a step depends on, beside the job and its status.
#[derive(Clone, Copy, Debug)]
pub struct World<'a> {
    /// The launcher Job, if the job controls it.
    pub launcher: Option<&'a Job>,
    /// Pods of the launcher Job, ordered by name.
    pub launcher_pods: &'a [Arc<Pod>],
    /// Worker pods that the job controls, ordered by name.
    pub workers: &'a [Arc<Pod>],
    /// The Service, if the job controls it.
    pub service: Option<&'a Service>,
    /// The ConfigMap, if the job controls it.
    pub config: Option<&'a ConfigMap>,
    /// The Secret, if the job controls it.
    pub secret: Option<&'a Secret>,
    /// Values of priority classes by name.
    pub priorities: &'a BTreeMap<String, i32>,
    /// The time.
    pub now: Timestamp,
}

/// What to do about an object that must exist.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Ensure<T> {
    /// Nothing.
    #[default]
    Nothing,
    /// Create it.
    Create(Box<T>),
    /// Replace it.
    Replace(Box<T>),
}

/// The change of a launcher Job.
#[derive(Clone, Debug, PartialEq)]
pub struct LauncherChange {
    /// The changed Job.
    pub job: Job,
    /// True if the start time of its status must be removed before.
    pub resets_start: bool,
}

/// The next writes for a job, in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The Service.
    pub service: Ensure<Service>,
    /// The ConfigMap.
    pub config: Ensure<ConfigMap>,
    /// True if a Secret with new keys is needed.
    pub needs_keys: bool,
    /// The PodGroup that must exist; `None`: none may exist.
    pub pod_group: Option<PodGroupSpec>,
    /// True if the PodGroup is left as it is.
    pub keeps_pod_group: bool,
    /// Workers to delete.
    pub delete_workers: Vec<Arc<Pod>>,
    /// Workers to create.
    pub create_workers: Vec<Pod>,
    /// The launcher Job to create.
    pub create_launcher: Option<Box<Job>>,
    /// The change of the launcher Job.
    pub change_launcher: Option<Box<LauncherChange>>,
    /// The new status.
    pub status: JobStatus,
    /// Events.
    pub events: Vec<PlannedEvent>,
}

/// Plans the next step of a valid job with this stored status.
pub fn plan(facts: &Facts<'_>, stored: &JobStatus, world: &World<'_>) -> Plan {
    let plan = Plan { status: stored.clone(), ..Plan::default() };
    let mut step = Step { facts, spec: facts.spec, world, plan };
    if stored.conditions.is_empty() {
        let message = format!("MPIJob {} is created.", step.key());
        step.report(CREATED, true, "MPIJobCreated", &message);
    }
    if stored.is_finished() && stored.completion_time.is_some() {
        step.clean_up();
    } else {
        step.run();
    }
    step.plan
}

/// The condition of a launcher Job that is true.
fn true_condition<'a>(job: &'a Job, type_: &str) -> Option<&'a JobCondition> {
    let conditions = job.status.as_ref()?.conditions.iter().flatten();
    conditions.into_iter().find(|it| it.type_ == type_ && it.status == "True")
}

fn is_suspended(launcher: &Job) -> bool {
    launcher.spec.as_ref().and_then(|spec| spec.suspend) == Some(true)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|it| it.type_ == "Ready" && it.status == "True")
}

fn pod_reason(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.reason.as_deref()).unwrap_or_default()
}

/// At most [`MESSAGE_BYTES_MAX`] bytes of a text.
fn truncated(mut text: String) -> String {
    if text.len() > MESSAGE_BYTES_MAX {
        let mut end = MESSAGE_BYTES_MAX - 3;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push_str("...");
    }
    text
}

struct Step<'a> {
    facts: &'a Facts<'a>,
    spec: &'a Spec,
    world: &'a World<'a>,
    plan: Plan,
}

impl Step<'_> {
    fn key(&self) -> String {
        format!("{}/{}", self.facts.namespace(), self.facts.name())
    }

    /// Sets a condition. Returns true if that is a change.
    fn set(&mut self, type_: &str, is_true: bool, reason: &str, message: &str) -> bool {
        self.plan.status.set(Operator::Mpi, self.world.now, type_, is_true, reason, message)
    }

    /// Sets a condition, with an event if that is a change.
    fn report(&mut self, type_: &str, is_true: bool, reason: &str, message: &str) -> bool {
        let is_change = self.set(type_, is_true, reason, message);
        if is_change {
            let is_warning = type_ == FAILED;
            let (reason, message) = (reason.to_owned(), message.to_owned());
            self.plan.events.push(PlannedEvent::with_warning(is_warning, reason, message));
        }
        is_change
    }

    /// The job has ended: deletes workers as the policy says.
    fn clean_up(&mut self) {
        if self.spec.clean_pod_policy == CleanPodPolicy::None {
            self.plan.keeps_pod_group = true;
            return;
        }
        self.delete_workers();
        self.plan.status.replica_statuses.insert(WORKER.to_owned(), ReplicaStatus::default());
    }

    fn delete_workers(&mut self) {
        let keeps_ended = self.spec.clean_pod_policy == CleanPodPolicy::Running;
        let stays = |pod: &Pod| keeps_ended && matches!(phase(pod), "Succeeded" | "Failed");
        let goes = |pod: &&Arc<Pod>| !is_terminating(pod) && !stays(pod);
        self.plan.delete_workers.extend(self.world.workers.iter().filter(goes).cloned());
    }

    fn run(&mut self) {
        let is_suspended = self.spec.is_suspended();
        if self.plan.status.start_time.is_none() && !is_suspended {
            self.plan.status.start_time = Some(stamp(self.world.now));
        }
        let ended = |launcher: &Job| ["Complete", "Failed"].iter().any(|it| true_condition(launcher, it).is_some());
        let is_done = self.world.launcher.is_some_and(ended);
        let workers = if is_done { Vec::new() } else { self.make() };
        self.plan.keeps_pod_group = is_done;
        let ready = workers.iter().filter(|pod| is_ready(pod)).count();
        let all_ready = !is_suspended && ready >= usize::try_from(self.spec.workers()).unwrap_or(usize::MAX);
        let may_start = !self.spec.waits_for_workers || all_ready;
        match self.world.launcher {
            Some(launcher) => self.align(launcher, may_start),
            None if !is_done && may_start => self.make_launcher(),
            None => {}
        }
        if is_suspended {
            self.delete_workers();
        }
        self.conclude(&workers);
    }

    /// Makes what the pods need, and the workers. Returns those that exist.
    fn make(&mut self) -> Vec<Arc<Pod>> {
        self.plan.service = match self.world.service {
            None => Ensure::Create(Box::new(objects::service(self.facts))),
            Some(known) => retargeted(known, objects::service(self.facts)),
        };
        let running = self.world.workers.iter().filter(|pod| phase(pod) == "Running");
        let running: Vec<String> = running.map(|pod| pod.name_any()).collect();
        let config = objects::config(self.facts, &running);
        self.plan.config = match self.world.config {
            None => Ensure::Create(Box::new(config)),
            Some(known) if known.data != config.data => {
                Ensure::Replace(Box::new(ConfigMap { data: config.data, ..known.clone() }))
            }
            Some(_) => Ensure::Nothing,
        };
        let keys = self.world.secret.and_then(|secret| secret.data.as_ref());
        self.plan.needs_keys = keys.is_none_or(|data| data.keys().ne([PRIVATE_KEY, PUBLIC_KEY]));
        if self.spec.is_suspended() {
            return Vec::new();
        }
        self.plan.pod_group = self.pod_group();
        self.make_workers()
    }

    fn make_workers(&mut self) -> Vec<Arc<Pod>> {
        let Some(replica) = &self.spec.worker else { return Vec::new() };
        let wanted: Vec<String> = (0..replica.count).map(|index| self.facts.worker_name(index)).collect();
        let (kept, surplus): (Vec<_>, Vec<_>) =
            self.world.workers.iter().cloned().partition(|pod| wanted.contains(&pod.name_any()));
        self.plan.delete_workers.extend(surplus.into_iter().filter(|pod| !is_terminating(pod)));
        let known: Vec<String> = kept.iter().map(|pod| pod.name_any()).collect();
        let missing = (0..replica.count).filter(|index| !known.contains(&self.facts.worker_name(*index)));
        let missing = missing.take(CREATE_MAX).map(|index| objects::worker(self.facts, replica, index));
        self.plan.create_workers = missing.collect();
        kept
    }

    fn pod_group(&self) -> Option<PodGroupSpec> {
        self.facts.gang_scheduler?;
        let replicas = [Some(&self.spec.launcher), self.spec.worker.as_ref()];
        let members = replicas.into_iter().flatten().map(|replica| {
            let class = replica.template.spec.as_ref().and_then(|pod| pod.priority_class_name.as_ref());
            let priority = class.and_then(|name| self.world.priorities.get(name)).copied().unwrap_or_default();
            Members { count: replica.count, template: &replica.template, priority }
        });
        let members: Vec<_> = members.collect();
        let given = self.spec.run_policy.scheduling_policy.clone().unwrap_or_default();
        let timeout = given.schedule_timeout_seconds.or(Some(0));
        let policy = SchedulingPolicy { schedule_timeout_seconds: timeout, ..given };
        Some(gang::group(&members, Some(&policy)))
    }

    fn make_launcher(&mut self) {
        if objects::sets_restart_policy(self.spec) {
            let message = "Restart policy in pod template overridden by restart policy in replica spec";
            self.plan.events.push(PlannedEvent::warning("SetPodTemplateRestartPolicy", message));
        }
        self.plan.create_launcher = Some(Box::new(objects::launcher(self.facts)));
    }

    /// Suspends the launcher with the job, and resumes it with the job if it may start.
    fn align(&mut self, launcher: &Job, may_start: bool) {
        let change = match (self.spec.is_suspended(), is_suspended(launcher)) {
            (false, true) if may_start => LauncherChange {
                job: objects::resumed(self.facts, launcher),
                resets_start: launcher.status.as_ref().is_some_and(|status| status.start_time.is_some()),
            },
            (true, false) => {
                let mut job = launcher.clone();
                job.spec.get_or_insert_default().suspend = Some(true);
                LauncherChange { job, resets_start: false }
            }
            _ => return,
        };
        self.plan.change_launcher = Some(Box::new(change));
    }

    /// Sets counts and conditions.
    fn conclude(&mut self, workers: &[Arc<Pod>]) {
        if self.spec.is_suspended() {
            self.report(SUSPENDED, true, "MPIJobSuspended", "MPIJob suspended");
        } else if self.plan.status.condition(SUSPENDED).is_some()
            && self.report(SUSPENDED, false, "MPIJobResumed", "MPIJob resumed")
        {
            self.plan.status.start_time = Some(stamp(self.world.now));
        }
        let running_launchers = self.world.launcher_pods.iter().filter(|pod| phase(pod) == "Running").count();
        if let Some(launcher) = self.world.launcher {
            self.conclude_launcher(launcher, running_launchers);
        }
        let count = |of: &str| {
            let pods = workers.iter().filter(|pod| phase(pod) == of).count();
            i32::try_from(pods).unwrap_or(i32::MAX)
        };
        let (active, succeeded, failed) = (count("Running"), count("Succeeded"), count("Failed"));
        let counts = ReplicaStatus { active, succeeded, failed, selector: String::new() };
        self.plan.status.replica_statuses.insert(WORKER.to_owned(), counts);
        let evicted = workers.iter().filter(|pod| phase(pod) == "Failed" && pod_reason(pod) == "Evicted").count();
        if evicted > 0 {
            let message = format!("{evicted}/{} workers are evicted", workers.len());
            self.report(FAILED, true, "MPIJobEvicted", &message);
        }
        let all_run = active == self.spec.workers();
        self.conclude_running(self.world.launcher.is_some() && running_launchers > 0 && all_run);
    }

    fn conclude_running(&mut self, runs: bool) {
        let key = self.key();
        if self.spec.is_suspended() {
            self.set(RUNNING, false, "MPIJobSuspended", &format!("MPIJob {key} is suspended."));
        } else if self.plan.status.is_finished() {
            if self.plan.status.condition(RUNNING).is_none() {
                // The job ended before it was seen to run.
                let ended = self.plan.status.completion_time.clone().unwrap_or_else(|| stamp(self.world.now));
                self.plan.status.conditions.push(Condition {
                    r#type: RUNNING.to_owned(),
                    status: "False".to_owned(),
                    reason: "MPIJobRunning".to_owned(),
                    message: format!("MPIJob {key} is finished but Running condition was never set."),
                    last_update_time: Some(ended.clone()),
                    last_transition_time: Some(ended),
                });
            }
        } else if runs {
            self.report(RUNNING, true, "MPIJobRunning", &format!("MPIJob {key} is running."));
        }
    }

    fn conclude_launcher(&mut self, launcher: &Job, running: usize) {
        let failed = launcher.status.as_ref().and_then(|status| status.failed).unwrap_or_default();
        let mut counts = ReplicaStatus { failed, ..ReplicaStatus::default() };
        if true_condition(launcher, "Complete").is_some() {
            counts.succeeded = 1;
            let message = format!("MPIJob {} successfully completed.", self.key());
            if self.plan.status.completion_time.is_none() {
                let ended = launcher.status.as_ref().and_then(|status| status.completion_time.clone());
                self.plan.status.completion_time = Some(ended.unwrap_or_else(|| stamp(self.world.now)));
            }
            self.report(SUCCEEDED, true, "MPIJobSucceeded", &message);
        } else if let Some(condition) = true_condition(launcher, "Failed") {
            let (reason, message) = self.why_failed(condition);
            self.plan.status.completion_time.get_or_insert(stamp(self.world.now));
            self.report(FAILED, true, &reason, &message);
        } else {
            counts.active = i32::try_from(running).unwrap_or(i32::MAX);
        }
        self.plan.status.replica_statuses.insert(LAUNCHER.to_owned(), counts);
    }

    /// Reason and message of a failed launcher, with those of its last pod.
    fn why_failed(&self, condition: &JobCondition) -> (String, String) {
        let text = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let mut reason = text(&condition.reason).unwrap_or_else(|| "MPIJobFailed".to_owned());
        let mut message = text(&condition.message).unwrap_or_else(|| format!("MPIJob {} has failed", self.key()));
        let failed = self.world.launcher_pods.iter().filter(|pod| phase(pod) == "Failed");
        let created = |pod: &&Arc<Pod>| pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        if reason == "BackoffLimitExceeded"
            && let Some(pod) = failed.max_by_key(created)
        {
            let why = pod.status.as_ref().and_then(|status| status.message.as_deref()).unwrap_or_default();
            reason = format!("{reason}/{}", pod_reason(pod));
            message = truncated(format!("{message}: {why}"));
        }
        (reason, message)
    }
}

/// The Service with the selector that the job needs now.
fn retargeted(known: &Service, wanted: Service) -> Ensure<Service> {
    let parts = |service: &Service| {
        let spec = service.spec.clone().unwrap_or_default();
        (spec.selector, spec.publish_not_ready_addresses.unwrap_or_default())
    };
    if parts(known) == parts(&wanted) {
        return Ensure::Nothing;
    }
    let (mut changed, wanted) = (known.clone(), wanted.spec.unwrap_or_default());
    let spec = changed.spec.get_or_insert_default();
    spec.selector = wanted.selector;
    spec.publish_not_ready_addresses = wanted.publish_not_ready_addresses;
    Ensure::Replace(Box::new(changed))
}

/// True if the pod is a worker.
pub fn is_worker(pod: &Pod) -> bool {
    pod.labels().get(labels::ROLE).is_some_and(|role| role == "worker")
}
