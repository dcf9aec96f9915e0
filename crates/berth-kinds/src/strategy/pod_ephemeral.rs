//! Writes of `pods/ephemeralcontainers` (`kubectl debug`), which add containers to a running pod.
//! They cannot change or remove existing ephemeral containers, and ignore all other changes.

use std::collections::HashMap;

use berth_apimachinery::field::{Error, Path, quote};
use berth_apimachinery::meta::{self, map_mut};
use serde_json::Value;

use super::pod::MIRROR;
use super::pod_validation::{SpecOwner, pod_spec};
use super::rules::{items, text};
use super::same;

const LIST: &str = "ephemeralContainers";
/// Metadata that such a write does not change.
const METADATA: [&str; 4] = ["annotations", "finalizers", "labels", "ownerReferences"];

/// Reverts all changes except those of ephemeral containers.
pub fn keep(new: &mut Value, old: &Value) {
    for field in METADATA {
        put(&mut new["metadata"], field, old["metadata"].get(field).cloned());
    }
    put(new, "status", old.get("status").cloned());
    let given = new["spec"].get(LIST).cloned();
    new["spec"] = old["spec"].clone();
    put(&mut new["spec"], LIST, given);
}

fn put(object: &mut Value, field: &str, value: Option<Value>) {
    match value {
        Some(value) => map_mut(object).insert(field.to_owned(), value),
        None => map_mut(object).remove(field),
    };
}

/// Validates that containers were only added.
pub fn validate(new: &Value, old: &Value) -> Vec<Error> {
    let spec = Path::new("spec");
    let mut errors = pod_spec(&new["spec"], SpecOwner::Pod(meta::name(new)), &spec);
    if !old["metadata"]["annotations"][MIRROR].is_null() && !same(&new["spec"], &old["spec"]) {
        errors.push(Error::forbidden(&Path::root(), "static pods do not support ephemeral containers"));
    }
    let path = spec.child(LIST);
    let given = items(&new["spec"][LIST]);
    // If several containers have the same name, the first one is compared.
    let mut by_name: HashMap<&str, &Value> = HashMap::new();
    for container in given {
        by_name.entry(text(container, "name")).or_insert(container);
    }
    for before in items(&old["spec"][LIST]) {
        let name = text(before, "name");
        let what = match by_name.get(name).copied() {
            Some(container) if same(container, before) => continue,
            Some(_) => "changed",
            None => "removed",
        };
        let detail = format!("existing ephemeral containers {} may not be {what}", quote(name));
        errors.push(Error::forbidden(&path, detail));
    }
    errors
}
