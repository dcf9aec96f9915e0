//! Suites of effective requests: limit ranges, runtime classes and violations of limits.

use std::collections::BTreeMap;

use berth_api::kueue::v1beta2::Workload;
use berth_controllers::translate::{requests, validate};
use k8s_openapi::api::core::v1::{LimitRange, PodSpec};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::compare::{differences, verdict};
use super::{input, read};
use crate::conformance::{Case, Runner, Verdict};

pub fn runner(suite: &str) -> Option<Runner> {
    Some(match suite {
        "limitrange-summarize" => summarize,
        "limitrange-validate-pod-spec" => validate_pod_spec,
        "workload-validate-limit-range" => |case| {
            let workload: Workload = input(case, "workload")?;
            let range: LimitRange = input(case, "limitRange")?;
            errors_in_message(&case.want["error"], validate::problem(&specs(&workload), &[range]))
        },
        "workload-validate-resources" => |case| {
            let workload: Workload = read(&case.input["workloadInfo"]["obj"])?;
            errors_in_message(&case.want["error"], validate::problem(&specs(&workload), &[]))
        },
        "workload-adjust-resources" => adjust,
        _ => return None,
    })
}

fn specs(workload: &Workload) -> Vec<PodSpec> {
    workload.spec.pod_sets.iter().map(|set| set.template.spec.clone().unwrap_or_default()).collect()
}

fn summarize(case: &Case) -> Verdict {
    let ranges: Vec<LimitRange> = input(case, "ranges")?;
    let mut got = serde_json::Map::new();
    for type_ in ["Pod", "Container", "PersistentVolumeClaim"] {
        if let Some(item) = requests::summarize(&ranges, type_) {
            got.insert(type_.to_owned(), serde_json::to_value(item).map_err(|e| e.to_string())?);
        }
    }
    // The result has the type as key; upstream leaves the field `type` empty.
    verdict(differences(&case.want["result"], &Value::Object(got), &["type"]))
}

/// The pod of the cases that record none.
fn common_pod_spec() -> Result<PodSpec, String> {
    let container = |requests: Value| json!({"name": "c", "resources": {"requests": requests}});
    let spec = json!({
        "containers": [
            container(json!({"cpu": "1", "memory": "2Gi", "example.com/mainContainerGpu": "2"})),
            container(json!({"cpu": "1.5", "example.com/gpu": "2"})),
        ],
        "initContainers": [
            container(json!({"cpu": "4", "memory": "2Gi"})),
            container(json!({"cpu": "1.5", "example.com/gpu": "2", "example.com/initContainerGpu": "2"})),
        ],
        "overhead": {"cpu": "1", "memory": "1Gi", "example.com/gpu": "1"},
    });
    serde_json::from_value(spec).map_err(|e| e.to_string())
}

fn validate_pod_spec(case: &Case) -> Verdict {
    let spec: PodSpec = match &case.input["podSpec"] {
        Value::Null => common_pod_spec()?,
        spec => serde_json::from_value(spec.clone()).map_err(|e| e.to_string())?,
    };
    let items: Vec<Value> = case.input["summary"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(type_, item)| {
            let mut item = item.clone();
            item["type"] = json!(type_);
            item
        })
        .collect();
    let range: LimitRange =
        serde_json::from_value(json!({"metadata": {}, "spec": {"limits": items}})).map_err(|e| e.to_string())?;
    errors_in_message(&case.want["result"], validate::problem(&[spec], &[range]))
}

/// Compares a message with the expected errors: it must contain each of them and no other.
fn errors_in_message(want: &Value, got: Option<String>) -> Verdict {
    let want = want.as_array().cloned().unwrap_or_default();
    let message = got.unwrap_or_default();
    for error in &want {
        let (field, detail) =
            (error["field"].as_str().unwrap_or_default(), error["detail"].as_str().unwrap_or_default());
        if !message.contains(&format!("{field}: ")) || !message.contains(detail) {
            return Err(format!("want {field}: {detail}, got {message:?}"));
        }
    }
    let found = message.matches("Invalid value").count();
    if found == want.len() { Ok(()) } else { Err(format!("want {} errors, got {message:?}", want.len())) }
}

fn adjust(case: &Case) -> Verdict {
    let mut workload: Workload = input(case, "wl")?;
    let ranges: Vec<LimitRange> = input(case, "limitranges")?;
    let classes: Vec<RuntimeClass> = match case.input["runtimeClasses"].clone() {
        Value::Null => Vec::new(),
        list => serde_json::from_value(list).map_err(|e| e.to_string())?,
    };
    let classes: BTreeMap<String, RuntimeClass> = classes.into_iter().map(|class| (class.name_any(), class)).collect();
    for set in &mut workload.spec.pod_sets {
        if let Some(spec) = &set.template.spec {
            let class = spec.runtime_class_name.as_ref().and_then(|name| classes.get(name));
            set.template.spec = Some(requests::adjust(spec, class, &ranges));
        }
    }
    let got = serde_json::to_value(&workload.spec).map_err(|e| e.to_string())?;
    verdict(differences(&case.want["wl"]["spec"], &got, &[]))
}
