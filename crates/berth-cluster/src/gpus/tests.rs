//! Metrics of simulated and measured GPUs.

use serde_json::{Value, json};

use super::*;

fn node(name: &str, gpus: &str, annotations: Value) -> Arc<Node> {
    let node = json!({
        "metadata": {"name": name, "uid": name, "annotations": annotations,
            "labels": {"cloud.google.com/gke-accelerator": "nvidia-l4"}},
        "status": {"allocatable": {"nvidia.com/gpu": gpus}, "conditions": [{"type": "Ready", "status": "True"}]},
    });
    Arc::new(serde_json::from_value(node).expect("a node"))
}

/// A pod on node `n` that holds GPUs.
fn pod(name: &str, gpus: &str, start: &str, running: bool, annotations: Value) -> Arc<Pod> {
    let state = if running { json!({"running": {}}) } else { json!({"waiting": {}}) };
    let pod = json!({
        "metadata": {"name": name, "namespace": "team", "uid": name, "annotations": annotations},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": gpus}}}]},
        "status": {"phase": "Running", "startTime": start, "containerStatuses": [
            {"name": "c", "image": "", "imageID": "", "ready": running, "restartCount": 0, "state": state}]},
    });
    Arc::new(serde_json::from_value(pod).expect("a pod"))
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a time")
}

fn text(gpus: &Gpus, nodes: &[Arc<Node>], pods: &[Arc<Pod>], now: Timestamp) -> String {
    Exposition::text(|exposition| gpus.write(exposition, nodes, pods, now))
}

/// GPU, pod and value of each sample of a family.
fn samples(text: &str, family: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| line.starts_with(&format!("{family}{{")));
    let label = |line: &str, name: &str| {
        let of = format!("{name}=\"");
        line.split_once(&of).map_or(String::new(), |(_, rest)| rest.split('"').next().unwrap_or_default().to_owned())
    };
    let short = |line: &str| {
        let value = line.rsplit(' ').next().unwrap_or_default();
        format!("{} {} {value}", label(line, "{gpu"), label(line, "pod"))
    };
    lines.map(short).collect()
}

#[test]
fn pods_keep_their_gpus_and_use_them_while_they_run() {
    let gpus = Gpus::default();
    let nodes = [node("n", "4", json!({}))];
    let early = pod("early", "1", "2026-01-01T00:00:00Z", true, json!({}));
    let late = pod("late", "2", "2026-01-01T00:01:00Z", true, json!({GPU_USAGE: "35%", GPU_MEMORY_USAGE: "50%"}));
    let first = text(&gpus, &nodes, &[late.clone(), early.clone()], at(0));
    assert_eq!(samples(&first, "DCGM_FI_DEV_GPU_UTIL"), ["0 early 80", "1 late 35", "2 late 35", "3  0"]);
    assert_eq!(samples(&first, "DCGM_FI_DEV_FB_USED")[..2], ["0 early 13544", "1 late 11287"]);
    assert!(first.contains(r#"modelName="NVIDIA L4",Hostname="n",hostname="n""#), "{first}");
    // The GPU of the early pod is free now. The late pod keeps its own.
    let starting = pod("new", "1", "2026-01-01T00:02:00Z", false, json!({}));
    let second = text(&gpus, &nodes, &[starting, late], at(10));
    assert_eq!(samples(&second, "DCGM_FI_DEV_GPU_UTIL"), ["0 new 0", "1 late 35", "2 late 35", "3  0"]);
    // 16 W without load, and 56 W more at 80 %, for ten seconds.
    let energy: f64 = samples(&second, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")[0][6..].parse().expect("a number");
    assert!((energy - 608_000.0).abs() < 1.0, "{energy}");
}

#[test]
fn faults_of_a_node_show_in_its_gpus() {
    let faults = json!({"remapped": [1], "gpupower": [0], "dcgm": {"ECC": [1]}}).to_string();
    let nodes = [node("n", "2", json!({"berth.dev/faults": faults}))];
    let pods = [pod("a", "2", "2026-01-01T00:00:00Z", true, json!({}))];
    let shown = text(&Gpus::default(), &nodes, &pods, at(0));
    assert_eq!(samples(&shown, "DCGM_FI_DEV_SM_CLOCK"), ["0 a 1020", "1 a 2040"]);
    assert_eq!(samples(&shown, "DCGM_FI_DEV_ROW_REMAP_FAILURE"), ["0 a 0", "1 a 1"]);
    assert_eq!(samples(&shown, "DCGM_FI_DEV_XID_ERRORS"), ["0 a 0", "1 a 48"]);
    let silent = node("n", "2", json!({"berth.dev/faults": r#"{"notReady": true}"#}));
    assert_eq!(text(&Gpus::default(), &[silent], &pods, at(0)), "");
}

#[test]
fn real_gpus_show_what_their_driver_reports() {
    let gpus = Gpus::default();
    let reading = GpuReading {
        index: 0,
        uuid: "GPU-1".to_owned(),
        model: "NVIDIA H100".to_owned(),
        holder: Some((PodUid("a".to_owned()), "c".to_owned())),
        values: GpuValues { utilization: Some(97.0), ..GpuValues::default() },
        ..GpuReading::default()
    };
    gpus.measured("n", vec![reading]);
    let nodes = [node("n", "1", json!({}))];
    let shown = text(&gpus, &nodes, &[pod("a", "1", "2026-01-01T00:00:00Z", true, json!({}))], at(0));
    assert_eq!(samples(&shown, "DCGM_FI_DEV_GPU_UTIL"), ["0 a 97"]);
    assert!(!shown.contains("POWER"), "the driver reports no power: {shown}");
}

#[test]
fn models_are_known_by_the_labels_of_gke_and_of_nvidia() {
    let name = |label: &str| models::of_label(label).name;
    assert_eq!(name("nvidia-tesla-a100"), "NVIDIA A100-SXM4-40GB");
    assert_eq!(name("NVIDIA-A100-SXM4-80GB"), "NVIDIA A100-SXM4-80GB");
    assert_eq!(name("nvidia-l4"), "NVIDIA L4");
    assert_eq!(name("unknown"), "NVIDIA GPU");
}
