//! PodMetrics and NodeMetrics of `metrics.k8s.io/v1beta1`.

use std::time::Duration;

use berth_api::berth::gpus::{GPUS_ANNOTATION, GpuUse};
use berth_apimachinery::times;
use berth_pod_runtime::GpuReading;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{GROUP, Measured, PodUsage, Usage, VERSION};

/// The PodMetrics of a pod.
pub fn pod_metrics(pod: &Pod, usage: &PodUsage) -> Value {
    let containers: Vec<Value> =
        usage.figures.iter().map(|(name, usage)| json!({"name": name, "usage": amounts(*usage)})).collect();
    let mut metrics = document("PodMetrics", &pod.name_any(), pod.labels(), usage.at, usage.window);
    metrics["metadata"]["namespace"] = pod.namespace().into();
    metrics["containers"] = containers.into();
    metrics
}

/// The NodeMetrics of a node. What its GPUs report is in an annotation ([`GPUS_ANNOTATION`]).
pub fn node_metrics(node: &Node, usage: &Measured<Usage>, gpus: &[GpuReading]) -> Value {
    let mut metrics = document("NodeMetrics", &node.name_any(), node.labels(), usage.at, usage.window);
    metrics["usage"] = amounts(usage.figures);
    let of_gpus: Vec<GpuUse> = gpus.iter().filter_map(gpu_use).collect();
    if !of_gpus.is_empty() {
        metrics["metadata"]["annotations"] = json!({GPUS_ANNOTATION: json!(of_gpus).to_string()});
    }
    metrics
}

fn gpu_use(reading: &GpuReading) -> Option<GpuUse> {
    let values = &reading.values;
    let memory = values.memory_used.zip(values.memory_free);
    Some(GpuUse {
        gpu: reading.index,
        utilization: values.utilization?,
        memory_used: values.memory_used,
        memory: memory.map(|(used, free)| used + free + values.memory_reserved.unwrap_or(0.0)),
        power: values.power,
        temperature: values.temperature,
    })
}

fn document(
    kind: &str,
    name: &str,
    labels: &std::collections::BTreeMap<String, String>,
    at: Timestamp,
    window: Duration,
) -> Value {
    let window = SignedDuration::try_from(window).unwrap_or(SignedDuration::MAX);
    let mut document = json!({
        "kind": kind, "apiVersion": format!("{GROUP}/{VERSION}"),
        "metadata": {"name": name, "creationTimestamp": times::time(at)},
        "timestamp": times::time(at), "window": times::duration(window),
    });
    if !labels.is_empty() {
        document["metadata"]["labels"] = json!(labels);
    }
    document
}

/// Usage as quantities in their canonical form.
fn amounts(usage: Usage) -> Value {
    let cpu = match usage.cpu_nano {
        0 => "0".to_owned(),
        nano if nano % 1_000_000_000 == 0 => (nano / 1_000_000_000).to_string(),
        nano if nano % 1_000_000 == 0 => format!("{}m", nano / 1_000_000),
        nano if nano % 1_000 == 0 => format!("{}u", nano / 1_000),
        nano => format!("{nano}n"),
    };
    json!({"cpu": cpu, "memory": format!("{}Ki", usage.memory_bytes / 1024)})
}
