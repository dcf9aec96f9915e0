//! What simulated GPUs report.
//!
//! A GPU without a running container is idle. A GPU of a running container has a utilization of
//! [`USAGE_PERCENT`] and uses [`MEMORY_PERCENT`] of its memory. Annotations of the pod change this:
//!
//! | annotation | value |
//! |---|---|
//! | `berth.dev/gpu-usage` | utilization of each GPU of the pod, such as `35%` |
//! | `berth.dev/gpu-memory-usage` | memory in use of each GPU of the pod, such as `90%` |
//!
//! Power, temperature and clocks follow from the utilization and the model. Faults of the node
//! ([`NodeFaults`]) show, too: `gpupower` halves the clock, `remapped` is a failed row remapping,
//! and a failed test `ECC` is XID error 48.

use berth_api::berth::NodeFaults;
use berth_pod_runtime::{GpuReading, GpuValues};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;

use super::models::{self, Model};
use crate::random::hash;

/// Annotation with the utilization of a simulated pod's GPUs.
pub const GPU_USAGE: &str = "berth.dev/gpu-usage";
/// Annotation with the memory in use of a simulated pod's GPUs.
pub const GPU_MEMORY_USAGE: &str = "berth.dev/gpu-memory-usage";
/// Utilization of a GPU whose container runs, in percent.
const USAGE_PERCENT: f64 = 80.0;
/// Memory in use of a GPU whose container runs, in percent.
const MEMORY_PERCENT: f64 = 60.0;
/// Memory that the driver reserves, in percent.
const RESERVED_PERCENT: f64 = 2.0;
/// Clock of an idle GPU in MHz.
const IDLE_CLOCK: f64 = 210.0;
/// Temperature of an idle GPU, and what full load adds, in degrees Celsius.
const TEMPERATURE: [f64; 2] = [32.0, 40.0];
/// The driver's version.
const DRIVER: &str = "580.95.05";
/// XID error of an uncorrectable error of the memory.
const XID_DOUBLE_BIT: f64 = 48.0;

/// Load of a GPU in percent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Load {
    pub usage: f64,
    pub memory: f64,
}

/// The load of the GPUs of a pod's container; `None` if it does not run.
pub(super) fn load(pod: &Pod, container: &str) -> Option<Load> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let status = statuses.iter().find(|status| status.name == container)?;
    status.state.as_ref()?.running.as_ref()?;
    let percent = |annotation: &str, default: f64| {
        let text = pod.annotations().get(annotation).map_or("", |text| text.trim());
        let stated = text.strip_suffix('%').unwrap_or(text).parse::<u8>().ok().filter(|percent| *percent <= 100);
        stated.map_or(default, f64::from)
    };
    Some(Load { usage: percent(GPU_USAGE, USAGE_PERCENT), memory: percent(GPU_MEMORY_USAGE, MEMORY_PERCENT) })
}

/// A GPU of a node, without its holder and its energy.
pub(super) fn reading(node: &Node, index: u32, load: Option<Load>, faults: &NodeFaults) -> GpuReading {
    let label = |key: &str| node.labels().get(key).map(String::as_str);
    let label = label("nvidia.com/gpu.product").or_else(|| label("cloud.google.com/gke-accelerator"));
    let model = models::of_label(label.unwrap_or_default());
    GpuReading {
        index,
        uuid: uuid(node, index),
        pci_bus_id: format!("00000000:{:02X}:00.0", index.saturating_add(4)),
        model: model.name.to_owned(),
        driver: DRIVER.to_owned(),
        holder: None,
        values: values(&model, load, faults, index),
    }
}

/// A UUID that the node's UID determines.
fn uuid(node: &Node, index: u32) -> String {
    let uid = node.metadata.uid.as_deref().unwrap_or_default();
    let [high, low] = ["high", "low"].map(|half| hash(&["gpu", uid, &index.to_string(), half]));
    let [first, second] = [format!("{high:016x}"), format!("{low:016x}")];
    format!("GPU-{}-{}-{}-{}-{}", &first[..8], &first[8..12], &first[12..], &second[..4], &second[4..])
}

fn values(model: &Model, load: Option<Load>, faults: &NodeFaults, index: u32) -> GpuValues {
    let Load { usage, memory } = load.unwrap_or(Load { usage: 0.0, memory: 0.0 });
    let share = usage / 100.0;
    let reserved = (model.memory * RESERVED_PERCENT / 100.0).floor();
    let used = ((model.memory - reserved) * memory / 100.0).floor();
    let slowed = if faults.gpupower.contains(&index) { 2.0 } else { 1.0 };
    let temperature = (TEMPERATURE[0] + TEMPERATURE[1] * share).round();
    let is_remapped = f64::from(u8::from(faults.remapped.contains(&index)));
    let has_memory_error = faults.dcgm.get("ECC").is_some_and(|gpus| gpus.contains(&index));
    GpuValues {
        utilization: Some(usage),
        memory_utilization: Some((usage / 2.0).round()),
        memory_used: Some(used),
        memory_free: Some(model.memory - reserved - used),
        memory_reserved: Some(reserved),
        power: Some(model.power_idle + (model.power_max - model.power_idle) * share / slowed),
        energy: None,
        temperature: Some(temperature),
        memory_temperature: Some(temperature + 4.0),
        sm_clock: Some(if load.is_some() { (model.sm_clock / slowed).round() } else { IDLE_CLOCK }),
        memory_clock: Some(model.memory_clock),
        tensor_active: Some(share / 2.0),
        dram_active: Some(share * 0.4),
        xid: Some(if has_memory_error { XID_DOUBLE_BIT } else { 0.0 }),
        remapped_rows: Some(is_remapped),
        remap_failure: Some(is_remapped),
    }
}

/// The energy that a GPU has used since its first reading.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Energy {
    millijoules: f64,
    /// Time and power in watts of the last reading.
    last: Option<(Timestamp, f64)>,
}

impl Energy {
    /// Adds the time since the last reading, at the power of that reading. Returns the sum.
    pub fn advance(&mut self, watts: f64, now: Timestamp) -> f64 {
        if let Some((then, before)) = self.last {
            self.millijoules += before * (now.duration_since(then).as_secs_f64().max(0.0) * 1000.0);
        }
        self.last = Some((now, watts));
        self.millijoules
    }
}
