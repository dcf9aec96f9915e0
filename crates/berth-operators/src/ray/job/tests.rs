//! Tests of the steps of a RayJob.

use berth_api::frameworks::{RayCluster, RayJob};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use serde_json::{Value, json};

use super::plan::{FINALIZER, Plan, World, Write, plan};
use super::types::RayJobSpec;
use crate::ray::dashboard::{Answer, JobInfo};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_790_000_000 + seconds).unwrap()
}

/// A RayJob and what its next step depends on.
struct Case {
    job: RayJob,
    cluster: Option<RayCluster>,
    head_service: Option<Service>,
    head: Option<Pod>,
    service: Option<Service>,
    submitter: Option<Job>,
    answer: Option<Answer>,
}

/// A RayJob in this state, with these fields of its spec in addition to a cluster.
fn case(state: &str, fields: Value) -> Case {
    let template = json!({"spec": {"containers": [{"name": "ray-head", "image": "ray:2"}]}});
    let mut spec = json!({"entrypoint": "true", "rayClusterSpec": {"headGroupSpec": {"template": template}}});
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let mut job = RayJob::named("demo");
    job.metadata.namespace = Some("default".into());
    job.metadata.uid = Some("u1".into());
    job.metadata.resource_version = Some("7".into());
    job.metadata.finalizers = Some(vec![FINALIZER.into()]);
    job.spec = spec;
    let mut status = json!({"jobDeploymentStatus": state, "startTime": at(0).to_string()});
    if !["", "Suspended"].contains(&state) {
        status["jobId"] = "demo-11111".into();
        status["rayClusterName"] = "demo-aaaaa".into();
    }
    if !["", "Suspended", "Initializing"].contains(&state) {
        status["dashboardURL"] = "demo-aaaaa-head-svc.default.svc.cluster.local:8265".into();
    }
    job.status = Some(status);
    Case { job, cluster: None, head_service: None, head: None, service: None, submitter: None, answer: None }
}

impl Case {
    fn with_cluster(mut self, state: &str) -> Self {
        let mut cluster = RayCluster::named("demo-aaaaa");
        cluster.spec = self.job.spec["rayClusterSpec"].clone();
        cluster.status = Some(json!({"state": state, "lastUpdateTime": at(0).to_string()}));
        self.cluster = Some(cluster);
        let spec =
            json!({"selector": {"ray.io/cluster": "demo-aaaaa"}, "ports": [{"name": "dashboard", "port": 8265}]});
        let metadata = json!({"name": "demo-aaaaa-head-svc", "namespace": "default"});
        self.head_service = Some(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap());
        self
    }

    fn with_submitter(mut self, condition: Option<(&str, i64)>) -> Self {
        let conditions: Vec<_> = condition
            .iter()
            .map(|(type_, seconds)| {
                json!({"type": type_, "status": "True", "lastTransitionTime": at(*seconds).to_string(),
                       "reason": "BackoffLimitExceeded", "message": "too many retries"})
            })
            .collect();
        self.submitter = Some(serde_json::from_value(json!({"status": {"conditions": conditions}})).unwrap());
        self
    }

    fn answering(mut self, status: &str) -> Self {
        let end = super::types::program::has_ended(status).then(|| at(50));
        self.answer =
            Some(Answer::Known(JobInfo { status: status.into(), message: "m".into(), start: Some(at(5)), end }));
        self
    }

    fn status(&mut self, field: &str, value: impl Into<Value>) {
        self.job.status.as_mut().unwrap()[field] = value.into();
    }

    fn plan(&self, now: i64) -> Plan {
        let world = World {
            cluster: self.cluster.as_ref(),
            head_service: self.head_service.as_ref(),
            head: self.head.as_ref(),
            service: self.service.as_ref(),
            submitter: self.submitter.as_ref(),
            answer: self.answer.clone(),
        };
        let spec = RayJobSpec::read(&self.job.spec);
        plan(&self.job, spec.as_ref(), &world, at(now))
    }
}

/// State, program state and reason after a step.
fn states(plan: &Plan) -> (&str, &str, &str) {
    let status = &plan.status;
    (&status.job_deployment_status, &status.job_status, &status.reason)
}

