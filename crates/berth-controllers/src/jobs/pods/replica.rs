//! Replicas of LeaderWorkerSets: the pods of each are one group.
//!
//! The Workload of a group is made from its pods. Workers that wait for a leader that is ready do
//! not exist before the group is admitted, so their pod set is made from the set's template.

use std::sync::Arc;

use berth_api::frameworks::LeaderWorkerSet;
use berth_api::kueue::v1beta2::{PodSet, Workload};
use berth_api::kueue::{annotations, labels};
use berth_runtime::ObjectKey;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use serde_json::Value;

use super::{owned, stateful_set};
use crate::gates::Gates;
use crate::jobs::naming::OwnerKind;
use crate::jobs::reconcile::{Context, remove_finalizer};
use crate::jobs::topology::{self, Ranks};
use crate::plan::{Plan, Step};
use crate::stores::{Stores, controller_of};
use crate::workload::status;

/// The value of the suspending-parent annotation in a LeaderWorkerSet's templates.
pub(crate) const PARENT: &str = "leaderworkerset.x-k8s.io/leaderworkerset";
/// API group of LeaderWorkerSets.
pub(crate) const GROUP: &str = "leaderworkerset.x-k8s.io";
/// Kind of LeaderWorkerSets.
const KIND: &str = "LeaderWorkerSet";
/// Label of a pod: the name of its LeaderWorkerSet.
pub(crate) const SET_NAME: &str = "leaderworkerset.sigs.k8s.io/name";

/// Label of a pod: the index of its replica.
pub(crate) const GROUP_INDEX: &str = "leaderworkerset.sigs.k8s.io/group-index";
/// Pod set of the leader, if the set has a template for it, and role of its pod.
pub(crate) const LEADER: &str = "leader";
/// Pod set of the workers of such a set, and role of their pods.
pub(crate) const WORKER: &str = "worker";

/// Group and kind of LeaderWorkerSets.
pub(crate) fn kind() -> OwnerKind {
    OwnerKind { group: GROUP.to_owned(), kind: KIND.to_owned() }
}

/// The names that the group of a replica can have: the usual one, and that of earlier versions.
fn names(set: &str, uid: &str, index: &str, gates: &Gates) -> [String; 2] {
    owned::group_names(&kind(), &format!("{set}-{index}"), uid, gates)
}

/// True if the pod is queued for its LeaderWorkerSet.
pub(super) fn is_part(pod: &Pod) -> bool {
    pod.annotations().get(annotations::POD_SUSPENDING_PARENT).is_some_and(|parent| parent == PARENT)
}

/// True if the pod is queued for a LeaderWorkerSet that is not known (yet). Its group has the set's
/// UID in its name.
pub(crate) fn is_of_unknown_set(stores: &Stores, pod: &Pod) -> bool {
    let set = pod.labels().get(SET_NAME).filter(|_| is_part(pod));
    let key = set.map(|set| ObjectKey::namespaced(pod.namespace().unwrap_or_default(), set.as_str()));
    key.is_some_and(|key| stores.leader_worker_sets.get(&key).is_none())
}

/// The LeaderWorkerSet for which the pod is queued, if any.
pub(super) fn set_of(stores: &Stores, pod: &Pod) -> Option<OwnerReference> {
    let name = pod.labels().get(SET_NAME).filter(|_| is_part(pod))?;
    let set = controller_of(&leaders(stores, &pod.namespace()?, name)?.metadata).cloned()?;
    Some(OwnerReference { controller: None, block_owner_deletion: None, ..set })
}

/// The StatefulSet of a LeaderWorkerSet's leaders. It has the set's name, owner and number of
/// replicas.
fn leaders(stores: &Stores, namespace: &str, set: &str) -> Option<Arc<StatefulSet>> {
    let leaders = stores.stateful_sets.get(&ObjectKey::namespaced(namespace, set))?;
    controller_of(&leaders.metadata).is_some_and(|owner| owner.kind == KIND).then_some(leaders)
}

