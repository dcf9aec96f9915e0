//! The kubelets of the cluster's nodes.
//!
//! What a kubelet decides is in [`lifecycle`], once for all runtimes: the order of containers,
//! restarts, back-off, phase and conditions. Nodes without a runtime are simulated
//! ([`simulated`]): the runs of their pods follow from annotations, configuration and time. Nodes
//! with a [`berth_pod_runtime::PodRuntime`] run real containers ([`process`]).

pub mod lifecycle;
pub mod process;
mod references;
mod resize;
mod resolve;
pub mod simulated;
mod write;
