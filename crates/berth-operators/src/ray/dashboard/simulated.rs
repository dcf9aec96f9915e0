//! Dashboards of simulated head pods.
//!
//! A program runs while its submitter runs: the pod of the submitter Job, or the submitter's
//! container in the head pod. If the operator (HTTPMode) or the user (InteractiveMode) submits the
//! program, it runs for the time in the RayJob's annotation `berth.dev/run-duration`, by default a
//! minute. The annotation `berth.dev/exit-code` of the RayJob decides whether the program succeeds.
//! Applications run as soon as they are deployed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::berth::{EXIT_CODE_ANNOTATION, RUN_DURATION_ANNOTATION, RunDuration};
use berth_api::frameworks::RayJob;
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use parking_lot::Mutex;
use serde_json::Value;

use super::{Answer, Application, Deployment, JobInfo, Jobs, Serve, Submission};
use crate::ray::job::submitter;
use crate::ray::job::types::{SubmissionMode, program};
use crate::ray::random;

/// Run time of a program without the annotation.
const RUN_DURATION_DEFAULT: Duration = Duration::from_secs(60);

/// The simulated job API of a dashboard at one time: its answer about the program, and the time
/// until the answer changes.
#[derive(Clone, Debug)]
pub struct SimulatedJobs {
    answer: Answer,
    again: Option<Duration>,
}

/// The objects and values on which the simulation of a RayJob's program depends.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The job.
    pub job: &'a RayJob,
    /// Its submission mode.
    pub mode: SubmissionMode,
    /// Its submitter Job.
    pub submitter: Option<&'a Job>,
    /// The head pod.
    pub head: &'a Pod,
    /// When the program started, if the status has it.
    pub started: Option<Timestamp>,
}

impl SimulatedJobs {
    /// The job API at this time.
    pub fn at(facts: &Facts<'_>, now: Timestamp) -> Self {
        let info = match facts.mode {
            SubmissionMode::K8sJobMode => facts.submitter.and_then(|submitter| of_submitter(submitter, facts.job)),
            SubmissionMode::SidecarMode => of_sidecar(facts.head, facts.job),
            SubmissionMode::HttpMode | SubmissionMode::InteractiveMode => {
                let start = facts.started.unwrap_or(now);
                let end = run_duration(facts.job)
                    .and_then(|duration| start.checked_add(SignedDuration::try_from(duration).ok()?).ok());
                let again = end.filter(|end| *end > now);
                let ended = end.filter(|end| *end <= now);
                let again = again.and_then(|end| Duration::try_from(end.duration_since(now)).ok());
                let info = run(facts.job, Some(start), ended);
                return Self { answer: Answer::Known(info), again };
            }
        };
        Self { answer: info.map_or(Answer::Unknown, Answer::Known), again: None }
    }
}

/// The program of a submitter Job; `None` before the submitter runs.
fn of_submitter(submitter: &Job, job: &RayJob) -> Option<JobInfo> {
    let status = submitter.status.as_ref()?;
    let start = status.start_time.as_ref().map(|time| time.0);
    if let Some(end) = submitter::finished(submitter) {
        return Some(run(job, start, end.last_transition_time.as_ref().map(|time| time.0)));
    }
    (status.ready.unwrap_or(0) > 0).then(|| run(job, start, None))
}

/// The program of a submitter in the head pod; `None` before the submitter runs.
fn of_sidecar(head: &Pod, job: &RayJob) -> Option<JobInfo> {
    if let Some(end) = submitter::sidecar_end(head) {
        let time = |time: &Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| time.as_ref().map(|it| it.0);
        return Some(run(job, time(&end.started_at), time(&end.finished_at)));
    }
    let statuses = head.status.as_ref()?.container_statuses.as_ref()?;
    let state = statuses.iter().find(|status| status.name == submitter::CONTAINER)?.state.as_ref()?;
    let running = state.running.as_ref()?;
    Some(run(job, running.started_at.as_ref().map(|time| time.0), None))
}

