//! `jobset.x-k8s.io/v1alpha2`: a set of jobs that start, fail, restart and finish together.

use std::collections::BTreeMap;

use crate::JsonSchema;
use k8s_openapi::api::batch::v1::JobTemplateSpec;
use k8s_openapi::api::core::v1::PersistentVolumeClaimSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::{Deserialize, Serialize};

use crate::resource::{always_written, custom_resource, string_enum};
#[cfg(feature = "schema")]
use crate::schema;

custom_resource! {
    /// A set of jobs treated as one. Namespaced.
    JobSet: namespaced "jobset.x-k8s.io" "v1alpha2" "jobsets" {
        /// Desired state.
        #[schemars(extend("x-optional" = true))]
        spec: JobSetSpec,
        /// Observed state.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<JobSetStatus>,
    }
}
always_written!(JobSetSpec);

#[cfg(feature = "schema")]
const IMMUTABLE: &[[&str; 2]] = &[["self == oldSelf", "Value is immutable"]];

/// Desired state of a [`JobSet`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default, extend("x-rules" = [[
    "!(has(self.startupPolicy) && self.startupPolicy.startupPolicyOrder == 'InOrder' && self.replicatedJobs.exists(x, has(x.dependsOn)))",
    "StartupPolicy and DependsOn APIs are mutually exclusive"
]]))]
pub struct JobSetSpec {
    /// The jobs, in groups with one template each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-list" = "map:name"))]
    pub replicated_jobs: Vec<ReplicatedJob>,
    /// DNS names of the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-rules" = IMMUTABLE))]
    pub network: Option<Network>,
    /// When the set has succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-rules" = IMMUTABLE))]
    pub success_policy: Option<SuccessPolicy>,
    /// Handling of failed jobs. Absent: the set fails with the first failed job.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-rules" = IMMUTABLE))]
    pub failure_policy: Option<FailurePolicy>,
    /// Order in which the jobs start.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-rules" = IMMUTABLE))]
    pub startup_policy: Option<StartupPolicy>,
    /// Stops all jobs while true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// Coordinator pod. All jobs and pods of the set carry its DNS name as a label and an
    /// annotation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coordinator: Option<Coordinator>,
    /// Controller that reconciles the set. Absent: the JobSet controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,
    /// Seconds after finishing before the set is deleted. Absent: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,
    /// Volume claims created for the set.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50), extend("x-list" = "atomic", "x-rules" = IMMUTABLE))]
    pub volume_claim_policies: Vec<VolumeClaimPolicy>,
}

/// A number of equal jobs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct ReplicatedJob {
    /// Name, part of the names of the jobs.
    pub name: String,
    /// Group within which `job-group-index` counts. Default `default`.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("default" = "default"))]
    pub group_name: String,
    /// Template of the jobs.
    #[schemars(schema_with = "schema::job_template")]
    pub template: JobTemplateSpec,
    /// Number of jobs. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0), extend("default" = 1))]
    pub replicas: Option<i32>,
    /// Earlier replicated jobs that must be ready or complete first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5), extend("x-list" = "map:name", "x-rules" = IMMUTABLE))]
    pub depends_on: Vec<DependsOn>,
}

/// A dependency on an earlier replicated job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct DependsOn {
    /// Name.
    pub name: String,
    /// State that it must have reached.
    pub status: DependsOnStatus,
}

string_enum! {
    /// State of a replicated job that lets its dependants start.
    DependsOnStatus {
        /// All its jobs are ready, succeeded or failed.
        Ready,
        /// All its jobs succeeded.
        Complete,
    }
}

/// DNS names of the pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct Network {
    /// Pods get host names and a headless service. The webhook's default is true.
    #[serde(skip_serializing_if = "Option::is_none", rename = "enableDNSHostnames")]
    pub enable_dns_hostnames: Option<bool>,
    /// Name of the service. Empty: the name of the set.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subdomain: String,
    /// Whether pods are in DNS before they are ready. The webhook's default is true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub publish_not_ready_addresses: Option<bool>,
}

/// When a set has succeeded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct SuccessPolicy {
    /// All or any of the jobs.
    pub operator: Operator,
    /// Replicated jobs that count. Empty: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-list" = "atomic"))]
    pub target_replicated_jobs: Vec<String>,
}

string_enum! {
    /// Number of jobs that must succeed.
    Operator {
        /// All jobs must succeed.
        All,
        /// One job must succeed.
        Any,
    }
}

/// Handling of failed jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct FailurePolicy {
    /// Restarts before the set fails. Default 0.
    #[serde(skip_serializing_if = "crate::resource::is_zero")]
    pub max_restarts: i32,
    /// When the jobs of the next attempt are created. Default `Recreate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Recreate"))]
    pub restart_strategy: Option<RestartStrategy>,
    /// Rules in order; the first that matches decides. If none matches, the set restarts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<FailurePolicyRule>,
}

string_enum! {
    /// When the jobs of the next attempt are created.
    RestartStrategy {
        /// Each job as soon as its predecessor is deleted.
        Recreate,
        /// When all jobs of the old attempt are deleted.
        BlockingRecreate,
        /// Pods restart in place.
        InPlaceRestart,
    }
}

