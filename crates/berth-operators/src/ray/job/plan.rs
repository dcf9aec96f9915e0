//! Plans one step of a RayJob. The writes, the new status and the events follow from the job, its
//! cluster, its submitter, the dashboard's answer and the time. Pure.
//!
//! A job is New, Initializing (its cluster becomes ready), Running, and then Complete or Failed.
//! The names of the cluster and the program are in the status before either exists, so that neither
//! is created twice after a crash. A step that needs the dashboard's answer says so in
//! [`Plan::ask`]; the caller then asks, and plans again.
//!
//! Source: the documentation, tests and behaviour of KubeRay 1.7.

use std::time::Duration;

use berth_api::frameworks::{RayCluster, RayJob};
use berth_runtime::stamp;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::Value;

use super::types::{RayJobSpec, RayJobStatus, SubmissionMode, deployment, program, reason};
use super::{cluster, deletion, submitter, validate};
use crate::ray::constants::{CLUSTER, DASHBOARD_PORT_NAME};
use crate::ray::dashboard::{Answer, JobInfo};
use crate::ray::names;
use crate::ray::services;
use crate::ray::types::state;

/// Finalizer of a RayJob: its program is stopped before the RayJob is deleted.
pub const FINALIZER: &str = "ray.io/rayjob-finalizer";
/// Maximum time from the end of a submitter to the end of its program.
const SUBMITTER_GRACE: SignedDuration = SignedDuration::from_secs(30);
/// Maximum time from the end of a program to the end of its RayJob.
const TRANSITION_GRACE: SignedDuration = SignedDuration::from_secs(300);
/// Maximum time without an answer of the dashboard.
const STATUS_CHECK_TIMEOUT: SignedDuration = SignedDuration::from_secs(300);

/// What a step depends on, apart from the job and the time.
#[derive(Clone, Debug, Default)]
pub struct World<'a> {
    /// The cluster that the status names.
    pub cluster: Option<&'a RayCluster>,
    /// The cluster's own head Service.
    pub head_service: Option<&'a Service>,
    /// The cluster's head pod.
    pub head: Option<&'a Pod>,
    /// The head Service with the job's name.
    pub service: Option<&'a Service>,
    /// The submitter Job.
    pub submitter: Option<&'a Job>,
    /// What the dashboard answered about the program.
    pub answer: Option<Answer>,
}

/// The next step of a RayJob.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// True if the step needs the dashboard's answer about the program. The plan then contains only
    /// the old status.
    pub ask: bool,
    /// Writes, to be applied in this order before the status.
    pub writes: Vec<Write>,
    /// The new status.
    pub status: RayJobStatus,
    /// Warnings about the job itself.
    pub warnings: Vec<Warning>,
    /// Time after which to plan again at the latest.
    pub after: Option<Duration>,
}

/// A write of an object, or a request to the dashboard.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Add [`FINALIZER`] to the job.
    AddFinalizer,
    /// Remove [`FINALIZER`] from the job.
    RemoveFinalizer,
    /// Create the cluster.
    CreateCluster(Box<RayCluster>),
    /// Suspend all worker groups of the cluster.
    SuspendWorkers,
    /// Delete the cluster.
    DeleteCluster,
    /// Create the submitter Job.
    CreateSubmitter(Box<Job>),
    /// Delete the submitter Job.
    DeleteSubmitter,
    /// Create the Service with the job's name.
    CreateService(Box<Service>),
    /// Point the Service with the job's name to another cluster.
    UpdateService(Box<Service>),
    /// Submit the program to the dashboard.
    Submit,
    /// Stop the program. A failure is ignored.
    Stop,
    /// Delete the job.
    DeleteJob,
}

/// An event of type Warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Reason.
    pub reason: &'static str,
    /// Message.
    pub message: String,
}

