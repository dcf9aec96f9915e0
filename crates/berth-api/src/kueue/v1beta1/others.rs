//! AdmissionCheck, ProvisioningRequestConfig, ResourceFlavor, Topology, WorkloadPriorityClass and
//! the MultiKueue kinds of v1beta1.

use std::collections::BTreeMap;

use crate::JsonSchema;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::kueue::v1beta2::{
    ClusterProfileReference, LocationType, ProvisioningRequestConfigPodSetMergePolicy,
    ProvisioningRequestPodSetUpdatesNodeSelector, ProvisioningRequestRetryStrategy, ResourceFlavorSpec, TopologyLevel,
};
use crate::resource::schema_root;
use crate::schema;

schema_root! {
    /// A gate between quota reservation and admission. Cluster-scoped.
    AdmissionCheck {
        /// Desired state.
        #[schemars(extend("x-optional" = true))]
        spec: AdmissionCheckSpec,
        /// Observed state.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<StatusWithConditions>,
    }
}

/// Controller and parameters of an [`AdmissionCheck`].
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct AdmissionCheckSpec {
    /// Name of the controller. Immutable.
    #[schemars(extend("x-rules" = [["self == oldSelf", "field is immutable"]]))]
    pub controller_name: String,
    /// No longer used. v1beta2 does not have this field. Default 15.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 15))]
    pub retry_delay_minutes: Option<i64>,
    /// Object with the controller's configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<AdmissionCheckParametersReference>,
}

/// Reference to a cluster-scoped object.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct AdmissionCheckParametersReference {
    /// API group.
    #[schemars(schema_with = "schema::dns_subdomain")]
    pub api_group: String,
    /// Kind.
    #[schemars(length(max = 63), regex(pattern = schema::KIND))]
    pub kind: String,
    /// Name.
    #[schemars(schema_with = "schema::dns_label")]
    pub name: String,
}

/// An observed state that consists of conditions.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct StatusWithConditions {
    /// Conditions, such as `Active`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

schema_root! {
    /// Parameters of the provisioning requests that the check creates. Cluster-scoped.
    ProvisioningRequestConfig {
        /// Desired state.
        #[schemars(extend("x-optional" = true))]
        spec: ProvisioningRequestConfigSpec,
    }
}

/// Content of a [`ProvisioningRequestConfig`].
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct ProvisioningRequestConfigSpec {
    /// Class of the requests.
    #[schemars(schema_with = "schema::dns_subdomain")]
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

/// Changes to the pods of a provisioned workload.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct ProvisioningRequestPodSetUpdates {
    /// Node selectors whose values come from the request's `status.provisioningClassDetails`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub node_selector: Vec<ProvisioningRequestPodSetUpdatesNodeSelector>,
}

schema_root! {
    /// A kind of capacity, for example spot machines of one type. Cluster-scoped.
    ResourceFlavor {
        /// Desired state.
        #[schemars(extend("x-optional" = true))]
        spec: ResourceFlavorSpec,
    }
}

schema_root! {
    /// A named priority of workloads. Cluster-scoped.
    WorkloadPriorityClass {
        /// The priority; a higher value is admitted first.
        value: i32,
        /// When to use the class.
        #[serde(skip_serializing_if = "String::is_empty")]
        description: String,
    }
}

schema_root! {
    /// Levels of a node hierarchy such as blocks and racks. Cluster-scoped.
    Topology {
        /// Desired state.
        #[schemars(extend("x-optional" = true))]
        spec: TopologySpec,
    }
}

/// Content of a [`Topology`].
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct TopologySpec {
    /// Levels from the widest to the narrowest. Immutable.
    #[schemars(
        length(min = 1, max = 16),
        extend("x-list" = "atomic", "x-rules" = [
            ["self == oldSelf", "field is immutable"],
            ["size(self.filter(i, size(self.filter(j, j == i)) > 1)) == 0", "must be unique"],
            [
                "size(self.filter(i, i.nodeLabel == 'kubernetes.io/hostname')) == 0 || self[size(self) - 1].nodeLabel == 'kubernetes.io/hostname'",
                "the kubernetes.io/hostname label can only be used at the lowest level of topology"
            ]
        ])
    )]
    pub levels: Vec<TopologyLevel>,
}

schema_root! {
    /// A worker cluster. Cluster-scoped.
    MultiKueueCluster {
        /// Desired state.
        #[schemars(extend("x-optional" = true))]
        spec: MultiKueueClusterSpec,
        /// Observed state.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<StatusWithConditions>,
    }
}

/// Content of a [`MultiKueueCluster`].
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct MultiKueueClusterSpec {
    /// A kubeconfig.
    pub kube_config: KubeConfig,
    /// A ClusterProfile object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_profile_ref: Option<ClusterProfileReference>,
}

/// Location of a kubeconfig.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct KubeConfig {
    /// Name of the Secret or path of the file.
    pub location: String,
    /// Type of `location`. Default `Secret`.
    #[schemars(extend("default" = "Secret"))]
    pub location_type: LocationType,
}

schema_root! {
    /// The worker clusters of an AdmissionCheck. Cluster-scoped.
    MultiKueueConfig {
        /// Desired state.
        #[schemars(extend("x-optional" = true))]
        spec: MultiKueueConfigSpec,
    }
}

/// Content of a [`MultiKueueConfig`].
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct MultiKueueConfigSpec {
    /// Names of MultiKueueClusters, each once.
    #[schemars(length(min = 1, max = 20), extend("x-list" = "set"))]
    pub clusters: Vec<String>,
}
