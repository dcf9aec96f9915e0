//! Validation of Workloads beyond their schema.

use std::collections::BTreeMap;

use berth_api::kueue::annotations;
use berth_api::kueue::v1beta2::{CheckState, PodSet, PodSetUpdate, Workload};
use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::meaning::{same, same_as};
use berth_apimachinery::quantity::Quantity;
use k8s_openapi::api::core::v1::{Container, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use serde_json::json;

use super::labels;
use crate::gates::{Gate, Gates};
use crate::priority;
use crate::workload::status::has_quota_reservation;

const IMMUTABLE: &str = "field is immutable";

/// Validates a new Workload.
pub fn validate_workload(workload: &Workload, gates: &Gates) -> Vec<Error> {
    let mut errors = pod_sets(workload, gates);
    let status = Path::new("status");
    let spec_names: Vec<&str> = workload.spec.pod_sets.iter().map(|set| set.name.as_str()).collect();
    if has_quota_reservation(workload) {
        errors.extend(admission(workload, &status.child("admission")));
    }
    let metadata = Path::new("metadata");
    let annotations = workload.metadata.annotations.as_ref();
    if gates.on(Gate::AdmissionGatedBy) {
        // One malformed gate makes the whole annotation invalid.
        let path = metadata.child("annotations");
        let text = annotations.and_then(|map| map.get(annotations::ADMISSION_GATED_BY));
        if let (Some(text), Some(wrong)) = (text, labels::gated_by(annotations, &path).first()) {
            errors.push(Error::invalid(
                &path.key(annotations::ADMISSION_GATED_BY),
                text.as_str(),
                wrong.detail.clone(),
            ));
        }
    }
    if let Err(message) = priority::boost(workload, gates) {
        let text = annotations.and_then(|map| map.get(annotations::PRIORITY_BOOST)).cloned().unwrap_or_default();
        let path = metadata.child("annotations");
        errors.push(Error::invalid(&path.key(annotations::PRIORITY_BOOST), text, message));
    }
    errors.extend(reclaimable(workload, None, &status.child("reclaimablePods"), &spec_names));
    errors.extend(checks(workload, &status.child("admissionChecks"), &spec_names));
    errors
}

/// Validates a changed Workload.
pub fn validate_workload_update(new: &Workload, old: &Workload, gates: &Gates) -> Vec<Error> {
    let mut errors = Vec::new();
    let unchanged = new.spec == old.spec && new.status == old.status;
    // Removing a finalizer must always succeed.
    if unchanged && new.metadata.annotations == old.metadata.annotations {
        return errors;
    }
    let spec = Path::new("spec");
    let status = Path::new("status");
    let elastic = gates.on(Gate::ElasticJobsViaWorkloadSlices);
    let names: Vec<&str> = new.spec.pod_sets.iter().map(|set| set.name.as_str()).collect();
    errors.extend(pod_sets(new, gates));
    if has_quota_reservation(new) {
        errors.extend(admission(new, &status.child("admission")));
    }
    errors.extend(reclaimable(new, Some(old), &status.child("reclaimablePods"), &names));
    errors.extend(checks(new, &status.child("admissionChecks"), &names));
    let both = has_quota_reservation(new) && has_quota_reservation(old);
    if both {
        errors.extend(same_pod_sets(&new.spec.pod_sets, &old.spec.pod_sets, elastic, &spec.child("podSets")));
        errors.extend(reclaimable_update(new, old, &status.child("reclaimablePods"), elastic));
        let assigned = |workload: &Workload| -> Vec<String> {
            let admission = workload.status.as_ref().and_then(|status| status.admission.as_ref());
            admission.map(|a| a.pod_set_assignments.iter().map(|p| p.name.clone()).collect()).unwrap_or_default()
        };
        let (before, after) = (assigned(old), assigned(new));
        if !before.is_empty() && !after.is_empty() && before != after {
            let value = new.status.as_ref().and_then(|status| serde_json::to_value(&status.admission).ok());
            let detail = "podSetAssignments cannot be added or removed";
            errors.push(Error::invalid(&status.child("admission"), value.unwrap_or_default(), detail));
        }
    }
    let list = status.child("admissionChecks");
    let states = |workload: &Workload| workload.status.as_ref().map(|s| s.admission_checks.clone()).unwrap_or_default();
    let old_states = states(old);
    for (index, state) in states(new).iter().enumerate() {
        let known = old_states.iter().find(|known| known.name == state.name);
        if known.is_some_and(|known| {
            known.state == CheckState::Ready
                && state.state == CheckState::Ready
                && !same_updates(&known.pod_set_updates, &state.pod_set_updates)
        }) {
            let at = list.index(index);
            let value = serde_json::to_value(&state.pod_set_updates).unwrap_or_default();
            errors.push(Error::invalid(&at.child("podSetUpdates"), value, IMMUTABLE));
        }
    }
    if gates.on(Gate::AdmissionGatedBy) {
        let metadata = Path::new("metadata");
        errors.extend(labels::gated_by_update(
            new.metadata.annotations.as_ref(),
            old.metadata.annotations.as_ref(),
            &metadata.child("annotations"),
        ));
    }
    errors
}

// -- immutable fields -----------------------------------------------------------------------------

/// Validates that pod sets with quota are unchanged; if `elastic`, counts may decrease.
fn same_pod_sets(new: &[PodSet], old: &[PodSet], elastic: bool, path: &Path<'_>) -> Vec<Error> {
    if new.len() != old.len() {
        return vec![Error::invalid(path, new.len() as u64, IMMUTABLE)];
    }
    let mut errors = Vec::new();
    for (index, (new, old)) in new.iter().zip(old).enumerate() {
        if !same_pod_set(new, old, elastic && new.count < old.count) {
            let position = index.to_string();
            errors.push(Error::invalid(&path.child(&position), json!(new), IMMUTABLE));
        }
    }
    errors
}

/// Compares the meaning: a client may have written an empty object for a missing one.
fn same_pod_set(new: &PodSet, old: &PodSet, shrinks: bool) -> bool {
    if new == old {
        return true;
    }
    let apart = |set: &PodSet| {
        let mut rest = json!(set);
        let template = rest["template"].take();
        if shrinks {
            rest["count"].take();
        }
        (rest, template)
    };
    let ((new, template), (old, old_template)) = (apart(new), apart(old));
    same(&new, &old) && same_as("io.k8s.api.core.v1.PodTemplateSpec", &template, &old_template)
}

fn same_updates(new: &[PodSetUpdate], old: &[PodSetUpdate]) -> bool {
    // Tolerations are compared as part of a pod spec.
    let apart = |update: &PodSetUpdate| {
        let mut rest = json!(update);
        let tolerations = rest["tolerations"].take();
        (rest, json!({"containers": [], "tolerations": tolerations}))
    };
    new.len() == old.len()
        && new.iter().zip(old).all(|(new, old)| {
            let ((new, pod), (old, old_pod)) = (apart(new), apart(old));
            same(&new, &old) && same_as("io.k8s.api.core.v1.PodSpec", &pod, &old_pod)
        })
}

// -- pod sets -------------------------------------------------------------------------------------

fn pod_sets(workload: &Workload, gates: &Gates) -> Vec<Error> {
    let spec = Path::new("spec");
    let list = spec.child("podSets");
    let mut errors = Vec::new();
    for (index, set) in workload.spec.pod_sets.iter().enumerate() {
        let at = list.index(index);
        let template = at.child("template");
        if gates.on(Gate::WorkloadValidationForPodSetMetadata)
            && let Some(metadata) = &set.template.metadata
        {
            let at = template.child("metadata");
            if let Some(map) = &metadata.labels {
                errors.extend(labels::labels(map, &at.child("labels")));
            }
            if let Some(map) = &metadata.annotations {
                errors.extend(labels::annotations(map, &at.child("annotations")));
            }
        }
        if let Some(pod) = &set.template.spec {
            let at = template.child("spec");
            for (list, containers) in [
                ("initContainers", pod.init_containers.as_deref().unwrap_or_default()),
                ("containers", &pod.containers),
            ] {
                errors.extend(container_resources(containers, &at.child(list), gates));
            }
            if let Some(resources) = &pod.resources {
                errors.extend(resource_amounts(resources, &at.child("resources"), gates));
            }
        }
        errors.extend(topology(set, &at.child("topologyRequest"), gates));
    }
    errors
}

fn container_resources(containers: &[Container], path: &Path<'_>, gates: &Gates) -> Vec<Error> {
    let mut errors = Vec::new();
    for (index, container) in containers.iter().enumerate() {
        if let Some(resources) = &container.resources {
            let at = path.index(index);
            errors.extend(resource_amounts(resources, &at.child("resources"), gates));
        }
    }
    errors
}

fn resource_amounts(resources: &ResourceRequirements, path: &Path<'_>, gates: &Gates) -> Vec<Error> {
    let mut errors = Vec::new();
    let mut look = |list: Option<&BTreeMap<String, ApiQuantity>>, word: &'static str| {
        let at = path.child(word);
        for (name, quantity) in list.into_iter().flatten() {
            if name == "pods" {
                let detail = "the key is reserved for internal kueue use";
                errors.push(Error::invalid(&at.key(name), json!(name), detail));
            }
            let negative = Quantity::parse(&quantity.0).is_ok_and(|q| q.milli_value() < 0 || q.value() < 0);
            if negative && gates.on(Gate::WorkloadValidateResourcesAreNonNegative) {
                let detail = "must be greater than or equal to 0";
                errors.push(Error::invalid(&at.key(name), quantity.0.as_str(), detail));
            }
        }
    };
    look(resources.requests.as_ref(), "requests");
    look(resources.limits.as_ref(), "limits");
    errors
}