/// Plans the next step. `spec` is the job's spec.
pub fn plan(job: &RayJob, spec: Result<&RayJobSpec, &serde_json::Error>, world: &World<'_>, now: Timestamp) -> Plan {
    let status = RayJobStatus::read(job.status.as_ref());
    let mut plan = Plan { status, ..Plan::default() };
    if job.metadata.deletion_timestamp.is_some() {
        if job.finalizers().iter().any(|finalizer| finalizer == FINALIZER) {
            if !program::has_ended(&plan.status.job_status) && world.cluster.is_some() {
                plan.writes.push(Write::Stop);
            }
            plan.writes.push(Write::RemoveFinalizer);
        }
        return plan;
    }
    let spec = match spec {
        Ok(spec) => spec,
        Err(error) => {
            let message = format!("The RayJob spec is invalid: {error}");
            refuse(job, validate::Invalid { reason: validate::INVALID_SPEC, message }, &mut plan);
            return plan;
        }
    };
    if let Err(invalid) = validate::job(job, spec, &plan.status) {
        refuse(job, invalid, &mut plan);
        return plan;
    }
    let old = plan.status.clone();
    let mut step = Step { job, spec, world, now, plan, due: Vec::new() };
    step.run();
    let Step { mut plan, due, .. } = step;
    if plan.ask {
        return Plan { ask: true, status: old, ..Plan::default() };
    }
    settle(job, spec, &old, &mut plan.status, now);
    let next = due.into_iter().min().map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default());
    plan.after = [plan.after, next].into_iter().flatten().min();
    plan
}

/// Records why a job is not valid. An event is recorded again only if the message has changed.
fn refuse(job: &RayJob, invalid: validate::Invalid, plan: &mut Plan) {
    if plan.status.job_deployment_status != deployment::VALIDATION_FAILED || plan.status.message != invalid.message {
        let key = format!("{}/{}", job.namespace().unwrap_or_default(), job.name_any());
        let message = format!("{key}: {}", invalid.message);
        plan.warnings.push(Warning { reason: invalid.reason, message });
    }
    plan.status.job_deployment_status = deployment::VALIDATION_FAILED.to_owned();
    plan.status.reason = reason::VALIDATION_FAILED.to_owned();
    plan.status.message = invalid.message;
}

/// Counts an attempt that ended in this step, and retries a failed one.
fn settle(job: &RayJob, spec: &RayJobSpec, old: &RayJobStatus, status: &mut RayJobStatus, now: Timestamp) {
    let (mut failed, mut succeeded) = (status.failed.unwrap_or(0), status.succeeded.unwrap_or(0));
    if status.has_ended() && !old.has_ended() {
        if status.job_deployment_status == deployment::FAILED {
            failed += 1;
        } else if status.job_status == program::SUCCEEDED {
            succeeded += 1;
        }
        let is_final = [reason::DEADLINE_EXCEEDED, reason::STATUS_CHECK_TIMEOUT].contains(&status.reason.as_str());
        let is_failed = status.job_deployment_status == deployment::FAILED;
        if is_failed && !is_final && spec.backoff_limit.is_some_and(|limit| failed <= limit) {
            status.job_deployment_status = deployment::RETRYING.to_owned();
        } else {
            status.end_time = Some(stamp(now));
        }
    }
    status.failed = Some(failed);
    status.succeeded = Some(succeeded);
    status.observed_generation = job.metadata.generation;
}

/// Records that a request to the dashboard failed.
pub fn unreachable(status: &mut RayJobStatus, now: Timestamp) {
    status.job_status_check_failure_start_time.get_or_insert_with(|| stamp(now));
}

/// One step of a valid job.
struct Step<'a> {
    job: &'a RayJob,
    spec: &'a RayJobSpec,
    world: &'a World<'a>,
    now: Timestamp,
    plan: Plan,
    /// Times at which the job must be planned again.
    due: Vec<Timestamp>,
}

