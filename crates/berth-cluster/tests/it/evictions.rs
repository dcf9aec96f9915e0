//! Taints with the effect NoExecute evict pods.

use std::time::Duration;

use berth_cluster::taint_eviction;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::world::{FATE, World, eventually};

async fn create_pod(world: &World, name: &str, tolerations: Value) {
    let pods: Api<Pod> = Api::default_namespaced(world.client());
    let pod = json!({
        "metadata": {"name": name, "annotations": {FATE: "100000"}, "finalizers": ["test/kept"]},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}], "tolerations": tolerations},
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
}

async fn taint(world: &World, taints: Value) {
    let nodes: Api<Node> = Api::all(world.client());
    let patch = json!({"spec": {"taints": taints}});
    nodes.patch("n", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
}

/// Names of the pods that are being deleted; finalizers keep them.
async fn deleted(world: &World) -> Vec<String> {
    let pods: Api<Pod> = Api::default_namespaced(world.client());
    let pods = pods.list(&ListParams::default()).await.unwrap().items;
    let deleted = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some());
    deleted.map(|pod| pod.name_any()).collect()
}

/// Messages of the events about evictions, sorted.
async fn events(world: &World) -> Vec<String> {
    let events: Api<Event> = Api::default_namespaced(world.client());
    let all = events.list(&ListParams::default()).await.unwrap().items;
    let mut notes: Vec<String> = all
        .into_iter()
        .filter(|event| event.reason.as_deref() == Some("TaintManagerEviction"))
        .filter_map(|event| event.message)
        .collect();
    notes.sort();
    notes
}

#[tokio::test(start_paused = true)]
async fn a_taint_evicts_pods_that_do_not_tolerate_it_or_no_longer() {
    let world = World::new().await;
    let nodes: Api<Node> = Api::all(world.client());
    let pods: Api<Pod> = Api::default_namespaced(world.client());
    let tolerates = |seconds: Value| json!([{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}]);
    let until = async {
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap();
        nodes.create(&PostParams::default(), &node).await.unwrap();
        create_pod(&world, "intolerant", json!([])).await;
        create_pod(&world, "patient", tolerates(json!(600))).await;
        create_pod(&world, "short", tolerates(json!(60))).await;
        create_pod(&world, "tolerant", tolerates(Value::Null)).await;
        tokio::time::sleep(Duration::from_secs(1000)).await;
        assert_eq!(deleted(&world).await, [""; 0]);

        taint(&world, json!([{"key": "k", "effect": "NoExecute"}])).await;
        eventually("the first eviction", async || deleted(&world).await == ["intolerant"]).await;
        let evicted = pods.get("intolerant").await.unwrap().status.unwrap().conditions.unwrap();
        let condition = evicted.iter().find(|it| it.type_ == "DisruptionTarget").expect("a condition");
        assert_eq!((condition.status.as_str(), condition.reason.as_deref()), ("True", Some("DeletionByTaintManager")));
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(deleted(&world).await, ["intolerant"]);
        eventually("the toleration to end", async || deleted(&world).await == ["intolerant", "short"]).await;

        // A taint that is removed evicts no further pod.
        taint(&world, json!([])).await;
        tokio::time::sleep(Duration::from_secs(1000)).await;
        assert_eq!(deleted(&world).await, ["intolerant", "short"]);
        eventually("the events", async || {
            events(&world).await
                == [
                    "Cancelling deletion of Pod default/patient",
                    "Marking for deletion Pod default/intolerant",
                    "Marking for deletion Pod default/short",
                ]
        })
        .await;

        // A pod that is bound to a tainted node leaves, too.
        taint(&world, json!([{"key": "k", "effect": "NoExecute"}])).await;
        create_pod(&world, "later", json!([])).await;
        eventually("the later eviction", async || deleted(&world).await.contains(&"later".to_owned())).await;
    };
    world.run(taint_eviction::install, until).await;
}
