//! Gangs against the API: PodGroups with their controller, and Sakkara's groups with their results.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use berth_api::berth::ClusterConfiguration;
use berth_api::scheduling::PodGroup;
use berth_apiserver::UserInfo;
use berth_cluster::{pod_groups, scheduler, storage};
use berth_runtime::Manager;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Node, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::world::{CutWire, Loss, World, eventually};

async fn create<K>(api: &Api<K>, object: Value) -> kube::Result<K>
where
    K: Resource + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await
}

fn install(manager: &mut Manager) {
    scheduler::install(manager, &ClusterConfiguration::default());
    pod_groups::install(manager);
    storage::install(manager, storage::Folders::new());
}

async fn nodes(world: &World, count: usize) {
    let nodes: Api<Node> = Api::all(world.client());
    for number in 0..count {
        let name = format!("n{number}");
        let node = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"allocatable": {"cpu": "4", "memory": "16Gi", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}]},
        });
        create(&nodes, node).await.unwrap();
    }
}

fn pod(name: &str, scheduler: &str, label: (&str, &str), cpu: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {label.0: label.1}}, "spec": {
        "schedulerName": scheduler,
        "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}],
    }})
}

fn group_map(name: &str, size: usize, constraints: Value) -> Value {
    json!({"metadata": {"name": name, "labels": {"sakkara.group": ""}}, "data": {
        "name": name, "size": size.to_string(), "priority": "0", "constraints": constraints.to_string(),
    }})
}

struct Gang {
    pods: Api<Pod>,
    events: Api<Event>,
    maps: Api<ConfigMap>,
}

impl Gang {
    fn new(world: &World) -> Self {
        let client = world.client();
        Self {
            pods: Api::default_namespaced(client.clone()),
            events: Api::default_namespaced(client.clone()),
            maps: Api::default_namespaced(client),
        }
    }

    async fn bound(&self) -> usize {
        let pods = self.pods.list(&ListParams::default()).await.unwrap();
        pods.iter().filter(|pod| pod.spec.as_ref().unwrap().node_name.is_some()).count()
    }

    async fn data(&self, map: &str, key: &str) -> Option<String> {
        self.maps.get(map).await.unwrap().data.unwrap_or_default().get(key).cloned()
    }

