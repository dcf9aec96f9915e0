//! The time and size of a scrape of the metrics of kube-state-metrics and dcgm-exporter.
//!
//! A cluster has a node with eight GPUs per sixteen pods; half of the pods run with a GPU each, the
//! others have ended. Printed is a row per number of pods: the median time of nine scrapes, and the
//! size of the text. `cargo bench -p berth-cluster --bench scrape -- 1000` measures other numbers
//! of pods.

use std::time::Duration;

use berth_apimachinery::exposition::Exposition;
use berth_cluster::kube_state::KubeState;
use berth_runtime::{Cache, Clock};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};
use tokio::time::Instant;

const SIZES: [usize; 3] = [1_000, 10_000, 100_000];
const PODS_PER_NODE: usize = 16;
const REPEATS: usize = 9;

fn node(number: usize) -> Node {
    let amounts = json!({"cpu": "96", "memory": "1Ti", "nvidia.com/gpu": "8", "pods": "110"});
    let node = json!({"metadata": {"name": format!("gpu-{number}"), "resourceVersion": "1",
            "labels": {"cloud.google.com/gke-nodepool": "gpu", "nvidia.com/gpu.present": "true"}},
        "status": {"capacity": amounts, "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}]}});
    serde_json::from_value(node).expect("a node")
}

fn pod(number: usize) -> Pod {
    let is_running = number.is_multiple_of(2);
    let state: Value = match is_running {
        true => json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}}),
        false => json!({"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": "2026-01-01T00:30:00Z"}}),
    };
    let condition = |type_: &str| json!({"type": type_, "status": "True"});
    let pod = json!({"metadata": {"name": format!("train-{number}-0-abcde"), "namespace": format!("team-{}", number % 20),
            "uid": format!("00000000-0000-0000-0000-{number:012}"), "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"kueue.x-k8s.io/queue-name": "main", "batch.kubernetes.io/job-name": format!("train-{number}")},
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": format!("train-{number}"), "uid": "u",
                "controller": true}]},
        "spec": {"nodeName": format!("gpu-{}", number / PODS_PER_NODE), "containers": [{"name": "train", "image": "train",
            "resources": {"requests": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"},
                "limits": {"nvidia.com/gpu": "1"}}}]},
        "status": {"phase": if is_running { "Running" } else { "Succeeded" }, "podIP": "10.0.0.1", "hostIP": "10.0.0.2",
            "startTime": "2026-01-01T00:00:00Z", "conditions": [condition("PodScheduled"), condition("Ready")],
            "containerStatuses": [{"name": "train", "image": "train", "imageID": "train", "ready": is_running,
                "restartCount": 0, "state": state}]}});
    serde_json::from_value(pod).expect("a pod")
}

fn main() {
    let given: Vec<usize> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let sizes = if given.is_empty() { SIZES.to_vec() } else { given };
    println!("{:>8}  {:>10}  {:>10}", "PODS", "SCRAPE ms", "SIZE MiB");
    for pods in sizes {
        let clock = Clock::scaled("2026-01-01T01:00:00Z".parse().expect("a time"), 1.0);
        let nodes = Cache::for_tests((0..pods.div_ceil(PODS_PER_NODE)).map(node));
        let state = KubeState::of(nodes, Cache::for_tests((0..pods).map(pod)), Cache::for_tests([]), clock);
        let mut times: Vec<Duration> = Vec::new();
        let mut size = 0;
        for _ in 0..REPEATS {
            let begin = Instant::now();
            size = Exposition::text(|exposition| state.write(exposition)).len();
            times.push(begin.elapsed());
        }
        times.sort_unstable();
        let (milliseconds, mebibytes) = (times[REPEATS / 2].as_secs_f64() * 1000.0, size as f64 / f64::from(1 << 20));
        println!("{pods:>8}  {milliseconds:>10.1}  {mebibytes:>10.1}");
    }
}
