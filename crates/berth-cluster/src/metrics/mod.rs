//! Usage in the resource metrics API (`metrics.k8s.io`): CPU and memory of pods and nodes.
//!
//! For nodes with a pod runtime, usage is that of their control groups or processes ([`Sampler`]).
//! All other nodes are simulated, and so is their usage ([`simulated`]). This module computes usage
//! and documents; `berth-embedded` serves them.

mod documents;
mod machine;
mod sampler;
pub mod simulated;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::pod::node_of;
use berth_pod_runtime::Devices;
use berth_runtime::{Clock, Manager};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use parking_lot::RwLock;

use crate::gpus::{GPU as NVIDIA_GPU, Gpus};
use crate::kubelet::process::ProcessNode;

pub use documents::{node_metrics, pod_metrics};
pub use sampler::{SAMPLE_INTERVAL, Sampler};

/// The API group.
pub const GROUP: &str = "metrics.k8s.io";
/// Its version.
pub const VERSION: &str = "v1beta1";

/// CPU and memory in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU in billionths of a core, the average of the window.
    pub cpu_nano: u64,
    /// Memory in bytes, without reclaimable page cache.
    pub memory_bytes: u64,
}

impl Usage {
    /// The sum of two amounts.
    pub fn plus(self, other: Self) -> Self {
        Self {
            cpu_nano: self.cpu_nano.saturating_add(other.cpu_nano),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
        }
    }
}

/// A measurement over a window of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured<T> {
    /// End of the window.
    pub at: Timestamp,
    /// Length of the window.
    pub window: Duration,
    /// Measured values.
    pub figures: T,
}

/// Usage of each container of a pod, by name.
pub type PodUsage = Measured<BTreeMap<String, Usage>>;

/// Source of the usage of one node.
pub trait MetricsSource: Send + Sync {
    /// Usage of a pod on the node; `None` before it was measured twice.
    fn pod(&self, pod: &Pod) -> Option<PodUsage>;
    /// Usage of the whole node; `None` before it was measured twice.
    fn node(&self) -> Option<Measured<Usage>>;
}

/// Sources of usage by node. Clones share them.
#[derive(Clone, Default)]
pub struct ClusterMetrics {
    sources: Arc<RwLock<BTreeMap<String, Arc<dyn MetricsSource>>>>,
}

impl std::fmt::Debug for ClusterMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterMetrics").field("nodes", &self.sources.read().keys().collect::<Vec<_>>()).finish()
    }
}

/// Measures the pods of process nodes from now on.
pub fn install(manager: &mut Manager, metrics: &ClusterMetrics, gpus: &Gpus, nodes: &[ProcessNode]) {
    for node in nodes {
        let sampler = Sampler::new(node.runtime.clone(), manager.clock());
        metrics.set_source(&node.name, sampler.clone());
        manager.task(&format!("metrics of node {}", node.name), sampler.run());
        let has_gpus = node.devices.capacity().contains_key(NVIDIA_GPU);
        if has_gpus {
            let sample = sample_gpus(gpus.clone(), node.name.clone(), node.devices.clone(), manager.clock());
            manager.task(&format!("GPUs of node {}", node.name), sample);
        }
    }
}

/// Reads what the drivers report about a node's GPUs, forever.
async fn sample_gpus(gpus: Gpus, node: String, devices: Arc<dyn Devices>, clock: Clock) {
    loop {
        let devices = devices.clone();
        // The driver's tool takes seconds if the driver has to start.
        match tokio::task::spawn_blocking(move || devices.readings()).await {
            Ok(readings) => gpus.measured(&node, readings),
            Err(error) => tracing::warn!(%node, %error, "cannot read the GPUs"),
        }
        clock.sleep(SAMPLE_INTERVAL).await;
    }
}

impl ClusterMetrics {
    /// Sets the source of a node. Nodes without a source are simulated.
    pub fn set_source(&self, node: &str, source: Arc<dyn MetricsSource>) {
        self.sources.write().insert(node.to_owned(), source);
    }

    fn source(&self, node: &str) -> Option<Arc<dyn MetricsSource>> {
        self.sources.read().get(node).cloned()
    }

    /// Usage of a pod; `None` if it does not run or has not been measured yet.
    pub fn of_pod(&self, pod: &Pod, now: Timestamp) -> Option<PodUsage> {
        let node = node_of(pod).unwrap_or_default();
        match self.source(node) {
            Some(source) => source.pod(pod),
            // The pods of hosted nodes are measured with those of another node.
            None => {
                let sources = self.sources.read();
                sources.values().find_map(|source| source.pod(pod)).or_else(|| simulated::pod(pod, now))
            }
        }
    }

    /// Usage of a node; `None` if it is not ready or has not been measured yet. `pods` are the pods
    /// that are bound to it.
    pub fn of_node<'a>(
        &self,
        node: &Node,
        pods: impl Iterator<Item = &'a Pod>,
        now: Timestamp,
    ) -> Option<Measured<Usage>> {
        match self.source(&node.name_any()) {
            Some(source) => source.node(),
            None => simulated::node(node, pods, now),
        }
    }
}
