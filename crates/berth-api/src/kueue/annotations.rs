//! Annotations of Kueue.

/// On jobs, in place of the label of the same name: name of the LocalQueue. Read for older
/// manifests.
pub const QUEUE_NAME: &str = "kueue.x-k8s.io/queue-name";
/// On jobs and workloads: comma-separated names of the controllers that must remove themselves
/// before admission.
pub const ADMISSION_GATED_BY: &str = "kueue.x-k8s.io/admission-gated-by";
/// On jobs: the job may change its size while it runs; value `true`.
pub const ELASTIC_JOB: &str = "kueue.x-k8s.io/elastic-job";
/// On pods: name of their workload.
pub const WORKLOAD: &str = "kueue.x-k8s.io/workload";
/// On pods and workloads of elastic jobs: name of the first slice.
pub const WORKLOAD_SLICE_NAME: &str = "kueue.x-k8s.io/workload-slice-name";
/// On workloads of elastic jobs: key of the slice that this slice replaces.
pub const WORKLOAD_SLICE_REPLACEMENT_FOR: &str = "kueue.x-k8s.io/workload-slice-replacement-for";
/// On batch/v1 Jobs: smallest acceptable parallelism, for partial admission.
pub const JOB_MIN_PARALLELISM: &str = "kueue.x-k8s.io/job-min-parallelism";
/// On batch/v1 Jobs: completions follow parallelism when the job is admitted partially; value
/// `true`.
pub const JOB_COMPLETIONS_EQUAL_PARALLELISM: &str = "kueue.x-k8s.io/job-completions-equal-parallelism";
/// On pods, in place of the label of the same name: name of the pod group.
pub const POD_GROUP_NAME: &str = "kueue.x-k8s.io/pod-group-name";
/// On pods: number of pods in their group.
pub const POD_GROUP_TOTAL_COUNT: &str = "kueue.x-k8s.io/pod-group-total-count";
/// On pods: their group is queued as soon as its first pod exists, because all its pods are equal.
pub const POD_GROUP_FAST_ADMISSION: &str = "kueue.x-k8s.io/pod-group-fast-admission";
/// On pods: the group runs until it is deleted, and never finishes.
pub const POD_GROUP_SERVING: &str = "kueue.x-k8s.io/pod-group-serving";
/// On pods: name of the label that holds the pod's index in its group, if it is not Kueue's own.
pub const POD_GROUP_POD_INDEX_LABEL: &str = "kueue.x-k8s.io/pod-group-pod-index-label";
/// On pods: `false` if a failed pod of the group is not to be replaced.
pub const RETRIABLE_IN_GROUP: &str = "kueue.x-k8s.io/retriable-in-group";
/// On pods: name of their pod set in the group, a hash of the fields that determine quota and
/// placement.
pub const ROLE_HASH: &str = "kueue.x-k8s.io/role-hash";
/// On pods: the integration of the owner for which the pod has a scheduling gate.
pub const POD_SUSPENDING_PARENT: &str = "kueue.x-k8s.io/pod-suspending-parent";
/// On workloads: the workload belongs to a group of pods.
pub const IS_GROUP_WORKLOAD: &str = "kueue.x-k8s.io/is-group-workload";
/// On jobs: same meaning as the label of the same name.
pub const PREBUILT_WORKLOAD: &str = "kueue.x-k8s.io/prebuilt-workload-name";
/// On pod templates: node label of a topology level. All pods must be in one domain of that level.
pub const PODSET_REQUIRED_TOPOLOGY: &str = "kueue.x-k8s.io/podset-required-topology";
/// On pod templates: node label of a topology level. All pods should be in one domain of that
/// level.
pub const PODSET_PREFERRED_TOPOLOGY: &str = "kueue.x-k8s.io/podset-preferred-topology";
/// On pod templates: any nodes of the topology are acceptable; value `true`.
pub const PODSET_UNCONSTRAINED_TOPOLOGY: &str = "kueue.x-k8s.io/podset-unconstrained-topology";
/// On pod templates: node label of a topology level. Each slice must be in one domain of that
/// level.
pub const PODSET_SLICE_REQUIRED_TOPOLOGY: &str = "kueue.x-k8s.io/podset-slice-required-topology";
/// On pod templates: pods per slice.
pub const PODSET_SLICE_SIZE: &str = "kueue.x-k8s.io/podset-slice-size";
/// On pod templates: layers of slices, as JSON.
pub const PODSET_SLICE_REQUIRED_TOPOLOGY_CONSTRAINTS: &str =
    "kueue.x-k8s.io/podset-slice-required-topology-constraints";
/// On pod templates: pod sets of the same group get the same flavor and domain.
pub const PODSET_GROUP_NAME: &str = "kueue.x-k8s.io/podset-group-name";
/// On pod templates: offset of the pods' indexes.
pub const POD_INDEX_OFFSET: &str = "kueue.x-k8s.io/pod-index-offset";
/// On workloads: integer added to the priority when gate `PriorityBoost` is on.
pub const PRIORITY_BOOST: &str = "kueue.x-k8s.io/priority-boost";
/// On variants of concurrent admission: flavors that the variant may use.
pub const WORKLOAD_ALLOWED_RESOURCE_FLAVORS: &str = "kueue.x-k8s.io/workload-allowed-resource-flavors";
/// Prefix, on jobs and workloads: the rest of the key is a parameter of the provisioning request.
pub const PROVISIONING_REQUEST_PREFIX: &str = "provreq.kueue.x-k8s.io/";
/// On pods: the pod may be ended while its node is unreachable; value `true`.
pub const SAFE_TO_FORCEFULLY_DELETE: &str = "kueue.x-k8s.io/safe-to-forcefully-delete";
