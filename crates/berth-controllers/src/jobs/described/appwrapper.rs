//! The integration of AppWrapper, which deploys any objects together. Its pod templates are
//! declared, or inferred for well-known kinds. Additions of admission are written next to each
//! component, and the AppWrapper operator applies them when it creates the component.

use berth_api::kueue::conditions;
use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::well_known::COMPLETION_INDEX;
use serde_json::{Value, json};

use super::{Description, Group, Injection, integer, kubeflow, ray, true_condition};
use crate::jobs::Finished;
use crate::podset::PodSetInfo;

/// Description of AppWrapper.
pub const APP_WRAPPER: Description = Description {
    framework: "workload.codeflare.dev/appwrapper",
    elastic: false,
    suspend: &["spec", "suspend"],
    managed_by: Some(&["spec", "managedBy"]),
    priority_class: None,
    pod_index_label: None,
    injection: Injection::Infos,
    groups: |spec| Ok(components(spec)?.into_iter().flatten().collect()),
    finished: |status| match status["phase"].as_str()? {
        "Succeeded" => Some(Finished { success: true, message: "AppWrapper finished successfully".to_owned() }),
        // A failed wrapper keeps its quota until its components are deleted.
        "Failed" if true_condition(status, "ResourcesDeployed").is_none() => {
            Some(Finished { success: false, message: "AppWrapper failed".to_owned() })
        }
        _ => None,
    },
    ready: |status| true_condition(status, "PodsReady").is_some(),
    active: |status| true_condition(status, conditions::QUOTA_RESERVED).is_some(),
    queued: |_| true,
    resized: |_, _| None,
    validate: |spec, _, path: &Path<'_>| match components(spec) {
        Ok(sets) if sets.iter().all(Vec::is_empty) => {
            vec![Error::invalid(&path.child("components"), Value::Null, "components contains no podspecs")]
        }
        Ok(_) => Vec::new(),
        Err(message) => vec![Error::invalid(&path.child("components"), Value::Null, message)],
    },
};

/// The pod groups of each component.
fn components(spec: &Value) -> Result<Vec<Vec<Group>>, String> {
    let mut all = Vec::new();
    for (index, component) in spec["components"].as_array().into_iter().flatten().enumerate() {
        let template = &component["template"];
        let mut groups = match component["podSets"].as_array() {
            Some(declared) if !declared.is_empty() => {
                declared.iter().map(declared_set).collect::<Result<Vec<_>, _>>()?
            }
            _ => inferred(template)?,
        };
        for group in &mut groups {
            group.template = format!("/components/{index}{}", group.template);
        }
        all.push(groups);
    }
    Ok(all)
}

/// A pod set that the wrapper declares; its `path` looks like
/// `template.spec.workerGroupSpecs[0].template`.
fn declared_set(set: &Value) -> Result<Group, String> {
    let path = set["path"].as_str().ok_or("podspec must specify path")?;
    let mut pointer = String::new();
    for step in path.split('.') {
        let mut parts = step.split('[');
        pointer.push('/');
        pointer.push_str(parts.next().unwrap_or_default());
        for index in parts {
            pointer.push('/');
            pointer.push_str(index.trim_end_matches(']'));
        }
    }
    Ok(Group::new("", integer(&set["replicas"], 1), pointer))
}

/// The pod groups of a component of a well-known kind; empty for other kinds.
fn inferred(object: &Value) -> Result<Vec<Group>, String> {
    let spec = &object["spec"];
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let one = |count: i32, path: &str| vec![Group::new("", count, format!("/template{path}"))];
    let within = |groups: Vec<Group>| {
        let moved = |mut group: Group| {
            group.template = format!("/template/spec{}", group.template);
            group
        };
        groups.into_iter().map(moved).collect::<Vec<_>>()
    };
    let of_job = |spec: &Value| {
        let parallelism = integer(&spec["parallelism"], 1);
        parallelism.min(integer(&spec["completions"], parallelism))
    };
    Ok(match (group, object["kind"].as_str().unwrap_or_default()) {
        ("", "Pod") => one(1, ""),
        ("apps", "Deployment" | "StatefulSet") => one(integer(&spec["replicas"], 1), "/spec/template"),
        ("batch", "Job") => numbered(one(of_job(spec), "/spec/template"), COMPLETION_INDEX),
        ("jobset.x-k8s.io", "JobSet") => {
            let jobs = spec["replicatedJobs"].as_array().into_iter().flatten().enumerate();
            jobs.map(|(index, job)| {
                let count = integer(&job["replicas"], 1).saturating_mul(of_job(&job["template"]["spec"]));
                let path = format!("/template/spec/replicatedJobs/{index}/template/spec/template");
                Group::new("", count, path)
            })
            .collect()
        }
        ("kubeflow.org", "PyTorchJob") => numbered(within((kubeflow::PYTORCH.groups)(spec)?), kubeflow::REPLICA_INDEX),
        ("ray.io", "RayCluster") => within(of_ray((ray::CLUSTER.groups)(spec)?)),
        ("ray.io", "RayJob") => within(of_ray((ray::JOB.groups)(spec)?)),
        _ => Vec::new(),
    })
}

fn numbered(mut groups: Vec<Group>, label: &'static str) -> Vec<Group> {
    groups.iter_mut().for_each(|group| group.pod_index_label = Some(label));
    groups
}

/// Only the groups whose pods the component's spec contains: AppWrapper ignores the containers and
/// pods that KubeRay adds.
fn of_ray(groups: Vec<Group>) -> Vec<Group> {
    let written = groups.into_iter().filter(|group| group.default.is_none());
    written.map(|group| Group { added: Vec::new(), ..group }).collect()
}

/// Writes the additions of admission next to each component.
pub(super) fn set_infos(spec: &mut Value, infos: &[PodSetInfo]) {
    let Ok(components) = components(spec) else { return };
    let mut infos = infos.iter();
    for (index, groups) in components.iter().enumerate().filter(|(_, groups)| !groups.is_empty()) {
        let of_component: Vec<Value> = infos.by_ref().take(groups.len()).map(info).collect();
        spec["components"][index]["podSetInfos"] = of_component.into();
    }
}

fn info(info: &PodSetInfo) -> Value {
    let mut value = json!({
        "labels": info.labels,
        "annotations": info.annotations,
        "nodeSelector": info.node_selector,
        "tolerations": info.tolerations,
        "schedulingGates": info.scheduling_gates,
    });
    if let Some(map) = value.as_object_mut() {
        let empty = |value: &Value| {
            value.as_object().is_some_and(serde_json::Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
        };
        map.retain(|_, value| !empty(value));
    }
    value
}

/// Removes the additions of admission. Returns true if there were any.
pub(super) fn clear_infos(spec: &mut Value) -> bool {
    let components = spec["components"].as_array_mut().into_iter().flatten();
    let removed = components.filter_map(|component| component.as_object_mut()?.remove("podSetInfos"));
    removed.count() > 0
}
