//! Workload: the unit that Kueue admits. One object per job, with its pod sets, queue, admission
//! and observed state.

use std::collections::BTreeMap;

use crate::JsonSchema;
use k8s_openapi::api::core::v1::{PodTemplateSpec, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde::{Deserialize, Serialize};

use super::ResourceList;
use crate::resource::{always_written, custom_resource, string_enum, zero_time};
#[cfg(feature = "schema")]
use crate::schema;

custom_resource! {
    /// A unit of admission: the pods of one job, admitted together or not at all. Namespaced.
    #[schemars(extend("x-rules" = WORKLOAD_RULES))]
    Workload: namespaced "kueue.x-k8s.io" "v1beta2" "workloads" {
        /// Desired state.
        #[schemars(extend("x-optional" = true))]
        spec: WorkloadSpec,
        /// Observed state, written by Kueue.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<WorkloadStatus>,
    }
}
always_written!(WorkloadSpec);

#[cfg(feature = "schema")]
const WORKLOAD_RULES: &[[&str; 2]] = &[
    [
        "has(self.status) && has(self.status.conditions) && self.status.conditions.exists(c, c.type == 'QuotaReserved' && c.status == 'True') && has(self.status.admission) ? size(self.spec.podSets) == size(self.status.admission.podSetAssignments) : true",
        "podSetAssignments must have the same number of podSets as the spec",
    ],
    [
        "(has(oldSelf.status) && has(oldSelf.status.conditions) && oldSelf.status.conditions.exists(c, c.type == 'QuotaReserved' && c.status == 'True')) ? (!has(oldSelf.spec.priorityClassRef) && !has(self.spec.priorityClassRef)) || (has(oldSelf.spec.priorityClassRef) && has(self.spec.priorityClassRef)) : true",
        "priorityClassRef is immutable while workload quota reserved",
    ],
    [
        "(has(oldSelf.status) && has(oldSelf.status.conditions) && oldSelf.status.conditions.exists(c, c.type == 'QuotaReserved' && c.status == 'True') && has(oldSelf.spec.priorityClassRef) && has(self.spec.priorityClassRef)) ? oldSelf.spec.priorityClassRef.group == self.spec.priorityClassRef.group : true",
        "priorityClassRef.group is immutable while workload quota reserved",
    ],
    [
        "(has(oldSelf.status) && has(oldSelf.status.conditions) && oldSelf.status.conditions.exists(c, c.type == 'QuotaReserved' && c.status == 'True') && has(oldSelf.spec.priorityClassRef) && has(self.spec.priorityClassRef)) ? oldSelf.spec.priorityClassRef.kind == self.spec.priorityClassRef.kind : true",
        "priorityClassRef.kind is immutable while workload quota reserved",
    ],
    [
        "(has(oldSelf.status) && has(oldSelf.status.conditions) && oldSelf.status.conditions.exists(c, c.type == 'QuotaReserved' && c.status == 'True') && has(oldSelf.spec.priorityClassRef) && has(self.spec.priorityClassRef) && self.spec.priorityClassRef.group == 'scheduling.k8s.io' && self.spec.priorityClassRef.kind == 'PriorityClass') ? oldSelf.spec.priorityClassRef.name == self.spec.priorityClassRef.name : true",
        "priorityClassRef.name is immutable for scheduling.k8s.io/priorityclass while workload quota reserved",
    ],
    QUEUE_NAME_RULE,
    MAX_EXECUTION_TIME_RULE,
];

/// Rule: the queue of a workload is immutable while it holds quota. The same in both versions.
#[cfg(feature = "schema")]
pub(crate) const QUEUE_NAME_RULE: [&str; 2] = [
    "((has(oldSelf.status) && has(oldSelf.status.conditions) && oldSelf.status.conditions.exists(c, c.type == 'QuotaReserved' && c.status == 'True')) && (has(self.status) && has(self.status.conditions) && self.status.conditions.exists(c, c.type == 'QuotaReserved' && c.status == 'True'))) ? ((has(oldSelf.spec.queueName) == has(self.spec.queueName)) && (!has(oldSelf.spec.queueName) || oldSelf.spec.queueName == self.spec.queueName)) : true",
    "queueName is immutable while workload quota reserved",
];

/// Rule: the maximum execution time is immutable while the workload is admitted. The same in both
/// versions.
#[cfg(feature = "schema")]
pub(crate) const MAX_EXECUTION_TIME_RULE: [&str; 2] = [
    "((has(oldSelf.status) && has(oldSelf.status.conditions) && oldSelf.status.conditions.exists(c, c.type == 'Admitted' && c.status == 'True')) && (has(self.status) && has(self.status.conditions) && self.status.conditions.exists(c, c.type == 'Admitted' && c.status == 'True')))?((has(oldSelf.spec.maximumExecutionTimeSeconds)?oldSelf.spec.maximumExecutionTimeSeconds:0) ==  (has(self.spec.maximumExecutionTimeSeconds)?self.spec.maximumExecutionTimeSeconds:0)):true",
    "maximumExecutionTimeSeconds is immutable while workload quota reserved",
];

/// Desired state of a [`Workload`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default, extend("x-rules" = [[
    "!has(self.priorityClassRef) || has(self.priority)",
    "priority should not be nil when priorityClassRef is set"
]]))]
pub struct WorkloadSpec {
    /// Groups of equal pods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 18), extend("x-list" = "map:name"))]
    pub pod_sets: Vec<PodSet>,
    /// LocalQueue in the same namespace. Cannot change while quota is reserved.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "schema::dns_subdomain")]
    pub queue_name: String,
    /// Class the priority came from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_ref: Option<PriorityClassRef>,
    /// Priority; a higher value is admitted first. Absent: 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Whether the workload may be admitted. Default true; false evicts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = true))]
    pub active: Option<bool>,
    /// Total time in seconds for which the workload may be admitted before it is deactivated.
    /// Absent: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub maximum_execution_time_seconds: Option<i32>,
    /// Gates that prevent the workload from preempting other workloads while they are closed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-list" = "map:name"))]
    pub preemption_gates: Vec<PreemptionGate>,
}