impl<'a> Step<'a> {
    fn run(&mut self) {
        match self.plan.status.job_deployment_status.clone().as_str() {
            "" => self.start(),
            deployment::INITIALIZING => self.initialize(),
            deployment::WAITING => self.wait_for_user(),
            deployment::RUNNING => self.follow(),
            deployment::SUSPENDING | deployment::RETRYING => self.clear(),
            deployment::SUSPENDED if !self.spec.suspend => self.enter(""),
            deployment::COMPLETE | deployment::FAILED => self.clean_up(),
            _ => {}
        }
    }

    fn enter(&mut self, state: &str) {
        self.plan.status.job_deployment_status = state.to_owned();
    }

    fn fail(&mut self, reason: &str, message: String) {
        self.enter(deployment::FAILED);
        self.plan.status.reason = reason.to_owned();
        self.plan.status.message = message;
    }

    /// Names the cluster and the program of a new attempt.
    fn start(&mut self) {
        if !self.job.finalizers().iter().any(|finalizer| finalizer == FINALIZER) {
            self.plan.writes.push(Write::AddFinalizer);
        }
        let (uid, version) = (self.job.uid().unwrap_or_default(), self.job.resource_version().unwrap_or_default());
        let named = |purpose: &str| format!("{}-{}", self.job.name_any(), names::suffix(&[&uid, &version, purpose]));
        let status = &mut self.plan.status;
        if self.spec.submission_mode != SubmissionMode::InteractiveMode && status.job_id.is_empty() {
            status.job_id = if self.spec.job_id.is_empty() { named("program") } else { self.spec.job_id.clone() };
        }
        if status.ray_cluster_name.is_empty() {
            let selected = self.spec.cluster_selector.get(CLUSTER).filter(|name| !name.is_empty());
            status.ray_cluster_name = selected.cloned().unwrap_or_else(|| named("cluster"));
        }
        status.start_time = Some(stamp(self.now));
        status.end_time = None;
        self.enter(deployment::INITIALIZING);
    }

    /// Creates the cluster, and the submitter once the cluster is ready.
    fn initialize(&mut self) {
        if self.suspends() || self.is_past_deadline() || self.is_past_pre_running_deadline() {
            return;
        }
        let Some(cluster) = self.cluster_or_create() else { return };
        if self.plan.status.dashboard_url.is_empty() {
            let observed = cluster.status.clone().unwrap_or_default();
            if observed["state"] != state::READY {
                self.plan.status.ray_cluster_status = comparable(observed);
                return;
            }
            // The head Service may not be in the cache yet.
            let address = self.world.head_service.and_then(|it| services::address(it, DASHBOARD_PORT_NAME));
            let Some(address) = address else { return };
            self.plan.status.dashboard_url = address;
        }
        let mode = self.spec.submission_mode;
        if mode == SubmissionMode::InteractiveMode {
            return self.enter(deployment::WAITING);
        }
        let lacks_submitter = mode == SubmissionMode::K8sJobMode && self.world.submitter.is_none();
        if lacks_submitter && !self.create_submitter(cluster) {
            return;
        }
        self.enter(deployment::RUNNING);
    }

    /// Plans the submitter Job. Returns false if its command cannot be built.
    fn create_submitter(&mut self, cluster: &RayCluster) -> bool {
        match submitter::job(self.job, self.spec, &self.plan.status, cluster) {
            Ok(made) => {
                self.plan.writes.push(Write::CreateSubmitter(Box::new(made)));
                true
            }
            Err(error) => {
                let (reason, message) = ("FailedToCreateRayJobSubmitter", error.to_string());
                self.plan.warnings.push(Warning { reason, message });
                false
            }
        }
    }

    fn wait_for_user(&mut self) {
        if self.is_past_pre_running_deadline() || self.spec.job_id.is_empty() {
            return;
        }
        self.plan.status.job_id = self.spec.job_id.clone();
        self.enter(deployment::RUNNING);
    }

