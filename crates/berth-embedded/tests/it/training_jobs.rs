//! Kubeflow's training jobs and MPIJobs on the whole embedded cluster: pods on simulated nodes, and
//! queues.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_embedded::Embedded;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{Event, Pod, Secret, Service};
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::ray_clusters::{create, start};

/// Nodes without and with GPUs.
fn nodes() -> Value {
    let pool = |name: &str, machine: Value| json!({"name": name, "machine": machine, "initialNodes": 4, "minNodes": 4, "maxNodes": 4, "static": true});
    let accelerator = json!({"type": "nvidia-l4", "count": 8});
    json!([
        pool("plain", json!({"cpu": "64", "memory": "256Gi"})),
        pool("gpu", json!({"cpu": "64", "memory": "256Gi", "accelerator": accelerator})),
    ])
}

async fn eventually(what: &str, mut done: impl AsyncFnMut() -> bool) {
    for _ in 0..1800 {
        if done().await {
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("never: {what}");
}

/// The jobs of a kind in a namespace.
fn jobs(client: &Client, version: &str, kind: &str, namespace: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("kubeflow.org", version, kind));
    Api::namespaced_with(client.clone(), namespace, &resource)
}

async fn status(api: &Api<DynamicObject>, name: &str) -> Value {
    api.get(name).await.expect("the job exists").data["status"].clone()
}

/// The status of a condition of a job; `None` without the condition.
fn condition<'a>(status: &'a Value, type_: &str) -> Option<&'a str> {
    let conditions = status["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == type_)?["status"].as_str()
}

fn template(container: &str, duration: &str) -> Value {
    json!({"metadata": {"annotations": {"berth.dev/run-duration": duration}},
        "spec": {"containers": [{"name": container, "image": "train", "resources": {"requests": {"cpu": "1"}}}]}})
}

/// A PyTorchJob of a master and a worker.
fn pytorch(name: &str, duration: &str) -> Value {
    let replica = json!({"replicas": 1, "restartPolicy": "OnFailure", "template": template("pytorch", duration)});
    json!({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name},
        "spec": {"pytorchReplicaSpecs": {"Master": replica, "Worker": replica}}})
}

struct World {
    cluster: Embedded,
    client: Client,
    pytorch: Api<DynamicObject>,
}

impl World {
    async fn new(operators: Value, configuration: Option<Value>) -> Self {
        let cluster = start(json!({"nodePools": nodes(), "operators": operators}), configuration).await;
        let client = cluster.admin_client();
        Self { pytorch: jobs(&client, "v1", "PyTorchJob", "default"), client, cluster }
    }

    async fn create(&self, object: Value) {
        create(&self.client, object, "default").await.expect("the object is accepted");
    }

    async fn merge(&self, api: &Api<DynamicObject>, name: &str, patch: Value) {
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.expect("the patch is accepted");
    }

    /// Names of the pods that run.
    async fn running(&self) -> Vec<String> {
        let pods =
            Api::<Pod>::default_namespaced(self.client.clone()).list(&ListParams::default()).await.expect("pods");
        let runs = |pod: &Pod| {
            pod.metadata.deletion_timestamp.is_none()
                && pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running"))
        };
        pods.items.into_iter().filter(runs).filter_map(|pod| pod.metadata.name).collect()
    }

    async fn until(&self, api: &Api<DynamicObject>, name: &str, type_: &str) {
        eventually(&format!("{name} is {type_}"), async || condition(&status(api, name).await, type_) == Some("True"))
            .await;
    }
}

/// Creates the objects of a queue with 2 CPUs.
async fn with_queue(world: &World) {
    let kueue = "kueue.x-k8s.io/v1beta2";
    for object in [
        json!({"apiVersion": kueue, "kind": "ResourceFlavor", "metadata": {"name": "any"}}),
        json!({"apiVersion": kueue, "kind": "ClusterQueue", "metadata": {"name": "cq"}, "spec": {
            "namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [
                {"name": "any", "resources": [{"name": "cpu", "nominalQuota": "2"}]}]}]}}),
        json!({"apiVersion": kueue, "kind": "LocalQueue", "metadata": {"name": "lq"},
            "spec": {"clusterQueue": "cq"}}),
    ] {
        world.create(object).await;
    }
}

fn configuration(framework: &str) -> Option<Value> {
    Some(json!({"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration",
        "integrations": {"frameworks": [framework]}}))
}

