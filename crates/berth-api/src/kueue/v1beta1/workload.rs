//! Workload of v1beta1.

use std::collections::BTreeMap;

use crate::JsonSchema;
use k8s_openapi::api::core::v1::{PodTemplateSpec, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::kueue::v1beta2::{
    CheckState, MAX_EXECUTION_TIME_RULE, PodSetRequest, QUEUE_NAME_RULE, ReclaimablePod, RequeueState, ResourceList,
    STATUS_RULES, WorkloadSchedulingStatsEviction,
};
use crate::resource::schema_root;
use crate::schema;

schema_root! {
    /// A unit of admission: the pods of one job. Namespaced.
    #[schemars(extend("x-rules" = WORKLOAD_RULES))]
    Workload {
        /// Desired state.
        #[schemars(extend("x-optional" = true))]
        spec: WorkloadSpec,
        /// Observed state, written by Kueue.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<WorkloadStatus>,
    }
}
const WORKLOAD_RULES: &[[&str; 2]] = &[
    [
        "has(self.status) && has(self.status.conditions) && self.status.conditions.exists(c, c.type == 'QuotaReserved' && c.status == 'True') && has(self.status.admission) ? size(self.spec.podSets) == size(self.status.admission.podSetAssignments) : true",
        "podSetAssignments must have the same number of podSets as the spec",
    ],
    [
        "(has(oldSelf.status) && has(oldSelf.status.conditions) && oldSelf.status.conditions.exists(c, c.type == 'QuotaReserved' && c.status == 'True') && has(oldSelf.spec.priorityClassSource) && has(self.spec.priorityClassSource)) ? (oldSelf.spec.priorityClassSource == self.spec.priorityClassSource) : true",
        "priorityClassSource is immutable while workload quota reserved",
    ],
    [
        "(has(oldSelf.status) && has(oldSelf.status.conditions) && oldSelf.status.conditions.exists(c, c.type == 'QuotaReserved' && c.status == 'True') && has(oldSelf.spec.priorityClassSource) && has(self.spec.priorityClassSource) && (self.spec.priorityClassSource != 'kueue.x-k8s.io/workloadpriorityclass') && has(oldSelf.spec.priorityClassName) && has(self.spec.priorityClassName)) ? (oldSelf.spec.priorityClassName == self.spec.priorityClassName) : true",
        "priorityClassName is immutable while workload quota reserved and priorityClassSource is not equal to kueue.x-k8s.io/workloadpriorityclass",
    ],
    QUEUE_NAME_RULE,
    MAX_EXECUTION_TIME_RULE,
];

/// Desired state of a [`Workload`].
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default, extend("x-rules" = [[
    "has(self.priorityClassName) ? has(self.priority) : true",
    "priority should not be nil when priorityClassName is set"
]]))]
pub struct WorkloadSpec {
    /// Groups of equal pods.
    #[schemars(length(min = 1, max = 18), extend("x-list" = "map:name"))]
    pub pod_sets: Vec<PodSet>,
    /// LocalQueue in the same namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "schema::dns_subdomain")]
    pub queue_name: String,
    /// Class the priority came from.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "schema::dns_subdomain")]
    pub priority_class_name: String,
    /// Priority; a higher value is admitted first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Kind of the class: `kueue.x-k8s.io/workloadpriorityclass`, `scheduling.k8s.io/priorityclass`
    /// or empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("default" = "", "enum" = ["kueue.x-k8s.io/workloadpriorityclass", "scheduling.k8s.io/priorityclass", ""]))]
    pub priority_class_source: String,
    /// Whether the workload may be admitted. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = true))]
    pub active: Option<bool>,
    /// Total time in seconds for which the workload may be admitted. Absent: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub maximum_execution_time_seconds: Option<i32>,
}

