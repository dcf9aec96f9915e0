//! Pod templates inside specs whose schema is somebody else's: read whole, changed only where admission has a say.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::{Map, Value, json};

use super::Group;
use crate::gates::Gates;
use crate::podset::{self, PodSetError, PodSetInfo};

/// What admission adds to a template, by where it is.
const METADATA: [&str; 2] = ["labels", "annotations"];
const SPEC: [&str; 3] = ["nodeSelector", "tolerations", "schedulingGates"];

/// The template of a group.
pub(super) fn read(spec: &Value, group: &Group) -> Result<PodTemplateSpec, String> {
    let path = || format!("spec{}", group.template.replace('/', "."));
    match spec.pointer(&group.template).filter(|value| !value.is_null()) {
        Some(value) => {
            if !value.is_object() {
                return Err(format!("{}: must be a pod template", path()));
            }
            let mut value = value.clone();
            // Kubernetes reads a template without containers; so do we, and let its operator complain.
            if value["spec"]["containers"].is_null() {
                super::set_at(&mut value, &["spec", "containers"], json!([]));
            }
            serde_json::from_value(value).map_err(|error| format!("{}: {error}", path()))
        }
        None => group.default.clone().ok_or_else(|| format!("{}: a pod template is required", path())),
    }
}

/// Puts an info into a group's template.
pub(super) fn merge(spec: &mut Value, group: &Group, info: &PodSetInfo, gates: &Gates) -> Result<(), PodSetError> {
    let Ok(mut template) = read(spec, group) else { return Ok(()) };
    podset::merge(&mut template, info, gates)?;
    write(spec, group, &template);
    Ok(())
}

/// Sets a group's template back to what was recorded. Returns whether that changed anything.
pub(super) fn restore(spec: &mut Value, group: &Group, info: &PodSetInfo) -> bool {
    // What was never there has nothing to be set back.
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

/// Writes those fields of a template that admission may change; everything else stays as its author wrote it.
fn write(spec: &mut Value, group: &Group, template: &PodTemplateSpec) {
    let wanted = json!(template);
    let place = match spec.pointer(&group.template).is_some_and(Value::is_object) {
        true => spec.pointer_mut(&group.template),
        false => {
            // The default template becomes the job's own once something has to be added to it.
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