/// Failures that match, and the action for them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct FailurePolicyRule {
    /// Name, unique in the policy. The webhook's default is `failurePolicyRule<N>`.
    pub name: String,
    /// Action.
    pub action: FailurePolicyAction,
    /// Reasons of the job's failure that match. Empty: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub on_job_failure_reasons: Vec<String>,
    /// Regular expressions of which one must match the failure's message. Empty: all messages.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub on_job_failure_message_patterns: Vec<String>,
    /// Replicated jobs that match. Empty: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-list" = "atomic"))]
    pub target_replicated_jobs: Vec<String>,
}

string_enum! {
    /// Action of a failure policy rule.
    FailurePolicyAction {
        /// The set fails.
        FailJobSet,
        /// The set restarts, counted against `maxRestarts`.
        RestartJobSet,
        /// The set restarts, not counted.
        RestartJobSetAndIgnoreMaxRestarts,
        /// The job restarts, counted.
        RestartJob,
        /// The job restarts, not counted.
        RestartJobAndIgnoreMaxRestarts,
    }
}

/// Order in which jobs start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct StartupPolicy {
    /// The order.
    pub startup_policy_order: StartupPolicyOrder,
}

string_enum! {
    /// Order in which replicated jobs start.
    StartupPolicyOrder {
        /// At once.
        AnyOrder,
        /// As listed, each after the previous one is ready.
        InOrder,
    }
}

/// The coordinator pod of a set. All jobs and pods of the set carry its DNS name as a label and an
/// annotation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct Coordinator {
    /// Its replicated job.
    pub replicated_job: String,
    /// Index of its job. Default 0.
    #[serde(skip_serializing_if = "is_zero_i64")]
    #[schemars(extend("x-no-format" = true))]
    pub job_index: i64,
    /// Index of the pod. Default 0.
    #[serde(skip_serializing_if = "is_zero_i64")]
    #[schemars(extend("x-no-format" = true))]
    pub pod_index: i64,
}

fn is_zero_i64(value: &i64) -> bool {
    *value == 0
}

/// Volume claims created for a set, and their retention.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default, extend("x-rules" = [[
    "self.templates.all(t, !has(t.metadata.namespace) || size(t.metadata.namespace) == 0)",
    "namespace cannot be set for VolumeClaimPolicies templates"
]]))]
pub struct VolumeClaimPolicy {
    /// Templates of the claims.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::volume_claim_templates")]
    pub templates: Vec<VolumeClaimTemplate>,
    /// Retention of the claims.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention_policy: Option<VolumeClaimRetentionPolicy>,
}

/// Template of a persistent volume claim. Its status is accepted and ignored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeClaimTemplate {
    /// Name, labels and annotations.
    pub metadata: VolumeClaimTemplateMeta,
    /// The claim.
    pub spec: PersistentVolumeClaimSpec,
}

/// Metadata of a volume claim template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeClaimTemplateMeta {
    /// Name, from which the claim's name is derived.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Must be empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Labels of the claim.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the claim.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Finalizers of the claim.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub finalizers: Vec<String>,
}

/// Retention of volume claims.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct VolumeClaimRetentionPolicy {
    /// What happens to the claims when the set is deleted. Default `Delete`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Delete"))]
    pub when_deleted: Option<RetentionPolicyType>,
}

string_enum! {
    /// Delete or keep.
    RetentionPolicyType {
        /// Delete with the set.
        Delete,
        /// Keep.
        Retain,
    }
}

/// Observed state of a [`JobSet`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct JobSetStatus {
    /// Conditions, such as `Completed`, `Failed` and `Suspended`.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::resource::conditions")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Number of restarts of the whole set.
    #[serde(skip_serializing_if = "crate::resource::is_zero")]
    pub restarts: i32,
    /// Restarts that count against `maxRestarts`.
    #[serde(skip_serializing_if = "crate::resource::is_zero")]
    pub restarts_count_towards_max: i32,
    /// `Completed` or `Failed` once finished.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub terminal_state: String,
    /// Counts per replicated job.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-list" = "map:name"))]
    pub replicated_jobs_status: Vec<ReplicatedJobStatus>,
    /// Latest attempt whose pods must be deleted, with in-place restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub previous_in_place_restart_attempt: Option<i32>,
    /// Attempt that pods must run, with in-place restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub current_in_place_restart_attempt: Option<i32>,
}

/// Counts of one replicated job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct ReplicatedJobStatus {
    /// Name.
    pub name: String,
    /// Jobs whose pods are all ready or done.
    pub ready: i32,
    /// Jobs that succeeded.
    pub succeeded: i32,
    /// Jobs that failed.
    pub failed: i32,
    /// Jobs with active pods.
    pub active: i32,
    /// Suspended jobs.
    pub suspended: i32,
    /// Restarts of single jobs, by index.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), extend("x-list" = "atomic"))]
    pub job_restarts: Vec<i32>,
    /// Restarts that count against `maxRestarts`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), extend("x-list" = "atomic"))]
    pub job_restarts_count_towards_max: Vec<i32>,
}
