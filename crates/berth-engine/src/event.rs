//! Events: changes to the state that decisions are based on.
//!
//! Events carry the newest states, not differences. The engine compares a state with the state that
//! it has, and derives the changes and the queues to reconsider (§4.7). Applying the same event
//! twice changes nothing.

use crate::ids::Name;
use crate::memory::WaitingPreemptor;
use crate::model::{
    AdmissionCheck, ClusterQueue, Cohort, Labels, LocalQueue, Node, NodePod, ResourceFlavor, ResourceList, Time,
    Topology, Workload, WorkloadKey,
};

/// One change to the state.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A ClusterQueue was created or changed.
    ClusterQueueUpserted(ClusterQueue),
    /// A ClusterQueue was deleted.
    ClusterQueueRemoved(Name),
    /// A Cohort was created or changed.
    CohortUpserted(Cohort),
    /// A Cohort object was deleted. Queues and cohorts that still name it keep it alive without
    /// quota.
    CohortRemoved(Name),
    /// A LocalQueue was created or changed.
    LocalQueueUpserted(LocalQueue),
    /// A LocalQueue was deleted.
    LocalQueueRemoved {
        /// Namespace.
        namespace: Name,
        /// Name.
        name: Name,
    },
    /// A ResourceFlavor was created or changed.
    FlavorUpserted(ResourceFlavor),
    /// A ResourceFlavor was deleted.
    FlavorRemoved(Name),
    /// A Topology was created or changed.
    TopologyUpserted(Topology),
    /// A Topology was deleted.
    TopologyRemoved(Name),
    /// An AdmissionCheck was created or changed.
    AdmissionCheckUpserted(AdmissionCheck),
    /// An AdmissionCheck was deleted.
    AdmissionCheckRemoved(Name),
    /// A Namespace was created or its labels changed.
    NamespaceUpserted {
        /// Name.
        name: Name,
        /// Labels.
        labels: Labels,
    },
    /// A Namespace was deleted.
    NamespaceRemoved(Name),
    /// A Node was created or changed.
    NodeUpserted(Node),
    /// A Node was deleted.
    NodeRemoved(Name),
    /// A pod outside topology-aware scheduling was bound to a node.
    NodePodUpserted(NodePod),
    /// A pod outside topology-aware scheduling ended or was deleted.
    NodePodRemoved {
        /// Namespace.
        namespace: Name,
        /// Name.
        name: Name,
    },
    /// A Workload was created or changed. Also sent if its effective requests change with a
    /// RuntimeClass or LimitRange.
    WorkloadUpserted(Box<Workload>),
    /// A Workload was deleted.
    WorkloadRemoved(WorkloadKey),
    /// Writing the admission of an `Admit` decision failed. The engine takes the assumed quota back
    /// and requeues the workload.
    AdmissionFailed(WorkloadKey),
    /// Writing an eviction failed: that of a victim, or of a workload whose failed node could not
    /// be replaced. The next cycle requests the eviction again.
    PreemptionFailed(WorkloadKey),
    /// Requests another try for the inadmissible workloads of a cluster queue's whole cohort tree,
    /// for a reason the engine cannot see (§4.7).
    FlushRequested {
        /// The cluster queue.
        cluster_queue: Name,
    },
    /// Usage of a local queue, recorded by an earlier run of the process (§16.5). Applied once,
    /// before the first sample.
    LocalQueueUsageRestored {
        /// Namespace.
        namespace: Name,
        /// Name.
        name: Name,
        /// Consumed resources.
        consumed: ResourceList,
        /// Time at which it was recorded.
        at: Time,
    },
    /// A workload waits for preemptions that it started in an earlier engine
    /// ([`crate::Engine::memory`]). Follows the event of the workload.
    PreemptorRestored(WaitingPreemptor),
}
