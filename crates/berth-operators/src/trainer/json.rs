//! Access to the parts of a JobSet's spec as JSON: its replicated jobs, their pods and containers.

use serde_json::{Value, json};

/// The replicated jobs of a JobSet's spec.
pub fn jobs(spec: &Value) -> &[Value] {
    spec["replicatedJobs"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The replicated jobs, to be changed.
pub fn jobs_mut(spec: &mut Value) -> impl Iterator<Item = &mut Value> {
    spec["replicatedJobs"].as_array_mut().into_iter().flatten()
}

/// The replicated job of a name, to be changed.
pub fn job_mut<'a>(spec: &'a mut Value, name: &str) -> Option<&'a mut Value> {
    jobs_mut(spec).find(|job| job["name"] == name)
}

/// The pod spec of a replicated job.
pub fn pod(job: &Value) -> &Value {
    &job["template"]["spec"]["template"]["spec"]
}

/// The pod spec of a replicated job, to be changed.
pub fn pod_mut(job: &mut Value) -> &mut Value {
    &mut job["template"]["spec"]["template"]["spec"]
}

/// The containers of a pod spec, those that initialize it last.
pub fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    [&pod["containers"], &pod["initContainers"]].into_iter().filter_map(Value::as_array).flatten()
}

/// The main container of a name, to be changed.
pub fn container_mut<'a>(pod: &'a mut Value, name: &str) -> Option<&'a mut Value> {
    named_mut(pod, "containers", name)
}

/// The container of a name, one that initializes the pod included, to be changed.
pub fn any_container_mut<'a>(pod: &'a mut Value, name: &str) -> Option<&'a mut Value> {
    let list = if named_mut(pod, "containers", name).is_some() { "containers" } else { "initContainers" };
    named_mut(pod, list, name)
}

fn named_mut<'a>(pod: &'a mut Value, list: &str, name: &str) -> Option<&'a mut Value> {
    // An absent list must not become null.
    let list = pod.get_mut(list)?.as_array_mut()?;
    list.iter_mut().find(|container| container["name"] == name)
}

/// Sets an item of a list that is identified by `key`: replaces it in its place, or appends it.
pub fn upsert(owner: &mut Value, list: &str, key: &str, item: Value) {
    match owner[list].as_array_mut() {
        Some(items) => match items.iter_mut().find(|known| known[key] == item[key]) {
            Some(known) => *known = item,
            None => items.push(item),
        },
        None => owner[list] = json!([item]),
    }
}

/// Sets environment variables.
pub fn set_env(container: &mut Value, variables: impl IntoIterator<Item = Value>) {
    for variable in variables {
        upsert(container, "env", "name", variable);
    }
}

/// An environment variable with a value.
pub fn variable(name: &str, value: impl ToString) -> Value {
    json!({"name": name, "value": value.to_string()})
}

/// An environment variable whose value is a field of the pod.
pub fn field_variable(name: &str, field: &str) -> Value {
    json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}})
}
