//! What the GPUs of a node report, in its NodeMetrics (`metrics.k8s.io`).

use serde::{Deserialize, Serialize};

/// Annotation of NodeMetrics: a JSON list of [`GpuUse`], one per GPU. The clients of NodeMetrics know
/// amounts per node only.
pub const GPUS_ANNOTATION: &str = "berth.dev/gpus";

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