#[test]
fn a_new_job_names_its_cluster_and_program_before_either_is_created() {
    let mut new = case("", json!({}));
    new.job.metadata.finalizers = None;
    let plan = new.plan(0);
    assert_eq!(plan.writes, [Write::AddFinalizer]);
    assert_eq!(states(&plan), ("Initializing", "", ""));
    let status = &plan.status;
    for name in [&status.job_id, &status.ray_cluster_name] {
        let suffix = name.strip_prefix("demo-").unwrap();
        assert_eq!(suffix.len(), 5, "{name}");
    }
    assert_ne!(status.job_id, status.ray_cluster_name);
    assert_eq!((status.failed, status.succeeded), (Some(0), Some(0)));
    assert_eq!(status.start_time.as_ref().unwrap().0, at(0));

    let mut again = case("", json!({}));
    again.job.metadata.resource_version = Some("9".into());
    assert_ne!(again.plan(0).status.ray_cluster_name, plan.status.ray_cluster_name);
    let given = case("", json!({"jobId": "mine", "clusterSelector": {"ray.io/cluster": "shared"}})).plan(0);
    assert_eq!((given.status.job_id.as_str(), given.status.ray_cluster_name.as_str()), ("mine", "shared"));
    assert_eq!(case("", json!({"submissionMode": "InteractiveMode"})).plan(0).status.job_id, "");
}

#[test]
fn the_program_is_submitted_once_the_cluster_is_ready() {
    let plan = case("Initializing", json!({})).plan(1);
    let [Write::CreateCluster(cluster)] = plan.writes.as_slice() else { panic!("{:?}", plan.writes) };
    let labels = cluster.metadata.labels.as_ref().unwrap();
    assert_eq!(cluster.metadata.name.as_deref(), Some("demo-aaaaa"));
    assert_eq!(labels["ray.io/originated-from-crd"], "RayJob");
    assert_eq!(labels["ray.io/originated-from-cr-name"], "demo");
    assert_eq!(labels["ray.io/job-submission-mode"], "K8sJobMode");

    let plan = case("Initializing", json!({})).with_cluster("").plan(2);
    assert_eq!((states(&plan), plan.writes.len()), (("Initializing", "", ""), 0));

    let plan = case("Initializing", json!({})).with_cluster("ready").plan(3);
    let [Write::CreateSubmitter(submitter)] = plan.writes.as_slice() else { panic!("{:?}", plan.writes) };
    assert_eq!(submitter.metadata.name.as_deref(), Some("demo"));
    assert_eq!(states(&plan).0, "Running");
    assert_eq!(plan.status.dashboard_url, "demo-aaaaa-head-svc.default.svc.cluster.local:8265");

    let plan = case("Initializing", json!({"submissionMode": "HTTPMode"})).with_cluster("ready").plan(3);
    assert_eq!((states(&plan).0, plan.writes.len()), ("Running", 0));
}

#[test]
fn a_running_job_asks_the_dashboard_and_takes_its_answer_over() {
    let running = || case("Running", json!({})).with_cluster("ready").with_submitter(None);
    assert!(running().plan(10).ask);
    let plan = running().answering("RUNNING").plan(10);
    let [Write::CreateService(service)] = plan.writes.as_slice() else { panic!("{:?}", plan.writes) };
    assert_eq!(service.metadata.name.as_deref(), Some("demo-head-svc"));
    assert_eq!(states(&plan), ("Running", "RUNNING", ""));
    assert_eq!((plan.status.message.as_str(), plan.status.ray_job_info.start_time.clone().unwrap().0), ("m", at(5)));
    assert_eq!(plan.status.ray_cluster_status, json!({"state": "ready"}));

    // The program has ended, and its submitter still prints the log.
    let plan = running().answering("SUCCEEDED").plan(51);
    assert_eq!(states(&plan), ("Running", "SUCCEEDED", ""));
    let ended = || case("Running", json!({})).with_cluster("ready").with_submitter(Some(("Complete", 52)));
    let plan = ended().answering("SUCCEEDED").plan(52);
    assert_eq!(states(&plan), ("Complete", "SUCCEEDED", ""));
    assert_eq!((plan.status.succeeded, plan.status.failed), (Some(1), Some(0)));
    assert_eq!(plan.status.end_time.clone().unwrap().0, at(52));
    assert_eq!(states(&ended().answering("STOPPED").plan(52)), ("Complete", "STOPPED", ""));
    let plan = ended().answering("FAILED").plan(52);
    assert_eq!(states(&plan), ("Failed", "FAILED", "AppFailed"));
    assert_eq!((plan.status.succeeded, plan.status.failed), (Some(0), Some(1)));
}

