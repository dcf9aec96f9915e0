//! Events: changes of the state that decisions are based on.
//!
//! Events carry newest states, not differences. The engine compares a state with the one it holds,
//! and derives what changed and which queues to reconsider (§4.7). Applying the same event twice
//! changes nothing.

use crate::ids::Name;
use crate::model::{
    AdmissionCheck, ClusterQueue, Cohort, Labels, LocalQueue, Node, NodePod, ResourceFlavor, ResourceList, Time,
    Topology, Workload, WorkloadKey,
};

/// One change of the state.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A ClusterQueue was created or changed.
    ClusterQueueUpserted(ClusterQueue),
    /// A ClusterQueue is gone.
    ClusterQueueRemoved(Name),
    /// A Cohort was created or changed.
    CohortUpserted(Cohort),
    /// A Cohort object is gone; queues and cohorts that still name it keep it alive without quota.
    CohortRemoved(Name),
    /// A LocalQueue was created or changed.
    LocalQueueUpserted(LocalQueue),
    /// A LocalQueue is gone.
    LocalQueueRemoved {
        /// Namespace.
        namespace: Name,
        /// Name.
        name: Name,
    },
    /// A ResourceFlavor was created or changed.
    FlavorUpserted(ResourceFlavor),
    /// A ResourceFlavor is gone.
    FlavorRemoved(Name),
    /// A Topology was created or changed.
    TopologyUpserted(Topology),
    /// A Topology is gone.
    TopologyRemoved(Name),
    /// An AdmissionCheck was created or changed.
    AdmissionCheckUpserted(AdmissionCheck),
    /// An AdmissionCheck is gone.
    AdmissionCheckRemoved(Name),
    /// A Namespace was created or its labels changed.
    NamespaceUpserted {
        /// Name.
        name: Name,
        /// Labels.
        labels: Labels,
    },
    /// A Namespace is gone.
    NamespaceRemoved(Name),
    /// A Node was created or changed.
    NodeUpserted(Node),
    /// A Node is gone.
    NodeRemoved(Name),
    /// A pod outside topology-aware scheduling was bound to a node.
    NodePodUpserted(NodePod),
    /// Such a pod ended or is gone.
    NodePodRemoved {
        /// Namespace.
        namespace: Name,
        /// Name.
        name: Name,
    },
    /// A Workload was created or changed. Also sent when its effective requests change because a
    /// RuntimeClass or LimitRange did.
    WorkloadUpserted(Box<Workload>),
    /// A Workload is gone.
    WorkloadRemoved(WorkloadKey),
    /// Writing the admission of an `Admit` decision failed. The engine takes the assumed quota
    /// back and requeues the workload.
    AdmissionFailed(WorkloadKey),
    /// Writing the eviction of a victim failed, or that of a workload whose failed node could not
    /// be replaced. The next cycle requests it again.
    PreemptionFailed(WorkloadKey),
    /// Requests another try for the inadmissible workloads of a cluster queue's whole cohort tree,
    /// for a reason the engine cannot see (§4.7).
    FlushRequested {
        /// The cluster queue.
        cluster_queue: Name,
    },
    /// Usage of a local queue recorded by an earlier run of the process (§16.5). Applied once,
    /// before the first sample.
    LocalQueueUsageRestored {
        /// Namespace.
        namespace: Name,
        /// Name.
        name: Name,
        /// Consumed resources.
        consumed: ResourceList,
        /// When they were recorded.
        at: Time,
    },
}