fn topology(set: &PodSet, path: &Path<'_>, gates: &Gates) -> Vec<Error> {
    let Some(request) = set.topology_request.as_ref().filter(|_| gates.on(Gate::TASValidateWorkloadSliceSize)) else {
        return Vec::new();
    };
    let mut errors = Vec::new();
    if let Some(size) = request.pod_set_slice_size {
        let at = path.child("podSetSliceSize");
        if request.pod_set_slice_required_topology.is_none() {
            let detail = "may not be set when podSetSliceRequiredTopology is not specified";
            errors.push(Error::forbidden(&at, detail));
        } else if size < 1 {
            errors.push(Error::invalid(&at, size, "must be greater than or equal to 1"));
        }
    }
    let list = path.child("podsetSliceRequiredTopologyConstraints");
    for (index, layer) in request.pod_set_slice_required_topology_constraints.iter().enumerate() {
        if layer.size < 1 {
            let at = list.index(index);
            errors.push(Error::invalid(&at.child("size"), layer.size, "must be greater than or equal to 1"));
        }
    }
    errors
}

// -- status ---------------------------------------------------------------------------------------

fn admission(workload: &Workload, path: &Path<'_>) -> Vec<Error> {
    let Some(admission) = workload.status.as_ref().and_then(|status| status.admission.as_ref()) else {
        return vec![Error::required(path, "must be set while quota is reserved")];
    };
    let mut errors = Vec::new();
    let list = path.child("podSetAssignments");
    for (index, assignment) in admission.pod_set_assignments.iter().enumerate() {
        let at = list.index(index);
        let Some(set) = workload.spec.pod_sets.iter().find(|set| set.name == assignment.name) else {
            errors.push(Error::not_found(&at.child("name"), assignment.name.as_str()));
            continue;
        };
        let count = i64::from(assignment.count.unwrap_or(set.count));
        if count <= 0 {
            continue;
        }
        let usage = at.child("resourceUsage");
        for (resource, quantity) in &assignment.resource_usage {
            let Ok(amount) = Quantity::parse(&quantity.0) else { continue };
            let amount = if resource == "cpu" { amount.milli_value() } else { amount.value() };
            if amount % count != 0 {
                let detail = format!("is not a multiple of {count}");
                errors.push(Error::invalid(&usage.key(resource), quantity.0.as_str(), detail));
            }
        }
    }
    errors
}

