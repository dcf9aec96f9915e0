//! AdmissionCheck, and the ProvisioningRequestConfig that parametrizes the built-in check.

use std::collections::BTreeMap;

use crate::JsonSchema;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::{Deserialize, Serialize};

use crate::resource::{always_written, custom_resource, string_enum};
#[cfg(feature = "schema")]
use crate::schema;

custom_resource! {
    /// A gate between quota reservation and admission, operated by the named controller.
    /// Cluster-scoped.
    AdmissionCheck: cluster "kueue.x-k8s.io" "v1beta2" "admissionchecks" {
        /// Desired state.
        #[schemars(extend("x-optional" = true))]
        spec: AdmissionCheckSpec,
        /// Observed state.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<AdmissionCheckStatus>,
    }
}
always_written!(AdmissionCheckSpec);

/// Controller and parameters of an [`AdmissionCheck`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct AdmissionCheckSpec {
    /// Name of the controller, for example `kueue.x-k8s.io/provisioning-request`. Immutable.
    #[schemars(length(min = 1, max = 253), extend("x-rules" = [["self == oldSelf", "field is immutable"]]))]
    pub controller_name: String,
    /// Object with the controller's configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<AdmissionCheckParametersReference>,
}

/// Reference to a cluster-scoped object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct AdmissionCheckParametersReference {
    /// API group.
    #[schemars(length(min = 1, max = 253), regex(pattern = schema::DNS_SUBDOMAIN))]
    pub api_group: String,
    /// Kind.
    #[schemars(length(min = 1, max = 63), regex(pattern = schema::KIND))]
    pub kind: String,
    /// Name.
    #[schemars(length(min = 1, max = 63), regex(pattern = schema::DNS_LABEL))]
    pub name: String,
}

/// Observed state of an [`AdmissionCheck`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct AdmissionCheckStatus {
    /// `Active`: the check can be used by cluster queues.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::resource::conditions")]
    #[schemars(schema_with = "schema::conditions", length(max = 16))]
    pub conditions: Vec<Condition>,
}

custom_resource! {
    /// Parameters of requests that the check `kueue.x-k8s.io/provisioning-request` creates.
    /// Cluster-scoped.
    ProvisioningRequestConfig: cluster "kueue.x-k8s.io" "v1beta2" "provisioningrequestconfigs" {
        /// Desired state.
        #[schemars(extend("x-optional" = true))]
        spec: ProvisioningRequestConfigSpec,
    }
}
always_written!(ProvisioningRequestConfigSpec);

/// Content of a [`ProvisioningRequestConfig`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct ProvisioningRequestConfigSpec {
    /// Class of the requests, for example `queued-provisioning.gke.io`.
    #[schemars(length(min = 1, max = 253), regex(pattern = schema::DNS_SUBDOMAIN))]
    pub provisioning_class_name: String,
    /// Parameters copied to every request; the workload's annotations override them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::provisioning_parameters")]
    pub parameters: BTreeMap<String, String>,
    /// Only pod sets that request one of these resources need a provisioning request. Empty: all
    /// do.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), extend("x-list" = "set"))]
    pub managed_resources: Vec<String>,
    /// Retries of a failed request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = { "backoffLimitCount": 3, "backoffBaseSeconds": 60, "backoffMaxSeconds": 1800 }))]
    pub retry_strategy: Option<ProvisioningRequestRetryStrategy>,
    /// Changes to the pods once the request is provisioned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_set_updates: Option<ProvisioningRequestPodSetUpdates>,
    /// Which pod sets of a workload are merged in the request. Absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_set_merge_policy: Option<ProvisioningRequestConfigPodSetMergePolicy>,
}

string_enum! {
    /// When two pod sets are merged in a provisioning request.
    ProvisioningRequestConfigPodSetMergePolicy {
        /// The whole templates are equal.
        IdenticalPodTemplates,
        /// All fields that affect scheduling are equal.
        IdenticalWorkloadSchedulingRequirements,
    }
}

/// Retries of failed provisioning requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct ProvisioningRequestRetryStrategy {
    /// Retries before the check is rejected. Default 3; 0 means no retry.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 3))]
    pub backoff_limit_count: Option<i32>,
    /// Seconds before the first retry. The delay doubles with every further retry. Default 60.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 60))]
    pub backoff_base_seconds: Option<i32>,
    /// Maximum delay in seconds. Default 1800.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 1800))]
    pub backoff_max_seconds: Option<i32>,
}

/// Changes to the pods of a provisioned workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct ProvisioningRequestPodSetUpdates {
    /// Node selectors whose values come from the request's `status.provisioningClassDetails`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-list" = "map:key"))]
    pub node_selector: Vec<ProvisioningRequestPodSetUpdatesNodeSelector>,
}

/// One node selector taken from the details of a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct ProvisioningRequestPodSetUpdatesNodeSelector {
    /// Node label.
    #[schemars(length(min = 1, max = 317), regex(pattern = schema::LABEL_KEY))]
    pub key: String,
    /// Key in `status.provisioningClassDetails`.
    #[schemars(length(min = 1, max = 32768))]
    pub value_from_provisioning_class_detail: String,
}
