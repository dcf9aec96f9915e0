//! Tests of RayClusters in a complete embedded cluster, with simulated nodes and with queues.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::frameworks::RayCluster;
use berth_apiserver::UserInfo;
use berth_embedded::{Embedded, Options};
use berth_runtime::Clock;
use k8s_openapi::api::core::v1::{Event, Pod, Service};
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde_json::{Value, json};

/// Starts a cluster with this ClusterConfiguration and this configuration of the controllers.
pub async fn start(cluster: Value, configuration: Option<Value>) -> Embedded {
    let clock = Clock::scaled("2026-01-05T09:00:00Z".parse().expect("a timestamp"), 1.0);
    Embedded::start(Options::in_memory(clock, 1, Some(cluster), configuration)).await.expect("the cluster starts")
}

/// Four nodes of 16 CPUs.
pub fn nodes() -> Value {
    json!([{"name": "cpu", "machineType": "n2-standard-16", "initialNodes": 4, "minNodes": 4, "maxNodes": 4,
        "static": true}])
}

pub async fn eventually(what: &str, mut done: impl AsyncFnMut() -> bool) {
    for _ in 0..3600 {
        if done().await {
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("did not happen within an hour of cluster time: {what}");
}

fn template() -> Value {
    json!({"spec": {"containers": [{"name": "ray", "image": "rayproject/ray:2.46.0",
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}]}})
}

/// A RayCluster `demo` with a group of two workers.
fn demo(change: impl FnOnce(&mut Value)) -> RayCluster {
    let mut cluster = json!({"metadata": {"name": "demo"}, "spec": {
        "headGroupSpec": {"template": template()},
        "workerGroupSpecs": [{"groupName": "small", "replicas": 2, "maxReplicas": 8, "template": template()}]}});
    change(&mut cluster);
    serde_json::from_value(cluster).expect("a RayCluster")
}

struct World {
    cluster: Embedded,
    clusters: Api<RayCluster>,
    pods: Api<Pod>,
}

impl World {
    async fn new(configuration: Option<Value>) -> Self {
        let cluster = start(json!({"nodePools": nodes()}), configuration).await;
        let client = cluster.admin_client();
        Self { clusters: Api::default_namespaced(client.clone()), pods: Api::default_namespaced(client), cluster }
    }

    async fn create(&self, cluster: &RayCluster) {
        self.clusters.create(&PostParams::default(), cluster).await.expect("the cluster is accepted");
    }

    async fn patch(&self, patch: Value) {
        let patch = Patch::Json::<()>(serde_json::from_value(patch).expect("a JSON patch"));
        self.clusters.patch("demo", &PatchParams::default(), &patch).await.expect("the patch is accepted");
    }

    async fn status(&self) -> Value {
        self.clusters.get("demo").await.expect("the cluster exists").status.unwrap_or_default()
    }

    async fn until(&self, what: &str, field: &str, value: Value) {
        eventually(what, async || self.status().await.pointer(field) == Some(&value)).await;
    }

    /// UIDs of the running Ray pods by name.
    async fn running(&self) -> BTreeMap<String, String> {
        let pods = self.pods.list(&ListParams::default().labels("ray.io/cluster=demo")).await.expect("pods");
        let running = pods.items.into_iter().filter(|pod| {
            pod.metadata.deletion_timestamp.is_none()
                && pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running"))
        });
        running.map(|pod| (pod.metadata.name.unwrap_or_default(), pod.metadata.uid.unwrap_or_default())).collect()
    }

    async fn until_running(&self, count: usize) -> BTreeMap<String, String> {
        eventually(&format!("{count} pods run"), async || self.running().await.len() == count).await;
        self.running().await
    }
}

fn is_true(status: &Value, condition: &str) -> bool {
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|it| it["type"] == condition && it["status"] == "True")
}

#[tokio::test(start_paused = true)]
async fn a_cluster_is_provisioned_scaled_suspended_and_resumed() {
    let world = World::new(None).await;
    world.create(&demo(|_| {})).await;
    world.until("the cluster is ready", "/state", json!("ready")).await;
    let status = world.status().await;
    assert!(is_true(&status, "HeadPodReady") && is_true(&status, "RayClusterProvisioned"));
    assert_eq!(status["endpoints"]["dashboard"], "8265");
    assert_eq!(status["desiredCPU"], "3");
    let client = world.cluster.admin_client();
    let service = Api::<Service>::default_namespaced(client).get("demo-head-svc").await.expect("the head's Service");
    assert_eq!(service.spec.expect("a spec").cluster_ip.as_deref(), Some("None"));
    let before = world.until_running(3).await;

    world.patch(json!([{"op": "replace", "path": "/spec/workerGroupSpecs/0/replicas", "value": 5}])).await;
    let grown = world.until_running(6).await;
    assert!(before.iter().all(|(name, uid)| grown.get(name) == Some(uid)), "growth restarts nothing");
    world.until("the status counts the new workers", "/readyWorkerReplicas", json!(5)).await;
    world.patch(json!([{"op": "replace", "path": "/spec/workerGroupSpecs/0/replicas", "value": 1}])).await;
    let shrunk = world.until_running(2).await;
    assert!(shrunk.iter().all(|(name, uid)| before.get(name) == Some(uid)), "the oldest workers stay");

    world.patch(json!([{"op": "add", "path": "/spec/suspend", "value": true}])).await;
    world.until("the cluster is suspended", "/state", json!("suspended")).await;
    assert!(world.running().await.is_empty());
    let status = world.status().await;
    assert!(is_true(&status, "RayClusterSuspended") && !is_true(&status, "RayClusterSuspending"));
    world.patch(json!([{"op": "replace", "path": "/spec/suspend", "value": false}])).await;
    world.until("the cluster is ready again", "/state", json!("ready")).await;
    assert!(!is_true(&world.status().await, "RayClusterSuspended"));

    world.clusters.delete("demo", &DeleteParams::default()).await.expect("the cluster is deleted");
    eventually("the pods are deleted with the cluster", async || world.running().await.is_empty()).await;
    world.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_host_is_replaced_with_its_whole_slice() {
    let world = World::new(None).await;
    world
        .create(&demo(|cluster| {
            cluster["spec"]["workerGroupSpecs"][0]["numOfHosts"] = json!(2);
        }))
        .await;
    world.until("the cluster is ready", "/state", json!("ready")).await;
    let before = world.until_running(5).await;
    let pods = world.pods.list(&ListParams::default().labels("ray.io/node-type=worker")).await.expect("pods").items;
    let replica = |pod: &Pod| pod.metadata.labels.as_ref().expect("labels")["ray.io/worker-group-replica-name"].clone();
    let lost = replica(&pods[0]);
    world.pods.delete(pods[0].metadata.name.as_deref().expect("a name"), &DeleteParams::default()).await.expect("gone");
    eventually("the slice is replaced", async || {
        let running = world.running().await;
        running.len() == 5 && running != before
    })
    .await;
    let after = world.running().await;
    let hosts_of_lost = pods.iter().filter(|pod| replica(pod) == lost);
    let gone: Vec<_> = hosts_of_lost.map(|pod| pod.metadata.name.clone().expect("a name")).collect();
    assert_eq!(gone.len(), 2);
    assert!(gone.iter().all(|name| !after.contains_key(name)), "both hosts are new");
    assert_eq!(before.iter().filter(|(name, uid)| after.get(*name) == Some(uid)).count(), 3, "the other pods stay");
    world.cluster.stop().await;
}

/// Creates the objects of a queue with 6 CPUs.
pub async fn with_queue(client: &Client) {
    let kueue = "kueue.x-k8s.io/v1beta2";
    for object in [
        json!({"apiVersion": kueue, "kind": "ResourceFlavor", "metadata": {"name": "any"}}),
        json!({"apiVersion": kueue, "kind": "ClusterQueue", "metadata": {"name": "cq"}, "spec": {
            "namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["cpu", "memory"], "flavors": [
                {"name": "any", "resources": [{"name": "cpu", "nominalQuota": "6"},
                    {"name": "memory", "nominalQuota": "100Gi"}]}]}]}}),
        json!({"apiVersion": kueue, "kind": "LocalQueue", "metadata": {"name": "lq", "namespace": "default"},
            "spec": {"clusterQueue": "cq"}}),
    ] {
        create(client, object, "default").await.expect("the object is accepted");
    }
}

