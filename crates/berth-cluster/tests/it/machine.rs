//! This machine as a Node: registration, heartbeats, conditions, and the end of its process.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use berth_cluster::machine::{MachineNode, install, install_lifecycle};
use berth_pod_runtime::{Device, Devices, Machine, MachineFacts, Margin, PodUid, Pressure, Result};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;

use crate::world::World;

/// A machine whose shortages and devices are set by a test.
#[derive(Default)]
struct Described {
    facts: MachineFacts,
    pressure: Mutex<Pressure>,
    gpus: Mutex<usize>,
}

impl Machine for Described {
    fn facts(&self) -> &MachineFacts {
        &self.facts
    }

    fn margin(&self) -> Margin {
        Margin { memory_bytes: 100 << 20, disk_bytes: 1 << 30 }
    }

    fn pressure(&self) -> io::Result<Pressure> {
        Ok(self.pressure.lock().clone())
    }
}

impl Devices for Described {
    fn capacity(&self) -> BTreeMap<String, usize> {
        BTreeMap::from([("nvidia.com/gpu".to_owned(), *self.gpus.lock())])
    }

    fn assign(&self, _: &PodUid, _: &str, _: &str, _: usize) -> Result<Vec<Device>> {
        Ok(Vec::new())
    }

    fn environment(&self, _: &[Device]) -> Vec<(String, String)> {
        Vec::new()
    }

    fn release(&self, _: &PodUid) {}

    fn retain(&self, _: &BTreeSet<PodUid>) {}
}

fn described() -> Arc<Described> {
    let facts = MachineFacts {
        name: "laptop".into(),
        cpus: 8,
        memory_bytes: 16 << 30,
        disk_bytes: 100 << 30,
        architecture: "amd64".into(),
        kernel_version: "6.12.0".into(),
        addresses: vec![[192, 0, 2, 7].into()],
        ..MachineFacts::default()
    };
    Arc::new(Described { facts, gpus: Mutex::new(2), ..Described::default() })
}

fn node_of(machine: &Arc<Described>) -> MachineNode {
    MachineNode {
        name: "laptop".into(),
        machine: machine.clone(),
        devices: machine.clone(),
        runtime_version: "berth://test".into(),
    }
}

