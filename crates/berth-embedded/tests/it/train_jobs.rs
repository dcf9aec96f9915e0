//! TrainJobs on the whole embedded cluster: their JobSets, pods on simulated nodes, and queues.

use std::time::Duration;

use berth_api::frameworks::{ClusterTrainingRuntime, TrainJob};
use berth_api::jobset::v1alpha2::JobSet;
use berth_embedded::Embedded;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Pod, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::ray_clusters::{eventually, nodes, start, with_queue};

const STEP: &str = "trainer.kubeflow.org/trainjob-ancestor-step";

fn step(name: &str, step: Option<&str>, seconds: u32, depends_on: Value) -> Value {
    let container = if step == Some("trainer") { "node" } else { name };
    let mount = json!([{"name": "initializer", "mountPath": "/workspace/dataset"}]);
    let mut job = json!({"name": name, "template": {"spec": {"template": {
        "metadata": {"annotations": {"berth.dev/run-duration": format!("{seconds}s")}},
        "spec": {"containers": [{"name": container, "image": "runtime:1", "volumeMounts": mount,
                "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}],
            "volumes": [{"name": "initializer", "emptyDir": {}}]}}}}});
    if let Some(step) = step {
        job["template"]["metadata"]["labels"] = json!({STEP: step});
    }
    if depends_on.is_array() {
        job["dependsOn"] = depends_on;
    }
    job
}

/// A runtime of PyTorch whose nodes train for a minute.
fn torch() -> ClusterTrainingRuntime {
    runtime(json!({"numNodes": 1, "torch": {}}), vec![step("node", Some("trainer"), 60, Value::Null)])
}

fn runtime(policy: Value, jobs: Vec<Value>) -> ClusterTrainingRuntime {
    let spec = json!({"mlPolicy": policy, "template": {"spec": {"replicatedJobs": jobs}}});
    serde_json::from_value(json!({"metadata": {"name": "runtime"}, "spec": spec})).expect("a runtime")
}

/// A job `train` with this spec.
fn train(spec: Value) -> TrainJob {
    let mut spec = spec;
    spec["runtimeRef"] = json!({"name": "runtime"});
    serde_json::from_value(json!({"metadata": {"name": "train"}, "spec": spec})).expect("a TrainJob")
}

struct World {
    cluster: Embedded,
    jobs: Api<TrainJob>,
}

impl World {
    async fn new(runtime: &ClusterTrainingRuntime, configuration: Option<Value>) -> Self {
        let cluster = start(json!({"nodePools": nodes()}), configuration).await;
        let client = cluster.admin_client();
        let runtimes = Api::<ClusterTrainingRuntime>::all(client.clone());
        runtimes.create(&PostParams::default(), runtime).await.expect("the runtime is accepted");
        Self { jobs: Api::default_namespaced(client), cluster }
    }

    fn client(&self) -> Client {
        self.cluster.admin_client()
    }

    async fn create(&self, job: &TrainJob) {
        self.jobs.create(&PostParams::default(), job).await.expect("the job is accepted");
    }

    async fn rejected(&self, job: &TrainJob) -> String {
        let error = self.jobs.create(&PostParams::default(), job).await.expect_err("the job is rejected");
        berth_runtime::message(&error)
    }

    async fn patch(&self, patch: Value) {
        self.jobs.patch("train", &PatchParams::default(), &Patch::Merge(patch)).await.expect("the patch is accepted");
    }

    async fn status(&self) -> Value {
        self.jobs.get("train").await.expect("the job exists").status.unwrap_or_default()
    }

    async fn until(&self, kind: &str, status: &str) -> Value {
        eventually(&format!("{kind} is {status}"), async || condition(&self.status().await, kind) == status).await;
        self.status().await
    }

    async fn pods(&self) -> Vec<Pod> {
        let pods = Api::<Pod>::default_namespaced(self.client());
        pods.list(&ListParams::default()).await.expect("pods").items
    }
}

fn condition(status: &Value, kind: &str) -> String {
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.iter().find(|it| it["type"] == kind).and_then(|it| it["status"].as_str());
    found.unwrap_or_default().to_owned()
}

fn env(pod: &Pod, name: &str) -> String {
    let container = &pod.spec.as_ref().expect("a spec").containers[0];
    let found = container.env.iter().flatten().find(|variable| variable.name == name);
    found.and_then(|variable| variable.value.clone()).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_job_trains_on_its_nodes_and_completes() {
    let world = World::new(&torch(), None).await;
    world
        .create(&train(json!({"trainer": {"numNodes": 3, "numProcPerNode": 2, "image": "own:1",
            "command": ["torchrun", "train.py"]}})))
        .await;
    eventually("three pods run", async || world.pods().await.len() == 3).await;
    let pod = world.pods().await.remove(0);
    assert_eq!((env(&pod, "PET_NNODES").as_str(), env(&pod, "PET_NPROC_PER_NODE").as_str()), ("3", "2"));
    assert_eq!(env(&pod, "PET_MASTER_ADDR"), "train-node-0-0.train");
    assert!(pod.name_any().starts_with("train-node-0-"), "{}", pod.name_any());
    assert_eq!(pod.spec.as_ref().expect("a spec").containers[0].image.as_deref(), Some("own:1"));
    let status = world.until("Complete", "True").await;
    assert_eq!(status["jobsStatus"][0]["name"], "node");
    assert_eq!(status["jobsStatus"][0]["succeeded"], 1);
    world.jobs.delete("train", &DeleteParams::default()).await.expect("the job is deleted");
    let jobsets = Api::<JobSet>::default_namespaced(world.client());
    eventually("its JobSet is deleted", async || jobsets.get_opt("train").await.expect("an answer").is_none()).await;
    let maps = Api::<ConfigMap>::default_namespaced(world.client());
    eventually("so is its snapshot", async || {
        maps.get_opt("train-runtime-snapshot").await.expect("an answer").is_none()
    })
    .await;
    world.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_suspended_job_has_no_pods_and_takes_patches() {
    let world = World::new(&torch(), None).await;
    world.create(&train(json!({"suspend": true, "activeDeadlineSeconds": 600}))).await;
    world.until("Suspended", "True").await;
    let jobsets = Api::<JobSet>::default_namespaced(world.client());
    eventually("a suspended JobSet", async || {
        jobsets.get_opt("train").await.expect("an answer").is_some_and(|set| set.spec.suspend == Some(true))
    })
    .await;
    tokio::time::sleep(Duration::from_secs(1200)).await;
    assert!(world.pods().await.is_empty());
    let pod =
        json!({"metadata": {"labels": {"team": "a"}}, "spec": {"tolerations": [{"key": "k", "operator": "Exists"}]}});
    let patch = json!([{"manager": "example.com/team", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [
        {"name": "node", "template": {"spec": {"template": pod}}}]}}}}]);
    world.patch(json!({"spec": {"suspend": false, "runtimePatches": patch}})).await;
    eventually("a pod", async || !world.pods().await.is_empty()).await;
    let pod = world.pods().await.remove(0);
    assert_eq!(pod.labels()["team"], "a");
    let tolerations = pod.spec.expect("a spec").tolerations.unwrap_or_default();
    assert!(tolerations.iter().any(|toleration| toleration.key.as_deref() == Some("k")));
    let job = world.jobs.get("train").await.expect("the job");
    assert!(job.spec["runtimePatches"][0]["time"].is_string());
    assert_eq!(condition(&world.status().await, "Suspended"), "False");

    let patch = json!({"spec": {"runtimePatches": []}});
    let error = world.jobs.patch("train", &PatchParams::default(), &Patch::Merge(patch)).await.expect_err("it runs");
    assert!(berth_runtime::message(&error).contains("can only be modified when the TrainJob is suspended"));
    world.patch(json!({"spec": {"suspend": true}})).await;
    eventually("the pods are gone", async || world.pods().await.is_empty()).await;
    world.patch(json!({"spec": {"suspend": false}})).await;
    world.until("Complete", "True").await;
    world.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_job_that_trains_too_long_fails_and_loses_its_pods() {
    let slow = runtime(json!({"torch": {}}), vec![step("node", Some("trainer"), 3600, Value::Null)]);
    let world = World::new(&slow, None).await;
    world.create(&train(json!({"activeDeadlineSeconds": 120}))).await;
    let status = world.until("Failed", "True").await;
    let failed = &status["conditions"][0];
    assert_eq!(
        (&failed["reason"], &failed["message"]),
        (&json!("DeadlineExceeded"), &json!("TrainJob exceeded its active deadline"))
    );
    eventually("the pods are gone", async || world.pods().await.is_empty()).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(world.pods().await.is_empty(), "the job does not start again");
    world.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_data_set_is_loaded_before_the_training_and_a_changed_runtime_changes_no_job() {
    let after = json!([{"name": "dataset-initializer", "status": "Complete"}]);
    let steps = vec![
        step("dataset-initializer", Some("dataset-initializer"), 30, Value::Null),
        step("node", Some("trainer"), 60, after),
    ];
    let world = World::new(&runtime(json!({"torch": {}}), steps), None).await;
    world.create(&train(json!({"initializer": {"dataset": {"storageUri": "hf://data/set"}}}))).await;
    eventually("the loader runs", async || world.pods().await.len() == 1).await;
    let loader = world.pods().await.remove(0);
    assert!(loader.name_any().starts_with("train-dataset-initializer-0-0"));
    assert_eq!(env(&loader, "STORAGE_URI"), "hf://data/set");
    let runtimes = Api::<ClusterTrainingRuntime>::all(world.client());
    runtimes.delete("runtime", &DeleteParams::default()).await.expect("the runtime is deleted");
    let status = world.until("Complete", "True").await;
    let names: Vec<_> = status["jobsStatus"].as_array().expect("jobs").iter().map(|job| job["name"].clone()).collect();
    assert_eq!(names, ["dataset-initializer", "node"]);
    world.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_mpi_job_has_keys_and_a_list_of_hosts() {
    let steps = vec![
        step("node", None, 3600, Value::Null),
        step("launcher", Some("trainer"), 60, json!([{"name": "node", "status": "Ready"}])),
    ];
    let mut mpi = runtime(json!({"mpi": {"numProcPerNode": 2, "runLauncherAsNode": true}}), steps);
    let spec = &mut mpi.spec["template"]["spec"];
    spec["successPolicy"] = json!({"operator": "All", "targetReplicatedJobs": ["launcher"]});
    spec["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]["name"] = json!("node");
    let world = World::new(&mpi, None).await;
    world.create(&train(json!({"trainer": {"numNodes": 3, "command": ["mpirun", "true"]}}))).await;
    world.until("Complete", "True").await;
    let maps = Api::<ConfigMap>::default_namespaced(world.client());
    let hosts = maps.get("train-mpi-hostfile").await.expect("the hosts").data.expect("data");
    assert_eq!(
        hosts["hostfile"],
        "train-node-0-0.train slots=2\ntrain-node-0-1.train slots=2\ntrain-launcher-0-0.train slots=2\n"
    );
    let secrets = Api::<Secret>::default_namespaced(world.client());
    let keys = secrets.get("train-mpi-ssh-auth").await.expect("the keys");
    assert_eq!((keys.type_.as_deref(), keys.immutable), (Some("kubernetes.io/ssh-auth"), Some(true)));
    assert!(keys.data.expect("data").contains_key("ssh-publickey"));
    world.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_job_that_does_not_fit_its_runtime_is_rejected() {
    let world = World::new(&torch(), None).await;
    let reserved = world.rejected(&train(json!({"trainer": {"env": [{"name": "PET_NNODES", "value": "1"}]}}))).await;
    assert!(reserved.starts_with("admission webhook \"validator.trainjob.trainer.kubeflow.org\" denied the request: "));
    assert!(reserved.contains("must not have reserved envs, invalid envs configured: [PET_NNODES]"), "{reserved}");
    let mut lost = train(json!({}));
    lost.spec["runtimeRef"]["name"] = json!("lost");
    assert!(world.rejected(&lost).await.contains("must be created before the TrainJob is created"));
    lost.spec["runtimeRef"]["kind"] = json!("Other");
    assert!(world.rejected(&lost).await.contains("unsupported runtime: Other.trainer.kubeflow.org"));
    let mut named = train(json!({}));
    named.metadata.name = Some("1train".to_owned());
    assert!(world.rejected(&named).await.contains("metadata.name must match RFC 1035 DNS label format"));
    world.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_needs_a_missing_kind_is_an_event_of_the_job() {
    let mut gang = torch();
    gang.spec["podGroupPolicy"] = json!({"volcano": {}});
    let world = World::new(&gang, None).await;
    world.create(&train(json!({}))).await;
    let events = Api::<Event>::default_namespaced(world.client());
    eventually("an event", async || {
        let all = events.list(&ListParams::default()).await.expect("events").items;
        let reason = |event: &Event| event.reason.as_deref() == Some("TrainJobResourcesCreationFailed");
        all.iter().any(|event| reason(event) && event.message.as_deref().is_some_and(|it| it.contains("volcano")))
    })
    .await;
    world.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_queued_job_waits_for_quota_runs_and_returns_it() {
    let configuration = json!({
        "apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration",
        "integrations": {"frameworks": ["trainer.kubeflow.org/trainjob"]}});
    let world = World::new(&torch(), Some(configuration)).await;
    with_queue(&world.client()).await;
    // The queue has 6 CPUs. The second job waits until the first one has completed.
    let queued = |name: &str, nodes: i32| {
        let mut job = train(json!({"trainer": {"numNodes": nodes}}));
        job.metadata.name = Some(name.to_owned());
        job.labels_mut().insert("kueue.x-k8s.io/queue-name".to_owned(), "lq".to_owned());
        job
    };
    world.create(&queued("train", 4)).await;
    eventually("four pods run", async || world.pods().await.len() == 4).await;
    world.create(&queued("later", 3)).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    let later = world.jobs.get("later").await.expect("the second job");
    assert_eq!(later.spec["suspend"], true);
    let suspended = later.status.unwrap_or_default();
    assert_eq!(condition(&suspended, "Suspended"), "True");
    world.until("Complete", "True").await;
    eventually("the second job completes", async || {
        let job = world.jobs.get("later").await.expect("the second job");
        condition(&job.status.unwrap_or_default(), "Complete") == "True"
    })
    .await;
    world.cluster.stop().await;
}
