//! Workloads: their requests, and the state that their objects report.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Labels, NodeAffinity, ResourceList, Time, Toleration, TopologyAssignment, TopologyRequest};
use crate::ids::Name;

/// Namespace and name of a workload.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkloadKey {
    /// Namespace.
    pub namespace: Name,
    /// Name.
    pub name: Name,
}

impl WorkloadKey {
    /// The key of `namespace/name`.
    pub fn new(namespace: impl Into<Name>, name: impl Into<Name>) -> Self {
        WorkloadKey { namespace: namespace.into(), name: name.into() }
    }
}

/// The newest known state of a Workload object, restricted to what decisions depend on.
///
/// The engine derives every transition (queued, reserved, admitted, evicted, released, finished) by
/// comparing the newest state with the previous one. Callers need not classify changes.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// Namespace and name.
    pub key: WorkloadKey,
    /// UID; the last tie-break of every order.
    pub uid: Name,
    /// `metadata.generation`.
    pub generation: i64,
    /// `metadata.creationTimestamp`.
    pub created: Time,
    /// `spec.queueName`, a local queue of the same namespace. Empty if it is not set.
    pub queue: Name,
    /// `spec.priority`.
    pub priority: i64,
    /// Annotation `kueue.x-k8s.io/priority-boost`. Used only with gate PriorityBoost.
    pub priority_boost: i32,
    /// `spec.active`.
    pub active: bool,
    /// True if `metadata.deletionTimestamp` is set. The workload gets no new quota. Quota that it
    /// holds stays in use until the object is deleted.
    pub deleting: bool,
    /// The workload's pods, with effective requests (§2).
    pub pod_sets: Vec<PodSet>,
    /// Why no queue may admit the workload although its requests are known: requests above limits,
    /// or LimitRange violations (§2.8).
    pub inadmissible: Option<String>,
    /// True if annotation `kueue.x-k8s.io/admission-gated-by` names at least one gate.
    pub admission_gated: bool,
    /// True if a preemption gate of the workload is closed.
    pub preemption_gated: bool,
    /// `status.admission`, when QuotaReserved is True.
    pub admission: Option<Admission>,
    /// When QuotaReserved became True.
    pub reserved_at: Option<Time>,
    /// True if condition Admitted is True.
    pub admitted: bool,
    /// True if condition Finished is True.
    pub finished: bool,
    /// True if condition QuotaReserved is False with reason OnHold.
    pub on_hold: bool,
    /// True if WaitingForReplacementPods is True.
    pub waiting_for_replacement_pods: bool,
    /// True if condition PodsReady is True.
    pub pods_ready: bool,
    /// Condition Evicted, when True.
    pub evicted: Option<Eviction>,
    /// Condition Preempted, when True.
    pub preempted: Option<Eviction>,
    /// Status of condition Requeued, if present: with `Some(false)`, the workload is not
    /// considered.
    pub requeued: Option<bool>,
    /// `status.requeueState.requeueAt`.
    pub requeue_at: Option<Time>,
    /// States of its admission checks.
    pub checks: Vec<CheckStatus>,
    /// Nodes of its topology assignment that failed.
    pub unhealthy_nodes: Vec<Name>,
    /// True if annotation `kueue.x-k8s.io/elastic-job` is set: the job may change its size while it
    /// runs (§13).
    pub elastic: bool,
    /// The elastic slice that this workload replaces (§13).
    pub replaces: Option<WorkloadKey>,
    /// Set if this workload is a concurrent-admission variant (§23).
    pub variant: Option<Variant>,
    /// True if label `kueue.x-k8s.io/concurrent-admission-parent` is set: the workload's variants
    /// wait in its place (§23).
    pub has_variants: bool,
    /// True if a single Pod owns it. With gate SkipReassignmentForPodOwnedWorkloads it keeps its
    /// nodes (§15.5).
    pub owned_by_pod: bool,
    /// Label `kueue.x-k8s.io/job-uid`, for messages.
    pub job_uid: Option<Name>,
}

