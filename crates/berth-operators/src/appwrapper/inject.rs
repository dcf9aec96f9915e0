//! The object of a component, as it is created: with its owner and labels, and with the additions
//! of admission and of node health in its pod templates.

use std::collections::BTreeMap;

use berth_api::appwrapper::pod_sets::{self, PodSet};
use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Map, Value, json};

use super::config::AppWrapperConfiguration;
use super::types::{Component, LABEL, PodSetInfo};
use crate::health;

/// What a component's object depends on besides the component.
pub struct Wrapper<'a> {
    /// Name of the AppWrapper.
    pub name: &'a str,
    /// Namespace of the AppWrapper.
    pub namespace: &'a str,
    /// Reference to the AppWrapper.
    pub owner: OwnerReference,
    /// Configuration.
    pub configuration: &'a AppWrapperConfiguration,
}

/// The object of a component with these pod sets, under its recorded name.
///
/// # Errors
/// An addition conflicts with the template, or the template is malformed. Further attempts are
/// useless.
pub fn object(wrapper: &Wrapper<'_>, component: &Component, sets: &[PodSet], name: &str) -> Result<Value, String> {
    let mut object = component.template.clone();
    let metadata = map(&mut object, "metadata")?;
    if !name.is_empty() {
        metadata.insert("name".into(), json!(name));
    }
    match metadata.get("namespace").and_then(Value::as_str).unwrap_or_default() {
        "" => {
            metadata.insert("namespace".into(), json!(wrapper.namespace));
        }
        namespace if namespace != wrapper.namespace => {
            let own = wrapper.namespace;
            return Err(format!(
                "the component's namespace {namespace:?} is not {own:?}, the namespace of its AppWrapper"
            ));
        }
        _ => {}
    }
    let own = BTreeMap::from([(LABEL.to_owned(), wrapper.name.to_owned())]);
    let labels = map(metadata.entry("labels").or_insert(Value::Null), "")?;
    labels.entry(LABEL).or_insert_with(|| json!(wrapper.name));
    add_owner(metadata, &wrapper.owner)?;
    for (index, set) in sets.iter().enumerate() {
        let pointer = pod_sets::pointer(&set.path)?;
        let pointer = pointer.strip_prefix("/template").unwrap_or_default();
        let template = object.pointer_mut(pointer).ok_or_else(|| format!("{} does not exist", set.path))?;
        let none = PodSetInfo::default();
        inject(template, component.pod_set_infos.get(index).unwrap_or(&none), &own, wrapper.configuration)?;
    }
    Ok(object)
}

fn add_owner(metadata: &mut Map<String, Value>, owner: &OwnerReference) -> Result<(), String> {
    let owners = list(metadata, "ownerReferences")?;
    if owners.iter().any(|known| known["controller"] == true) {
        return Err("metadata.ownerReferences already has a controller".to_owned());
    }
    owners.push(serde_json::to_value(owner).map_err(|error| error.to_string())?);
    Ok(())
}

/// Adds to one pod template.
fn inject(
    template: &mut Value,
    info: &PodSetInfo,
    own: &BTreeMap<String, String>,
    configuration: &AppWrapperConfiguration,
) -> Result<(), String> {
    let metadata = map(template, "metadata")?;
    merge(metadata, "annotations", &info.annotations)?;
    merge(metadata, "labels", own)?;
    merge(metadata, "labels", &info.labels)?;
    let spec = map(template, "spec")?;
    merge(spec, "nodeSelector", &info.node_selector)?;
    if !info.tolerations.is_empty() {
        let added = info.tolerations.iter().map(|toleration| json!(toleration));
        list(spec, "tolerations")?.extend(added);
    }
    if !info.scheduling_gates.is_empty() {
        let gates = list(spec, "schedulingGates")?;
        for gate in &info.scheduling_gates {
            if !gates.iter().any(|known| known["name"] == gate.name.as_str()) {
                gates.push(json!({"name": gate.name}));
            }
        }
    }
    let scheduler = &configuration.scheduler_name;
    if !scheduler.is_empty() && spec.get("schedulerName").and_then(Value::as_str).unwrap_or_default().is_empty() {
        spec.insert("schedulerName".into(), json!(scheduler));
    }
    let typed =
        berth_api::json::from_value::<PodSpec>(Value::Object(spec.clone())).map_err(|error| error.to_string())?;
    if let Some(affinity) = health::affinity(&typed, &configuration.autopilot) {
        spec.insert("affinity".into(), json!(affinity));
    }
    Ok(())
}

/// Adds entries to a map of text. An entry that exists with another value is an error.
fn merge(parent: &mut Map<String, Value>, field: &str, added: &BTreeMap<String, String>) -> Result<(), String> {
    if added.is_empty() {
        return Ok(());
    }
    let known = map(parent.entry(field).or_insert(Value::Null), "")?;
    for (key, value) in added {
        match known.get(key) {
            Some(before) if before != value.as_str() => {
                return Err(format!("conflict updating {field}: {key} is {before} and must become {value:?}"));
            }
            _ => known.insert(key.clone(), json!(value)),
        };
    }
    Ok(())
}

