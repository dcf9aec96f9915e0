//! Pod spec fields that are immutable while pods are queued: those that determine quota and
//! placement.

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::meaning::same_as;
use k8s_openapi::api::core::v1::{Container, PodSpec};
use serde_json::{Value, json};

const IMMUTABLE: &str = "field is immutable";
/// The OpenAPI type by which the fields are compared.
const POD_SPEC: &str = "io.k8s.api.core.v1.PodSpec";
/// Immutable fields of a pod spec.
const FIELDS: [&str; 10] = [
    "nodeSelector",
    "affinity",
    "tolerations",
    "runtimeClassName",
    "priority",
    "priorityClassName",
    "topologySpreadConstraints",
    "overhead",
    "resourceClaims",
    "resources",
];

/// Validates a changed pod spec. Images, commands and other fields that affect neither quota nor
/// placement may change.
pub fn validate_immutable_pod_spec(new: &PodSpec, old: &PodSpec, path: &Path<'_>) -> Vec<Error> {
    fn init(spec: &PodSpec) -> &[Container] {
        spec.init_containers.as_deref().unwrap_or_default()
    }
    let mut errors = containers(&new.containers, &old.containers, &path.child("containers"));
    errors.extend(containers(init(new), init(old), &path.child("initContainers")));
    let (new, old) = (json!(new), json!(old));
    for field in FIELDS {
        // The values are compared by their type, so that a missing field equals its zero value.
        let alone = |spec: &Value| json!({"containers": [], field: spec[field]});
        if !same_as(POD_SPEC, &alone(&new), &alone(&old)) {
            errors.push(Error::invalid(&path.child(field), new[field].clone(), IMMUTABLE));
        }
    }
    errors
}

fn containers(new: &[Container], old: &[Container], path: &Path<'_>) -> Vec<Error> {
    if new.len() != old.len() {
        return vec![Error::invalid(path, new.len(), IMMUTABLE)];
    }
    let mut errors = Vec::new();
    for (index, (new, old)) in new.iter().zip(old).enumerate() {
        let requests = |container: &Container| json!(container.resources.as_ref().map(|it| it.requests.as_ref()));
        let alone = |container: &Container| json!({"requests": requests(container)});
        if !same_as("io.k8s.api.core.v1.ResourceRequirements", &alone(new), &alone(old)) {
            let at = path.index(index);
            let at = at.child("resources");
            errors.push(Error::invalid(&at.child("requests"), requests(new), IMMUTABLE));
        }
    }
    errors
}