/// The pod sets of a replica whose workers wait for a leader that is ready, and have another
/// template than the leader. `None` if the pod is not part of such a replica, or its set is not
/// known.
///
/// # Errors
/// A template cannot be read, or its topology request is invalid.
pub(super) fn pod_sets_ahead(stores: &Stores, pod: &Pod, gates: &Gates) -> Option<Result<Vec<PodSet>, String>> {
    let name = pod.labels().get(SET_NAME).filter(|_| is_part(pod))?;
    let set = stores.leader_worker_sets.get(&ObjectKey::namespaced(&pod.namespace()?, name.as_str()))?;
    let index = pod.labels().get(GROUP_INDEX)?;
    let names = names(name, set.metadata.uid.as_deref()?, index, gates);
    let group = super::group_name(pod, gates)?;
    let is_wanted = names.iter().any(|name| name == group) && set.spec["startupPolicy"] == "LeaderReady";
    let template = &set.spec["leaderWorkerTemplate"];
    (is_wanted && template["leaderTemplate"].is_object()).then(|| {
        let workers = template["size"].as_i64().unwrap_or(1) - 1;
        let leader = pod_set(&set, LEADER, "leaderTemplate", 1, gates)?;
        let workers = pod_set(&set, WORKER, "workerTemplate", i32::try_from(workers).unwrap_or(i32::MAX), gates)?;
        Ok([leader, workers].into_iter().filter(|pod_set| pod_set.count > 0).collect())
    })
}

/// A pod set of this template of the set.
fn pod_set(set: &LeaderWorkerSet, name: &str, field: &str, count: i32, gates: &Gates) -> Result<PodSet, String> {
    let template: &Value = &set.spec["leaderWorkerTemplate"][field];
    let template: PodTemplateSpec = berth_api::json::from_value(template.clone())
        .map_err(|error| format!("LeaderWorkerSet {}: spec.leaderWorkerTemplate.{field}: {error}", set.name_any()))?;
    let ranks = Ranks { pod_index_label: Some(labels::POD_GROUP_POD_INDEX), ..Ranks::default() };
    let topology_request = topology::of_template(&template, ranks, gates)?;
    let template = PodTemplateSpec { metadata: None, ..template };
    Ok(PodSet { name: name.to_owned(), count, min_count: None, template, topology_request })
}

