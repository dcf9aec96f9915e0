//! Pods that opt in are ended while their node is unreachable.

use berth_controllers::{Config, Gate, Gates};
use serde_json::{Value, json};

use crate::cluster::Cluster;

fn pod(name: &str, safe: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default",
            "annotations": {"kueue.x-k8s.io/safe-to-forcefully-delete": safe}},
        "spec": {"nodeName": "lost", "terminationGracePeriodSeconds": 30,
            "containers": [{"name": "c", "image": "train"}]}})
}

#[tokio::test(start_paused = true)]
async fn a_terminating_pod_is_deleted_one_minute_after_its_node_became_unreachable() {
    let gates = Gates::default().with(Gate::FailureRecoveryPolicy, true);
    let cluster = Cluster::start(Config { feature_gates: gates, ..Config::default() }).await;
    let node = cluster.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "lost"}})).await;
    for (name, safe) in [("safe", "true"), ("unsafe", "false")] {
        let made = cluster.create(pod(name, safe)).await;
        cluster.delete(&made).await;
    }
    let exists = async |name: &str| !cluster.get("v1", "Pod", Some("default"), name).await.is_null();
    cluster.pass(600).await;
    assert!(exists("safe").await, "the kubelet of a reachable node ends its pods");

    let taints = json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]);
    cluster.patch(&node, json!({"spec": {"taints": taints}})).await;
    cluster.pass(5).await;
    assert!(!exists("safe").await, "more than a minute has passed since the pod's own grace period");
    assert!(exists("unsafe").await);
    let events = cluster.list("v1", "Event", "default").await;
    let event = events.iter().find(|event| event["reason"] == "KueueForcefullyDeleted").expect("an event");
    let text = event["message"].as_str().unwrap_or_default();
    assert!(text.contains("1m30s grace period due to unreachable node `lost`"), "{text}");

    let made = cluster.create(pod("later", "true")).await;
    cluster.delete(&made).await;
    cluster.pass(85).await;
    assert!(exists("later").await);
    cluster.pass(10).await;
    assert!(!exists("later").await);
}
