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
use crate::jobs::is_elastic;
use crate::priority;
use crate::workload::status::has_quota_reservation;

const IMMUTABLE: &str = "field is immutable";

/// Validates a new Workload.
pub fn validate_workload(workload: &Workload, gates: &Gates) -> Vec<Error> {
    let mut errors = pod_sets(workload, gates);
    let status = Path::new("status");
    let spec_names: Vec<&str> = workload.spec.pod_sets.iter().map(|set| set.name.as_str()).collect();
    errors.extend(admission(workload, None, &status.child("admission")));
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
    errors.extend(reclaimable(workload, None, &status.child("reclaimablePods"), &spec_names, gates));
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
    errors.extend(admission(new, Some(old), &status.child("admission")));
    errors.extend(reclaimable(new, Some(old), &status.child("reclaimablePods"), &names, gates));
    errors.extend(checks(new, &status.child("admissionChecks"), &names));
    if has_quota_reservation(old) {
        errors.extend(same_pod_sets(&new.spec.pod_sets, &old.spec.pod_sets, elastic, &spec.child("podSets")));
        if has_quota_reservation(new) {
            errors.extend(reclaimable_update(new, old, &status.child("reclaimablePods"), gates));
        }
    }
    errors.extend(admission_update(new, old, gates, &status.child("admission")));
    errors.extend(cluster_name_update(new, old, gates, &status.child("clusterName")));
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

/// Validates that an admission is set or unset as a whole. Only the topology of its pods is decided
/// later and may change.
fn admission_update(new: &Workload, old: &Workload, gates: &Gates, path: &Path<'_>) -> Vec<Error> {
    let admission = |workload: &Workload| workload.status.as_ref().and_then(|status| status.admission.clone());
    let (Some(mut before), Some(mut after)) = (admission(old), admission(new)) else { return Vec::new() };
    if before == after {
        return Vec::new();
    }
    let value = json!(after);
    let mut usages = Vec::new();
    for admission in [&mut before, &mut after] {
        for assignment in &mut admission.pod_set_assignments {
            if gates.on(Gate::TopologyAwareScheduling) {
                assignment.topology_assignment = None;
                assignment.delayed_topology_request = None;
            }
            // Amounts are compared as those of a container.
            usages.push(json!({"requests": std::mem::take(&mut assignment.resource_usage)}));
        }
    }
    let (usage_before, usage_after) = usages.split_at(before.pod_set_assignments.len());
    let same_usage = usage_before.len() == usage_after.len()
        && usage_before
            .iter()
            .zip(usage_after)
            .all(|(before, after)| same_as("io.k8s.api.core.v1.ResourceRequirements", before, after));
    if same_usage && same(&json!(before), &json!(after)) {
        return Vec::new();
    }
    vec![Error::invalid(path, value, IMMUTABLE)]
}

/// Validates that a workload is dispatched to one of the nominated clusters. The replacement of an
/// elastic workload follows its predecessor instead.
fn cluster_name_update(new: &Workload, old: &Workload, gates: &Gates, path: &Path<'_>) -> Vec<Error> {
    let name = |workload: &Workload| workload.status.as_ref().and_then(|status| status.cluster_name.clone());
    let (None, Some(chosen)) = (name(old), name(new)) else { return Vec::new() };
    let annotations = new.metadata.annotations.as_ref();
    let replaces = annotations.is_some_and(|map| map.contains_key(annotations::WORKLOAD_SLICE_REPLACEMENT_FOR));
    let mut nominated = old.status.iter().flat_map(|status| &status.nominated_cluster_names);
    if (gates.on(Gate::ElasticJobsViaWorkloadSlices) && replaces) || nominated.any(|name| *name == chosen) {
        return Vec::new();
    }
    vec![Error::invalid(path, chosen, "when setting clusterName it must be one of the nominatedClusterNames")]
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
    let partial = workload.spec.pod_sets.iter().filter(|set| set.min_count.is_some()).count() as u64;
    if partial > 1 {
        errors.push(Error::invalid(&list, partial, "at most one podSet can use minCount"));
    }
    if partial > 0 && is_elastic(workload, gates) {
        let detail = "partial admission and elastic job cannot be used together";
        errors.push(Error::invalid(&list, partial, detail));
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
    if request.pod_set_slice_required_topology.is_some() && request.pod_set_slice_size.is_none() {
        let detail = "must be set when podSetSliceRequiredTopology is specified";
        errors.push(Error::required(&path.child("podSetSliceSize"), detail));
    }
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

/// Validates the admission of a workload that holds quota. A stored workload that holds quota
/// without an admission may be changed, so that its finalizer can be removed.
fn admission(workload: &Workload, old: Option<&Workload>, path: &Path<'_>) -> Vec<Error> {
    if !has_quota_reservation(workload) {
        return Vec::new();
    }
    let of = |workload: &Workload| workload.status.as_ref().and_then(|status| status.admission.clone());
    let Some(admission) = of(workload) else {
        if old.is_some_and(|old| has_quota_reservation(old) && of(old).is_none()) {
            return Vec::new();
        }
        return vec![Error::required(path, "must be set while quota is reserved")];
    };
    let mut errors = Vec::new();
    let list = path.child("podSetAssignments");
    for (index, assignment) in admission.pod_set_assignments.iter().enumerate() {
        let at = list.index(index);
        if !workload.spec.pod_sets.iter().any(|set| set.name == assignment.name) {
            errors.push(Error::not_found(&at.child("name"), assignment.name.as_str()));
        }
        let Some(count) = assignment.count.map(i64::from).filter(|count| *count > 0) else { continue };
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

fn reclaimable(
    workload: &Workload,
    old: Option<&Workload>,
    path: &Path<'_>,
    names: &[&str],
    gates: &Gates,
) -> Vec<Error> {
    let mut errors = Vec::new();
    let old = old.filter(|_| is_elastic(workload, gates)).and_then(|old| old.status.as_ref());
    let known = old.map(|status| status.reclaimable_pods.clone()).unwrap_or_default();
    for pods in workload.status.iter().flat_map(|status| &status.reclaimable_pods) {
        let at = path.key(&pods.name);
        match workload.spec.pod_sets.iter().find(|set| set.name == pods.name) {
            None => errors.push(Error::not_supported(&at.child("name"), pods.name.as_str(), names)),
            // A count recorded before an elastic pod set shrank is kept until the job's integration
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
fn reclaimable_update(new: &Workload, old: &Workload, path: &Path<'_>, gates: &Gates) -> Vec<Error> {
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
    let elastic = is_elastic(new, gates);
    for before in list(old) {
        if elastic && shrank(&before.name) {
            continue;
        }
        let at = path.key(&before.name);
        match after.iter().find(|pods| pods.name == before.name) {
            None => errors.push(Error::required(&at, "cannot be removed")),
            Some(pods) if pods.count < before.count => {
                let detail = format!("cannot be less than {}", before.count);
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

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn workload(pod_sets: Value, status: Value) -> Workload {
        let object =
            json!({"metadata": {"name": "w", "namespace": "ns"}, "spec": {"podSets": pod_sets}, "status": status});
        serde_json::from_value(object).expect("a workload")
    }

    fn pod_sets(count: i32) -> Value {
        json!([{"name": "main", "count": count, "template": {"spec": {"containers": []}}}])
    }

    fn holding(queue: &str, usage: &str) -> Value {
        let now = "2026-01-01T00:00:00Z";
        json!({
            "conditions": [{"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved", "message": "",
                "lastTransitionTime": now}],
            "admission": {"clusterQueue": queue, "podSetAssignments": [
                {"name": "main", "count": 1, "flavors": {"cpu": "on-demand"}, "resourceUsage": {"cpu": usage}}]},
        })
    }

    fn fields(errors: Vec<Error>) -> Vec<String> {
        errors.into_iter().map(|error| error.field).collect()
    }

    fn update(new: &Workload, old: &Workload) -> Vec<String> {
        fields(validate_workload_update(new, old, &Gates::default()))
    }

    #[test]
    fn an_admission_is_set_or_unset_and_does_not_change() {
        let held = workload(pod_sets(1), holding("q", "1"));
        let waiting = workload(pod_sets(1), json!({}));
        assert_eq!(update(&held, &waiting), [""; 0]);
        assert_eq!(update(&waiting, &held), [""; 0]);
        assert_eq!(update(&workload(pod_sets(1), holding("other", "1")), &held), ["status.admission"]);
        assert_eq!(update(&workload(pod_sets(1), holding("q", "2")), &held), ["status.admission"]);
        assert_eq!(update(&workload(pod_sets(1), holding("q", "1000m")), &held), [""; 0]);
        let mut placed = held.clone();
        let admission = placed.status.as_mut().and_then(|status| status.admission.as_mut()).expect("an admission");
        let domains = json!({"levels": ["host"], "slices": []});
        admission.pod_set_assignments[0].topology_assignment = serde_json::from_value(domains).expect("an assignment");
        assert_eq!(update(&placed, &held), [""; 0], "the topology is assigned later");
    }

    #[test]
    fn pod_sets_do_not_change_while_quota_is_held() {
        let held = workload(pod_sets(2), holding("q", "1"));
        let both = json!([pod_sets(2)[0], {"name": "other", "count": 1, "template": {"spec": {"containers": []}}}]);
        assert_eq!(update(&workload(both.clone(), holding("q", "1")), &held), ["spec.podSets"]);
        assert_eq!(update(&workload(both, json!({})), &held), ["spec.podSets"], "even as the quota is returned");
        assert_eq!(update(&workload(pod_sets(3), holding("q", "1")), &held), ["spec.podSets.0"]);
        assert_eq!(update(&workload(pod_sets(1), holding("q", "1")), &held), [""; 0], "elastic jobs shrink");
    }

    #[test]
    fn one_pod_set_may_be_admitted_partially() {
        let set = |name: &str, min: Option<i32>| json!({"name": name, "count": 3, "minCount": min, "template": {"spec": {"containers": []}}});
        let validate = |workload: &Workload| fields(validate_workload(workload, &Gates::default()));
        let one = workload(json!([set("a", Some(1)), set("b", None)]), json!({}));
        assert_eq!(validate(&one), [""; 0]);
        let two = workload(json!([set("a", Some(1)), set("b", Some(2))]), json!({}));
        assert_eq!(validate(&two), ["spec.podSets"]);
        let mut elastic = one;
        elastic.metadata.annotations = Some([(annotations::ELASTIC_JOB.to_owned(), "true".to_owned())].into());
        assert_eq!(validate(&elastic), ["spec.podSets"]);
    }

    #[test]
    fn a_workload_is_dispatched_to_a_nominated_cluster() {
        let nominated = workload(pod_sets(1), json!({"nominatedClusterNames": ["a", "b"]}));
        let chosen = |name: &str| workload(pod_sets(1), json!({"clusterName": name}));
        assert_eq!(update(&chosen("b"), &nominated), [""; 0]);
        assert_eq!(update(&chosen("c"), &nominated), ["status.clusterName"]);
    }

    #[test]
    fn a_stored_reservation_without_an_admission_can_be_changed() {
        let mut bare = holding("q", "1");
        bare["admission"] = Value::Null;
        let broken = workload(pod_sets(1), bare.clone());
        let mut changed = broken.clone();
        changed.spec.priority = Some(3);
        assert_eq!(update(&changed, &broken), [""; 0]);
        assert_eq!(fields(validate_workload(&broken, &Gates::default())), ["status.admission"]);
        assert_eq!(update(&broken, &workload(pod_sets(1), json!({}))), ["status.admission"]);
    }

    #[test]
    fn slices_need_a_topology_and_a_size() {
        let set = |request: Value| {
            workload(
                json!([{"name": "main", "count": 4, "topologyRequest": request, "template": {"spec": {"containers": []}}}]),
                json!({}),
            )
        };
        let at = "spec.podSets[0].topologyRequest.podSetSliceSize";
        let wrong = |request: Value| fields(validate_workload(&set(request), &Gates::default()));
        assert_eq!(wrong(json!({"podSetSliceRequiredTopology": "rack"})), [at]);
        assert_eq!(wrong(json!({"podSetSliceSize": 2})), [at]);
        assert_eq!(wrong(json!({"podSetSliceRequiredTopology": "rack", "podSetSliceSize": 2})), [""; 0]);
    }
}