#[test]
fn a_failed_submitter_fails_the_job() {
    let failed = || case("Running", json!({})).with_cluster("ready").with_submitter(Some(("Failed", 20)));
    let plan = failed().plan(20);
    assert_eq!(states(&plan), ("Failed", "", "SubmissionFailed"));
    let message = "Job submission has failed. Reason: BackoffLimitExceeded. Message: too many retries";
    assert_eq!(plan.status.message, message);
    let mut seen = failed();
    seen.status("jobStatus", "FAILED");
    assert_eq!(states(&seen.plan(20)), ("Failed", "FAILED", "AppFailed"));
}

#[test]
fn a_program_that_does_not_end_with_its_submitter_fails_the_job() {
    let ended = case("Running", json!({})).with_cluster("ready").with_submitter(Some(("Complete", 20)));
    let waiting = ended.answering("RUNNING");
    let plan = waiting.plan(30);
    assert_eq!((states(&plan), plan.after.unwrap().as_secs()), (("Running", "RUNNING", ""), 20));
    let plan = waiting.plan(50);
    assert_eq!(states(&plan), ("Failed", "FAILED", "JobDeploymentStatusTransitionGracePeriodExceeded"));

    let mut unknown = case("Running", json!({})).with_cluster("ready").with_submitter(Some(("Complete", 20)));
    unknown.answer = Some(Answer::Unknown);
    assert_eq!(states(&unknown.plan(21)), ("Failed", "", "AppFailed"));
    assert_eq!(unknown.plan(21).status.message, "Submitter completed but Ray job not found in RayCluster.");
}

#[test]
fn a_submitter_that_outlives_its_program_does_not_hold_the_job() {
    let mut hanging = case("Running", json!({})).with_cluster("ready").with_submitter(None);
    hanging.status("jobStatus", "SUCCEEDED");
    hanging.status("rayJobInfo", json!({"endTime": at(50).to_string()}));
    let hanging = hanging.answering("SUCCEEDED");
    let plan = hanging.plan(60);
    assert_eq!((states(&plan).0, plan.after.unwrap().as_secs()), ("Running", 290));
    let plan = hanging.plan(350);
    assert_eq!(states(&plan), ("Complete", "SUCCEEDED", "JobDeploymentStatusTransitionGracePeriodExceeded"));
}

#[test]
fn a_dashboard_that_does_not_answer_fails_the_job_in_the_end() {
    let mut silent = case("Running", json!({"backoffLimit": 3})).with_cluster("ready").with_submitter(None);
    silent.answer = Some(Answer::Unreachable("refused".into()));
    let plan = silent.plan(10);
    assert_eq!(plan.status.job_status_check_failure_start_time.clone().unwrap().0, at(10));
    assert_eq!(plan.after.unwrap().as_secs(), 300);
    silent.status("jobStatusCheckFailureStartTime", at(10).to_string());
    assert_eq!(states(&silent.plan(309)).0, "Running");
    // A job that fails for this reason is not retried.
    assert_eq!(states(&silent.plan(310)), ("Failed", "", "JobStatusCheckTimeoutExceeded"));
    let answering = silent.answering("RUNNING");
    assert_eq!(answering.plan(100).status.job_status_check_failure_start_time, None);
}