#[tokio::test(start_paused = true)]
async fn queued_pytorch_jobs_are_suspended_admitted_and_succeed_in_turn() {
    let world = World::new(json!({}), configuration("kubeflow.org/pytorchjob")).await;
    with_queue(&world).await;
    for name in ["first", "second"] {
        let mut job = pytorch(name, "60s");
        job["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": "lq"});
        world.create(job).await;
    }
    world.until(&world.pytorch, "first", "Running").await;
    let first = status(&world.pytorch, "first").await;
    assert_eq!(condition(&first, "Suspended"), Some("False"), "{first}");
    assert_eq!(world.running().await, ["first-master-0", "first-worker-0"]);
    // The quota is used up.
    let second = status(&world.pytorch, "second").await;
    assert_eq!(condition(&second, "Suspended"), Some("True"), "{second}");
    assert!(second["startTime"].is_null(), "{second}");

    world.until(&world.pytorch, "first", "Succeeded").await;
    world.until(&world.pytorch, "second", "Running").await;
    world.until(&world.pytorch, "second", "Succeeded").await;
    let done = status(&world.pytorch, "second").await;
    assert_eq!(done["replicaStatuses"]["Master"]["succeeded"], 1);
    assert_eq!(condition(&done, "Running"), Some("False"));
    assert!(done["completionTime"].is_string());
    world.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_evicted_pytorch_job_stops_and_is_admitted_again() {
    let world = World::new(json!({}), configuration("kubeflow.org/pytorchjob")).await;
    with_queue(&world).await;
    let mut job = pytorch("train", "600s");
    job["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": "lq"});
    world.create(job).await;
    world.until(&world.pytorch, "train", "Running").await;
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta2", "ClusterQueue"));
    let queues: Api<DynamicObject> = Api::all_with(world.client.clone(), &resource);
    world.merge(&queues, "cq", json!({"spec": {"stopPolicy": "HoldAndDrain"}})).await;
    world.until(&world.pytorch, "train", "Suspended").await;
    eventually("no pod runs", async || world.running().await.is_empty()).await;
    world.merge(&queues, "cq", json!({"spec": {"stopPolicy": "None"}})).await;
    world.until(&world.pytorch, "train", "Running").await;
    world.until(&world.pytorch, "train", "Succeeded").await;
    world.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_queued_mpi_job_is_suspended_admitted_and_succeeds() {
    let world = World::new(json!({}), configuration("kubeflow.org/mpijob")).await;
    with_queue(&world).await;
    let api = jobs(&world.client, "v2beta1", "MPIJob", "default");
    world
        .create(json!({"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob",
        "metadata": {"name": "pi", "labels": {"kueue.x-k8s.io/queue-name": "lq"}},
        "spec": {"runPolicy": {"cleanPodPolicy": "Running"}, "mpiReplicaSpecs": {
            "Launcher": {"replicas": 1, "template": template("mpi", "60s")},
            "Worker": {"replicas": 1, "template": {"spec": template("mpi", "")["spec"]}}}}}))
        .await;
    world.until(&api, "pi", "Running").await;
    let seen = status(&api, "pi").await;
    assert_eq!(condition(&seen, "Suspended"), Some("False"), "{seen}");
    assert_eq!(seen["replicaStatuses"], json!({"Launcher": {"active": 1}, "Worker": {"active": 1}}));
    let secrets: Api<Secret> = Api::default_namespaced(world.client.clone());
    let keys = secrets.get("pi-ssh").await.expect("the Secret").data.expect("keys");
    assert!(keys["ssh-publickey"].0.starts_with(b"ssh-ed25519 "));
    world.until(&api, "pi", "Succeeded").await;
    eventually("the workers are deleted", async || world.running().await.is_empty()).await;
    // The version of the training operator shows the same object.
    let older = jobs(&world.client, "v1", "MPIJob", "default");
    assert_eq!(condition(&status(&older, "pi").await, "Succeeded"), Some("True"));
    world.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_gang_scheduler_gets_a_pod_group_with_the_job() {
    let operators = json!({"gangSchedulerName": "scheduler-plugins-scheduler"});
    let world = World::new(operators, None).await;
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("scheduling.x-k8s.io", "v1alpha1", "PodGroup"));
    let Some(file) = berth_testing::shared("kubernetes/crds/scheduler-plugins/scheduling.x-k8s.io_podgroups.yaml")
    else {
        return;
    };
    let text = std::fs::read_to_string(file).expect("a file");
    let definition = berth_apimachinery::decode::documents(&text).expect("YAML").remove(0);
    let definitions =
        ApiResource::from_gvk(&GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition"));
    let api: Api<DynamicObject> = Api::all_with(world.client.clone(), &definitions);
    let definition: DynamicObject = serde_json::from_value(definition).expect("a definition");
    match api.create(&PostParams::default(), &definition).await {
        Err(error) if !berth_runtime::is_already_exists(&error) => panic!("{error}"),
        _ => {}
    }
    world.create(pytorch("train", "60s")).await;
    world.until(&world.pytorch, "train", "Running").await;
    let groups: Api<DynamicObject> = Api::default_namespaced_with(world.client.clone(), &resource);
    let group = groups.get("train").await.expect("the PodGroup");
    assert_eq!(group.data["spec"], json!({"minMember": 2, "minResources": {"cpu": "2"}}));
    let pods = Api::<Pod>::default_namespaced(world.client.clone());
    let pod = pods.get("train-worker-0").await.expect("the pod");
    assert_eq!(pod.metadata.labels.expect("labels")["scheduling.x-k8s.io/pod-group"], "train");
    world.until(&world.pytorch, "train", "Succeeded").await;
    eventually("the PodGroup is deleted", async || groups.get_opt("train").await.expect("an answer").is_none()).await;
    world.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_elastic_job_is_scaled_through_its_subresource() {
    let world = World::new(json!({}), None).await;
    let metric = json!({"type": "Resource", "resource": {"name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": 80}}});
    world
        .create(json!({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "elastic"},
        "spec": {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 4, "metrics": [metric]},
            "pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": template("pytorch", "forever")}}}}))
        .await;
    eventually("two workers run", async || world.running().await.len() == 2).await;
    let autoscalers: Api<HorizontalPodAutoscaler> = Api::default_namespaced(world.client.clone());
    let spec = autoscalers.get("elastic").await.expect("an autoscaler").spec.expect("a spec");
    assert_eq!((spec.max_replicas, spec.scale_target_ref.name.as_str()), (4, "elastic"));
    let scale = Patch::Merge(json!({"spec": {"replicas": 3}}));
    let scaled = world.pytorch.patch_scale("elastic", &PatchParams::default(), &scale).await.expect("scaled");
    let selector = scaled.status.and_then(|status| status.selector).unwrap_or_default();
    assert!(selector.contains("training.kubeflow.org/job-name=elastic"), "{selector}");
    eventually("three workers run", async || world.running().await.len() == 3).await;
    world.merge(&world.pytorch, "elastic", json!({"spec": {"runPolicy": {"suspend": true}}})).await;
    eventually("no worker runs", async || world.running().await.is_empty()).await;
    assert!(autoscalers.get_opt("elastic").await.expect("an answer").is_none());
    world.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn failed_pods_fail_or_restart_a_job_and_finished_jobs_expire() {
    let world = World::new(json!({}), None).await;
    let mut job = pytorch("never", "30s");
    job["spec"]["runPolicy"] = json!({"cleanPodPolicy": "All", "ttlSecondsAfterFinished": 120});
    let worker = &mut job["spec"]["pytorchReplicaSpecs"]["Worker"];
    worker["restartPolicy"] = json!("Never");
    worker["template"]["metadata"]["annotations"]["berth.dev/exit-code"] = json!("3");
    worker["template"]["metadata"]["annotations"]["berth.dev/run-duration"] = json!("10s");
    world.create(job).await;
    world.until(&world.pytorch, "never", "Failed").await;
    let failed = status(&world.pytorch, "never").await;
    let message = failed["conditions"].as_array().expect("conditions").last().expect("one")["message"].clone();
    assert_eq!(message, "PyTorchJob never is failed because 1 Worker replica(s) failed.");
    let pods = Api::<Pod>::default_namespaced(world.client.clone());
    let services = Api::<Service>::default_namespaced(world.client.clone());
    eventually("pods and Services are deleted", async || {
        let services = services.list(&ListParams::default().labels("training.kubeflow.org/job-name=never")).await;
        pods.list(&ListParams::default()).await.expect("pods").items.is_empty()
            && services.expect("Services").items.is_empty()
    })
    .await;
    eventually("the job is deleted", async || world.pytorch.get_opt("never").await.expect("an answer").is_none()).await;
    let events: Api<Event> = Api::default_namespaced(world.client.clone());
    let events = events.list(&ListParams::default()).await.expect("events").items;
    let reasons: Vec<_> = events.iter().filter_map(|event| event.reason.as_deref()).collect();
    for reason in ["SuccessfulCreatePod", "SuccessfulCreateService", "PyTorchJobFailed", "SuccessfulDeletePod"] {
        assert!(reasons.contains(&reason), "{reason} is not in {reasons:?}");
    }
    let metrics = http::Request::get("/metrics").body(Vec::new()).expect("a request");
    let metrics = world.client.request_text(metrics).await.expect("metrics");
    for step in ["created", "failed", "deleted"] {
        let name = format!("training_operator_jobs_{step}_total");
        let expected = format!("{name}{{framework=\"pytorch\",job_namespace=\"default\"}} 1\n");
        assert!(metrics.contains(&expected), "{metrics}");
    }
    world.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn invalid_jobs_are_rejected_in_the_words_of_the_training_operator() {
    let world = World::new(json!({}), None).await;
    let mut job = pytorch("train", "60s");
    job["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"] = json!(2);
    let error = create(&world.client, job, "default").await.expect_err("two masters").to_string();
    let expected = "admission webhook \"validator.pytorchjob.training-operator.kubeflow.org\" denied the request: \
                    spec.pytorchReplicaSpecs[Master].replicas: Forbidden: must be 1";
    assert!(error.contains(expected), "{error}");
    // An MPIJob is checked when it is reconciled.
    world
        .create(json!({"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": "pi"},
        "spec": {"mpiReplicaSpecs": {"Worker": {"replicas": 1, "template": template("mpi", "60s")}}}}))
        .await;
    let events: Api<Event> = Api::default_namespaced(world.client.clone());
    eventually("an event", async || {
        let events = events.list(&ListParams::default()).await.expect("events").items;
        events.iter().any(|event| {
            event.reason.as_deref() == Some("ValidationError")
                && event.message.as_deref().is_some_and(|it| it.contains("must have Launcher replica spec"))
        })
    })
    .await;
    world.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn operators_that_are_off_leave_jobs_alone() {
    let world = World::new(json!({"training": false, "mpi": false}), None).await;
    let mut job = pytorch("train", "60s");
    // Another operator's webhook would check this.
    job["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"] = json!(2);
    world.create(job).await;
    let events: Api<Event> = Api::default_namespaced(world.client.clone());
    eventually("an event", async || {
        let events = events.list(&ListParams::default()).await.expect("events").items;
        events.iter().any(|event| {
            event.reason.as_deref() == Some("NoOperator")
                && event.message.as_deref().is_some_and(|it| it.contains("operators.training"))
        })
    })
    .await;
    assert!(world.running().await.is_empty());
    world.cluster.stop().await;
}

/// Samples that do not run here, with the reason.
const NOT_RUN: &[(&str, &str)] =
    &[("xgboostjob_v1alpha1_rabit_test.yaml", "an API version that no release of the operator serves")];

fn samples(folder: &Path, found: &mut BTreeMap<PathBuf, Vec<Value>>) {
    let mut entries: Vec<PathBuf> =
        folder.read_dir().expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            samples(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            let text = std::fs::read_to_string(&path).expect("a file");
            found.insert(path, berth_apimachinery::decode::documents(&text).expect("YAML"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_training_operators_samples_succeed() {
    let Some(folder) = berth_testing::shared("scenarios/upstream-samples/training-operator/examples") else { return };
    let mut found = BTreeMap::new();
    samples(&folder, &mut found);
    let world = World::new(json!({}), None).await;
    let mut waiting = BTreeMap::new();
    for (number, (path, documents)) in found.into_iter().enumerate() {
        let file = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        if NOT_RUN.iter().any(|(name, _)| *name == file) {
            continue;
        }
        // Samples share names.
        let namespace = format!("s{number}");
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        create(&world.client, object, "").await.expect("a namespace");
        for mut document in documents.into_iter().filter(|document| document["apiVersion"] == "kubeflow.org/v1") {
            // Volumes that their users have made.
            remove_volumes(&mut document);
            if document["metadata"]["name"].is_null() {
                document["metadata"]["name"] = json!("sample");
            }
            let (kind, name) = (document["kind"].clone(), document["metadata"]["name"].clone());
            create(&world.client, document, &namespace).await.unwrap_or_else(|error| panic!("{file}: {error}"));
            let key = (namespace.clone(), kind.as_str().expect("a kind").to_owned());
            waiting.insert(key, (file.clone(), name.as_str().expect("a name").to_owned()));
        }
    }
    assert!(waiting.len() > 15, "only {} samples", waiting.len());
    for ((namespace, kind), (file, name)) in waiting {
        let api = jobs(&world.client, "v1", &kind, &namespace);
        let mut last = Value::Null;
        for _ in 0..300 {
            last = status(&api, &name).await;
            if condition(&last, "Succeeded") == Some("True") {
                break;
            }
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        assert_eq!(condition(&last, "Succeeded"), Some("True"), "{file}: {last}");
    }
    world.cluster.stop().await;
}

/// Removes the volumes from all pod templates of a job.
fn remove_volumes(value: &mut Value) {
    if let Some(object) = value.as_object_mut() {
        object.remove("volumes");
        object.remove("volumeMounts");
        object.values_mut().for_each(remove_volumes);
    } else if let Some(list) = value.as_array_mut() {
        list.iter_mut().for_each(remove_volumes);
    }
}
