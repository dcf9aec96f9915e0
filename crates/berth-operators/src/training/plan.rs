//! Plans one step of a training job: from the job, its pods and Services, and the time, the writes,
//! the new status and the events. Pure.
//!
//! Source: `pkg/controller.v1/common` of Kubeflow's training operator 1.9.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::scheduling::PodGroupSpec;
use berth_runtime::{PlannedEvent, stamp};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{Pod, PodStatus, Service};
use kube::ResourceExt;

use super::conditions::types::{CREATED, FAILED, RESTARTING, RUNNING, SUCCEEDED, SUSPENDED};
use super::conditions::{JobStatus, Operator, ReplicaStatus};
use super::gang::{self, Members};
use super::objects::{self, labels};
use super::outcome::{self, Seen};
use super::types::{CleanPodPolicy, Job, Replica, RestartPolicy};

/// Maximum number of pods, and of Services, that one step creates. The next step creates more.
const CREATE_MAX: usize = 500;
/// Exit codes from here on are of signals: the failure may be temporary.
const RETRYABLE_EXIT_CODE: i32 = 128;

/// What a step depends on, beside the job and its status.
#[derive(Clone, Copy, Debug)]
pub struct World<'a> {
    /// The pods that the job controls, ordered by name.
    pub pods: &'a [Arc<Pod>],
    /// The Services that the job controls, ordered by name.
    pub services: &'a [Arc<Service>],
    /// The scheduler that starts all pods together.
    pub gang_scheduler: Option<&'a str>,
    /// Values of priority classes by name.
    pub priorities: &'a BTreeMap<String, i32>,
    /// The time.
    pub now: Timestamp,
}

/// The next writes for a job, in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Pods to delete.
    pub delete_pods: Vec<Arc<Pod>>,
    /// Services to delete.
    pub delete_services: Vec<Arc<Service>>,
    /// The PodGroup that must exist; `None`: none may exist.
    pub pod_group: Option<PodGroupSpec>,
    /// Services to create.
    pub create_services: Vec<Service>,
    /// Pods to create.
    pub create_pods: Vec<Pod>,
    /// The autoscaler that must exist; `None`: none may exist.
    pub autoscaler: Option<HorizontalPodAutoscaler>,
    /// The new status.
    pub status: JobStatus,
    /// Events about what this step has changed.
    pub events: Vec<PlannedEvent>,
    /// Events about the state of pods, which are the same in each step until the pods change.
    pub abnormal: Vec<PlannedEvent>,
    /// Why a pod cannot be built.
    pub broken: Option<String>,
    /// True if the job is deleted.
    pub delete_job: bool,
    /// Time after which to plan again at the latest.
    pub after: Option<Duration>,
}

/// Plans the next step of a job with this stored status.
pub fn plan(job: &Job<'_>, stored: &JobStatus, world: &World<'_>) -> Plan {
    let plan = Plan { status: stored.clone(), ..Plan::default() };
    let mut step = Step { job, stored, world, plan };
    let created = format!("{} {} is created.", job.framework.kind, job.name());
    if stored.condition(CREATED).is_none() {
        step.set(CREATED, true, CREATED, &created);
    }
    if stored.is_finished() {
        step.clean_up();
    } else if job.spec.is_suspended() {
        step.suspend();
    } else {
        step.resume();
        match step.exceeded_limit() {
            Some(message) => step.fail_at_limit(&message),
            None => step.run(),
        }
    }
    step.plan
}

/// Phase of a pod.
pub(crate) fn phase(pod: &Pod) -> &str {
    status(pod).and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn status(pod: &Pod) -> Option<&PodStatus> {
    pod.status.as_ref()
}

/// True if the pod is being deleted.
pub(crate) fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Value of a label, empty without it.
fn label<'a>(metadata: &'a kube::api::ObjectMeta, key: &str) -> &'a str {
    metadata.labels.as_ref().and_then(|labels| labels.get(key)).map_or("", String::as_str)
}

/// Index of a pod or Service in its type.
fn index(metadata: &kube::api::ObjectMeta) -> Option<i32> {
    label(metadata, labels::INDEX).parse().ok()
}

/// Exit code of the container that trains, if it has ended.
fn exit_code(job: &Job<'_>, pod: &Pod) -> Option<i32> {
    let containers = status(pod)?.container_statuses.iter().flatten();
    let trains = containers.into_iter().find(|container| container.name == job.framework.container)?;
    trains.state.as_ref()?.terminated.as_ref().map(|ended| ended.exit_code)
}

