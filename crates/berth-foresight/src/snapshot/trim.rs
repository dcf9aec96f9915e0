//! Leaves out of an object what no decision depends on.

use serde_json::{Map, Value};

/// Fields of metadata that are kept.
const METADATA: [&str; 8] =
    ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "generation", "ownerReferences", "labels"];
/// Fields of pod specs that are kept.
const POD: [&str; 12] = [
    "nodeName",
    "nodeSelector",
    "affinity",
    "tolerations",
    "runtimeClassName",
    "overhead",
    "priority",
    "priorityClassName",
    "topologySpreadConstraints",
    "resourceClaims",
    "resources",
    "schedulingGates",
];
/// Prefixes of annotations, and of the labels of most kinds, that are kept.
const PREFIXES: [&str; 5] =
    ["kueue.x-k8s.io/", "berth.dev/", "run-duration.berth.dev/", "jobset.sigs.k8s.io/", "provreq.kueue.x-k8s.io/"];

/// The object without what no decision depends on; `None` for pods that take no room.
pub(super) fn object(mut object: Value) -> Option<Value> {
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    let all_labels = matches!(kind.as_str(), "Node" | "Namespace" | "NodePool");
    if let Some(fields) = object["metadata"].as_object_mut() {
        metadata(fields, all_labels);
    }
    match kind.as_str() {
        "Pod" => {
            let phase = object["status"]["phase"].as_str().unwrap_or_default();
            if object["spec"]["nodeName"].as_str().is_none_or(str::is_empty) || matches!(phase, "Succeeded" | "Failed")
            {
                return None;
            }
            pod_spec(&mut object["spec"]);
            keep(&mut object["status"], &["phase", "containerStatuses"]);
            for status in object["status"]["containerStatuses"].as_array_mut().into_iter().flatten() {
                keep(status, &["name", "state", "ready", "restartCount"]);
            }
        }
        "Node" => {
            keep(&mut object["spec"], &["taints", "unschedulable"]);
            keep(&mut object["status"], &["allocatable", "conditions"]);
        }
        "Workload" => {
            for set in object["spec"]["podSets"].as_array_mut().into_iter().flatten() {
                if let Some(fields) = set["template"]["metadata"].as_object_mut() {
                    metadata(fields, false);
                }
                pod_spec(&mut set["template"]["spec"]);
            }
        }
        "Namespace" => keep(&mut object, &["apiVersion", "kind", "metadata"]),
        _ => {}
    }
    without_messages(&mut object);
    Some(object)
}

fn metadata(fields: &mut Map<String, Value>, all_labels: bool) {
    let is_kept = |key: &str| PREFIXES.iter().any(|prefix| key.starts_with(prefix));
    fields.retain(|field, _| METADATA.contains(&field.as_str()) || field == "annotations");
    if let Some(annotations) = fields.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.retain(|key, _| is_kept(key));
    }
    if let (false, Some(labels)) = (all_labels, fields.get_mut("labels").and_then(Value::as_object_mut)) {
        labels.retain(|key, _| is_kept(key));
    }
    fields.retain(|_, value| value.as_object().is_none_or(|map| !map.is_empty()));
}

fn pod_spec(spec: &mut Value) {
    let Some(fields) = spec.as_object_mut() else { return };
    fields.retain(|field, _| POD.contains(&field.as_str()) || field == "containers" || field == "initContainers");
    for list in ["containers", "initContainers"] {
        for container in fields.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            keep(container, &["name", "resources", "restartPolicy"]);
        }
    }
}

fn keep(value: &mut Value, wanted: &[&str]) {
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|field, _| wanted.contains(&field.as_str()));
    }
}

/// Removes the messages of conditions and checks, which name other objects. They are required
/// fields, so they stay as empty strings.
fn without_messages(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if fields.contains_key("lastTransitionTime")
                && let Some(message) = fields.get_mut("message")
            {
                *message = Value::String(String::new());
            }
            fields.values_mut().for_each(without_messages);
        }
        Value::Array(items) => items.iter_mut().for_each(without_messages),
        _ => {}
    }
}
