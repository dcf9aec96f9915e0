//! A week of random supply: machines come and go, requests wait and fail, jobs are created and
//! deleted. The test checks every hour that no quota limit is exceeded, that no request outlives
//! its workload, and that the pool and the resize request of each node exist. At the end, every job
//! has finished or its Workload states why not.
//!
//! `BERTH_TEST_SEEDS=10` runs ten seeds instead of two.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_embedded::{Embedded, Options};
use berth_runtime::Clock;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::objects::{Draw, condition, in_virtual_time, is_true, name, seeds, usage};

const HOUR: Duration = Duration::from_secs(3600);
const HOURS: u64 = 7 * 24;
/// Hours after the week in which all jobs must have finished, with plentiful supply.
const HOURS_AFTER: u64 = 3 * 24;
const JOBS: u64 = 60;
const POOLS: [&str; 4] = ["on-demand", "spot", "dws", "tpu"];

fn cluster(draw: &mut Draw) -> Value {
    let every = |draw: &mut Draw| format!("{}h", draw.between(1, 8));
    let random = |draw: &mut Draw, min: u64, max: u64| json!({ "min": min, "max": max, "every": every(draw) });
    let reclaim = |draw: &mut Draw, hours: u64| json!({ "meanLifetime": format!("{hours}h"), "notice": format!("{}s", draw.between(0, 120)) });
    let (most_dear, most_spot, most_dws) = (draw.between(1, 4), draw.between(2, 6), draw.between(2, 6));
    let spot_lifetime = draw.between(2, 20);
    json!({
        "nodePools": [
            { "name": "cpu", "machineType": "e2-standard-4", "initialNodes": 1, "static": true },
            { "name": "on-demand", "machineType": "g2-standard-24", "maxNodes": most_dear,
              "supply": { "random": random(draw, 0, most_dear) } },
            { "name": "spot", "machineType": "g2-standard-24", "maxNodes": most_spot, "provisioning": "spot",
              "supply": { "random": random(draw, 0, most_spot), "reclaim": reclaim(draw, spot_lifetime) } },
            { "name": "dws", "machineType": "g2-standard-24", "maxNodes": most_dws, "provisioning": "queued",
              "supply": { "random": random(draw, 0, most_dws), "reclaim": reclaim(draw, 30) } },
            { "name": "tpu", "machineType": "ct6e-standard-4t", "tpuTopology": "4x4", "provisioning": "queued",
              "supply": { "random": random(draw, 2, 6) } },
        ],
        "autoscaling": { "profile": "optimizeUtilization" },
        "provisioningClasses": [{ "name": "queued-provisioning.gke.io", "maxWait": "12h", "maxRunDuration": "24h" }],
    })
}

fn platform() -> Vec<(&'static str, Value)> {
    let api = "kueue.x-k8s.io/v1beta2";
    let mut objects = Vec::new();
    for pool in POOLS {
        let spec = json!({ "nodeLabels": { "cloud.google.com/gke-nodepool": pool } });
        let metadata = json!({ "name": pool });
        objects.push((
            "ResourceFlavor",
            json!({ "apiVersion": api, "kind": "ResourceFlavor", "metadata": metadata, "spec": spec }),
        ));
    }
    objects.push((
        "ProvisioningRequestConfig",
        json!({
            "apiVersion": api, "kind": "ProvisioningRequestConfig", "metadata": { "name": "dws" },
            "spec": { "provisioningClassName": "queued-provisioning.gke.io",
                      "retryStrategy": { "backoffLimitCount": 2, "backoffBaseSeconds": 60 } },
        }),
    ));
    objects.push(("AdmissionCheck", json!({
        "apiVersion": api, "kind": "AdmissionCheck", "metadata": { "name": "dws" },
        "spec": { "controllerName": "kueue.x-k8s.io/provisioning-request",
                  "parameters": { "apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": "dws" } },
    })));
    for queue in ["a", "b"] {
        let flavor = |name: &str, gpus: u64| {
            json!({ "name": name, "resources": [
                { "name": "cpu", "nominalQuota": 40 }, { "name": "nvidia.com/gpu", "nominalQuota": gpus }] })
        };
        objects.push(("ClusterQueue", json!({
            "apiVersion": api, "kind": "ClusterQueue", "metadata": { "name": queue },
            "spec": { "namespaceSelector": {}, "cohortName": "all",
                "resourceGroups": [
                    { "coveredResources": ["cpu", "nvidia.com/gpu"],
                      "flavors": [flavor("spot", 4), flavor("on-demand", 4), flavor("dws", 6)] },
                    { "coveredResources": ["google.com/tpu"], "flavors": [
                        { "name": "tpu", "resources": [{ "name": "google.com/tpu", "nominalQuota": 16 }] }] },
                ],
                "admissionChecksStrategy": { "admissionChecks": [{ "name": "dws", "onFlavors": ["dws", "tpu"] }] } },
        })));
        objects.push((
            "LocalQueue",
            json!({
                "apiVersion": api, "kind": "LocalQueue", "metadata": { "name": queue, "namespace": "default" },
                "spec": { "clusterQueue": queue },
            }),
        ));
    }
    objects
}