/// A class that gives a workload its priority.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default, extend("x-rules" = [
    ["(self.group == 'scheduling.k8s.io') ? self.kind == 'PriorityClass' : true", "only the PriorityClass kind is allowed for the scheduling.k8s.io group"],
    ["(self.group == 'kueue.x-k8s.io') ? self.kind == 'WorkloadPriorityClass' : true", "only the WorkloadPriorityClass kind is allowed for the kueue.x-k8s.io group"]
]))]
pub struct PriorityClassRef {
    /// `kueue.x-k8s.io` or `scheduling.k8s.io`.
    #[schemars(extend("enum" = ["kueue.x-k8s.io", "scheduling.k8s.io"]))]
    pub group: String,
    /// `WorkloadPriorityClass` or `PriorityClass`.
    #[schemars(extend("enum" = ["WorkloadPriorityClass", "PriorityClass"]))]
    pub kind: String,
    /// Name of the class.
    #[schemars(length(min = 1, max = 253), regex(pattern = schema::DNS_SUBDOMAIN))]
    pub name: String,
}

/// A gate in front of preemption.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct PreemptionGate {
    /// Name of the gate.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
}

/// A number of equal pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default, extend("x-rules" = [[
    "has(self.minCount) ? self.minCount <= self.count : true",
    "minCount should be positive and less or equal to count"
]]))]
pub struct PodSet {
    /// Name, unique in the workload. Default `main`.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "schema::dns_label", extend("default" = "main"))]
    pub name: String,
    /// Template of the pods. Only resources and scheduling fields are used.
    #[schemars(schema_with = "schema::pod_template")]
    pub template: PodTemplateSpec,
    /// Number of pods. Default 1.
    #[schemars(range(min = 0), extend("default" = 1, "x-optional" = true))]
    pub count: i32,
    /// With partial admission, the smallest number of pods that is acceptable.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub min_count: Option<i32>,
    /// Topology constraint of the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_request: Option<PodSetTopologyRequest>,
}

