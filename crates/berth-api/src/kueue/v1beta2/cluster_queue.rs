//! ClusterQueue: quota for groups of resources, and the rules by which workloads of many namespaces
//! share it.

use std::collections::BTreeMap;

use crate::JsonSchema;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use serde::{Deserialize, Serialize};

use super::FairSharing;
use crate::resource::{always_written, custom_resource, string_enum};
#[cfg(feature = "schema")]
use crate::schema;

custom_resource! {
    /// A pool of quota from which the workloads of its local queues are admitted. Cluster-scoped.
    ClusterQueue: cluster "kueue.x-k8s.io" "v1beta2" "clusterqueues" {
        /// Desired state.
        #[schemars(extend("x-optional" = true))]
        spec: ClusterQueueSpec,
        /// Observed state, written by Kueue.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<ClusterQueueStatus>,
    }
}
always_written!(ClusterQueueSpec);

/// Quota and policies of a [`ClusterQueue`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default, extend("x-rules" = [[
    "!has(self.cohortName) && has(self.resourceGroups) ? self.resourceGroups.all(rg, rg.flavors.all(f, f.resources.all(r, !has(r.borrowingLimit)))) : true",
    "borrowingLimit must be nil when cohort is empty"
]]))]
pub struct ClusterQueueSpec {
    /// Groups of resources with the flavors that provide them. A resource belongs to one group
    /// only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-list" = "atomic"))]
    pub resource_groups: Vec<ResourceGroup>,
    /// Name of the cohort whose unused quota this queue may borrow. Empty: no cohort, no borrowing.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "schema::dns_subdomain")]
    pub cohort_name: String,
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
    /// Checks a workload must pass after its quota is reserved, per flavor.
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
    /// Tries a workload in several flavors at once, and sets whether it migrates to a preferred
    /// flavor later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrent_admission_policy: Option<ConcurrentAdmissionPolicy>,
}

string_enum! {
    /// Order in which a queue's pending workloads are tried.
    QueueingStrategy {
        /// Later workloads that fit are admitted before an earlier workload that does not fit.
        BestEffortFIFO,
        /// A workload that does not fit blocks all later ones.
        StrictFIFO,
    }
}

string_enum! {
    /// Whether a queue admits workloads.
    StopPolicy {
        /// Workloads are admitted.
        None,
        /// No workload is admitted, reservations are released, admitted workloads keep running.
        Hold,
        /// Like `Hold`, and admitted workloads are evicted.
        HoldAndDrain,
    }
}

/// Resources that are assigned together: all resources of a group come from the same flavor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default, extend("x-rules" = [[
    "self.flavors.all(x, size(x.resources) == size(self.coveredResources))",
    "flavors must have the same number of resources as the coveredResources"
]]))]
pub struct ResourceGroup {
    /// Resource names, for example `cpu`, `memory`, `nvidia.com/gpu`.
    #[schemars(length(min = 1, max = 64), extend("x-list" = "atomic"))]
    pub covered_resources: Vec<String>,
    /// Flavors with their quota, in the order in which they are tried.
    #[schemars(length(min = 1, max = 64), extend("x-list" = "map:name"))]
    pub flavors: Vec<FlavorQuotas>,
}

/// Quota of one flavor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct FlavorQuotas {
    /// Name of the ResourceFlavor.
    #[schemars(schema_with = "schema::dns_subdomain")]
    pub name: String,
    /// One entry per covered resource, in the same order.
    #[schemars(length(min = 1, max = 64), extend("x-list" = "map:name"))]
    pub resources: Vec<ResourceQuota>,
}

/// Quota of one resource in one flavor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct ResourceQuota {
    /// Resource name.
    pub name: String,
    /// Amount that the queue owns.
    #[serde(serialize_with = "crate::resource::quantity")]
    #[schemars(schema_with = "schema::quantity")]
    pub nominal_quota: Quantity,
    /// Maximum amount used above the nominal quota. Absent: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub borrowing_limit: Option<Quantity>,
    /// Maximum amount of unused nominal quota that is lent. Absent: all of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub lending_limit: Option<Quantity>,
}

/// When to try the next flavor if this one needs borrowing or preemption.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default, extend("x-rules" = [[
    "!has(self.preference) || (self.whenCanBorrow == 'TryNextFlavor' && self.whenCanPreempt == 'TryNextFlavor')",
    "preference can only be set when both whenCanBorrow and whenCanPreempt are TryNextFlavor"
]]))]
pub struct FlavorFungibility {
    /// Policy if the flavor fits by borrowing. Default `MayStopSearch`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "MayStopSearch"))]
    pub when_can_borrow: Option<FlavorFungibilityPolicy>,
    /// Policy if the flavor fits after preemption. Default `TryNextFlavor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "TryNextFlavor"))]
    pub when_can_preempt: Option<FlavorFungibilityPolicy>,
    /// Whether borrowing or preemption is preferred once every flavor was tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preference: Option<FlavorFungibilityPreference>,
}

string_enum! {
    /// Whether to try the next flavor. The default differs per field, see [`FlavorFungibility`].
    FlavorFungibilityPolicy {
        /// This flavor is assigned.
        MayStopSearch,
        /// The next flavor is tried first.
        TryNextFlavor,
    }
}

string_enum! {
    /// Preference among flavors that all need borrowing or preemption.
    FlavorFungibilityPreference {
        /// A flavor that fits by borrowing is better than one that needs preemption.
        BorrowingOverPreemption,
        /// A flavor that needs preemption is better than one that borrows.
        PreemptionOverBorrowing,
    }
}

