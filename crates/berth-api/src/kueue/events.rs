//! Reasons of the events the controllers record: Kueue's, and those Berth adds.

/// Workload: quota is reserved.
pub const QUOTA_RESERVED: &str = "QuotaReserved";
/// Workload: admitted.
pub const ADMITTED: &str = "Admitted";
/// Workload: preempted by another workload.
pub const PREEMPTED: &str = "Preempted";
/// Workload: it preempts another workload.
pub const PREEMPTED_WORKLOAD: &str = "PreemptedWorkload";
/// Workload: evicted; prefix of the reason of condition `Evicted`.
pub const EVICTED_DUE_TO: &str = "EvictedDueTo";
/// Workload: replaced by a larger workload slice of its elastic job.
pub const WORKLOAD_SLICE_REPLACED: &str = "WorkloadSliceReplaced";
/// Workload: the second pass of admission failed.
pub const SECOND_PASS_FAILED: &str = "SecondPassFailed";
/// Workload: an admission check was rejected.
pub const ADMISSION_CHECK_REJECTED: &str = "AdmissionCheckRejected";
/// Workload: controllers named by annotation `admission-gated-by` have not released it.
pub const ADMISSION_GATED: &str = "AdmissionGated";
/// Workload: every controller named by annotation `admission-gated-by` has released it.
pub const ADMISSION_GATE_CLEARED: &str = "AdmissionGateCleared";
/// Workload: admitted for longer than its maximum execution time.
pub const MAXIMUM_EXECUTION_TIME_EXCEEDED: &str = "MaximumExecutionTimeExceeded";
/// Workload, job, pod group: deleted after its retention period.
pub const DELETED: &str = "Deleted";
/// Workload: the state of an admission check changed.
pub const ADMISSION_CHECK_UPDATED: &str = "AdmissionCheckUpdated";
/// Workload: a ProvisioningRequest was created.
pub const PROVISIONING_REQUEST_CREATED: &str = "ProvisioningRequestCreated";
/// Workload: the ProvisioningRequest or its pod template could not be created.
pub const FAILED_CREATE: &str = "FailedCreate";
/// Workload: a variant was created.
pub const CREATED_VARIANT: &str = "CreatedVariant";
/// Workload: a variant was deleted.
pub const DELETED_VARIANT: &str = "DeletedVariant";
/// Variant: active again.
pub const ACTIVATED_VARIANT: &str = "ActivatedVariant";
/// Variant: inactive while another variant of its parent is admitted, or its parent is inactive.
pub const DEACTIVATED_VARIANT: &str = "DeactivatedVariant";
/// Variant: its preemption gate is open.
pub const PREEMPTION_UNGATED_VARIANT: &str = "PreemptionUngatedVariant";
/// Job: unsuspended.
pub const STARTED: &str = "Started";
/// Job: suspended because it has a queue but no admission.
pub const SUSPENDED: &str = "Suspended";
/// Job: suspended after it ran.
pub const STOPPED: &str = "Stopped";
/// Job: its workload was created.
pub const CREATED_WORKLOAD: &str = "CreatedWorkload";
/// Job: a workload that does not match it was deleted.
pub const DELETED_WORKLOAD: &str = "DeletedWorkload";
/// Job: its workload was updated to match it.
pub const UPDATED_WORKLOAD: &str = "UpdatedWorkload";
/// Job: its workload finished.
pub const FINISHED_WORKLOAD: &str = "FinishedWorkload";
/// Job: its workload had finished before, so the job does not start again.
pub const WORKLOAD_FINISHED: &str = "WorkloadFinished";
/// Job: no workload can be composed from it.
pub const ERR_WORKLOAD_COMPOSE: &str = "ErrWorkloadCompose";
/// Job: reconciling it failed.
pub const RECONCILE_FAILED: &str = "ReconcileFailed";
/// Job: the message of an admission check changed.
pub const UPDATED_ADMISSION_CHECK: &str = "UpdatedAdmissionCheck";
/// Job: the chain of owners up to a managed one is too long.
pub const JOB_NESTING_TOO_DEEP: &str = "JobNestingTooDeep";
/// Job: its owners own each other.
pub const CYCLIC_OWNERSHIP: &str = "CyclicOwnership";
/// Job: its LocalQueue does not exist.
pub const LOCAL_QUEUE_NOT_FOUND: &str = "LocalQueueNotFound";
/// Job: the Workload its label names does not exist.
pub const PREBUILT_WORKLOAD_NOT_FOUND: &str = "PrebuiltWorkloadNotFound";
/// Job: its WorkloadPriorityClass does not exist.
pub const WORKLOAD_PRIORITY_CLASS_NOT_FOUND: &str = "WorkloadPriorityClassNotFound";
/// Job: the name of its workload is taken by another job's workload.
pub const WORKLOAD_NAME_CONFLICT: &str = "WorkloadNameConflict";
/// Job: it cannot be sent to another cluster, because `managedBy` was not set when it was created.
pub const MANAGED_BY_MISSING: &str = "ManagedByMissing";
/// Job, pod: still held by a policy in the API server, which rejected the write that releases it.
pub const STAYS_HELD: &str = "StaysHeld";
/// Job, pod: the API server rejected a write of the controllers.
pub const WRITE_REFUSED: &str = "WriteRefused";
/// Pod group: a surplus pod was deleted.
pub const EXCESS_POD_DELETED: &str = "ExcessPodDeleted";
/// Pod group: its pods became owners of its workload.
pub const OWNER_REFERENCES_ADDED: &str = "OwnerReferencesAdded";
/// Pod: its group finished without it, so the pod does not start.
pub const POD_GROUP_FINISHED: &str = "PodGroupFinished";
/// Pod: kept while it terminates, until a pod replaces it in its group.
pub const WAITING_FOR_REPLACEMENT: &str = "WaitingForReplacement";
/// Pod: marked failed, because its assigned node failed before the pod was bound.
pub const POD_TERMINATED_BY_KUEUE: &str = "PodTerminatedByKueue";
/// Pod: ended and deleted while its node is unreachable.
pub const KUEUE_FORCEFULLY_DELETED: &str = "KueueForcefullyDeleted";
