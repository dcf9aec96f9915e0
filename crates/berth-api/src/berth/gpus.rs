//! What the GPUs of nodes report: in the NodeMetrics of an embedded cluster (`metrics.k8s.io`), and
//! as the list `gpus` of `explain.berth.dev`, which the controllers read from the exporters of any
//! cluster.

use serde::{Deserialize, Serialize};

use super::explanation::{GROUP, VERSION};

/// The resource of the GPUs that report.
pub const GPU: &str = "nvidia.com/gpu";

/// Annotation of NodeMetrics: a JSON list of [`GpuUse`], one per GPU. The clients of NodeMetrics
/// know amounts per node only.
pub const GPUS_ANNOTATION: &str = "berth.dev/gpus";

/// Kind of [`GpuUseList`].
pub const KIND: &str = "GpuUseList";

/// What the GPUs of all nodes report, as far as their exporters respond.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuUseList {
    /// `explain.berth.dev/v1alpha1`.
    pub api_version: String,
    /// [`KIND`].
    pub kind: String,
    /// The nodes that report GPUs, by name.
    pub items: Vec<NodeGpus>,
    /// Sentences about what is missing, why, and what to do.
    pub notes: Vec<String>,
}

impl GpuUseList {
    /// The list of these nodes, with notes.
    pub fn of(items: Vec<NodeGpus>, notes: Vec<String>) -> Self {
        Self { api_version: format!("{GROUP}/{VERSION}"), kind: KIND.to_owned(), items, notes }
    }
}

/// The GPUs of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeGpus {
    /// Name of the node.
    pub node: String,
    /// Its GPUs, by number.
    pub gpus: Vec<GpuUse>,
}

/// What a GPU reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuUse {
    /// Number on its node, from 0.
    pub gpu: u32,
    /// Share of the time in which a kernel ran, in percent.
    pub utilization: f64,
    /// Memory in use, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_used: Option<f64>,
    /// All its memory, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<f64>,
    /// Power in watts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power: Option<f64>,
    /// Temperature in degrees Celsius.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
}
