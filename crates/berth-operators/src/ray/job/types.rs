//! Spec and status of a RayJob, as the controllers read and write them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::ray::types::lenient;

/// Desired state of a RayJob.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RayJobSpec {
    /// Seconds from the start after which the job fails.
    pub active_deadline_seconds: Option<i32>,
    /// Seconds from the start within which the job must run.
    pub pre_running_deadline_seconds: Option<i32>,
    /// Number of retries, each on a new cluster.
    pub backoff_limit: Option<i32>,
    /// Spec of the cluster, as written.
    pub ray_cluster_spec: Option<Value>,
    /// Pod that submits the program.
    #[serde(deserialize_with = "berth_api::json::optional_field")]
    pub submitter_pod_template: Option<PodTemplateSpec>,
    /// Options of the submitter.
    pub submitter_config: Option<SubmitterConfig>,
    /// Metadata of the program, for Ray.
    #[serde(deserialize_with = "lenient")]
    pub metadata: BTreeMap<String, String>,
    /// Labels of an existing cluster on which the program runs. Empty: a cluster is created.
    #[serde(deserialize_with = "lenient")]
    pub cluster_selector: BTreeMap<String, String>,
    /// Controller that reconciles the job. Absent: this operator.
    pub managed_by: Option<String>,
    /// What is deleted after the end, and when.
    pub deletion_strategy: Option<DeletionStrategy>,
    /// Shell command of the program.
    #[serde(deserialize_with = "lenient")]
    pub entrypoint: String,
    /// Environment of the program, a YAML document.
    #[serde(rename = "runtimeEnvYAML", deserialize_with = "lenient")]
    pub runtime_env_yaml: String,
    /// Submission ID. Empty: generated.
    #[serde(deserialize_with = "lenient")]
    pub job_id: String,
    /// How the program is submitted.
    #[serde(deserialize_with = "lenient")]
    pub submission_mode: SubmissionMode,
    /// Custom resources that the program reserves, a JSON object.
    #[serde(deserialize_with = "lenient")]
    pub entrypoint_resources: String,
    /// CPUs that the program reserves.
    #[serde(deserialize_with = "lenient")]
    pub entrypoint_num_cpus: f64,
    /// GPUs that the program reserves.
    #[serde(deserialize_with = "lenient")]
    pub entrypoint_num_gpus: f64,
    /// Seconds from the end to the deletion of the cluster.
    #[serde(deserialize_with = "lenient")]
    pub ttl_seconds_after_finished: i32,
    /// Deletes the cluster after the end.
    #[serde(deserialize_with = "lenient")]
    pub shutdown_after_job_finishes: bool,
    /// True: the job is suspended and has no cluster.
    #[serde(deserialize_with = "lenient")]
    pub suspend: bool,
}

impl RayJobSpec {
    /// Reads `spec` of a RayJob, or `spec.jobTemplate` of a RayCronJob.
    ///
    /// # Errors
    /// A field has the wrong type.
    pub fn read(spec: &Value) -> Result<Self, serde_json::Error> {
        lenient(spec)
    }

    /// True if the job runs on an existing cluster.
    pub fn selects_cluster(&self) -> bool {
        !self.cluster_selector.is_empty()
    }

    /// True if a pod or container that the operator adds submits the program.
    pub fn has_submitter(&self) -> bool {
        matches!(self.submission_mode, SubmissionMode::K8sJobMode | SubmissionMode::SidecarMode)
    }
}

/// How the program is submitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SubmissionMode {
    /// By a Kubernetes Job.
    #[default]
    K8sJobMode,
    /// By a request of the operator to the dashboard.
    HttpMode,
    /// By the user. The user then sets `spec.jobId`.
    InteractiveMode,
    /// By a container in the head pod.
    SidecarMode,
}

impl SubmissionMode {
    const ALL: [Self; 4] = [Self::K8sJobMode, Self::HttpMode, Self::InteractiveMode, Self::SidecarMode];

    /// The mode as written in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::K8sJobMode => "K8sJobMode",
            Self::HttpMode => "HTTPMode",
            Self::InteractiveMode => "InteractiveMode",
            Self::SidecarMode => "SidecarMode",
        }
    }
}

impl<'de> Deserialize<'de> for SubmissionMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() {
            return Ok(Self::default());
        }
        let known = Self::ALL.into_iter().find(|mode| mode.as_str() == text);
        known.ok_or_else(|| {
            let names = Self::ALL.map(Self::as_str).join(", ");
            serde::de::Error::custom(format!("submissionMode: unknown value {text:?}; one of {names} is expected"))
        })
    }
}

/// Options of the submitter.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SubmitterConfig {
    /// Retries of the submitter Job.
    pub backoff_limit: Option<i32>,
}

/// What is deleted after the end, and when: rules, or one policy per outcome.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeletionStrategy {
    /// Policy after success.
    pub on_success: Option<OutcomePolicy>,
    /// Policy after failure.
    pub on_failure: Option<OutcomePolicy>,
    /// Rules.
    #[serde(deserialize_with = "lenient")]
    pub deletion_rules: Vec<DeletionRule>,
}

/// Policy of one outcome.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OutcomePolicy {
    /// What is deleted.
    pub policy: Option<DeletionPolicy>,
}

/// What is deleted. A later policy deletes more than an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum DeletionPolicy {
    /// Nothing.
    DeleteNone,
    /// The workers of the cluster.
    DeleteWorkers,
    /// The cluster.
    DeleteCluster,
    /// The RayJob, and with it all its objects.
    DeleteSelf,
}