/// Creates an object of any kind, in this namespace if its kind is namespaced.
pub async fn create(client: &Client, object: Value, namespace: &str) -> kube::Result<DynamicObject> {
    let mut object: DynamicObject = serde_json::from_value(object).expect("an object");
    let types = object.types.clone().expect("apiVersion and kind");
    let (group, version) = types.api_version.split_once('/').unwrap_or(("", &types.api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &types.kind));
    let is_cluster_wide = matches!(types.kind.as_str(), "ResourceFlavor" | "ClusterQueue" | "Namespace");
    object.metadata.namespace = (!is_cluster_wide).then(|| namespace.to_owned());
    let api: Api<DynamicObject> = match is_cluster_wide {
        true => Api::all_with(client.clone(), &resource),
        false => Api::namespaced_with(client.clone(), namespace, &resource),
    };
    api.create(&PostParams::default(), &object).await
}

#[tokio::test(start_paused = true)]
async fn an_elastic_cluster_takes_and_returns_quota_and_restarts_nothing() {
    let configuration = json!({
        "apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration",
        "integrations": {"frameworks": ["ray.io/raycluster"]},
        "featureGates": {"ElasticJobsViaWorkloadSlices": true}});
    let world = World::new(Some(configuration)).await;
    let client = world.cluster.admin_client();
    with_queue(&client).await;
    world
        .create(&demo(|cluster| {
            cluster["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": "lq"});
            cluster["metadata"]["annotations"] = json!({"kueue.x-k8s.io/elastic-job": "true"});
        }))
        .await;
    let before = world.until_running(3).await;
    let queue = ApiResource::from_gvk(&GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta2", "ClusterQueue"));
    let queues: Api<DynamicObject> = Api::all_with(client.clone(), &queue);
    let used = async || {
        let queue = queues.get("cq").await.expect("the queue");
        queue.data["status"]["flavorsUsage"][0]["resources"][0]["total"].as_str().unwrap_or("0").to_owned()
    };
    eventually("three CPUs are used", async || used().await == "3").await;

    world.patch(json!([{"op": "replace", "path": "/spec/workerGroupSpecs/0/replicas", "value": 5}])).await;
    let grown = world.until_running(6).await;
    eventually("six CPUs are used", async || used().await == "6").await;
    assert!(before.iter().all(|(name, uid)| grown.get(name) == Some(uid)), "growth restarts nothing");

    // No quota is left: the additional pod waits, and nothing else changes.
    world.patch(json!([{"op": "replace", "path": "/spec/workerGroupSpecs/0/replicas", "value": 6}])).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.running().await, grown);
    assert_eq!(used().await, "6");

    world.patch(json!([{"op": "replace", "path": "/spec/workerGroupSpecs/0/replicas", "value": 1}])).await;
    let shrunk = world.until_running(2).await;
    eventually("two CPUs are used", async || used().await == "2").await;
    assert!(shrunk.iter().all(|(name, uid)| grown.get(name) == Some(uid)), "shrinking restarts nothing");
    world.cluster.stop().await;
}