/// A program that runs since `start`, or ran until `end`.
fn run(job: &RayJob, start: Option<Timestamp>, end: Option<Timestamp>) -> JobInfo {
    let code = job.annotations().get(EXIT_CODE_ANNOTATION).and_then(|code| code.trim().parse::<i32>().ok());
    let (status, message) = match (end, code.unwrap_or(0)) {
        (None, _) => (program::RUNNING, "Job is currently running.".to_owned()),
        (Some(_), 0) => (program::SUCCEEDED, "Job finished successfully.".to_owned()),
        (Some(_), code) => {
            let message = format!("Job entrypoint command failed with exit code {code}, simulated by annotation");
            (program::FAILED, format!("{message} {EXIT_CODE_ANNOTATION}."))
        }
    };
    JobInfo { status: status.to_owned(), message, start, end }
}

/// Run time of the program of a RayJob; `None` to run until stopped.
fn run_duration(job: &RayJob) -> Option<Duration> {
    let given = job.annotations().get(RUN_DURATION_ANNOTATION).and_then(|text| text.trim().parse().ok());
    match given {
        None => Some(RUN_DURATION_DEFAULT),
        Some(RunDuration::Forever) => None,
        Some(RunDuration::Fixed(duration)) => Some(duration.0),
        Some(RunDuration::Between { min, max }) => {
            let span = u64::try_from((max.0.saturating_sub(min.0)).as_millis()).unwrap_or(u64::MAX - 1) + 1;
            let number = random::number(&["run", &job.uid().unwrap_or_default()]);
            Some(min.0 + Duration::from_millis(number % span))
        }
    }
}

impl Jobs for SimulatedJobs {
    fn job<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Answer> {
        ready(self.answer.clone()).boxed()
    }

    fn submit<'a>(&'a self, _: &'a Submission) -> BoxFuture<'a, Result<(), String>> {
        ready(Ok(())).boxed()
    }

    fn stop<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<(), String>> {
        ready(Ok(())).boxed()
    }

    fn again(&self) -> Option<Duration> {
        self.again
    }
}

/// Configurations of the applications of simulated clusters, by the UID of the head pod. They are
/// lost with the head pod, and with this process; the operator then deploys them again.
pub type Deployed = Arc<Mutex<BTreeMap<String, Value>>>;

/// The applications of a simulated cluster.
#[derive(Clone, Debug)]
pub struct SimulatedServe {
    /// UID of the head pod.
    pub head: String,
    /// Configurations of all simulated clusters.
    pub deployed: Deployed,
}

impl SimulatedServe {
    fn running(&self) -> BTreeMap<String, Application> {
        let deployed = self.deployed.lock();
        let applications = deployed.get(&self.head).and_then(|configuration| configuration["applications"].as_array());
        let named = |value: &Value, default: &str| value["name"].as_str().unwrap_or(default).to_owned();
        let healthy = || Deployment { status: "HEALTHY".to_owned(), message: String::new() };
        applications
            .into_iter()
            .flatten()
            .map(|application| {
                let deployments = application["deployments"].as_array().into_iter().flatten();
                let deployments = deployments.map(|deployment| (named(deployment, ""), healthy())).collect();
                let state = Application { status: "RUNNING".to_owned(), message: String::new(), deployments };
                (named(application, "default"), state)
            })
            .collect()
    }
}

