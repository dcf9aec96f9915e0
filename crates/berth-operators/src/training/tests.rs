//! Steps of training jobs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_runtime::stamp;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use kube::api::ObjectMeta;
use serde_json::{Value, json};

use super::conditions::JobStatus;
use super::framework::{Framework, JAX, PYTORCH, TENSORFLOW, XGBOOST};
use super::plan::{Plan, World, plan};
use super::types::{Job, Spec};

/// A job with its objects; each step applies the plan to them.
struct Bench {
    framework: &'static Framework,
    spec: Value,
    pods: BTreeMap<String, Pod>,
    services: BTreeMap<String, Service>,
    status: JobStatus,
    gang_scheduler: Option<&'static str>,
    now: Timestamp,
}

/// A replica spec with the container that the kind needs.
pub(super) fn replica(framework: &Framework, count: i32, policy: &str) -> Value {
    let containers = json!([{"name": framework.container, "image": "train", "resources": {"requests": {"cpu": "1"}}}]);
    json!({"replicas": count, "restartPolicy": policy, "template": {"spec": {"containers": containers}}})
}

impl Bench {
    fn new(framework: &'static Framework, policy: &str, replicas: &[(&str, i32)]) -> Self {
        let replicas = replicas.iter().map(|(type_, count)| ((*type_).to_owned(), replica(framework, *count, policy)));
        Self {
            framework,
            spec: json!({framework.specs: Value::Object(replicas.collect()), "runPolicy": {}}),
            pods: BTreeMap::new(),
            services: BTreeMap::new(),
            status: JobStatus::default(),
            gang_scheduler: None,
            now: "2026-01-05T09:00:00Z".parse().expect("a time"),
        }
    }

    /// Plans a step, and applies it: deleted pods are gone at once.
    fn step(&mut self) -> Plan {
        let spec = Spec::read(self.framework, &self.spec).expect("a spec");
        let metadata = ObjectMeta {
            name: Some("train".into()),
            namespace: Some("team".into()),
            uid: Some("u1".into()),
            ..ObjectMeta::default()
        };
        let job = Job { framework: self.framework, metadata: &metadata, spec: &spec };
        let pods: Vec<_> = self.pods.values().cloned().map(Arc::new).collect();
        let services: Vec<_> = self.services.values().cloned().map(Arc::new).collect();
        let world = World {
            pods: &pods,
            services: &services,
            gang_scheduler: self.gang_scheduler,
            priorities: &BTreeMap::new(),
            now: self.now,
        };
        let step = plan(&job, &self.status, &world);
        step.delete_pods.iter().for_each(|pod| drop(self.pods.remove(&pod.name_any())));
        step.delete_services.iter().for_each(|service| drop(self.services.remove(&service.name_any())));
        self.pods.extend(step.create_pods.iter().map(|pod| (pod.name_any(), pod.clone())));
        self.services.extend(step.create_services.iter().map(|service| (service.name_any(), service.clone())));
        self.status = step.status.clone();
        step
    }

    fn set_phase(&mut self, pod: &str, phase: &str) {
        self.pods.get_mut(pod).expect("a pod").status.get_or_insert_default().phase = Some(phase.to_owned());
    }

