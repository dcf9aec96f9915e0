//! Claims get volumes, and pods wait for them: binder, provisioner and scheduler.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use berth_api::berth::ClusterConfiguration;
use berth_apiserver::UserInfo;
use berth_cluster::storage::{DiskFolders, FolderError, Folders, VolumeFolders, local};
use berth_cluster::{garbage, scheduler, storage};
use berth_runtime::Manager;
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::world::{CutWire, Loss, World, eventually};

/// Clients of the kinds that a test writes.
struct Kinds {
    claims: Api<PersistentVolumeClaim>,
    volumes: Api<PersistentVolume>,
    classes: Api<StorageClass>,
    nodes: Api<Node>,
    pods: Api<Pod>,
    events: Api<Event>,
}

impl Kinds {
    fn new(world: &World) -> Self {
        let client = world.client();
        Self {
            claims: Api::default_namespaced(client.clone()),
            volumes: Api::all(client.clone()),
            classes: Api::all(client.clone()),
            nodes: Api::all(client.clone()),
            pods: Api::default_namespaced(client.clone()),
            events: Api::default_namespaced(client),
        }
    }

    async fn node(&self, name: &str) {
        let node = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"allocatable": {"cpu": "4", "memory": "16Gi", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}]},
        });
        create(&self.nodes, node).await;
    }

    async fn standard(&self) {
        self.classes.create(&PostParams::default(), &local::standard_class()).await.unwrap();
    }

    async fn phase(&self, claim: &str) -> String {
        let claim = self.claims.get(claim).await.unwrap();
        claim.status.and_then(|status| status.phase).unwrap_or_default()
    }

    async fn volume_phase(&self, volume: &str) -> Option<String> {
        self.volumes.get_opt(volume).await.unwrap()?.status?.phase
    }

    async fn node_of(&self, pod: &str) -> Option<String> {
        self.pods.get(pod).await.unwrap().spec.unwrap().node_name
    }

    /// The message of the pod's condition PodScheduled.
    async fn waits_because(&self, pod: &str) -> String {
        let conditions = self.pods.get(pod).await.unwrap().status.and_then(|status| status.conditions);
        let mut scheduled = conditions.into_iter().flatten().filter(|it| it.type_ == "PodScheduled");
        scheduled.next().and_then(|condition| condition.message).unwrap_or_default()
    }

    /// Messages of the events with this reason about the object with this name.
    async fn said(&self, name: &str, reason: &str) -> Vec<String> {
        let events = self.events.list(&ListParams::default()).await.unwrap().items;
        let about = |event: &Event| {
            event.involved_object.name.as_deref() == Some(name) && event.reason.as_deref() == Some(reason)
        };
        events.into_iter().filter(about).filter_map(|event| event.message).collect()
    }
}

async fn create<K>(api: &Api<K>, object: Value) -> K
where
    K: Resource + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap()
}

fn claim(name: &str, class: Option<&str>, modes: &[&str]) -> Value {
    json!({"metadata": {"name": name}, "spec": {"accessModes": modes, "storageClassName": class,
        "resources": {"requests": {"storage": "1Gi"}}}})
}

const ONCE: &[&str] = &["ReadWriteOnce"];

fn volume(name: &str, size: &str, policy: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": size},
        "persistentVolumeReclaimPolicy": policy, "hostPath": {"path": "/x"}}})
}

fn pod(name: &str, claim: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {
        "containers": [{"name": "c", "image": "i"}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}],
    }})
}

fn install(folders: Folders) -> impl FnOnce(&mut Manager) {
    move |manager| {
        garbage::install(manager, None);
        storage::install(manager, folders);
        scheduler::install(manager, &ClusterConfiguration::default());
    }
}

fn on_disk(node: &str, root: PathBuf) -> Folders {
    let folders: Arc<dyn VolumeFolders> = Arc::new(DiskFolders::new(root));
    BTreeMap::from([(node.to_owned(), folders)])
}