/// Topology request of a pod set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct PodSetTopologyRequest {
    /// Node label of a topology level. All pods must be in one domain of that level.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub required: Option<String>,
    /// Node label of a topology level. All pods should be in one domain of that level.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub preferred: Option<String>,
    /// True if the pods may be placed on any nodes, which the scheduler then chooses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unconstrained: Option<bool>,
    /// Pod label with the index of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    pub pod_index_label: Option<String>,
    /// Pod label with the index of the job within the pod set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    pub sub_group_index_label: Option<String>,
    /// Number of jobs within the pod set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub sub_group_count: Option<i32>,
    /// Pod sets of the same group get the same flavor and domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub pod_set_group_name: Option<String>,
    /// Node label of a topology level. Each slice must be in one domain of that level.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub pod_set_slice_required_topology: Option<String>,
    /// Pods per slice.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub pod_set_slice_size: Option<i32>,
    /// Layers of slices within slices, the widest layer first.
    #[serde(skip_serializing_if = "Vec::is_empty", rename = "podsetSliceRequiredTopologyConstraints")]
    #[schemars(length(max = 3), extend("x-list" = "atomic"))]
    pub pod_set_slice_required_topology_constraints: Vec<PodSetSliceRequiredTopologyConstraint>,
}

/// A layer of slices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct PodSetSliceRequiredTopologyConstraint {
    /// Node label of the level.
    #[schemars(length(min = 1, max = 63))]
    pub topology: String,
    /// Pods per slice.
    #[schemars(range(min = 1))]
    pub size: i32,
}

/// Observed state of a [`Workload`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default, extend("x-rules" = STATUS_RULES))]
pub struct WorkloadStatus {
    /// Conditions of the workload: `QuotaReserved`, `Admitted`, `Evicted`, `Finished` and others.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::resource::conditions")]
    #[schemars(schema_with = "schema::conditions", length(max = 16))]
    pub conditions: Vec<Condition>,
    /// ClusterQueue and flavors whose quota is assigned to the workload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission: Option<Admission>,
    /// When and how often the workload is requeued after evictions by timeout or admission check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requeue_state: Option<RequeueState>,
    /// Finished pods, whose quota is released.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 18), extend("x-list" = "map:name"))]
    pub reclaimable_pods: Vec<ReclaimablePod>,
    /// States of the admission checks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-list" = "map:name"))]
    pub admission_checks: Vec<AdmissionCheckState>,
    /// Requests of the pod sets, while the workload is not admitted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 18), extend("x-list" = "map:name"))]
    pub resource_requests: Vec<PodSetRequest>,
    /// Seconds spent admitted before the latest eviction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accumulated_past_execution_time_seconds: Option<i32>,
    /// Counts of evictions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduling_stats: Option<SchedulingStats>,
    /// Worker clusters nominated for the workload.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20), inner(length(max = 256)), extend("x-list" = "atomic"))]
    pub nominated_cluster_names: Vec<String>,
    /// Worker cluster that runs the workload.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub cluster_name: Option<String>,
    /// Nodes of the topology assignment that failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-list" = "map:name"))]
    pub unhealthy_nodes: Vec<UnhealthyNode>,
    /// States of the preemption gates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-list" = "map:name"))]
    pub preemption_gates: Vec<PreemptionGateState>,
}

/// Rules on the status of a workload. The same in both versions.
#[cfg(feature = "schema")]
pub(crate) const STATUS_RULES: &[[&str; 2]] = &[
    [
        "!has(oldSelf.clusterName) || !has(self.clusterName) || oldSelf.clusterName == self.clusterName",
        "clusterName is immutable once set",
    ],
    [
        "!has(self.clusterName) || (!has(self.nominatedClusterNames) || (has(self.nominatedClusterNames) && size(self.nominatedClusterNames) == 0))",
        "clusterName and nominatedClusterNames are mutually exclusive",
    ],
];