    /// Follows the program until it and its submitter have ended.
    fn follow(&mut self) {
        if self.suspends() || self.is_past_deadline() || self.is_past_transition() || self.is_unanswered_for_too_long()
        {
            return;
        }
        let Some(cluster) = self.cluster_or_create() else { return };
        self.point_service();
        let submitter = match self.submitter_state(cluster) {
            Some(submitter) => submitter,
            None => return,
        };
        if let Some(at) = submitter.ended_at {
            let until = at.checked_add(SUBMITTER_GRACE).unwrap_or(at);
            if until <= self.now {
                self.plan.status.job_status = program::FAILED.to_owned();
                let at = at.strftime("%Y-%m-%d %H:%M:%S");
                let message = format!(
                    "The RayJob submitter finished at {at} but the ray job did not reach terminal state within 30s"
                );
                return self.fail(reason::GRACE_PERIOD_EXCEEDED, message);
            }
            self.due.push(until);
        }
        if let Some(message) = submitter.failure {
            // An earlier step may have seen that the program itself failed.
            return if self.plan.status.job_status == program::FAILED {
                let message = self.plan.status.message.clone();
                self.fail(reason::APP_FAILED, message);
            } else {
                self.fail(reason::SUBMISSION_FAILED, message);
            };
        }
        match self.world.answer.clone() {
            None => self.plan.ask = true,
            Some(Answer::Unknown) => self.program_is_unknown(submitter.ended_at),
            Some(Answer::Unreachable(_)) => {
                unreachable(&mut self.plan.status, self.now);
                self.is_unanswered_for_too_long();
            }
            Some(Answer::Known(info)) => self.take_over(&info, cluster, submitter.ended_at),
        }
    }

    fn program_is_unknown(&mut self, submitter_ended_at: Option<Timestamp>) {
        if self.spec.submission_mode == SubmissionMode::HttpMode {
            self.plan.status.job_status_check_failure_start_time = None;
            self.plan.writes.push(Write::Submit);
        } else if submitter_ended_at.is_some() {
            self.fail(reason::APP_FAILED, "Submitter completed but Ray job not found in RayCluster.".to_owned());
        }
    }

    /// Copies the dashboard's report about the program to the status, and ends the job if the
    /// program and its submitter have ended.
    fn take_over(&mut self, info: &JobInfo, cluster: &RayCluster, submitter_ended_at: Option<Timestamp>) {
        let waits_for_submitter = self.spec.has_submitter() && submitter_ended_at.is_none();
        let has_ended = program::has_ended(&info.status) && !waits_for_submitter;
        let state = match info.status.as_str() {
            program::FAILED if has_ended => deployment::FAILED,
            _ if has_ended => deployment::COMPLETE,
            _ => deployment::RUNNING,
        };
        self.enter(state);
        let status = &mut self.plan.status;
        status.job_status_check_failure_start_time = None;
        status.ray_cluster_status = comparable(cluster.status.clone().unwrap_or_default());
        status.job_status = info.status.clone();
        status.reason = if state == deployment::FAILED { reason::APP_FAILED } else { "" }.to_owned();
        status.message = info.message.clone();
        status.ray_job_info.start_time = info.start.map(stamp).or(status.ray_job_info.start_time.take());
        status.ray_job_info.end_time = info.end.map(stamp).or(status.ray_job_info.end_time.take());
        if state == deployment::RUNNING {
            self.is_past_transition_later();
        }
    }

    /// State of the submitter of the current mode; `None` if the step ends here.
    fn submitter_state(&mut self, cluster: &RayCluster) -> Option<Submitter> {
        match self.spec.submission_mode {
            SubmissionMode::K8sJobMode => {
                let Some(job) = self.world.submitter else {
                    // The user has deleted the submitter Job. The new one asks Ray whether the
                    // program is known before it submits it.
                    self.create_submitter(cluster);
                    return None;
                };
                Some(of_job(job))
            }
            SubmissionMode::SidecarMode => {
                let Some(head) = self.world.head else {
                    self.fail(reason::APP_FAILED, "Ray head pod not found.".to_owned());
                    return None;
                };
                Some(of_head(head))
            }
            _ => Some(Submitter::default()),
        }
    }

