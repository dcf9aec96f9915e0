//! Pod templates inside specs with a schema of their own: read whole, written only in the fields
//! that admission changes.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::{Map, Value, json};

use super::Group;
use crate::gates::Gates;
use crate::podset::{self, PodSetError, PodSetInfo};

/// The fields of a template that admission adds to.
const METADATA: [&str; 2] = ["labels", "annotations"];
const SPEC: [&str; 3] = ["nodeSelector", "tolerations", "schedulingGates"];

/// Reads a group's template.
pub(super) fn read(spec: &Value, group: &Group) -> Result<PodTemplateSpec, String> {
    let path = || format!("spec{}", group.template.replace('/', "."));
    match spec.pointer(&group.template).filter(|value| !value.is_null()) {
        Some(value) => {
            if !value.is_object() {
                return Err(format!("{}: must be a pod template", path()));
            }
            let mut value = value.clone();
            // Kubernetes accepts a template without containers; the kind's operator validates it.
            if value["spec"]["containers"].is_null() {
                super::set_at(&mut value, &["spec", "containers"], json!([]));
            }
            berth_api::json::from_value(value).map_err(|error| format!("{}: {error}", path()))
        }
        None => group.default.clone().ok_or_else(|| format!("{}: a pod template is required", path())),
    }
}

/// Merges `info` into a group's template.
pub(super) fn merge(spec: &mut Value, group: &Group, info: &PodSetInfo, gates: &Gates) -> Result<(), PodSetError> {
    let Ok(mut template) = read(spec, group) else { return Ok(()) };
    podset::merge(&mut template, info, gates)?;
    write(spec, group, &template);
    Ok(())
}

/// Restores a group's template from `info`. Returns true if that changed anything.
pub(super) fn restore(spec: &mut Value, group: &Group, info: &PodSetInfo) -> bool {
    // A default template that was never written needs no restore.
    if spec.pointer(&group.template).is_none() {
        return false;
    }
    let Ok(mut template) = read(spec, group) else { return false };
    if !podset::restore(&mut template, info) {
        return false;
    }
    write(spec, group, &template);
    true
}

/// Writes the fields of a template that admission may change; all other fields stay as written.
fn write(spec: &mut Value, group: &Group, template: &PodTemplateSpec) {
    let wanted = json!(template);
    let place = match spec.pointer(&group.template).is_some_and(Value::is_object) {
        true => spec.pointer_mut(&group.template),
        false => {
            // The default template is written to the spec once something must be added to it.
            let steps: Vec<&str> = group.template.split('/').skip(1).collect();
            super::set_at(spec, &steps, wanted.clone());
            spec.pointer_mut(&group.template)
        }
    };
    let Some(place) = place else { return };
    for (part, fields) in [("metadata", &METADATA[..]), ("spec", &SPEC[..])] {
        let fresh = &wanted[part];
        for field in fields {
            let value = &fresh[*field];
            if value.is_null() {
                if let Some(map) = place.get_mut(part).and_then(Value::as_object_mut) {
                    map.remove(*field);
                }
            } else {
                if !place[part].is_object() {
                    place[part] = Value::Object(Map::new());
                }
                place[part][*field] = value.clone();
            }
        }
        let empty = place.get(part).and_then(Value::as_object).is_some_and(Map::is_empty);
        if empty
            && part == "metadata"
            && let Some(map) = place.as_object_mut()
        {
            map.remove(part);
        }
    }
}
