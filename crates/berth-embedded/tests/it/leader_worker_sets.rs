//! LeaderWorkerSets on the whole embedded cluster: groups of pods on simulated nodes, their
//! updates, and queues.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::frameworks::LeaderWorkerSet;
use berth_embedded::Embedded;
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::ray_clusters::{create, eventually, nodes, start, with_queue};

const GROUP_INDEX: &str = "leaderworkerset.sigs.k8s.io/group-index";
const WORKER_INDEX: &str = "leaderworkerset.sigs.k8s.io/worker-index";
const REVISION: &str = "leaderworkerset.sigs.k8s.io/template-revision-hash";

/// A set `web` of two groups, each a leader and two workers.
fn web(change: impl FnOnce(&mut Value)) -> LeaderWorkerSet {
    let template = json!({"spec": {"containers": [{"name": "server", "image": "server:1",
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]}});
    let mut set = json!({"metadata": {"name": "web"}, "spec": {"replicas": 2,
        "leaderWorkerTemplate": {"size": 3, "workerTemplate": template}}});
    change(&mut set);
    serde_json::from_value(set).expect("a LeaderWorkerSet")
}

struct World {
    cluster: Embedded,
    sets: Api<LeaderWorkerSet>,
    pods: Api<Pod>,
}

impl World {
    async fn new(configuration: Option<Value>) -> Self {
        let cluster = start(json!({"nodePools": nodes()}), configuration).await;
        let client = cluster.admin_client();
        Self { sets: Api::default_namespaced(client.clone()), pods: Api::default_namespaced(client), cluster }
    }

    fn client(&self) -> Client {
        self.cluster.admin_client()
    }

    async fn create(&self, set: &LeaderWorkerSet) {
        self.sets.create(&PostParams::default(), set).await.expect("the set is accepted");
    }

    async fn patch(&self, patch: Value) {
        self.sets.patch("web", &PatchParams::default(), &Patch::Merge(patch)).await.expect("the patch is accepted");
    }

    async fn status(&self) -> Value {
        self.sets.get("web").await.expect("the set exists").status.unwrap_or_default()
    }

    async fn pods(&self) -> BTreeMap<String, Pod> {
        let labels = ListParams::default().labels("leaderworkerset.sigs.k8s.io/name=web");
        let pods = self.pods.list(&labels).await.expect("pods").items.into_iter();
        pods.map(|pod| (pod.name_any(), pod)).collect()
    }

    async fn running(&self) -> BTreeSet<String> {
        let pods = self.pods().await.into_iter();
        let runs = |pod: &Pod| {
            pod.metadata.deletion_timestamp.is_none()
                && pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running"))
        };
        pods.filter(|(_, pod)| runs(pod)).map(|(name, _)| name).collect()
    }

    async fn until_running(&self, names: &[&str]) {
        let wanted: BTreeSet<String> = names.iter().map(|name| (*name).to_owned()).collect();
        eventually(&format!("{names:?} run"), async || self.running().await == wanted).await;
    }

    async fn until_true(&self, condition: &str) {
        eventually(condition, async || is_true(&self.status().await, condition)).await;
    }
}

fn is_true(status: &Value, condition: &str) -> bool {
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|it| it["type"] == condition && it["status"] == "True")
}

fn env(pod: &Pod) -> BTreeMap<String, String> {
    let containers = &pod.spec.as_ref().expect("a spec").containers;
    let variables = containers[0].env.iter().flatten();
    variables.map(|it| (it.name.clone(), it.value.clone().unwrap_or_default())).collect()
}

const TWO_GROUPS: [&str; 6] = ["web-0", "web-0-1", "web-0-2", "web-1", "web-1-1", "web-1-2"];

