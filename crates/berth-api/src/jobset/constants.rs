//! Labels, annotations, conditions and reasons of JobSet.

/// The API group.
pub const GROUP: &str = "jobset.x-k8s.io";
/// Value of `managedBy` that means the JobSet controller.
pub const CONTROLLER_NAME: &str = "jobset.sigs.k8s.io/jobset-controller";

/// Label and annotation: name of the set.
pub const JOBSET_NAME: &str = "jobset.sigs.k8s.io/jobset-name";
/// Label and annotation: UID of the set.
pub const JOBSET_UID: &str = "jobset.sigs.k8s.io/jobset-uid";
/// Label and annotation: name of the replicated job.
pub const REPLICATED_JOB_NAME: &str = "jobset.sigs.k8s.io/replicatedjob-name";
/// Label and annotation: number of its jobs.
pub const REPLICATED_JOB_REPLICAS: &str = "jobset.sigs.k8s.io/replicatedjob-replicas";
/// Label and annotation: restart attempt of the set that the job belongs to.
pub const RESTARTS: &str = "jobset.sigs.k8s.io/restart-attempt";
/// Label and annotation: restart attempt of the single job.
pub const JOB_RESTARTS: &str = "jobset.sigs.k8s.io/job-restart-attempt";
/// Label and annotation: restart attempt of a pod that is restarted in place.
pub const IN_PLACE_RESTART_ATTEMPT: &str = "jobset.sigs.k8s.io/in-place-restart-attempt";
/// Label and annotation: number of jobs in the set.
pub const GLOBAL_REPLICAS: &str = "jobset.sigs.k8s.io/global-replicas";
/// Label and annotation: index of the job within its replicated job.
pub const JOB_INDEX: &str = "jobset.sigs.k8s.io/job-index";
/// Label and annotation: index of the job within the set.
pub const JOB_GLOBAL_INDEX: &str = "jobset.sigs.k8s.io/job-global-index";
/// Label and annotation: SHA-1 of `<namespace>/<job name>`, in hex.
pub const JOB_KEY: &str = "jobset.sigs.k8s.io/job-key";
/// Label and annotation: name of the group.
pub const GROUP_NAME: &str = "jobset.sigs.k8s.io/group-name";
/// Label and annotation: number of jobs in the group.
pub const GROUP_REPLICAS: &str = "jobset.sigs.k8s.io/group-replicas";
/// Label and annotation: index of the job within the group.
pub const JOB_GROUP_INDEX: &str = "jobset.sigs.k8s.io/job-group-index";
/// Label and annotation: DNS name of the coordinator pod.
pub const COORDINATOR: &str = "jobset.sigs.k8s.io/coordinator";
/// Pod label: priority of the pod.
pub const PRIORITY: &str = "jobset.sigs.k8s.io/priority";

/// Annotation: node label of the exclusive domains; each domain runs one job.
pub const EXCLUSIVE_TOPOLOGY: &str = "alpha.jobset.sigs.k8s.io/exclusive-topology";
/// Annotation: exclusive placement by node labels that an administrator has set.
pub const NODE_SELECTOR_STRATEGY: &str = "alpha.jobset.sigs.k8s.io/node-selector";
/// Node label, with the annotation above: `<namespace>_<job>`.
pub const NAMESPACED_JOB: &str = "alpha.jobset.sigs.k8s.io/namespaced-job";
/// Taint, with the annotation above.
pub const NO_SCHEDULE_TAINT: &str = "alpha.jobset.sigs.k8s.io/no-schedule";

/// Condition: the jobs that the success policy requires have completed.
pub const COMPLETED: &str = "Completed";
/// Condition: the set failed.
pub const FAILED: &str = "Failed";
/// Condition: the set is suspended.
pub const SUSPENDED: &str = "Suspended";
/// Condition: jobs are being started in order.
pub const STARTUP_POLICY_IN_PROGRESS: &str = "StartupPolicyInProgress";
/// Condition: the in-order start-up is complete.
pub const STARTUP_POLICY_COMPLETED: &str = "StartupPolicyCompleted";
/// Condition: the set is restarting.
pub const RESTARTING: &str = "RestartingJobSet";

/// Reason and message of `Completed`.
pub const ALL_JOBS_COMPLETED: (&str, &str) = ("AllJobsCompleted", "jobset completed successfully");
/// Reason and message of `Failed` without a failure policy.
pub const FAILED_JOBS: (&str, &str) = ("FailedJobs", "jobset failed due to one or more job failures");
/// Reason and message of `Failed` when no restart is left.
pub const REACHED_MAX_RESTARTS: (&str, &str) =
    ("ReachedMaxRestarts", "jobset failed due to reaching max number of restarts");
/// Reason of `Failed` set by a failure policy rule.
pub const FAIL_JOBSET_ACTION: &str = "FailJobSetFailurePolicyAction";
/// Reason and message of `Suspended=True`.
pub const SUSPENDED_JOBS: (&str, &str) = ("SuspendedJobs", "jobset is suspended");
/// Reason and message of `Suspended=False`.
pub const RESUME_JOBS: (&str, &str) = ("ResumeJobs", "jobset is resumed");
/// Reason of `RestartingJobSet=True` when no rule matched.
pub const DEFAULT_FAILURE_POLICY: &str = "DefaultFailurePolicy";
/// Prefix of the reason of `RestartingJobSet=True` set by a failure policy rule.
pub const FAILURE_POLICY_PREFIX: &str = "FailurePolicy_";
/// Reason of `RestartingJobSet=False`.
pub const JOBS_READY: &str = "JobsReady";
/// Reason of the condition of a follower pod that is not in the topology domain of its job's leader
/// pod.
pub const EXCLUSIVE_PLACEMENT_VIOLATION: &str = "ExclusivePlacementViolation";
