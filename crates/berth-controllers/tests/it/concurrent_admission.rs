//! A job that waits for several flavors at once, and moves to a preferred flavor when that has
//! quota.

use berth_controllers::{Config, Gate, Gates};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::cluster::{Cluster, condition, message};

const KUEUE: &str = "kueue.x-k8s.io/v1beta2";

fn quota(reserved: &str, spot: &str) -> Value {
    let flavor = |name: &str, cpu: &str| json!({"name": name, "resources": [{"name": "cpu", "nominalQuota": cpu}]});
    json!([{"coveredResources": ["cpu"], "flavors": [flavor("reserved", reserved), flavor("spot", spot)]}])
}

async fn variants(cluster: &Cluster) -> Vec<Value> {
    let all = cluster.list(KUEUE, "Workload", "team").await;
    all.into_iter().filter(|it| it["metadata"]["ownerReferences"][0]["kind"] == "Workload").collect()
}

async fn variant(cluster: &Cluster, flavor: &str) -> Value {
    let found = variants(cluster).await;
    let key = "kueue.x-k8s.io/workload-allowed-resource-flavors";
    found.into_iter().find(|it| it["metadata"]["annotations"][key] == flavor).unwrap_or(Value::Null)
}

#[tokio::test(start_paused = true)]
async fn a_job_starts_on_the_flavor_with_quota_and_moves_to_the_preferred_one_later() {
    let feature_gates = Gates::default().with(Gate::ConcurrentAdmission, true);
    let cluster = Cluster::start(Config { feature_gates, ..Config::default() }).await;
    cluster.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})).await;
    for name in ["reserved", "spot"] {
        let spec = json!({"nodeLabels": {"pool": name}});
        cluster
            .create(json!({"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": name}, "spec": spec}))
            .await;
    }
    let queue = cluster
        .create(json!({
            "apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": "cq"},
            "spec": {
                "namespaceSelector": {}, "resourceGroups": quota("0", "2"),
                "concurrentAdmissionPolicy": {"migration": {"mode": "TryPreferredFlavors"}},
            },
        }))
        .await;
    cluster
        .create(json!({
            "apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": "lq", "namespace": "team"},
            "spec": {"clusterQueue": "cq"},
        }))
        .await;
    cluster.pass(1).await;
    let job = cluster
        .create(json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": "train", "namespace": "team", "labels": {"kueue.x-k8s.io/queue-name": "lq"}},
            "spec": {"suspend": true, "parallelism": 1, "completions": 1, "template": {"spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "2"}}}],
            }}},
        }))
        .await;
    cluster.pass(3).await;

    // The parent runs as its variant on spot; quota is used once.
    assert_eq!(variants(&cluster).await.len(), 2);
    let parent = cluster.workload_of("team", "train").await;
    assert_eq!(condition(&parent, "Admitted"), "True/Admitted", "{parent:#}");
    assert!(message(&parent, "Admitted").ends_with("is admitted"), "{parent:#}");
    let started = cluster.get("batch/v1", "Job", Some("team"), "train").await;
    assert_eq!(started["spec"]["suspend"], false);
    assert_eq!(started["spec"]["template"]["spec"]["nodeSelector"]["pool"], "spot");
    let taken = cluster.get(KUEUE, "ClusterQueue", None, "cq").await;
    assert_eq!(taken["status"]["flavorsUsage"][1]["resources"][0]["total"], "2");
    assert_eq!(condition(&variant(&cluster, "reserved").await, "QuotaReserved"), "False/ExceedsMaxQuota");
    cluster.patch_status(&job, json!({"status": {"active": 1, "ready": 1}})).await;

    // The preferred flavor gets quota: the variant on spot is evicted, the job stops and starts on
    // the preferred flavor.
    let more = Patch::Merge(json!({"spec": {"resourceGroups": quota("2", "2")}}));
    cluster.api(&queue).patch("cq", &PatchParams::default(), &more).await.unwrap();
    cluster.pass(3).await;
    assert_eq!(condition(&variant(&cluster, "spot").await, "Evicted"), "True/FlavorMigration");
    let stopped = cluster.get("batch/v1", "Job", Some("team"), "train").await;
    assert_eq!(stopped["spec"]["suspend"], true);
    // The pods of the stopped job have not ended yet.
    assert_eq!(condition(&variant(&cluster, "reserved").await, "Admitted"), "False/NoReservation");
    cluster.patch_status(&job, json!({"status": {"active": 0, "ready": 0}})).await;
    cluster.pass(5).await;
    let moved = cluster.get("batch/v1", "Job", Some("team"), "train").await;
    assert_eq!(moved["spec"]["suspend"], false, "{:#?}", variants(&cluster).await);
    assert_eq!(moved["spec"]["template"]["spec"]["nodeSelector"]["pool"], "reserved");
    assert_eq!(variant(&cluster, "spot").await["spec"]["active"], false);
    let taken = cluster.get(KUEUE, "ClusterQueue", None, "cq").await;
    assert_eq!(taken["status"]["flavorsUsage"][0]["resources"][0]["total"], "2");
    assert_eq!(taken["status"]["flavorsUsage"][1]["resources"][0]["total"], "0");

    let done = json!([{"type": "Complete", "status": "True", "message": "done"}]);
    cluster.patch_status(&job, json!({"status": {"conditions": done, "succeeded": 1}})).await;
    cluster.pass(2).await;
    for variant in variants(&cluster).await {
        assert_eq!(condition(&variant, "Finished"), "True/Succeeded");
    }
}