/// Quota assigned to a workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct Admission {
    /// ClusterQueue whose quota is used.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "schema::dns_subdomain")]
    pub cluster_queue: String,
    /// Assignment per pod set.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 18), extend("x-list" = "map:name"))]
    pub pod_set_assignments: Vec<PodSetAssignment>,
}

/// Flavors, amounts and topology of one pod set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct PodSetAssignment {
    /// Name of the pod set. Default `main`.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "schema::dns_label", extend("default" = "main"))]
    pub name: String,
    /// Flavor per resource name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::flavor_map")]
    pub flavors: BTreeMap<String, String>,
    /// Amount per resource name, for all pods together.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::quantity_map")]
    pub resource_usage: ResourceList,
    /// Number of pods admitted; with partial admission fewer than requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub count: Option<i32>,
    /// Nodes or domains chosen by topology-aware scheduling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_assignment: Option<TopologyAssignment>,
    /// State of a topology assignment that is chosen later, when the nodes exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 7))]
    pub delayed_topology_request: Option<DelayedTopologyRequestState>,
}

string_enum! {
    /// State of a delayed topology request.
    DelayedTopologyRequestState {
        /// The topology is not chosen yet.
        Pending,
        /// The topology was chosen.
        Ready,
    }
}

/// Topology assignment of one pod set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default, extend("x-rules" = [[
    "self.slices.all(x, size(x.valuesPerLevel) == size(self.levels))",
    "valuesPerLevel must have the same length as the number of levels in this TopologyAssignment"
]]))]
pub struct TopologyAssignment {
    /// Node labels of the levels, widest first.
    #[schemars(length(min = 1, max = 16), inner(length(max = 317)), extend("x-list" = "atomic"))]
    pub levels: Vec<String>,
    /// Domains, in a column-wise compressed form.
    #[schemars(length(max = 1000), extend("x-list" = "atomic"))]
    pub slices: Vec<TopologyAssignmentSlice>,
}

/// A list of consecutive domains.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default, extend("x-rules" = [
    ["!has(self.podCounts.individual) || size(self.podCounts.individual) == self.domainCount", "podCounts.individual must have length equal to domainCount"],
    [
        "self.valuesPerLevel.all(x, !has(x.individual) || size(x.individual.roots) == self.domainCount)",
        "valuesPerLevel.individual, if set, must have roots of length equal to domainCount of this TopologyAssignmentSlice"
    ]
]))]
pub struct TopologyAssignmentSlice {
    /// Number of domains in this slice.
    #[schemars(range(min = 1))]
    pub domain_count: i32,
    /// Label values of the domains, per level.
    #[schemars(length(min = 1, max = 16), extend("x-list" = "atomic"))]
    pub values_per_level: Vec<TopologyAssignmentSliceLevelValues>,
    /// Pods in each domain.
    pub pod_counts: TopologyAssignmentSlicePodCounts,
}

/// Label values at one level: one for all domains, or one each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default, extend("x-rules" = [[
    "has(self.universal) != has(self.individual)",
    "exactly one of the fields in [universal individual] must be set"
]]))]
pub struct TopologyAssignmentSliceLevelValues {
    /// The value of all domains.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub universal: Option<String>,
    /// A value for each domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub individual: Option<TopologyAssignmentSliceLevelIndividualValues>,
}

/// Values with a common prefix and suffix.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct TopologyAssignmentSliceLevelIndividualValues {
    /// Common prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub prefix: Option<String>,
    /// Common suffix.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub suffix: Option<String>,
    /// Value of each domain without prefix and suffix.
    #[schemars(length(min = 1, max = 100_000), inner(length(max = 63)), extend("x-list" = "atomic"))]
    pub roots: Vec<String>,
}

/// Pod counts: one for all domains, or one each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default, extend("x-rules" = [[
    "[has(self.universal),has(self.individual)].filter(x,x==true).size() == 1",
    "exactly one of the fields in [universal individual] must be set"
]]))]
pub struct TopologyAssignmentSlicePodCounts {
    /// Pods in every domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub universal: Option<i32>,
    /// Pods per domain.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 100_000), inner(range(min = 1)), extend("x-list" = "atomic"))]
    pub individual: Vec<i32>,
}

