//! What can happen to the world the engine decides about.
//!
//! Events carry newest states, not differences: the engine compares with what it holds and works out itself what
//! changed and which queues have to be looked at again (§4.7). Applying the same event twice changes nothing.

use crate::ids::Name;
use crate::model::{
    AdmissionCheck, ClusterQueue, Cohort, Labels, LocalQueue, Node, NodePod, ResourceFlavor, ResourceList, Time,
    Topology, Workload, WorkloadKey,
};

/// One thing that happened.
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
    /// A Workload was created or changed. Also send it when effective requests change because a RuntimeClass or
    /// LimitRange did.
    WorkloadUpserted(Box<Workload>),
    /// A Workload is gone.
    WorkloadRemoved(WorkloadKey),
    /// Writing the admission of an `Admit` decision failed: take the assumed quota back and queue the workload again.
    AdmissionFailed(WorkloadKey),
    /// Writing the eviction of a victim, or of a workload whose failed node could not be replaced, failed: the next cycle
    /// will ask for it again.
    PreemptionFailed(WorkloadKey),
    /// Give the waiting workloads of a cluster queue's whole cohort tree another chance, for a reason the engine
    /// cannot see (§4.7).
    FlushRequested {
        /// The cluster queue.
        cluster_queue: Name,
    },
    /// Usage of a local queue recorded by an earlier life of the process (§16.5); taken once, before the first sample.
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