/// Workloads that a pending workload of this queue may preempt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default, extend("x-rules" = [[
    "!(self.reclaimWithinCohort == 'Never' && has(self.borrowWithinCohort) &&  self.borrowWithinCohort.policy != 'Never')",
    "reclaimWithinCohort=Never and borrowWithinCohort.Policy!=Never"
]]))]
pub struct ClusterQueuePreemption {
    /// Workloads of borrowing queues, if the pending workload fits within nominal quota. Default
    /// `Never`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Never"))]
    pub reclaim_within_cohort: Option<ReclaimWithinCohort>,
    /// Workloads of other queues, if the pending workload has to borrow.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = {}))]
    pub borrow_within_cohort: Option<BorrowWithinCohort>,
    /// Workloads of the same queue. Default `Never`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Never"))]
    pub within_cluster_queue: Option<WithinClusterQueue>,
}

string_enum! {
    /// Workloads of borrowing queues that a workload within nominal quota may preempt.
    ReclaimWithinCohort {
        /// None.
        Never,
        /// Those of lower priority.
        LowerPriority,
        /// All.
        Any,
    }
}

string_enum! {
    /// Workloads of its own queue that a pending workload may preempt.
    WithinClusterQueue {
        /// None.
        Never,
        /// Those of lower priority.
        LowerPriority,
        /// Those of lower priority, or of equal priority and newer.
        LowerOrNewerEqualPriority,
    }
}

/// Preemption in other queues by a workload that borrows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct BorrowWithinCohort {
    /// Which workloads of other queues may be preempted. Default `Never`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Never"))]
    pub policy: Option<BorrowWithinCohortPolicy>,
    /// Only workloads of at most this priority are preempted. Absent: all of lower priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_priority_threshold: Option<i32>,
}

string_enum! {
    /// Workloads of other queues that a borrowing workload may preempt.
    BorrowWithinCohortPolicy {
        /// None.
        Never,
        /// Those of lower priority.
        LowerPriority,
    }
}

/// Admission checks of a queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct AdmissionChecksStrategy {
    /// Checks with the flavors they apply to.
    #[schemars(length(min = 1, max = 64), extend("x-list" = "map:name"))]
    pub admission_checks: Vec<AdmissionCheckStrategyRule>,
}

/// A check and the flavors it applies to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct AdmissionCheckStrategyRule {
    /// Name of the AdmissionCheck.
    #[schemars(length(min = 1, max = 316))]
    pub name: String,
    /// Flavors whose assignment requires the check. Empty: all flavors of the queue.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        inner(length(max = 253), regex(pattern = schema::DNS_SUBDOMAIN)),
        extend("x-list" = "set")
    )]
    pub on_flavors: Vec<String>,
}

/// Scope of admission fair sharing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct AdmissionScope {
    /// How usage influences the order of admission.
    pub admission_mode: AdmissionMode,
}

string_enum! {
    /// How past usage of local queues influences the order of admission.
    AdmissionMode {
        /// Usage does not influence the order.
        NoAdmissionFairSharing,
        /// Local queues with less decayed usage come first.
        UsageBasedAdmissionFairSharing,
    }
}

/// Admission of one workload in several flavors at once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct ConcurrentAdmissionPolicy {
    /// What happens after the first flavor admitted the workload.
    pub migration: ConcurrentAdmissionMigration,
}

/// Migration to a preferred flavor after admission.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct ConcurrentAdmissionMigration {
    /// Whether the workload migrates.
    #[schemars(length(max = 253))]
    pub mode: ConcurrentAdmissionMode,
    /// Limits of the migration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constraints: Option<ConcurrentAdmissionConstraints>,
}

string_enum! {
    /// What happens to the variants in other flavors once one is admitted.
    ConcurrentAdmissionMode {
        /// Variants in preferred flavors stay pending; the workload migrates when one is admitted.
        TryPreferredFlavors,
        /// The first admission is kept.
        RetainFirstAdmission,
    }
}

/// Limits of concurrent admission.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct ConcurrentAdmissionConstraints {
    /// Last flavor, in the order of the resource group, to which a workload may migrate.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "schema::dns_subdomain")]
    pub last_acceptable_flavor_name: String,
}

/// Observed state of a [`ClusterQueue`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct ClusterQueueStatus {
    /// Conditions of the queue, such as `Active`.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::resource::conditions")]
    #[schemars(schema_with = "schema::conditions", length(max = 16))]
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
    /// Share in the cohort, if fair sharing is enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair_sharing: Option<FairSharingStatus>,
}

/// Usage of one flavor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct FlavorUsage {
    /// Name of the flavor.
    #[schemars(schema_with = "schema::dns_subdomain")]
    pub name: String,
    /// Usage per resource.
    #[schemars(length(max = 64), extend("x-list" = "map:name"))]
    pub resources: Vec<ResourceUsage>,
}

/// Usage of one resource.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct ResourceUsage {
    /// Resource name.
    pub name: String,
    /// Amount used, including borrowed quota.
    #[serde(serialize_with = "crate::resource::quantity")]
    #[schemars(schema_with = "schema::quantity", extend("x-optional" = true))]
    pub total: Quantity,
    /// Part of `total` above the nominal quota.
    #[serde(serialize_with = "crate::resource::quantity")]
    #[schemars(schema_with = "schema::quantity", extend("x-optional" = true))]
    pub borrowed: Quantity,
}

/// Share of a queue or cohort.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct FairSharingStatus {
    /// Largest ratio, over resources, of borrowed amount to what the cohort can lend, divided by
    /// the weight, in thousandths. 9223372036854775807 when a queue of weight 0 borrows.
    pub weighted_share: i64,
}

/// Amounts per resource name.
pub type ResourceList = BTreeMap<String, Quantity>;
