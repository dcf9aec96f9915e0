//! Spec and status of a LeaderWorkerSet, as far as the controllers read and write them. Pod
//! templates stay JSON and are passed on whole.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ray::types::lenient;

/// Desired state of a LeaderWorkerSet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaderWorkerSetSpec {
    /// Number of groups. Absent: 1.
    pub replicas: Option<i32>,
    /// The pods of a group.
    #[serde(deserialize_with = "lenient")]
    pub leader_worker_template: LeaderWorkerTemplate,
    /// How groups are replaced when the templates change.
    #[serde(deserialize_with = "lenient")]
    pub rollout_strategy: RolloutStrategy,
    /// When the workers of a group are created.
    #[serde(deserialize_with = "lenient")]
    pub startup_policy: String,
    /// Which Services the groups have.
    pub network_config: Option<NetworkConfig>,
}

impl LeaderWorkerSetSpec {
    /// Reads `spec` of a LeaderWorkerSet.
    ///
    /// # Errors
    /// A field has another type.
    pub fn read(spec: &Value) -> Result<Self, serde_json::Error> {
        lenient(spec)
    }

    /// Number of wanted groups.
    pub fn groups(&self) -> i32 {
        self.replicas.unwrap_or(1)
    }

    /// Pods per group.
    pub fn size(&self) -> i32 {
        self.leader_worker_template.size.unwrap_or(1)
    }

    /// True if each group has a Service of its own.
    pub fn has_service_per_group(&self) -> bool {
        self.network_config.as_ref().is_some_and(|network| network.subdomain_policy == "UniquePerReplica")
    }

    /// True if the workers of a group are created once its leader is ready.
    pub fn waits_for_leader(&self) -> bool {
        self.startup_policy == "LeaderReady"
    }
}

/// The pods of a group.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaderWorkerTemplate {
    /// The leader. Absent: like the workers.
    pub leader_template: Option<Value>,
    /// The workers.
    pub worker_template: Value,
    /// Pods per group, the leader included. Absent: 1.
    pub size: Option<i32>,
    /// Whether a group is recreated when one of its pods restarts.
    #[serde(deserialize_with = "lenient")]
    pub restart_policy: String,
    /// Division of the group.
    pub sub_group_policy: Option<SubGroupPolicy>,
    /// Claims of each pod.
    #[serde(deserialize_with = "lenient")]
    pub volume_claim_templates: Vec<Value>,
    /// When claims are deleted.
    pub persistent_volume_claim_retention_policy: Option<Value>,
}

/// Division of a group into subgroups.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SubGroupPolicy {
    /// `LeaderExcluded`: the leader belongs to no subgroup.
    pub sub_group_policy_type: Option<String>,
    /// Pods per subgroup.
    pub sub_group_size: Option<i32>,
}

/// How groups are replaced when the templates change.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutStrategy {
    /// `RollingUpdate`.
    #[serde(deserialize_with = "lenient")]
    pub r#type: String,
    /// Bounds of the update.
    pub rolling_update_configuration: Option<RollingUpdate>,
}

/// Bounds of a rolling update.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RollingUpdate {
    /// Groups with a lower index keep their revision.
    pub partition: Option<i32>,
    /// Groups that may be unavailable, as a number or a percentage. Absent: 1.
    pub max_unavailable: Option<Value>,
    /// Groups that may exist beyond the wanted ones, as a number or a percentage. Absent: 0.
    pub max_surge: Option<Value>,
}

/// Services of the groups.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkConfig {
    /// `Shared`: one Service for the set. `UniquePerReplica`: one per group.
    #[serde(deserialize_with = "lenient")]
    pub subdomain_policy: String,
}

/// Observed state of a LeaderWorkerSet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaderWorkerSetStatus {
    /// `Available`, `Progressing` and `UpdateInProgress`.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "lenient")]
    pub conditions: Vec<Condition>,
    /// Groups whose pods are all ready.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "lenient")]
    pub ready_replicas: i32,
    /// Groups of the current revision.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "lenient")]
    pub updated_replicas: i32,
    /// Leaders that exist.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "lenient")]
    pub replicas: i32,
    /// Selector of the leaders, for autoscalers.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "lenient")]
    pub hpa_pod_selector: String,
    /// Generation of the spec that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

impl LeaderWorkerSetStatus {
    /// Reads `status`. A status that cannot be read counts as absent: it is derived again.
    pub fn read(status: Option<&Value>) -> Self {
        status.and_then(|status| lenient(status).ok()).unwrap_or_default()
    }
}

fn is_zero(value: &i32) -> bool {
    *value == 0
}
