//! Topology: the levels of a data centre as node labels.

use crate::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::resource::{always_written, custom_resource};
#[cfg(feature = "schema")]
use crate::schema;

custom_resource! {
    /// Levels of a node hierarchy, for example blocks and racks. Cluster-scoped.
    Topology: cluster "kueue.x-k8s.io" "v1beta2" "topologies" {
        /// Desired state.
        #[schemars(extend("x-optional" = true))]
        spec: TopologySpec,
    }
}
always_written!(TopologySpec);

/// Content of a [`Topology`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct TopologySpec {
    /// Levels from the widest to the narrowest.
    #[schemars(
        length(min = 1, max = 16),
        extend("x-list" = "atomic", "x-rules" = [
            [
                "self == oldSelf || (self[size(self) - 1].nodeLabel == 'kubernetes.io/hostname' && oldSelf[size(oldSelf) - 1].nodeLabel == 'kubernetes.io/hostname')",
                "levels are mutable only when kubernetes.io/hostname is the lowest level both before and after the change"
            ],
            ["size(self.filter(i, size(self.filter(j, j == i)) > 1)) == 0", "must be unique"],
            [
                "size(self.filter(i, i.nodeLabel == 'kubernetes.io/hostname')) == 0 || self[size(self) - 1].nodeLabel == 'kubernetes.io/hostname'",
                "the kubernetes.io/hostname label can only be used at the lowest level of topology"
            ]
        ])
    )]
    pub levels: Vec<TopologyLevel>,
}

/// One level of a [`Topology`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct TopologyLevel {
    /// Node label whose value names the domain at this level.
    #[schemars(length(min = 1, max = 316), regex(pattern = schema::LABEL_KEY))]
    pub node_label: String,
}
