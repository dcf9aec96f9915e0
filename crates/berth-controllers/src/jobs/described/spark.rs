//! The integration of SparkApplications: a driver, and executors of a fixed number.
//!
//! A SparkApplication has no pod templates. Its operator makes the pods from the fields of two
//! roles, so the pod sets are composed from the same fields, and the additions of admission are
//! written there.

use std::collections::BTreeMap;

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::quantity::Quantity;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::{Value, json};

use super::{Description, Group, Injection, integer};
use crate::configuration::frameworks;
use crate::gates::Gates;
use crate::jobs::Finished;
use crate::podset::{self, PodSetError, PodSetInfo};

/// Description of SparkApplication.
pub const APPLICATION: Description = Description {
    framework: frameworks::SPARK,
    elastic: false,
    suspend: &["spec", "suspend"],
    managed_by: None,
    priority_class: None,
    pod_index_label: None,
    injection: Injection::Roles,
    groups,
    finished,
    ready,
    active: |status| state(status) == "RUNNING",
    on_hold: |_| None,
    set_defaults: |_, _| {},
    queued: |_| true,
    resized: |_, _| None,
    cleans_up: |_, _| false,
    validate,
};

/// Name of the executors' role and pod set.
const EXECUTOR: &str = "executor";
/// Prefix of the names of volumes that Spark mounts itself.
const LOCAL_VOLUME: &str = "spark-local-dir-";
/// Fields of a role that admission adds to.
const METADATA: [&str; 2] = ["annotations", "labels"];

fn groups(spec: &Value) -> Result<Vec<Group>, String> {
    let of_role = |role: &str, count: i32| -> Result<Group, String> {
        let template = template(spec, role)?;
        Ok(Group { default: Some(template), ..Group::new(role, count, format!("/{role}")) })
    };
    Ok(vec![of_role("driver", 1)?, of_role(EXECUTOR, executors(spec))?])
}

fn executors(spec: &Value) -> i32 {
    integer(&spec[EXECUTOR]["instances"], 0)
}

/// The pods of a role, as far as they matter for queueing.
fn template(spec: &Value, role: &str) -> Result<PodTemplateSpec, String> {
    let fields = &spec[role];
    let mut container = json!({"name": format!("spark-kubernetes-{role}"), "resources": resources(fields, role)?});
    let (mut volumes, mut mounts) = (Vec::new(), Vec::new());
    for mount in list(&fields["volumeMounts"]) {
        let name = mount["name"].as_str().unwrap_or_default();
        let volume = list(&spec["volumes"]).iter().find(|volume| volume["name"] == name);
        if let Some(volume) = volume.filter(|_| !name.starts_with(LOCAL_VOLUME)) {
            mounts.push(mount.clone());
            if !volumes.contains(volume) {
                volumes.push(volume.clone());
            }
        }
    }
    if !mounts.is_empty() {
        container["volumeMounts"] = mounts.into();
    }
    let mut containers = vec![container];
    containers.extend(list(&fields["sidecars"]).iter().cloned());
    let mut pod = json!({"containers": containers});
    if !volumes.is_empty() {
        pod["volumes"] = volumes.into();
    }
    for field in ["initContainers", "priorityClassName", "affinity", "tolerations"] {
        if !fields[field].is_null() {
            pod[field] = fields[field].clone();
        }
    }
    let selector = node_selector(spec, role);
    if !selector.is_null() {
        pod["nodeSelector"] = selector.clone();
    }
    let gates = &fields["template"]["spec"]["schedulingGates"];
    if !gates.is_null() {
        pod["schedulingGates"] = gates.clone();
    }
    let mut metadata = json!({});
    for field in METADATA {
        let mut all = map(&fields["template"]["metadata"][field]);
        all.extend(map(&fields[field]));
        if !all.is_empty() {
            metadata[field] = json!(all);
        }
    }
    berth_api::json::from_value(json!({"metadata": metadata, "spec": pod}))
        .map_err(|error| format!("spec.{role}: {error}"))
}

/// The node selector of a role's pods: that of the application, or the role's own. Spark's operator
/// rejects an application with both.
fn node_selector<'a>(spec: &'a Value, role: &str) -> &'a Value {
    let shared = &spec["nodeSelector"];
    if shared.is_null() { &spec[role]["nodeSelector"] } else { shared }
}

