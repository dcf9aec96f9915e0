//! This machine as a Node, for pods that run as processes.
//!
//! [`controller`] does the tasks of a kubelet for its Node: it registers the Node from the
//! machine's facts ([`node`]), renews its Lease, and reports conditions. [`lifecycle`] does the
//! tasks of the node lifecycle controller: it follows the Lease, marks the Node of a machine whose
//! process has ended as Unknown, and turns conditions into taints. It ignores simulated nodes,
//! whose state is computed from the time.

mod controller;
pub(crate) mod lifecycle;
mod node;
mod pressure;

use std::sync::Arc;

use berth_pod_runtime::{Devices, Machine};
use berth_runtime::Manager;

pub use lifecycle::install as install_lifecycle;

/// Label of the Nodes of machines that run processes, with the value `process`.
pub const RUNTIME_LABEL: &str = "berth.dev/runtime";
/// Value of [`RUNTIME_LABEL`].
pub const PROCESS: &str = "process";
/// Namespace of the Leases of nodes.
const LEASES: &str = "kube-node-lease";

/// This machine, to be registered as a Node.
#[derive(Clone)]
pub struct MachineNode {
    /// Name of the Node; see [`berth_pod_runtime::MachineFacts::name`].
    pub name: String,
    /// Facts and measurements.
    pub machine: Arc<dyn Machine>,
    /// Devices that pods can request.
    pub devices: Arc<dyn Devices>,
    /// Container runtime that the Node reports: `berth://0.1.0`.
    pub runtime_version: String,
}

impl std::fmt::Debug for MachineNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MachineNode").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Adds the controller of this machine's Node. `kubelet_version` is the Kubernetes version that it
/// reports.
pub fn install(manager: &mut Manager, node: MachineNode, kubelet_version: &str) {
    controller::install(manager, node, kubelet_version);
}
