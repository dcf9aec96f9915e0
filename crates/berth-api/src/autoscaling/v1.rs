//! `autoscaling.x-k8s.io/v1`: ProvisioningRequest. Version v1beta1 has the same fields; conversion
//! changes only `apiVersion`.

use std::collections::BTreeMap;

use crate::JsonSchema;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::{Deserialize, Serialize};

use crate::resource::{always_written, custom_resource};
#[cfg(feature = "schema")]
use crate::schema;

custom_resource! {
    /// A request for the capacity of a group of pods. Its spec is immutable. Namespaced.
    ProvisioningRequest: namespaced "autoscaling.x-k8s.io" "v1" "provisioningrequests" {
        /// Desired state.
        spec: ProvisioningRequestSpec,
        /// Observed state, written by the autoscaler.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<ProvisioningRequestStatus>,
    }
}
always_written!(ProvisioningRequestSpec);

#[cfg(feature = "schema")]
const IMMUTABLE: &[[&str; 2]] = &[["self == oldSelf", "Value is immutable"]];

/// Desired state of a [`ProvisioningRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct ProvisioningRequestSpec {
    /// Groups of equal pods.
    #[schemars(length(min = 1, max = 32), extend("x-rules" = IMMUTABLE))]
    pub pod_sets: Vec<PodSet>,
    /// Provisioning class, which selects the controller.
    #[schemars(schema_with = "schema::dns_subdomain", extend("x-rules" = IMMUTABLE))]
    pub provisioning_class_name: String,
    /// Parameters of the class.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::provisioning_parameters", extend("x-rules" = IMMUTABLE))]
    pub parameters: BTreeMap<String, String>,
}

/// A number of equal pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct PodSet {
    /// PodTemplate object in the same namespace.
    pub pod_template_ref: Reference,
    /// Number of pods.
    #[schemars(range(min = 1))]
    pub count: i32,
}

/// Reference by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct Reference {
    /// Name of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "schema::dns_subdomain", extend("x-required" = true))]
    pub name: String,
}

/// Observed state of a [`ProvisioningRequest`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct ProvisioningRequestStatus {
    /// Conditions of the request: `Accepted`, `Provisioned`, `Failed`, `BookingExpired` and
    /// `CapacityRevoked`.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::resource::conditions")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Details of the provisioned capacity, for example names of created resources.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::provisioning_details")]
    pub provisioning_class_details: BTreeMap<String, String>,
}
