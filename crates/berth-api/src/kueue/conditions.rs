//! Condition types of Kueue's objects. Their reasons are in [`reasons`](super::reasons).

/// Workload: quota is reserved in a ClusterQueue.
pub const QUOTA_RESERVED: &str = "QuotaReserved";
/// Workload: quota is reserved and all admission checks are ready, so it may run.
pub const ADMITTED: &str = "Admitted";
/// Workload: all its pods were ready at least once.
pub const PODS_READY: &str = "PodsReady";
/// Workload: it must stop and release its quota.
pub const EVICTED: &str = "Evicted";
/// Workload: it was evicted for another workload.
pub const PREEMPTED: &str = "Preempted";
/// Workload: it may be queued again after an eviction.
pub const REQUEUED: &str = "Requeued";
/// Workload: its job has finished.
pub const FINISHED: &str = "Finished";
/// Workload: it is about to be deactivated.
pub const DEACTIVATION_TARGET: &str = "DeactivationTarget";
/// Workload of a pod group: some of its pods were deleted and are not replaced yet.
pub const WAITING_FOR_REPLACEMENT_PODS: &str = "WaitingForReplacementPods";
/// Workload: its admission needs preemption, which its preemption gates forbid.
pub const BLOCKED_ON_PREEMPTION_GATES: &str = "BlockedOnPreemptionGates";
/// ClusterQueue, LocalQueue, AdmissionCheck, MultiKueueCluster: the object is usable.
pub const ACTIVE: &str = "Active";