fn reclaimable(workload: &Workload, old: Option<&Workload>, path: &Path<'_>, names: &[&str]) -> Vec<Error> {
    let mut errors = Vec::new();
    let known =
        old.and_then(|old| old.status.as_ref()).map(|status| status.reclaimable_pods.clone()).unwrap_or_default();
    for pods in workload.status.iter().flat_map(|status| &status.reclaimable_pods) {
        let at = path.key(&pods.name);
        match workload.spec.pod_sets.iter().find(|set| set.name == pods.name) {
            None => errors.push(Error::not_supported(&at.child("name"), pods.name.as_str(), names)),
            // A count recorded before the pod set shrank is kept until the job's integration
            // updates it.
            Some(set) if pods.count > set.count && !known.contains(pods) => {
                let detail = format!("should be less or equal to {}", set.count);
                errors.push(Error::invalid(&at.child("count"), pods.count, detail));
            }
            Some(_) => {}
        }
    }
    errors
}

/// Validates that reclaimable pods do not decrease, unless the pod set of an elastic workload has
/// shrunk below the admitted count.
fn reclaimable_update(new: &Workload, old: &Workload, path: &Path<'_>, elastic: bool) -> Vec<Error> {
    let list = |workload: &Workload| workload.status.as_ref().map(|s| s.reclaimable_pods.clone()).unwrap_or_default();
    let after = list(new);
    let shrank = |name: &str| {
        let admission = new.status.as_ref().and_then(|status| status.admission.as_ref());
        let assignments = admission.map_or(&[][..], |admission| &admission.pod_set_assignments);
        let admitted = assignments.iter().find(|a| a.name == name).and_then(|a| a.count);
        let wanted = new.spec.pod_sets.iter().find(|set| set.name == name).map(|set| set.count);
        matches!((admitted, wanted), (Some(admitted), Some(wanted)) if wanted < admitted)
    };
    let mut errors = Vec::new();
    for before in list(old) {
        if elastic && shrank(&before.name) {
            continue;
        }
        let at = path.key(&before.name);
        match after.iter().find(|pods| pods.name == before.name) {
            None => errors.push(Error::required(&at, "cannot be removed")),
            Some(pods) if pods.count < before.count => {
                let detail = format!("cannot be less then {}", before.count);
                errors.push(Error::invalid(&at.child("count"), pods.count, detail));
            }
            Some(_) => {}
        }
    }
    errors
}

fn checks(workload: &Workload, path: &Path<'_>, names: &[&str]) -> Vec<Error> {
    let mut errors = Vec::new();
    for (index, check) in workload.status.iter().flat_map(|status| &status.admission_checks).enumerate() {
        let at = path.index(index);
        let updates = at.child("podSetUpdates");
        for (index, update) in check.pod_set_updates.iter().enumerate() {
            let at = updates.index(index);
            if !names.contains(&update.name.as_str()) {
                errors.push(Error::not_supported(&at.child("name"), update.name.as_str(), names));
            }
            errors.extend(labels::labels(&update.labels, &at.child("labels")));
            errors.extend(labels::annotations(&update.annotations, &at.child("annotations")));
            errors.extend(labels::labels(&update.node_selector, &at.child("nodeSelector")));
        }
    }
    errors
}