/// Waits until the Node satisfies a condition.
async fn wait(world: &World, what: &str, mut is_there: impl FnMut(&Node) -> bool) -> Node {
    let api: Api<Node> = Api::all(world.client());
    for _ in 0..4000 {
        if let Some(node) = api.get_opt("laptop").await.expect("a response")
            && is_there(&node)
        {
            return node;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    panic!("{what}: {:?}", api.get_opt("laptop").await);
}

fn status(node: &Node, type_: &str) -> String {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let condition = conditions.into_iter().flatten().find(|condition| condition.type_ == type_);
    condition.map(|condition| condition.status.clone()).unwrap_or_default()
}

fn taints(node: &Node) -> Vec<String> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.into_iter().flatten().map(|taint| format!("{}:{}", taint.key, taint.effect)).collect()
}

fn allocatable(node: &Node, resource: &str) -> Option<String> {
    node.status.as_ref()?.allocatable.as_ref()?.get(resource).map(|quantity| quantity.0.clone())
}

async fn patch(world: &World, patch: serde_json::Value) {
    let api: Api<Node> = Api::all(world.client());
    api.patch("laptop", &PatchParams::default(), &Patch::Merge(&patch)).await.expect("patched");
}

#[tokio::test(start_paused = true)]
async fn the_machine_registers_and_keeps_what_users_write() {
    let (world, machine) = (World::with_our_kinds().await, described());
    let install = |manager: &mut berth_runtime::Manager| install(manager, node_of(&machine), "v1.35.2");
    world
        .run(install, async {
            let node = wait(&world, "registered", |node| status(node, "Ready") == "True").await;
            assert_eq!(
                (allocatable(&node, "cpu"), allocatable(&node, "nvidia.com/gpu")),
                (Some("8".into()), Some("2".into()))
            );
            assert_eq!(node.labels().get("berth.dev/runtime").map(String::as_str), Some("process"));
            let info = node.status.and_then(|status| status.node_info).expect("node info");
            assert_eq!((info.kernel_version.as_str(), info.kubelet_version.as_str()), ("6.12.0", "v1.35.2"));
            // Cordon, taints and labels of users remain when the machine reports.
            let taint = json!({ "key": "mine", "effect": "NoSchedule" });
            patch(
                &world,
                json!({ "metadata": { "labels": { "mine": "1", "kubernetes.io/os": "plan9" } },
                                  "spec": { "unschedulable": true, "taints": [taint] } }),
            )
            .await;
            *machine.gpus.lock() = 1;
            let node = wait(&world, "reported", |node| allocatable(node, "nvidia.com/gpu") == Some("1".into())).await;
            let node = match node.labels().get("kubernetes.io/os") {
                Some(os) if os == "linux" => node,
                _ => {
                    wait(&world, "mended", |node| node.labels().get("kubernetes.io/os").is_some_and(|os| os == "linux"))
                        .await
                }
            };
            assert_eq!(node.labels().get("mine").map(String::as_str), Some("1"));
            assert_eq!(node.spec.as_ref().and_then(|spec| spec.unschedulable), Some(true));
            assert!(taints(&node).contains(&"mine:NoSchedule".to_owned()));
            // A deleted Node is registered again.
            let uid = node.uid();
            let api: Api<Node> = Api::all(world.client());
            api.delete("laptop", &DeleteParams::default()).await.expect("deleted");
            wait(&world, "registered again", |node| node.uid() != uid).await;
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn the_pool_of_the_machine_sets_reserve_and_labels() {
    let (world, machine) = (World::with_our_kinds().await, described());
    let pools: Api<berth_api::berth::NodePool> = Api::all(world.client());
    let spec = json!({ "runtime": "process", "reserve": { "cpu": "2" }, "labels": { "rack": "r1" } });
    let pool = berth_api::berth::NodePool::new("machine", serde_json::from_value(spec).expect("a spec"));
    pools.create(&PostParams::default(), &pool).await.expect("created");
    world
        .run(|manager| install(manager, node_of(&machine), "v1"), async {
            let is_there = |node: &Node| allocatable(node, "cpu") == Some("6".into());
            let node = wait(&world, "registered", is_there).await;
            assert_eq!(node.labels().get("rack").map(String::as_str), Some("r1"));
            let label = node.labels().get("cloud.google.com/gke-nodepool").map(String::as_str);
            assert_eq!(label, Some("machine"));
            let patch = json!({ "spec": { "reserve": { "cpu": "500m" } } });
            pools.patch("machine", &PatchParams::default(), &Patch::Merge(&patch)).await.expect("patched");
            wait(&world, "changed", |node| allocatable(node, "cpu") == Some("7500m".into())).await;
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn heartbeats_renew_the_lease_and_write_an_unchanged_status_rarely() {
    let (world, machine) = (World::with_our_kinds().await, described());
    world
        .run(|manager| install(manager, node_of(&machine), "v1"), async {
            let first = wait(&world, "registered", |node| node.status.is_some()).await;
            let leases: Api<Lease> = Api::namespaced(world.client(), "kube-node-lease");
            let mut renewals = BTreeSet::new();
            let mut versions = BTreeSet::new();
            let nodes: Api<Node> = Api::all(world.client());
            for _ in 0..240 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                if let Some(lease) = leases.get_opt("laptop").await.expect("a response") {
                    renewals.insert(lease.spec.and_then(|spec| spec.renew_time).expect("a time").0);
                }
                versions.insert(nodes.get("laptop").await.expect("the node").resource_version());
            }
            // About one every ten seconds; the exact number depends on the time of the check.
            assert!((20..=26).contains(&renewals.len()), "{} renewals", renewals.len());
            assert!(versions.len() <= 3, "{} versions in four minutes", versions.len());
            let heartbeat =
                |node: &Node| node.status.clone().and_then(|status| status.conditions?[0].last_heartbeat_time.clone());
            let before = heartbeat(&first);
            wait(&world, "reported again", |node| heartbeat(node) > before).await;
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_shortage_is_a_condition_and_a_taint_for_at_least_five_minutes() {
    let (world, machine) = (World::with_our_kinds().await, described());
    let start = |manager: &mut berth_runtime::Manager| {
        install(manager, node_of(&machine), "v1");
        install_lifecycle(manager);
    };
    world
        .run(start, async {
            wait(&world, "registered", |node| status(node, "DiskPressure") == "False").await;
            *machine.pressure.lock() = Pressure { disk: Some("it is full".into()), ..Pressure::default() };
            let disk = "node.kubernetes.io/disk-pressure:NoSchedule".to_owned();
            wait(&world, "short", |node| status(node, "DiskPressure") == "True" && taints(node).contains(&disk)).await;
            *machine.pressure.lock() = Pressure::default();
            tokio::time::sleep(Duration::from_secs(240)).await;
            wait(&world, "still short", |node| status(node, "DiskPressure") == "True").await;
            wait(&world, "enough", |node| status(node, "DiskPressure") == "False" && taints(node).is_empty()).await;
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_machine_whose_process_ended_becomes_unknown_and_comes_back() {
    let (world, machine) = (World::with_our_kinds().await, described());
    world
        .run(|manager| install(manager, node_of(&machine), "v1"), async {
            wait(&world, "registered", |node| status(node, "Ready") == "True").await;
        })
        .await;
    // Only the lifecycle controller runs.
    let unreachable =
        ["node.kubernetes.io/unreachable:NoSchedule", "node.kubernetes.io/unreachable:NoExecute"].map(str::to_owned);
    world
        .run(install_lifecycle, async {
            tokio::time::sleep(Duration::from_secs(30)).await;
            wait(&world, "the Node is Ready within the grace period", |node| status(node, "Ready") == "True").await;
            let node = wait(&world, "unknown", |node| status(node, "Ready") == "Unknown").await;
            let node = if taints(&node).is_empty() {
                wait(&world, "tainted", |node| !taints(node).is_empty()).await
            } else {
                node
            };
            assert_eq!(taints(&node), unreachable);
            assert_eq!(status(&node, "MemoryPressure"), "Unknown");
        })
        .await;
    let both = |manager: &mut berth_runtime::Manager| {
        install(manager, node_of(&machine), "v1");
        install_lifecycle(manager);
    };
    world
        .run(both, async {
            wait(&world, "back", |node| status(node, "Ready") == "True" && taints(node).is_empty()).await;
        })
        .await;
}
