//! LocalQueue: the queue through which a namespace uses a ClusterQueue.

use crate::JsonSchema;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde::{Deserialize, Serialize};

use super::{FairSharing, ResourceList, StopPolicy};
use crate::resource::{always_written, custom_resource, zero_time};
#[cfg(feature = "schema")]
use crate::schema;

custom_resource! {
    /// The queue named by a job's label `kueue.x-k8s.io/queue-name`; submits to one ClusterQueue.
    /// Namespaced.
    LocalQueue: namespaced "kueue.x-k8s.io" "v1beta2" "localqueues" {
        /// Desired state.
        #[schemars(extend("x-optional" = true))]
        spec: LocalQueueSpec,
        /// Observed state, written by Kueue.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<LocalQueueStatus>,
    }
}
always_written!(LocalQueueSpec);

/// Target and policy of a [`LocalQueue`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct LocalQueueSpec {
    /// Name of the ClusterQueue. Immutable.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "schema::dns_subdomain", extend("x-rules" = [["self == oldSelf", "field is immutable"]]))]
    pub cluster_queue: String,
    /// Stops new admissions, and optionally evicts admitted workloads. Default `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "None"))]
    pub stop_policy: Option<StopPolicy>,
    /// Weight of this queue in admission fair sharing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair_sharing: Option<FairSharing>,
}

/// Observed state of a [`LocalQueue`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct LocalQueueStatus {
    /// Conditions of the queue, such as `Active`.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::resource::conditions")]
    #[schemars(schema_with = "schema::conditions", length(max = 16))]
    pub conditions: Vec<Condition>,
    /// Number of workloads that wait for quota.
    #[schemars(extend("x-optional" = true))]
    pub pending_workloads: i32,
    /// Number of workloads that hold quota, admitted or not.
    #[schemars(extend("x-optional" = true))]
    pub reserving_workloads: i32,
    /// Number of admitted workloads that have not finished.
    #[schemars(extend("x-optional" = true))]
    pub admitted_workloads: i32,
    /// Quota reserved by this queue's workloads, per flavor and resource.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-list" = "map:name"))]
    pub flavors_reservation: Vec<LocalQueueFlavorUsage>,
    /// Quota used by this queue's admitted workloads, per flavor and resource.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-list" = "map:name"))]
    pub flavors_usage: Vec<LocalQueueFlavorUsage>,
    /// Usage in admission fair sharing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair_sharing: Option<LocalQueueFairSharingStatus>,
}

/// Usage of one flavor by a local queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct LocalQueueFlavorUsage {
    /// Name of the flavor.
    #[schemars(schema_with = "schema::dns_subdomain")]
    pub name: String,
    /// Usage per resource.
    #[schemars(length(max = 64), extend("x-list" = "map:name"))]
    pub resources: Vec<LocalQueueResourceUsage>,
}

/// Usage of one resource by a local queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct LocalQueueResourceUsage {
    /// Resource name.
    pub name: String,
    /// Amount used.
    #[serde(serialize_with = "crate::resource::quantity")]
    #[schemars(schema_with = "schema::quantity", extend("x-optional" = true))]
    pub total: Quantity,
}

/// Share of a local queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct LocalQueueFairSharingStatus {
    /// Weighted share, as for a ClusterQueue.
    pub weighted_share: i64,
    /// Decayed usage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission_fair_sharing_status: Option<AdmissionFairSharingStatus>,
}

/// Usage remembered by admission fair sharing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct AdmissionFairSharingStatus {
    /// Exponentially decayed usage per resource.
    #[schemars(schema_with = "schema::quantity_map")]
    pub consumed_resources: ResourceList,
    /// Time at which `consumedResources` was computed.
    #[serde(deserialize_with = "crate::resource::time_or_zero")]
    #[schemars(schema_with = "schema::time")]
    pub last_update: Time,
}

impl Default for AdmissionFairSharingStatus {
    fn default() -> Self {
        Self { consumed_resources: ResourceList::new(), last_update: zero_time() }
    }
}
