//! `berth up`, kill -9, `berth up` again: everything continues, and nothing runs twice.

use std::collections::BTreeSet;
use std::path::Path;

use berth_api::berth::explanation::{GROUP, VERSION};
use berth_testing::has_kubectl;
use serde_json::{Value, json};

use crate::cluster::{Cluster, file};

/// Names of the pods in namespace team-blue.
fn pods(cluster: &Cluster) -> BTreeSet<String> {
    let list = cluster.get(&["pods", "-n", "team-blue"]);
    let items = list["items"].as_array().expect("a list has items");
    items.iter().filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned)).collect()
}

/// The process that the API server's own Lease names. Empty before the first renewal.
fn lease_holder(cluster: &Cluster) -> String {
    let leases = cluster.get(&["leases", "-n", "kube-system", "-l", "apiserver.kubernetes.io/identity=kube-apiserver"]);
    leases["items"][0]["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
}

/// The decisions that the explanation of the first job lists.
fn decisions(cluster: &Cluster) -> Vec<Value> {
    let path = format!("/apis/{GROUP}/{VERSION}/namespaces/team-blue/workloads/train-1/explanation");
    let explained: Value = serde_json::from_str(&cluster.run(&["get", "--raw", &path])).expect("JSON");
    explained["decisions"].as_array().cloned().unwrap_or_default()
}

#[test]
fn a_killed_cluster_continues_and_no_job_runs_twice() {
    if !has_kubectl() {
        return;
    }
    let data = tempfile::tempdir().expect("a temporary folder");
    // No autoscaler moves pods from a little used node, and stops them for that.
    let config = data.path().join("cluster.json");
    let pool = json!({"name": "worker", "machine": {"cpu": 16, "memory": "64Gi"}, "initialNodes": 1, "static": true});
    let cluster = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "ClusterConfiguration",
        "spec": {"nodePools": [pool]}});
    std::fs::write(&config, cluster.to_string()).expect("a file");
    let (config, journal) = (config.display().to_string(), data.path().join("journal").display().to_string());
    // An hour of a job takes thirty seconds.
    let arguments = ["--time-scale", "120", "--config", &config, "--decision-journal", &journal];
    let cluster = Cluster::durable(data.path(), &arguments);
    cluster.run(&["apply", "-f", &file("examples/quickstart/queues.yaml")]);
    cluster.run(&["apply", "-f", &file("examples/quickstart/blue-jobs.yaml")]);
    cluster.wait_until("two jobs to run", 60, |cluster| {
        let list = cluster.get(&["pods", "-n", "team-blue"]);
        list["items"]
            .as_array()
            .is_some_and(|pods| pods.iter().filter(|pod| pod["status"]["phase"] == "Running").count() == 4)
    });
    let before = pods(&cluster);
    let decided = decisions(&cluster);
    assert!(decided.iter().any(|decision| decision["outcome"] == "Admitted"), "{decided:?}");
    let holder = lease_holder(&cluster);
    cluster.kill();

    let cluster = Cluster::durable(data.path(), &arguments);
    let restored = pods(&cluster);
    assert!(restored.is_superset(&before), "pods were lost: {restored:?}, before {before:?}");
    assert_eq!(decisions(&cluster), decided, "the journal lacks decisions of the killed process");
    cluster.wait_until("the new process to announce itself", 10, |cluster| lease_holder(cluster) != holder);
    cluster.wait_until("all jobs to complete", 240, |cluster| {
        let jobs = cluster.get(&["jobs", "-n", "team-blue"]);
        jobs["items"]
            .as_array()
            .is_some_and(|jobs| jobs.len() == 3 && jobs.iter().all(|job| job["status"]["succeeded"] == 2))
    });
    let after = pods(&cluster);
    assert_eq!(after.len(), 6, "two pods for each of three jobs, none twice: {after:?}");
    assert!(after.is_superset(&before));
    // After a clean stop the store opens again.
    cluster.interrupt();
    let cluster = Cluster::durable(data.path(), &arguments);
    assert_eq!(pods(&cluster), after);
    assert_private(&cluster.kubeconfig);
}

fn assert_private(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(path).expect("the kubeconfig exists").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "other users can access the kubeconfig, which holds a private key");
}
