//! Spec and status of a TrainJob and the policies of its runtime, as far as the controllers read
//! and write them. Templates stay JSON.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::constants::{CONTROLLER_NAME, GROUP};
use crate::ray::types::lenient;

/// Desired state of a TrainJob.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TrainJobSpec {
    /// The runtime.
    #[serde(deserialize_with = "lenient")]
    pub runtime_ref: RuntimeRef,
    /// Steps before the training.
    #[serde(deserialize_with = "lenient")]
    pub initializer: Initializers,
    /// The training.
    pub trainer: Option<Trainer>,
    /// Patches of the runtime, applied in order.
    #[serde(deserialize_with = "lenient")]
    pub runtime_patches: Vec<RuntimePatch>,
    /// Overrides of pods, of Trainer 2.0 and 2.1; applied before the patches.
    #[serde(deserialize_with = "lenient")]
    pub pod_template_overrides: Vec<PodTemplateOverride>,
    /// Suspends the job.
    #[serde(deserialize_with = "lenient")]
    pub suspend: bool,
    /// Seconds after which the job fails, counted from its creation or its last resumption.
    pub active_deadline_seconds: Option<i64>,
    /// Controller that runs the job. Absent: this operator.
    pub managed_by: Option<String>,
}

impl TrainJobSpec {
    /// Reads `spec` of a TrainJob.
    ///
    /// # Errors
    /// A field has another type.
    pub fn read(spec: &Value) -> Result<Self, serde_json::Error> {
        lenient(spec)
    }

    /// True if another controller runs the job.
    pub fn is_managed_elsewhere(&self) -> bool {
        self.managed_by.as_deref().is_some_and(|manager| !manager.is_empty() && manager != CONTROLLER_NAME)
    }

    /// Number of training nodes, if the job sets it.
    pub fn nodes(&self) -> Option<i32> {
        self.trainer.as_ref()?.num_nodes
    }

    /// Processes per node, if the job sets them.
    pub fn processes(&self) -> Option<i32> {
        self.trainer.as_ref()?.num_proc_per_node
    }

    /// Environment of the training.
    pub fn env(&self) -> &[Value] {
        self.trainer.as_ref().map_or(&[], |trainer| &trainer.env)
    }
}

/// Reference to a runtime.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RuntimeRef {
    /// API group. Absent: that of Trainer.
    pub api_group: Option<String>,
    /// Kind. Absent: ClusterTrainingRuntime.
    pub kind: Option<String>,
    /// Name.
    #[serde(deserialize_with = "lenient")]
    pub name: String,
}

/// A kind of runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeKind {
    /// In the namespace of the job.
    Namespaced,
    /// For the whole cluster.
    Cluster,
}

impl RuntimeKind {
    /// Name of the kind.
    pub fn as_str(self) -> &'static str {
        match self {
            RuntimeKind::Namespaced => "TrainingRuntime",
            RuntimeKind::Cluster => "ClusterTrainingRuntime",
        }
    }
}

impl RuntimeRef {
    /// Kind and group, as upstream writes them: `Kind.group`.
    pub fn group_kind(&self) -> String {
        let kind = self.kind.as_deref().unwrap_or(RuntimeKind::Cluster.as_str());
        match self.api_group.as_deref().unwrap_or(GROUP) {
            "" => kind.to_owned(),
            group => format!("{kind}.{group}"),
        }
    }

    /// The kind.
    ///
    /// # Errors
    /// Another kind; returns the message.
    pub fn kind(&self) -> Result<RuntimeKind, String> {
        let kinds = [RuntimeKind::Namespaced, RuntimeKind::Cluster];
        let found = kinds.into_iter().find(|kind| self.group_kind() == format!("{}.{GROUP}", kind.as_str()));
        found.ok_or_else(|| format!("unsupported runtime: {}", self.group_kind()))
    }
}

/// Steps before the training.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Initializers {
    /// Loads the data set.
    pub dataset: Option<Initializer>,
    /// Loads the model.
    pub model: Option<Initializer>,
}

/// A step before the training.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Initializer {
    /// Address of what is loaded.
    pub storage_uri: Option<String>,
    /// Environment.
    #[serde(deserialize_with = "lenient")]
    pub env: Vec<Value>,
    /// Secret whose entries become environment variables.
    pub secret_ref: Option<Value>,
}

/// The training.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Trainer {
    /// Image.
    pub image: Option<String>,
    /// Command.
    pub command: Option<Vec<String>>,
    /// Arguments.
    pub args: Option<Vec<String>>,
    /// Environment.
    #[serde(deserialize_with = "lenient")]
    pub env: Vec<Value>,
    /// Number of nodes.
    pub num_nodes: Option<i32>,
    /// Resources of each node.
    pub resources_per_node: Option<Value>,
    /// Processes per node.
    pub num_proc_per_node: Option<i32>,
}

/// A patch of the runtime.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RuntimePatch {
    /// Owner of the patch.
    #[serde(deserialize_with = "lenient")]
    pub manager: String,
    /// The patched fields of the runtime.
    #[serde(deserialize_with = "lenient")]
    pub training_runtime_spec: PatchedRuntime,
}

/// The patched fields of a runtime.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PatchedRuntime {
    /// The patched fields of the JobSet.
    #[serde(deserialize_with = "lenient")]
    pub template: PatchedTemplate,
}

