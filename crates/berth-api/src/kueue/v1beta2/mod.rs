//! `kueue.x-k8s.io/v1beta2`, the storage version of Kueue's API and the version that Berth's
//! controllers use.

mod admission_check;
mod cluster_queue;
mod cohort;
mod defaults;
mod local_queue;
mod multikueue;
mod resource_flavor;
mod topology;
mod workload;

pub use admission_check::*;
pub use cluster_queue::*;
pub use cohort::*;
pub use local_queue::*;
pub use multikueue::*;
pub use resource_flavor::*;
pub use topology::*;
pub use workload::*;

use crate::JsonSchema;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, Serialize};

#[cfg(feature = "schema")]
use crate::schema;

/// Weight in fair sharing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct FairSharing {
    /// Relative weight in borrowing. Default 1; with 0, any borrowing has an infinite share.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity", extend("default" = 1))]
    pub weight: Option<Quantity>,
}
