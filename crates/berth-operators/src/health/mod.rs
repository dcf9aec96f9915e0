//! Health of nodes: what their labels, taints and conditions take away from managed pods.
//!
//! The functions are pure. [`NodeHealth::of`] evaluates one node, [`unschedulable`] adds up what
//! all nodes lack, and [`affinity()`] is the node affinity of a pod that must avoid unhealthy
//! nodes. AppWrappers, the slack queue and the [`monitor`] of other jobs share them.
//!
//! Source: AppWrapper 1.2 ("Node health monitor"), and 0.30 where it differs. Beyond it, the effect
//! of cordons, of taints and of missing reports can be configured.

mod affinity;
pub mod monitor;
mod node;
mod pod;

pub use affinity::{affinity, avoid_unhealthy_nodes, inject};
pub use berth_api::berth::{NodeEffect, NodeHealthConfiguration, ResourceTaint, TaintEffect, WholeNodeConfiguration};
pub use node::{Amounts, NodeHealth, by_node, capacity, unschedulable};
pub use pod::requested;