/// The patched fields of a JobSet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PatchedTemplate {
    /// Labels and annotations.
    #[serde(deserialize_with = "lenient")]
    pub metadata: PatchedMetadata,
    /// Replicated jobs.
    #[serde(deserialize_with = "lenient")]
    pub spec: PatchedSpec,
}

/// Patched labels and annotations.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PatchedMetadata {
    /// Labels to set.
    #[serde(deserialize_with = "lenient")]
    pub labels: BTreeMap<String, String>,
    /// Annotations to set.
    #[serde(deserialize_with = "lenient")]
    pub annotations: BTreeMap<String, String>,
}

/// The patched replicated jobs.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PatchedSpec {
    /// The jobs by name.
    #[serde(deserialize_with = "lenient")]
    pub replicated_jobs: Vec<PatchedJob>,
}

/// A patched replicated job.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PatchedJob {
    /// Name.
    #[serde(deserialize_with = "lenient")]
    pub name: String,
    /// Metadata of the Job, and its pod template at `spec.template`.
    pub template: Value,
}

/// Override of the pods of some replicated jobs.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodTemplateOverride {
    /// The replicated jobs.
    #[serde(deserialize_with = "lenient")]
    pub target_jobs: Vec<TargetJob>,
    /// Labels and annotations of the pods.
    pub metadata: Option<Value>,
    /// Fields of the pods.
    pub spec: Option<Value>,
}

/// A replicated job, by name.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct TargetJob {
    /// Name.
    #[serde(default, deserialize_with = "lenient")]
    pub name: String,
}

/// Desired state of a runtime.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RuntimeSpec {
    /// How the nodes find each other.
    pub ml_policy: Option<MlPolicy>,
    /// How the nodes are scheduled together.
    #[serde(deserialize_with = "lenient")]
    pub pod_group_policy: PodGroupPolicy,
    /// Metadata and spec of a JobSet.
    #[serde(deserialize_with = "lenient")]
    pub template: Template,
}

/// Metadata and spec of a JobSet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Template {
    /// Labels and annotations.
    #[serde(deserialize_with = "lenient")]
    pub metadata: PatchedMetadata,
    /// The spec as JSON.
    pub spec: Value,
}

/// How the nodes of a training find each other. At most one of the frameworks is set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MlPolicy {
    /// Number of nodes. Absent: 1.
    pub num_nodes: Option<i32>,
    /// PyTorch.
    pub torch: Option<TorchPolicy>,
    /// MPI.
    pub mpi: Option<MpiPolicy>,
    /// JAX.
    pub jax: Option<Value>,
    /// XGBoost.
    pub xgboost: Option<Value>,
    /// Flux.
    pub flux: Option<Value>,
}

/// Policy of PyTorch.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TorchPolicy {
    /// Further containers that get the environment.
    #[serde(deserialize_with = "lenient")]
    pub env_injection: EnvInjection,
}

/// Further containers that get the environment.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EnvInjection {
    /// The containers by replicated job.
    #[serde(deserialize_with = "lenient")]
    pub targets: Vec<EnvTarget>,
}

/// Containers of a replicated job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EnvTarget {
    /// Name of the replicated job.
    #[serde(deserialize_with = "lenient")]
    pub job_name: String,
    /// Names of its containers.
    #[serde(deserialize_with = "lenient")]
    pub container_names: Vec<String>,
}

/// Policy of MPI.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MpiPolicy {
    /// Processes per node. Absent: 1.
    pub num_proc_per_node: Option<i32>,
    /// Folder of the SSH keys. Absent: that of root.
    pub ssh_auth_mount_path: Option<String>,
    /// The launcher is a training node too.
    #[serde(deserialize_with = "lenient")]
    pub run_launcher_as_node: bool,
}

/// How the nodes are scheduled together.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodGroupPolicy {
    /// By a PodGroup of the coscheduling plug-in.
    pub coscheduling: Option<Coscheduling>,
    /// By a PodGroup of Volcano.
    pub volcano: Option<Value>,
}

/// Options of a PodGroup.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Coscheduling {
    /// Seconds that pods wait for their group. Absent: 60.
    pub schedule_timeout_seconds: Option<i32>,
}

/// Observed state of a TrainJob.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TrainJobStatus {
    /// `Suspended`, `Complete` and `Failed`.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "lenient")]
    pub conditions: Vec<Condition>,
    /// Child Jobs by replicated job.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "lenient")]
    pub jobs_status: Vec<JobStatus>,
    /// Progress that the training reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trainer_status: Option<Value>,
}

impl TrainJobStatus {
    /// Reads `status`. A status that cannot be read counts as absent: it is derived again.
    pub fn read(status: Option<&Value>) -> Self {
        status.and_then(|status| lenient(status).ok()).unwrap_or_default()
    }

    /// True if the condition is there and true.
    pub fn is_true(&self, condition: &str) -> bool {
        self.conditions.iter().any(|it| it.type_ == condition && it.status == "True")
    }

    /// True if the job has completed or failed.
    pub fn is_finished(&self) -> bool {
        self.is_true("Complete") || self.is_true("Failed")
    }
}

/// Child Jobs of a replicated job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobStatus {
    /// Name of the replicated job.
    pub name: String,
    /// Jobs whose pods are ready or succeeded.
    pub ready: i32,
    /// Jobs that completed.
    pub succeeded: i32,
    /// Jobs that failed.
    pub failed: i32,
    /// Jobs with pods that run or start.
    pub active: i32,
    /// Suspended Jobs.
    pub suspended: i32,
}
