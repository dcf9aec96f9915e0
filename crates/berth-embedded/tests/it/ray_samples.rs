//! A test that the sample RayClusters of KubeRay become ready.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use berth_api::frameworks::RayCluster;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::ray_clusters::{create, start};

/// Samples that do not become ready, with the reason.
const NOT_READY: &[(&str, &str)] =
    &[("ray-cluster.historyserver.yaml", "InvalidRayClusterSpec: KubeRay's feature gate is off by default")];

/// The sample manifests of RayClusters: file name and documents, in order.
fn samples(folder: PathBuf) -> Vec<(String, Vec<Value>)> {
    let mut paths: Vec<PathBuf> =
        folder.read_dir().expect("a folder").map(|entry| entry.expect("a file").path()).collect();
    paths.sort();
    let mut samples = Vec::new();
    for path in paths {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        if !name.starts_with("ray-cluster") || !name.ends_with(".yaml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a file");
        let documents = berth_apimachinery::decode::documents(&text).expect("YAML");
        if documents.iter().any(|document| document["kind"] == "RayCluster") {
            samples.push((name, documents));
        }
    }
    samples
}

/// Node pools for the samples: nodes without accelerators, nodes with GPUs, and TPU slices of the
/// topologies that the samples use.
fn sample_nodes() -> Value {
    let pool = |name: &str, count: i32, machine: Value, labels: Value| {
        json!({"name": name, "machine": machine, "initialNodes": count, "minNodes": count, "maxNodes": count,
            "static": true, "labels": labels})
    };
    let tpu = |name: &str, count: i32, kind: &str, topology: &str| {
        let accelerator = json!({"type": kind, "count": 4, "topology": topology});
        pool(name, count, json!({"cpu": "180", "memory": "720Gi", "accelerator": accelerator}), json!({}))
    };
    json!([
        pool(
            "plain",
            8,
            json!({"cpu": "64", "memory": "512Gi"}),
            json!({
            "node.gke.io/enable-writable-cgroups": "true", "cloud.google.com/machine-family": "N4",
            "iam.gke.io/gke-metadata-server-enabled": "true"})
        ),
        pool(
            "gpu",
            2,
            json!({"cpu": "96", "memory": "768Gi", "accelerator": {"type": "nvidia-l4", "count": 8}}),
            json!({})
        ),
        tpu("v4-multi", 2, "tpu-v4-podslice", "2x2x2"),
        tpu("v4-single", 1, "tpu-v4-podslice", "2x2x1"),
        tpu("v6e-16", 4, "tpu-v6e-slice", "4x4"),
        tpu("v6e-256", 64, "tpu-v6e-slice", "16x16"),
        tpu("v6e-single", 1, "tpu-v6e-slice", "2x2"),
    ])
}

#[tokio::test(start_paused = true)]
async fn kuberays_sample_clusters_become_ready() {
    let Some(folder) = berth_testing::shared("scenarios/upstream-samples/kuberay/ray-operator/config/samples") else {
        return;
    };
    let samples = samples(folder);
    assert!(samples.len() > 30, "only {} samples", samples.len());
    let cluster = start(json!({"nodePools": sample_nodes()}), None).await;
    let client = cluster.admin_client();
    let mut waiting = BTreeMap::new();
    for (number, (file, documents)) in samples.into_iter().enumerate() {
        // Objects of different samples have equal names.
        let namespace = format!("s{number}");
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        create(&client, object, "").await.expect("a namespace");
        // A sample for GKE names a service account that its user must create first.
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "my-ksa"}});
        create(&client, account, &namespace).await.expect("a service account");
        for document in documents.into_iter().filter(|document| !document.is_null()) {
            let (kind, name) = (document["kind"].clone(), document["metadata"]["name"].clone());
            match create(&client, document, &namespace).await {
                Ok(_) if kind == "RayCluster" => {
                    let name = name.as_str().unwrap_or_default().to_owned();
                    waiting.insert((namespace.clone(), name), file.clone());
                }
                Ok(_) => {}
                // Some samples include kinds of other batch schedulers, which this cluster does not
                // serve.
                Err(error) if berth_runtime::is_not_found(&error) => assert_ne!(kind, "RayCluster", "{file}"),
                Err(error) => panic!("{file}: {kind} {name}: {error}"),
            }
        }
    }
    let clusters: Api<RayCluster> = Api::all(client.clone());
    for _ in 0..18 {
        tokio::time::sleep(Duration::from_secs(10)).await;
        for cluster in clusters.list(&ListParams::default()).await.expect("clusters") {
            if cluster.status.unwrap_or_default()["state"] == "ready" {
                let (namespace, name) = (cluster.metadata.namespace, cluster.metadata.name);
                waiting.remove(&(namespace.unwrap_or_default(), name.unwrap_or_default()));
            }
        }
        if waiting.len() == NOT_READY.len() {
            break;
        }
    }
    let files: Vec<_> = waiting.values().map(String::as_str).collect();
    assert_eq!(files, NOT_READY.iter().map(|(file, _)| *file).collect::<Vec<_>>());
    cluster.stop().await;
}
