//! The whole embedded cluster in virtual time: pools, scheduler, kubelet, autoscaler, provisioning,
//! garbage collection.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use berth_api::autoscaling::v1::ProvisioningRequest;
use berth_api::berth::{ClusterConfiguration, NodePool};
use berth_apiserver::{ApiServer, Config, InProcess, UserInfo};
use berth_cluster::{LogOptions, Options, PodLogs};
use berth_runtime::{Clock, Manager};
use berth_store::MemoryStore;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace, Node, Pod, PodTemplate, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

/// Waits until `done` returns true, in steps of five seconds (each evaluation has a cost), for two
/// hours at most.
async fn eventually(what: &str, mut done: impl AsyncFnMut() -> bool) {
    for _ in 0..1440 {
        if done().await {
            return;
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    panic!("never: {what}");
}

/// The reference architecture's pools, with shorter timers if the documents do not fix them.
fn configuration() -> ClusterConfiguration {
    let l4 = |name: &str, kind: &str, taint: &str, more: Value| {
        let mut pool = json!({
            "name": name, "machineType": "g2-standard-24", "labels": { "resource-type": kind },
            "taints": [{ "key": taint, "value": "true", "effect": "NoSchedule" }],
            "zones": ["us-central1-a", "us-central1-b", "us-central1-c"],
        });
        pool.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        pool
    };
    let spec = json!({
        "name": "batch-dev",
        "nodePools": [
            { "name": "default-pool", "machineType": "e2-medium", "initialNodes": 6, "minNodes": 6, "maxNodes": 6, "static": true,
              "zones": ["us-central1-a", "us-central1-b", "us-central1-c"] },
            l4("reserved-np", "reservation", "reserved", json!({ "initialNodes": 4, "minNodes": 4, "maxNodes": 4, "static": true, "provisioning": "reserved" })),
            l4("ondemand-np", "ondemand", "ondemand", json!({ "maxNodes": 24 })),
            l4("spot-np", "spot", "spot", json!({ "maxNodes": 36, "provisioning": "spot" })),
            { "name": "dws", "machineType": "a3-highgpu-8g", "maxNodes": 10, "provisioning": "queued",
              "labels": { "resource-model": "h100" }, "zones": ["us-central1-a", "us-central1-c"] },
        ],
        "autoscaling": { "profile": "optimizeUtilization" },
        "nodeAutoProvisioning": { "enabled": true, "limits": {
            "cpu": { "max": "1024" }, "memory": { "max": "4096Gi" }, "nvidia-tesla-a100": { "max": "64" } } },
        "pods": { "defaultDuration": "3m" },
    });
    ClusterConfiguration::from_value(spec).unwrap()
}

struct Cluster {
    server: ApiServer,
    clock: Clock,
    logs: PodLogs,
    requests: Requests,
}

/// Number of requests by method and resource (with subresource).
type Requests = Arc<Mutex<BTreeMap<String, usize>>>;

/// A connection to the server that counts requests.
struct Counted {
    inner: InProcess,
    requests: Requests,
}

impl tower::Service<http::Request<kube::client::Body>> for Counted {
    type Response = <InProcess as tower::Service<http::Request<kube::client::Body>>>::Response;
    type Error = <InProcess as tower::Service<http::Request<kube::client::Body>>>::Error;
    type Future = <InProcess as tower::Service<http::Request<kube::client::Body>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        tower::Service::<http::Request<kube::client::Body>>::poll_ready(&mut self.inner, context)
    }

    fn call(&mut self, request: http::Request<kube::client::Body>) -> Self::Future {
        let parts: Vec<&str> = request.uri().path().trim_matches('/').split('/').collect();
        let resource = &parts[if parts[0] == "api" { 2 } else { 3 }.min(parts.len())..];
        let resource = match resource {
            ["namespaces", _, rest @ ..] if !rest.is_empty() => rest,
            other => other,
        };
        let kind = resource.first().copied().unwrap_or_default();
        let sub = resource.get(2).map(|sub| format!("/{sub}")).unwrap_or_default();
        let what = format!("{} {kind}{sub}", request.method());
        *self.requests.lock().unwrap().entry(what).or_insert(0) += 1;
        tower::Service::call(&mut self.inner, request)
    }
}

impl Cluster {
    async fn new() -> Self {
        let clock = Clock::scaled("2026-01-01T00:00:00Z".parse().unwrap(), 1.0);
        let of_server = clock.clone();
        let server = ApiServer::new(Config::new(Arc::new(MemoryStore::new()), Arc::new(move || of_server.now())));
        server.ready().await.unwrap();
        let cluster = Self { server, clock, logs: PodLogs::default(), requests: Requests::default() };
        let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client());
        for definition in berth_api::crds() {
            let definition: CustomResourceDefinition = serde_json::from_value(definition.clone()).unwrap();
            definitions.create(&PostParams::default(), &definition).await.unwrap();
        }
        cluster
    }

    fn client(&self) -> Client {
        Client::new(self.server.in_process(UserInfo::master("test")), "default")
    }

    /// Runs the whole cluster until `until` resolves, as one process would before it is stopped.
    async fn run(&self, until: impl Future<Output = ()>) {
        let inner = self.server.in_process(UserInfo::master("cluster"));
        let client = Client::new(Counted { inner, requests: self.requests.clone() }, "default");
        let mut manager = Manager::new(client, self.clock.clone());
        let options = Options {
            configuration: configuration(),
            seed: 7,
            logs: self.logs.clone(),
            root_ca: Some("PEM".into()),
            ..Options::default()
        };
        berth_cluster::install(&mut manager, options);
        tokio::select! {
            biased;
            () = until => {}
            ended = manager.run(std::future::pending()) => ended.unwrap(),
        }
    }

    async fn nodes(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for node in Api::<Node>::all(self.client()).list(&ListParams::default()).await.unwrap() {
            *counts.entry(node.labels()["cloud.google.com/gke-nodepool"].clone()).or_insert(0) += 1;
        }
        counts
    }

    async fn pods(&self) -> Vec<Pod> {
        Api::<Pod>::all(self.client()).list(&ListParams::default()).await.unwrap().items
    }

    async fn phases(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for pod in self.pods().await {
            *counts.entry(pod.status.unwrap_or_default().phase.unwrap_or_default()).or_insert(0) += 1;
        }
        counts
    }

    async fn create<K>(&self, namespace: &str, object: Value) -> K
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + serde::de::DeserializeOwned
            + serde::Serialize
            + Clone
            + std::fmt::Debug,
    {
        let object: K = serde_json::from_value(object).unwrap();
        Api::<K>::namespaced(self.client(), namespace).create(&PostParams::default(), &object).await.unwrap()
    }

    async fn events(&self, reason: &str) -> Vec<String> {
        let events = Api::<Event>::all(self.client()).list(&ListParams::default()).await.unwrap();
        events.into_iter().filter(|e| e.reason.as_deref() == Some(reason)).filter_map(|e| e.message).collect()
    }
}

