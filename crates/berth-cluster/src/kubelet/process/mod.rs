//! The kubelet of nodes that run real containers through a [`PodRuntime`].
//!
//! Each pod has a worker: a task that compares the pod with the report of its runtime and takes the
//! next step ([`crate::kubelet::lifecycle`]). Workers are level-triggered. After a restart they
//! find their pods in the API and their containers in the runtime, and continue.

mod admission;
mod grpc;
mod handlers;
mod hooks;
mod hosted;
mod http;
mod jobs;
mod memory;
mod node;
mod probes;
mod refresh;
mod resize;
mod runs;
mod start;
mod stats;
mod stop;
mod worker;
mod workers;

use std::sync::Arc;

use berth_pod_runtime::{ContainerId, Devices, PodRuntime};

use super::options::KubeletOptions;

pub use workers::install;

/// Scheme of container IDs in a pod's status.
const SCHEME: &str = "berth";

/// A node that runs containers.
#[derive(Clone)]
pub struct ProcessNode {
    /// Name of the Node object.
    pub name: String,
    /// The runtime of its pods.
    pub runtime: Arc<dyn PodRuntime>,
    /// Its devices.
    pub devices: Arc<dyn Devices>,
    /// Options of its kubelet.
    pub options: KubeletOptions,
}

impl std::fmt::Debug for ProcessNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProcessNode").field("name", &self.name).field("options", &self.options).finish_non_exhaustive()
    }
}

/// The ID of a run as a pod's status shows it.
pub fn shown_id(id: &ContainerId) -> String {
    format!("{SCHEME}://{id}")
}
