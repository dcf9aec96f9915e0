//! ClusterQueue, Cohort and LocalQueue of v1beta1.

use crate::JsonSchema;
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time};
use std::collections::BTreeMap;

use crate::kueue::v1beta2::{
    ClusterQueuePreemption, FairSharing, FlavorFungibilityPreference, FlavorQuotas, FlavorUsage,
    LocalQueueFairSharingStatus, LocalQueueFlavorUsage, QueueingStrategy, StopPolicy,
};
use crate::resource::{schema_root, string_enum};
use crate::schema;

schema_root! {
    /// A pool of quota. Cluster-scoped.
    ClusterQueue {
        /// Desired state.
        #[schemars(extend("x-optional" = true))]
        spec: ClusterQueueSpec,
        /// Observed state, written by Kueue.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<ClusterQueueStatus>,
    }
}

/// Quota and policies of a [`ClusterQueue`].
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default, extend("x-rules" = [[
    "!has(self.cohort) && has(self.resourceGroups) ? self.resourceGroups.all(rg, rg.flavors.all(f, f.resources.all(r, !has(r.borrowingLimit)))) : true",
    "borrowingLimit must be nil when cohort is empty"
]]))]
pub struct ClusterQueueSpec {
    /// Groups of resources with the flavors that provide them. A resource belongs to one group
    /// only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-list" = "atomic"))]
    pub resource_groups: Vec<ResourceGroup>,
    /// Name of the cohort; `cohortName` in v1beta2.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "schema::dns_subdomain")]
    pub cohort: String,
    /// Order in which pending workloads are tried. Default `BestEffortFIFO`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "BestEffortFIFO"))]
    pub queueing_strategy: Option<QueueingStrategy>,
    /// Namespaces whose local queues may use this queue. Absent: none; empty selector: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub namespace_selector: Option<LabelSelector>,
    /// When to try the next flavor instead of borrowing or preempting in the current one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = {}))]
    pub flavor_fungibility: Option<FlavorFungibility>,
    /// Workloads that a pending workload may preempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = {}))]
    pub preemption: Option<ClusterQueuePreemption>,
    /// Admission checks of all flavors. v1beta2 has only `admissionChecksStrategy`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(length(max = 316)))]
    pub admission_checks: Vec<String>,
    /// Checks per flavor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission_checks_strategy: Option<AdmissionChecksStrategy>,
    /// Stops new admissions, and optionally evicts admitted workloads. Default `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "None"))]
    pub stop_policy: Option<StopPolicy>,
    /// Weight of this queue in fair sharing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair_sharing: Option<FairSharing>,
    /// Whether usage of the local queues influences the order of admission.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission_scope: Option<AdmissionScope>,
}

/// Resources that are assigned together.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default, extend("x-rules" = [[
    "self.flavors.all(x, size(x.resources) == size(self.coveredResources))",
    "flavors must have the same number of resources as the coveredResources"
]]))]
pub struct ResourceGroup {
    /// Resource names.
    #[schemars(length(min = 1, max = 64))]
    pub covered_resources: Vec<String>,
    /// Flavors with their quota, in the order in which they are tried.
    #[schemars(length(min = 1, max = 64), extend("x-list" = "map:name"))]
    pub flavors: Vec<FlavorQuotas>,
}

/// When to try the next flavor if this one needs borrowing or preemption.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default, extend("x-rules" = [[
    "!has(self.preference) || (self.whenCanBorrow == 'TryNextFlavor' && self.whenCanPreempt == 'TryNextFlavor')",
    "preference can only be set when both whenCanBorrow and whenCanPreempt are TryNextFlavor"
]]))]
pub struct FlavorFungibility {
    /// Policy if the flavor fits by borrowing. Default `MayStopSearch`, alias `Borrow`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "MayStopSearch"))]
    pub when_can_borrow: Option<WhenCanBorrow>,
    /// Policy if the flavor fits after preemption. Default `TryNextFlavor`; `Preempt` means
    /// `MayStopSearch`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "TryNextFlavor"))]
    pub when_can_preempt: Option<WhenCanPreempt>,
    /// Whether borrowing or preemption is preferred once every flavor was tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preference: Option<FlavorFungibilityPreference>,
}

string_enum! {
    /// Whether to try the next flavor if this one fits by borrowing.
    WhenCanBorrow {
        /// This flavor is assigned.
        MayStopSearch,
        /// The next flavor is tried first.
        TryNextFlavor,
        /// Earlier name of `MayStopSearch`.
        Borrow,
    }
}

string_enum! {
    /// Whether to try the next flavor if this one fits after preemption. Default `TryNextFlavor`.
    WhenCanPreempt {
        /// This flavor is assigned.
        MayStopSearch,
        /// The next flavor is tried first.
        TryNextFlavor,
        /// Earlier name of `MayStopSearch`.
        Preempt,
    }
}

/// Admission checks of a queue.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct AdmissionChecksStrategy {
    /// Checks with the flavors they apply to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub admission_checks: Vec<AdmissionCheckStrategyRule>,
}

