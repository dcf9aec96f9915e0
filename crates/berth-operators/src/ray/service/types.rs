//! Spec and status of a RayService, as the controller reads and writes them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ray::types::lenient;

/// Desired state of a RayService.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RayServiceSpec {
    /// Seconds for which a replaced cluster remains.
    pub ray_cluster_deletion_delay_seconds: Option<i32>,
    /// Service of Ray Serve; unset fields are derived.
    pub serve_service: Option<Service>,
    /// What happens when the spec of the cluster changes.
    pub upgrade_strategy: Option<UpgradeStrategy>,
    /// Controller that reconciles the service. Absent: this operator.
    pub managed_by: Option<String>,
    /// Applications, a YAML document.
    #[serde(rename = "serveConfigV2", deserialize_with = "lenient")]
    pub serve_config: String,
    /// Spec of the cluster, as written.
    #[serde(rename = "rayClusterConfig")]
    pub cluster: Value,
    /// True: requests to applications never go to the head.
    #[serde(deserialize_with = "lenient")]
    pub exclude_head_pod_from_serve_svc: bool,
    /// True: the service is suspended, and has no clusters and no Services.
    #[serde(deserialize_with = "lenient")]
    pub suspend: bool,
}

impl RayServiceSpec {
    /// Reads `spec` of a RayService.
    ///
    /// # Errors
    /// A field has the wrong type.
    pub fn read(spec: &Value) -> Result<Self, serde_json::Error> {
        lenient(spec)
    }

    /// Name of the upgrade strategy.
    pub fn upgrade(&self) -> Option<&str> {
        self.upgrade_strategy.as_ref()?.r#type.as_deref().filter(|name| !name.is_empty())
    }
}

/// What happens when the spec of the cluster changes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UpgradeStrategy {
    /// `NewCluster` or `None`. Absent: `NewCluster`.
    pub r#type: Option<String>,
}

/// Condition types of a RayService.
pub mod condition {
    /// Requests are served.
    pub const READY: &str = "Ready";
    /// A second cluster replaces the first.
    pub const UPGRADE_IN_PROGRESS: &str = "UpgradeInProgress";
    /// A replacement is being undone.
    pub const ROLLBACK_IN_PROGRESS: &str = "RollbackInProgress";
    /// All objects are being deleted because the service is suspended.
    pub const SUSPENDING: &str = "Suspending";
    /// The service is suspended and has no objects.
    pub const SUSPENDED: &str = "Suspended";
}

/// Reasons of conditions.
pub mod reason {
    /// No requests have been served yet.
    pub const INITIALIZING: &str = "Initializing";
    /// No requests were served in time.
    pub const INITIALIZING_TIMEOUT: &str = "InitializingTimeout";
    /// No requests are served any more.
    pub const ZERO_ENDPOINTS: &str = "ZeroServeEndpoints";
    /// Requests are served.
    pub const NON_ZERO_ENDPOINTS: &str = "NonZeroServeEndpoints";
    /// There is an active cluster and a pending one.
    pub const BOTH_CLUSTERS: &str = "BothActivePendingClustersExist";
    /// There is an active cluster and no pending one.
    pub const NO_PENDING_CLUSTER: &str = "NoPendingCluster";
    /// There is no active cluster.
    pub const NO_ACTIVE_CLUSTER: &str = "NoActiveCluster";
    /// The spec is not valid.
    pub const VALIDATION_FAILED: &str = "ValidationFailed";
    /// The user suspends the service.
    pub const SUSPEND_REQUESTED: &str = "SuspendRequested";
    /// Objects are being deleted.
    pub const SUSPEND_IN_PROGRESS: &str = "SuspendInProgress";
    /// All objects are deleted.
    pub const SUSPEND_COMPLETE: &str = "SuspendComplete";
    /// The user resumed the service.
    pub const RESUMED: &str = "RayServiceResumed";
}

/// Observed state of a RayService.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RayServiceStatus {
    /// Conditions; see [`condition`].
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "lenient")]
    pub conditions: Vec<Condition>,
    /// Time of the last write of the status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
    /// `Running` while requests are served.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "lenient")]
    pub service_status: String,
    /// The cluster that serves requests.
    #[serde(deserialize_with = "lenient")]
    pub active_service_status: ClusterState,
    /// The cluster that will serve requests.
    #[serde(deserialize_with = "lenient")]
    pub pending_service_status: ClusterState,
    /// Number of pods that serve requests.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "lenient")]
    pub num_serve_endpoints: i32,
    /// Generation of the spec that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

fn is_zero(value: &i32) -> bool {
    *value == 0
}

impl RayServiceStatus {
    /// Reads `status` of a RayService. An unreadable status counts as absent.
    pub fn read(status: Option<&Value>) -> Self {
        status.and_then(|status| lenient(status).ok()).unwrap_or_default()
    }

    /// The condition of this type.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.type_ == kind)
    }

    /// True if the condition exists and is true.
    pub fn is_true(&self, kind: &str) -> bool {
        self.condition(kind).is_some_and(|condition| condition.status == "True")
    }

    /// True if no requests were served in time; the service then stays without clusters.
    pub fn has_timed_out(&self) -> bool {
        let ready = self.condition(condition::READY);
        ready.is_some_and(|ready| ready.status == "False" && ready.reason == reason::INITIALIZING_TIMEOUT)
    }
}

/// A cluster of a RayService and its applications.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterState {
    /// Applications by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "lenient")]
    pub application_statuses: BTreeMap<String, ApplicationState>,
    /// Name of the cluster.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "lenient")]
    pub ray_cluster_name: String,
    /// Status of the cluster.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub ray_cluster_status: Value,
}

/// State of an application.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ApplicationState {
    /// Deployments by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "lenient")]
    pub serve_deployment_statuses: BTreeMap<String, DeploymentState>,
    /// State, such as `RUNNING`.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "lenient")]
    pub status: String,
    /// What Ray says about the state.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "lenient")]
    pub message: String,
}

/// State of a deployment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentState {
    /// State, such as `HEALTHY`.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "lenient")]
    pub status: String,
    /// What Ray says about the state.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "lenient")]
    pub message: String,
}