fn job(number: u64, draw: &mut Draw) -> Value {
    let queue = if draw.below(2) == 0 { "a" } else { "b" };
    let minutes = draw.between(10, 360);
    let is_tpu = draw.below(6) == 0;
    let (pods, limits, selector) = if is_tpu {
        let selector = json!({
            "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice", "cloud.google.com/gke-tpu-topology": "4x4" });
        (4, json!({ "google.com/tpu": 4 }), selector)
    } else {
        (draw.between(1, 3), json!({ "nvidia.com/gpu": 2 }), json!({}))
    };
    // The flavors of the first resource group have no TPU nodes, so a TPU pod requests no resource
    // of that group.
    let requests = if is_tpu { json!({}) } else { json!({ "cpu": "4" }) };
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": { "name": format!("job-{number}"), "namespace": "default",
                      "labels": { "kueue.x-k8s.io/queue-name": queue } },
        "spec": {
            "parallelism": pods, "completions": pods,
            "podFailurePolicy": { "rules": [
                { "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget", "status": "True" }] }] },
            "template": {
                "metadata": { "annotations": { "berth.dev/run-duration": format!("{minutes}m") } },
                "spec": { "restartPolicy": "Never", "nodeSelector": selector, "containers": [
                    { "name": "main", "image": "i", "resources": { "requests": requests, "limits": limits } }] },
            },
        },
    })
}

/// The cluster's API, by kind.
struct World {
    client: Client,
    seed: u64,
    clock: Clock,
}

impl World {
    fn api(&self, kind: &str, namespaced: bool) -> Api<DynamicObject> {
        let (group, version) = match kind {
            "Job" => ("batch", "v1"),
            "Node" | "Pod" => ("", "v1"),
            "NodePool" => ("berth.dev", "v1alpha1"),
            "ProvisioningRequest" => ("autoscaling.x-k8s.io", "v1"),
            _ => ("kueue.x-k8s.io", "v1beta2"),
        };
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        if namespaced {
            Api::namespaced_with(self.client.clone(), "default", &resource)
        } else {
            Api::all_with(self.client.clone(), &resource)
        }
    }

    async fn create(&self, kind: &str, object: Value) {
        let namespaced = object["metadata"]["namespace"].is_string();
        let object: DynamicObject = serde_json::from_value(object).expect("an object");
        self.api(kind, namespaced).create(&PostParams::default(), &object).await.expect("the object is accepted");
    }

    async fn list(&self, kind: &str) -> Vec<Value> {
        let list = self.api(kind, false).list(&ListParams::default()).await.expect("a list");
        list.items.into_iter().map(|item| serde_json::to_value(item).expect("JSON")).collect()
    }

    fn context(&self) -> String {
        format!("seed {} at {}", self.seed, self.clock.now())
    }

    /// Checks what must hold at any time.
    async fn check(&self) {
        let context = self.context();
        let workloads = self.list("Workload").await;
        let usage = usage(&workloads);
        // Each limit is the sum of both queues' quotas, because a queue lends all that it does not
        // use.
        for (flavor, resource, limit) in [
            ("spot", "nvidia.com/gpu", 8),
            ("on-demand", "nvidia.com/gpu", 8),
            ("dws", "nvidia.com/gpu", 12),
            ("tpu", "google.com/tpu", 32),
        ] {
            let used = usage.get(&(flavor.to_owned(), resource.to_owned())).copied().unwrap_or(0);
            assert!(used <= limit, "{context}: {used} {resource} of {limit} in flavor {flavor}");
        }
        let unfinished: BTreeSet<&str> =
            workloads.iter().filter(|workload| !is_true(workload, "Finished")).map(name).collect();
        let requests = self.list("ProvisioningRequest").await;
        for request in &requests {
            let owner = request["metadata"]["ownerReferences"][0]["name"].as_str().unwrap_or_default();
            assert!(unfinished.contains(owner), "{context}: request {} outlives its workload", name(request));
        }
        let pools = self.list("NodePool").await;
        let nodes = self.list("Node").await;
        for pool in &pools {
            let own: Vec<&Value> = nodes.iter().filter(|node| pool_of(node) == name(pool)).collect();
            let most = pool["spec"]["maxNodes"].as_u64().unwrap_or(4) as usize;
            assert!(own.len() <= most.max(1), "{context}: {} nodes in pool {} of {most}", own.len(), name(pool));
            if name(pool) == "tpu" {
                assert!([0, 4].contains(&own.len()), "{context}: a part of the slice: {} nodes", own.len());
            }
            for node in &own {
                let Some(resize) = resize_of(node) else { continue };
                let known = pool["spec"]["resizeRequests"].as_array().into_iter().flatten();
                let is_known = known.filter_map(|known| known["name"].as_str()).any(|known| known == resize);
                assert!(is_known, "{context}: node {} has no resize request", name(node));
            }
        }
        for node in &nodes {
            let is_known = pools.iter().any(|pool| name(pool) == pool_of(node));
            assert!(is_known, "{context}: node {} has no pool", name(node));
        }
        for request in requests.iter().filter(|request| !is_true(request, "Provisioned")) {
            let details = &request["status"]["provisioningClassDetails"];
            let Some(resize) = details["ResizeRequestName"].as_str() else { continue };
            let wanted: usize = details["Nodes"].as_str().and_then(|text| text.parse().ok()).unwrap_or(0);
            let here = nodes.iter().filter(|node| resize_of(node) == Some(resize)).count();
            assert!([0, wanted].contains(&here), "{context}: {here} of {wanted} nodes of request {}", name(request));
        }
    }