#[test]
fn the_operator_submits_a_program_that_ray_does_not_know() {
    let mut unknown = case("Running", json!({"submissionMode": "HTTPMode"})).with_cluster("ready");
    unknown.answer = Some(Answer::Unknown);
    assert!(unknown.plan(10).writes.contains(&Write::Submit));
    let ended = case("Running", json!({"submissionMode": "HTTPMode"})).with_cluster("ready").answering("SUCCEEDED");
    assert_eq!(states(&ended.plan(60)), ("Complete", "SUCCEEDED", ""));
}

#[test]
fn an_interactive_job_waits_for_the_users_submission() {
    let interactive = |state: &str, id: &str| {
        case(state, json!({"submissionMode": "InteractiveMode", "jobId": id})).with_cluster("ready")
    };
    assert_eq!(states(&interactive("Initializing", "").plan(5)).0, "Waiting");
    assert_eq!(states(&interactive("Waiting", "").plan(5)).0, "Waiting");
    let plan = interactive("Waiting", "mine").plan(5);
    assert_eq!((states(&plan).0, plan.status.job_id.as_str()), ("Running", "mine"));
}

#[test]
fn a_sidecar_submits_in_the_head_pod() {
    let sidecar = |state: &str| case(state, json!({"submissionMode": "SidecarMode"}));
    let plan = sidecar("Initializing").plan(1);
    let [Write::CreateCluster(cluster)] = plan.writes.as_slice() else { panic!("{:?}", plan.writes) };
    assert_eq!(cluster.metadata.annotations.as_ref().unwrap()["ray.io/disable-provisioned-head-restart"], "true");
    let template = &cluster.spec["headGroupSpec"]["template"];
    assert_eq!(template["spec"]["restartPolicy"], "Never");
    assert_eq!(template["spec"]["containers"][1]["name"], "ray-job-submitter");
    assert_eq!(template["metadata"]["annotations"]["run-duration.berth.dev/ray-job-submitter"], "60s");

    let plan = sidecar("Running").with_cluster("ready").plan(9);
    assert_eq!(states(&plan), ("Failed", "", "AppFailed"));
    let head = |code: Option<i32>| -> Pod {
        let ended = code.map(|code| json!({"exitCode": code, "reason": "Error", "finishedAt": at(8).to_string()}));
        let state = ended.map_or(json!({"running": {}}), |ended| json!({"terminated": ended}));
        let status = json!({"name": "ray-job-submitter", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                            "state": state});
        serde_json::from_value(json!({"status": {"containerStatuses": [status]}})).unwrap()
    };
    let mut running = sidecar("Running").with_cluster("ready");
    running.head = Some(head(None));
    assert!(running.plan(9).ask);
    running.head = Some(head(Some(0)));
    assert_eq!(states(&running.answering("SUCCEEDED").plan(9)).0, "Complete");
    let mut failed = sidecar("Running").with_cluster("ready");
    failed.head = Some(head(Some(1)));
    let plan = failed.plan(9);
    assert_eq!(states(&plan), ("Failed", "", "SubmissionFailed"));
    assert_eq!(plan.status.message, "Ray head pod container ray-job-submitter terminated with exit code 1: Error");
}

#[test]
fn suspension_deletes_the_cluster_and_starts_over() {
    let suspended = json!({"suspend": true, "shutdownAfterJobFinishes": true});
    let running = case("Running", suspended.clone()).with_cluster("ready").with_submitter(None);
    assert_eq!(states(&running.plan(9)).0, "Suspending");
    // A suspension that has begun is completed.
    let resumed = json!({"shutdownAfterJobFinishes": true});
    let mut suspending = case("Suspending", resumed.clone()).with_cluster("ready").with_submitter(None);
    suspending.status("jobStatus", "RUNNING");
    let plan = suspending.plan(9);
    assert_eq!(plan.writes, [Write::DeleteCluster, Write::DeleteSubmitter]);
    assert_eq!(states(&plan).0, "Suspending");
    suspending.cluster = None;
    suspending.submitter = None;
    let plan = suspending.plan(10);
    assert_eq!(states(&plan), ("Suspended", "", ""));
    assert_eq!((plan.status.job_id.as_str(), plan.status.ray_cluster_name.as_str()), ("", ""));
    assert_eq!(states(&case("Suspended", suspended).plan(10)).0, "Suspended");
    assert_eq!(states(&case("Suspended", resumed).plan(10)).0, "");
}