    async fn events_of(&self, pod: &str) -> Vec<String> {
        let events = self.events.list(&ListParams::default()).await.unwrap();
        let of_pod = events.into_iter().filter(|event| event.involved_object.name.as_deref() == Some(pod));
        of_pod.filter_map(|event| event.message).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn the_pods_of_a_pod_group_are_bound_together_and_counted() {
    let world = World::with_our_kinds().await;
    nodes(&world, 2).await;
    let gang = Gang::new(&world);
    let groups: Api<PodGroup> = Api::default_namespaced(world.client());
    let of = |name: &str, min_member: i32| json!({"metadata": {"name": name}, "spec": {"minMember": min_member}});
    let until = async {
        let error = create(&groups, of("none", 0)).await.unwrap_err().to_string();
        assert!(error.contains("spec.minMember: Invalid value: 0"), "{error}");
        create(&groups, of("train", 3)).await.unwrap();
        let phase = async || groups.get("train").await.unwrap().status.unwrap_or_default().phase;
        eventually("the group is pending", async || phase().await == "Pending").await;
        let label = ("scheduling.x-k8s.io/pod-group", "train");
        for number in 0..2 {
            let member = pod(&format!("train-{number}"), "scheduler-plugins-scheduler", label, "2");
            create(&gang.pods, member).await.unwrap();
        }
        let waits = "cannot find enough sibling pods, current pods number: 2, minMember of group: 3";
        eventually("the pods wait for a third", async || {
            gang.events_of("train-1").await.iter().any(|message| message.contains(waits))
        })
        .await;
        create(&gang.pods, pod("train-2", "scheduler-plugins-scheduler", label, "2")).await.unwrap();
        eventually("all are bound", async || gang.bound().await == 3).await;
        eventually("the group is being scheduled", async || phase().await == "Scheduling").await;
        let events = gang.events.list(&ListParams::default()).await.unwrap();
        let scheduled = events.iter().filter(|event| event.reason.as_deref() == Some("Scheduled"));
        for event in scheduled {
            let component = event.source.as_ref().and_then(|source| source.component.as_deref());
            assert_eq!(component, Some("scheduler-plugins-scheduler"));
        }
    };
    world.run(install, until).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_names_an_unknown_scheduler_gets_an_event() {
    let world = World::with_our_kinds().await;
    nodes(&world, 1).await;
    let gang = Gang::new(&world);
    let until = async {
        create(&gang.pods, pod("lost", "volcano", ("a", "b"), "1")).await.unwrap();
        eventually("the event names the known schedulers", async || {
            let events = gang.events_of("lost").await;
            events.iter().any(|message| {
                message.contains("no scheduler is named \"volcano\"") && message.contains("sakkara-scheduler")
            })
        })
        .await;
        assert_eq!(gang.bound().await, 0);
    };
    world.run(install, until).await;
}

#[tokio::test(start_paused = true)]
async fn a_group_whose_claims_wait_for_a_node_is_bound_together() {
    let world = World::with_our_kinds().await;
    nodes(&world, 2).await;
    let gang = Gang::new(&world);
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(world.client());
    let classes: Api<StorageClass> = Api::all(world.client());
    classes.create(&PostParams::default(), &storage::local::standard_class()).await.unwrap();
    let until = async {
        create(&gang.maps, group_map("g", 2, json!({"node": {"type": "spread"}}))).await.unwrap();
        let mut with_claim = pod("g-0", "sakkara-scheduler", ("sakkara.group.name", "g"), "1");
        with_claim["spec"]["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
        create(&gang.pods, with_claim).await.unwrap();
        create(&gang.pods, pod("g-1", "sakkara-scheduler", ("sakkara.group.name", "g"), "1")).await.unwrap();
        let message = async || gang.data("g", "message").await.unwrap_or_default();
        eventually("the group reports the claim", async || message().await.contains("\"data\" not found")).await;
        assert_eq!(gang.bound().await, 0);
        let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}});
        create(&claims, claim).await.unwrap();
        eventually("both pods are bound", async || gang.bound().await == 2).await;
        eventually("the group is bound", async || gang.data("g", "status").await.as_deref() == Some("Bound")).await;
    };
    world.run(install, until).await;
}

/// A scheduler that is cut off after some writes leaves a group that the next one completes.
async fn cut_after(writes: usize, loss: Loss) -> bool {
    let world = World::new().await;
    nodes(&world, 2).await;
    let gang = Gang::new(&world);
    create(&gang.maps, group_map("g", 3, json!({}))).await.unwrap();
    for number in 0..3 {
        let member = pod(&format!("g-{number}"), "sakkara-scheduler", ("sakkara.group.name", "g"), "2");
        create(&gang.pods, member).await.unwrap();
    }
    let is_done = async || gang.data("g", "status").await.as_deref() == Some("Bound");
    let dead = Arc::new(Notify::new());
    let wire = CutWire {
        inner: world.server.in_process(UserInfo::master("cut")),
        writes_left: Arc::new(AtomicUsize::new(writes)),
        loss,
        dead: dead.clone(),
    };
    let mut survived = false;
    let until = async {
        tokio::select! {
            () = dead.notified() => {}
            () = eventually("the group is bound", is_done) => survived = true,
        }
    };
    world.run_over(Client::new(wire, "default"), install, until).await;
    world.run(install, eventually("the group is bound", is_done)).await;
    let pods = gang.pods.list(&ListParams::default()).await.unwrap();
    let ranks: BTreeSet<String> = pods.iter().map(|pod| pod.labels()["sakkara.member.rank"].clone()).collect();
    assert_eq!(ranks, ["0", "1", "2"].map(str::to_owned).into(), "after {writes} writes, {loss:?}");
    assert!(pods.iter().all(|pod| pod.labels()["sakkara.member.status"] == "Bound"), "after {writes} writes, {loss:?}");
    assert_eq!(gang.bound().await, 3);
    survived
}

#[tokio::test(start_paused = true)]
async fn a_group_is_completed_after_a_crash_at_any_write() {
    for loss in [Loss::Request, Loss::Answer] {
        let mut writes = 0;
        while !cut_after(writes, loss).await {
            writes += 1;
            assert!(writes < 40, "the group is never bound");
        }
        assert!(writes >= 8, "the group takes only {writes} writes");
    }
}
