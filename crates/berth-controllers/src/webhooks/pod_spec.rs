//! What of a pod template may not change while its pods are queued: everything that quota was counted by or that decides
//! where pods fit.

use berth_apimachinery::field::{Error, Path};
use k8s_openapi::api::core::v1::{Container, PodSpec};
use serde::Serialize;
use serde_json::json;

const IMMUTABLE: &str = "field is immutable";

/// What a changed pod spec may not change. Images, commands and the like may.
pub fn validate_immutable_pod_spec(new: &PodSpec, old: &PodSpec, path: &Path<'_>) -> Vec<Error> {
    fn init(spec: &PodSpec) -> &[Container] {
        spec.init_containers.as_deref().unwrap_or_default()
    }
    let mut errors = containers(&new.containers, &old.containers, &path.child("containers"));
    errors.extend(containers(init(new), init(old), &path.child("initContainers")));
    let mut same = |field: &str, new: serde_json::Value, old: serde_json::Value| {
        if new != old {
            errors.push(Error::invalid(&path.child(field), new, IMMUTABLE));
        }
    };
    same("nodeSelector", list(&new.node_selector), list(&old.node_selector));
    same("affinity", json!(new.affinity), json!(old.affinity));
    same("tolerations", list(&new.tolerations), list(&old.tolerations));
    same("runtimeClassName", json!(new.runtime_class_name), json!(old.runtime_class_name));
    same("priority", json!(new.priority), json!(old.priority));
    same("priorityClassName", json!(new.priority_class_name), json!(old.priority_class_name));
    same("topologySpreadConstraints", list(&new.topology_spread_constraints), list(&old.topology_spread_constraints));
    same("overhead", list(&new.overhead), list(&old.overhead));
    same("resourceClaims", list(&new.resource_claims), list(&old.resource_claims));
    same("resources", json!(new.resources), json!(old.resources));
    errors
}

/// A list or map as a value; none is the same as an empty one.
fn list<T: Serialize>(value: &Option<T>) -> serde_json::Value {
    let value = json!(value);
    let empty = value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(serde_json::Map::is_empty);
    if empty { serde_json::Value::Null } else { value }
}

fn containers(new: &[Container], old: &[Container], path: &Path<'_>) -> Vec<Error> {
    if new.len() != old.len() {
        return vec![Error::invalid(path, new.len(), IMMUTABLE)];
    }
    let mut errors = Vec::new();
    for (index, (new, old)) in new.iter().zip(old).enumerate() {
        let requests = |container: &Container| {
            list(&container.resources.as_ref().and_then(|resources| resources.requests.clone()))
        };
        if requests(new) != requests(old) {
            let at = path.index(index);
            let at = at.child("resources");
            errors.push(Error::invalid(&at.child("requests"), requests(new), IMMUTABLE));
        }
    }
    errors
}
