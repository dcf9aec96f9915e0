//! Steps of MPIJobs.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::frameworks::MPIJob;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::keys;
use super::objects::{self, Facts};
use super::plan::{Ensure, Plan, World, plan};
use super::types::Spec;
use super::validate::validate;
use crate::training::conditions::JobStatus;

/// A job with its objects; each step applies the plan to them.
struct Bench {
    spec: Value,
    launcher: Option<Job>,
    launcher_pods: Vec<Pod>,
    workers: BTreeMap<String, Pod>,
    service: Option<Service>,
    config: Option<ConfigMap>,
    secret: Option<Secret>,
    status: JobStatus,
    gang_scheduler: Option<&'static str>,
    now: Timestamp,
}

fn spec() -> Value {
    let template = json!({"spec": {"containers": [{"name": "mpi", "image": "mpi",
        "resources": {"requests": {"cpu": "1"}}}]}});
    json!({"slotsPerWorker": 2, "runPolicy": {}, "mpiReplicaSpecs": {
        "Launcher": {"replicas": 1, "template": template}, "Worker": {"replicas": 2, "template": template}}})
}

impl Bench {
    fn new() -> Self {
        Self {
            spec: spec(),
            launcher: None,
            launcher_pods: Vec::new(),
            workers: BTreeMap::new(),
            service: None,
            config: None,
            secret: None,
            status: JobStatus::default(),
            gang_scheduler: None,
            now: "2026-01-05T09:00:00Z".parse().expect("a time"),
        }
    }

    fn step(&mut self) -> Plan {
        let metadata = json!({"name": "pi", "namespace": "team", "uid": "u1"});
        let job: MPIJob = serde_json::from_value(json!({"metadata": metadata, "spec": self.spec})).expect("an MPIJob");
        assert_eq!(validate("pi", &job.spec), []);
        let spec = Spec::read(&job.spec).expect("a spec");
        let facts = Facts { job: &job, spec: &spec, gang_scheduler: self.gang_scheduler };
        let arcs = |pods: Vec<Pod>| pods.into_iter().map(Arc::new).collect::<Vec<_>>();
        let (workers, pods) = (arcs(self.workers.values().cloned().collect()), arcs(self.launcher_pods.clone()));
        let world = World {
            launcher: self.launcher.as_ref(),
            launcher_pods: &pods,
            workers: &workers,
            service: self.service.as_ref(),
            config: self.config.as_ref(),
            secret: self.secret.as_ref(),
            priorities: &BTreeMap::new(),
            now: self.now,
        };
        let step = plan(&facts, &self.status, &world);
        apply(&mut self.service, &step.service);
        apply(&mut self.config, &step.config);
        if step.needs_keys {
            self.secret = Some(objects::secret(&facts, keys::from_seed(&[1; 32]).expect("keys")));
        }
        step.delete_workers.iter().for_each(|pod| drop(self.workers.remove(&pod.name_any())));
        self.workers.extend(step.create_workers.iter().map(|pod| (pod.name_any(), pod.clone())));
        if let Some(launcher) = &step.create_launcher {
            self.launcher = Some(launcher.as_ref().clone());
        }
        if let Some(change) = &step.change_launcher {
            self.launcher = Some(change.job.clone());
        }
        self.status = step.status.clone();
        step
    }

    fn run_workers(&mut self) {
        let status = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        for pod in self.workers.values_mut() {
            pod.status = Some(serde_json::from_value(status.clone()).expect("a status"));
        }
    }

    fn run_launcher(&mut self, status: &Value) {
        self.launcher_pods = vec![
            serde_json::from_value(json!({"metadata": {"name": "pi-launcher-x"}, "status": status})).expect("a pod"),
        ];
    }

    /// The launcher Job has ended with this condition.
    fn end(&mut self, condition: &Value) {
        let status = json!({"conditions": [condition], "failed": 1, "completionTime": "2026-01-05T09:30:00Z"});
        let launcher = self.launcher.as_mut().expect("a launcher");
        launcher.status = Some(serde_json::from_value(status).expect("a status"));
    }

