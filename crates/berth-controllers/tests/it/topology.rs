//! Topology-aware scheduling from admission to running pods: pods are released by rank, and a
//! failed node is replaced.

use berth_controllers::Config;
use serde_json::{Value, json};

use crate::cluster::{Cluster, condition};

const KUEUE: &str = "kueue.x-k8s.io/v1beta2";
const HOSTNAME: &str = "kubernetes.io/hostname";

fn node(name: &str, rack: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"pool": "batch", "rack": rack, HOSTNAME: name}}, "spec": {},
    })
}

/// Two racks of three and two nodes, each node with capacity for one of the job's pods, and a queue
/// over them.
async fn racks() -> Cluster {
    let cluster = Cluster::start(Config::default()).await;
    for (name, rack) in [("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("b2", "b")] {
        let made = cluster.create(node(name, rack)).await;
        let status = json!({"status": {"allocatable": {"cpu": "4", "pods": "10"},
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        cluster.patch_status(&made, status).await;
    }
    for object in [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}),
        json!({"apiVersion": KUEUE, "kind": "Topology", "metadata": {"name": "racks"},
            "spec": {"levels": [{"nodeLabel": "rack"}, {"nodeLabel": HOSTNAME}]}}),
        json!({"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "batch"},
            "spec": {"nodeLabels": {"pool": "batch"}, "topologyName": "racks"}}),
        json!({"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": "cq"},
            "spec": {"namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["cpu"],
                "flavors": [{"name": "batch", "resources": [{"name": "cpu", "nominalQuota": "100"}]}]}]}}),
        json!({"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": "lq", "namespace": "team"},
            "spec": {"clusterQueue": "cq"}}),
    ] {
        cluster.create(object).await;
    }
    cluster.pass(2).await;
    cluster
}

/// Submits an indexed job of two pods that must share a rack, waits until it starts, and creates
/// its pods, the last one first.
async fn start(cluster: &Cluster) {
    cluster
        .create(json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": "train", "namespace": "team", "labels": {"kueue.x-k8s.io/queue-name": "lq"}},
            "spec": {"suspend": true, "parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": {
                "metadata": {"annotations": {"kueue.x-k8s.io/podset-required-topology": "rack"}},
                "spec": {"restartPolicy": "Never", "containers": [
                    {"name": "rank", "image": "train", "resources": {"requests": {"cpu": "3"}}}]}}},
        }))
        .await;
    cluster.pass(3).await;
    let job = cluster.get("batch/v1", "Job", Some("team"), "train").await;
    assert_eq!(job["spec"]["suspend"], false, "{:#}", cluster.workload_of("team", "train").await);
    for index in [1, 0] {
        make_pod(cluster, &format!("train-{index}"), index).await;
    }
    cluster.pass(2).await;
}

/// Creates a pod as the Job controller would.
async fn make_pod(cluster: &Cluster, name: &str, index: usize) {
    let job = cluster.get("batch/v1", "Job", Some("team"), "train").await;
    let mut pod = job["spec"]["template"].clone();
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    pod["metadata"]["name"] = json!(name);
    pod["metadata"]["namespace"] = json!("team");
    pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] = json!(index.to_string());
    cluster.create(pod).await;
}

/// The host that a pod was released to; `None` while it is gated.
async fn host(cluster: &Cluster, pod: &str) -> Option<String> {
    let pod = cluster.get("v1", "Pod", Some("team"), pod).await;
    let gates = pod["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty());
    let host = pod["spec"]["nodeSelector"][HOSTNAME].as_str();
    assert_eq!(gates, host.is_none(), "a pod is released and pinned in one write: {pod:#}");
    host.map(str::to_owned)
}

async fn lose(cluster: &Cluster, name: &str) {
    cluster.delete(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})).await;
}

#[tokio::test(start_paused = true)]
async fn pods_are_released_by_rank_and_a_failed_node_is_replaced_in_its_rack() {
    let cluster = racks().await;
    start(&cluster).await;
    // The smaller rack fits exactly; the larger one would leave a node unused.
    assert_eq!(host(&cluster, "train-0").await.as_deref(), Some("b1"));
    assert_eq!(host(&cluster, "train-1").await.as_deref(), Some("b2"));

    // A node joins the rack, then one of the rack's two nodes fails before its pod has started.
    let made = cluster.create(node("b3", "b")).await;
    let status = json!({"status": {"allocatable": {"cpu": "4", "pods": "10"},
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    cluster.patch_status(&made, status).await;
    cluster.pass(1).await;
    lose(&cluster, "b1").await;
    cluster.pass(1).await;
    let ended = cluster.get("v1", "Pod", Some("team"), "train-0").await;
    assert_eq!(ended["status"]["phase"], "Failed");
    assert_eq!(condition(&ended, "TerminatedByKueue"), "True/UnschedulableOnAssignedNode");
    make_pod(&cluster, "train-0-again", 0).await;
    cluster.pass(5).await;

    let workload = cluster.workload_of("team", "train").await;
    assert_eq!(condition(&workload, "Admitted"), "True/Admitted", "{workload:#}");
    assert_eq!(condition(&workload, "Evicted"), "absent", "{workload:#}");
    assert_eq!(workload["status"]["unhealthyNodes"], Value::Null, "the node was replaced");
    assert_eq!(host(&cluster, "train-0-again").await.as_deref(), Some("b3"));
    assert_eq!(host(&cluster, "train-1").await.as_deref(), Some("b2"), "the other pod stays");
}

#[tokio::test(start_paused = true)]
async fn a_job_without_a_replacement_node_or_with_two_failures_is_evicted_with_a_reason() {
    let cluster = racks().await;
    start(&cluster).await;
    lose(&cluster, "b1").await;
    cluster.pass(5).await;
    let name = cluster.workload_of("team", "train").await["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let events = cluster.events("team", &name).await;
    let wanted = "EvictedDueToNodeFailures: Workload was evicted as there was no replacement for unhealthy node(s): b1";
    assert!(events.iter().any(|event| event == wanted), "{events:#?}");

    let cluster = racks().await;
    start(&cluster).await;
    lose(&cluster, "b1").await;
    lose(&cluster, "b2").await;
    cluster.pass(5).await;
    let name = cluster.workload_of("team", "train").await["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let events = cluster.events("team", &name).await;
    let evictions = events.iter().filter(|event| event.starts_with("EvictedDueToNodeFailures: ")).count();
    assert_eq!(evictions, 1, "{events:#?}");
}