    /// The pod has ended with this exit code.
    fn exit(&mut self, pod: &str, code: i32) {
        let container = self.framework.container;
        let phase = if code == 0 { "Succeeded" } else { "Failed" };
        let statuses = json!([{"name": container, "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": code}}}]);
        let status = json!({"phase": phase, "containerStatuses": statuses});
        self.pods.get_mut(pod).expect("a pod").status = Some(serde_json::from_value(status).expect("a status"));
    }

    fn run_all(&mut self) {
        let names: Vec<_> = self.pods.keys().cloned().collect();
        names.iter().for_each(|name| self.set_phase(name, "Running"));
    }

    fn pass(&mut self, seconds: i64) {
        self.now = self.now.saturating_add(SignedDuration::from_secs(seconds)).expect("a time");
    }

    fn names(&self) -> Vec<&str> {
        self.pods.keys().map(String::as_str).collect()
    }

    /// The conditions: type, status and message.
    fn conditions(&self) -> Vec<String> {
        let seen = self.status.conditions.iter();
        seen.map(|it| format!("{}={} {}: {}", it.r#type, it.status, it.reason, it.message)).collect()
    }

    /// Active, succeeded and failed pods of a type.
    fn counts(&self, type_: &str) -> (i32, i32, i32) {
        let counts = &self.status.replica_statuses[type_];
        (counts.active, counts.succeeded, counts.failed)
    }
}

fn pytorch(policy: &str) -> Bench {
    Bench::new(&PYTORCH, policy, &[("Master", 1), ("Worker", 2)])
}

#[test]
fn a_job_gets_a_pod_and_a_service_per_replica() {
    let mut bench = pytorch("OnFailure");
    let step = bench.step();
    assert_eq!(bench.names(), ["train-master-0", "train-worker-0", "train-worker-1"]);
    assert_eq!(bench.services.keys().cloned().collect::<Vec<_>>(), bench.names());
    let labels = |pod: &str| bench.pods[pod].metadata.labels.clone().expect("labels");
    let expected = [
        ("training.kubeflow.org/job-name", "train"),
        ("training.kubeflow.org/job-role", "master"),
        ("training.kubeflow.org/operator-name", "pytorchjob-controller"),
        ("training.kubeflow.org/replica-index", "0"),
        ("training.kubeflow.org/replica-type", "master"),
    ];
    assert_eq!(labels("train-master-0"), expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    assert!(!labels("train-worker-1").contains_key("training.kubeflow.org/job-role"));
    let service = bench.services["train-worker-1"].spec.clone().expect("a spec");
    assert_eq!(service.cluster_ip.as_deref(), Some("None"));
    let ports: Vec<_> = service.ports.iter().flatten().map(|port| (port.name.as_deref(), port.port)).collect();
    assert_eq!(ports, [(Some("pytorchjob-port"), 23456)]);
    assert_eq!(service.selector.expect("a selector"), labels("train-worker-1"));
    let master = bench.pods["train-master-0"].spec.clone().expect("a spec");
    assert_eq!(master.restart_policy.as_deref(), Some("OnFailure"));
    assert!(master.init_containers.is_none());
    let worker = bench.pods["train-worker-0"].spec.clone().expect("a spec");
    assert_eq!(worker.init_containers.expect("one")[0].name, "init-pytorch");
    assert_eq!(bench.conditions(), ["Created=True PyTorchJobCreated: PyTorchJob train is created."]);
    assert_eq!(step.status.start_time, Some(stamp(bench.now)));
    assert_eq!(
        step.status.replica_statuses["Worker"].selector,
        "training.kubeflow.org/job-name=train,training.kubeflow.org/operator-name=pytorchjob-controller,\
         training.kubeflow.org/replica-type=worker"
    );
    let step = bench.step();
    assert!(step.create_pods.is_empty() && step.create_services.is_empty(), "a second step makes nothing");
}

#[test]
fn the_success_of_the_master_is_that_of_the_job() {
    let mut bench = pytorch("Never");
    bench.spec["runPolicy"] = json!({"cleanPodPolicy": "Running", "ttlSecondsAfterFinished": 60});
    bench.step();
    bench.set_phase("train-worker-0", "Running");
    bench.step();
    assert_eq!(bench.conditions().len(), 1, "workers alone do not make the job run");
    bench.run_all();
    bench.step();
    assert_eq!(bench.conditions()[1], "Running=True PyTorchJobRunning: PyTorchJob train is running.");
    assert_eq!((bench.counts("Master"), bench.counts("Worker")), ((1, 0, 0), (2, 0, 0)));
    bench.exit("train-worker-0", 1);
    bench.exit("train-master-0", 0);
    let step = bench.step();
    assert_eq!(
        bench.conditions()[1..],
        [
            "Running=False PyTorchJobRunning: PyTorchJob train is running.".to_owned(),
            "Succeeded=True PyTorchJobSucceeded: PyTorchJob train is successfully completed.".to_owned(),
        ]
    );
    assert_eq!(step.status.completion_time, Some(stamp(bench.now)));
    let step = bench.step();
    assert_eq!(bench.names(), ["train-master-0", "train-worker-0"], "pods that still run are deleted");
    assert_eq!(bench.counts("Worker"), (0, 1, 1), "active pods count as succeeded");
    assert_eq!(step.after, Some(Duration::from_secs(60)));
    bench.pass(60);
    assert!(bench.step().delete_job);
}

#[test]
fn pods_remain_or_go_as_the_clean_pod_policy_says() {
    for (policy, left) in [("None", 3), ("Running", 1), ("All", 0)] {
        let mut bench = pytorch("Never");
        bench.spec["runPolicy"] = json!({"cleanPodPolicy": policy});
        bench.step();
        bench.run_all();
        bench.exit("train-master-0", 0);
        bench.step();
        bench.step();
        assert_eq!((bench.pods.len(), bench.services.len()), (left, left), "{policy}");
    }
}

#[test]
fn a_failed_pod_that_does_not_restart_fails_the_job() {
    let mut bench = pytorch("Never");
    bench.step();
    bench.run_all();
    bench.exit("train-worker-1", 3);
    let step = bench.step();
    let failed = "Failed=True PyTorchJobFailed: PyTorchJob train is failed because 1 Worker replica(s) failed.";
    assert_eq!(bench.conditions().last().map(String::as_str), Some(failed));
    assert!(step.status.completion_time.is_some() && step.delete_pods.is_empty());
}

#[test]
fn a_failed_pod_that_restarts_is_replaced() {
    let mut bench = pytorch("OnFailure");
    bench.step();
    bench.run_all();
    // The pod was evicted: the kubelet does not restart it.
    bench.set_phase("train-worker-1", "Failed");
    let step = bench.step();
    assert_eq!(step.delete_pods[0].name_any(), "train-worker-1");
    let restarting = "PyTorchJob train is restarting because 1 Worker replica(s) failed.";
    assert_eq!(bench.conditions()[1], format!("Restarting=True PyTorchJobRestarting: {restarting}"));
    let step = bench.step();
    assert_eq!(step.create_pods[0].name_any(), "train-worker-1");
    assert!(step.create_services.is_empty(), "the Service stays");
    assert_eq!(bench.conditions()[1], "Running=True PyTorchJobRunning: PyTorchJob train is running.");
}

#[test]
fn with_exit_codes_signals_are_retried_and_errors_are_not() {
    let mut bench = pytorch("ExitCode");
    bench.step();
    assert_eq!(bench.pods["train-worker-0"].spec.as_ref().expect("a spec").restart_policy.as_deref(), Some("Never"));
    bench.run_all();
    bench.exit("train-worker-0", 137);
    let step = bench.step();
    assert_eq!(step.delete_pods.len(), 1);
    assert!(bench.status.is_true("Restarting"));
    let messages: Vec<_> = step.events.iter().map(|event| event.message.as_str()).collect();
    assert!(messages.contains(&"Pod: team.train-worker-0 exited with code 137"), "{messages:?}");
    bench.step();
    bench.run_all();
    bench.exit("train-worker-0", 1);
    let step = bench.step();
    assert!(step.delete_pods.is_empty() && step.status.completion_time.is_some());
    let failed = r#"Failed=True PyTorchJobFailed: job "train" is failing because "Worker" replica(s) failed."#;
    assert_eq!(bench.conditions().last().map(String::as_str), Some(failed));
}

#[test]
fn a_job_fails_at_its_backoff_limit() {
    let mut bench = pytorch("OnFailure");
    bench.spec["runPolicy"] = json!({"backoffLimit": 2});
    bench.step();
    bench.run_all();
    let restart = |bench: &mut Bench, pod: &str, count: i32| {
        let statuses = json!([{"name": "pytorch", "image": "", "imageID": "", "ready": true, "restartCount": count}]);
        let status = bench.pods.get_mut(pod).expect("a pod").status.as_mut().expect("a status");
        status.container_statuses = serde_json::from_value(statuses).expect("statuses");
    };
    restart(&mut bench, "train-master-0", 1);
    bench.step();
    assert!(!bench.status.is_finished());
    restart(&mut bench, "train-worker-1", 1);
    bench.step();
    let failed = "Job train has failed because it has reached the specified backoff limit";
    assert_eq!(bench.status.condition("Failed").expect("failed").message, failed);
    assert!(bench.pods.is_empty() && bench.services.is_empty(), "all objects are deleted under any policy");
}

#[test]
fn a_job_fails_at_its_deadline() {
    let mut bench = pytorch("OnFailure");
    bench.spec["runPolicy"] = json!({"activeDeadlineSeconds": 100, "ttlSecondsAfterFinished": 5});
    let step = bench.step();
    assert_eq!(step.after, Some(Duration::from_secs(100)));
    bench.pass(99);
    assert_eq!(bench.step().after, Some(Duration::from_secs(1)));
    bench.pass(1);
    let step = bench.step();
    let failed = "Job train has failed because it was active longer than specified deadline";
    assert_eq!(bench.status.condition("Failed").expect("failed").message, failed);
    assert!(bench.pods.is_empty());
    assert_eq!(step.after, Some(Duration::from_secs(5)));
}

#[test]
fn a_suspended_job_has_no_pods_and_starts_anew_when_resumed() {
    let mut bench = pytorch("OnFailure");
    bench.spec["runPolicy"] = json!({"suspend": true});
    bench.step();
    assert!(bench.pods.is_empty() && bench.status.start_time.is_none());
    assert_eq!(bench.conditions()[1], "Suspended=True PyTorchJobSuspended: PyTorchJob train is suspended.");
    bench.spec["runPolicy"] = json!({"suspend": false});
    bench.pass(10);
    let step = bench.step();
    assert_eq!(bench.conditions()[1], "Suspended=False PyTorchJobResumed: PyTorchJob train is resumed.");
    assert_eq!((bench.pods.len(), step.status.start_time), (3, Some(stamp(bench.now))));
    bench.run_all();
    bench.step();
    bench.spec["runPolicy"] = json!({"suspend": true});
    bench.step();
    assert!(bench.pods.is_empty() && bench.services.is_empty());
    assert_eq!(
        bench.conditions()[1..],
        [
            "Running=False PyTorchJobSuspended: PyTorchJob train is suspended.".to_owned(),
            "Suspended=True PyTorchJobSuspended: PyTorchJob train is suspended.".to_owned(),
        ]
    );
    assert_eq!(bench.counts("Worker"), (0, 0, 0));
}

#[test]
fn all_pods_of_a_gang_belong_to_a_pod_group() {
    let mut bench = pytorch("OnFailure");
    bench.gang_scheduler = Some("coscheduler");
    let step = bench.step();
    let group = step.pod_group.expect("a group");
    assert_eq!((group.min_member, group.min_resources["cpu"].0.as_str()), (3, "3"));
    let pod = &bench.pods["train-worker-1"];
    assert_eq!(pod.spec.as_ref().expect("a spec").scheduler_name.as_deref(), Some("coscheduler"));
    assert_eq!(pod.labels()["scheduling.x-k8s.io/pod-group"], "train");
    bench.spec["runPolicy"] = json!({"suspend": true});
    assert!(bench.step().pod_group.is_none());
}

#[test]
fn an_elastic_job_follows_its_number_of_workers_and_ends_with_the_first() {
    let mut bench = Bench::new(&PYTORCH, "OnFailure", &[("Worker", 3)]);
    bench.spec["elasticPolicy"] = json!({"minReplicas": 1, "maxReplicas": 3});
    bench.step();
    bench.run_all();
    bench.step();
    assert_eq!(bench.conditions()[1], "Running=True PyTorchJobRunning: PyTorchJob team/train is running.");
    assert_eq!(bench.pods["train-worker-0"].labels()["training.kubeflow.org/job-role"], "master");
    bench.spec["pytorchReplicaSpecs"]["Worker"]["replicas"] = json!(1);
    bench.step();
    assert_eq!((bench.names(), bench.services.len()), (vec!["train-worker-0"], 1));
    bench.spec["pytorchReplicaSpecs"]["Worker"]["replicas"] = json!(2);
    bench.step();
    bench.exit("train-worker-0", 0);
    bench.step();
    let succeeded = "Succeeded=True PyTorchJobSucceeded: PyTorchJob team/train successfully completed.";
    assert_eq!(bench.conditions().last().map(String::as_str), Some(succeeded));
}

#[test]
fn metrics_make_an_autoscaler_of_the_workers() {
    let mut bench = Bench::new(&PYTORCH, "OnFailure", &[("Worker", 2)]);
    let metric = json!({"type": "Resource", "resource": {"name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": 80}}});
    bench.spec["elasticPolicy"] = json!({"minReplicas": 1, "maxReplicas": 4, "metrics": [metric]});
    let spec = bench.step().autoscaler.expect("an autoscaler").spec.expect("a spec");
    assert_eq!((spec.min_replicas, spec.max_replicas), (Some(1), 4));
    assert_eq!((spec.scale_target_ref.kind.as_str(), spec.scale_target_ref.name.as_str()), ("PyTorchJob", "train"));
    bench.spec["runPolicy"] = json!({"suspend": true});
    assert!(bench.step().autoscaler.is_none());
}

#[test]
fn a_tensorflow_job_without_a_chief_ends_with_its_first_worker_or_with_all() {
    let mut bench = Bench::new(&TENSORFLOW, "Never", &[("PS", 1), ("Worker", 2)]);
    bench.step();
    bench.run_all();
    bench.exit("train-worker-1", 0);
    bench.step();
    assert_eq!(bench.conditions()[1], "Running=True TFJobRunning: TFJob team/train is running.");
    let mut all = bench.spec.clone();
    bench.exit("train-worker-0", 0);
    bench.step();
    let succeeded = "Succeeded=True TFJobSucceeded: TFJob team/train successfully completed.";
    assert_eq!(bench.conditions().last().map(String::as_str), Some(succeeded));

    all["successPolicy"] = json!("AllWorkers");
    let mut bench = Bench::new(&TENSORFLOW, "Never", &[("PS", 1), ("Worker", 2)]);
    bench.spec = all;
    bench.step();
    bench.run_all();
    bench.exit("train-worker-0", 0);
    bench.step();
    assert!(!bench.status.is_finished());
    bench.exit("train-worker-1", 0);
    bench.step();
    assert!(bench.status.is_true("Succeeded"));
}

#[test]
fn a_tensorflow_job_with_a_chief_ends_with_it_and_fails_with_any_pod() {
    let mut bench = Bench::new(&TENSORFLOW, "Never", &[("Chief", 1), ("Worker", 2)]);
    bench.step();
    bench.run_all();
    bench.exit("train-worker-0", 0);
    bench.exit("train-worker-1", 0);
    bench.step();
    assert!(!bench.status.is_finished());
    bench.exit("train-worker-1", 1);
    bench.step();
    let failed = "Failed=True TFJobFailed: TFJob team/train has failed because 1 Worker replica(s) failed.";
    assert_eq!(bench.conditions().last().map(String::as_str), Some(failed));

    let mut bench = Bench::new(&TENSORFLOW, "Never", &[("Chief", 1), ("Worker", 1)]);
    bench.step();
    bench.run_all();
    bench.exit("train-chief-0", 0);
    bench.step();
    assert!(bench.status.is_true("Succeeded"));
}

#[test]
fn a_tensorflow_job_keeps_restarting_while_its_other_workers_run() {
    let mut bench = Bench::new(&TENSORFLOW, "ExitCode", &[("Worker", 2)]);
    bench.step();
    bench.run_all();
    bench.exit("train-worker-1", 130);
    bench.step();
    assert!(bench.status.is_true("Restarting") && !bench.status.is_finished());
    bench.step();
    bench.run_all();
    bench.step();
    assert!(bench.status.is_true("Running"));
}

#[test]
fn dynamic_workers_of_a_tensorflow_job_may_fail() {
    let mut bench = Bench::new(&TENSORFLOW, "Never", &[("PS", 1), ("Worker", 2)]);
    bench.spec["enableDynamicWorker"] = json!(true);
    bench.step();
    bench.run_all();
    bench.exit("train-worker-1", 1);
    bench.step();
    assert!(!bench.status.is_finished());
    bench.exit("train-ps-0", 1);
    bench.step();
    assert!(bench.status.is_true("Failed"));
}

#[test]
fn an_xgboost_job_ends_with_its_master() {
    let mut bench = Bench::new(&XGBOOST, "Never", &[("Master", 1), ("Worker", 1)]);
    bench.step();
    bench.run_all();
    bench.exit("train-master-0", 0);
    bench.step();
    let succeeded = "Succeeded=True XGBoostJobSucceeded: XGBoostJob train is successfully completed.";
    assert_eq!(bench.conditions().last().map(String::as_str), Some(succeeded));
    let mut bench = Bench::new(&XGBOOST, "Never", &[("Master", 1), ("Worker", 1)]);
    bench.step();
    bench.run_all();
    bench.exit("train-worker-0", 1);
    bench.step();
    let failed = "Failed=True XGBoostJobFailed: XGBoostJob train is failed because 1 Worker replica(s) failed.";
    assert_eq!(bench.conditions().last().map(String::as_str), Some(failed));
}

#[test]
fn a_jax_job_ends_with_all_its_workers() {
    let mut bench = Bench::new(&JAX, "Never", &[("Worker", 2)]);
    bench.step();
    bench.run_all();
    bench.exit("train-worker-0", 0);
    bench.step();
    assert_eq!(bench.conditions()[1], "Running=True JAXJobRunning: JAXJob team/train is running.");
    bench.exit("train-worker-1", 0);
    bench.step();
    assert!(bench.status.is_true("Succeeded"));
}

#[test]
fn a_step_creates_a_bounded_number_of_pods() {
    let mut bench = Bench::new(&PYTORCH, "Never", &[("Worker", 1200)]);
    assert_eq!(bench.step().create_pods.len(), 500);
    bench.step();
    assert_eq!(bench.step().create_pods.len(), 200);
    assert_eq!((bench.pods.len(), bench.services.len()), (1200, 1200));
}

#[test]
fn events_describe_pods_that_cannot_start() {
    let mut bench = pytorch("Never");
    bench.step();
    let conditions = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/3 nodes are available"}]);
    let status = json!({"phase": "Pending", "conditions": conditions});
    let pod = bench.pods.get_mut("train-worker-0").expect("a pod");
    pod.status = Some(serde_json::from_value(status).expect("a status"));
    let step = bench.step();
    let seen: Vec<_> = step.abnormal.iter().map(|it| (it.reason.as_str(), it.message.as_str())).collect();
    assert_eq!(seen, [("Unschedulable", "Error pod train-worker-0 condition message: 0/3 nodes are available")]);
}
