//! Reverts changes that the API server made without the webhooks. An admission policy of the
//! installation suspends every new job that may be queued, and gates every such pod, before the
//! webhooks are called. Such objects are therefore held even if no webhook is available. The policy
//! reads neither owners nor other objects, so its result is preliminary and noted in an annotation
//! ([`berth::HELD_ANNOTATION`]). The webhooks first revert the changes and then apply their own
//! rules. If an object was stored without webhooks, the controllers do the same when they reconcile
//! it: they settle the object.

use berth_api::berth;
use berth_api::kueue::{constants, events, labels};
use berth_apimachinery::field;
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, ResourceExt};
use serde_json::Value;

use super::jobs::{ancestor_of, default_job};
use super::pods::default_pod;
use crate::jobs::Job;
use crate::jobs::ancestors::{POD, managed_ancestor};
use crate::jobs::described::set_at;
use crate::jobs::pods::replica;
use crate::jobs::reconcile::{self, Context};
use crate::plan::{PlanError, PlannedEvent};

/// Gates that the policy adds to pods. Other gates that the annotation may name are kept.
const GATES: [&str; 2] = [constants::ADMISSION_GATE, constants::TOPOLOGY_GATE];

/// True if the object still has the policy's note.
pub(super) fn is_held(object: &Value) -> bool {
    object["metadata"]["annotations"].get(berth::HELD_ANNOTATION).is_some()
}

/// True if the typed object still has the policy's note.
pub fn is_unsettled(object: &impl Resource) -> bool {
    object.meta().annotations.as_ref().is_some_and(|annotations| annotations.contains_key(berth::HELD_ANNOTATION))
}

/// Removes the policy's note and returns its text.
fn take_note(object: &mut Value) -> Option<String> {
    let annotations = object["metadata"].get_mut("annotations")?.as_object_mut()?;
    let note = annotations.remove(berth::HELD_ANNOTATION)?;
    Some(note.as_str().unwrap_or_default().to_owned())
}

/// Restores a job's `suspend` field to the client's value.
pub(super) fn undo_job(object: &mut Value, suspend: &[&str]) {
    if take_note(object).is_some_and(|written| written == "false") {
        set_at(object, suspend, false.into());
    }
}

/// Removes the additions of the policy from a pod.
pub(super) fn undo_pod(object: &mut Value) {
    let Some(added) = take_note(object) else { return };
    if let Some(labels) = object["metadata"]["labels"].as_object_mut() {
        labels.remove(labels::MANAGED);
    }
    let added = |gate: &Value| {
        let name = gate["name"].as_str().unwrap_or_default();
        GATES.contains(&name) && added.split(',').any(|added| added == name)
    };
    if let Some(gates) = object["spec"]["schedulingGates"].as_array_mut() {
        gates.retain(|gate| !added(gate));
    }
}

/// The stored job with the defaults that the webhooks would have set, and a warning for its author
/// if a default can no longer be set.
///
/// `spec.managedBy` can only be set at creation. A job that the webhooks would have sent to another
/// cluster therefore stays in this cluster: it is queued here, and its queue's admission check
/// decides on it.
///
/// # Errors
/// The job's owner is not known (yet), or the job cannot be read.
pub fn settle_job<J: Job>(context: Context<'_>, job: &J) -> Result<(J, Option<PlannedEvent>), PlanError> {
    let mut settled = job.clone();
    if !job.is_suspended() {
        // A client unsuspended the job. From here on, it is like any other job that runs without a
        // workload.
        if let Some(annotations) = settled.meta_mut().annotations.as_mut() {
            annotations.remove(berth::HELD_ANNOTATION);
        }
        return Ok((settled, None));
    }
    let namespace = job.namespace().unwrap_or_default();
    let lookup = |group: &str, resource: &str, namespace: &str, name: &str| {
        context.stores.find(group, resource, namespace, name)
    };
    ancestor_of(job, context.config, &namespace, &lookup)?;
    let failed = |error: serde_json::Error| PlanError::Other(error.to_string());
    let mut object = berth_api::json::to_value(job).map_err(failed)?;
    default_job::<J>(&mut object, &namespace, context.config, context.gates, &lookup)
        .map_err(|errors| PlanError::Other(field::aggregate(&errors)))?;
    let mut event = None;
    if let Some(steps) = J::MANAGED_BY
        && job.managed_by().is_none()
        && remove_at(&mut object, steps).is_some()
    {
        let message = format!(
            "{} was not set at creation because the controllers were unavailable, and it cannot be set later. The queue sends \
             jobs to other clusters, but this job is queued for this cluster. To send the job to \
             another cluster, delete it and create it again",
            steps.join(".")
        );
        event = Some(PlannedEvent::warning(events::MANAGED_BY_MISSING, message));
    }
    Ok((berth_api::json::from_value(object).map_err(failed)?, event))
}

