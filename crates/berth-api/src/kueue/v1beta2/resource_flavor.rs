//! ResourceFlavor: a kind of capacity, bound to nodes by labels and taints. WorkloadPriorityClass.

use std::collections::BTreeMap;

use crate::JsonSchema;
use k8s_openapi::api::core::v1::{Taint, Toleration};
use serde::{Deserialize, Serialize};

use crate::resource::{always_written, custom_resource};
#[cfg(feature = "schema")]
use crate::schema;

custom_resource! {
    /// A kind of capacity, for example spot machines of one type. Cluster-scoped.
    ResourceFlavor: cluster "kueue.x-k8s.io" "v1beta2" "resourceflavors" {
        /// Desired state.
        #[schemars(extend("x-optional" = true))]
        spec: ResourceFlavorSpec,
    }
}
always_written!(ResourceFlavorSpec);

/// Content of a [`ResourceFlavor`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default, extend("x-rules" = [
    ["!has(self.topologyName) || self.nodeLabels.size() >= 1", "at least one nodeLabel is required when topology is set"],
    ["!has(oldSelf.topologyName) || (has(self.topologyName) && self.topologyName == oldSelf.topologyName)", "topologyName is immutable when topologyName is set"]
]))]
pub struct ResourceFlavorSpec {
    /// Labels of the nodes. Admitted pods get them as node selectors.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 8, "x-kubernetes-map-type" = "atomic"))]
    pub node_labels: BTreeMap<String, String>,
    /// Taints of the nodes; a workload must tolerate them to get the flavor.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::node_taints")]
    pub node_taints: Vec<Taint>,
    /// Tolerations added to admitted pods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::tolerations")]
    pub tolerations: Vec<Toleration>,
    /// Topology of the nodes, for topology-aware scheduling. Immutable once set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::dns_subdomain")]
    pub topology_name: Option<String>,
}

custom_resource! {
    /// A named priority of workloads, independent of the priority of their pods. Cluster-scoped.
    WorkloadPriorityClass: cluster "kueue.x-k8s.io" "v1beta2" "workloadpriorityclasses" {
        /// The priority; a higher value is admitted first.
        value: i32,
        /// When to use the class.
        #[serde(skip_serializing_if = "String::is_empty")]
        #[schemars(length(max = 2048))]
        description: String,
    }
}
