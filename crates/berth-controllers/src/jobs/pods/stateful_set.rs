//! StatefulSets, whose pods are one group: the group's Workload is created with the set, before the
//! pods, and is on hold while the set is scaled to zero.
//!
//! Once there are pods, [`super::reconcile`] reconciles them with the Workload.

use std::sync::Arc;

use berth_api::kueue::reasons::admission;
use berth_api::kueue::v1beta2::{PodSet, Workload};
use berth_api::kueue::{annotations, constants, labels};
use berth_apimachinery::well_known;
use berth_runtime::{ObjectKey, shared_by};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use kube::{Resource, ResourceExt};

use crate::gates::Gates;
use crate::jobs::naming::OwnerKind;
use crate::jobs::pods::owned::{self, ROLE};
use crate::jobs::reconcile::{Context, copies_annotation, remove_finalizer};
use crate::jobs::topology::{self, Ranks};
use crate::jobs::{queue_name, readiness, sanitize};
use crate::plan::{Plan, PlanError, Step};
use crate::priority;
use crate::stores::Stores;
use crate::workload::status;

/// The value of the suspending-parent annotation in a StatefulSet's template.
pub(crate) const PARENT: &str = "statefulset";

/// Group and kind of StatefulSets.
pub(crate) fn kind() -> OwnerKind {
    OwnerKind { group: StatefulSet::group(&()).into_owned(), kind: StatefulSet::kind(&()).into_owned() }
}

/// The names that the group of a set's pods can have.
pub(super) fn group_names(name: &str, uid: &str, gates: &Gates) -> [String; 2] {
    owned::group_names(&kind(), name, uid, gates)
}

/// The StatefulSet whose pods are this group.
pub(super) fn of_group(stores: &Stores, namespace: &str, group: &str, gates: &Gates) -> Option<Arc<StatefulSet>> {
    let name = group.strip_prefix("statefulset-")?.rsplit_once('-')?.0;
    let workload = |name: &str| {
        let found = stores.workloads.get(&ObjectKey::namespaced(namespace, name))?;
        Some(found.metadata.clone())
    };
    let is_named = |set: &Arc<StatefulSet>| {
        group == owned::group_name(&kind(), &set.name_any(), &set.uid().unwrap_or_default(), gates, workload)
    };
    let found = stores.stateful_sets.get(&ObjectKey::namespaced(namespace, name)).filter(is_named);
    // The name of a group can be too short for the set's whole name.
    let mut others = stores.stateful_sets.iter_namespace(namespace);
    found.or_else(|| others.find(|set| set.name_any().starts_with(name) && is_named(set)))
}

/// True if the set's pods are queued. Its template is marked at admission.
pub(super) fn is_queued(context: Context<'_>, set: &StatefulSet) -> bool {
    let template = set.spec.as_ref().and_then(|spec| spec.template.metadata.as_ref());
    let annotations = template.and_then(|metadata| metadata.annotations.as_ref());
    let marked = annotations.and_then(|annotations| annotations.get(annotations::POD_SUSPENDING_PARENT));
    marked.is_some_and(|parent| parent == PARENT)
        && set.metadata.deletion_timestamp.is_none()
        && (!queue_name(set).is_empty() || context.config.manage_jobs_without_queue_name)
}