impl Serve for SimulatedServe {
    fn applications(&self) -> BoxFuture<'_, Result<BTreeMap<String, Application>, String>> {
        ready(Ok(self.running())).boxed()
    }

    fn deploy<'a>(&'a self, configuration: &'a Value) -> BoxFuture<'a, Result<(), String>> {
        self.deployed.lock().insert(self.head.clone(), configuration.clone());
        ready(Ok(())).boxed()
    }

    fn is_head_serving(&self) -> BoxFuture<'_, bool> {
        ready(!self.running().is_empty()).boxed()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    fn ray_job(annotations: &[(&str, &str)]) -> RayJob {
        let mut job = RayJob::named("demo");
        job.metadata.annotations = Some(annotations.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect());
        job
    }

    /// Checks the state of the program, and the seconds until the next question.
    fn check(
        annotations: &[(&str, &str)],
        mode: SubmissionMode,
        submitter: Option<Value>,
        (started, now): (Option<i64>, i64),
        expected: (Option<&str>, Option<u64>),
    ) {
        let job = ray_job(annotations);
        let submitter: Option<Job> = submitter.map(|status| serde_json::from_value(json!({"status": status})).unwrap());
        let head = Pod::default();
        let facts = Facts { job: &job, mode, submitter: submitter.as_ref(), head: &head, started: started.map(at) };
        let dashboard = SimulatedJobs::at(&facts, at(now));
        let status = match &dashboard.answer {
            Answer::Known(info) => Some(info.status.as_str()),
            _ => None,
        };
        assert_eq!((status, dashboard.again.map(|again| again.as_secs())), expected, "{annotations:?} {mode:?}");
    }

    fn ended(condition: &str) -> Option<Value> {
        let condition = json!({"type": condition, "status": "True", "lastTransitionTime": at(30).to_string()});
        Some(json!({"startTime": at(0).to_string(), "conditions": [condition]}))
    }

    #[test]
    fn a_program_runs_as_long_as_its_submitter_job() {
        let mode = SubmissionMode::K8sJobMode;
        check(&[], mode, None, (None, 0), (None, None));
        check(&[], mode, Some(json!({"active": 1, "ready": 0})), (None, 0), (None, None));
        check(&[], mode, Some(json!({"active": 1, "ready": 1})), (None, 5), (Some("RUNNING"), None));
        check(&[], mode, ended("Complete"), (None, 40), (Some("SUCCEEDED"), None));
        check(&[(EXIT_CODE_ANNOTATION, "3")], mode, ended("Complete"), (None, 40), (Some("FAILED"), None));
    }

    #[test]
    fn a_program_without_submitter_runs_for_the_time_of_the_annotation() {
        let mode = SubmissionMode::HttpMode;
        let short = [(RUN_DURATION_ANNOTATION, "20s")];
        check(&short, mode, None, (None, 0), (Some("RUNNING"), Some(20)));
        check(&short, mode, None, (Some(0), 15), (Some("RUNNING"), Some(5)));
        check(&short, mode, None, (Some(0), 20), (Some("SUCCEEDED"), None));
        check(&[], mode, None, (Some(0), 59), (Some("RUNNING"), Some(1)));
        check(&[(RUN_DURATION_ANNOTATION, "forever")], mode, None, (Some(0), 99), (Some("RUNNING"), None));
        let failing = [(RUN_DURATION_ANNOTATION, "1s"), (EXIT_CODE_ANNOTATION, "1")];
        check(&failing, mode, None, (Some(0), 2), (Some("FAILED"), None));
    }

    #[tokio::test]
    async fn applications_run_once_they_are_deployed() {
        let serve = SimulatedServe { head: "u1".into(), deployed: Deployed::default() };
        assert!(!serve.is_head_serving().await);
        let deployments = json!([{"name": "Mango"}, {"name": "Pear"}]);
        let configuration = json!({"applications": [{"name": "fruit", "deployments": deployments}]});
        serve.deploy(&configuration).await.unwrap();
        let running = serve.applications().await.unwrap();
        assert_eq!(running["fruit"].status, "RUNNING");
        assert_eq!(running["fruit"].deployments.keys().collect::<Vec<_>>(), ["Mango", "Pear"]);
        let restarted = SimulatedServe { head: "u2".into(), ..serve };
        assert!(restarted.applications().await.unwrap().is_empty());
    }
}
