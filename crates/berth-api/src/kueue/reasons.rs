//! Reasons of the conditions of Kueue's objects, one module per condition or group of conditions.
//!
//! Reasons that `berth-engine` decides (why a workload is pending, why it was preempted, why a
//! ClusterQueue is inactive) are defined there, because it depends on no other crate.
//!
//! Source: Kueue's API; KEP-10852 for the reasons of unadmitted workloads.

/// Reasons of `QuotaReserved` and `Admitted`.
pub mod admission {
    /// True: quota is reserved.
    pub const QUOTA_RESERVED: &str = "QuotaReserved";
    /// True: admitted.
    pub const ADMITTED: &str = "Admitted";
    /// `Admitted` is false because there is no reservation.
    pub const NO_RESERVATION: &str = "NoReservation";
    /// `Admitted` is false because checks are not ready.
    pub const UNSATISFIED_ADMISSION_CHECKS: &str = "UnsatisfiedAdmissionChecks";
    /// `Admitted` is false because the topology is not chosen yet.
    pub const PENDING_DELAYED_TOPOLOGY_REQUESTS: &str = "PendingDelayedTopologyRequests";
    /// Not evaluated yet, or to be evaluated again.
    pub const PENDING_EVALUATION: &str = "PendingEvaluation";
    /// The LocalQueue or ClusterQueue does not exist, or the ClusterQueue can never admit the
    /// workload.
    pub const MISCONFIGURED: &str = "Misconfigured";
    /// The LocalQueue or ClusterQueue is stopped or inactive.
    pub const SUSPENDED: &str = "Suspended";
    /// A controller named by annotation `admission-gated-by` has not released the workload.
    pub const ADMISSION_GATED: &str = "AdmissionGated";
    /// The workload is on hold: its job has no pods at present.
    pub const ON_HOLD: &str = "OnHold";
    /// The workload is not active.
    pub const DEACTIVATED: &str = "Deactivated";
    /// Reason of earlier versions, without granular reasons.
    pub const LEGACY_PENDING: &str = "Pending";
    /// Reason of earlier versions, without granular reasons.
    pub const LEGACY_INADMISSIBLE: &str = "Inadmissible";
    /// Reason of earlier versions, without granular reasons.
    pub const LEGACY_WAITING: &str = "Waiting";
    /// Reason of earlier versions, without granular reasons.
    pub const LEGACY_UNSATISFIED_CHECKS: &str = "UnsatisfiedChecks";
    /// Reason of earlier versions, without granular reasons.
    pub const LEGACY_NO_RESERVATION_UNSATISFIED_CHECKS: &str = "NoReservationUnsatisfiedChecks";
}

/// Reasons of `Evicted`, and of `Requeued=False` after the eviction.
pub mod eviction {
    /// Preempted by another workload.
    pub const PREEMPTED: &str = "Preempted";
    /// Its pods did not become ready in time.
    pub const PODS_READY_TIMEOUT: &str = "PodsReadyTimeout";
    /// An admission check is in state Retry.
    pub const ADMISSION_CHECK: &str = "AdmissionCheck";
    /// Its ClusterQueue is drained.
    pub const CLUSTER_QUEUE_STOPPED: &str = "ClusterQueueStopped";
    /// Its LocalQueue is drained.
    pub const LOCAL_QUEUE_STOPPED: &str = "LocalQueueStopped";
    /// Nodes failed.
    pub const NODE_FAILURES: &str = "NodeFailures";
    /// `spec.active` is false. With a cause: `DeactivatedDueTo<cause>`.
    pub const DEACTIVATED: &str = "Deactivated";
    /// Prefix of the reason of a deactivation with a cause.
    pub const DEACTIVATED_DUE_TO: &str = "DeactivatedDueTo";
    /// A variant in a more preferred flavor was admitted.
    pub const FLAVOR_MIGRATION: &str = "FlavorMigration";
}

/// Reasons of `DeactivationTarget`, which are also the causes in `DeactivatedDueTo<cause>`.
pub mod deactivation {
    /// A check was rejected.
    pub const ADMISSION_CHECK: &str = "AdmissionCheck";
    /// Its total time admitted exceeds its maximum execution time.
    pub const MAXIMUM_EXECUTION_TIME_EXCEEDED: &str = "MaximumExecutionTimeExceeded";
    /// It was requeued too often.
    pub const REQUEUING_LIMIT_EXCEEDED: &str = "RequeuingLimitExceeded";
}

/// Reasons of `Requeued=True`, and one of `Requeued=False`.
pub mod requeue {
    /// Active again.
    pub const REACTIVATED: &str = "Reactivated";
    /// The delay has ended.
    pub const BACKOFF_FINISHED: &str = "BackoffFinished";
    /// The ClusterQueue admits again.
    pub const CLUSTER_QUEUE_RESTARTED: &str = "ClusterQueueRestarted";
    /// The LocalQueue admits again.
    pub const LOCAL_QUEUE_RESTARTED: &str = "LocalQueueRestarted";
    /// `Requeued` is false because the devices of the workload cannot be counted.
    pub const INADMISSIBLE: &str = "Inadmissible";
}

/// Reasons of `Finished`.
pub mod finished {
    /// The job succeeded.
    pub const SUCCEEDED: &str = "Succeeded";
    /// The job failed.
    pub const FAILED: &str = "Failed";
    /// A prebuilt workload does not match its job.
    pub const OUT_OF_SYNC: &str = "OutOfSync";
    /// The job does not exist.
    pub const OWNER_NOT_FOUND: &str = "OwnerNotFound";
    /// A larger slice of the elastic job replaced it.
    pub const WORKLOAD_SLICE_REPLACED: &str = "WorkloadSliceReplaced";
    /// The job cannot start with the node selectors, tolerations and labels of its admission.
    pub const FAILED_TO_START: &str = "FailedToStart";
}

/// Reasons of `PodsReady`.
pub mod pods_ready {
    /// Not all pods have been ready yet.
    pub const WAIT_FOR_START: &str = "WaitForStart";
    /// All pods are ready for the first time.
    pub const STARTED: &str = "Started";
    /// A pod failed after all were ready.
    pub const WAIT_FOR_RECOVERY: &str = "WaitForRecovery";
    /// All pods are ready again.
    pub const RECOVERED: &str = "Recovered";
}

/// Reasons of `Active` of queues and checks.
pub mod active {
    /// The queue is active.
    pub const READY: &str = "Ready";
    /// The admission check is active.
    pub const ACTIVE: &str = "Active";
    /// Being deleted.
    pub const TERMINATING: &str = "Terminating";
    /// The queue's stop policy stops admission.
    pub const STOPPED: &str = "Stopped";
    /// LocalQueue: its ClusterQueue is not active.
    pub const CLUSTER_QUEUE_IS_INACTIVE: &str = "ClusterQueueIsInactive";
    /// LocalQueue: its ClusterQueue does not exist.
    pub const CLUSTER_QUEUE_DOES_NOT_EXIST: &str = "ClusterQueueDoesNotExist";
    /// AdmissionCheck: its parameters cannot be used.
    pub const BAD_PARAMETERS_REF: &str = "BadParametersRef";
}