/// When a workload is requeued.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct RequeueState {
    /// Number of requeues so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub count: Option<i32>,
    /// Earliest time of the next attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub requeue_at: Option<Time>,
}

/// Number of finished pods of a pod set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct ReclaimablePod {
    /// Name of the pod set.
    #[schemars(schema_with = "schema::dns_label")]
    pub name: String,
    /// Number of pods.
    #[schemars(range(min = 0))]
    pub count: i32,
}

/// State of one admission check of a workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct AdmissionCheckState {
    /// Name of the check.
    #[schemars(length(min = 1, max = 316))]
    pub name: String,
    /// State of the check.
    pub state: CheckState,
    /// When `state` changed last.
    #[serde(deserialize_with = "crate::resource::time_or_zero")]
    #[schemars(schema_with = "schema::time")]
    pub last_transition_time: Time,
    /// Message of the check's controller.
    #[schemars(length(max = 32768))]
    pub message: String,
    /// With state `Retry`: seconds after `lastTransitionTime` before the workload is queued again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub requeue_after_seconds: Option<i32>,
    /// Number of retries so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub retry_count: Option<i32>,
    /// Changes to the pods, per pod set.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 18), extend("x-list" = "atomic"))]
    pub pod_set_updates: Vec<PodSetUpdate>,
}

impl Default for AdmissionCheckState {
    fn default() -> Self {
        Self {
            name: String::new(),
            state: CheckState::default(),
            last_transition_time: zero_time(),
            message: String::new(),
            requeue_after_seconds: None,
            retry_count: None,
            pod_set_updates: Vec::new(),
        }
    }
}

string_enum! {
    /// State of an admission check.
    CheckState {
        /// The check is not decided yet.
        Pending,
        /// The check passed.
        Ready,
        /// The check failed temporarily: the workload is evicted and retried later.
        Retry,
        /// The check failed permanently: the workload is deactivated.
        Rejected,
    }
}

/// Changes to the pods of one pod set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct PodSetUpdate {
    /// Name of the pod set.
    #[schemars(schema_with = "schema::dns_label")]
    pub name: String,
    /// Labels to add.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations to add.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Node selector to add.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Tolerations to add.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::tolerations")]
    pub tolerations: Vec<Toleration>,
}

/// Requests of one pod set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct PodSetRequest {
    /// Name of the pod set.
    #[schemars(schema_with = "schema::dns_label")]
    pub name: String,
    /// Amount per resource name, for all pods together.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::quantity_map")]
    pub resources: ResourceList,
}

/// Counts about the scheduling of a workload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct SchedulingStats {
    /// Evictions per reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-list" = "map:reason,underlyingCause"))]
    pub evictions: Vec<WorkloadSchedulingStatsEviction>,
}

/// Evictions for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct WorkloadSchedulingStatsEviction {
    /// Reason of the `Evicted` condition.
    #[schemars(length(max = 316))]
    pub reason: String,
    /// Underlying cause; may be empty.
    #[schemars(length(max = 316))]
    pub underlying_cause: String,
    /// Number of evictions.
    #[schemars(range(min = 0))]
    pub count: i32,
}

/// A failed node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct UnhealthyNode {
    /// Name of the node.
    #[schemars(length(max = 63))]
    pub name: String,
}

/// State of a preemption gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct PreemptionGateState {
    /// Name of the gate.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Open or closed.
    pub position: GatePosition,
    /// When `position` changed last.
    #[serde(deserialize_with = "crate::resource::time_or_zero")]
    #[schemars(schema_with = "schema::time")]
    pub last_transition_time: Time,
}

impl Default for PreemptionGateState {
    fn default() -> Self {
        Self { name: String::new(), position: GatePosition::default(), last_transition_time: zero_time() }
    }
}

string_enum! {
    /// Position of a preemption gate.
    GatePosition {
        /// Preemption is not allowed.
        Closed,
        /// Preemption is allowed.
        Open,
    }
}
