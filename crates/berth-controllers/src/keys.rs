//! Labels, annotations, finalizers, conditions and reasons the controllers read and write, spelled as Kueue spells them.

/// Label: the local queue a job or workload belongs to.
pub const QUEUE_NAME_LABEL: &str = "kueue.x-k8s.io/queue-name";
/// Annotation older jobs name their queue by.
pub const QUEUE_NAME_ANNOTATION: &str = "kueue.x-k8s.io/queue-name";
/// Label: the WorkloadPriorityClass of a job.
pub const PRIORITY_CLASS_LABEL: &str = "kueue.x-k8s.io/priority-class";
/// Label: a Workload made by somebody else that this job uses.
pub const PREBUILT_WORKLOAD_LABEL: &str = "kueue.x-k8s.io/prebuilt-workload-name";
/// Label on workloads: UID of the job.
pub const JOB_UID_LABEL: &str = "kueue.x-k8s.io/job-uid";
/// Label: longest execution time, in seconds.
pub const MAX_EXEC_TIME_LABEL: &str = "kueue.x-k8s.io/max-exec-time-seconds";
/// Label on pods: their pod set.
pub const POD_SET_LABEL: &str = "kueue.x-k8s.io/podset";
/// Label on pods: their local queue.
pub const LOCAL_QUEUE_LABEL: &str = "kueue.x-k8s.io/local-queue-name";
/// Label on pods: the cluster queue that admitted them.
pub const CLUSTER_QUEUE_LABEL: &str = "kueue.x-k8s.io/cluster-queue-name";
/// Label on workloads another cluster sent here: that cluster.
pub const MULTIKUEUE_ORIGIN_LABEL: &str = "kueue.x-k8s.io/multikueue-origin";
/// Label on pods of such workloads.
pub const MULTIKUEUE_WORKER_POD_LABEL: &str = "kueue.x-k8s.io/multikueue-worker-workload-pod";
/// Annotation on pods: their workload.
pub const WORKLOAD_ANNOTATION: &str = "kueue.x-k8s.io/workload";
/// Annotation on elastic jobs' pods: the first slice of their workload.
pub const WORKLOAD_SLICE_ANNOTATION: &str = "kueue.x-k8s.io/workload-slice-name";
/// Annotation on workload slices: the slice they replace, as `namespace/name`.
pub const WORKLOAD_SLICE_REPLACEMENT_ANNOTATION: &str = "kueue.x-k8s.io/workload-slice-replacement-for";
/// Annotation on jobs: they may change size while they run.
pub const ELASTIC_JOB_ANNOTATION: &str = "kueue.x-k8s.io/elastic-job";
/// Annotation on jobs and workloads: controllers that gate admission, comma separated.
pub const ADMISSION_GATED_BY_ANNOTATION: &str = "kueue.x-k8s.io/admission-gated-by";
/// Annotation on workloads: added to their priority when gate PriorityBoost is on.
pub const PRIORITY_BOOST_ANNOTATION: &str = "kueue.x-k8s.io/priority-boost";
/// Annotation on batch Jobs: fewest pods they can start with.
pub const MIN_PARALLELISM_ANNOTATION: &str = "kueue.x-k8s.io/job-min-parallelism";
/// Annotation on batch Jobs: completions follow parallelism.
pub const COMPLETIONS_EQUAL_PARALLELISM_ANNOTATION: &str = "kueue.x-k8s.io/job-completions-equal-parallelism";
/// Prefix of annotations that become parameters of provisioning requests.
pub const PROVISIONING_ANNOTATION_PREFIX: &str = "provreq.kueue.x-k8s.io/";
/// Label on objects the controllers made.
pub const MANAGED_LABEL: &str = "kueue.x-k8s.io/managed";
/// Scheduling gate of pods that wait for admission.
pub const ADMISSION_GATE: &str = "kueue.x-k8s.io/admission";
/// Annotation on jobs and pods that the API server held by policy before anybody of ours saw them. On jobs: what their maker
/// wrote into the field that suspends them, `true` or `false`. On pods: the scheduling gates that were added, comma separated.
pub const HELD_ANNOTATION: &str = "berth.dev/held";
/// Finalizer of managed pods: none is gone before it was counted.
pub const POD_FINALIZER: &str = "kueue.x-k8s.io/managed";
/// Label on pods: the group they are admitted with. It is the name of the group's Workload.
pub const POD_GROUP_LABEL: &str = "kueue.x-k8s.io/pod-group-name";
/// Annotation on pods: how many pods their group has.
pub const POD_GROUP_TOTAL_COUNT_ANNOTATION: &str = "kueue.x-k8s.io/pod-group-total-count";
/// Annotation on pods: their group, all alike, queues as soon as its first pod is there.
pub const POD_GROUP_FAST_ADMISSION_ANNOTATION: &str = "kueue.x-k8s.io/pod-group-fast-admission";
/// Annotation on pods: their group serves until it is taken away; it does not finish.
pub const POD_GROUP_SERVING_ANNOTATION: &str = "kueue.x-k8s.io/pod-group-serving";
/// Label that numbers the pods of a group.
pub const POD_GROUP_POD_INDEX_LABEL: &str = "kueue.x-k8s.io/pod-group-pod-index";
/// Annotation on pods: the label that numbers the pods of their group, when it is another one.
pub const POD_GROUP_POD_INDEX_LABEL_ANNOTATION: &str = "kueue.x-k8s.io/pod-group-pod-index-label";
/// Annotation on pods: `false` when no pod of the group is to be replaced.
pub const RETRIABLE_IN_GROUP_ANNOTATION: &str = "kueue.x-k8s.io/retriable-in-group";
/// Annotation on pods: the pod set of their group they belong to, made of the shape of their spec.
pub const ROLE_HASH_ANNOTATION: &str = "kueue.x-k8s.io/role-hash";
/// Annotation on pods: the integration of the object above them that has them held back.
pub const POD_SUSPENDING_PARENT_ANNOTATION: &str = "kueue.x-k8s.io/pod-suspending-parent";
/// Annotation on workloads: it is of a group of pods.
pub const IS_GROUP_WORKLOAD_ANNOTATION: &str = "kueue.x-k8s.io/is-group-workload";
/// Finalizer of everything in use.
pub const RESOURCE_IN_USE_FINALIZER: &str = "kueue.x-k8s.io/resource-in-use";
/// Scheduling gate of pods whose place is not chosen yet.
pub const TOPOLOGY_GATE: &str = "kueue.x-k8s.io/topology";
/// Scheduling gate of elastic jobs' pods.
pub const ELASTIC_GATE: &str = "kueue.x-k8s.io/elastic-job";
/// Annotation: topology level in which all pods of a pod set must be.
pub const REQUIRED_TOPOLOGY_ANNOTATION: &str = "kueue.x-k8s.io/podset-required-topology";
/// Annotation: topology level in which all pods of a pod set should be.
pub const PREFERRED_TOPOLOGY_ANNOTATION: &str = "kueue.x-k8s.io/podset-preferred-topology";
/// Annotation: any place will do, as long as capacity is known.
pub const UNCONSTRAINED_TOPOLOGY_ANNOTATION: &str = "kueue.x-k8s.io/podset-unconstrained-topology";
/// Annotation: topology level in which each slice must be.
pub const SLICE_REQUIRED_TOPOLOGY_ANNOTATION: &str = "kueue.x-k8s.io/podset-slice-required-topology";
/// Annotation: pods per slice.
pub const SLICE_SIZE_ANNOTATION: &str = "kueue.x-k8s.io/podset-slice-size";
/// Annotation: layers of slices, as JSON.
pub const SLICE_CONSTRAINTS_ANNOTATION: &str = "kueue.x-k8s.io/podset-slice-required-topology-constraints";
/// Annotation: pod sets with the same value are placed together.
pub const POD_SET_GROUP_ANNOTATION: &str = "kueue.x-k8s.io/podset-group-name";

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