/// Requests and limits of the role's own container.
fn resources(fields: &Value, role: &str) -> Result<Value, String> {
    let mut resources = json!({});
    for (field, kind, resource) in [
        ("coreRequest", "requests", "cpu"),
        ("memory", "requests", "memory"),
        ("coreLimit", "limits", "cpu"),
        ("memoryLimit", "limits", "memory"),
    ] {
        let Some(text) = fields[field].as_str() else { continue };
        let amount = if resource == "memory" { memory(text) } else { text.to_owned() };
        amount.parse::<Quantity>().map_err(|error| format!("spec.{role}.{field}: {text:?} is no quantity: {error}"))?;
        resources[kind][resource] = amount.into();
    }
    let (gpu, quantity) = (fields["gpu"]["name"].as_str(), fields["gpu"]["quantity"].as_i64());
    if let (Some(name), Some(quantity)) = (gpu.filter(|name| !name.is_empty()), quantity.filter(|number| *number > 0)) {
        resources["limits"][name] = quantity.to_string().into();
    }
    Ok(resources)
}

/// An amount of memory in the JVM's format (`512m`, `2g`, `2gb`) in Kubernetes' format. Other texts
/// are not changed.
fn memory(text: &str) -> String {
    let number = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match text[number.len()..].to_ascii_lowercase().as_str() {
        "k" | "kb" => "Ki",
        "m" | "mb" => "Mi",
        "g" | "gb" => "Gi",
        "t" | "tb" => "Ti",
        "p" | "pb" => "Pi",
        _ => return text.to_owned(),
    };
    format!("{number}{unit}")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn map(value: &Value) -> BTreeMap<String, String> {
    let entries = value.as_object().into_iter().flatten();
    entries.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

/// Adds `info` to the fields of a group's role.
pub(super) fn merge(spec: &mut Value, group: &Group, info: &PodSetInfo, gates: &Gates) -> Result<(), PodSetError> {
    let Some(mut template) = group.default.clone() else { return Ok(()) };
    podset::merge(&mut template, info, gates)?;
    write(spec, &group.name, &template);
    Ok(())
}

/// Removes the node selector of the application, which [`merge`] and [`restore`] have written to
/// its roles.
pub(super) fn clear_shared_selector(spec: &mut Value) {
    if let Some(spec) = spec.as_object_mut() {
        spec.remove("nodeSelector");
    }
}

/// Restores the fields of a group's role from `info`. Returns true if that changed anything.
pub(super) fn restore(spec: &mut Value, group: &Group, info: &PodSetInfo) -> bool {
    let Some(mut template) = group.default.clone() else { return false };
    let mut changed = podset::restore(&mut template, info);
    if changed {
        write(spec, &group.name, &template);
    }
    if group.name == EXECUTOR && executors(spec) != info.count {
        spec[EXECUTOR]["instances"] = info.count.into();
        changed = true;
    }
    changed
}

/// Writes the fields that admission may change from a template to a role.
fn write(spec: &mut Value, role: &str, template: &PodTemplateSpec) {
    let wanted = json!(template);
    for field in METADATA {
        let own = map(&spec[role][field]);
        let base = map(&spec[role]["template"]["metadata"][field]);
        // What the role's template has need not be repeated.
        let mut all = map(&wanted["metadata"][field]);
        all.retain(|key, value| own.contains_key(key) || base.get(key) != Some(value));
        let value = if all.is_empty() { Value::Null } else { json!(all) };
        set(&mut spec[role], field, value);
    }
    for field in ["nodeSelector", "tolerations"] {
        set(&mut spec[role], field, wanted["spec"][field].clone());
    }
    let gates = wanted["spec"]["schedulingGates"].clone();
    if gates != spec[role]["template"]["spec"]["schedulingGates"] {
        let place = &mut spec[role]["template"];
        if place["spec"]["containers"].is_null() {
            // A template needs a container. The operator completes the one of this name.
            super::set_at(place, &["spec", "containers"], json!([{"name": format!("spark-kubernetes-{role}")}]));
        }
        set(&mut place["spec"], "schedulingGates", gates);
    }
}

/// Sets a field of an object, or removes it if the value is null.
fn set(object: &mut Value, field: &str, value: Value) {
    if !value.is_null() {
        object[field] = value;
    } else if let Some(map) = object.as_object_mut() {
        map.remove(field);
    }
}

fn state(status: &Value) -> &str {
    status["applicationState"]["state"].as_str().unwrap_or_default()
}

fn finished(status: &Value) -> Option<Finished> {
    let success = match state(status) {
        "COMPLETED" => true,
        "FAILED" | "SUBMISSION_FAILED" => false,
        _ => return None,
    };
    let message = status["applicationState"]["errorMessage"].as_str().unwrap_or_default().to_owned();
    Some(Finished { success, message })
}

/// The driver runs, and every executor runs or has ended. The application counts as running as soon
/// as its driver does.
fn ready(spec: &Value, status: &Value) -> bool {
    let states = status["executorState"].as_object().into_iter().flatten();
    let started = states.filter(|(_, state)| *state == "RUNNING" || *state == "COMPLETED").count();
    state(status) == "RUNNING" && i32::try_from(started).is_ok_and(|started| started >= executors(spec))
}

fn validate(spec: &Value, _elastic: bool, path: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    if spec["mode"] != "cluster" {
        let detail = "only mode \"cluster\" is supported for a Kueue-managed job";
        errors.push(Error::invalid(&path.child("mode"), spec["mode"].clone(), detail));
    }
    if spec["dynamicAllocation"]["enabled"] == true {
        let detail =
            "a Kueue-managed job cannot use dynamicAllocation, because its quota is for a fixed number of executors";
        errors.push(Error::invalid(&path.child("dynamicAllocation").child("enabled"), true, detail));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn application() -> Value {
        json!({
            "mode": "cluster", "suspend": true, "nodeSelector": {"disk": "ssd"},
            "volumes": [{"name": "data", "emptyDir": {}}, {"name": "spark-local-dir-1", "emptyDir": {}}],
            "driver": {"coreRequest": "1", "memory": "512m", "labels": {"app": "pi"}},
            "executor": {
                "instances": 3, "coreRequest": "500m", "coreLimit": "1", "memory": "2g", "memoryLimit": "3gb",
                "gpu": {"name": "nvidia.com/gpu", "quantity": 1},
                "volumeMounts": [{"name": "data", "mountPath": "/data"},
                                 {"name": "spark-local-dir-1", "mountPath": "/tmp"}],
                "sidecars": [{"name": "logs", "image": "logs"}],
                "template": {"metadata": {"annotations": {"team": "a"}}},
            },
        })
    }

    fn info(group: &Group) -> PodSetInfo {
        PodSetInfo {
            name: group.name.clone(),
            count: group.count,
            labels: [("kueue.x-k8s.io/podset".to_owned(), group.name.clone())].into(),
            node_selector: [("pool".to_owned(), "spot".to_owned())].into(),
            scheduling_gates: serde_json::from_value(json!([{"name": "kueue.x-k8s.io/topology"}])).unwrap(),
            ..PodSetInfo::default()
        }
    }

    #[test]
    fn pod_sets_have_the_resources_of_the_roles() {
        let groups = groups(&application()).unwrap();
        assert_eq!(groups.iter().map(|it| (&*it.name, it.count)).collect::<Vec<_>>(), [("driver", 1), ("executor", 3)]);
        let pods: Vec<Value> = groups.iter().map(|group| json!(group.default)).collect();
        let resources = |pod: &Value| pod["spec"]["containers"][0]["resources"].clone();
        assert_eq!(resources(&pods[0]), json!({"requests": {"cpu": "1", "memory": "512Mi"}}));
        let expected = json!({"requests": {"cpu": "500m", "memory": "2Gi"},
            "limits": {"cpu": "1", "memory": "3Gi", "nvidia.com/gpu": "1"}});
        assert_eq!(resources(&pods[1]), expected);
        assert_eq!(pods[1]["spec"]["volumes"], json!([{"name": "data", "emptyDir": {}}]));
        assert_eq!(pods[1]["spec"]["containers"][1]["name"], "logs");
        assert_eq!(pods[1]["metadata"]["annotations"], json!({"team": "a"}));
        assert!(pods.iter().all(|pod| pod["spec"]["nodeSelector"] == json!({"disk": "ssd"})));
    }

    #[test]
    fn a_resource_that_is_no_quantity_is_an_error_with_its_field() {
        let mut spec = application();
        spec["driver"]["coreRequest"] = json!("one");
        let error = groups(&spec).unwrap_err();
        assert!(error.starts_with("spec.driver.coreRequest: \"one\" is no quantity"), "{error}");
    }

    #[test]
    fn additions_are_written_to_the_roles_and_removed_again() {
        let mut spec = application();
        let before = groups(&spec).unwrap();
        for group in &before {
            merge(&mut spec, group, &info(group), &Gates::default()).unwrap();
        }
        clear_shared_selector(&mut spec);
        assert_eq!(spec["driver"]["nodeSelector"], json!({"disk": "ssd", "pool": "spot"}));
        assert_eq!(spec["driver"]["labels"], json!({"app": "pi", "kueue.x-k8s.io/podset": "driver"}));
        let gated = json!({"containers": [{"name": "spark-kubernetes-driver"}],
            "schedulingGates": [{"name": "kueue.x-k8s.io/topology"}]});
        assert_eq!(spec["driver"]["template"]["spec"], gated);
        assert!(spec["nodeSelector"].is_null());
        assert!(spec["executor"]["annotations"].is_null(), "annotations of the template are not repeated");

        spec["executor"]["instances"] = json!(5);
        let now = groups(&spec).unwrap();
        for (group, recorded) in now.iter().zip(&before) {
            let pod_set = berth_api::kueue::v1beta2::PodSet {
                name: recorded.name.clone(),
                count: recorded.count,
                min_count: None,
                template: recorded.default.clone().unwrap(),
                topology_request: None,
            };
            assert!(restore(&mut spec, group, &PodSetInfo::from_pod_set(&pod_set)));
            assert!(!restore(
                &mut spec.clone(),
                &groups(&spec).unwrap()[usize::from(group.name == EXECUTOR)],
                &PodSetInfo::from_pod_set(&pod_set)
            ));
        }
        let after = groups(&spec).unwrap();
        assert_eq!(
            after.iter().map(|it| json!(it.default)).collect::<Vec<_>>(),
            before.iter().map(|it| json!(it.default)).collect::<Vec<_>>()
        );
        assert_eq!(spec["executor"]["instances"], 3);
    }

    #[test]
    fn an_application_is_ready_when_its_executors_run_and_ends_in_three_states() {
        let spec = json!({"executor": {"instances": 2}});
        let status = |state: &str, executors: Value| json!({"applicationState": {"state": state, "errorMessage": "why"}, "executorState": executors});
        assert!(!ready(&spec, &status("RUNNING", json!({"a": "RUNNING", "b": "PENDING"}))));
        assert!(ready(&spec, &status("RUNNING", json!({"a": "RUNNING", "b": "COMPLETED"}))));
        assert!(!ready(&spec, &status("SUBMITTED", json!({"a": "RUNNING", "b": "RUNNING"}))));
        let ends = |state: &str| finished(&status(state, Value::Null)).map(|end| (end.success, end.message));
        assert_eq!(ends("COMPLETED"), Some((true, "why".to_owned())));
        assert_eq!(ends("FAILED"), Some((false, "why".to_owned())));
        assert_eq!(ends("SUBMISSION_FAILED"), Some((false, "why".to_owned())));
        assert_eq!(ends("FAILING"), None);
    }

    #[test]
    fn an_application_in_another_mode_or_with_dynamic_allocation_is_rejected() {
        let fields = |spec: &Value| -> Vec<String> {
            validate(spec, false, &Path::new("spec")).into_iter().map(|error| error.field).collect()
        };
        assert!(fields(&application()).is_empty());
        let wrong = json!({"mode": "client", "dynamicAllocation": {"enabled": true}});
        assert_eq!(fields(&wrong), ["spec.mode", "spec.dynamicAllocation.enabled"]);
    }
}