#[tokio::test(start_paused = true)]
async fn groups_start_scale_and_end_with_the_set() {
    let world = World::new(None).await;
    world.create(&web(|_| {})).await;
    world.until_running(&TWO_GROUPS).await;
    world.until_true("Available").await;
    let pods = world.pods().await;
    let variables = env(&pods["web-1-2"]);
    assert_eq!(variables["LWS_LEADER_ADDRESS"], "web-1.web.default");
    assert_eq!((variables["LWS_GROUP_SIZE"].as_str(), variables["LWS_WORKER_INDEX"].as_str()), ("3", "2"));
    assert_eq!((&*pods["web-1-2"].labels()[GROUP_INDEX], &*pods["web-1"].labels()[WORKER_INDEX]), ("1", "0"));
    let service = Api::<Service>::default_namespaced(world.client()).get("web").await.expect("the shared Service");
    assert_eq!(service.spec.expect("a spec").cluster_ip.as_deref(), Some("None"));
    let status = world.status().await;
    assert_eq!((&status["replicas"], &status["readyReplicas"]), (&json!(2), &json!(2)));

    let scale = world.sets.get_scale("web").await.expect("a scale");
    let selector = scale.status.expect("a status").selector.expect("a selector");
    assert_eq!(world.pods.list(&ListParams::default().labels(&selector)).await.expect("pods").items.len(), 2);
    let patch = Patch::Merge(json!({"spec": {"replicas": 3}}));
    world.sets.patch_scale("web", &PatchParams::default(), &patch).await.expect("the set is scaled");
    let mut three = TWO_GROUPS.to_vec();
    three.extend(["web-2", "web-2-1", "web-2-2"]);
    world.until_running(&three).await;
    world.patch(json!({"spec": {"replicas": 1}})).await;
    world.until_running(&["web-0", "web-0-1", "web-0-2"]).await;
    world.until_true("Available").await;

    world.sets.delete("web", &DeleteParams::default()).await.expect("the set is deleted");
    eventually("the pods go with the set", async || world.pods().await.is_empty()).await;
    let sets = Api::<StatefulSet>::default_namespaced(world.client());
    eventually("so do its StatefulSets", async || {
        sets.list(&ListParams::default()).await.expect("sets").items.is_empty()
    })
    .await;
    world.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_worker_recreates_its_whole_group_unless_the_policy_is_none() {
    let world = World::new(None).await;
    world.create(&web(|_| {})).await;
    world.until_true("Available").await;
    let uids = async || -> BTreeMap<String, String> {
        world.pods().await.into_iter().map(|(name, pod)| (name, pod.metadata.uid.unwrap_or_default())).collect()
    };
    let before = uids().await;
    world.pods.delete("web-1-2", &DeleteParams::default()).await.expect("the worker is deleted");
    eventually("the whole group is new", async || {
        let after = uids().await;
        let is_new = |name: &str| after.get(name).is_some_and(|uid| before[name] != *uid);
        ["web-1", "web-1-1", "web-1-2"].into_iter().all(is_new)
    })
    .await;
    world.until_running(&TWO_GROUPS).await;
    let after = uids().await;
    assert!(["web-0", "web-0-1", "web-0-2"].into_iter().all(|name| before[name] == after[name]), "the other stays");

    world.patch(json!({"spec": {"leaderWorkerTemplate": {"restartPolicy": "None"}}})).await;
    world.until_true("Available").await;
    world.until_running(&TWO_GROUPS).await;
    let before = uids().await;
    world.pods.delete("web-0-1", &DeleteParams::default()).await.expect("the worker is deleted");
    eventually("the worker is replaced", async || {
        uids().await.get("web-0-1").is_some_and(|uid| before["web-0-1"] != *uid)
    })
    .await;
    world.until_running(&TWO_GROUPS).await;
    let after = uids().await;
    assert_eq!(before.iter().filter(|(name, uid)| after.get(*name) == Some(uid)).count(), 5, "the others stay");
    world.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_removed_without_a_grace_period_recreates_its_group() {
    for policy in ["RecreateGroupOnPodRestart", "RecreateGroupAfterStart"] {
        let world = World::new(None).await;
        world.create(&web(|set| set["spec"]["leaderWorkerTemplate"]["restartPolicy"] = json!(policy))).await;
        world.until_true("Available").await;
        let before = world.pods().await;
        world.pods.delete("web-1-2", &DeleteParams::default().grace_period(0)).await.expect("the worker is removed");
        eventually("the whole group is new", async || {
            let after = world.pods().await;
            let is_new = |name: &str| after.get(name).is_some_and(|pod| pod.uid() != before[name].uid());
            ["web-1", "web-1-1", "web-1-2"].into_iter().all(is_new)
        })
        .await;
        world.until_running(&TWO_GROUPS).await;
        let after = world.pods().await;
        assert!(["web-0", "web-0-1", "web-0-2"].into_iter().all(|name| before[name].uid() == after[name].uid()));
        world.cluster.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_update_replaces_groups_one_by_one_behind_a_surge_group() {
    let world = World::new(None).await;
    world
        .create(&web(|set| {
            set["spec"]["rolloutStrategy"] =
                json!({"type": "RollingUpdate", "rollingUpdateConfiguration": {"maxUnavailable": 0, "maxSurge": 1}});
        }))
        .await;
    world.until_true("Available").await;
    let old = world.pods().await["web-0"].labels()[REVISION].clone();
    let container = json!([{"name": "server", "image": "server:2", "resources": {"requests": {"cpu": "1"}}}]);
    world
        .patch(json!({"spec": {"leaderWorkerTemplate": {"workerTemplate": {"spec": {"containers": container}}}}}))
        .await;
    world.until_true("UpdateInProgress").await;
    let mut had_surge = false;
    let mut ready_min = i64::MAX;
    eventually("all groups are of the new revision", async || {
        let pods = world.pods().await;
        had_surge |= pods.contains_key("web-2");
        let status = world.status().await;
        ready_min = ready_min.min(status["readyReplicas"].as_i64().unwrap_or(0));
        is_true(&status, "Available") && pods.len() == 6 && pods.values().all(|pod| pod.labels()[REVISION] != old)
    })
    .await;
    assert!(had_surge, "a third group covered the update");
    assert!(ready_min >= 2, "{ready_min} groups were ready");
    let image = |pod: &Pod| pod.spec.as_ref().expect("a spec").containers[0].image.clone().unwrap_or_default();
    assert!(world.pods().await.values().all(|pod| image(pod) == "server:2"));
    let revisions = Api::<ControllerRevision>::default_namespaced(world.client());
    let own = ListParams::default().labels("leaderworkerset.sigs.k8s.io/name=web");
    eventually("old revisions are deleted", async || {
        let all = revisions.list(&own).await.expect("revisions").items;
        let is_own = |it: &&ControllerRevision| it.owner_references().iter().any(|it| it.kind == "LeaderWorkerSet");
        all.iter().filter(is_own).count() == 1
    })
    .await;
    world.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn workers_may_wait_for_their_leader_and_stay_in_its_domain() {
    let world = World::new(None).await;

    world
        .create(&web(|set| {
            set["metadata"]["annotations"] =
                json!({"leaderworkerset.sigs.k8s.io/exclusive-topology": "kubernetes.io/hostname"});
            set["spec"]["startupPolicy"] = json!("LeaderReady");
            set["spec"]["networkConfig"] = json!({"subdomainPolicy": "UniquePerReplica"});
        }))
        .await;
    world.until_running(&TWO_GROUPS).await;
    let pods = world.pods().await;
    let node = |name: &str| pods[name].spec.as_ref().and_then(|spec| spec.node_name.clone()).expect("a node");
    assert_eq!((node("web-0"), node("web-1")), (node("web-0-2"), node("web-1-1")));
    assert_ne!(node("web-0"), node("web-1"));
    assert_eq!(env(&pods["web-1-1"])["LWS_LEADER_ADDRESS"], "web-1.web-1.default");
    let services = Api::<Service>::default_namespaced(world.client());
    let service = services.get("web-1").await.expect("the group's Service");
    assert_eq!(service.spec.expect("a spec").selector.expect("a selector")[GROUP_INDEX], "1");
    assert!(services.get_opt("web").await.expect("an answer").is_none());
    world.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_invalid_set_is_rejected_by_name_and_field() {
    let world = World::new(None).await;
    let rejected = |change: fn(&mut Value)| {
        let sets = world.sets.clone();
        async move {
            let error = sets.create(&PostParams::default(), &web(change)).await.expect_err("it is rejected");
            berth_runtime::message(&error)
        }
    };
    let size = rejected(|set| set["spec"]["leaderWorkerTemplate"]["size"] = json!(0)).await;
    assert!(size.contains("size must be equal or greater than 1"), "{size}");
    let policy = rejected(|set| set["spec"]["startupPolicy"] = json!("Later")).await;
    assert!(policy.contains("LeaderCreated"), "{policy}");
    world.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn groups_of_a_queued_set_are_admitted_one_by_one() {
    let configuration = json!({
        "apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration",
        "integrations": {"frameworks": ["batch/job", "pod", "statefulset", "leaderworkerset.x-k8s.io/leaderworkerset"]}});
    let world = World::new(Some(configuration)).await;
    with_queue(&world.client()).await;
    // The queue has 6 CPUs: two groups of three pods.
    world
        .create(&web(|set| {
            set["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": "lq"});
            set["spec"]["replicas"] = json!(3);
        }))
        .await;
    eventually("two groups run", async || world.running().await.len() == 6).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let running = world.running().await;
    assert_eq!(running.len(), 6, "the third group waits for quota");
    let gates = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.scheduling_gates.clone()).unwrap_or_default().len();
    let pods = world.pods().await;
    assert!(pods.iter().filter(|(name, _)| !running.contains(*name)).all(|(_, pod)| gates(pod) == 1));
    let whole: BTreeSet<_> = running.iter().map(|name| pods[name].labels()[GROUP_INDEX].clone()).collect();
    assert_eq!(whole.len(), 2, "only whole groups run: {running:?}");

    world.patch(json!({"spec": {"replicas": 2}})).await;
    world.until_running(&TWO_GROUPS).await;
    world.until_true("Available").await;
    world.sets.delete("web", &DeleteParams::default()).await.expect("the set is deleted");
    eventually("its pods are gone", async || world.pods().await.is_empty()).await;
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "next",
            "labels": {"kueue.x-k8s.io/queue-name": "lq"}},
        "spec": {"suspend": true, "parallelism": 6, "completions": 6, "template": {"spec": {"restartPolicy": "Never",
            "containers": [{"name": "c", "image": "c", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]}}}});
    create(&world.client(), job, "default").await.expect("the job is accepted");
    let jobs = Api::<k8s_openapi::api::batch::v1::Job>::default_namespaced(world.client());
    eventually("the quota is free again", async || {
        jobs.get("next").await.is_ok_and(|job| job.spec.is_some_and(|spec| spec.suspend == Some(false)))
    })
    .await;
    world.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn workers_that_wait_for_their_leader_have_quota_before_they_exist() {
    let configuration = json!({
        "apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration",
        "integrations": {"frameworks": ["pod", "leaderworkerset.x-k8s.io/leaderworkerset"]}});
    let world = World::new(Some(configuration)).await;
    with_queue(&world.client()).await;
    // The queue has 6 CPUs: one group with a leader of 2 CPUs and two workers of 1 CPU each.
    world
        .create(&web(|set| {
            set["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": "lq"});
            set["spec"]["startupPolicy"] = json!("LeaderReady");
            let mut leader = set["spec"]["leaderWorkerTemplate"]["workerTemplate"].clone();
            leader["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("2");
            set["spec"]["leaderWorkerTemplate"]["leaderTemplate"] = leader;
        }))
        .await;
    eventually("one group runs", async || world.running().await.len() == 3).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let running = world.running().await;
    assert_eq!(running.len(), 3, "the leader of the second group waits for the quota of its workers");
    let pods = world.pods().await;
    assert_eq!(pods.len(), 4, "workers are created once their leader is ready");
    let workloads = Api::<berth_api::kueue::v1beta2::Workload>::default_namespaced(world.client());
    for workload in workloads.list(&ListParams::default()).await.expect("workloads").items {
        let sets: Vec<_> = workload.spec.pod_sets.iter().map(|set| (set.name.as_str(), set.count)).collect();
        assert_eq!(sets, [("leader", 1), ("worker", 2)]);
    }
    world.cluster.stop().await;
}
