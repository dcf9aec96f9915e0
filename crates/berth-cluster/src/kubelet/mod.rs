//! The kubelets of the cluster's nodes.
//!
//! The decisions of a kubelet are in [`lifecycle`] and shared by all runtimes: the order of
//! containers, restarts, back-off, phase and conditions. Nodes without a runtime are simulated
//! ([`simulated`]): the runs of their pods are computed from annotations, configuration and time.
//! Nodes with a [`berth_pod_runtime::PodRuntime`] run real containers ([`process`]).

pub mod lifecycle;
pub mod options;
pub mod process;
mod references;
mod resize;
mod resolve;
pub mod simulated;
mod write;