/// CPUs in use in the queue.
async fn used(client: &Client) -> String {
    let queue = ApiResource::from_gvk(&GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta2", "ClusterQueue"));
    let queue = Api::<DynamicObject>::all_with(client.clone(), &queue).get("cq").await.expect("the queue");
    queue.data["status"]["flavorsUsage"][0]["resources"][0]["total"].as_str().unwrap_or("0").to_owned()
}

/// What Ray's autoscaler writes: the size of the group, and the workers that leave.
fn autoscaled(replicas: u32, leave: &[&String]) -> Patch<()> {
    let patch = json!([
        {"op": "replace", "path": "/spec/workerGroupSpecs/0/replicas", "value": replicas},
        {"op": "add", "path": "/spec/workerGroupSpecs/0/scaleStrategy", "value": {"workersToDelete": leave}}]);
    Patch::Json(serde_json::from_value(patch).expect("a JSON patch"))
}

fn elastic_ray() -> Value {
    json!({"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration",
        "integrations": {"frameworks": ["ray.io/rayjob", "ray.io/raycluster"]},
        "featureGates": {"ElasticJobsViaWorkloadSlices": true}})
}

/// A client of the service account of the autoscaler in the head pod of the only cluster.
async fn autoscaler(world: &World) -> Client {
    let heads = world.pods.list(&ListParams::default().labels("ray.io/node-type=head")).await.expect("pods").items;
    let account = heads[0].spec.as_ref().and_then(|spec| spec.service_account_name.clone()).expect("an account");
    let groups = ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"];
    let user = UserInfo::new(format!("system:serviceaccount:default:{account}"), &groups);
    Client::new(world.cluster.server().in_process(user), "default")
}

/// The head and the autoscaler take 1.5 CPUs, a worker 1, and a RayJob's submitter 0.5, of 6.
#[tokio::test(start_paused = true)]
async fn the_autoscaler_resizes_a_cluster_within_its_quota() {
    let world = World::new(Some(elastic_ray())).await;
    let client = world.cluster.admin_client();
    with_queue(&client).await;
    world
        .create(&demo(|cluster| {
            cluster["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": "lq"});
            cluster["metadata"]["annotations"] = json!({"kueue.x-k8s.io/elastic-job": "true"});
            cluster["spec"]["enableInTreeAutoscaling"] = json!(true);
        }))
        .await;
    let before = world.until_running(3).await;
    let ray: Api<RayCluster> = Api::default_namespaced(autoscaler(&world).await);
    ray.patch("demo", &PatchParams::default(), &autoscaled(4, &[])).await.expect("the autoscaler may patch");
    let grown = world.until_running(5).await;
    assert!(before.iter().all(|(name, uid)| grown.get(name) == Some(uid)), "growth restarts nothing");
    eventually("the quota is charged", async || used(&client).await == "5500m").await;

    // Another worker has no quota: it waits, and the explanation says so.
    ray.patch("demo", &PatchParams::default(), &autoscaled(5, &[])).await.expect("patched");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((world.running().await, used(&client).await), (grown.clone(), "5500m".to_owned()));

    // The autoscaler chooses the workers that leave.
    let workers: Vec<&String> = grown.keys().filter(|name| !name.contains("head")).collect();
    ray.patch("demo", &PatchParams::default(), &autoscaled(2, &workers[..2])).await.expect("patched");
    eventually("two workers leave", async || world.running().await.len() == 3).await;
    let left = world.running().await;
    assert!(workers[..2].iter().all(|name| !left.contains_key(*name)), "{workers:?} {left:?}");
    assert!(left.iter().all(|(name, uid)| grown.get(name) == Some(uid)), "shrinking restarts nothing");
    eventually("the quota is returned", async || used(&client).await == "3500m").await;
    world.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_autoscaler_resizes_the_cluster_of_a_job_within_its_quota() {
    let world = World::new(Some(elastic_ray())).await;
    let client = world.cluster.admin_client();
    with_queue(&client).await;
    let cluster = demo(|cluster| cluster["spec"]["enableInTreeAutoscaling"] = json!(true)).spec;
    let job = json!({"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "train",
        "labels": {"kueue.x-k8s.io/queue-name": "lq"},
        "annotations": {"kueue.x-k8s.io/elastic-job": "true", "berth.dev/run-duration": "30m"}},
        "spec": {"entrypoint": "python train.py", "shutdownAfterJobFinishes": true, "rayClusterSpec": cluster}});
    create(&client, job, "default").await.expect("the job is accepted");
    let workers = async || {
        let workers = world.pods.list(&ListParams::default().labels("ray.io/node-type=worker")).await.expect("pods");
        let running = workers
            .items
            .into_iter()
            .filter(|pod| pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running")));
        running.map(|pod| (pod.metadata.name.expect("a name"), pod.metadata.uid)).collect::<BTreeMap<_, _>>()
    };
    eventually("two workers run", async || workers().await.len() == 2).await;
    let before = workers().await;
    eventually("the quota is charged", async || used(&client).await == "4").await;

    let ray: Api<RayCluster> = Api::default_namespaced(autoscaler(&world).await);
    let name = world.clusters.list(&ListParams::default()).await.expect("clusters").items[0].metadata.name.clone();
    let name = name.expect("a name");
    ray.patch(&name, &PatchParams::default(), &autoscaled(4, &[])).await.expect("the autoscaler may patch");
    eventually("four workers run", async || workers().await.len() == 4).await;
    let grown = workers().await;
    assert!(before.iter().all(|(name, uid)| grown.get(name) == Some(uid)), "growth restarts nothing");
    eventually("the quota is charged", async || used(&client).await == "6").await;

    let leave: Vec<&String> = grown.keys().take(3).collect();
    ray.patch(&name, &PatchParams::default(), &autoscaled(1, &leave)).await.expect("patched");
    eventually("three workers leave", async || workers().await.len() == 1).await;
    eventually("the quota is returned", async || used(&client).await == "3").await;
    assert!(workers().await.iter().all(|(name, uid)| grown.get(name) == Some(uid)), "shrinking restarts nothing");

    // Each growth has a slice of its own, although the RayJob does not change.
    for (replicas, quota) in [(2, "4"), (3, "5")] {
        ray.patch(&name, &PatchParams::default(), &autoscaled(replicas, &[])).await.expect("patched");
        eventually("the quota is charged", async || used(&client).await == quota).await;
        eventually("the workers run", async || workers().await.len() == replicas as usize).await;
    }
    eventually("the job ends and returns all quota", async || used(&client).await == "0").await;
    world.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_event_says_that_no_operator_acts_on_a_cluster() {
    let cluster = start(json!({"nodePools": nodes(), "operators": {"ray": false}}), None).await;
    let client = cluster.admin_client();
    let clusters: Api<RayCluster> = Api::default_namespaced(client.clone());
    clusters.create(&PostParams::default(), &demo(|_| {})).await.expect("the cluster is accepted");
    let events: Api<Event> = Api::default_namespaced(client.clone());
    let mut found = String::new();
    eventually("an event says that no operator acts", async || {
        let list = events.list(&ListParams::default()).await.expect("events");
        let event = list.items.into_iter().find(|event| event.reason.as_deref() == Some("NoOperator"));
        found = event.and_then(|event| event.message).unwrap_or_default();
        !found.is_empty()
    })
    .await;
    assert!(found.starts_with("No operator has acted on RayCluster demo for 30 s"), "{found}");
    assert!(found.contains("operators.ray"), "{found}");
    let pods = Api::<Pod>::default_namespaced(client).list(&ListParams::default()).await.expect("pods");
    assert!(pods.items.is_empty());
    cluster.stop().await;
}
