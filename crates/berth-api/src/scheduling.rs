//! `scheduling.x-k8s.io/v1alpha1`: PodGroup, the gang of the coscheduling plugin, and the labels
//! and ConfigMap keys of Sakkara's groups and topologies, which have no kind of their own.

use std::collections::BTreeMap;

use crate::JsonSchema;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use crate::resource::{always_written, custom_resource, is_zero};

/// Pod label: the PodGroup of the pod, in its namespace.
pub const POD_GROUP_LABEL: &str = "scheduling.x-k8s.io/pod-group";

/// Label of a ConfigMap with a Sakkara topology; any value.
pub const SAKKARA_TOPOLOGY_LABEL: &str = "sakkara.topology";
/// Label of a ConfigMap with a Sakkara group; any value.
pub const SAKKARA_GROUP_LABEL: &str = "sakkara.group";
/// Pod label: the Sakkara group of the pod, `data.name` of a ConfigMap in its namespace.
pub const SAKKARA_GROUP_NAME_LABEL: &str = "sakkara.group.name";
/// Pod label written by the scheduler: the rank of the pod in its group.
pub const SAKKARA_RANK_LABEL: &str = "sakkara.member.rank";
/// Pod label written by the scheduler: how often placing the pod's group failed before.
pub const SAKKARA_RETRIES_LABEL: &str = "sakkara.member.retries";
/// Pod label written by the scheduler: `Bound`.
pub const SAKKARA_STATUS_LABEL: &str = "sakkara.member.status";

custom_resource! {
    /// Pods of one namespace that are scheduled together. Namespaced.
    PodGroup: namespaced "scheduling.x-k8s.io" "v1alpha1" "podgroups" {
        /// Desired state.
        spec: PodGroupSpec,
        /// Observed state, written by the PodGroup controller. The scheduler does not read it.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<PodGroupStatus>,
    }
}
always_written!(PodGroupSpec);

/// Desired state of a [`PodGroup`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct PodGroupSpec {
    /// Number of pods that must have a node before any of them is bound.
    #[schemars(range(min = 1), extend("x-required" = true))]
    pub min_member: i32,
    /// Amounts that the free capacity of all nodes must cover before the group is tried.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub min_resources: BTreeMap<String, Quantity>,
    /// Seconds for which placed pods wait for the rest of the group; default the scheduler's
    /// `permitWaitingTimeSeconds`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_timeout_seconds: Option<i32>,
}

/// Observed state of a [`PodGroup`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct PodGroupStatus {
    /// Phase: `Pending`, `Scheduling`, `Running`, `Finished` or `Failed`; empty before the
    /// controller has seen the group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// Owner of the group's first pod, as `namespace/name`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub occupied_by: String,
    /// Number of running pods.
    #[serde(skip_serializing_if = "is_zero")]
    pub running: i32,
    /// Number of pods that succeeded.
    #[serde(skip_serializing_if = "is_zero")]
    pub succeeded: i32,
    /// Number of pods that failed.
    #[serde(skip_serializing_if = "is_zero")]
    pub failed: i32,
    /// When the group got enough pods to be scheduled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_start_time: Option<Time>,
}