/// Handles the Workload of a replica whose pods are gone, if its LeaderWorkerSet exists. The set
/// creates the pods of a wanted replica again, for which the Workload waits, also if it is
/// deactivated. That of a replica beyond the set's size is deleted. Returns false if there is no
/// such set.
pub(super) fn without_pods(
    context: Context<'_>,
    namespace: &str,
    set: &OwnerReference,
    workload: &Workload,
    plan: &mut Plan<Pod>,
) -> bool {
    let found = leaders(context.stores, namespace, &set.name);
    let found = found.filter(|leaders| controller_of(&leaders.metadata).is_some_and(|owner| owner.uid == set.uid));
    let Some(leaders) = found.filter(|_| set.kind == KIND) else { return false };
    let (name, now) = (workload.name_any(), context.now);
    let is_named = |index: i32| names(&set.name, &set.uid, &index.to_string(), context.gates).contains(&name);
    let mut workload = workload.clone();
    if (0..stateful_set::replicas(&leaders)).any(is_named) {
        if status::is_evicted(&workload)
            && status::has_quota_reservation(&workload)
            && status::release_after_eviction(&mut workload, context.gates, now)
        {
            plan.steps.push(Step::PatchWorkloadStatus(Box::new(workload)));
        }
    } else {
        if remove_finalizer(&mut workload) {
            plan.steps.push(Step::PatchWorkload(Box::new(workload.clone())));
        }
        plan.steps.push(Step::DeleteWorkload(Box::new(workload)));
    }
    true
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::configuration::Config;

    fn read<K: serde::de::DeserializeOwned>(value: Value) -> K {
        serde_json::from_value(value).expect("an object of the kind")
    }

    /// The pod sets of a replica of which only the leader exists.
    fn ahead(startup: &str, leader: Value, uid: &str) -> Option<String> {
        let stores = Stores::by_hand();
        let template =
            |cpu: &str| json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}});
        let set = json!({"metadata": {"name": "web", "namespace": "ns", "uid": uid}, "spec": {"startupPolicy": startup,
            "leaderWorkerTemplate": {"size": 4, "leaderTemplate": leader, "workerTemplate": template("2")}}});
        stores.leader_worker_sets.observe(read::<LeaderWorkerSet>(set));
        let gates = Gates::default();
        let pod = json!({"metadata": {"name": "web-1", "namespace": "ns",
            "labels": {SET_NAME: "web", GROUP_INDEX: "1", labels::POD_GROUP_NAME: names("web", "u", "1", &gates)[0]},
            "annotations": {annotations::POD_SUSPENDING_PARENT: PARENT}}, "spec": {"containers": []}});
        let sets = pod_sets_ahead(&stores, &read(pod), &gates)?.expect("pod sets");
        let cpu = |set: &PodSet| {
            let spec = set.template.spec.as_ref().expect("a spec");
            let requests = spec.containers[0].resources.as_ref().and_then(|it| it.requests.as_ref());
            requests.map(|requests| requests["cpu"].0.clone()).unwrap_or_default()
        };
        let sets: Vec<String> = sets.iter().map(|it| format!("{} {}x{}", it.name, it.count, cpu(it))).collect();
        Some(sets.join(", "))
    }

    #[test]
    fn workers_that_wait_for_their_leader_are_counted_by_their_template() {
        let leader = || json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}});
        assert_eq!(ahead("LeaderReady", leader(), "u").as_deref(), Some("leader 1x1, worker 3x2"));
        assert_eq!(ahead("LeaderCreated", leader(), "u"), None, "all pods come at once");
        assert_eq!(ahead("LeaderReady", Value::Null, "u"), None, "the leader is like the workers");
        assert_eq!(ahead("LeaderReady", leader(), "later"), None, "another set of the same name");
    }

    #[test]
    fn a_workload_without_pods_waits_for_a_wanted_replica_and_ends_with_another() {
        let (config, gates) = (Config::default(), Gates::default());
        let steps = |replicas: i32, owner: &str| {
            let stores = Stores::by_hand();
            let set = json!({"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": KIND, "name": "web", "uid": owner});
            let mut controller = set.clone();
            (controller["controller"], controller["uid"]) = (json!(true), json!("u"));
            let leaders = json!({"metadata": {"name": "web", "namespace": "ns", "ownerReferences": [controller]},
                "spec": {"replicas": replicas, "serviceName": "web", "selector": {}, "template": {}}});
            stores.stateful_sets.observe(read::<StatefulSet>(leaders));
            let name = &names("web", "u", "1", &gates)[0];
            let workload: Workload = read(json!({"metadata": {"name": name, "namespace": "ns",
                "finalizers": ["kueue.x-k8s.io/resource-in-use"]}, "spec": {"queueName": "q", "podSets": []}}));
            let now = "2026-01-01T01:00:00Z".parse().expect("a time");
            let context = Context { stores: &stores, config: &config, gates: &gates, now };
            let mut plan = Plan::default();
            let is_handled = without_pods(context, "ns", &read(set), &workload, &mut plan);
            (is_handled, plan.steps.len())
        };
        assert_eq!(steps(2, "u"), (true, 0), "its pods come back");
        assert_eq!(steps(1, "u"), (true, 2), "scaled down: the Workload loses its finalizer and is deleted");
        assert_eq!(steps(2, "earlier"), (false, 0), "another set of the same name");
    }
}