/// A check and the flavors it applies to.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct AdmissionCheckStrategyRule {
    /// Name of the AdmissionCheck.
    #[schemars(length(max = 316))]
    pub name: String,
    /// Flavors whose assignment requires the check. Empty: all flavors of the queue.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(length(max = 253), regex(pattern = schema::DNS_SUBDOMAIN)))]
    pub on_flavors: Vec<String>,
}

/// Scope of admission fair sharing.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct AdmissionScope {
    /// `UsageBasedAdmissionFairSharing` or `NoAdmissionFairSharing`.
    pub admission_mode: String,
}

/// Observed state of a [`ClusterQueue`].
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct ClusterQueueStatus {
    /// Conditions of the queue, such as `Active`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Quota reserved by workloads, per flavor and resource.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-list" = "map:name"))]
    pub flavors_reservation: Vec<FlavorUsage>,
    /// Quota used by admitted workloads, per flavor and resource.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-list" = "map:name"))]
    pub flavors_usage: Vec<FlavorUsage>,
    /// Number of workloads that wait for quota.
    #[schemars(extend("x-optional" = true))]
    pub pending_workloads: i32,
    /// Number of workloads that hold quota, admitted or not.
    #[schemars(extend("x-optional" = true))]
    pub reserving_workloads: i32,
    /// Number of admitted workloads that have not finished.
    #[schemars(extend("x-optional" = true))]
    pub admitted_workloads: i32,
    /// No longer written. v1beta2 does not have this field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending_workloads_status: Option<ClusterQueuePendingWorkloadsStatus>,
    /// Share in the cohort, if fair sharing is enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair_sharing: Option<LocalQueueFairSharingStatus>,
}

/// The first pending workloads of a queue.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct ClusterQueuePendingWorkloadsStatus {
    /// The workloads in the order in which they are tried.
    #[serde(rename = "clusterQueuePendingWorkload", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-list" = "atomic"))]
    pub head: Vec<ClusterQueuePendingWorkload>,
    /// Time of the last change of the list.
    #[schemars(schema_with = "schema::time")]
    pub last_change_time: Time,
}

/// A pending workload.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct ClusterQueuePendingWorkload {
    /// Name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
}

schema_root! {
    /// A group of cluster queues and cohorts that share quota. Cluster-scoped.
    Cohort {
        /// Desired state.
        #[schemars(extend("x-optional" = true))]
        spec: CohortSpec,
        /// Observed state, written by Kueue.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<CohortStatus>,
    }
}

/// Quota and parent of a [`Cohort`].
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct CohortSpec {
    /// Name of the parent cohort. Empty: this cohort is a root.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "schema::dns_subdomain")]
    pub parent_name: String,
    /// Quota of the cohort itself, lent to its members.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-list" = "atomic"))]
    pub resource_groups: Vec<ResourceGroup>,
    /// Weight of this cohort among its siblings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair_sharing: Option<FairSharing>,
}

/// Observed state of a [`Cohort`].
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct CohortStatus {
    /// Share in the parent cohort, if fair sharing is enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair_sharing: Option<LocalQueueFairSharingStatus>,
}

schema_root! {
    /// The queue that a job names; submits workloads to one ClusterQueue. Namespaced.
    LocalQueue {
        /// Desired state.
        #[schemars(extend("x-optional" = true))]
        spec: crate::kueue::v1beta2::LocalQueueSpec,
        /// Observed state, written by Kueue.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<LocalQueueStatus>,
    }
}

/// Observed state of a [`LocalQueue`].
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct LocalQueueStatus {
    /// Conditions of the queue, such as `Active`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
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
    /// Quota used by this queue's admitted workloads; `flavorsUsage` in v1beta2.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-list" = "map:name"))]
    pub flavor_usage: Vec<LocalQueueFlavorUsage>,
    /// Flavors of the ClusterQueue. v1beta2 does not have this field.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-list" = "map:name"))]
    pub flavors: Vec<LocalQueueFlavorStatus>,
    /// Usage in admission fair sharing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair_sharing: Option<LocalQueueFairSharingStatus>,
}

/// A flavor as shown to users of a local queue.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct LocalQueueFlavorStatus {
    /// Name of the flavor.
    #[schemars(schema_with = "schema::dns_subdomain")]
    pub name: String,
    /// Resources it provides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-list" = "set"))]
    pub resources: Vec<String>,
    /// Labels of its nodes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 8, "x-kubernetes-map-type" = "atomic"))]
    pub node_labels: BTreeMap<String, String>,
    /// Taints of its nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::unchecked_node_taints")]
    pub node_taints: Vec<Taint>,
    /// Topology of the flavor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<TopologyInfo>,
}

/// A topology as shown to users of a local queue.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct TopologyInfo {
    /// Name of the topology.
    #[schemars(schema_with = "schema::dns_subdomain")]
    pub name: String,
    /// Node labels of its levels.
    #[schemars(length(min = 1, max = 16), extend("x-list" = "atomic"))]
    pub levels: Vec<String>,
}
