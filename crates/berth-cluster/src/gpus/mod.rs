//! GPUs of nodes as metrics, under the names and labels of NVIDIA's dcgm-exporter.
//!
//! For nodes with a pod runtime, values are those of the driver, sampled as CPU and memory are
//! ([`crate::metrics`]). GPUs of all other nodes are simulated: what they report follows from the
//! pods that hold them ([`simulated`]). A GPU that a pod holds has the labels `namespace`, `pod`
//! and `container`.
//!
//! Source: dcgm-exporter 4, `etc/default-counters.csv` and its renderer. The node's name is the
//! label `Hostname`, as in releases, and `hostname`, as in its main branch.

mod assign;
mod models;
mod simulated;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::berth::NodeFaults;
pub(crate) use berth_api::berth::gpus::GPU;
use berth_api::pod::node_of;
use berth_apimachinery::exposition::{Exposition, Family, FamilyId, Labels};
use berth_pod_runtime::{GpuReading, GpuValues, PodUid};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use parking_lot::Mutex;

use assign::Holder;
pub use simulated::{GPU_MEMORY_USAGE, GPU_USAGE};

/// The GPUs of a cluster. Clones share them.
#[derive(Clone, Default)]
pub struct Gpus(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The last readings of real GPUs, by node.
    real: BTreeMap<String, Vec<GpuReading>>,
    /// Holders and energy of simulated GPUs, by node.
    simulated: BTreeMap<String, Vec<Slot>>,
}

/// A simulated GPU between two requests.
#[derive(Clone, Debug, Default, PartialEq)]
struct Slot {
    holder: Option<Holder>,
    energy: simulated::Energy,
}

impl Gpus {
    /// True if a pod requests GPUs, is bound to a node and has not ended.
    pub(crate) fn uses(pod: &Pod) -> bool {
        assign::holders(pod).next().is_some()
    }

    /// Replaces the readings of a node with real GPUs. A node without readings has none.
    pub(crate) fn measured(&self, node: &str, readings: Vec<GpuReading>) {
        self.0.lock().real.insert(node.to_owned(), readings);
    }

    /// What the GPUs of a node report. `pods` are all pods on the node.
    pub fn of_node(&self, node: &Node, pods: &[&Pod], now: Timestamp) -> Vec<GpuReading> {
        let pods: Vec<&Pod> = pods.iter().copied().filter(|pod| Self::uses(pod)).collect();
        self.0.lock().readings(node, &pods, now)
    }

    /// Writes the metrics of the GPUs of these nodes. `pods` are the pods that use GPUs.
    pub(crate) fn write(&self, exposition: &mut Exposition, nodes: &[Arc<Node>], pods: &[Arc<Pod>], now: Timestamp) {
        let families: Vec<_> = FAMILIES.iter().map(|(family, value)| (exposition.family(family), *value)).collect();
        let mut on_node: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
        for pod in pods {
            let node = node_of(pod).unwrap_or_default();
            on_node.entry(node).or_default().push(pod);
        }
        let mut state = self.0.lock();
        let names: BTreeSet<&str> = nodes.iter().filter_map(|node| node.metadata.name.as_deref()).collect();
        state.simulated.retain(|name, _| names.contains(name.as_str()));
        for node in nodes {
            let name = node.name_any();
            let pods = on_node.remove(name.as_str()).unwrap_or_default();
            for reading in &state.readings(node, &pods, now) {
                write(exposition, &families, &name, reading, &pods);
            }
        }
    }
}

impl State {
    /// The last readings of a node's real GPUs, or those of simulated ones. `pods` are those that
    /// use GPUs.
    fn readings(&mut self, node: &Node, pods: &[&Pod], now: Timestamp) -> Vec<GpuReading> {
        let name = node.name_any();
        match self.real.get(&name) {
            Some(readings) => readings.clone(),
            None => simulate(self.simulated.entry(name).or_default(), node, pods, now),
        }
    }
}

