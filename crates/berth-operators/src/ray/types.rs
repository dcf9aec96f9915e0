//! Spec and status of a RayCluster, as far as the controllers of Ray read and write them.
//!
//! The stored objects stay JSON ([`berth_api::frameworks`]): a controller reads a spec with
//! [`RayClusterSpec::read`] and passes the JSON on where one object is made from another, so that
//! fields that are not listed here are kept.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    EnvFromSource, EnvVar, EnvVarSource, PodTemplateSpec, ResourceRequirements, SecurityContext, Service, VolumeMount,
};
use k8s_openapi::api::networking::v1::IngressTLS;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// Reads null as the default of the field, as Kubernetes' own clients do.
pub(crate) fn lenient<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// Desired state of a RayCluster.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RayClusterSpec {
    /// Deletes all pods while true.
    pub suspend: Option<bool>,
    /// Controller that reconciles the cluster. Absent: this operator.
    pub managed_by: Option<String>,
    /// Version of Ray in the images.
    #[serde(deserialize_with = "lenient")]
    pub ray_version: String,
    /// Adds Ray's autoscaler to the head pod.
    pub enable_in_tree_autoscaling: Option<bool>,
    /// Options of the autoscaler's container.
    pub autoscaler_options: Option<AutoscalerOptions>,
    /// Persistent store of the head's state.
    pub gcs_fault_tolerance_options: Option<GcsFaultToleranceOptions>,
    /// Annotations of the head's Service.
    #[serde(deserialize_with = "lenient")]
    pub head_service_annotations: BTreeMap<String, String>,
    /// Handling of a changed spec.
    pub upgrade_strategy: Option<UpgradeStrategy>,
    /// Authentication of clients of Ray.
    pub auth_options: Option<AuthOptions>,
    /// Encryption between Ray processes; not supported.
    pub tls_options: Option<Value>,
    /// Network isolation; not supported.
    pub network_policy: Option<Value>,
    /// Collector of history; not supported.
    pub history_server_options: Option<Value>,
    /// The head.
    #[serde(deserialize_with = "lenient")]
    pub head_group_spec: HeadGroupSpec,
    /// The workers, in groups of equal pods.
    #[serde(deserialize_with = "lenient")]
    pub worker_group_specs: Vec<WorkerGroupSpec>,
}

impl RayClusterSpec {
    /// Reads the spec of a RayCluster, `spec.rayClusterSpec` of a RayJob, or
    /// `spec.rayClusterConfig` of a RayService.
    ///
    /// # Errors
    /// A field has the wrong type.
    pub fn read(spec: &Value) -> Result<Self, serde_json::Error> {
        lenient(spec)
    }

    /// True if Ray's autoscaler scales the worker groups.
    pub fn is_autoscaled(&self) -> bool {
        self.enable_in_tree_autoscaling == Some(true)
    }

    /// The version of the autoscaler if the spec sets one: `v1` or `v2`.
    pub fn autoscaler_version(&self) -> Option<&str> {
        self.autoscaler_options.as_ref()?.version.as_deref()
    }

    /// True if clients of Ray need a token.
    pub fn needs_token(&self) -> bool {
        self.auth_options.as_ref().is_some_and(|options| options.mode == "token")
    }
}

/// The head of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HeadGroupSpec {
    /// The pod. Its first container runs Ray.
    #[serde(deserialize_with = "berth_api::json::field")]
    pub template: PodTemplateSpec,
    /// Service of the head; unset fields are derived.
    pub head_service: Option<Service>,
    /// Adds an Ingress for the dashboard.
    pub enable_ingress: Option<bool>,
    /// Options of that Ingress.
    pub ingress_options: Option<IngressOptions>,
    /// Resources of the Ray node, in place of those in `rayStartParams`.
    #[serde(deserialize_with = "lenient")]
    pub resources: BTreeMap<String, String>,
    /// Labels of the Ray node and its pod.
    #[serde(deserialize_with = "lenient")]
    pub labels: BTreeMap<String, String>,
    /// Options of `ray start`.
    #[serde(deserialize_with = "lenient")]
    pub ray_start_params: BTreeMap<String, String>,
    /// Type of the head's Service.
    #[serde(deserialize_with = "lenient")]
    pub service_type: String,
}

