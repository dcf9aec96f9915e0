//! The integration of AppWrapper, which deploys any objects together. Its pod templates are
//! declared, or inferred for well-known kinds. Additions of admission are written next to each
//! component, and the AppWrapper operator applies them when it creates the component.

use berth_api::appwrapper::pod_sets::{self, PodSet};
use berth_api::kueue::conditions;
use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::well_known::COMPLETION_INDEX;
use serde_json::{Value, json};

use super::{Description, Group, Injection, kubeflow, true_condition};
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
    ready: |_, status| true_condition(status, "PodsReady").is_some(),
    active: |status| true_condition(status, conditions::QUOTA_RESERVED).is_some(),
    on_hold: |_| None,
    set_defaults: |_, _| {},
    queued: |_| true,
    resized: |_, _| None,
    cleans_up: |_, _| false,
    validate: |spec, _, path: &Path<'_>| match components(spec) {
        Ok(_) => Vec::new(),
        Err(message) => vec![Error::invalid(&path.child("components"), Value::Null, message)],
    },
};

/// The pod groups of each component: its pod sets, declared or inferred.
fn components(spec: &Value) -> Result<Vec<Vec<Group>>, String> {
    let components = spec["components"].as_array().into_iter().flatten().enumerate();
    components
        .map(|(index, component)| {
            let sets = pod_sets::of_component(component)?;
            sets.iter().map(|set| group(index, set)).collect()
        })
        .collect()
}

fn group(component: usize, set: &PodSet) -> Result<Group, String> {
    let mut group = Group::new("", set.count(), format!("/components/{component}{}", pod_sets::pointer(&set.path)?));
    // The index within a subgroup alone does not identify a pod of a JobSet.
    let annotations = set.annotations.as_ref().filter(|it| !it.contains_key(pod_sets::SUB_GROUP_INDEX_LABEL));
    let label = annotations.and_then(|annotations| annotations.get(pod_sets::POD_INDEX_LABEL));
    let known = [COMPLETION_INDEX, kubeflow::REPLICA_INDEX];
    group.pod_index_label = known.into_iter().find(|known| label.is_some_and(|label| label == known));
    Ok(group)
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
