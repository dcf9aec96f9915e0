//! MultiKueueCluster and MultiKueueConfig: worker clusters to which a manager cluster dispatches
//! workloads.

use crate::JsonSchema;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::{Deserialize, Serialize};

use crate::resource::{always_written, custom_resource, string_enum};
#[cfg(feature = "schema")]
use crate::schema;

custom_resource! {
    /// A worker cluster. Cluster-scoped.
    MultiKueueCluster: cluster "kueue.x-k8s.io" "v1beta2" "multikueueclusters" {
        /// Desired state.
        #[schemars(extend("x-optional" = true))]
        spec: MultiKueueClusterSpec,
        /// Observed state.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<MultiKueueClusterStatus>,
    }
}
always_written!(MultiKueueClusterSpec);

/// Content of a [`MultiKueueCluster`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct MultiKueueClusterSpec {
    /// How to connect to the cluster.
    pub cluster_source: ClusterSource,
}

/// Exactly one way to connect to a cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default, extend("x-rules" = [[
    "[has(self.kubeConfig),has(self.clusterProfileRef)].filter(x,x==true).size() == 1",
    "exactly one of the fields in [kubeConfig clusterProfileRef] must be set"
]]))]
pub struct ClusterSource {
    /// A kubeconfig.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kube_config: Option<KubeConfig>,
    /// A ClusterProfile object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_profile_ref: Option<ClusterProfileReference>,
}

/// Location of a kubeconfig.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct KubeConfig {
    /// Name of the Secret (in Kueue's namespace, key `kubeconfig`) or path of the file.
    #[schemars(length(min = 1, max = 256))]
    pub location: String,
    /// Type of `location`. Default `Secret`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Secret"))]
    pub location_type: Option<LocationType>,
}

string_enum! {
    /// Type of a kubeconfig's location.
    LocationType {
        /// A Secret's name.
        Secret,
        /// A path in the file system of the controller.
        Path,
    }
}

/// Reference to a ClusterProfile in Kueue's namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct ClusterProfileReference {
    /// Name.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
}

/// Observed state of a [`MultiKueueCluster`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct MultiKueueClusterStatus {
    /// `Active`: the cluster is connected.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::resource::conditions")]
    #[schemars(schema_with = "schema::conditions", length(max = 16))]
    pub conditions: Vec<Condition>,
}

custom_resource! {
    /// The worker clusters of an AdmissionCheck. Cluster-scoped.
    MultiKueueConfig: cluster "kueue.x-k8s.io" "v1beta2" "multikueueconfigs" {
        /// Desired state.
        #[schemars(extend("x-optional" = true))]
        spec: MultiKueueConfigSpec,
    }
}
always_written!(MultiKueueConfigSpec);

/// Content of a [`MultiKueueConfig`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct MultiKueueConfigSpec {
    /// Names of MultiKueueClusters, each once.
    #[schemars(
        length(min = 1, max = 20),
        inner(length(max = 256)),
        extend("x-list" = "atomic", "x-rules" = [["size(self.filter(i, size(self.filter(j, j == i)) > 1)) == 0", "must be unique"]])
    )]
    pub clusters: Vec<String>,
    /// How the quota of the manager's cluster queue is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_management: Option<QuotaManagement>,
}

string_enum! {
    /// How the quota of a manager's cluster queue is set.
    QuotaManagement {
        /// An administrator sets it.
        Manual,
        /// Kueue derives it from the quota of the worker clusters.
        Automated,
    }
}
