//! Reasons of the events Kueue records.

/// Workload: cannot be admitted now; with granular reasons, these are those of `QuotaReserved=False`.
pub const PENDING: &str = "Pending";
/// Workload: quota reserved.
pub const QUOTA_RESERVED: &str = "QuotaReserved";
/// Workload: admitted.
pub const ADMITTED: &str = "Admitted";
/// Workload: it is preempted by another.
pub const PREEMPTED: &str = "Preempted";
/// Workload: it preempts another.
pub const PREEMPTED_WORKLOAD: &str = "PreemptedWorkload";
/// Workload: prefix before the reason of the eviction.
pub const EVICTED_DUE_TO: &str = "EvictedDueTo";
/// Workload: the second pass of admission failed.
pub const SECOND_PASS_FAILED: &str = "SecondPassFailed";
/// Workload: a check was rejected.
pub const ADMISSION_CHECK_REJECTED: &str = "AdmissionCheckRejected";
/// Workload: waits for somebody's agreement.
pub const ADMISSION_GATED: &str = "AdmissionGated";
/// Workload: somebody agreed.
pub const ADMISSION_GATE_CLEARED: &str = "AdmissionGateCleared";
/// Workload: took too long.
pub const MAXIMUM_EXECUTION_TIME_EXCEEDED: &str = "MaximumExecutionTimeExceeded";
/// Workload: deleted after its retention.
pub const DELETED: &str = "Deleted";
/// Workload: the state of a check changed.
pub const ADMISSION_CHECK_UPDATED: &str = "AdmissionCheckUpdated";
/// Workload: a provisioning request was made.
pub const PROVISIONING_REQUEST_CREATED: &str = "ProvisioningRequestCreated";
/// Workload: an object could not be made.
pub const FAILED_CREATE: &str = "FailedCreate";
/// Job: unsuspended.
pub const STARTED: &str = "Started";
/// Job: suspended because it has a queue but no admission.
pub const SUSPENDED: &str = "Suspended";
/// Job: stopped after it ran.
pub const STOPPED: &str = "Stopped";
/// Job: its workload was made.
pub const CREATED_WORKLOAD: &str = "CreatedWorkload";
/// Job: a workload that does not go with it was deleted.
pub const DELETED_WORKLOAD: &str = "DeletedWorkload";
/// Job: its workload was changed to go with it.
pub const UPDATED_WORKLOAD: &str = "UpdatedWorkload";
/// Job: its workload is finished.
pub const FINISHED_WORKLOAD: &str = "FinishedWorkload";
/// Job: no workload can be made of it.
pub const ERR_WORKLOAD_COMPOSE: &str = "ErrWorkloadCompose";
/// Job: the message of a check changed.
pub const UPDATED_ADMISSION_CHECK: &str = "UpdatedAdmissionCheck";
/// Job: too many owners up to a managed one.
pub const JOB_NESTING_TOO_DEEP: &str = "JobNestingTooDeep";
/// Job: its priority class does not exist.
pub const WORKLOAD_PRIORITY_CLASS_NOT_FOUND: &str = "WorkloadPriorityClassNotFound";
/// Job: another workload has the name its own would get.
pub const WORKLOAD_NAME_CONFLICT: &str = "WorkloadNameConflict";
/// Pod group: a pod too many was deleted.
pub const EXCESS_POD_DELETED: &str = "ExcessPodDeleted";
