//! Reads manifests from real projects into the types and writes them again.

use berth_api::{autoscaling, jobset, kueue};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::shared;

#[test]
fn manifests_of_the_scenarios_survive_the_types() {
    let Some(directory) = berth_testing::shared("scenarios") else { return };
    let (mut read, mut lost, mut unreadable) = (0, Vec::new(), 0);
    for file in shared::files(&directory, "yaml") {
        let text = std::fs::read_to_string(&file).expect("readable");
        for document in text.split("\n---") {
            // Some files are templates, or not manifests at all.
            let Ok(Value::Object(object)) = serde_saphyr::from_str::<Value>(document.trim_start_matches("---")) else {
                unreadable += usize::from(
                    document.contains("apiVersion: kueue.x-k8s.io") || document.contains("apiVersion: jobset.x-k8s.io"),
                );
                continue;
            };
            let object = Value::Object(object);
            let group = object["apiVersion"]
                .as_str()
                .and_then(|v| v.split_once('/'))
                .map(|(group, _)| group)
                .unwrap_or_default();
            let kind = object["kind"].as_str().unwrap_or_default();
            let object = match group {
                "kueue.x-k8s.io" => kueue::conversion::convert(object.clone(), "v1beta2")
                    .unwrap_or_else(|e| panic!("{}: {e}", file.display())),
                _ => object.clone(),
            };
            let back = match (group, kind) {
                ("kueue.x-k8s.io", "ClusterQueue") => through::<kueue::v1beta2::ClusterQueue>(&object),
                ("kueue.x-k8s.io", "Cohort") => through::<kueue::v1beta2::Cohort>(&object),
                ("kueue.x-k8s.io", "LocalQueue") => through::<kueue::v1beta2::LocalQueue>(&object),
                ("kueue.x-k8s.io", "ResourceFlavor") => through::<kueue::v1beta2::ResourceFlavor>(&object),
                ("kueue.x-k8s.io", "Workload") => through::<kueue::v1beta2::Workload>(&object),
                ("kueue.x-k8s.io", "WorkloadPriorityClass") => {
                    through::<kueue::v1beta2::WorkloadPriorityClass>(&object)
                }
                ("kueue.x-k8s.io", "AdmissionCheck") => through::<kueue::v1beta2::AdmissionCheck>(&object),
                ("kueue.x-k8s.io", "ProvisioningRequestConfig") => {
                    through::<kueue::v1beta2::ProvisioningRequestConfig>(&object)
                }
                ("kueue.x-k8s.io", "Topology") => through::<kueue::v1beta2::Topology>(&object),
                ("kueue.x-k8s.io", "MultiKueueCluster") => through::<kueue::v1beta2::MultiKueueCluster>(&object),
                ("kueue.x-k8s.io", "MultiKueueConfig") => through::<kueue::v1beta2::MultiKueueConfig>(&object),
                ("jobset.x-k8s.io", "JobSet") => through::<jobset::v1alpha2::JobSet>(&object),
                ("autoscaling.x-k8s.io", "ProvisioningRequest") => {
                    through::<autoscaling::v1::ProvisioningRequest>(&object)
                }
                _ => continue,
            };
            read += 1;
            match back {
                Ok(back) => missing(&format!("{} {kind}", file.display()), &object, &back, &mut lost),
                Err(error) => lost.push(format!("{} {kind}: {error}", file.display())),
            }
        }
    }
    println!("{read} manifests read and written, {unreadable} are templates");
    assert!(lost.is_empty(), "{lost:#?}");
    assert!(read > 100, "only {read} manifests were found");
}