    /// Checks what must hold when the week is over: every job has finished, or its Workload states
    /// why not.
    async fn check_end(&self) {
        let context = self.context();
        let workloads = self.list("Workload").await;
        for job in self.list("Job").await {
            if is_true(&job, "Complete") || is_true(&job, "Failed") {
                continue;
            }
            let of_job = workloads
                .iter()
                .find(|workload| workload["metadata"]["ownerReferences"][0]["name"].as_str() == Some(name(&job)));
            let workload = of_job.unwrap_or_else(|| panic!("{context}: {} has no Workload", name(&job)));
            let evicted = condition(workload, "Evicted").cloned().unwrap_or_default();
            let reason = evicted["reason"].as_str().unwrap_or_default();
            let message = evicted["message"].as_str().unwrap_or_default();
            let states_why =
                workload["spec"]["active"] == false && reason.starts_with("Deactivated") && !message.is_empty();
            assert!(
                states_why,
                "{context}: {} has not finished, and its Workload does not state why: {:#}",
                name(&job),
                workload["status"]
            );
        }
        let left = self.list("ProvisioningRequest").await;
        let live: Vec<&Value> = left.iter().filter(|request| !is_true(request, "Failed")).collect();
        assert!(
            live.iter().all(|request| is_true(request, "CapacityRevoked")),
            "{context}: requests are left: {live:#?}"
        );
        for pool in self.list("NodePool").await {
            assert!(
                pool["spec"]["resizeRequests"].as_array().is_none_or(Vec::is_empty),
                "{context}: {:#}",
                pool["spec"]
            );
        }
        let nodes: Vec<String> = self.list("Node").await.iter().map(|node| pool_of(node).to_owned()).collect();
        assert_eq!(nodes, ["cpu"], "{context}: machines are left");
    }
}

fn pool_of(node: &Value) -> &str {
    node["metadata"]["labels"]["cloud.google.com/gke-nodepool"].as_str().unwrap_or_default()
}

fn resize_of(node: &Value) -> Option<&str> {
    node["metadata"]["labels"]["autoscaling.gke.io/provisioning-request"].as_str()
}

async fn week(seed: u64) {
    let mut draw = Draw(seed);
    let clock = Clock::scaled("2026-01-05T00:00:00Z".parse().expect("a time"), 1.0);
    let configuration = json!({
        "waitForPodsReady": { "timeout": "15m", "requeuingStrategy": { "backoffMaxSeconds": 600 } },
        // With every second seed, flavors whose requests failed get no workloads for a while.
        "flavorCoolDown": if seed.is_multiple_of(2) { json!({ "initial": "10m", "maximum": "2h" }) } else { Value::Null },
    });
    let options = Options::in_memory(clock.clone(), seed, Some(cluster(&mut draw)), Some(configuration));
    let embedded = Embedded::start(options).await.expect("the cluster starts");
    let world = World { client: embedded.observer(), seed, clock: clock.clone() };
    for (kind, object) in platform() {
        world.create(kind, object).await;
    }
    let mut jobs: BTreeMap<u64, Vec<(u64, Value)>> = BTreeMap::new();
    let mut deletions: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for number in 0..JOBS {
        let hour = draw.below(HOURS - 6);
        jobs.entry(hour).or_default().push((number, job(number, &mut draw)));
        if draw.below(8) == 0 {
            let end = draw.between(hour + 1, HOURS);
            deletions.entry(end).or_default().push(format!("job-{number}"));
        }
    }
    // The supply changes at full hours, and the checks run between them.
    clock.sleep(Duration::from_secs(433)).await;
    for hour in 0..HOURS {
        for (_, job) in jobs.remove(&hour).unwrap_or_default() {
            world.create("Job", job).await;
        }
        for job in deletions.remove(&hour).unwrap_or_default() {
            world.api("Job", true).delete(&job, &DeleteParams::background()).await.expect("the job is deleted");
        }
        clock.sleep(HOUR).await;
        world.check().await;
    }
    // The cloud has enough machines from now on.
    for pool in POOLS {
        let patch = json!({ "spec": { "supply": null } });
        world
            .api("NodePool", false)
            .patch(pool, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .expect("patched");
    }
    for _ in 0..HOURS_AFTER {
        clock.sleep(HOUR).await;
        world.check().await;
    }
    world.check_end().await;
    embedded.stop().await;
}

#[test]
fn a_week_of_random_supply_leaves_no_request_no_node_and_no_job_behind() {
    for seed in 1..=seeds(2) {
        in_virtual_time(week(seed));
    }
}