/// Options of the Ingress of the dashboard.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressOptions {
    /// Host name. Absent: any.
    pub host: Option<String>,
    /// Path. Absent: all paths.
    pub path: Option<String>,
    /// Meaning of the path. Absent: `Prefix`.
    pub path_type: Option<String>,
    /// Certificates.
    pub tls: Option<Vec<IngressTLS>>,
}

/// A group of equal workers.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkerGroupSpec {
    /// Deletes the pods of the group while true.
    pub suspend: Option<bool>,
    /// Name, unique in the cluster.
    #[serde(deserialize_with = "lenient")]
    pub group_name: String,
    /// Wanted replicas, each of [`WorkerGroupSpec::num_of_hosts`] pods.
    pub replicas: Option<i32>,
    /// Lower bound of the replicas.
    pub min_replicas: Option<i32>,
    /// Upper bound of the replicas.
    pub max_replicas: Option<i32>,
    /// Seconds after which the autoscaler removes an idle worker of this group.
    pub idle_timeout_seconds: Option<i32>,
    /// Resources of the Ray nodes, in place of those in `rayStartParams`.
    #[serde(deserialize_with = "lenient")]
    pub resources: BTreeMap<String, String>,
    /// Labels of the Ray nodes and their pods.
    #[serde(deserialize_with = "lenient")]
    pub labels: BTreeMap<String, String>,
    /// Options of `ray start`.
    #[serde(deserialize_with = "lenient")]
    pub ray_start_params: BTreeMap<String, String>,
    /// The pod. Its first container runs Ray.
    #[serde(deserialize_with = "berth_api::json::field")]
    pub template: PodTemplateSpec,
    /// Pods to delete first, chosen by the autoscaler.
    #[serde(deserialize_with = "lenient")]
    pub scale_strategy: ScaleStrategy,
    /// Pods of a replica; see [`WorkerGroupSpec::hosts`].
    pub num_of_hosts: Option<i32>,
}

impl WorkerGroupSpec {
    /// Pods of a replica, at least 1.
    pub fn hosts(&self) -> i32 {
        self.num_of_hosts.unwrap_or(1).max(1)
    }

    /// True if the group must have no pods.
    pub fn is_suspended(&self) -> bool {
        self.suspend == Some(true)
    }

    /// Lower bound of the replicas.
    pub fn replicas_min(&self) -> i32 {
        self.min_replicas.unwrap_or(0)
    }

    /// Upper bound of the replicas.
    pub fn replicas_max(&self) -> i32 {
        self.max_replicas.unwrap_or(i32::MAX)
    }

    /// Wanted replicas within the bounds; none while the group is suspended.
    pub fn desired_replicas(&self) -> i32 {
        if self.is_suspended() {
            return 0;
        }
        match self.replicas {
            Some(replicas) if replicas >= self.replicas_min() => replicas.min(self.replicas_max()),
            _ => self.replicas_min(),
        }
    }

    /// Wanted pods.
    pub fn desired_pods(&self) -> i32 {
        self.desired_replicas().saturating_mul(self.hosts())
    }
}

/// The pods that the autoscaler has chosen for deletion.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScaleStrategy {
    /// Names of pods.
    #[serde(deserialize_with = "lenient")]
    pub workers_to_delete: Vec<String>,
}

