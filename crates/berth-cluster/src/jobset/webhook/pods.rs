//! JobSet's pod webhooks on JSON: [`placement`] for any API server. Pods that belong to no JobSet
//! are ignored before they are decoded.

use berth_api::jobset::constants::JOBSET_NAME;
use berth_api::json::Json;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::jobset::placement::{self, ClusterView, PlacementError};

/// Prepares a new pod of a set; see [`placement::prepare_pod`]. Only the labels, the affinity and
/// the node selector change.
pub fn default_pod(pod: &mut Value, cluster: &dyn ClusterView) -> Result<(), PlacementError> {
    let Some(mut typed) = of_set(pod) else { return Ok(()) };
    placement::prepare_pod(&mut typed, cluster)?;
    let spec = typed.spec.unwrap_or_default();
    let mut put = |parent: &str, key: &str, value: Value| {
        if !value.is_null() {
            pod[parent][key] = value;
        }
    };
    put("metadata", "labels", json!(typed.metadata.labels));
    put("spec", "affinity", json!(spec.affinity));
    put("spec", "nodeSelector", json!(spec.node_selector));
    Ok(())
}

/// Rejects a new pod of a set that must wait; see [`placement::validate_pod`].
pub fn validate_pod(pod: &Value, cluster: &dyn ClusterView) -> Result<(), PlacementError> {
    of_set(pod).map_or(Ok(()), |typed| placement::validate_pod(&typed, cluster))
}

/// The pod as its type if it belongs to a set. The schema rejects a pod that cannot be decoded.
fn of_set(pod: &Value) -> Option<Pod> {
    pod["metadata"]["annotations"].get(JOBSET_NAME)?;
    Pod::from_json_value(pod).ok()
}
