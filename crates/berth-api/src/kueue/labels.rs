//! Labels of Kueue.

/// On jobs and pods: name of the LocalQueue.
pub const QUEUE_NAME: &str = "kueue.x-k8s.io/queue-name";
/// On jobs: name of the WorkloadPriorityClass.
pub const PRIORITY_CLASS: &str = "kueue.x-k8s.io/priority-class";
/// On jobs: seconds the workload may be admitted in total, a positive integer.
pub const MAX_EXEC_TIME_SECONDS: &str = "kueue.x-k8s.io/max-exec-time-seconds";
/// On jobs: name of an existing Workload the job uses instead of its own.
pub const PREBUILT_WORKLOAD: &str = "kueue.x-k8s.io/prebuilt-workload-name";
/// On workloads: UID of the owning job.
pub const JOB_UID: &str = "kueue.x-k8s.io/job-uid";
/// On pods, pod templates and provisioning requests: managed by Kueue; value `true`.
pub const MANAGED: &str = "kueue.x-k8s.io/managed";
/// On pods: name of the pod set they belong to.
pub const POD_SET: &str = "kueue.x-k8s.io/podset";
/// On pods and events: name of the ClusterQueue of the admission.
pub const CLUSTER_QUEUE: &str = "kueue.x-k8s.io/cluster-queue-name";
/// On pods: name of the LocalQueue of the admission.
pub const LOCAL_QUEUE: &str = "kueue.x-k8s.io/local-queue-name";
/// On pods: name of the pod group.
pub const POD_GROUP_NAME: &str = "kueue.x-k8s.io/pod-group-name";
/// On pods: index within the pod group.
pub const POD_GROUP_POD_INDEX: &str = "kueue.x-k8s.io/pod-group-pod-index";
/// On workloads and jobs from another cluster: the manager cluster that created them.
pub const MULTIKUEUE_ORIGIN: &str = "kueue.x-k8s.io/multikueue-origin";
/// On pods of a worker cluster that belong to a workload of the manager.
pub const MULTIKUEUE_WORKER_WORKLOAD_POD: &str = "kueue.x-k8s.io/multikueue-worker-workload-pod";
/// On the parent of concurrently admitted variants; value `true`.
pub const CONCURRENT_ADMISSION_PARENT: &str = "kueue.x-k8s.io/concurrent-admission-parent";