    /// Deletes the cluster and the submitter. When neither exists any more, removes them from the
    /// status.
    fn clear(&mut self) {
        let keeps_cluster = self.spec.selects_cluster();
        if let Some(cluster) = self.world.cluster.filter(|_| !keeps_cluster)
            && cluster.metadata.deletion_timestamp.is_none()
        {
            self.plan.writes.push(Write::DeleteCluster);
        }
        let has_job = matches!(self.spec.submission_mode, SubmissionMode::K8sJobMode | SubmissionMode::InteractiveMode);
        if let Some(submitter) = self.world.submitter.filter(|_| has_job)
            && submitter.metadata.deletion_timestamp.is_none()
        {
            self.plan.writes.push(Write::DeleteSubmitter);
        }
        let cluster_remains = self.world.cluster.is_some() && !keeps_cluster;
        if cluster_remains || (self.world.submitter.is_some() && has_job) {
            return;
        }
        let status = &mut self.plan.status;
        let next = if status.job_deployment_status == deployment::SUSPENDING { deployment::SUSPENDED } else { "" };
        *status = RayJobStatus {
            job_deployment_status: next.to_owned(),
            start_time: status.start_time.take(),
            succeeded: status.succeeded,
            failed: status.failed,
            observed_generation: status.observed_generation,
            ..RayJobStatus::default()
        };
    }

    /// Plans the deletions that are due after the end of the job.
    fn clean_up(&mut self) {
        let due = deletion::after_end(self.spec, &self.plan.status, self.world.cluster, self.now);
        self.plan.writes.extend(due.write);
        self.due.extend(due.next);
    }

    fn suspends(&mut self) -> bool {
        if self.spec.suspend {
            self.enter(deployment::SUSPENDING);
        }
        self.spec.suspend
    }

    fn is_past_deadline(&mut self) -> bool {
        self.is_past("activeDeadlineSeconds", self.spec.active_deadline_seconds, reason::DEADLINE_EXCEEDED)
    }

    fn is_past_pre_running_deadline(&mut self) -> bool {
        let seconds = self.spec.pre_running_deadline_seconds;
        self.is_past("preRunningDeadlineSeconds", seconds, reason::PRE_RUNNING_DEADLINE_EXCEEDED)
    }

    /// Fails the job if this number of seconds has passed since its start.
    fn is_past(&mut self, field: &str, seconds: Option<i32>, why: &str) -> bool {
        let Some(seconds) = seconds else { return false };
        let start = self.plan.status.start_time.as_ref().map_or(self.now, |time| time.0);
        let deadline = start.checked_add(SignedDuration::from_secs(i64::from(seconds))).unwrap_or(Timestamp::MAX);
        if deadline > self.now {
            self.due.push(deadline);
            return false;
        }
        let mut name = field.to_owned();
        name[..1].make_ascii_uppercase();
        let started = start.strftime("%Y-%m-%d %H:%M:%S +0000 UTC");
        let message = format!("The RayJob has passed the {field}. StartTime: {started}. {name}: {seconds}");
        self.fail(why, message);
        true
    }

    /// Ends a job whose program ended long ago, while its submitter still runs.
    fn is_past_transition(&mut self) -> bool {
        let status = &self.plan.status;
        let Some(end) = status.ray_job_info.end_time.as_ref().map(|time| time.0) else { return false };
        if !program::has_ended(&status.job_status) {
            return false;
        }
        if end.checked_add(TRANSITION_GRACE).unwrap_or(end) > self.now {
            return false;
        }
        let state = if status.job_status == program::FAILED { deployment::FAILED } else { deployment::COMPLETE };
        let message = "JobDeploymentStatus does not transition to Complete or Failed within the grace period after \
                       JobStatus reaches a terminal state.";
        self.fail(reason::GRACE_PERIOD_EXCEEDED, message.to_owned());
        self.enter(state);
        true
    }