/// Options of the container of Ray's autoscaler. Set fields replace or extend those of the
/// container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AutoscalerOptions {
    /// Requests and limits. Absent: half a CPU and 512Mi.
    pub resources: Option<ResourceRequirements>,
    /// Image. Absent: that of the head's Ray container.
    pub image: Option<String>,
    /// When to pull the image.
    pub image_pull_policy: Option<String>,
    /// Security options of the container.
    pub security_context: Option<SecurityContext>,
    /// Seconds after which the autoscaler removes an idle worker.
    pub idle_timeout_seconds: Option<i32>,
    /// `v1` or `v2`. Absent: by the version of Ray.
    pub version: Option<String>,
    /// Environment variables to add.
    #[serde(deserialize_with = "lenient")]
    pub env: Vec<EnvVar>,
    /// Sources of environment variables to add.
    #[serde(deserialize_with = "lenient")]
    pub env_from: Vec<EnvFromSource>,
    /// Mounts to add.
    #[serde(deserialize_with = "lenient")]
    pub volume_mounts: Vec<VolumeMount>,
    /// Command in place of the shell.
    #[serde(deserialize_with = "lenient")]
    pub command: Vec<String>,
    /// Arguments in place of the autoscaler's command.
    #[serde(deserialize_with = "lenient")]
    pub args: Vec<String>,
}

/// Persistent store of the head's state.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GcsFaultToleranceOptions {
    /// `redis` or `rocksdb`. Absent: `redis`.
    #[serde(deserialize_with = "lenient")]
    pub backend: String,
    /// User of Redis.
    pub redis_username: Option<RedisCredential>,
    /// Password of Redis.
    pub redis_password: Option<RedisCredential>,
    /// Namespace in Redis. Absent: the UID of the cluster.
    #[serde(deserialize_with = "lenient")]
    pub external_storage_namespace: String,
    /// Address of Redis.
    #[serde(deserialize_with = "lenient")]
    pub redis_address: String,
    /// Volume of the embedded store.
    pub storage: Option<GcsStorage>,
}

impl GcsFaultToleranceOptions {
    /// True if the state is kept on a volume of the head pod.
    pub fn is_embedded(&self) -> bool {
        self.backend == "rocksdb"
    }
}

/// Volume of the head's embedded store.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GcsStorage {
    /// Name of an existing claim. Empty: a claim is created.
    #[serde(deserialize_with = "lenient")]
    pub claim_name: String,
    /// Size of the claim that is created. Absent: 1Gi.
    pub size: Option<Quantity>,
    /// Storage class of the claim that is created. Absent: the default of the Kubernetes cluster.
    pub storage_class_name: Option<String>,
    /// Access modes of the claim that is created. Empty: ReadWriteOnce.
    #[serde(deserialize_with = "lenient")]
    pub access_modes: Vec<String>,
    /// Folder in the volume for the store. Empty: the whole volume.
    #[serde(deserialize_with = "lenient")]
    pub sub_path: String,
    /// `Retain` keeps the claim when the cluster is deleted.
    pub deletion_policy: Option<String>,
}

/// A value, or its source.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RedisCredential {
    /// Source of the value.
    pub value_from: Option<EnvVarSource>,
    /// The value.
    #[serde(deserialize_with = "lenient")]
    pub value: String,
}

/// Handling of a changed spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UpgradeStrategy {
    /// `Recreate` deletes all pods when the spec changes, `None` keeps them.
    pub r#type: Option<String>,
}

/// Authentication of clients of Ray.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AuthOptions {
    /// `disabled` or `token`.
    #[serde(deserialize_with = "lenient")]
    pub mode: String,
    /// Name of the Secret with the token. Absent: a Secret is created.
    pub secret_name: Option<String>,
    /// True: the Kubernetes API server authenticates Ray's clients.
    pub enable_k8s_token_auth: Option<bool>,
}

/// States of a cluster (`status.state`); the empty string is a cluster that was never ready.
pub mod state {
    /// The head and all wanted workers have been ready at once.
    pub const READY: &str = "ready";
    /// The user has suspended the cluster, and no pod is left.
    pub const SUSPENDED: &str = "suspended";
    /// Set only by older versions of KubeRay.
    pub const FAILED: &str = "failed";
}