fn counts(expected: &[(&str, usize)]) -> BTreeMap<String, usize> {
    expected.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

/// A job of `pods` pods with 2 L4 each, for the pool of this resource type.
fn l4_job(name: &str, pods: i32, kind: &str, taint: &str) -> Value {
    job(
        name,
        pods,
        json!({
            "nodeSelector": { "cloud.google.com/gke-accelerator": "nvidia-l4", "resource-type": kind },
            "tolerations": [{ "key": taint, "operator": "Exists" }, { "key": "nvidia.com/gpu", "operator": "Exists" }],
        }),
        json!({ "requests": { "cpu": "2", "memory": "10Gi" }, "limits": { "cpu": "2", "memory": "10Gi", "nvidia.com/gpu": "2" } }),
    )
}

fn job(name: &str, pods: i32, more: Value, resources: Value) -> Value {
    let mut spec = json!({
        "restartPolicy": "Never",
        "containers": [{ "name": "main", "image": "train:v1", "command": ["train"], "resources": resources }],
    });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": name },
        "spec": { "parallelism": pods, "completions": pods, "completionMode": "Indexed", "backoffLimit": 6,
            "template": { "spec": spec } },
    })
}

#[tokio::test(start_paused = true)]
async fn pools_grow_for_pods_and_return_to_their_minimum() {
    let cluster = Cluster::new().await;
    cluster
        .run(async {
            let idle = counts(&[("default-pool", 6), ("reserved-np", 4)]);
            eventually("ten nodes", async || cluster.nodes().await == idle).await;
            cluster.create::<Job>("default", l4_job("spot", 24, "spot", "spot")).await;
            cluster.create::<Job>("default", l4_job("reserved", 8, "reservation", "reserved")).await;
            let full = counts(&[("default-pool", 6), ("reserved-np", 4), ("spot-np", 24)]);
            eventually("34 nodes", async || cluster.nodes().await == full).await;
            eventually("24 spot pods and 4 reserved ones run", async || {
                let phases = cluster.phases().await;
                phases.get("Running") == Some(&28) || phases.get("Succeeded").is_some_and(|ended| *ended >= 4)
            })
            .await;
            let message = cluster.pods().await.iter().find_map(|pod| {
                let conditions = pod.status.clone()?.conditions?;
                conditions.into_iter().find(|c| c.type_ == "PodScheduled" && c.status == "False")?.message
            });
            // The condition is from the last attempt: later nodes could not have helped the pod.
            let expected = "0/10 nodes are available: 4 Insufficient nvidia.com/gpu, 6 node(s) didn't match Pod's node \
                affinity/selector. preemption: 0/10 nodes are available: 4 No preemption victims found for incoming pod, \
                6 Preemption is not helpful for scheduling.";
            assert_eq!(message.as_deref(), Some(expected));
            eventually("all pods succeed", async || cluster.phases().await == counts(&[("Succeeded", 32)])).await;
            eventually("ten nodes again", async || cluster.nodes().await == idle).await;
            let triggered = cluster.events("TriggeredScaleUp").await;
            assert!(
                triggered.iter().all(|text| text == "pod triggered scale-up: [{spot-np 0->24 (max: 36)}]"),
                "{triggered:?}"
            );
            let pod = cluster.pods().await.remove(0);
            let text = cluster.logs.read("default", &pod.name_any(), None, &LogOptions::default()).unwrap();
            assert!(text.ends_with("exited with code 0\n"), "{text}");
        })
        .await;
    let requests = cluster.requests.lock().unwrap();
    // A pod's status is written for two reasons to wait and for three steps of its life. A
    // machine's node is written when it becomes ready, when it becomes idle, and when it is marked.
    for (what, most) in
        [("PATCH pods/status", 6 * 32), ("PATCH nodes", 3 * 24), ("PUT nodepools/status", 12), ("POST events", 10 * 32)]
    {
        assert!(requests[what] <= most, "{what} {} times, at most {most}: {requests:#?}", requests[what]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_placement_group_gets_its_own_pool_which_is_deleted_afterwards() {
    let cluster = Cluster::new().await;
    cluster
        .run(async {
            let group = "team-a-0-compact";
            let more = json!({
                "nodeSelector": {
                    "cloud.google.com/gke-spot": "true", "cloud.google.com/gke-accelerator": "nvidia-tesla-a100",
                    "cloud.google.com/gke-provisioning": "spot", "cloud.google.com/gke-placement-group": group,
                    "placement-group": group, "resource-type": "compact",
                },
                "tolerations": [
                    { "key": "nvidia.com/gpu", "operator": "Exists" },
                    { "key": "placement-group", "operator": "Equal", "value": group, "effect": "NoSchedule" },
                    { "key": "resource-type", "operator": "Equal", "value": "compact", "effect": "NoSchedule" },
                    { "key": "cloud.google.com/gke-placement-group", "operator": "Equal", "value": group, "effect": "NoSchedule" },
                    { "key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule" },
                ],
            });
            let resources = json!({ "requests": { "cpu": "10", "memory": "60Gi" }, "limits": { "nvidia.com/gpu": "1" } });
            cluster.create::<Job>("default", job("compact", 2, more, resources)).await;
            eventually("two nodes of the group's pool", async || cluster.nodes().await.get(group) == Some(&2)).await;
            let pool = Api::<NodePool>::all(cluster.client()).get(group).await.unwrap();
            assert_eq!(pool.spec.machine_type.as_deref(), Some("a2-highgpu-1g"));
            let node = Api::<Node>::all(cluster.client())
                .list(&ListParams::default().labels(&format!("cloud.google.com/gke-nodepool={group}")))
                .await
                .unwrap()
                .items
                .remove(0);
            for (key, value) in [("placement-group", group), ("resource-type", "compact"), ("cloud.google.com/gke-spot", "true")] {
                assert_eq!(node.labels()[key], value);
            }
            let taints: Vec<_> = node.spec.clone().unwrap().taints.unwrap().into_iter().map(|t| t.key).collect();
            for key in ["placement-group", "cloud.google.com/gke-placement-group", "resource-type", "cloud.google.com/gke-spot", "nvidia.com/gpu"] {
                assert!(taints.iter().any(|taint| taint == key), "{key} not in {taints:?}");
            }
            eventually("both pods succeed", async || cluster.phases().await == counts(&[("Succeeded", 2)])).await;
            eventually("the pool is deleted", async || {
                Api::<NodePool>::all(cluster.client()).get_opt(group).await.unwrap().is_none()
            })
            .await;
            assert_eq!(cluster.nodes().await, counts(&[("default-pool", 6), ("reserved-np", 4)]));
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_queued_request_gets_all_its_nodes_at_once_and_releases_them() {
    let cluster = Cluster::new().await;
    let requests = || Api::<ProvisioningRequest>::namespaced(cluster.client(), "default");
    let spec = json!({
        "restartPolicy": "Never",
        "nodeSelector": { "resource-model": "h100" },
        "tolerations": [{ "key": "cloud.google.com/gke-queued", "operator": "Equal", "value": "true" }],
        "containers": [{ "name": "main", "image": "i", "resources": { "limits": { "nvidia.com/gpu": "8" } } }],
    });
    let template =
        json!({ "apiVersion": "v1", "kind": "PodTemplate", "metadata": { "name": "t" }, "template": { "spec": spec } });
    let request = json!({
        "apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest", "metadata": { "name": "r" },
        "spec": { "provisioningClassName": "queued-provisioning.gke.io", "podSets": [{ "count": 2, "podTemplateRef": { "name": "t" } }] },
    });
    cluster
        .run(async {
            cluster.create::<PodTemplate>("default", template).await;
            cluster.create::<ProvisioningRequest>("default", request).await;
            let condition = async |type_: &str| {
                let status = requests().get("r").await.unwrap().status.unwrap_or_default();
                status.conditions.into_iter().find(|c| c.type_ == type_).map(|c| (c.status, c.reason)).unwrap_or_default()
            };
            eventually("it is accepted", async || condition("Accepted").await.0 == "True").await;
            assert_eq!(condition("Provisioned").await, ("False".into(), "ResourcePoolExhausted".into()));
            assert_eq!(cluster.nodes().await.get("dws"), None);
            eventually("it is provisioned", async || condition("Provisioned").await.0 == "True").await;
            assert_eq!(cluster.nodes().await.get("dws"), Some(&2));
            for i in 0..2 {
                let mut pod = json!({ "apiVersion": "v1", "kind": "Pod", "spec": spec, "metadata": { "name": format!("p{i}"), "annotations": {
                    "autoscaling.x-k8s.io/consume-provisioning-request": "r",
                    "autoscaling.x-k8s.io/provisioning-class-name": "queued-provisioning.gke.io" } } });
                pod["spec"]["tolerations"].as_array_mut().unwrap().push(json!({ "key": "nvidia.com/gpu", "operator": "Exists" }));
                cluster.create::<Pod>("default", pod).await;
            }
            eventually("the pods succeed", async || cluster.phases().await == counts(&[("Succeeded", 2)])).await;
            assert_eq!(condition("BookingExpired").await.0, "", "the capacity was used");
            requests().delete("r", &DeleteParams::default()).await.unwrap();
            eventually("the nodes are deleted", async || !cluster.nodes().await.contains_key("dws")).await;
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn unused_capacity_expires_and_machines_are_removed_after_their_maximum_run_duration() {
    let cluster = Cluster::new().await;
    let spec = json!({
        "restartPolicy": "Never", "nodeSelector": { "resource-model": "h100" },
        "tolerations": [{ "key": "cloud.google.com/gke-queued", "operator": "Exists" }],
        "containers": [{ "name": "main", "image": "i", "resources": { "limits": { "nvidia.com/gpu": "8" } } }],
    });
    let template =
        json!({ "apiVersion": "v1", "kind": "PodTemplate", "metadata": { "name": "t" }, "template": { "spec": spec } });
    let request = json!({
        "apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest", "metadata": { "name": "r-1" },
        "spec": { "provisioningClassName": "queued-provisioning.gke.io", "parameters": { "maxRunDurationSeconds": "900" },
            "podSets": [{ "count": 1, "podTemplateRef": { "name": "t" } }] },
    });
    cluster
        .run(async {
            cluster.create::<PodTemplate>("default", template).await;
            cluster.create::<ProvisioningRequest>("default", request).await;
            let is_true = async |type_: &str| {
                let api = Api::<ProvisioningRequest>::namespaced(cluster.client(), "default");
                let status = api.get("r-1").await.unwrap().status.unwrap_or_default();
                status.conditions.iter().any(|c| c.type_ == type_ && c.status == "True")
            };
            eventually("it is provisioned", async || is_true("Provisioned").await).await;
            let then = cluster.clock.now();
            eventually("the booking expires", async || is_true("BookingExpired").await).await;
            let kept = cluster.clock.now().duration_since(then).as_secs();
            assert!((595..=605).contains(&kept), "kept for {kept} s");
            eventually("the capacity is revoked", async || is_true("CapacityRevoked").await).await;
            eventually("the nodes are deleted", async || !cluster.nodes().await.contains_key("dws")).await;
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_continues_all_operations() {
    let cluster = Cluster::new().await;
    let ten = counts(&[("default-pool", 6), ("reserved-np", 4)]);
    cluster
        .run(async {
            eventually("ten nodes", async || cluster.nodes().await == ten).await;
            cluster.create::<Job>("default", l4_job("spot", 4, "spot", "spot")).await;
            // Machines are ordered and have not registered.
            eventually("the order", async || {
                let pool = Api::<NodePool>::all(cluster.client()).get("spot-np").await.unwrap();
                pool.status.is_some_and(|status| status.creating.len() == 4)
            })
            .await;
        })
        .await;
    let started = async || {
        let pods = cluster.pods().await;
        let mut starts: Vec<_> =
            pods.iter().filter_map(|pod| Some((pod.name_any(), pod.status.clone()?.start_time?.0))).collect();
        starts.sort();
        starts
    };
    cluster
        .run(async {
            eventually("four nodes", async || cluster.nodes().await.get("spot-np") == Some(&4)).await;
            eventually("the pods run", async || cluster.phases().await == counts(&[("Running", 4)])).await;
            tokio::time::sleep(Duration::from_secs(60)).await;
        })
        .await;
    let before = started().await;
    cluster
        .run(async {
            eventually("the pods succeed", async || cluster.phases().await == counts(&[("Succeeded", 4)])).await;
            assert_eq!(started().await, before, "no pod runs twice");
            let ends = cluster.clock.now().duration_since(before[0].1).as_secs();
            assert!((180..195).contains(&ends), "a run continues: {ends}");
        })
        .await;
    cluster.run(async { eventually("ten nodes again", async || cluster.nodes().await == ten).await }).await;
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_lost_node_fail_as_disrupted_and_their_job_continues() {
    let cluster = Cluster::new().await;
    cluster
        .run(async {
            let mut manifest = l4_job("work", 2, "reservation", "reserved");
            manifest["spec"]["podFailurePolicy"] =
                json!({ "rules": [{ "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget" }] }] });
            manifest["spec"]["backoffLimit"] = json!(0);
            cluster.create::<Job>("default", manifest).await;
            eventually("the pods run", async || cluster.phases().await == counts(&[("Running", 2)])).await;
            let pod = cluster.pods().await.remove(0);
            let node = pod.spec.clone().unwrap().node_name.unwrap();
            Api::<Node>::all(cluster.client()).delete(&node, &DeleteParams::default()).await.unwrap();
            eventually("the machine is replaced", async || cluster.nodes().await.get("reserved-np") == Some(&4)).await;
            eventually("the job completes", async || {
                let job = Api::<Job>::namespaced(cluster.client(), "default").get("work").await.unwrap();
                job.status.and_then(|status| status.succeeded) == Some(2)
            })
            .await;
        })
        .await;
}

/// A Job with a pod failure policy counts and replaces a pod once it has failed. A pod that no
/// kubelet started fails too when it is deleted; otherwise its Job would wait forever.
#[tokio::test(start_paused = true)]
async fn a_job_with_a_failure_policy_replaces_pods_that_are_deleted_before_they_start() {
    for is_bound in [false, true] {
        let cluster = Cluster::new().await;
        let pods = Api::<Pod>::namespaced(cluster.client(), "default");
        let mut manifest = l4_job("work", 1, "reservation", "reserved");
        manifest["spec"]["podFailurePolicy"] =
            json!({ "rules": [{ "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget" }] }] });
        // The test binds the pod, instead of the scheduler.
        manifest["spec"]["template"]["spec"]["schedulerName"] = json!("test");
        cluster
            .run(async {
                cluster.create::<Job>("default", manifest).await;
                eventually("the Job creates its pod", async || cluster.pods().await.len() == 1).await;
            })
            .await;
        let first = cluster.pods().await.remove(0).name_any();
        if is_bound {
            let nodes = Api::<Node>::all(cluster.client()).list(&ListParams::default()).await.unwrap();
            let node = nodes.iter().find(|node| node.name_any().contains("reserved-np")).unwrap().name_any();
            let binding = json!({ "apiVersion": "v1", "kind": "Binding", "metadata": { "name": first },
                "target": { "apiVersion": "v1", "kind": "Node", "name": node } });
            let bound: Value =
                pods.create_subresource("binding", &first, &PostParams::default(), &binding).await.unwrap();
            assert_eq!(bound["status"], "Success");
        }
        pods.delete(&first, &DeleteParams::default()).await.unwrap();
        cluster
            .run(eventually("the Job replaces the pod", async || {
                let names: Vec<String> = cluster.pods().await.iter().map(ResourceExt::name_any).collect();
                names.len() == 1 && names[0] != first
            }))
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_important_pod_preempts_a_less_important_one() {
    let cluster = Cluster::new().await;
    let class = |name: &str, value: i32, policy: &str| json!({ "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": name }, "value": value, "preemptionPolicy": policy });
    cluster
        .run(async {
            let classes = Api::<k8s_openapi::api::scheduling::v1::PriorityClass>::all(cluster.client());
            for class in [class("low", 10, "Never"), class("high", 20, "PreemptLowerPriority")] {
                classes.create(&PostParams::default(), &serde_json::from_value(class).unwrap()).await.unwrap();
            }
            let of_class = |name: &str, pods: i32, class: &str| {
                let mut manifest = l4_job(name, pods, "reservation", "reserved");
                manifest["spec"]["template"]["spec"]["priorityClassName"] = json!(class);
                manifest
            };
            cluster.create::<Job>("default", of_class("low", 6, "low")).await;
            eventually("four lesser pods run, two wait", async || {
                cluster.phases().await == counts(&[("Running", 4), ("Pending", 2)])
            })
            .await;
            cluster.create::<Job>("default", of_class("high", 1, "high")).await;
            eventually("the important pod runs", async || {
                cluster.pods().await.iter().any(|pod| {
                    pod.name_any().starts_with("high")
                        && pod.status.clone().unwrap().phase.as_deref() == Some("Running")
                })
            })
            .await;
            assert_eq!(cluster.events("Preempted").await.len(), 1);
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn dependents_are_deleted_with_their_owners_and_contents_with_their_namespaces() {
    let cluster = Cluster::new().await;
    let client = cluster.client();
    let namespaces = || Api::<Namespace>::all(client.clone());
    cluster
        .run(async {
            let namespace: Namespace = serde_json::from_value(json!({ "metadata": { "name": "team" } })).unwrap();
            namespaces().create(&PostParams::default(), &namespace).await.unwrap();
            let accounts = Api::<ServiceAccount>::namespaced(client.clone(), "team");
            eventually("the default account", async || accounts.get_opt("default").await.unwrap().is_some()).await;
            let maps = Api::<ConfigMap>::namespaced(client.clone(), "team");
            let has_ca = async || {
                let map = maps
                    .get_opt("kube-root-ca.crt")
                    .await
                    .unwrap()
                    .filter(|map| map.metadata.deletion_timestamp.is_none());
                map.and_then(|map| map.data).is_some_and(|data| data["ca.crt"] == "PEM")
            };
            eventually("the CA", &has_ca).await;
            maps.delete("kube-root-ca.crt", &DeleteParams::default()).await.unwrap();
            eventually("the CA again", &has_ca).await;
            let other: ConfigMap = serde_json::from_value(json!({
                "metadata": { "name": "kube-root-ca.crt" }, "data": { "ca.crt": "another" } }))
            .unwrap();
            let replaced = maps.replace("kube-root-ca.crt", &PostParams::default(), &other).await.unwrap();
            assert_eq!(replaced.data, other.data);
            eventually("the right CA", &has_ca).await;
            let jobs = Api::<Job>::namespaced(client.clone(), "team");
            for (name, parameters, remain) in [
                ("background", DeleteParams::background(), 0),
                ("foreground", DeleteParams::foreground(), 0),
                ("orphan", DeleteParams::orphan(), 2),
            ] {
                cluster.create::<Job>("team", l4_job(name, 2, "reservation", "reserved")).await;
                let of_job =
                    async || cluster.pods().await.iter().filter(|pod| pod.name_any().starts_with(name)).count();
                eventually("two pods", async || of_job().await == 2).await;
                jobs.delete(name, &parameters).await.unwrap();
                eventually("the job is deleted", async || jobs.get_opt(name).await.unwrap().is_none()).await;
                if name == "foreground" {
                    assert_eq!(of_job().await, 0, "the pods went first");
                }
                tokio::time::sleep(Duration::from_secs(60)).await;
                assert_eq!(of_job().await, remain, "{name}");
            }
            let held = json!({ "metadata": { "name": "held", "finalizers": ["example.com/hold"] } });
            cluster.create::<ConfigMap>("team", held).await;
            namespaces().delete("team", &DeleteParams::default()).await.unwrap();
            let condition = async |type_: &str| {
                let status = namespaces().get("team").await.unwrap().status.unwrap_or_default();
                let conditions = status.conditions.unwrap_or_default();
                let found = conditions.into_iter().find(|it| it.type_ == type_);
                found.map(|it| (it.status, it.reason.unwrap_or_default(), it.message.unwrap_or_default()))
            };
            let said = |status: &str, reason: &str, message: &str| Some((status.into(), reason.into(), message.into()));
            let remain = "Some resources are remaining: configmaps. has 1 resource instances";
            let remain = said("True", "SomeResourcesRemain", remain);
            eventually("what remains", async || condition("NamespaceContentRemaining").await == remain).await;
            let message =
                "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances";
            let finalizers = condition("NamespaceFinalizersRemaining").await;
            assert_eq!(finalizers, said("True", "SomeFinalizersRemain", message));
            let failure = condition("NamespaceDeletionContentFailure").await;
            let fine = "All content successfully deleted, may be waiting on finalization";
            assert_eq!(failure, said("False", "ContentDeleted", fine));
            let free = json!({ "metadata": { "finalizers": null } });
            maps.patch("held", &PatchParams::default(), &Patch::Merge(&free)).await.unwrap();
            eventually("the namespace is deleted", async || namespaces().get_opt("team").await.unwrap().is_none())
                .await;
            assert_eq!(cluster.pods().await.len(), 0);
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn the_pods_of_a_namespace_are_deleted_before_the_objects_that_they_use() {
    let cluster = Cluster::new().await;
    let client = cluster.client();
    let namespaces = || Api::<Namespace>::all(client.clone());
    cluster
        .run(async {
            let namespace: Namespace = serde_json::from_value(json!({ "metadata": { "name": "team" } })).unwrap();
            namespaces().create(&PostParams::default(), &namespace).await.unwrap();
            let accounts = Api::<ServiceAccount>::namespaced(client.clone(), "team");
            eventually("the account", async || accounts.get_opt("default").await.unwrap().is_some()).await;
            let pod = json!({ "metadata": { "name": "held", "finalizers": ["example.com/hold"] },
                "spec": { "containers": [{ "name": "c", "image": "c" }] } });
            cluster.create::<Pod>("team", pod).await;
            cluster.create::<ConfigMap>("team", json!({ "metadata": { "name": "map" } })).await;
            namespaces().delete("team", &DeleteParams::default()).await.unwrap();
            let pods = Api::<Pod>::namespaced(client.clone(), "team");
            let remains = async || {
                let status = namespaces().get("team").await.unwrap().status.unwrap_or_default();
                let conditions = status.conditions.unwrap_or_default();
                conditions.into_iter().find(|it| it.type_ == "NamespaceContentRemaining").and_then(|it| it.message)
            };
            eventually("the conditions", async || remains().await.is_some()).await;
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert!(pods.get("held").await.unwrap().metadata.deletion_timestamp.is_some());
            let wanted = "Some resources are remaining: pods. has 1 resource instances";
            assert_eq!(remains().await.as_deref(), Some(wanted));
            let maps = Api::<ConfigMap>::namespaced(client.clone(), "team");
            assert!(maps.get("map").await.unwrap().metadata.deletion_timestamp.is_none());
            let free = json!({ "metadata": { "finalizers": null } });
            pods.patch("held", &PatchParams::default(), &Patch::Merge(&free)).await.unwrap();
            eventually("the namespace is deleted", async || namespaces().get_opt("team").await.unwrap().is_none())
                .await;
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn owners_in_a_cycle_do_not_wait_for_each_other() {
    let cluster = Cluster::new().await;
    cluster
        .run(async {
            let maps = Api::<ConfigMap>::namespaced(cluster.client(), "default");
            let mut uids = BTreeMap::new();
            for name in ["one", "two", "three", "apart"] {
                let made = cluster.create::<ConfigMap>("default", json!({ "metadata": { "name": name } })).await;
                uids.insert(name, made.uid().unwrap());
            }
            for (owned, owner) in [("one", "three"), ("two", "one"), ("three", "two")] {
                let reference = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uids[owner],
                    "controller": true, "blockOwnerDeletion": true });
                let patch = json!({ "metadata": { "ownerReferences": [reference] } });
                maps.patch(owned, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
            }
            tokio::time::sleep(Duration::from_secs(10)).await;
            maps.delete("one", &DeleteParams::foreground()).await.unwrap();
            tokio::time::sleep(Duration::from_secs(20)).await;
            let left: Vec<String> =
                maps.list(&ListParams::default()).await.unwrap().iter().map(ResourceExt::name_any).collect();
            assert!(left.contains(&"apart".to_owned()), "{left:?}");
            assert!(!["one", "two", "three"].iter().any(|gone| left.iter().any(|name| name == gone)), "{left:?}");
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_history() {
    let history = async || {
        let cluster = Cluster::new().await;
        cluster
            .run(async {
                cluster.create::<Job>("default", l4_job("spot", 6, "spot", "spot")).await;
                cluster.create::<Job>("default", l4_job("reserved", 6, "reservation", "reserved")).await;
                eventually("all succeed", async || cluster.phases().await == counts(&[("Succeeded", 12)])).await;
            })
            .await;
        let all = ListParams::default();
        let pods = Api::<Pod>::all(cluster.client()).list(&all).await.unwrap();
        let nodes = Api::<Node>::all(cluster.client()).list(&all).await.unwrap();
        let events = Api::<Event>::all(cluster.client()).list(&all).await.unwrap();
        serde_json::to_string(&(pods, nodes, events)).unwrap()
    };
    let (one, other) = (history().await, history().await);
    assert!(one == other, "two runs differ");
}