/// Number of pods that the set should have.
pub(super) fn replicas(set: &StatefulSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

fn pod_sets(set: &StatefulSet, gates: &Gates) -> Result<Vec<PodSet>, PlanError> {
    let template = set.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
    let ranks = Ranks { pod_index_label: Some(well_known::POD_INDEX), ..Ranks::default() };
    let topology_request = topology::of_template(&template, ranks, gates).map_err(PlanError::Unclear)?;
    let template = PodTemplateSpec { metadata: None, ..template };
    let mut sets =
        vec![PodSet { name: ROLE.to_owned(), count: replicas(set), min_count: None, template, topology_request }];
    sanitize(&mut sets);
    Ok(sets)
}

/// A Workload of this name for the set's pods.
pub(super) fn construct(context: Context<'_>, set: &StatefulSet, name: &str) -> Result<Workload, PlanError> {
    let mut workload = Workload::named(name);
    workload.metadata.namespace = set.namespace();
    workload.metadata.finalizers = Some(vec![constants::RESOURCE_IN_USE_FINALIZER.to_owned()]);
    let copied = context.config.label_keys_to_copy();
    let copied = set.labels().iter().filter(|(key, _)| copied.contains(key.as_str()));
    workload.labels_mut().extend(copied.map(|(key, value)| (key.clone(), value.clone())));
    let copied = set.annotations().iter().filter(|(key, _)| copies_annotation(context, key));
    workload.annotations_mut().extend(copied.map(|(key, value)| (key.clone(), value.clone())));
    workload.annotations_mut().insert(annotations::IS_GROUP_WORKLOAD.to_owned(), "true".to_owned());
    own(&mut workload, set);
    workload.spec.queue_name = queue_name(set).to_owned();
    let label = |key: &str| set.labels().get(key).map(String::as_str);
    workload.spec.maximum_execution_time_seconds =
        label(labels::MAX_EXEC_TIME_SECONDS).and_then(|text| text.parse().ok());
    workload.spec.pod_sets = pod_sets(set, context.gates)?;
    let priority = priority::extract(context.stores, label(labels::PRIORITY_CLASS), None, &workload.spec.pod_sets);
    let priority = priority.map_err(|error| PlanError::Other(error.to_string()))?;
    workload.spec.priority = Some(priority.value);
    workload.spec.priority_class_ref = priority.class;
    Ok(workload)
}

/// Makes the set an owner of the Workload. Returns true if it was none.
fn own(workload: &mut Workload, set: &StatefulSet) -> bool {
    let uid = set.uid().unwrap_or_default();
    if workload.owner_references().iter().any(|owner| owner.uid == uid) {
        return false;
    }
    workload.labels_mut().insert(labels::JOB_UID.to_owned(), uid);
    workload.metadata.owner_references.get_or_insert_default().push(shared_by(set));
    true
}

/// Reconciles a set that has no pods with the Workload of its group.
pub(super) fn without_pods(
    context: Context<'_>,
    set: &StatefulSet,
    group: &str,
    workload: Option<&Workload>,
    plan: &mut Plan<Pod>,
) -> Result<(), PlanError> {
    let (gates, now) = (context.gates, context.now);
    let Some(workload) = workload else {
        if replicas(set) > 0 && is_queued(context, set) {
            plan.steps.push(Step::CreateWorkload(Box::new(construct(context, set, group)?)));
        }
        return Ok(());
    };
    let mut workload = workload.clone();
    if workload.metadata.deletion_timestamp.is_some() {
        if remove_finalizer(&mut workload) {
            plan.steps.push(Step::PatchWorkload(Box::new(workload)));
        }
        return Ok(());
    }
    if status::is_finished(&workload) {
        return Ok(());
    }
    if own(&mut workload, set) {
        plan.steps.push(Step::PatchWorkload(Box::new(workload.clone())));
    }
    if replicas(set) == 0 {
        put_on_hold(context, workload, plan);
    } else if status::is_on_hold(&workload) {
        end_hold(context, workload, pod_sets(set, gates)?, plan);
    } else if status::is_evicted(&workload) && status::has_quota_reservation(&workload) {
        if status::release_after_eviction(&mut workload, gates, now) {
            plan.steps.push(Step::PatchWorkloadStatus(Box::new(workload)));
        }
    } else if workload.spec.queue_name != queue_name(set) && !status::has_quota_reservation(&workload) {
        workload.spec.queue_name = queue_name(set).to_owned();
        plan.steps.push(Step::PatchWorkload(Box::new(workload)));
    } else if context.config.pods_ready().is_some() && readiness::sync(&mut workload, || false, now) {
        plan.steps.push(Step::PatchWorkloadStatus(Box::new(workload)));
    }
    Ok(())
}

/// Releases the quota of a group whose set is scaled to zero.
pub(super) fn put_on_hold(context: Context<'_>, mut workload: Workload, plan: &mut Plan<Pod>) {
    const HOLD: &str = "The workload has no pods because its owner is scaled to zero";
    if status::is_on_hold(&workload) {
        return;
    }
    if status::is_evicted(&workload) {
        status::release_after_eviction(&mut workload, context.gates, context.now);
    }
    status::unset_quota_reservation(&mut workload, admission::ON_HOLD, HOLD, context.gates, context.now);
    plan.steps.push(Step::PatchWorkloadStatus(Box::new(workload)));
}

/// Queues a group again whose set was scaled up from zero, perhaps to another size.
pub(super) fn end_hold(context: Context<'_>, mut workload: Workload, pod_sets: Vec<PodSet>, plan: &mut Plan<Pod>) {
    const BACK: &str = "The workload has pods again";
    let sizes = |sets: &[PodSet]| -> Vec<(String, i32)> { sets.iter().map(|it| (it.name.clone(), it.count)).collect() };
    if sizes(&pod_sets) != sizes(&workload.spec.pod_sets) {
        workload.spec.pod_sets = pod_sets;
        plan.steps.push(Step::PatchWorkload(Box::new(workload.clone())));
    }
    let reason = status::unreserved_reason(admission::PENDING_EVALUATION, admission::LEGACY_PENDING, context.gates);
    status::unset_quota_reservation(&mut workload, reason, BACK, context.gates, context.now);
    plan.steps.push(Step::PatchWorkloadStatus(Box::new(workload)));
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::configuration::Config;
    use crate::jobs::pods::Unit;
    use crate::jobs::pods::reconcile::reconcile;

    const NOW: &str = "2026-01-01T01:00:00Z";

    fn read<K: serde::de::DeserializeOwned>(value: Value) -> K {
        serde_json::from_value(value).expect("an object of the kind")
    }

    fn set(replicas: i32) -> Value {
        let annotations = json!({annotations::POD_SUSPENDING_PARENT: PARENT});
        json!({"metadata": {"name": "db", "namespace": "ns", "uid": "u", "labels": {labels::QUEUE_NAME: "q"}},
            "spec": {"replicas": replicas, "serviceName": "db", "selector": {}, "template": {
                "metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "c"}]}}}})
    }

    fn names() -> [String; 2] {
        group_names("db", "u", &Gates::default())
    }

    fn workload(name: &str, owner: &str, condition: Value) -> Value {
        let owners = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": owner}]);
        json!({"metadata": {"name": name, "namespace": "ns", "ownerReferences": owners,
                "annotations": {annotations::IS_GROUP_WORKLOAD: "true"}},
            "spec": {"queueName": "q", "podSets": [
                {"name": ROLE, "count": 2, "template": {"spec": {"containers": [{"name": "c"}]}}}]},
            "status": {"conditions": [condition]}})
    }

    fn reserved(status: &str, reason: &str) -> Value {
        json!({"type": "QuotaReserved", "status": status, "reason": reason, "message": "", "lastTransitionTime": NOW})
    }

    /// The plan for this group, without pods.
    fn plan(set: Value, workloads: &[Value], group: &str) -> Plan<Pod> {
        let stores = Stores::by_hand();
        stores.stateful_sets.observe(read::<StatefulSet>(set));
        for workload in workloads {
            stores.workloads.observe(read::<Workload>(workload.clone()));
        }
        let config = Config { wait_for_pods_ready: None, ..Config::default() };
        let gates = Gates::default();
        let context = Context { stores: &stores, config: &config, gates: &gates, now: NOW.parse().expect("a time") };
        reconcile(context, "ns", &Unit::Group { name: group.to_owned() }, &[])
    }

    #[test]
    fn a_set_gets_its_workload_before_its_pods() {
        let [usual, earlier] = names();
        let steps = plan(set(2), &[], &usual).steps;
        let [Step::CreateWorkload(workload)] = &steps[..] else { panic!("{steps:?}") };
        let sets: Vec<_> = workload.spec.pod_sets.iter().map(|set| (set.name.as_str(), set.count)).collect();
        assert_eq!((workload.name_any(), sets), (usual.clone(), vec![(ROLE, 2)]));
        assert_eq!(workload.spec.queue_name, "q");
        assert_eq!(workload.owner_references()[0].uid, "u");
        assert_eq!(plan(set(2), &[], &earlier).steps, [], "the set has one Workload");
        assert_eq!(plan(set(0), &[], &usual).steps, [], "it needs no quota yet");
        let mut other = set(2);
        other["spec"]["template"]["metadata"] = json!({});
        assert_eq!(plan(other, &[], &usual).steps, [], "its pods are not gated");
    }

    #[test]
    fn a_set_uses_the_workload_of_an_earlier_version() {
        let [usual, earlier] = names();
        let mut stored = workload(&earlier, "u", reserved("True", "QuotaReserved"));
        stored["metadata"]["ownerReferences"] = json!([]);
        let steps = plan(set(2), &[stored.clone()], &earlier).steps;
        let [Step::PatchWorkload(owned)] = &steps[..] else { panic!("{steps:?}") };
        assert_eq!(owned.owner_references()[0].uid, "u");
        assert_eq!(plan(set(2), &[stored], &usual).steps, []);
        let of_deleted = workload(&earlier, "another", reserved("True", "QuotaReserved"));
        let steps = plan(set(2), &[of_deleted], &usual).steps;
        assert!(matches!(&steps[..], [Step::CreateWorkload(_)]), "{steps:?}");
    }

    #[test]
    fn a_set_that_is_scaled_to_zero_holds_no_quota_until_it_is_scaled_up() {
        let [usual, _] = names();
        let after = |replicas: i32, condition: Value| {
            let steps = plan(set(replicas), &[workload(&usual, "u", condition)], &usual).steps;
            let size = steps.iter().find_map(|step| match step {
                Step::PatchWorkload(workload) => Some(workload.spec.pod_sets[0].count),
                _ => None,
            });
            let reason = steps.iter().find_map(|step| match step {
                Step::PatchWorkloadStatus(workload) => {
                    status::condition(workload, "QuotaReserved").map(|condition| condition.reason.clone())
                }
                _ => None,
            });
            (size, reason)
        };
        assert_eq!(after(0, reserved("True", "QuotaReserved")), (None, Some("OnHold".to_owned())));
        assert_eq!(after(0, reserved("False", "OnHold")), (None, None));
        assert_eq!(after(2, reserved("False", "OnHold")), (None, Some("PendingEvaluation".to_owned())));
        assert_eq!(after(3, reserved("False", "OnHold")), (Some(3), Some("PendingEvaluation".to_owned())));
        assert_eq!(after(2, reserved("True", "QuotaReserved")), (None, None));
    }
}
