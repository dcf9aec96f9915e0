//! The whole embedded cluster in virtual time: pools, scheduler, kubelet, autoscaler, provisioning, garbage.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::autoscaling::v1::ProvisioningRequest;
use berth_api::berth::{ClusterConfiguration, NodePool};
use berth_apiserver::{ApiServer, Config, UserInfo};
use berth_cluster::{LogOptions, Options, PodLogs};
use berth_runtime::{Clock, Manager};
use berth_store::MemoryStore;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace, Node, Pod, PodTemplate, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::world::eventually;

/// The reference architecture's pools, with its timers shortened where the documents leave them open.
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
}

impl Cluster {
    async fn new() -> Self {
        let clock = Clock::scaled("2026-01-01T00:00:00Z".parse().unwrap(), 1.0);
        let of_server = clock.clone();
        let server = ApiServer::new(Config::new(Arc::new(MemoryStore::new()), Arc::new(move || of_server.now())));
        server.ready().await.unwrap();
        let cluster = Self { server, clock, logs: PodLogs::default() };
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
        let mut manager = Manager::new(self.client(), self.clock.clone());
        let options =
            Options { configuration: configuration(), seed: 7, logs: self.logs.clone(), root_ca: Some("PEM".into()) };
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
            println!("{message:?}");
            eventually("all pods succeed", async || cluster.phases().await == counts(&[("Succeeded", 32)])).await;
            eventually("ten nodes again", async || cluster.nodes().await == idle).await;
            println!("{:?}", cluster.clock.now());
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
}
