//! What the GPUs of the nodes report, measured or simulated: for `berth top` and the page of nodes.
//!
//! The NodeMetrics of an embedded cluster have it per GPU. In other clusters, NodeMetrics have CPU and
//! memory only, and the controllers read the GPUs' exporters (list `gpus` of `explain.berth.dev`).

use std::collections::BTreeMap;

use berth_api::berth::gpus::{GPUS_ANNOTATION, GpuUse, GpuUseList};
use berth_controllers::explain::ask;
use http::Request;
use kube::Client;
use kube::api::ObjectMeta;
use serde::Deserialize;

use crate::read::{self, Unread};

/// The GPUs of the nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuUses {
    /// The GPUs of each node that reports some.
    pub nodes: BTreeMap<String, Vec<GpuUse>>,
    /// Sentences about what is missing, why, and what to do.
    pub notes: Vec<String>,
}

impl GpuUses {
    /// The GPUs of a node.
    pub fn of(&self, node: &str) -> &[GpuUse] {
        self.nodes.get(node).map(Vec::as_slice).unwrap_or_default()
    }

    /// The figures of an embedded cluster's NodeMetrics, and those of exporters for other nodes. If there
    /// are none at all, the notes say why.
    fn of_both(metrics: Result<Nodes, Unread>, exported: Result<GpuUseList, Unread>) -> Self {
        let (items, notes) = match exported {
            Ok(list) => (list.items, list.notes),
            Err(unread) => (Vec::new(), vec![format!("What GPUs report is not shown. {unread}")]),
        };
        let mut nodes: BTreeMap<String, Vec<GpuUse>> = items.into_iter().map(|it| (it.node, it.gpus)).collect();
        let metrics = metrics.map(|nodes| nodes.items).unwrap_or_default();
        let before = nodes.len();
        nodes.extend(metrics.into_iter().filter_map(NodeMetrics::gpus));
        // Figures of NodeMetrics need no exporter.
        let notes = if nodes.len() > before { Vec::new() } else { notes };
        Self { nodes, notes }
    }
}

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

/// Reads what the GPUs of all nodes report. A source that takes longer than a moment is left out.
pub async fn read(client: &Client) -> GpuUses {
    let metrics = read::promptly(async {
        let path = "/apis/metrics.k8s.io/v1beta1/nodes";
        let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
        client.request::<Nodes>(request).await.map_err(Unread::from)
    });
    let exported = read::promptly(async { ask::gpus(client).await.map_err(Unread::from) });
    let (metrics, exported) = futures::join!(metrics, exported);
    GpuUses::of_both(metrics, exported)
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
    use berth_api::berth::gpus::NodeGpus;
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

    fn metrics() -> Nodes {
        let gpus = json!([{"gpu": 1, "utilization": 12.5, "memoryUsed": 100.0, "memory": 24000.0}]).to_string();
        let list = json!({"items": [
            {"metadata": {"name": "a", "annotations": {"berth.dev/gpus": gpus}}, "usage": {"cpu": "1"}},
            {"metadata": {"name": "b"}, "usage": {"cpu": "1"}}]});
        serde_json::from_value(list).expect("a list")
    }

    fn exported(notes: &[&str]) -> GpuUseList {
        let items = vec![NodeGpus { node: "b".to_owned(), gpus: gpus(&[90.0]) }];
        GpuUseList::of(items, notes.iter().map(|note| (*note).to_owned()).collect())
    }

    #[test]
    fn nodes_without_gpus_in_their_metrics_have_those_of_their_exporters() {
        let uses = GpuUses::of_both(Ok(metrics()), Ok(exported(&[])));
        assert_eq!(uses.nodes.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(sentence(&uses.of("a")[0]), "GPU 1: 12 % busy, 100 of 24000 MiB");
        assert_eq!((text(uses.of("b")), text(uses.of("c"))), ("90 %".to_owned(), String::new()));
    }

    #[test]
    fn a_note_about_exporters_is_shown_unless_nodes_report_by_themselves() {
        let of_exporters = GpuUses::of_both(Ok(Nodes { items: Vec::new() }), Ok(exported(&["1 of 2 failed."])));
        assert_eq!((of_exporters.notes, of_exporters.nodes.len()), (vec!["1 of 2 failed.".to_owned()], 1));
        assert_eq!(GpuUses::of_both(Ok(metrics()), Ok(exported(&["none"]))).notes, Vec::<String>::new());
        let missing = || Unread::Refused { code: 404, message: "the server could not find it".to_owned() };
        let none = GpuUses::of_both(Err(missing()), Err(missing()));
        assert_eq!(none.notes, ["What GPUs report is not shown. the server could not find it"]);
    }
}