/// Waits for one virtual minute, in which all pending actions happen.
async fn settle() {
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_and_a_volume_are_bound_until_the_claim_is_deleted() {
    let world = World::new().await;
    let kinds = Kinds::new(&world);
    let until = async {
        create(&kinds.claims, claim("c", Some(""), ONCE)).await;
        eventually("the claim reports the missing volume", async || !kinds.said("c", "FailedBinding").await.is_empty())
            .await;
        create(&kinds.volumes, volume("large", "5Gi", "Retain")).await;
        eventually("the claim is bound", async || kinds.phase("c").await == "Bound").await;
        let bound = kinds.claims.get("c").await.unwrap();
        assert_eq!(bound.spec.as_ref().unwrap().volume_name.as_deref(), Some("large"));
        assert_eq!(bound.annotations()["pv.kubernetes.io/bind-completed"], "yes");
        assert_eq!(bound.annotations()["pv.kubernetes.io/bound-by-controller"], "yes");
        assert_eq!(json!(bound.status)["capacity"], json!({"storage": "5Gi"}));
        eventually("the volume is bound", async || kinds.volume_phase("large").await.as_deref() == Some("Bound")).await;
        let reference = kinds.volumes.get("large").await.unwrap().spec.unwrap().claim_ref.unwrap();
        assert_eq!((reference.name.as_deref(), reference.uid), (Some("c"), bound.uid()));
        kinds.claims.delete("c", &DeleteParams::default()).await.unwrap();
        let is_released = async || kinds.volume_phase("large").await.as_deref() == Some("Released");
        eventually("the volume is released", is_released).await;
        create(&kinds.claims, claim("c", Some(""), ONCE)).await;
        settle().await;
        assert_eq!(kinds.phase("c").await, "Pending", "a released volume is not bound again");
    };
    world.run(install(Folders::new()), until).await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_reserved_for_a_claim_is_its_only_choice_and_a_lost_volume_is_reported() {
    let world = World::new().await;
    let kinds = Kinds::new(&world);
    let until = async {
        let mut reserved = volume("reserved", "50Gi", "Retain");
        reserved["spec"]["claimRef"] = json!({"namespace": "default", "name": "c"});
        create(&kinds.volumes, reserved).await;
        create(&kinds.volumes, volume("small", "1Gi", "Retain")).await;
        create(&kinds.claims, claim("other", Some(""), ONCE)).await;
        create(&kinds.claims, claim("c", Some(""), ONCE)).await;
        eventually("both are bound", async || {
            kinds.phase("c").await == "Bound" && kinds.phase("other").await == "Bound"
        })
        .await;
        let of = async |name: &str| kinds.claims.get(name).await.unwrap().spec.unwrap().volume_name.unwrap();
        assert_eq!((of("c").await.as_str(), of("other").await.as_str()), ("reserved", "small"));
        let gone = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        kinds.volumes.delete("small", &DeleteParams::default()).await.unwrap();
        kinds.volumes.patch("small", &PatchParams::default(), &gone).await.unwrap();
        eventually("the claim is lost", async || kinds.phase("other").await == "Lost").await;
        assert_eq!(kinds.said("other", "ClaimLost").await.len(), 1);
        kinds.node("n").await;
        create(&kinds.pods, pod("p", "other")).await;
        let why = "0/1 nodes are available: persistentvolumeclaim \"other\" bound to non-existent persistentvolume \
                   \"small\". preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
        eventually("the pod of the lost claim waits", async || kinds.waits_because("p").await == why).await;
    };
    world.run(install(Folders::new()), until).await;
}

#[tokio::test(start_paused = true)]
async fn volumes_that_no_program_can_reclaim_fail() {
    let world = World::new().await;
    let kinds = Kinds::new(&world);
    let until = async {
        for policy in ["Delete", "Recycle"] {
            let name = policy.to_lowercase();
            create(&kinds.volumes, volume(&name, "1Gi", policy)).await;
            let mut named = claim(&name, Some(""), ONCE);
            named["spec"]["volumeName"] = json!(name);
            create(&kinds.claims, named).await;
            eventually("the claim is bound", async || kinds.phase(&name).await == "Bound").await;
            kinds.claims.delete(&name, &DeleteParams::default()).await.unwrap();
            let is_failed = async || kinds.volume_phase(&name).await.as_deref() == Some("Failed");
            eventually("it fails", is_failed).await;
            let failed_reclaim = if policy == "Delete" { "VolumeFailedDelete" } else { "VolumeFailedRecycle" };
            eventually("it is reported", async || kinds.said(&name, failed_reclaim).await.len() == 1).await;
        }
    };
    world.run(install(Folders::new()), until).await;
}

#[tokio::test(start_paused = true)]
async fn the_first_consumer_of_a_claim_has_a_folder_created_on_its_node() {
    let world = World::new().await;
    let kinds = Kinds::new(&world);
    let disk = tempfile::tempdir().unwrap();
    let root = disk.path().join("volumes");
    let until = async {
        kinds.standard().await;
        kinds.node("laptop").await;
        create(&kinds.claims, claim("c", None, ONCE)).await;
        let waits = async || !kinds.said("c", "WaitForFirstConsumer").await.is_empty();
        eventually("the claim waits for a consumer", waits).await;
        assert_eq!(kinds.claims.get("c").await.unwrap().spec.unwrap().storage_class_name.as_deref(), Some("standard"));
        assert!(!root.exists());
        create(&kinds.pods, pod("p", "c")).await;
        eventually("the pod has a node", async || kinds.node_of("p").await.is_some()).await;
        let claim = kinds.claims.get("c").await.unwrap();
        assert_eq!(kinds.phase("c").await, "Bound");
        assert_eq!(claim.annotations()["volume.kubernetes.io/selected-node"], "laptop");
        let name = claim.spec.as_ref().unwrap().volume_name.clone().unwrap();
        assert_eq!(name, format!("pvc-{}", claim.uid().unwrap()));
        let volume = kinds.volumes.get(&name).await.unwrap();
        assert_eq!(json!(volume.spec)["local"]["path"], json!(root.join(&name)));
        assert!(root.join(&name).is_dir());
        eventually("an event reports the volume", async || !kinds.said("c", "ProvisioningSucceeded").await.is_empty())
            .await;
        // A pod on another node cannot reach the volume.
        kinds.node("other").await;
        let mut elsewhere = pod("elsewhere", "c");
        elsewhere["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": "other"});
        create(&kinds.pods, elsewhere).await;
        let why = "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 1 node(s) had volume \
                   node affinity conflict. preemption: 0/2 nodes are available: 2 Preemption is not helpful for \
                   scheduling.";
        eventually("the pod's condition has the reason", async || kinds.waits_because("elsewhere").await == why).await;
        kinds.claims.delete("c", &DeleteParams::default()).await.unwrap();
        settle().await;
        assert!(root.join(&name).is_dir(), "a pod uses it");
        for pod in ["p", "elsewhere"] {
            kinds.pods.delete(pod, &DeleteParams::default().grace_period(0)).await.unwrap();
        }
        eventually("the volume is deleted", async || kinds.volume_phase(&name).await.is_none()).await;
        assert!(!root.join(&name).exists());
    };
    world.run(install(on_disk("laptop", root.clone())), until).await;
}

#[tokio::test(start_paused = true)]
async fn a_simulated_volume_needs_no_folder_and_a_retained_folder_stays() {
    let world = World::new().await;
    let kinds = Kinds::new(&world);
    let disk = tempfile::tempdir().unwrap();
    let root = disk.path().join("volumes");
    let until = async {
        let mut retained = local::standard_class();
        retained.metadata.name = Some("retained".into());
        retained.reclaim_policy = Some("Retain".into());
        kinds.classes.create(&PostParams::default(), &retained).await.unwrap();
        for node in ["laptop", "simulated"] {
            kinds.node(node).await;
            create(&kinds.claims, claim(node, Some("retained"), &["ReadWriteMany"])).await;
            let mut pod = pod(node, node);
            pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
            create(&kinds.pods, pod).await;
            eventually("the pod has a node", async || kinds.node_of(node).await.is_some()).await;
        }
        let volume_of = async |claim: &str| {
            let name = kinds.claims.get(claim).await.unwrap().spec.unwrap().volume_name.unwrap();
            kinds.volumes.get(&name).await.unwrap()
        };
        let (folder, simulated) = (volume_of("laptop").await, volume_of("simulated").await);
        assert_eq!(json!(simulated.spec)["csi"]["driver"], json!(local::SIMULATED_DRIVER));
        let entries = || std::fs::read_dir(&root).unwrap().count();
        assert_eq!(entries(), 1);
        for (pod, volume) in [("laptop", &folder), ("simulated", &simulated)] {
            kinds.pods.delete(pod, &DeleteParams::default().grace_period(0)).await.unwrap();
            kinds.claims.delete(pod, &DeleteParams::default()).await.unwrap();
            let name = volume.name_any();
            let is_released = async || kinds.volume_phase(&name).await.as_deref() == Some("Released");
            eventually("the volume is released", is_released).await;
            kinds.volumes.delete(&name, &DeleteParams::default()).await.unwrap();
            eventually("the volume is deleted", async || kinds.volume_phase(&name).await.is_none()).await;
        }
        assert_eq!(entries(), 1, "the folder is retained");
    };
    world.run(install(on_disk("laptop", root.clone())), until).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_waits_for_its_claim_with_the_schedulers_reason() {
    let world = World::new().await;
    let kinds = Kinds::new(&world);
    let until = async {
        kinds.node("n").await;
        create(&kinds.pods, pod("p", "c")).await;
        let tail = "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
        let missing = format!("0/1 nodes are available: persistentvolumeclaim \"c\" not found. {tail}");
        eventually("the pod waits for a missing claim", async || kinds.waits_because("p").await == missing).await;
        create(&kinds.claims, claim("c", Some(""), ONCE)).await;
        let unbound = format!("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. {tail}");
        eventually("the pod waits for an unbound claim", async || kinds.waits_because("p").await == unbound).await;
        create(&kinds.volumes, volume("v", "1Gi", "Retain")).await;
        eventually("the pod has a node", async || kinds.node_of("p").await.is_some()).await;
    };
    world.run(install(Folders::new()), until).await;
}

#[tokio::test(start_paused = true)]
async fn local_volumes_are_chosen_with_their_node() {
    let world = World::new().await;
    let kinds = Kinds::new(&world);
    let until = async {
        let mut manual = local::standard_class();
        manual.metadata.name = Some("manual".into());
        manual.provisioner = "kubernetes.io/no-provisioner".into();
        kinds.classes.create(&PostParams::default(), &manual).await.unwrap();
        kinds.node("a").await;
        kinds.node("b").await;
        let mut on_b = volume("on-b", "1Gi", "Retain");
        on_b["spec"]["storageClassName"] = json!("manual");
        on_b["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]}]}]}});
        create(&kinds.volumes, on_b).await;
        for name in ["first", "second"] {
            create(&kinds.claims, claim(name, Some("manual"), ONCE)).await;
            create(&kinds.pods, pod(name, name)).await;
        }
        eventually("the first pod is on the volume's node", async || {
            kinds.node_of("first").await.as_deref() == Some("b") && kinds.phase("first").await == "Bound"
        })
        .await;
        let why = "0/2 nodes are available: 2 node(s) didn't find available persistent volumes to bind. preemption: \
                   0/2 nodes are available: 2 Preemption is not helpful for scheduling.";
        eventually("the second pod finds no volume", async || kinds.waits_because("second").await == why).await;
    };
    world.run(install(Folders::new()), until).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_for_one_pod_is_used_by_one_pod_at_a_time() {
    let world = World::new().await;
    let kinds = Kinds::new(&world);
    let until = async {
        kinds.standard().await;
        kinds.node("a").await;
        create(&kinds.claims, claim("c", None, &["ReadWriteOncePod"])).await;
        create(&kinds.pods, pod("first", "c")).await;
        eventually("the first has a node", async || kinds.node_of("first").await.is_some()).await;
        create(&kinds.pods, pod("second", "c")).await;
        let why = "1 node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";
        eventually("the second waits", async || kinds.waits_because("second").await.contains(why)).await;
        kinds.pods.delete("first", &DeleteParams::default().grace_period(0)).await.unwrap();
        eventually("the second has a node", async || kinds.node_of("second").await.is_some()).await;
    };
    world.run(install(Folders::new()), until).await;
}

#[tokio::test(start_paused = true)]
async fn the_claim_of_an_ephemeral_volume_is_deleted_with_its_pod() {
    let world = World::new().await;
    let kinds = Kinds::new(&world);
    let until = async {
        kinds.standard().await;
        kinds.node("n").await;
        let mut scratch = pod("p", "");
        scratch["spec"]["volumes"] = json!([{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {
            "metadata": {"labels": {"a": "b"}}, "spec": claim("", None, ONCE)["spec"]}}}]);
        create(&kinds.pods, scratch.clone()).await;
        eventually("the pod has a node", async || kinds.node_of("p").await.is_some()).await;
        let claim_of_pod = kinds.claims.get("p-scratch").await.unwrap();
        assert_eq!(claim_of_pod.labels()["a"], "b");
        assert_eq!(claim_of_pod.owner_references()[0].uid, kinds.pods.get("p").await.unwrap().uid().unwrap());
        kinds.pods.delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
        eventually("the claim is deleted", async || kinds.claims.get_opt("p-scratch").await.unwrap().is_none()).await;
        eventually("so is its volume", async || {
            kinds.volumes.list(&ListParams::default()).await.unwrap().items.is_empty()
        })
        .await;
        // A claim with this name exists that was not created for the pod.
        create(&kinds.claims, claim("q-scratch", None, ONCE)).await;
        scratch["metadata"]["name"] = json!("q");
        create(&kinds.pods, scratch).await;
        let conflict = "PVC default/q-scratch was not created for pod default/q (pod is not owner)";
        eventually("the pod waits", async || kinds.waits_because("q").await.contains(conflict)).await;
        let said = [format!("ephemeral volume scratch: {conflict}")];
        eventually("an event reports it", async || kinds.said("q", "FailedBinding").await == said).await;
    };
    world.run(install(Folders::new()), until).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_requests_more_is_expanded() {
    let world = World::new().await;
    let kinds = Kinds::new(&world);
    let until = async {
        kinds.standard().await;
        kinds.node("n").await;
        create(&kinds.claims, claim("c", None, ONCE)).await;
        create(&kinds.pods, pod("p", "c")).await;
        eventually("the claim is bound", async || kinds.phase("c").await == "Bound").await;
        let more = Patch::Merge(json!({"spec": {"resources": {"requests": {"storage": "3Gi"}}}}));
        kinds.claims.patch("c", &PatchParams::default(), &more).await.unwrap();
        let size = async || json!(kinds.claims.get("c").await.unwrap().status)["capacity"]["storage"].clone();
        eventually("the claim has the requested size", async || size().await == "3Gi").await;
        let name = kinds.claims.get("c").await.unwrap().spec.unwrap().volume_name.unwrap();
        assert_eq!(json!(kinds.volumes.get(&name).await.unwrap().spec)["capacity"]["storage"], "3Gi");
        eventually("an event reports it", async || kinds.said("c", "VolumeResizeSuccessful").await.len() == 1).await;
    };
    world.run(install(Folders::new()), until).await;
}

/// Fails to create folders until the flag is set.
#[derive(Debug, Default)]
struct Broken(Mutex<bool>);

impl VolumeFolders for Broken {
    fn create(&self, volume: &PersistentVolume) -> Result<PathBuf, FolderError> {
        let is_mended = *self.0.lock().unwrap();
        if is_mended { Ok("/somewhere".into()) } else { Err(FolderError::Name(volume.name_any())) }
    }

    fn delete(&self, _volume: &PersistentVolume) -> Result<(), FolderError> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_folder_that_cannot_be_created_is_an_event_and_is_tried_again() {
    let world = World::new().await;
    let kinds = Kinds::new(&world);
    let broken = Arc::new(Broken::default());
    let folders: Arc<dyn VolumeFolders> = broken.clone();
    let until = async {
        kinds.standard().await;
        kinds.node("laptop").await;
        create(&kinds.claims, claim("c", None, ONCE)).await;
        create(&kinds.pods, pod("p", "c")).await;
        eventually("it is said", async || {
            let said = kinds.said("c", "ProvisioningFailed").await;
            said.iter().any(|text| text.starts_with("failed to provision volume with StorageClass \"standard\": "))
        })
        .await;
        assert_eq!(kinds.node_of("p").await, None);
        *broken.0.lock().unwrap() = true;
        eventually("the pod has a node", async || kinds.node_of("p").await.is_some()).await;
    };
    world.run(install(BTreeMap::from([("laptop".to_owned(), folders)])), until).await;
}

#[tokio::test(start_paused = true)]
async fn another_node_is_chosen_if_the_first_is_deleted_before_the_volume_exists() {
    let world = World::new().await;
    let kinds = Kinds::new(&world);
    let folders: Arc<dyn VolumeFolders> = Arc::new(Broken::default());
    let until = async {
        kinds.standard().await;
        kinds.node("laptop").await;
        create(&kinds.claims, claim("c", None, ONCE)).await;
        create(&kinds.pods, pod("p", "c")).await;
        eventually("it fails", async || !kinds.said("c", "ProvisioningFailed").await.is_empty()).await;
        kinds.nodes.delete("laptop", &DeleteParams::default()).await.unwrap();
        kinds.node("other").await;
        eventually("the pod is on the other node", async || kinds.node_of("p").await.as_deref() == Some("other")).await;
        assert_eq!(kinds.phase("c").await, "Bound");
    };
    world.run(install(BTreeMap::from([("laptop".to_owned(), folders)])), until).await;
}

/// The controllers are killed at each of their writes in turn, with the request or only the
/// response lost, and start again: the claim gets one volume, its pod one node, and no object is
/// left.
#[tokio::test(start_paused = true)]
async fn controllers_that_are_killed_at_any_write_bind_a_claim_once_and_leave_nothing() {
    for loss in [Loss::Request, Loss::Answer] {
        let mut writes = 0;
        loop {
            let world = World::new().await;
            let kinds = Kinds::new(&world);
            let disk = tempfile::tempdir().unwrap();
            let root = disk.path().join("volumes");
            let folders = || on_disk("laptop", root.clone());
            kinds.standard().await;
            kinds.node("laptop").await;
            create(&kinds.claims, claim("c", None, ONCE)).await;
            create(&kinds.pods, pod("p", "c")).await;
            // The whole life of a claim: it is bound, its pod is deleted, and it is deleted with
            // its volume.
            let life = async || {
                let uses = async || kinds.pods.get_opt("p").await.unwrap();
                if uses().await.is_some() {
                    eventually("the pod has a node", async || kinds.node_of("p").await.is_some()).await;
                    assert_eq!(kinds.phase("c").await, "Bound");
                    assert_eq!(std::fs::read_dir(&root).unwrap().count(), 1);
                    assert_eq!(kinds.volumes.list(&ListParams::default()).await.unwrap().items.len(), 1);
                    kinds.pods.delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
                }
                // It may be gone at any time, if the first controllers were killed after its
                // deletion.
                let deleted = kinds.claims.delete("c", &DeleteParams::default()).await;
                assert!(deleted.is_ok() || deleted.is_err_and(|error| berth_runtime::is_not_found(&error)));
                eventually("nothing is left", async || {
                    kinds.claims.get_opt("c").await.unwrap().is_none()
                        && kinds.volumes.list(&ListParams::default()).await.unwrap().items.is_empty()
                })
                .await;
            };
            let dead = Arc::new(Notify::new());
            let wire = CutWire {
                inner: world.server.in_process(UserInfo::master("test")),
                writes_left: Arc::new(AtomicUsize::new(writes)),
                loss,
                dead: dead.clone(),
            };
            let mut has_died = false;
            let first = async {
                tokio::select! {
                    biased;
                    () = dead.notified() => has_died = true,
                    () = life() => {}
                }
            };
            world.run_over(Client::new(wire, "default"), install(folders()), first).await;
            if has_died {
                world.run(install(folders()), life()).await;
            }
            assert_eq!(std::fs::read_dir(&root).map_or(0, Iterator::count), 0, "after {writes} writes");
            if !has_died {
                break;
            }
            writes += 1;
        }
        assert!(writes > 8, "{writes} writes");
    }
}
