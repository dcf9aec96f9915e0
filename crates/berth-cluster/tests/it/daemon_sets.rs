//! DaemonSets run one pod on each node, and roll out a template and roll it back.

use berth_api::berth::ClusterConfiguration;
use berth_cluster::{replicas, scheduler};
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, StatefulSet};
use k8s_openapi::api::core::v1::{Node, Pod, ReplicationController};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::world::{FATE, World, eventually};

fn install(manager: &mut berth_runtime::Manager) {
    scheduler::install(manager, &ClusterConfiguration::default());
    replicas::install(manager);
}

fn template(version: &str) -> Value {
    json!({"metadata": {"labels": {"app": "agent", "v": version}, "annotations": {FATE: "100000"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

fn node(name: &str, taints: Value) -> Node {
    let amounts = json!({"cpu": "4", "memory": "8Gi", "pods": "100"});
    let conditions = json!([{"type": "Ready", "status": "True"}]);
    let status = json!({"capacity": amounts, "allocatable": amounts, "conditions": conditions});
    serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"taints": taints}, "status": status})).unwrap()
}

/// Node, version and owner kind of each pod, by node.
async fn placed(world: &World) -> Vec<(String, String)> {
    let pods: Api<Pod> = Api::default_namespaced(world.client());
    let pods = pods.list(&ListParams::default()).await.unwrap().items;
    let active = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    let mut placed: Vec<_> = active
        .map(|pod| (pod.spec.as_ref().unwrap().node_name.clone().unwrap_or_default(), pod.labels()["v"].clone()))
        .collect();
    placed.sort();
    placed
}

fn expected(placed: &[(&str, &str)]) -> Vec<(String, String)> {
    placed.iter().map(|(node, version)| ((*node).to_owned(), (*version).to_owned())).collect()
}

/// Number and version of each revision.
async fn revisions(world: &World) -> Vec<(i64, String)> {
    let revisions: Api<ControllerRevision> = Api::default_namespaced(world.client());
    let mut all: Vec<_> = revisions
        .list(&ListParams::default())
        .await
        .unwrap()
        .items
        .iter()
        .map(|it| (it.revision, it.labels()["v"].clone()))
        .collect();
    all.sort();
    all
}

#[tokio::test(start_paused = true)]
async fn a_daemon_set_runs_on_each_node_and_rolls_out_and_back() {
    let world = World::new().await;
    let nodes: Api<Node> = Api::all(world.client());
    let sets: Api<DaemonSet> = Api::default_namespaced(world.client());
    let until = async {
        let gpu = json!([{"key": "gpu", "effect": "NoSchedule"}]);
        for node in [node("a", json!([])), node("b", json!([])), node("g", gpu)] {
            nodes.create(&PostParams::default(), &node).await.unwrap();
        }
        let spec = json!({"selector": {"matchLabels": {"app": "agent"}}, "template": template("1")});
        let set: DaemonSet = serde_json::from_value(json!({"metadata": {"name": "agent"}, "spec": spec})).unwrap();
        sets.create(&PostParams::default(), &set).await.unwrap();
        eventually("one pod each", async || placed(&world).await == expected(&[("a", "1"), ("b", "1")])).await;
        nodes.create(&PostParams::default(), &node("c", json!([]))).await.unwrap();
        let three = |v: &str| expected(&[("a", v), ("b", v), ("c", v)]);
        eventually("a pod on the new node", async || placed(&world).await == three("1")).await;
        let change = json!({"spec": {"template": {"metadata": {"labels": {"v": "2"}}}}});
        sets.patch("agent", &PatchParams::default(), &Patch::Strategic(&change)).await.unwrap();
        eventually("the new template", async || placed(&world).await == three("2")).await;
        eventually("the status", async || {
            let status = sets.get("agent").await.unwrap().status.unwrap();
            status.updated_number_scheduled == Some(3) && status.number_available == Some(3)
        })
        .await;
        assert_eq!(revisions(&world).await, [(1, "1".to_owned()), (2, "2".to_owned())]);
        // The patch of `kubectl rollout undo`: the data of the earlier revision.
        let all: Api<ControllerRevision> = Api::default_namespaced(world.client());
        let all = all.list(&ListParams::default()).await.unwrap().items;
        let data = all.into_iter().find(|it| it.revision == 1).unwrap().data.unwrap().0;
        sets.patch("agent", &PatchParams::default(), &Patch::Strategic(&data)).await.unwrap();
        eventually("the earlier template", async || placed(&world).await == three("1")).await;
        eventually("the new number of the earlier revision", async || {
            revisions(&world).await == [(2, "2".to_owned()), (3, "1".to_owned())]
        })
        .await;
    };
    world.run(install, until).await;
}

#[tokio::test(start_paused = true)]
async fn a_replication_controller_adopts_and_releases_pods_by_their_labels() {
    let world = World::new().await;
    let pods: Api<Pod> = Api::default_namespaced(world.client());
    let controllers: Api<ReplicationController> = Api::default_namespaced(world.client());
    let until = async {
        let mut stray = template("1");
        stray["metadata"]["name"] = json!("stray");
        pods.create(&PostParams::default(), &serde_json::from_value(stray).unwrap()).await.unwrap();
        let spec = json!({"replicas": 2, "selector": {"app": "agent"}, "template": template("1")});
        let set = serde_json::from_value(json!({"metadata": {"name": "rc"}, "spec": spec})).unwrap();
        controllers.create(&PostParams::default(), &set).await.unwrap();
        let names = async || {
            let mut all = pods.list(&ListParams::default()).await.unwrap().items;
            all.sort_by_key(|pod| pod.owner_references().is_empty());
            all.iter().filter(|pod| !pod.owner_references().is_empty()).map(|pod| pod.name_any()).collect::<Vec<_>>()
        };
        eventually("the stray pod and one more", async || {
            let names = names().await;
            names.len() == 2 && names.contains(&"stray".to_owned())
        })
        .await;
        let ready = async || controllers.get("rc").await.unwrap().status.unwrap().ready_replicas;
        eventually("both are ready", async || ready().await == Some(2)).await;
        let change = json!({"metadata": {"labels": {"app": "debug"}}});
        pods.patch("stray", &PatchParams::default(), &Patch::Strategic(&change)).await.unwrap();
        eventually("another pod in its place", async || {
            let names = names().await;
            names.len() == 2 && !names.contains(&"stray".to_owned())
        })
        .await;
        let stray = pods.get("stray").await.expect("a released pod stays");
        assert!(stray.owner_references().is_empty());
        controllers.delete("rc", &DeleteParams::default()).await.unwrap();
    };
    world.run(install, until).await;
}

#[tokio::test(start_paused = true)]
async fn a_stateful_set_recreates_a_pod_below_the_partition_from_its_old_template() {
    let world = World::new().await;
    let pods: Api<Pod> = Api::default_namespaced(world.client());
    let sets: Api<StatefulSet> = Api::default_namespaced(world.client());
    let until = async {
        nodes_for(&world).await;
        let spec = json!({"replicas": 3, "serviceName": "db", "selector": {"matchLabels": {"app": "agent"}},
            "template": template("1")});
        let set = serde_json::from_value(json!({"metadata": {"name": "db"}, "spec": spec})).unwrap();
        sets.create(&PostParams::default(), &set).await.unwrap();
        let versions = async || {
            let all = pods.list(&ListParams::default()).await.unwrap().items;
            let ready = all.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
            ready.map(|pod| (pod.name_any(), pod.labels()["v"].clone())).collect::<Vec<_>>()
        };
        let expected = |versions: [&str; 3]| {
            let named = versions.iter().enumerate();
            named.map(|(index, version)| (format!("db-{index}"), (*version).to_owned())).collect::<Vec<_>>()
        };
        eventually("three pods", async || versions().await == expected(["1", "1", "1"])).await;
        eventually("the first revision", async || {
            sets.get("db").await.unwrap().status.unwrap().current_replicas == Some(3)
        })
        .await;
        let change = json!({"spec": {"updateStrategy": {"rollingUpdate": {"partition": 2}},
            "template": {"metadata": {"labels": {"v": "2"}}}}});
        sets.patch("db", &PatchParams::default(), &Patch::Strategic(&change)).await.unwrap();
        eventually("the last pod", async || versions().await == expected(["1", "1", "2"])).await;
        pods.delete("db-0", &DeleteParams::default()).await.unwrap();
        eventually("the same template again", async || {
            pods.get_opt("db-0").await.unwrap().is_some_and(|pod| pod.metadata.deletion_timestamp.is_none())
                && versions().await == expected(["1", "1", "2"])
        })
        .await;
        assert_eq!(revisions(&world).await, [(1, "1".to_owned()), (2, "2".to_owned())]);
        let status = sets.get("db").await.unwrap().status.unwrap();
        assert_ne!(status.current_revision, status.update_revision);
    };
    world.run(install, until).await;
}

/// `kubectl delete --cascade=orphan` leaves pods and revisions without an owner.
#[tokio::test(start_paused = true)]
async fn a_new_set_adopts_the_history_that_an_orphaning_deletion_left() {
    let world = World::new().await;
    let sets: Api<DaemonSet> = Api::default_namespaced(world.client());
    let history: Api<ControllerRevision> = Api::default_namespaced(world.client());
    let until = async {
        nodes_for(&world).await;
        let set = |version: &str| -> DaemonSet {
            let spec = json!({"selector": {"matchLabels": {"app": "agent"}}, "template": template(version)});
            serde_json::from_value(json!({"metadata": {"name": "agent"}, "spec": spec})).unwrap()
        };
        // The revisions of a former set.
        for (number, version) in [(4, "1"), (7, "2")] {
            let mut data = template(version);
            data["$patch"] = json!("replace");
            let revision = json!({"metadata": {"name": format!("former-{version}"), "labels": {"app": "agent", "v": version}},
                "revision": number, "data": {"spec": {"template": data}}});
            history.create(&PostParams::default(), &serde_json::from_value(revision).unwrap()).await.unwrap();
        }
        let other = json!({"metadata": {"name": "other", "labels": {"app": "other"}}, "revision": 1, "data": {}});
        history.create(&PostParams::default(), &serde_json::from_value(other).unwrap()).await.unwrap();
        let uid = sets.create(&PostParams::default(), &set("3")).await.unwrap().uid();
        let owned = async || {
            let all = history.list(&ListParams::default()).await.unwrap().items;
            let own =
                all.iter().filter(|it| it.owner_references().iter().any(|owner| Some(&owner.uid) == uid.as_ref()));
            let mut numbers: Vec<i64> = own.map(|it| it.revision).collect();
            numbers.sort_unstable();
            numbers
        };
        eventually("the whole history", async || owned().await == [4, 7, 8]).await;
        // A revision whose labels no longer match is released.
        let change = json!({"metadata": {"labels": {"app": "debug"}}});
        history.patch("former-1", &PatchParams::default(), &Patch::Strategic(&change)).await.unwrap();
        sets.patch("agent", &PatchParams::default(), &Patch::Strategic(json!({"metadata": {"labels": {"a": "b"}}})))
            .await
            .unwrap();
        eventually("the release", async || owned().await == [7, 8]).await;
    };
    world.run(install, until).await;
}

async fn nodes_for(world: &World) {
    let nodes: Api<Node> = Api::all(world.client());
    nodes.create(&PostParams::default(), &node("a", json!([]))).await.unwrap();
}
