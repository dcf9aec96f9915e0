//! Default tolerations of pods: for a limited time on a failing node, and for nodes that are
//! tainted for a device that the pod requests. An update that leaves them out gets them again,
//! because a pod's tolerations cannot be removed.

use berth_apimachinery::status::Status;
use serde_json::{Value, json};

use super::{AdmissionPlugin, AdmissionRequest, is_pod_write};
use crate::strategy;

/// Seconds that a pod stays on a node that is not ready or unreachable.
const SECONDS: i64 = 300;

/// DefaultTolerationSeconds.
pub(crate) struct DefaultTolerationSeconds;

impl AdmissionPlugin for DefaultTolerationSeconds {
    fn name(&self) -> &str {
        "DefaultTolerationSeconds"
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        if !is_pod_write(request) {
            return Ok(());
        }
        let Some(object) = &mut request.object else { return Ok(()) };
        for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
            let tolerates = |toleration: &Value| {
                let text = |field: &str| toleration[field].as_str().unwrap_or_default();
                (text("key") == key || text("key").is_empty()) && matches!(text("effect"), "NoExecute" | "")
            };
            if !tolerations(object).iter().any(tolerates) {
                let toleration =
                    json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": SECONDS});
                tolerations(object).push(toleration);
            }
        }
        Ok(())
    }
}

/// ExtendedResourceToleration: nodes with devices are tainted with the device's name. Pods that
/// request the device get a toleration (GKE and others rely on this plugin).
pub(crate) struct ExtendedResourceToleration;

impl AdmissionPlugin for ExtendedResourceToleration {
    fn name(&self) -> &str {
        "ExtendedResourceToleration"
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        if !is_pod_write(request) {
            return Ok(());
        }
        let Some(object) = &mut request.object else { return Ok(()) };
        let mut resources: Vec<String> = Vec::new();
        for kind in ["containers", "initContainers"] {
            for container in object["spec"][kind].as_array().into_iter().flatten() {
                for list in ["requests", "limits"] {
                    for name in container["resources"][list].as_object().into_iter().flat_map(|map| map.keys()) {
                        if strategy::is_extended_resource(name) && !resources.contains(name) {
                            resources.push(name.clone());
                        }
                    }
                }
            }
        }
        resources.sort();
        for name in resources {
            let tolerates = |toleration: &Value| {
                toleration["key"] == name.as_str()
                    && toleration["operator"] == "Exists"
                    && toleration["effect"] == "NoSchedule"
            };
            if !tolerations(object).iter().any(tolerates) {
                tolerations(object).push(json!({"key": name, "operator": "Exists", "effect": "NoSchedule"}));
            }
        }
        Ok(())
    }
}

/// The pod's list of tolerations; adds an empty one if it has none.
fn tolerations(object: &mut Value) -> &mut Vec<Value> {
    let list = strategy::spec_mut(object).entry("tolerations").or_insert_with(|| json!([]));
    if !list.is_array() {
        *list = json!([]);
    }
    list.as_array_mut().expect("made a list above")
}
