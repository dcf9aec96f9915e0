//! What the GPUs of the nodes report, measured or simulated: for `berth top` and the page of nodes.
//!
//! Berth's NodeMetrics have it per GPU. Those of other clusters have CPU and memory only.

use std::collections::BTreeMap;

use berth_api::berth::gpus::{GPUS_ANNOTATION, GpuUse};
use http::Request;
use kube::Client;
use kube::api::ObjectMeta;
use serde::Deserialize;

use crate::read::{self, Unread};

/// The GPUs of each node that reports some.
pub type GpuUses = BTreeMap<String, Vec<GpuUse>>;

/// Number of GPUs of a node of which each has its own figure; more have the mean.
const SINGLE_MAX: usize = 4;

#[derive(Deserialize)]
struct Nodes {
    #[serde(default)]
    items: Vec<NodeMetrics>,
}

#[derive(Deserialize)]
struct NodeMetrics {
    #[serde(default)]
    metadata: ObjectMeta,
}

impl NodeMetrics {
    fn gpus(self) -> Option<(String, Vec<GpuUse>)> {
        let annotations = self.metadata.annotations?;
        let gpus: Vec<GpuUse> = serde_json::from_str(annotations.get(GPUS_ANNOTATION)?).ok()?;
        Some((self.metadata.name?, gpus))
    }
}

/// Reads what the GPUs of all nodes report. Nothing if the cluster has no `metrics.k8s.io`, the reader
/// may not list its nodes, or the response takes longer than a moment.
pub async fn read(client: &Client) -> GpuUses {
    let reading = read::promptly(async {
        let path = "/apis/metrics.k8s.io/v1beta1/nodes";
        let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
        client.request::<Nodes>(request).await.map_err(Unread::from)
    });
    reading.await.map(|nodes| nodes.items.into_iter().filter_map(NodeMetrics::gpus).collect()).unwrap_or_default()
}

/// The mean utilization in percent; `None` without GPUs.
pub fn mean(gpus: &[GpuUse]) -> Option<f64> {
    (!gpus.is_empty()).then(|| gpus.iter().map(|it| it.utilization).sum::<f64>() / gpus.len() as f64)
}

/// The utilization of each GPU, or the mean of many: `35 % 90 %`, `62 % (8)`.
pub fn text(gpus: &[GpuUse]) -> String {
    match mean(gpus) {
        Some(mean) if gpus.len() > SINGLE_MAX => format!("{mean:.0} % ({})", gpus.len()),
        _ => gpus.iter().map(|it| format!("{:.0} %", it.utilization)).collect::<Vec<_>>().join(" "),
    }
}

/// Everything that a GPU reports, as a sentence.
pub fn sentence(gpu: &GpuUse) -> String {
    let mut text = format!("GPU {}: {:.0} % busy", gpu.gpu, gpu.utilization);
    if let (Some(used), Some(all)) = (gpu.memory_used, gpu.memory) {
        text.push_str(&format!(", {used:.0} of {all:.0} MiB"));
    }
    if let Some(power) = gpu.power {
        text.push_str(&format!(", {power:.0} W"));
    }
    if let Some(temperature) = gpu.temperature {
        text.push_str(&format!(", {temperature:.0} °C"));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn gpus(utilization: &[f64]) -> Vec<GpuUse> {
        let gpu =
            |(number, utilization): (u32, &f64)| GpuUse { gpu: number, utilization: *utilization, ..GpuUse::default() };
        (0..).zip(utilization).map(gpu).collect()
    }

    #[test]
    fn a_few_gpus_have_a_figure_each_and_many_have_the_mean() {
        assert_eq!(text(&gpus(&[35.0, 90.4])), "35 % 90 %");
        assert_eq!(text(&gpus(&[100.0, 0.0, 50.0, 50.0, 50.0])), "50 % (5)");
        assert_eq!((text(&[]), mean(&[])), (String::new(), None));
    }

    #[test]
    fn node_metrics_of_other_clusters_have_no_gpus() {
        let gpus = json!([{"gpu": 1, "utilization": 12.5, "memoryUsed": 100.0, "memory": 24000.0}]).to_string();
        let list = json!({"items": [
            {"metadata": {"name": "a", "annotations": {"berth.dev/gpus": gpus}}, "usage": {"cpu": "1"}},
            {"metadata": {"name": "b"}, "usage": {"cpu": "1"}}]});
        let nodes: Nodes = serde_json::from_value(list).expect("a list");
        let uses: GpuUses = nodes.items.into_iter().filter_map(NodeMetrics::gpus).collect();
        assert_eq!(uses.keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!(sentence(&uses["a"][0]), "GPU 1: 12 % busy, 100 of 24000 MiB");
    }
}