impl DeletionPolicy {
    /// The policy as written in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DeleteNone => "DeleteNone",
            Self::DeleteWorkers => "DeleteWorkers",
            Self::DeleteCluster => "DeleteCluster",
            Self::DeleteSelf => "DeleteSelf",
        }
    }
}

/// A deletion and its condition.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeletionRule {
    /// What is deleted.
    pub policy: DeletionPolicy,
    /// When it is deleted.
    pub condition: DeletionCondition,
}

/// When a rule applies.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeletionCondition {
    /// Status of the program.
    pub job_status: Option<String>,
    /// Status of the RayJob.
    pub job_deployment_status: Option<String>,
    /// Seconds since the end.
    #[serde(deserialize_with = "lenient")]
    pub ttl_seconds: i32,
}

/// States of a program on Ray (`status.jobStatus`); the empty string is a program that Ray does not
/// know yet.
pub mod program {
    /// Ended without an error.
    pub const SUCCEEDED: &str = "SUCCEEDED";
    /// Ended with an error.
    pub const FAILED: &str = "FAILED";
    /// Was stopped.
    pub const STOPPED: &str = "STOPPED";
    /// Runs.
    pub const RUNNING: &str = "RUNNING";
    /// Was submitted and does not run yet.
    pub const PENDING: &str = "PENDING";

    /// True if the program has ended.
    pub fn has_ended(status: &str) -> bool {
        [SUCCEEDED, FAILED, STOPPED].contains(&status)
    }
}

/// States of a RayJob (`status.jobDeploymentStatus`); the empty string is a new job.
pub mod deployment {
    /// The cluster is created and becomes ready.
    pub const INITIALIZING: &str = "Initializing";
    /// The program is submitted, and runs.
    pub const RUNNING: &str = "Running";
    /// The program ended without an error, or was stopped.
    pub const COMPLETE: &str = "Complete";
    /// The job failed; `status.reason` says why.
    pub const FAILED: &str = "Failed";
    /// The spec is not valid.
    pub const VALIDATION_FAILED: &str = "ValidationFailed";
    /// The cluster is being deleted because the job is suspended.
    pub const SUSPENDING: &str = "Suspending";
    /// The job is suspended and has no cluster.
    pub const SUSPENDED: &str = "Suspended";
    /// The cluster is being deleted because the job failed and is retried.
    pub const RETRYING: &str = "Retrying";
    /// The user has to submit the program.
    pub const WAITING: &str = "Waiting";

    /// True if the job has ended.
    pub fn has_ended(status: &str) -> bool {
        status == COMPLETE || status == FAILED
    }
}

/// Reasons of a failed job (`status.reason`).
pub mod reason {
    /// The program was not submitted.
    pub const SUBMISSION_FAILED: &str = "SubmissionFailed";
    /// `activeDeadlineSeconds` is over.
    pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
    /// `preRunningDeadlineSeconds` is over.
    pub const PRE_RUNNING_DEADLINE_EXCEEDED: &str = "PreRunningDeadlineExceeded";
    /// The program ended with an error.
    pub const APP_FAILED: &str = "AppFailed";
    /// The program or its submitter did not end within the time limit after the other had ended.
    pub const GRACE_PERIOD_EXCEEDED: &str = "JobDeploymentStatusTransitionGracePeriodExceeded";
    /// The dashboard has not answered within the time limit.
    pub const STATUS_CHECK_TIMEOUT: &str = "JobStatusCheckTimeoutExceeded";
    /// The spec is not valid.
    pub const VALIDATION_FAILED: &str = "ValidationFailed";
}

/// Observed state of a RayJob.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RayJobStatus {
    /// Times of the program.
    #[serde(skip_serializing_if = "RayJobInfo::is_empty", deserialize_with = "lenient")]
    pub ray_job_info: RayJobInfo,
    /// Submission ID.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "lenient")]
    pub job_id: String,
    /// Name of the cluster.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "lenient")]
    pub ray_cluster_name: String,
    /// Host and port of the dashboard.
    #[serde(rename = "dashboardURL", skip_serializing_if = "String::is_empty", deserialize_with = "lenient")]
    pub dashboard_url: String,
    /// One of [`program`].
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "lenient")]
    pub job_status: String,
    /// One of [`deployment`].
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "lenient")]
    pub job_deployment_status: String,
    /// One of [`reason`].
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "lenient")]
    pub reason: String,
    /// Message of the dashboard, or why the job failed.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "lenient")]
    pub message: String,
    /// Start of the current attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// End of the job; absent while it runs or is retried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Time>,
    /// Attempts that succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub succeeded: Option<i32>,
    /// Attempts that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<i32>,
    /// Status of the cluster.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub ray_cluster_status: Value,
    /// Since when the dashboard has not answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_status_check_failure_start_time: Option<Time>,
    /// Generation of the spec that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

impl RayJobStatus {
    /// Reads `status` of a RayJob. An unreadable status counts as absent.
    pub fn read(status: Option<&Value>) -> Self {
        status.and_then(|status| lenient(status).ok()).unwrap_or_default()
    }

    /// True if the job has ended.
    pub fn has_ended(&self) -> bool {
        deployment::has_ended(&self.job_deployment_status)
    }
}

/// Times of the program, as the dashboard reports them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RayJobInfo {
    /// Start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// End.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Time>,
}

impl RayJobInfo {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
