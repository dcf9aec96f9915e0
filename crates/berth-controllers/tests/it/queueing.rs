//! Jobs through queues: held, admitted, preempted, finished.

use berth_controllers::Config;
use serde_json::{Value, json};

use crate::cluster::{Cluster, condition, message};

const KUEUE: &str = "kueue.x-k8s.io/v1beta2";

fn flavor(name: &str, labels: Value) -> Value {
    json!({"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": name}, "spec": {"nodeLabels": labels}})
}

fn cluster_queue(name: &str, cpu: &str, more: Value) -> Value {
    let mut queue = json!({
        "apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": name},
        "spec": {
            "namespaceSelector": {},
            "resourceGroups": [{
                "coveredResources": ["cpu"],
                "flavors": [{"name": "spot", "resources": [{"name": "cpu", "nominalQuota": cpu}]}],
            }],
        },
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        queue["spec"][key] = value.clone();
    }
    queue
}

fn local_queue(name: &str, queue: &str) -> Value {
    json!({
        "apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": name, "namespace": "team"},
        "spec": {"clusterQueue": queue},
    })
}

fn job(name: &str, queue: &str, cpu: &str) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "namespace": "team", "labels": {"kueue.x-k8s.io/queue-name": queue}},
        "spec": {
            "suspend": true, "parallelism": 1, "completions": 1,
            "template": {"spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "main", "image": "busybox", "resources": {"requests": {"cpu": cpu}}}],
            }},
        },
    })
}

async fn team(cluster: &Cluster) {
    cluster.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})).await;
    cluster.create(flavor("spot", json!({"pool": "spot"}))).await;
}

async fn is_suspended(cluster: &Cluster, name: &str) -> bool {
    cluster.get("batch/v1", "Job", Some("team"), name).await["spec"]["suspend"] == true
}

#[tokio::test(start_paused = true)]
async fn a_job_starts_when_its_queue_has_quota_and_the_next_one_waits() {
    let cluster = Cluster::start(Config::default()).await;
    team(&cluster).await;
    cluster.create(cluster_queue("cq", "2", json!({}))).await;
    cluster.create(local_queue("lq", "cq")).await;
    cluster.pass(1).await;
    let queue = cluster.get(KUEUE, "ClusterQueue", None, "cq").await;
    assert_eq!(condition(&queue, "Active"), "True/Ready", "{queue:#}");
    let first = cluster.create(job("first", "lq", "2")).await;
    cluster.create(job("second", "lq", "1")).await;
    cluster.pass(2).await;

    assert!(!is_suspended(&cluster, "first").await);
    assert!(is_suspended(&cluster, "second").await);
    let started = cluster.get("batch/v1", "Job", Some("team"), "first").await;
    assert_eq!(started["spec"]["template"]["spec"]["nodeSelector"]["pool"], "spot");
    let waiting = cluster.workload_of("team", "second").await;
    assert_eq!(condition(&waiting, "QuotaReserved"), "False/WaitingForQuota");
    assert_eq!(
        message(&waiting, "QuotaReserved"),
        "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor spot, 1 more needed"
    );
    let queue = cluster.get(KUEUE, "ClusterQueue", None, "cq").await;
    assert_eq!(queue["status"]["pendingWorkloads"], 1);
    assert_eq!(queue["status"]["admittedWorkloads"], 1);
    assert_eq!(queue["status"]["flavorsUsage"][0]["resources"][0]["total"], "2");
    let queue = cluster.get(KUEUE, "LocalQueue", Some("team"), "lq").await;
    assert_eq!(queue["status"]["pendingWorkloads"], 1);
    assert_eq!(condition(&queue, "Active"), "True/Ready");

    let done = json!([{"type": "Complete", "status": "True", "message": "done"}]);
    cluster.patch_status(&first, json!({"status": {"conditions": done, "succeeded": 1}})).await;
    cluster.pass(3).await;
    let finished = cluster.workload_of("team", "first").await;
    assert_eq!(condition(&finished, "Finished"), "True/Succeeded");
    assert!(!is_suspended(&cluster, "second").await);
    let events = cluster.events("team", "second").await;
    assert_eq!(
        events.iter().map(|event| event.split(':').next().unwrap()).collect::<Vec<_>>(),
        ["CreatedWorkload", "Started"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_preempted_job_is_stopped_restored_and_starts_again_later() {
    let cluster = Cluster::start(Config::default()).await;
    team(&cluster).await;
    let preemption = json!({"preemption": {"withinClusterQueue": "LowerPriority"}});
    cluster.create(cluster_queue("cq", "2", preemption)).await;
    cluster.create(local_queue("lq", "cq")).await;
    cluster
        .create(
            json!({"apiVersion": KUEUE, "kind": "WorkloadPriorityClass", "metadata": {"name": "high"}, "value": 100}),
        )
        .await;
    cluster.pass(1).await;
    let low = cluster.create(job("low", "lq", "2")).await;
    cluster.pass(1).await;
    assert!(!is_suspended(&cluster, "low").await);
    cluster.patch_status(&low, json!({"status": {"active": 1, "ready": 1, "startTime": "2026-01-01T00:00:01Z"}})).await;
    let mut high = job("high", "lq", "1");
    high["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = json!("high");
    let high = cluster.create(high).await;
    cluster.pass(2).await;
    // Quota stays with the victim until nothing of it runs any more.
    assert!(is_suspended(&cluster, "low").await);
    assert!(is_suspended(&cluster, "high").await);
    let victim = cluster.workload_of("team", "low").await;
    assert_eq!(condition(&victim, "Evicted"), "True/Preempted");
    assert_eq!(condition(&victim, "Preempted"), "True/InClusterQueue");
    let stopped = cluster.get("batch/v1", "Job", Some("team"), "low").await;
    assert_eq!(stopped["spec"]["template"]["spec"]["nodeSelector"], Value::Null);
    assert_eq!(stopped["status"]["startTime"], Value::Null);

    cluster.patch_status(&low, json!({"status": {"active": 0, "ready": 0}})).await;
    cluster.pass(2).await;
    assert!(!is_suspended(&cluster, "high").await);
    let victim = cluster.workload_of("team", "low").await;
    assert_eq!(condition(&victim, "QuotaReserved"), "False/WaitingForQuota");
    assert_eq!(condition(&victim, "Requeued"), "True/Preempted");
    let done = json!([{"type": "Complete", "status": "True"}]);
    cluster.patch_status(&high, json!({"status": {"conditions": done}})).await;
    cluster.pass(3).await;
    assert!(!is_suspended(&cluster, "low").await);
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_queue_does_not_exist_says_so_and_starts_once_it_does() {
    let cluster = Cluster::start(Config::default()).await;
    team(&cluster).await;
    cluster.create(cluster_queue("cq", "2", json!({}))).await;
    cluster.create(job("early", "lq", "1")).await;
    cluster.pass(1).await;
    let workload = cluster.workload_of("team", "early").await;
    assert_eq!(condition(&workload, "QuotaReserved"), "False/Misconfigured");
    assert_eq!(message(&workload, "QuotaReserved"), "LocalQueue lq doesn't exist");
    assert!(cluster.events("team", "early").await.iter().any(|event| event.starts_with("LocalQueueNotFound")));
    cluster.create(local_queue("lq", "cq")).await;
    cluster.pass(2).await;
    assert!(!is_suspended(&cluster, "early").await);
}
