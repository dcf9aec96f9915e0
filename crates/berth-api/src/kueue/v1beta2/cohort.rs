//! Cohort: a group of cluster queues and cohorts that lend quota to each other. Cohorts form trees.

use crate::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{FairSharing, FairSharingStatus, ResourceGroup};
use crate::resource::{always_written, custom_resource};
#[cfg(feature = "schema")]
use crate::schema;

custom_resource! {
    /// A group of cluster queues and cohorts that share quota; may own quota and have a parent.
    /// Cluster-scoped.
    Cohort: cluster "kueue.x-k8s.io" "v1beta2" "cohorts" {
        /// Desired state.
        #[schemars(extend("x-optional" = true))]
        spec: CohortSpec,
        /// Observed state, written by Kueue.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<CohortStatus>,
    }
}
always_written!(CohortSpec);

/// Quota and parent of a [`Cohort`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct CohortSpec {
    /// Name of the parent cohort. Empty: this cohort is a root.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "schema::dns_subdomain")]
    pub parent_name: String,
    /// Quota of the cohort itself, lent to its members.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-list" = "atomic"))]
    pub resource_groups: Vec<ResourceGroup>,
    /// Weight of this cohort among its siblings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair_sharing: Option<FairSharing>,
}

/// Observed state of a [`Cohort`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct CohortStatus {
    /// Share in the parent cohort, if fair sharing is enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair_sharing: Option<FairSharingStatus>,
}