    fn is_past_transition_later(&mut self) {
        let status = &self.plan.status;
        let end = status.ray_job_info.end_time.as_ref().filter(|_| program::has_ended(&status.job_status));
        self.due.extend(end.and_then(|time| time.0.checked_add(TRANSITION_GRACE).ok()));
    }

    fn is_unanswered_for_too_long(&mut self) -> bool {
        let since = self.plan.status.job_status_check_failure_start_time.clone();
        let Some(Time(since)) = since else { return false };
        let until = since.checked_add(STATUS_CHECK_TIMEOUT).unwrap_or(since);
        if until > self.now {
            self.due.push(until);
            return false;
        }
        let at = since.strftime("%Y-%m-%d %H:%M:%S");
        let message = format!("Job status checks have been failing since {at}; exceeded timeout of 300s");
        self.fail(reason::STATUS_CHECK_TIMEOUT, message);
        true
    }

    /// The cluster. If it does not exist, its creation is planned, unless the job selects an
    /// existing cluster.
    fn cluster_or_create(&mut self) -> Option<&'a RayCluster> {
        if let Some(cluster) = self.world.cluster {
            return Some(cluster);
        }
        let key = format!("{}/{}", self.job.namespace().unwrap_or_default(), self.plan.status.ray_cluster_name);
        if self.spec.selects_cluster() {
            let message =
                format!("RayCluster {key} set in the clusterSelector is not found. It must be created manually");
            self.plan.warnings.push(Warning { reason: "RayClusterNotFound", message });
            return None;
        }
        match cluster::cluster(self.job, self.spec, &self.plan.status) {
            Ok(made) => self.plan.writes.push(Write::CreateCluster(Box::new(made))),
            Err(error) => {
                let message = format!("Failed to create RayCluster {key}: {error}");
                self.plan.warnings.push(Warning { reason: "FailedToCreateRayCluster", message });
            }
        }
        None
    }

    /// Plans the Service with the job's name.
    fn point_service(&mut self) {
        let Some(of_cluster) = self.world.head_service.filter(|_| !self.spec.selects_cluster()) else { return };
        let wanted = cluster::service(self.job, of_cluster);
        match self.world.service {
            None => self.plan.writes.push(Write::CreateService(Box::new(wanted))),
            Some(existing) => {
                let changed = services::retargeted(existing, &wanted);
                self.plan.writes.extend(changed.map(|changed| Write::UpdateService(Box::new(changed))));
            }
        }
    }
}

/// The end of a submitter; both fields are empty while it runs.
#[derive(Clone, Debug, Default)]
struct Submitter {
    /// When it ended.
    ended_at: Option<Timestamp>,
    /// Why it failed.
    failure: Option<String>,
}

fn of_job(job: &Job) -> Submitter {
    let Some(end) = submitter::finished(job) else { return Submitter::default() };
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let failure = (end.type_ == "Failed")
        .then(|| format!("Job submission has failed. Reason: {}. Message: {}", text(&end.reason), text(&end.message)));
    Submitter { ended_at: end.last_transition_time.as_ref().map(|time| time.0), failure }
}

fn of_head(head: &Pod) -> Submitter {
    let Some(end) = submitter::sidecar_end(head) else { return Submitter::default() };
    let failure = (end.exit_code != 0).then(|| {
        let (name, code) = (submitter::CONTAINER, end.exit_code);
        let reason = end.reason.as_deref().unwrap_or_default();
        format!("Ray head pod container {name} terminated with exit code {code}: {reason}")
    });
    Submitter { ended_at: end.finished_at.as_ref().map(|time| time.0), failure }
}

/// A cluster's status without the time of its last write, so that statuses that differ only in this
/// time are equal.
fn comparable(mut status: Value) -> Value {
    if let Some(fields) = status.as_object_mut() {
        fields.remove("lastUpdateTime");
    }
    status
}