/// Condition types of a cluster.
pub mod condition {
    /// The head pod is ready.
    pub const HEAD_POD_READY: &str = "HeadPodReady";
    /// All pods have been ready at once. Stays true until the cluster is suspended.
    pub const PROVISIONED: &str = "RayClusterProvisioned";
    /// A pod could not be created or deleted.
    pub const REPLICA_FAILURE: &str = "ReplicaFailure";
    /// All pods are being deleted because the cluster is suspended.
    pub const SUSPENDING: &str = "RayClusterSuspending";
    /// The cluster is suspended and has no pods.
    pub const SUSPENDED: &str = "RayClusterSuspended";
}

/// Observed state of a RayCluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RayClusterStatus {
    /// One of [`state`].
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "lenient")]
    pub state: String,
    /// CPUs of all wanted pods.
    #[serde(rename = "desiredCPU", serialize_with = "quantity", deserialize_with = "lenient")]
    pub desired_cpu: Quantity,
    /// Memory of all wanted pods.
    #[serde(serialize_with = "quantity", deserialize_with = "lenient")]
    pub desired_memory: Quantity,
    /// GPUs of all wanted pods.
    #[serde(rename = "desiredGPU", serialize_with = "quantity", deserialize_with = "lenient")]
    pub desired_gpu: Quantity,
    /// TPU chips of all wanted pods.
    #[serde(rename = "desiredTPU", serialize_with = "quantity", deserialize_with = "lenient")]
    pub desired_tpu: Quantity,
    /// Time of the last write of the status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
    /// Time of the last change to each state.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "lenient")]
    pub state_transition_times: BTreeMap<String, Time>,
    /// Ports of the head's Service, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "lenient")]
    pub endpoints: BTreeMap<String, String>,
    /// The head pod and its Service.
    #[serde(deserialize_with = "lenient")]
    pub head: HeadInfo,
    /// Reason of the state.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "lenient")]
    pub reason: String,
    /// Conditions; see [`condition`].
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "lenient")]
    pub conditions: Vec<Condition>,
    /// Worker pods that are ready.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "lenient")]
    pub ready_worker_replicas: i32,
    /// Worker pods that run.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "lenient")]
    pub available_worker_replicas: i32,
    /// Worker pods that are wanted.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "lenient")]
    pub desired_worker_replicas: i32,
    /// Worker pods at the lower bounds of all groups.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "lenient")]
    pub min_worker_replicas: i32,
    /// Worker pods at the upper bounds of all groups.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "lenient")]
    pub max_worker_replicas: i32,
    /// Generation of the spec that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

impl RayClusterStatus {
    /// Reads `status` of a RayCluster. A status that cannot be read counts as absent: it is
    /// derived again.
    pub fn read(status: Option<&Value>) -> Self {
        status.and_then(|status| lenient(status).ok()).unwrap_or_default()
    }

    /// True if the condition exists and is true.
    pub fn is_true(&self, condition: &str) -> bool {
        self.conditions.iter().any(|it| it.type_ == condition && it.status == "True")
    }
}

/// The head pod and its Service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HeadInfo {
    /// Address of the pod.
    #[serde(rename = "podIP", skip_serializing_if = "String::is_empty", deserialize_with = "lenient")]
    pub pod_ip: String,
    /// Address of the Service.
    #[serde(rename = "serviceIP", skip_serializing_if = "String::is_empty", deserialize_with = "lenient")]
    pub service_ip: String,
    /// Name of the pod.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "lenient")]
    pub pod_name: String,
    /// Name of the Service.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "lenient")]
    pub service_name: String,
}

fn is_zero(value: &i32) -> bool {
    *value == 0
}

/// Writes a quantity; an unset one is written as zero.
fn quantity<S: serde::Serializer>(value: &Quantity, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(if value.0.is_empty() { "0" } else { &value.0 })
}