/// The readings of a simulated node's GPUs. Assigns free GPUs to the pods that have none yet.
fn simulate(slots: &mut Vec<Slot>, node: &Node, pods: &[&Pod], now: Timestamp) -> Vec<GpuReading> {
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    let count = allocatable.and_then(|it| it.get(GPU)).and_then(|amount| amount.0.parse().ok()).unwrap_or(0);
    // A device plugin that starts late, or a node that does not report, has no exporter either.
    let faults = NodeFaults::of_annotations(node.annotations()).unwrap_or_default();
    if count == 0 || faults.not_ready || !crate::pools::is_ready(node) {
        return Vec::new();
    }
    slots.resize(count, Slot::default());
    let mut holders: Vec<Option<Holder>> = slots.iter_mut().map(|slot| slot.holder.take()).collect();
    assign::assign(&mut holders, pods);
    let mut readings = Vec::new();
    for (index, (slot, holder)) in slots.iter_mut().zip(holders).enumerate() {
        slot.holder = holder;
        let pod =
            slot.holder.as_ref().and_then(|it| pods.iter().find(|pod| pod.metadata.uid.as_deref() == Some(&it.uid)));
        let container = slot.holder.as_ref().map_or("", |it| it.container.as_str());
        let load = pod.and_then(|pod| simulated::load(pod, container));
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        let mut reading = simulated::reading(node, index, load, &faults);
        reading.holder = slot.holder.as_ref().map(|it| (PodUid(it.uid.clone()), it.container.clone()));
        reading.values.energy = Some(slot.energy.advance(reading.values.power.unwrap_or(0.0), now));
        readings.push(reading);
    }
    readings
}

fn write(
    exposition: &mut Exposition,
    families: &[(FamilyId, fn(&GpuValues) -> Option<f64>)],
    node: &str,
    reading: &GpuReading,
    pods: &[&Pod],
) {
    let index = reading.index.to_string();
    let mut labels = Labels::of(&[
        ("gpu", &index),
        ("UUID", &reading.uuid),
        ("pci_bus_id", &reading.pci_bus_id),
        ("device", &format!("nvidia{index}")),
        ("modelName", &reading.model),
        ("Hostname", node),
        ("hostname", node),
    ]);
    if !reading.driver.is_empty() {
        labels.push("DCGM_FI_DRIVER_VERSION", &reading.driver);
    }
    if let Some((uid, container)) = &reading.holder
        && let Some(pod) = pods.iter().find(|pod| pod.metadata.uid.as_deref() == Some(uid.0.as_str()))
    {
        labels.push("container", container);
        labels.push("namespace", pod.namespace().as_deref().unwrap_or_default());
        labels.push("pod", &pod.name_any());
    }
    for (family, value) in families {
        if let Some(value) = value(&reading.values) {
            exposition.sample(*family, &labels, &[], value);
        }
    }
}

/// The families and their values.
#[rustfmt::skip]
const FAMILIES: &[(Family, fn(&GpuValues) -> Option<f64>)] = &[
    (Family::gauge("DCGM_FI_DEV_SM_CLOCK", "Clock of a GPU's multiprocessors (in MHz)."), |it| it.sm_clock),
    (Family::gauge("DCGM_FI_DEV_MEM_CLOCK", "Clock of a GPU's memory (in MHz)."), |it| it.memory_clock),
    (Family::gauge("DCGM_FI_DEV_MEMORY_TEMP", "Temperature of a GPU's memory (in C)."), |it| it.memory_temperature),
    (Family::gauge("DCGM_FI_DEV_GPU_TEMP", "Temperature of a GPU (in C)."), |it| it.temperature),
    (Family::gauge("DCGM_FI_DEV_POWER_USAGE", "Power of a GPU (in W)."), |it| it.power),
    (Family::counter("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Energy that a GPU used since its start (in mJ)."), |it| it.energy),
    (Family::gauge("DCGM_FI_DEV_GPU_UTIL", "Utilization of a GPU (in %)."), |it| it.utilization),
    (Family::gauge("DCGM_FI_DEV_MEM_COPY_UTIL", "Utilization of a GPU's memory (in %)."), |it| it.memory_utilization),
    (Family::gauge("DCGM_FI_DEV_XID_ERRORS", "Code of the last XID error of a GPU."), |it| it.xid),
    (Family::gauge("DCGM_FI_DEV_FB_FREE", "Free memory of a GPU (in MiB)."), |it| it.memory_free),
    (Family::gauge("DCGM_FI_DEV_FB_USED", "Used memory of a GPU (in MiB)."), |it| it.memory_used),
    (Family::gauge("DCGM_FI_DEV_FB_RESERVED", "Reserved memory of a GPU (in MiB)."), |it| it.memory_reserved),
    (Family::counter("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "Memory rows of a GPU replaced after uncorrectable errors."), |it| it.remapped_rows),
    (Family::gauge("DCGM_FI_DEV_ROW_REMAP_FAILURE", "1 if a memory row of a GPU could not be replaced."), |it| it.remap_failure),
    (Family::gauge("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Share of the time in which a GPU's engine was active."), |it| Some(it.utilization? / 100.0)),
    (Family::gauge("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Share of the cycles in which a GPU's tensor cores were active."), |it| it.tensor_active),
    (Family::gauge("DCGM_FI_PROF_DRAM_ACTIVE", "Share of the cycles in which a GPU's memory interface was active."), |it| it.dram_active),
];