/// The object at a field, made if it is absent; the value itself for an empty name.
fn map<'a>(value: &'a mut Value, field: &str) -> Result<&'a mut Map<String, Value>, String> {
    let found = if field.is_empty() {
        value
    } else {
        let parent = value.as_object_mut().ok_or_else(|| format!("the parent of {field} is not an object"))?;
        parent.entry(field).or_insert(Value::Null)
    };
    if found.is_null() {
        *found = json!({});
    }
    found.as_object_mut().ok_or_else(|| format!("{field} is not an object"))
}

/// The list at a field, made if it is absent.
fn list<'a>(parent: &'a mut Map<String, Value>, field: &str) -> Result<&'a mut Vec<Value>, String> {
    let found = parent.entry(field).or_insert(Value::Null);
    if found.is_null() {
        *found = json!([]);
    }
    found.as_array_mut().ok_or_else(|| format!("{field} is not a list"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(template: Value, info: Value) -> Result<Value, String> {
        let component = json!({"template": template, "podSetInfos": [info]});
        let component: Component = serde_json::from_value(component).expect("a component");
        let configuration = AppWrapperConfiguration { scheduler_name: "packing".into(), ..Default::default() };
        let owner = OwnerReference { name: "aw".into(), uid: "u".into(), controller: Some(true), ..Default::default() };
        let wrapper = Wrapper { name: "aw", namespace: "blue", owner, configuration: &configuration };
        let sets = pod_sets::infer(&component.template).expect("pod sets");
        object(&wrapper, &component, &sets, "job-x")
    }

    fn job(pod: Value) -> Value {
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"generateName": "job-"},
            "spec": {"template": {"spec": pod}}})
    }

    #[test]
    fn an_object_gets_name_namespace_labels_and_owner() {
        let object = built(job(json!({"containers": []})), json!({})).unwrap();
        assert_eq!(object["metadata"]["name"], "job-x");
        assert_eq!(object["metadata"]["namespace"], "blue");
        assert_eq!(object["metadata"]["labels"], json!({LABEL: "aw"}));
        assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], "u");
        assert_eq!(object["spec"]["template"]["metadata"]["labels"], json!({LABEL: "aw"}));
        assert_eq!(object["spec"]["template"]["spec"], json!({"containers": [], "schedulerName": "packing"}));
    }

    #[test]
    fn pod_templates_get_the_additions_of_admission() {
        let pod = json!({
            "containers": [], "schedulerName": "own", "nodeSelector": {"zone": "a"},
            "tolerations": [{"key": "old"}], "schedulingGates": [{"name": "first"}],
        });
        let info = json!({
            "annotations": {"a": "1"}, "labels": {"b": "2"}, "nodeSelector": {"zone": "a", "pool": "x"},
            "tolerations": [{"key": "new", "operator": "Exists"}],
            "schedulingGates": [{"name": "first"}, {"name": "second"}],
        });
        let object = built(job(pod), info).unwrap();
        let template = &object["spec"]["template"];
        assert_eq!(template["metadata"]["annotations"], json!({"a": "1"}));
        assert_eq!(template["metadata"]["labels"], json!({LABEL: "aw", "b": "2"}));
        let expected = json!({
            "containers": [], "schedulerName": "own", "nodeSelector": {"zone": "a", "pool": "x"},
            "tolerations": [{"key": "old"}, {"key": "new", "operator": "Exists"}],
            "schedulingGates": [{"name": "first"}, {"name": "second"}],
        });
        assert_eq!(template["spec"], expected);
    }

    #[test]
    fn an_addition_that_conflicts_is_rejected() {
        let pod = json!({"containers": [], "nodeSelector": {"zone": "a"}});
        let error = built(job(pod), json!({"nodeSelector": {"zone": "b"}})).unwrap_err();
        assert_eq!(error, "conflict updating nodeSelector: zone is \"a\" and must become \"b\"");
        let mut labelled = job(json!({"containers": []}));
        labelled["spec"]["template"]["metadata"]["labels"][LABEL] = json!("other");
        assert!(built(labelled, json!({})).unwrap_err().starts_with("conflict updating labels: "));
        let mut elsewhere = job(json!({"containers": []}));
        elsewhere["metadata"]["namespace"] = json!("red");
        assert!(built(elsewhere, json!({})).unwrap_err().contains("\"red\" is not \"blue\""));
    }

    #[test]
    fn pods_that_request_a_tainted_resource_avoid_unhealthy_nodes() {
        let gpus = json!({"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": 4}}}]});
        let object = built(job(gpus), json!({})).unwrap();
        let affinity = &object["spec"]["template"]["spec"]["affinity"]["nodeAffinity"];
        let terms = &affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
        let excluded =
            json!({"key": "autopilot.ibm.com/gpuhealth", "operator": "NotIn", "values": ["ERR", "TESTING", "EVICT"]});
        assert_eq!(*terms, json!([{"matchExpressions": [excluded]}]));
        assert_eq!(affinity["preferredDuringSchedulingIgnoredDuringExecution"][0]["weight"], 50);
    }
}
