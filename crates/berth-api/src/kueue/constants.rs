//! Names of Kueue that are neither labels nor annotations nor conditions.

/// The API group.
pub const GROUP: &str = "kueue.x-k8s.io";
/// Finalizer of workloads, queues, flavors, checks and topologies: kept while another object refers
/// to the object.
pub const RESOURCE_IN_USE_FINALIZER: &str = "kueue.x-k8s.io/resource-in-use";
/// Finalizer of managed pods: keeps a pod until the controllers have counted it.
pub const POD_FINALIZER: &str = "kueue.x-k8s.io/managed";
/// Scheduling gate of pods that wait for admission.
pub const ADMISSION_GATE: &str = "kueue.x-k8s.io/admission";
/// Scheduling gate of pods that wait for their topology assignment.
pub const TOPOLOGY_GATE: &str = "kueue.x-k8s.io/topology";
/// Scheduling gate of pods of elastic jobs.
pub const ELASTIC_JOB_GATE: &str = "kueue.x-k8s.io/elastic-job";
/// Preemption gate of variants of concurrent admission.
pub const CONCURRENT_ADMISSION_PREEMPTION_GATE: &str = "kueue.x-k8s.io/concurrent-admission";
/// Controller of admission checks that dispatch workloads to other clusters; also the value of
/// `managedBy` of their jobs.
pub const MULTIKUEUE_CONTROLLER: &str = "kueue.x-k8s.io/multikueue";
/// Name of the only pod set of a job, unless the job names it.
pub const DEFAULT_POD_SET: &str = "main";
/// Group of WorkloadPriorityClass in `priorityClassRef`.
pub const WORKLOAD_PRIORITY_CLASS_GROUP: &str = "kueue.x-k8s.io";
/// Kind of WorkloadPriorityClass in `priorityClassRef`.
pub const WORKLOAD_PRIORITY_CLASS_KIND: &str = "WorkloadPriorityClass";
/// Group of PriorityClass in `priorityClassRef`.
pub const POD_PRIORITY_CLASS_GROUP: &str = "scheduling.k8s.io";
/// Kind of PriorityClass in `priorityClassRef`.
pub const POD_PRIORITY_CLASS_KIND: &str = "PriorityClass";
/// `priorityClassSource` of v1beta1 for a WorkloadPriorityClass.
pub const WORKLOAD_PRIORITY_CLASS_SOURCE: &str = "kueue.x-k8s.io/workloadpriorityclass";
/// `priorityClassSource` of v1beta1 for a PriorityClass.
pub const POD_PRIORITY_CLASS_SOURCE: &str = "scheduling.k8s.io/priorityclass";
