//! Labels, annotations, taints, finalizers and ports of Kubernetes' own that more than one
//! controller or admission plugin uses.

/// Label of a node: its host name.
pub const HOSTNAME: &str = "kubernetes.io/hostname";
/// Label of a node: its operating system.
pub const OS: &str = "kubernetes.io/os";
/// Older name of [`OS`].
pub const OS_BETA: &str = "beta.kubernetes.io/os";
/// Label of a node: its processor architecture.
pub const ARCH: &str = "kubernetes.io/arch";
/// Older name of [`ARCH`].
pub const ARCH_BETA: &str = "beta.kubernetes.io/arch";
/// Label of a node: its machine type.
pub const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
/// Older name of [`INSTANCE_TYPE`].
pub const INSTANCE_TYPE_BETA: &str = "beta.kubernetes.io/instance-type";
/// Label of nodes and volumes: their zone.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// Older name of [`ZONE`].
pub const ZONE_BETA: &str = "failure-domain.beta.kubernetes.io/zone";
/// Label of nodes and volumes: their region.
pub const REGION: &str = "topology.kubernetes.io/region";
/// Older name of [`REGION`].
pub const REGION_BETA: &str = "failure-domain.beta.kubernetes.io/region";

/// Port of a node's kubelet.
pub const KUBELET_PORT: u16 = 10250;

/// Taint of a node that is not ready.
pub const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// Taint of a node that no longer reports.
pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// Taint of a cordoned node.
pub const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Label of an EndpointSlice: the name of its Service.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Label of an EndpointSlice: the program that manages it.
pub const ENDPOINT_SLICE_MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";

/// Annotation and label of a Job's pod: its completion index.
pub const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Label of a StatefulSet's pod: its ordinal.
pub const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

/// Annotation that holds what client-side apply sent last.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Annotation of a pod: the container whose logs are shown by default.
pub const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// Finalizer of a claim in use.
pub const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
/// Finalizer of a volume in use.
pub const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";
/// Annotation of a claim: its storage class. It has precedence over `storageClassName`.
pub const STORAGE_CLASS_BETA: &str = "volume.beta.kubernetes.io/storage-class";
/// Annotation of the default storage class.
pub const DEFAULT_STORAGE_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
/// Older name of [`DEFAULT_STORAGE_CLASS`].
pub const DEFAULT_STORAGE_CLASS_BETA: &str = "storageclass.beta.kubernetes.io/is-default-class";