/// Removes the field at this path.
fn remove_at(object: &mut Value, steps: &[&str]) -> Option<Value> {
    let (last, parents) = steps.split_last()?;
    let parent = parents.iter().try_fold(object, |object, step| object.get_mut(step))?;
    parent.as_object_mut()?.remove(*last)
}

/// The stored pod with the defaults that the webhooks would have set. Gates are only removed,
/// because the API server accepts no new gates.
///
/// # Errors
/// The pod cannot be read, or an owner that may be queued is not known (yet): the gates are removed
/// only if the pod is part of a queued owner.
pub fn settle_pod(context: Context<'_>, pod: &Pod) -> Result<Pod, PlanError> {
    let namespace = pod.namespace().unwrap_or_default();
    let owner = |reference: &_| reconcile::lookup(context.stores, &namespace, reference);
    if let Err(error @ PlanError::OwnerNotFound) = managed_ancestor(POD, &pod.metadata, context.config, owner) {
        return Err(error);
    }
    if replica::is_of_unknown_set(context.stores, pod) {
        return Err(PlanError::OwnerNotFound);
    }
    let lookup = |group: &str, resource: &str, namespace: &str, name: &str| {
        context.stores.find(group, resource, namespace, name)
    };
    let failed = |error: serde_json::Error| PlanError::Other(error.to_string());
    let mut object = berth_api::json::to_value(pod).map_err(failed)?;
    let had = object["spec"]["schedulingGates"].clone();
    default_pod(&mut object, &namespace, context.config, context.gates, &lookup);
    if let Some(gates) = object["spec"]["schedulingGates"].as_array_mut() {
        gates.retain(|gate| had.as_array().is_some_and(|had| had.contains(gate)));
    }
    berth_api::json::from_value(object).map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_api::kueue::annotations;
    use k8s_openapi::api::batch::v1::Job as BatchJob;
    use serde_json::json;

    use super::*;
    use crate::webhooks::{Request, Webhooks};
    use crate::{Config, Stores};

    fn with_context<R>(stores: &Stores, run: impl FnOnce(Context<'_>) -> R) -> R {
        let config = Config::default();
        let gates = config.gates();
        run(Context { stores, config: &config, gates: &gates, now: jiff::Timestamp::UNIX_EPOCH })
    }

    fn job(labels: Value, owner: Option<Value>, written: &str) -> Value {
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "namespace": "team", "labels": labels,
            "annotations": {berth::HELD_ANNOTATION: written}, "ownerReferences": owner.into_iter().collect::<Vec<_>>()},
            "spec": {"suspend": true, "template": {"spec": {"containers": [], "restartPolicy": "Never"}}}})
    }

    #[test]
    fn webhooks_revert_the_policy_before_they_decide() {
        let webhooks = Webhooks::new(Config::default());
        let request = Request { group: "batch", resource: "jobs", namespace: "team", old_object: None };
        let queue = |group: &str, resource: &str, _: &str, name: &str| {
            (group == "kueue.x-k8s.io" && resource == "localqueues" && name == "default")
                .then(|| Arc::new(json!({"spec": {"clusterQueue": "c"}})))
        };
        let nothing = |_: &str, _: &str, _: &str, _: &str| None;
        let mut unmanaged = job(json!({}), None, "false");
        webhooks.mutate(request, &mut unmanaged, &nothing).expect("fine");
        assert_eq!(unmanaged["spec"]["suspend"], false, "an unmanaged job keeps the client's value");
        assert!(!is_held(&unmanaged));
        let mut by_maker = job(json!({}), None, "true");
        webhooks.mutate(request, &mut by_maker, &nothing).expect("fine");
        assert_eq!(by_maker["spec"]["suspend"], true, "the client suspended it");
        let mut defaulted = job(json!({}), None, "false");
        webhooks.mutate(request, &mut defaulted, &queue).expect("fine");
        assert_eq!(defaulted["spec"]["suspend"], true);
        assert_eq!(defaulted["metadata"]["labels"][labels::QUEUE_NAME], "default");
    }

    #[test]
    fn jobs_stored_without_webhooks_get_the_defaults_of_the_webhooks() {
        let stores = Stores::by_hand();
        let typed = |value: Value| serde_json::from_value::<BatchJob>(value).expect("a job");
        let settled =
            |job: Value| with_context(&stores, |context| settle_job(context, &typed(job)).map(|(job, _)| job));
        let alone = settled(job(json!({labels::QUEUE_NAME: "q"}), None, "false")).expect("settled");
        assert!(alone.is_suspended() && !is_unsettled(&alone));
        let let_go = {
            let mut job = job(json!({labels::QUEUE_NAME: "q"}), None, "false");
            job["spec"]["suspend"] = json!(false);
            settled(job).expect("settled")
        };
        assert!(!let_go.is_suspended() && !is_unsettled(&let_go), "the reconciler handles a running job");
        let owner = json!({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "set", "uid": "u",
            "controller": true});
        let part = job(json!({}), Some(owner), "false");
        assert!(settled(part.clone()).is_err(), "its owner is not known yet");
        stores.job_sets.observe(
            serde_json::from_value(json!({"metadata": {"name": "set", "namespace": "team", "uid": "u",
                "labels": {labels::QUEUE_NAME: "q"}}, "spec": {"replicatedJobs": []}}))
            .expect("a JobSet"),
        );
        assert!(!settled(part).expect("settled").is_suspended(), "a part of a managed job is not suspended itself");
    }

    #[test]
    fn managed_by_of_a_stored_job_is_not_changed() {
        let stores = Stores::by_hand();
        let read = |value: Value| serde_json::from_value(value).expect("an object");
        stores.local_queues.observe(
            serde_json::from_value(json!({"metadata": {"name": "q", "namespace": "team"},
            "spec": {"clusterQueue": "cq"}}))
            .expect("a queue"),
        );
        stores.cluster_queues.observe(
            serde_json::from_value(json!({"metadata": {"name": "cq"},
            "spec": {"admissionChecksStrategy": {"admissionChecks": [{"name": "elsewhere"}]}}}))
            .expect("a queue"),
        );
        stores.admission_checks.observe(
            serde_json::from_value(json!({"metadata": {"name": "elsewhere"},
            "spec": {"controllerName": "kueue.x-k8s.io/multikueue"}}))
            .expect("a check"),
        );
        let stored: BatchJob = read(job(json!({labels::QUEUE_NAME: "q"}), None, "false"));
        let (settled, event) = with_context(&stores, |context| settle_job(context, &stored)).expect("settled");
        assert_eq!(settled.managed_by(), None);
        assert!(settled.is_suspended() && !is_unsettled(&settled), "it is queued");
        let event = event.expect("a warning for its author");
        assert!(event.message.starts_with("spec.managedBy was not set"), "{}", event.message);
        // A value from the author is kept, and a new job is still sent to the other cluster.
        let mut by_author = job(json!({labels::QUEUE_NAME: "q"}), None, "false");
        by_author["spec"]["managedBy"] = json!("kueue.x-k8s.io/multikueue");
        let by_author: BatchJob = read(by_author);
        let (settled, event) = with_context(&stores, |context| settle_job(context, &by_author)).expect("settled");
        assert_eq!((settled.managed_by(), event), (Some("kueue.x-k8s.io/multikueue"), None));
        let mut new = job(json!({labels::QUEUE_NAME: "q"}), None, "false");
        let request = Request { group: "batch", resource: "jobs", namespace: "team", old_object: None };
        let lookup =
            |group: &str, resource: &str, namespace: &str, name: &str| stores.find(group, resource, namespace, name);
        Webhooks::new(Config::default()).mutate(request, &mut new, &lookup).expect("fine");
        assert_eq!(new["spec"]["managedBy"], "kueue.x-k8s.io/multikueue");
    }

    #[test]
    fn a_held_pod_is_settled_once_its_owner_is_known() {
        let stores = Stores::by_hand();
        let owner = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": true}]);
        let pod: Pod = serde_json::from_value(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "train-0", "namespace": "team", "ownerReferences": owner,
                "labels": {labels::QUEUE_NAME: "q", labels::MANAGED: "true"},
                "annotations": {berth::HELD_ANNOTATION: constants::ADMISSION_GATE}},
            "spec": {"containers": [], "schedulingGates": [{"name": constants::ADMISSION_GATE}]}}))
        .expect("a pod");
        let settled = || with_context(&stores, |context| settle_pod(context, &pod));
        assert_eq!(settled(), Err(PlanError::OwnerNotFound));
        let job =
            |labels: Value| json!({"metadata": {"name": "train", "namespace": "team", "uid": "u", "labels": labels}});
        let is_gated =
            |pod: &Pod| pod.spec.as_ref().is_some_and(|spec| spec.scheduling_gates.iter().flatten().count() > 0);
        stores.jobs.observe(serde_json::from_value(job(json!({labels::QUEUE_NAME: "q"}))).expect("a job"));
        assert!(!is_gated(&settled().expect("settled")), "a part of a queued job is not gated itself");
        let mut unqueued = job(json!({}));
        unqueued["metadata"]["resourceVersion"] = json!("2");
        stores.jobs.observe(serde_json::from_value(unqueued).expect("a job"));
        assert!(is_gated(&settled().expect("settled")), "the job is not queued, so the pod is");
    }

    #[test]
    fn a_settled_pod_keeps_required_gates_and_gets_its_group() {
        let stores = Stores::by_hand();
        let gates =
            json!([{"name": constants::ADMISSION_GATE}, {"name": "other.io/gate"}, {"name": constants::TOPOLOGY_GATE}]);
        let owner =
            json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "u", "controller": true}]);
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "db-0", "namespace": "team",
            "ownerReferences": owner, "labels": {labels::QUEUE_NAME: "q", labels::MANAGED: "true"},
            "annotations": {berth::HELD_ANNOTATION: format!("{},{},other.io/gate", constants::ADMISSION_GATE, constants::TOPOLOGY_GATE),
                annotations::POD_SUSPENDING_PARENT: "statefulset"}},
            "spec": {"containers": [], "schedulingGates": gates}});
        let typed: Pod = serde_json::from_value(pod.clone()).expect("a pod");
        let settled = with_context(&stores, |context| settle_pod(context, &typed)).expect("settled");
        let settled = serde_json::to_value(settled).expect("JSON");
        assert_eq!(
            settled["spec"]["schedulingGates"],
            json!([{"name": "other.io/gate"}, {"name": constants::ADMISSION_GATE}])
        );
        let group = settled["metadata"]["labels"][labels::POD_GROUP_NAME].as_str().expect("a group");
        assert!(group.starts_with("statefulset-db-"), "{group}");
        assert_eq!(settled["metadata"]["finalizers"], json!([constants::POD_FINALIZER]));
        let webhooks = Webhooks::new(Config::default());
        let request = Request { group: "", resource: "pods", namespace: "team", old_object: Some(&pod) };
        let wrong = webhooks.validate(request, &settled, &|_, _, _, _| None);
        assert!(wrong.iter().all(|error| !error.field.contains(labels::POD_GROUP_NAME)), "{wrong:?}");
    }
}