#[test]
fn a_failed_job_is_retried_on_a_new_cluster() {
    let failing = |failed: i32| {
        let mut case = case("Running", json!({"backoffLimit": 2}))
            .with_cluster("ready")
            .with_submitter(Some(("Complete", 52)))
            .answering("FAILED");
        case.status("failed", failed);
        case.plan(52)
    };
    let plan = failing(0);
    assert_eq!((states(&plan), plan.status.failed), (("Retrying", "FAILED", "AppFailed"), Some(1)));
    assert_eq!(plan.status.end_time, None);
    assert_eq!(states(&failing(1)).0, "Retrying");
    assert_eq!((states(&failing(2)).0, failing(2).status.failed), ("Failed", Some(3)));

    let mut retrying = case("Retrying", json!({"backoffLimit": 2}));
    retrying.status("failed", 1);
    let plan = retrying.plan(60);
    assert_eq!((states(&plan), plan.status.failed), (("", "", ""), Some(1)));
}

#[test]
fn deadlines_fail_the_job() {
    let deadline = || case("Running", json!({"activeDeadlineSeconds": 60, "backoffLimit": 5})).with_cluster("ready");
    let plan = deadline().with_submitter(None).answering("RUNNING").plan(40);
    assert_eq!((states(&plan).0, plan.after.unwrap().as_secs()), ("Running", 20));
    let plan = deadline().plan(60);
    // A job that fails because of a deadline is not retried.
    assert_eq!(states(&plan), ("Failed", "", "DeadlineExceeded"));
    let started = at(0).strftime("%Y-%m-%d %H:%M:%S +0000 UTC");
    let message =
        format!("The RayJob has passed the activeDeadlineSeconds. StartTime: {started}. ActiveDeadlineSeconds: 60");
    assert_eq!(plan.status.message, message);

    let early = |state: &str| case(state, json!({"preRunningDeadlineSeconds": 30})).with_cluster("");
    assert_eq!(early("Initializing").plan(29).after.unwrap().as_secs(), 1);
    assert_eq!(states(&early("Initializing").plan(30)), ("Failed", "", "PreRunningDeadlineExceeded"));
}

#[test]
fn a_job_that_is_not_valid_gets_one_warning() {
    let mut invalid = case("", json!({"backoffLimit": -1}));
    let plan = invalid.plan(0);
    assert_eq!(states(&plan), ("ValidationFailed", "", "ValidationFailed"));
    let message = "default/demo: The RayJob spec is invalid: backoffLimit must be a positive integer";
    assert_eq!((plan.warnings[0].reason, plan.warnings[0].message.as_str()), ("InvalidRayJobSpec", message));
    invalid.job.status = Some(json!(plan.status));
    assert!(invalid.plan(1).warnings.is_empty());
    let unreadable = case("", json!({"backoffLimit": "two"})).plan(0);
    assert_eq!(states(&unreadable).0, "ValidationFailed");
}

#[test]
fn a_selected_cluster_must_exist_and_stays() {
    let selecting = |state: &str| case(state, json!({"clusterSelector": {"ray.io/cluster": "demo-aaaaa"}}));
    let plan = selecting("Initializing").plan(1);
    assert_eq!((plan.writes.len(), plan.warnings[0].reason), (0, "RayClusterNotFound"));
    let running = selecting("Running").with_cluster("ready").with_submitter(None).answering("RUNNING");
    assert!(running.plan(9).writes.is_empty(), "no Service with the job's name is created");
    let plan = selecting("Retrying").with_cluster("ready").plan(9);
    assert_eq!((plan.writes.len(), states(&plan).0), (0, ""));
}

#[test]
fn a_deleted_job_stops_its_program() {
    let mut deleted = case("Running", json!({})).with_cluster("ready");
    deleted.job.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(1)));
    assert_eq!(deleted.plan(2).writes, [Write::Stop, Write::RemoveFinalizer]);
    deleted.status("jobStatus", "SUCCEEDED");
    assert_eq!(deleted.plan(2).writes, [Write::RemoveFinalizer]);
}