/// A number of equal pods.
#[derive(JsonSchema)]
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
    /// Template of the pods.
    #[schemars(schema_with = "schema::pod_template")]
    pub template: PodTemplateSpec,
    /// Number of pods. Default 1.
    #[schemars(range(min = 0), extend("default" = 1))]
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
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct PodSetTopologyRequest {
    /// Node label of a topology level. All pods must be in one domain of that level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required: Option<String>,
    /// Node label of a topology level. All pods should be in one domain of that level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preferred: Option<String>,
    /// True if the pods may be placed on any nodes, which the scheduler then chooses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unconstrained: Option<bool>,
    /// Pod label with the index of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_index_label: Option<String>,
    /// Pod label with the index of the job within the pod set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sub_group_index_label: Option<String>,
    /// Number of jobs within the pod set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sub_group_count: Option<i32>,
    /// Pod sets of the same group get the same flavor and domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_set_group_name: Option<String>,
    /// Node label of a topology level. Each slice must be in one domain of that level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_set_slice_required_topology: Option<String>,
    /// Pods per slice.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub pod_set_slice_size: Option<i32>,
}

/// Observed state of a [`Workload`].
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default, extend("x-rules" = STATUS_RULES))]
pub struct WorkloadStatus {
    /// Conditions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// ClusterQueue and flavors whose quota is assigned to the workload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission: Option<Admission>,
    /// When and how often the workload is requeued after evictions.
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
    /// Seconds spent admitted before the latest eviction. The spelling is that of the API.
    #[serde(skip_serializing_if = "Option::is_none", rename = "accumulatedPastExexcutionTimeSeconds")]
    pub accumulated_past_execution_time_seconds: Option<i32>,
    /// Counts of evictions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduling_stats: Option<SchedulingStats>,
    /// Worker clusters nominated for the workload.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20), extend("x-list" = "atomic"))]
    pub nominated_cluster_names: Vec<String>,
    /// Worker cluster that runs the workload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_name: Option<String>,
    /// Nodes of the topology assignment that failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unhealthy_nodes: Vec<UnhealthyNode>,
}

/// Quota assigned to a workload.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct Admission {
    /// ClusterQueue whose quota is used.
    #[schemars(schema_with = "schema::dns_subdomain")]
    pub cluster_queue: String,
    /// Assignment per pod set.
    #[schemars(length(max = 18), extend("x-list" = "map:name"))]
    pub pod_set_assignments: Vec<PodSetAssignment>,
}

/// Flavors, amounts and topology of one pod set.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct PodSetAssignment {
    /// Name of the pod set. Default `main`.
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
    /// Number of pods admitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub count: Option<i32>,
    /// Nodes or domains chosen by topology-aware scheduling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_assignment: Option<TopologyAssignment>,
    /// State of a topology assignment that is chosen later: `Pending` or `Ready`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delayed_topology_request: Option<String>,
}

/// Topology assignment of one pod set, domain by domain.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct TopologyAssignment {
    /// Node labels of the levels, widest first.
    #[schemars(length(min = 1, max = 16), extend("x-list" = "atomic"))]
    pub levels: Vec<String>,
    /// The domains.
    pub domains: Vec<TopologyDomainAssignment>,
}

/// Pods in one domain.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct TopologyDomainAssignment {
    /// Label values of the domain, one per level.
    #[schemars(length(min = 1, max = 16), extend("x-list" = "atomic"))]
    pub values: Vec<String>,
    /// Number of pods.
    #[schemars(range(min = 1))]
    pub count: i32,
}

/// State of one admission check of a workload.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct AdmissionCheckState {
    /// Name of the check.
    #[schemars(length(max = 316))]
    pub name: String,
    /// State of the check.
    pub state: CheckState,
    /// When `state` changed last.
    #[schemars(schema_with = "schema::time")]
    pub last_transition_time: Time,
    /// Message of the check's controller.
    #[schemars(length(max = 32768))]
    pub message: String,
    /// With state `Retry`: seconds before the workload is queued again.
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

/// Changes to the pods of one pod set.
#[derive(JsonSchema)]
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
    #[schemars(schema_with = "schema::untyped_tolerations")]
    pub tolerations: Vec<Toleration>,
}

/// Counts about the scheduling of a workload.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct SchedulingStats {
    /// Evictions per reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-list" = "map:reason,underlyingCause"))]
    pub evictions: Vec<WorkloadSchedulingStatsEviction>,
}

/// A failed node.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct UnhealthyNode {
    /// Name of the node.
    pub name: String,
}
