//! Names of components, and the first record of them.

use berth_api::appwrapper::pod_sets;
use jiff::Timestamp;
use serde_json::Value;

use super::types::{AppWrapperSpec, ComponentStatus};
use crate::ray::names::suffix;

/// Maximum length of a generated name.
const NAME_LENGTH_MAX: usize = 63;

/// The record of the components before any is created.
///
/// # Errors
/// A pod set cannot be inferred. The message has the component's field path.
pub fn component_status(spec: &AppWrapperSpec) -> Result<Vec<ComponentStatus>, String> {
    let components = spec.components.iter().enumerate();
    components
        .map(|(index, component)| {
            let pod_sets = if component.pod_sets.is_empty() {
                let inferred = pod_sets::infer(&component.template);
                inferred.map_err(|why| format!("spec.components[{index}].template: {why}"))?
            } else {
                component.pod_sets.clone()
            };
            Ok(ComponentStatus { pod_sets, ..ComponentStatus::default() })
        })
        .collect()
}

/// The name of a component's object. A name for `generateName` depends on the AppWrapper, the
/// component and the time, so each reset has other names. Empty if the object has neither field.
pub fn name(object: &Value, uid: &str, index: usize, now: Timestamp) -> String {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    let (name, base) = (text("name"), text("generateName"));
    if !name.is_empty() || base.is_empty() {
        return name.to_owned();
    }
    let suffix = suffix(&[uid, &index.to_string(), &now.as_nanosecond().to_string()]);
    let mut end = base.len().min(NAME_LENGTH_MAX - suffix.len());
    while !base.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{suffix}", &base[..end])
}

/// True if the object's name is generated.
pub fn is_generated(object: &Value) -> bool {
    let is_set = |field: &str| object["metadata"][field].as_str().is_some_and(|text| !text.is_empty());
    !is_set("name") && is_set("generateName")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn generated_names_differ_between_components_and_times() {
        let (first, later): (Timestamp, Timestamp) =
            ("2026-01-05T09:00:00Z".parse().unwrap(), "2026-01-05T09:00:00.1Z".parse().unwrap());
        let job = json!({"metadata": {"generateName": "large"}});
        let names = [name(&job, "u", 0, first), name(&job, "u", 1, first), name(&job, "u", 0, later)];
        assert!(names.iter().all(|name| name.len() == 10 && name.starts_with("large")), "{names:?}");
        assert!(names[0] != names[1] && names[0] != names[2]);
        assert_eq!(names[0], name(&job, "u", 0, first));
        let long = json!({"metadata": {"generateName": "x".repeat(80)}});
        assert_eq!(name(&long, "u", 0, first).len(), 63);
        assert_eq!(name(&json!({"metadata": {"name": "a", "generateName": "b"}}), "u", 0, first), "a");
        assert_eq!(name(&json!({}), "u", 0, first), "");
    }
}
