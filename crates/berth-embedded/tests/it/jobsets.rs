//! JobSets on the whole embedded cluster: scheduler, kubelet, garbage collection and admission
//! included.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::jobset::v1alpha2::JobSet;
use berth_embedded::{Embedded, Options};
use berth_runtime::Clock;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

/// Two racks of two nodes.
async fn racks() -> Embedded {
    let clock = Clock::scaled("2026-01-05T09:00:00Z".parse().expect("a timestamp"), 1.0);
    let rack = |name: &str| {
        json!({"name": name, "machineType": "e2-standard-4", "zones": ["z"],
               "initialNodes": 2, "minNodes": 2, "maxNodes": 2, "static": true})
    };
    let configuration = json!({"nodePools": [rack("rack-a"), rack("rack-b")]});
    Embedded::start(Options::in_memory(clock, 1, Some(configuration), None)).await.expect("the cluster starts")
}

async fn create(client: &Client, annotations: Value, spec: Value, pod_annotations: Value) {
    let mut set = json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
        "metadata": {"name": "s", "annotations": annotations}, "spec": spec});
    set["spec"]["replicatedJobs"] = json!([{"name": "worker", "replicas": 2, "template": {"spec": {
        "parallelism": 2, "completions": 2, "backoffLimit": 0,
        "template": {"metadata": {"annotations": pod_annotations}, "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "2500m"}}}]}}}}}]);
    let set: JobSet = serde_json::from_value(set).expect("a JobSet");
    Api::default_namespaced(client.clone()).create(&PostParams::default(), &set).await.expect("the set is accepted");
}

async fn ended(client: &Client) -> JobSet {
    let sets: Api<JobSet> = Api::default_namespaced(client.clone());
    for _ in 0..3600 {
        let set = sets.get("s").await.expect("the set exists");
        if set.status.as_ref().is_some_and(|status| !status.terminal_state.is_empty()) {
            return set;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("the set never ends");
}

#[tokio::test(start_paused = true)]
async fn exclusive_placement_gives_each_job_its_own_rack() {
    let cluster = racks().await;
    let client = cluster.admin_client();
    let topology = json!({"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"});
    create(&client, topology, json!({}), json!({"berth.dev/run-duration": "60s"})).await;
    let set = ended(&client).await;
    assert_eq!(set.status.expect("it ended").terminal_state, "Completed");
    let nodes: Api<Node> = Api::all(client.clone());
    let mut racks: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    for pod in pods.list(&ListParams::default()).await.expect("pods") {
        let labels = pod.metadata.labels.expect("labels");
        let node = nodes.get(&pod.spec.expect("a spec").node_name.expect("a node")).await.expect("the node");
        let rack = node.metadata.labels.expect("labels")["cloud.google.com/gke-nodepool"].clone();
        racks.entry(labels["jobset.sigs.k8s.io/job-index"].clone()).or_default().insert(rack);
    }
    let of_job = |index: &str| racks[index].iter().cloned().collect::<Vec<_>>();
    assert_eq!((of_job("0").len(), of_job("1").len()), (1, 1), "{racks:?}");
    assert_ne!(of_job("0"), of_job("1"));
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_jobset_whose_pods_fail_restarts_without_pods_of_earlier_attempts() {
    let cluster = racks().await;
    let client = cluster.admin_client();
    let policy = json!({"failurePolicy": {"maxRestarts": 2}});
    let fails = json!({"berth.dev/run-duration": "30s", "berth.dev/exit-code": "1"});
    create(&client, json!({}), policy, fails).await;
    let status = ended(&client).await.status.expect("it ended");
    assert_eq!((status.terminal_state.as_str(), status.restarts), ("Failed", 2));
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    for pod in pods.list(&ListParams::default()).await.expect("pods") {
        let labels = pod.metadata.labels.expect("labels");
        assert_eq!(labels["jobset.sigs.k8s.io/restart-attempt"], "2", "pods of earlier attempts are deleted");
    }
    cluster.stop().await;
}