impl Workload {
    /// A pending workload with the API's defaults and no pod sets.
    pub fn new(namespace: impl Into<Name>, name: impl Into<Name>) -> Self {
        Workload {
            key: WorkloadKey::new(namespace, name),
            uid: Name::from(""),
            generation: 0,
            created: Time::UNSET,
            queue: Name::from(""),
            priority: 0,
            priority_boost: 0,
            active: true,
            deleting: false,
            pod_sets: Vec::new(),
            inadmissible: None,
            admission_gated: false,
            preemption_gated: false,
            admission: None,
            reserved_at: None,
            admitted: false,
            finished: false,
            on_hold: false,
            waiting_for_replacement_pods: false,
            pods_ready: false,
            evicted: None,
            preempted: None,
            requeued: None,
            requeue_at: None,
            checks: Vec::new(),
            unhealthy_nodes: Vec::new(),
            elastic: false,
            replaces: None,
            variant: None,
            has_variants: false,
            owned_by_pod: false,
            job_uid: None,
        }
    }
}

/// Equal pods that start together.
#[derive(Debug, Clone, PartialEq)]
pub struct PodSet {
    /// Name.
    pub name: Name,
    /// `spec.podSets[].count`.
    pub count: i32,
    /// Minimum number of pods with which it can start; `None` if it cannot be reduced.
    pub min_count: Option<i32>,
    /// Pods that no longer need their quota (`status.reclaimablePods`).
    pub reclaimable: i32,
    /// Quota that one pod needs: its requests after exclusion and transformation (§2.3).
    pub requests: ResourceList,
    /// Fields of the pods that placement depends on, shared between equal workloads.
    pub template: Arc<PodTemplate>,
    /// Topology request.
    pub topology: Option<TopologyRequest>,
}

/// Fields of a pod template that placement depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct PodTemplate {
    /// The pod's own requests, before exclusion and transformation; topology placement uses these
    /// (§14.1).
    pub requests: ResourceList,
    /// `spec.nodeSelector`.
    pub node_selector: Labels,
    /// `spec.affinity.nodeAffinity`.
    pub affinity: NodeAffinity,
    /// `spec.tolerations`.
    pub tolerations: Vec<Toleration>,
    /// Digest of the other pod fields that equivalence depends on (§4.8): containers' own
    /// requests, runtime class, pod priority, spread constraints, overhead, resource claims. Only
    /// equality matters.
    pub shape: u64,
}

/// Quota assigned to a workload, and the domains of its pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// Cluster queue of the quota.
    pub cluster_queue: Name,
    /// One assignment per pod set.
    pub pod_sets: Vec<PodSetAssignment>,
}

/// Quota assigned to one pod set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodSetAssignment {
    /// Pod set name.
    pub name: Name,
    /// Flavor per resource.
    pub flavors: BTreeMap<Name, Name>,
    /// Total amounts for all its pods.
    pub usage: ResourceList,
    /// Number of admitted pods. `None` if the object does not set it: then it is the pod set's
    /// count.
    pub count: Option<i32>,
    /// Topology domains.
    pub topology: Option<TopologyAssignment>,
    /// Delayed topology: `Some(true)` while it is pending, `Some(false)` once it was chosen
    /// (§14.3).
    pub delayed_topology_pending: Option<bool>,
}

/// Condition Evicted or Preempted of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eviction {
    /// The condition's reason.
    pub reason: Name,
    /// The condition's lastTransitionTime.
    pub at: Time,
}

/// State of one admission check of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckStatus {
    /// Check name.
    pub name: Name,
    /// State.
    pub state: CheckState,
    /// Node selector entries that its podSetUpdates add, per pod set.
    pub node_selectors: BTreeMap<Name, Labels>,
    /// Tolerations that its podSetUpdates add, per pod set.
    pub tolerations: BTreeMap<Name, Vec<Toleration>>,
}

/// `status.admissionChecks[].state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CheckState {
    /// The check has not decided.
    Pending,
    /// The check passed.
    Ready,
    /// The workload is evicted and requeued.
    Retry,
    /// The workload is deactivated.
    Rejected,
}

/// A concurrent-admission variant (§23).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variant {
    /// The parent workload.
    pub parent: Option<Name>,
    /// The flavors that it may use.
    pub allowed_flavors: Vec<Name>,
}
