//! Resizing a running pod (`pods/resize`): only CPU and memory of its containers change.

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::meta::{self, map_mut};
use serde_json::Value;

use super::pod_defaults::qos_class;
use super::pod_validation::{SpecOwner, pod_spec};
use super::same;

/// Fields of a container that a resize may change.
const FIELDS: [&str; 2] = ["resources", "resizePolicy"];
/// Resources that a resize may change.
const RESOURCES: [&str; 2] = ["cpu", "memory"];
const LISTS: [&str; 2] = ["containers", "initContainers"];
/// Metadata that a resize does not change.
const METADATA: [&str; 4] = ["annotations", "finalizers", "labels", "ownerReferences"];

/// Reverts all changes that are not part of a resize. Added, removed, renamed and reordered
/// containers are kept, so that validation rejects them.
pub fn keep(new: &mut Value, old: &Value) {
    for field in METADATA {
        put(&mut new["metadata"], field, old["metadata"].get(field));
    }
    put(new, "status", old.get("status"));
    let mut spec = old["spec"].clone();
    for list in LISTS {
        let Some(given) = new["spec"].get(list).and_then(Value::as_array) else { continue };
        if given.len() != spec[list].as_array().map_or(0, Vec::len) {
            spec[list] = Value::Array(given.clone());
            continue;
        }
        for (kept, given) in spec[list].as_array_mut().into_iter().flatten().zip(given) {
            for field in FIELDS {
                put(kept, field, given.get(field));
            }
            if kept["name"] != given["name"] {
                kept["name"] = given["name"].clone();
            }
        }
    }
    new["spec"] = spec;
}

fn put(object: &mut Value, field: &str, value: Option<&Value>) {
    match value {
        Some(value) => map_mut(object).insert(field.to_owned(), value.clone()),
        None => map_mut(object).remove(field),
    };
}

/// Validates a resize.
pub fn validate(new: &Value, old: &Value) -> Vec<Error> {
    let path = Path::new("spec");
    let mut errors = pod_spec(&new["spec"], SpecOwner::Pod(meta::name(new)), &path);
    for list in LISTS {
        let at = path.child(list);
        let containers = |pod: &Value| pod["spec"][list].as_array().cloned().unwrap_or_default();
        let (given, before) = (containers(new), containers(old));
        if given.len() != before.len() {
            errors.push(Error::forbidden(&at, "containers may not be added or removed on resize"));
            return errors;
        }
        for (index, (given, before)) in given.iter().zip(&before).enumerate() {
            let at = at.index(index);
            if given["name"] != before["name"] {
                let detail = "containers may not be renamed or reordered on resize";
                errors.push(Error::forbidden(&at, detail));
                continue;
            }
            check_container(given, before, list == "containers", &at, &mut errors);
        }
    }
    if qos_class(&new["spec"]) != qos_class(&old["spec"]) {
        let detail = "Pod QOS Class may not change as a result of resizing";
        errors.push(Error::invalid(&path, qos_class(&new["spec"]), detail));
    }
    errors
}

fn check_container(new: &Value, old: &Value, is_main: bool, path: &Path<'_>, errors: &mut Vec<Error>) {
    let resources = path.child("resources");
    let is_sidecar = new["restartPolicy"] == "Always";
    if !is_main && !is_sidecar {
        if !same(&new["resources"], &old["resources"]) {
            let detail = "only cpu and memory resources for sidecar containers are mutable";
            errors.push(Error::forbidden(&resources, detail));
        }
        return;
    }
    for list in ["limits", "requests"] {
        let amounts = |container: &Value| container["resources"][list].as_object().cloned().unwrap_or_default();
        let (given, before) = (amounts(new), amounts(old));
        if before.keys().any(|name| !given.contains_key(name)) {
            let detail = format!("resource {list} cannot be removed");
            errors.push(Error::forbidden(&resources.child(list), detail));
        }
        let differs = |name: &&String| !RESOURCES.contains(&name.as_str()) && given.get(*name) != before.get(*name);
        if given.keys().find(differs).is_some() {
            errors.push(Error::forbidden(&resources.child(list), "only cpu and memory resources are mutable"));
        }
    }
    if !same(&new["resources"]["claims"], &old["resources"]["claims"]) {
        errors.push(Error::forbidden(&resources.child("claims"), "only cpu and memory resources are mutable"));
    }
}