/// Restarts of all containers of a pod.
fn restarts(pod: &Pod) -> i32 {
    let status = status(pod);
    let of = |statuses: Option<&Vec<k8s_openapi::api::core::v1::ContainerStatus>>| {
        statuses.into_iter().flatten().fold(0_i32, |sum, it| sum.saturating_add(it.restart_count))
    };
    let main = of(status.and_then(|status| status.container_statuses.as_ref()));
    main.saturating_add(of(status.and_then(|status| status.init_container_statuses.as_ref())))
}

struct Step<'a> {
    job: &'a Job<'a>,
    stored: &'a JobStatus,
    world: &'a World<'a>,
    plan: Plan,
}

impl Step<'_> {
    /// Sets a condition; the reason is the kind and `word`. Returns true if that is a change.
    fn set(&mut self, type_: &str, is_true: bool, word: &str, message: &str) -> bool {
        let reason = self.job.framework.reason(word);
        self.plan.status.set(Operator::Training, self.world.now, type_, is_true, &reason, message)
    }

    fn event(&mut self, is_warning: bool, word: &str, message: &str) {
        let reason = self.job.framework.reason(word);
        self.plan.events.push(PlannedEvent::with_warning(is_warning, reason, message));
    }

    /// Deletes these pods and their Services, and Services without a pod.
    fn delete_pods(&mut self, goes: impl Fn(&Pod) -> bool) {
        let kept: Vec<String> = self.world.pods.iter().filter(|pod| !goes(pod)).map(|pod| pod.name_any()).collect();
        for pod in self.world.pods.iter().filter(|pod| goes(pod) && !is_terminating(pod)) {
            self.plan.delete_pods.push(pod.clone());
        }
        for service in self.world.services.iter().filter(|service| !kept.contains(&service.name_any())) {
            if service.metadata.deletion_timestamp.is_none() {
                self.plan.delete_services.push(service.clone());
            }
        }
    }

    /// The job has ended: deletes pods as the policy says, and the job when its time has come.
    fn clean_up(&mut self) {
        match self.job.spec.clean_pod_policy() {
            CleanPodPolicy::None => {}
            CleanPodPolicy::Running => self.delete_pods(|pod| !matches!(phase(pod), "Succeeded" | "Failed")),
            CleanPodPolicy::All => self.delete_pods(|_| true),
        }
        if self.plan.status.is_true(SUCCEEDED) {
            for replicas in self.plan.status.replica_statuses.values_mut() {
                replicas.succeeded = replicas.succeeded.saturating_add(std::mem::take(&mut replicas.active));
            }
        }
        self.expire();
    }

    /// Deletes the job after the time that it stays after its end.
    fn expire(&mut self) {
        let Some(seconds) = self.job.spec.run_policy.ttl_seconds_after_finished else { return };
        if self.job.spec.is_suspended() {
            return;
        }
        let ended = self.plan.status.completion_time.clone();
        let changed = [FAILED, SUCCEEDED].into_iter().find_map(|type_| self.plan.status.condition(type_));
        let changed = changed.and_then(|condition| condition.last_transition_time.clone());
        let Some(ended) = ended.or(changed) else { return };
        let left = self.time_left(ended.0, i64::from(seconds));
        if left.is_zero() {
            self.plan.delete_job = true;
        } else {
            self.look_again(left);
        }
    }

    /// Time until `seconds` after `since`, zero if that has passed.
    fn time_left(&self, since: Timestamp, seconds: i64) -> Duration {
        let due = since.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX);
        Duration::try_from(due.duration_since(self.world.now)).unwrap_or_default()
    }

    fn look_again(&mut self, left: Duration) {
        self.plan.after = Some(self.plan.after.map_or(left, |after| after.min(left)));
    }

    fn suspend(&mut self) {
        self.delete_pods(|_| true);
        for replicas in self.plan.status.replica_statuses.values_mut() {
            replicas.active = 0;
        }
        let message = format!("{} {} is suspended.", self.job.framework.kind, self.job.name());
        if self.plan.status.is_true(RUNNING) {
            self.set(RUNNING, false, SUSPENDED, &message);
        }
        if self.set(SUSPENDED, true, SUSPENDED, &message) {
            self.event(false, SUSPENDED, &message);
        }
    }

    fn resume(&mut self) {
        if !self.plan.status.is_true(SUSPENDED) {
            return;
        }
        let message = format!("{} {} is resumed.", self.job.framework.kind, self.job.name());
        self.set(SUSPENDED, false, "Resumed", &message);
        self.plan.status.start_time = Some(stamp(self.world.now));
        self.event(false, "Resumed", &message);
    }

    /// Why the job ends now, if it exceeds one of its limits.
    fn exceeded_limit(&mut self) -> Option<String> {
        let (policy, name) = (&self.job.spec.run_policy, self.job.name());
        if policy.backoff_limit.is_some_and(|limit| self.exceeds(limit)) {
            return Some(format!("Job {name} has failed because it has reached the specified backoff limit"));
        }
        let deadline = policy.active_deadline_seconds?;
        let started = self.plan.status.start_time.as_ref().map_or(self.world.now, |start| start.0);
        let left = self.time_left(started, deadline);
        if left.is_zero() {
            return Some(format!("Job {name} has failed because it was active longer than specified deadline"));
        }
        self.look_again(left);
        None
    }

    /// True if pods have failed or restarted more often than `limit`.
    fn exceeds(&self, limit: i32) -> bool {
        let pods = self.world.pods;
        let count = |of: &str| pods.iter().filter(|pod| phase(pod) == of).count();
        let known = self.stored.replica_statuses.values().fold(0_i32, |sum, it| sum.saturating_add(it.failed));
        let active =
            pods.iter().filter(|pod| !is_terminating(pod) && !matches!(phase(pod), "Succeeded" | "Failed")).count();
        let has_new_failure = i64::try_from(count("Failed")).unwrap_or(i64::MAX) > i64::from(known);
        let is_incomplete = i32::try_from(active).ok() != Some(self.job.spec.total());
        if limit < 1 && has_new_failure && is_incomplete {
            return true;
        }
        let restarting = self.job.spec.replicas.iter().filter(|it| it.restart_policy != RestartPolicy::Never);
        let restarted = restarting.flat_map(|replica| self.pods_of(replica)).filter(|pod| phase(pod) == "Running");
        let restarted = restarted.fold(0_i32, |sum, pod| sum.saturating_add(restarts(pod)));
        restarted > 0 && restarted >= limit
    }

    fn fail_at_limit(&mut self, message: &str) {
        if self.plan.status.completion_time.is_none() {
            self.plan.status.completion_time = Some(stamp(self.world.now));
        }
        self.delete_pods(|_| true);
        if self.set(FAILED, true, FAILED, message) {
            self.event(false, FAILED, message);
        }
        self.expire();
    }

    fn pods_of<'b>(&'b self, replica: &'b Replica) -> impl Iterator<Item = &'b Arc<Pod>> + 'b {
        let type_ = replica.lower();
        self.world.pods.iter().filter(move |pod| label(&pod.metadata, labels::TYPE) == type_)
    }

    /// Makes the missing pods and Services, replaces failed pods, and concludes from the counts.
    fn run(&mut self) {
        self.plan.abnormal = self.world.pods.iter().flat_map(|pod| super::abnormal::events(pod)).collect();
        self.plan.pod_group = self.pod_group();
        self.plan.autoscaler = objects::autoscaler(self.job);
        let job = self.job;
        for replica in &job.spec.replicas {
            self.reconcile_pods(replica);
            self.reconcile_services(replica);
        }
        if !self.plan.create_pods.is_empty() {
            let warnings = objects::template_warnings(job.spec, self.world.gang_scheduler);
            let warnings = warnings.into_iter().map(|(reason, message)| PlannedEvent::warning(reason, message));
            self.plan.events.extend(warnings);
        }
        let seen = Seen { first_worker_succeeded: self.has_first_worker_succeeded() };
        let events = outcome::conclude(job, seen, &mut self.plan.status, self.world.now);
        self.plan.events.extend(events);
        if let (Some(deadline), Some(start)) =
            (job.spec.run_policy.active_deadline_seconds, &self.plan.status.start_time)
        {
            let left = self.time_left(start.0, deadline);
            self.look_again(left);
        }
    }

    fn pod_group(&self) -> Option<PodGroupSpec> {
        self.world.gang_scheduler?;
        let priority = |replica: &Replica| {
            let name = replica.template.spec.as_ref()?.priority_class_name.as_ref()?;
            self.world.priorities.get(name).copied()
        };
        let members = self.job.spec.replicas.iter();
        let members: Vec<_> = members
            .map(|replica| Members {
                count: replica.count,
                template: &replica.template,
                priority: priority(replica).unwrap_or_default(),
            })
            .collect();
        Some(gang::group(&members, self.job.spec.run_policy.scheduling_policy.as_ref()))
    }

    fn reconcile_pods(&mut self, replica: &Replica) {
        let mut by_index: BTreeMap<i32, Vec<Arc<Pod>>> = BTreeMap::new();
        for pod in self.pods_of(replica) {
            if let Some(index) = index(&pod.metadata) {
                by_index.entry(index).or_default().push(pod.clone());
            }
        }
        let mut counts = ReplicaStatus::default();
        if matches!(self.job.framework.kind, "PyTorchJob" | "PaddleJob" | "JAXJob") {
            counts.selector = selector(&objects::type_labels(self.job, replica));
        }
        for (index, pods) in &by_index {
            let is_wanted = (0..replica.count).contains(index);
            for pod in pods {
                if !is_wanted {
                    if !is_terminating(pod) {
                        self.plan.delete_pods.push(pod.clone());
                    }
                    continue;
                }
                self.check(replica, pod);
                match phase(pod) {
                    // A pod of a lost node never fails by itself.
                    "Running" if is_terminating(pod) => counts.failed += 1,
                    "Running" => counts.active += 1,
                    "Succeeded" => counts.succeeded += 1,
                    "Failed" => counts.failed += 1,
                    _ => {}
                }
            }
        }
        self.plan.status.replica_statuses.insert(replica.type_.to_owned(), counts);
        for index in (0..replica.count).filter(|index| !by_index.contains_key(index)) {
            if self.plan.create_pods.len() == CREATE_MAX {
                return;
            }
            match objects::pod(self.job, replica, index, self.world.gang_scheduler) {
                Ok(pod) => self.plan.create_pods.push(pod),
                Err(why) => {
                    self.plan.broken = Some(why);
                    return;
                }
            }
        }
    }

    /// Deletes a failed pod that is to be replaced, or fails the job.
    fn check(&mut self, replica: &Replica, pod: &Arc<Pod>) {
        if phase(pod) != "Failed" {
            return;
        }
        let (name, type_) = (self.job.name(), replica.type_);
        let code = exit_code(self.job, pod);
        let is_retried = match replica.restart_policy {
            RestartPolicy::Always | RestartPolicy::OnFailure => true,
            RestartPolicy::Never => return,
            // Without an exit code the pod was evicted, or its node was lost.
            RestartPolicy::ExitCode => code.is_none_or(|code| code >= RETRYABLE_EXIT_CODE),
        };
        if let Some(code) = code.filter(|_| !is_terminating(pod)) {
            let message = format!("Pod: {}.{} exited with code {code}", self.job.namespace(), pod.name_any());
            self.plan.events.push(PlannedEvent::normal("ExitedWithCode", message));
        }
        if is_retried {
            if !is_terminating(pod) {
                self.plan.delete_pods.push(pod.clone());
            }
            let message = format!("job {name} is restarting because {type_} replica(s) failed.");
            if self.set(RESTARTING, true, RESTARTING, &message) {
                self.event(true, RESTARTING, &message);
            }
        } else {
            let message = format!("job {name:?} is failing because {type_:?} replica(s) failed.");
            if self.set(FAILED, true, FAILED, &message) {
                self.plan.status.completion_time.get_or_insert(stamp(self.world.now));
                self.event(true, FAILED, &message);
            }
        }
    }

    fn reconcile_services(&mut self, replica: &Replica) {
        let type_ = replica.lower();
        let services = self.world.services.iter().filter(|it| label(&it.metadata, labels::TYPE) == type_);
        let mut known = Vec::new();
        for service in services {
            match index(&service.metadata) {
                Some(index) if !(0..replica.count).contains(&index) => {
                    if service.metadata.deletion_timestamp.is_none() {
                        self.plan.delete_services.push(service.clone());
                    }
                }
                index => known.extend(index),
            }
        }
        let missing = (0..replica.count).filter(|index| !known.contains(index)).take(CREATE_MAX);
        self.plan.create_services.extend(missing.map(|index| objects::service(self.job, replica, index)));
    }

    fn has_first_worker_succeeded(&self) -> bool {
        let Some(workers) = self.job.spec.replica("Worker") else { return true };
        let mut first = self.pods_of(workers).filter(|pod| index(&pod.metadata) == Some(0));
        first.any(|pod| phase(pod) == "Succeeded" && exit_code(self.job, pod) == Some(0))
    }
}

/// A label selector of these labels, as text.
fn selector(labels: &BTreeMap<String, String>) -> String {
    let terms: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    terms.join(",")
}
