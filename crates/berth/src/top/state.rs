//! What `berth top` knows of the cluster: objects of the kinds that it follows, and how current
//! they are.

use std::sync::Arc;

use berth_api::kueue::v1beta2::{ClusterQueue, Cohort, LocalQueue, Workload};
use berth_dashboard::gpu_use::GpuUses;
use berth_runtime::Sight;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Node, Pod};

/// The objects of one kind.
#[derive(Clone, Debug)]
pub struct Kind<K> {
    /// The objects, by namespace and name.
    pub objects: Vec<Arc<K>>,
    /// How current they are; `None` while no view needs them.
    pub sight: Option<Sight>,
}

impl<K> Default for Kind<K> {
    fn default() -> Self {
        Self { objects: Vec::new(), sight: None }
    }
}

impl<K> Kind<K> {
    /// True if every object of the cluster is known.
    pub fn is_whole(&self) -> bool {
        matches!(self.sight, Some(Sight::Live(None) | Sight::Lost(_)))
    }

    /// What limits the objects, as a sentence; `None` if all are shown as they are. `plural` is the
    /// kind's name in the API.
    pub fn limits(&self, plural: &str) -> Option<String> {
        match self.sight.as_ref()? {
            Sight::Live(None) | Sight::Listing => None,
            Sight::Live(Some(namespace)) => Some(format!(
                "Only the {plural} of namespace {namespace} are shown: you may not list those of all namespaces."
            )),
            Sight::Forbidden(message) => Some(format!("You may not list {plural}: {message}")),
            Sight::NotServed => Some(format!("The cluster does not serve {plural}.")),
            Sight::Lost(error) => Some(format!("The {plural} may be out of date: {error}")),
        }
    }

    /// True until the first list has ended.
    pub fn is_loading(&self) -> bool {
        matches!(self.sight, None | Some(Sight::Listing))
    }
}

/// The objects of the cluster.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Time on the cluster's clock.
    pub now: Timestamp,
    /// ClusterQueues.
    pub queues: Kind<ClusterQueue>,
    /// Cohorts.
    pub cohorts: Kind<Cohort>,
    /// LocalQueues.
    pub local_queues: Kind<LocalQueue>,
    /// Workloads, without pod templates.
    pub workloads: Kind<Workload>,
    /// Nodes, without images.
    pub nodes: Kind<Node>,
    /// What their GPUs report, as far as the cluster has it.
    pub gpu_use: GpuUses,
    /// Pods, with their requests only.
    pub pods: Kind<Pod>,
    /// Events.
    pub events: Kind<Event>,
}