#[test]
fn recorded_objects_of_the_controllers_survive_the_types() {
    let Some(directory) = berth_testing::shared("conformance/kueue-controllers") else { return };
    let (mut read, mut lost) = (0, Vec::new());
    for file in shared::files(&directory, "json") {
        let case: Value =
            serde_json::from_str(&std::fs::read_to_string(&file).expect("readable")).expect("well-formed");
        let mut open = vec![&case];
        while let Some(value) = open.pop() {
            match value {
                Value::Array(list) => open.extend(list),
                Value::Object(object) => {
                    open.extend(object.values());
                    if !object.contains_key("metadata") {
                        // A reference to an object, not an object.
                        continue;
                    }
                    let version = value["apiVersion"].as_str().unwrap_or_default();
                    let converted = (version == "kueue.x-k8s.io/v1beta1")
                        .then(|| kueue::conversion::convert(value.clone(), "v1beta2").expect("convertible"));
                    let value = converted.as_ref().unwrap_or(value);
                    let version = value["apiVersion"].as_str().unwrap_or_default();
                    let back = match (version, value["kind"].as_str().unwrap_or_default()) {
                        ("kueue.x-k8s.io/v1beta2", "ClusterQueue") => through::<kueue::v1beta2::ClusterQueue>(value),
                        ("kueue.x-k8s.io/v1beta2", "LocalQueue") => through::<kueue::v1beta2::LocalQueue>(value),
                        ("kueue.x-k8s.io/v1beta2", "Workload") => through::<kueue::v1beta2::Workload>(value),
                        ("kueue.x-k8s.io/v1beta2", "ResourceFlavor") => {
                            through::<kueue::v1beta2::ResourceFlavor>(value)
                        }
                        ("kueue.x-k8s.io/v1beta2", "AdmissionCheck") => {
                            through::<kueue::v1beta2::AdmissionCheck>(value)
                        }
                        ("jobset.x-k8s.io/v1alpha2", "JobSet") => through::<jobset::v1alpha2::JobSet>(value),
                        ("autoscaling.x-k8s.io/v1", "ProvisioningRequest") => {
                            through::<autoscaling::v1::ProvisioningRequest>(value)
                        }
                        _ => continue,
                    };
                    read += 1;
                    match back {
                        Ok(back) => missing(&format!("{}", file.display()), value, &back, &mut lost),
                        Err(error) => lost.push(format!("{}: {error}", file.display())),
                    }
                }
                _ => {}
            }
        }
    }
    println!("{read} recorded objects read and written");
    assert!(lost.is_empty(), "{} {lost:#?}", lost.len());
}

fn through<T: DeserializeOwned + Serialize>(object: &Value) -> Result<Value, String> {
    let typed: T = serde_json::from_value(object.clone()).map_err(|error| error.to_string())?;
    serde_json::to_value(&typed).map_err(|error| error.to_string())
}

/// Fields of pod templates that the definitions have, but not the Rust types of an earlier minor
/// version of Kubernetes. Reading into types and writing again loses them; patches keep them.
const NEWER_THAN_THE_TYPES: &[&str] = &["schedulingGroup"];

/// Records fields of `before` that `after` lacks. Empty values may be omitted; quantities may be
/// written as strings.
fn missing(path: &str, before: &Value, after: &Value, lost: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            for (key, value) in before {
                let path = format!("{path} .{key}");
                match after.get(key) {
                    Some(after) => missing(&path, value, after, lost),
                    None if is_empty(value) || NEWER_THAN_THE_TYPES.contains(&key.as_str()) => {}
                    None => lost.push(format!("{path}: {value} is lost")),
                }
            }
        }
        (Value::Array(before), Value::Array(after)) if before.len() == after.len() => {
            for (index, (before, after)) in before.iter().zip(after).enumerate() {
                missing(&format!("{path}[{index}]"), before, after, lost);
            }
        }
        (Value::Number(number), Value::String(text)) if number.to_string() == *text => {}
        (before, after) if before == after => {}
        // Unset, as Go writes it: read as the default.
        (Value::String(text), _) if text.is_empty() => {}
        (Value::String(before), Value::String(after)) if same_second(before, after) => {}
        (before, after) => lost.push(format!("{path}: {before} became {after}")),
    }
}

/// True if two times are in the same second: times are written with whole seconds.
fn same_second(before: &str, after: &str) -> bool {
    before.len() > 19 && after.len() == 20 && before[..19] == after[..19]
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Bool(_) => false,
    }
}