    fn conditions(&self) -> Vec<String> {
        let seen = self.status.conditions.iter();
        seen.map(|it| format!("{}={} {}: {}", it.r#type, it.status, it.reason, it.message)).collect()
    }
}

fn apply<K: Clone>(object: &mut Option<K>, wanted: &Ensure<K>) {
    match wanted {
        Ensure::Create(it) | Ensure::Replace(it) => *object = Some(it.as_ref().clone()),
        Ensure::Nothing => {}
    }
}

#[test]
fn a_job_gets_workers_a_launcher_and_what_they_need() {
    let mut bench = Bench::new();
    let step = bench.step();
    assert_eq!(bench.conditions(), ["Created=True MPIJobCreated: MPIJob team/pi is created."]);
    assert_eq!(step.events.len(), 1);
    assert_eq!(bench.workers.keys().collect::<Vec<_>>(), ["pi-worker-0", "pi-worker-1"]);
    let worker = &bench.workers["pi-worker-1"];
    let spec = worker.spec.as_ref().expect("a spec");
    assert_eq!((spec.hostname.as_deref(), spec.subdomain.as_deref()), (Some("pi-worker-1"), Some("pi")));
    assert_eq!(spec.containers[0].command, Some(vec!["/usr/sbin/sshd".to_owned(), "-De".to_owned()]));
    assert_eq!(worker.labels()["training.kubeflow.org/job-role"], "worker");
    assert_eq!(worker.labels()["training.kubeflow.org/replica-index"], "1");
    let searches = spec.dns_config.as_ref().and_then(|dns| dns.searches.clone());
    assert_eq!(searches, Some(vec!["pi.team.svc.cluster.local".to_owned()]));
    let keys = spec.volumes.as_ref().expect("volumes")[0].secret.as_ref().expect("a secret");
    assert_eq!((keys.secret_name.as_deref(), keys.default_mode), (Some("pi-ssh"), Some(0o600)));
    let data = bench.config.as_ref().and_then(|config| config.data.clone()).expect("data");
    assert_eq!(data["hostfile"], "pi-worker-0.pi.team.svc slots=2\npi-worker-1.pi.team.svc slots=2\n");
    assert_eq!(data["discover_hosts.sh"], "#!/bin/sh\n");
    let launcher = bench.launcher.clone().expect("a launcher").spec.expect("a spec");
    assert_eq!(launcher.pod_replacement_policy.as_deref(), Some("Failed"));
    let pod = launcher.template.spec.expect("a spec");
    assert_eq!(pod.restart_policy.as_deref(), Some("OnFailure"));
    let env: BTreeMap<_, _> =
        pod.containers[0].env.iter().flatten().map(|it| (it.name.as_str(), it.value.as_deref())).collect();
    assert_eq!(env["OMPI_MCA_orte_default_hostfile"], Some("/etc/mpi/hostfile"));
    assert_eq!(env["OMPI_MCA_orte_set_default_slots"], Some("2"));
    assert_eq!(env["NVIDIA_VISIBLE_DEVICES"], None);
    let mounts: Vec<_> =
        pod.containers[0].volume_mounts.iter().flatten().map(|mount| mount.mount_path.as_str()).collect();
    assert_eq!(mounts, ["/root/.ssh", "/etc/mpi"]);
    let step = bench.step();
    assert!(step.create_workers.is_empty() && step.create_launcher.is_none() && !step.needs_keys);
    assert_eq!((step.service, step.config), (Ensure::Nothing, Ensure::Nothing));
}

#[test]
fn running_workers_are_in_the_script_and_the_job_runs_with_its_launcher() {
    let mut bench = Bench::new();
    bench.step();
    bench.run_workers();
    bench.step();
    let script = "#!/bin/sh\necho pi-worker-0.pi.team.svc\necho pi-worker-1.pi.team.svc\n";
    assert_eq!(bench.config.as_ref().and_then(|it| it.data.as_ref()).expect("data")["discover_hosts.sh"], script);
    assert!(!bench.status.is_true("Running"));
    bench.run_launcher(&json!({"phase": "Running"}));
    bench.step();
    assert_eq!(bench.conditions()[1], "Running=True MPIJobRunning: MPIJob team/pi is running.");
    assert_eq!(bench.status.replica_statuses["Worker"].active, 2);
    assert_eq!(bench.status.replica_statuses["Launcher"].active, 1);
}

#[test]
fn the_end_of_the_launcher_is_that_of_the_job() {
    let mut bench = Bench::new();
    bench.spec["runPolicy"] = json!({"cleanPodPolicy": "Running"});
    bench.step();
    bench.run_workers();
    bench.run_launcher(&json!({"phase": "Succeeded"}));
    bench.end(&json!({"type": "Complete", "status": "True"}));
    bench.step();
    assert_eq!(
        bench.conditions()[1..],
        [
            "Succeeded=True MPIJobSucceeded: MPIJob team/pi successfully completed.".to_owned(),
            "Running=False MPIJobRunning: MPIJob team/pi is finished but Running condition was never set.".to_owned(),
        ]
    );
    let ended = bench.status.completion_time.as_ref().expect("a time").0.to_string();
    assert_eq!(ended, "2026-01-05T09:30:00Z");
    assert_eq!(bench.workers.len(), 2);
    bench.step();
    assert!(bench.workers.is_empty(), "running workers are deleted");
}

#[test]
fn a_failed_launcher_explains_the_job_by_its_last_pod() {
    let mut bench = Bench::new();
    bench.step();
    bench.run_launcher(&json!({"phase": "Failed", "reason": "Error", "message": "exit 1"}));
    bench.end(&json!({"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "too many"}));
    let step = bench.step();
    assert_eq!(bench.conditions()[1], "Failed=True BackoffLimitExceeded/Error: too many: exit 1");
    assert!(step.events[0].is_warning());
    assert_eq!(bench.status.replica_statuses["Launcher"].failed, 1);
}

#[test]
fn evicted_workers_fail_the_job() {
    let mut bench = Bench::new();
    bench.step();
    let status = json!({"phase": "Failed", "reason": "Evicted"});
    let pod = bench.workers.get_mut("pi-worker-0").expect("a worker");
    pod.status = Some(serde_json::from_value(status).expect("a status"));
    bench.step();
    assert_eq!(bench.conditions()[1], "Failed=True MPIJobEvicted: 1/2 workers are evicted");
}

#[test]
fn a_suspended_job_has_a_suspended_launcher_and_no_workers() {
    let mut bench = Bench::new();
    bench.spec["runPolicy"] = json!({"suspend": true});
    bench.step();
    assert!(bench.workers.is_empty() && bench.status.start_time.is_none());
    let suspended = |bench: &Bench| bench.launcher.as_ref().and_then(|it| it.spec.as_ref()).and_then(|it| it.suspend);
    assert_eq!(suspended(&bench), Some(true));
    assert!(bench.status.is_true("Suspended"));
    assert!(bench.config.is_some() && bench.secret.is_some() && bench.service.is_some());
    // Admission adds a node selector before it resumes the job.
    bench.spec["runPolicy"] = json!({"suspend": false});
    bench.spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["nodeSelector"] = json!({"pool": "a"});
    let started = json!({"startTime": "2026-01-05T08:00:00Z"});
    bench.launcher.as_mut().expect("one").status = Some(serde_json::from_value(started).expect("a status"));
    let step = bench.step();
    assert!(step.change_launcher.expect("a change").resets_start);
    assert_eq!(suspended(&bench), Some(false));
    let template = bench.launcher.as_ref().and_then(|it| it.spec.as_ref()).map(|it| it.template.clone());
    let selector = template.and_then(|template| template.spec).and_then(|spec| spec.node_selector);
    assert_eq!(selector.expect("a selector")["pool"], "a");
    assert_eq!(bench.workers.len(), 2);
    let resumed = bench.status.condition("Suspended").expect("the condition");
    assert_eq!((resumed.status.as_str(), resumed.reason.as_str()), ("False", "MPIJobResumed"));
    bench.spec["runPolicy"] = json!({"suspend": true});
    bench.step();
    assert!(bench.workers.is_empty());
    assert_eq!(suspended(&bench), Some(true));
    assert!(!bench.status.is_true("Running"));
}

#[test]
fn a_launcher_may_wait_for_the_workers_and_may_be_one() {
    let mut bench = Bench::new();
    bench.spec["launcherCreationPolicy"] = json!("WaitForWorkersReady");
    bench.spec["runLauncherAsWorker"] = json!(true);
    bench.spec["mpiImplementation"] = json!("MPICH");
    bench.step();
    assert!(bench.launcher.is_none());
    bench.spec["runPolicy"] = json!({"suspend": true});
    bench.step();
    assert!(bench.launcher.is_none(), "workers of a suspended job are never ready");
    bench.spec["runPolicy"] = json!({});
    bench.step();
    bench.run_workers();
    bench.step();
    assert!(bench.launcher.is_some());
    let hosts = "pi-launcher.pi.team.svc:2\npi-worker-0.pi.team.svc:2\npi-worker-1.pi.team.svc:2\n";
    assert_eq!(bench.config.as_ref().and_then(|it| it.data.as_ref()).expect("data")["hostfile"], hosts);
    assert_eq!(bench.workers["pi-worker-0"].labels()["training.kubeflow.org/replica-index"], "1");
    let service = bench.service.as_ref().and_then(|it| it.spec.as_ref()).expect("a Service");
    assert_eq!(service.publish_not_ready_addresses, Some(true));
    bench.spec["runPolicy"] = json!({"suspend": true});
    bench.step();
    bench.spec["runPolicy"] = json!({});
    let step = bench.step();
    assert!(step.change_launcher.is_none(), "a resumed launcher waits for the new workers");
    bench.run_workers();
    assert!(bench.step().change_launcher.is_some());
}

#[test]
fn fewer_workers_delete_those_with_the_highest_index() {
    let mut bench = Bench::new();
    bench.step();
    bench.spec["mpiReplicaSpecs"]["Worker"]["replicas"] = json!(1);
    bench.step();
    assert_eq!(bench.workers.keys().collect::<Vec<_>>(), ["pi-worker-0"]);
}

#[test]
fn a_gang_has_the_launcher_and_all_workers() {
    let mut bench = Bench::new();
    bench.gang_scheduler = Some("coscheduler");
    let group = bench.step().pod_group.expect("a group");
    assert_eq!((group.min_member, group.schedule_timeout_seconds), (3, Some(0)));
    assert_eq!(group.min_resources["cpu"].0, "3");
    let worker = &bench.workers["pi-worker-0"];
    assert_eq!(worker.labels()["scheduling.x-k8s.io/pod-group"], "pi");
    assert_eq!(worker.spec.as_ref().expect("a spec").scheduler_name.as_deref(), Some("coscheduler"));
}

#[test]
fn errors_are_in_the_words_of_the_operator() {
    let errors =
        |name: &str, spec: &Value| -> Vec<String> { validate(name, spec).iter().map(ToString::to_string).collect() };
    assert_eq!(errors("pi", &json!({})), ["spec.mpiReplicaSpecs: Required value: must have replica specs"]);
    let mut bad = spec();
    bad["slotsPerWorker"] = json!(-1);
    bad["runPolicy"] = json!({"cleanPodPolicy": "unknown", "backoffLimit": -1, "managedBy": "other"});
    bad["mpiReplicaSpecs"]["Launcher"]["replicas"] = json!(2);
    bad["mpiReplicaSpecs"]["Worker"] = json!({"replicas": 0, "restartPolicy": "Always"});
    assert_eq!(
        errors("pi", &bad),
        [
            "spec.mpiReplicaSpecs[Launcher].replicas: Invalid value: 2: must be 1",
            "spec.mpiReplicaSpecs[Worker].restartPolicy: Unsupported value: \"Always\": supported values: \"Never\", \
             \"OnFailure\"",
            "spec.mpiReplicaSpecs[Worker].template.spec.containers: Required value: must define at least one container",
            "spec.mpiReplicaSpecs[Worker].replicas: Invalid value: 0: must be greater than or equal to 1",
            "spec.slotsPerWorker: Invalid value: -1: must be greater than or equal to 0",
            "spec.runPolicy.cleanPodPolicy: Unsupported value: \"unknown\": supported values: \"All\", \"None\", \
             \"Running\"",
            "spec.runPolicy.backoffLimit: Invalid value: -1: must be greater than or equal to 0",
            "spec.runPolicy.managedBy: Unsupported value: \"other\": supported values: \"kubeflow.org/mpi-operator\", \
             \"kueue.x-k8s.io/multikueue\"",
        ]
    );
    let name = "a-very-long-name-of-a-job-that-leaves-no-room-for-its-workers";
    assert!(errors(name, &spec())[0].contains("will not able to create pod and service with invalid DNS label"));
    let mut bare = spec();
    bare["mpiReplicaSpecs"] = json!({});
    assert_eq!(
        errors("pi", &bare),
        ["spec.mpiReplicaSpecs[Launcher]: Required value: must have Launcher replica spec"]
    );
}
