//! Labels, annotations, finalizers, conditions and reasons the controllers read and write, spelled as Kueue spells them.

/// Workload condition: it holds quota.
pub const QUOTA_RESERVED: &str = "QuotaReserved";
/// Workload condition: it may run.
pub const ADMITTED: &str = "Admitted";
/// Workload condition: it is done.
pub const FINISHED: &str = "Finished";
/// Workload condition: its pods run.
pub const PODS_READY: &str = "PodsReady";
/// Workload condition: it was thrown out.
pub const EVICTED: &str = "Evicted";
/// Workload condition: it was thrown out for another one.
pub const PREEMPTED: &str = "Preempted";
/// Workload condition: it may queue again.
pub const REQUEUED: &str = "Requeued";
/// Workload condition: pods of its group are gone and not replaced yet.
pub const WAITING_FOR_REPLACEMENT_PODS: &str = "WaitingForReplacementPods";
/// Workload condition: it is to be deactivated.
pub const DEACTIVATION_TARGET: &str = "DeactivationTarget";
/// Workload condition: it may not preempt yet.
pub const BLOCKED_ON_PREEMPTION_GATES: &str = "BlockedOnPreemptionGates";
/// Condition of queues, checks: usable.
pub const ACTIVE: &str = "Active";

/// Eviction reason: another workload took the quota.
pub const EVICTED_BY_PREEMPTION: &str = "Preempted";
/// Eviction reason: pods were not ready in time.
pub const EVICTED_BY_PODS_READY_TIMEOUT: &str = "PodsReadyTimeout";
/// Eviction reason: an admission check said Retry.
pub const EVICTED_BY_ADMISSION_CHECK: &str = "AdmissionCheck";
/// Eviction reason: the cluster queue was stopped and drained.
pub const EVICTED_BY_CLUSTER_QUEUE_STOPPED: &str = "ClusterQueueStopped";
/// Eviction reason: the local queue was stopped and drained.
pub const EVICTED_BY_LOCAL_QUEUE_STOPPED: &str = "LocalQueueStopped";
/// Eviction reason: nodes failed.
pub const EVICTED_BY_NODE_FAILURES: &str = "NodeFailures";
/// Eviction reason: `spec.active` is false; `DueTo<cause>` is appended when a controller did it.
pub const EVICTED_BY_DEACTIVATION: &str = "Deactivated";
/// PodsReady=False before the first time.
pub const WAIT_FOR_START: &str = "WaitForStart";
/// PodsReady=False after a pod failed.
pub const WAIT_FOR_RECOVERY: &str = "WaitForRecovery";
