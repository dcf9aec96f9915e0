//! Replicas of LeaderWorkerSets: the pods of each are one group.

use std::sync::Arc;

use berth_api::kueue::annotations;
use berth_api::kueue::v1beta2::Workload;
use berth_runtime::ObjectKey;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;

use super::{owned, stateful_set};
use crate::gates::Gates;
use crate::jobs::naming::OwnerKind;
use crate::jobs::reconcile::{Context, remove_finalizer};
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

/// The LeaderWorkerSet for which the pod is queued, if any.
pub(super) fn set_of(stores: &Stores, pod: &Pod) -> Option<OwnerReference> {
    let name = pod.labels().get(SET_NAME).filter(|_| is_part(pod))?;
    let set = controller_of(&leaders(stores, &pod.namespace()?, name)?.metadata).cloned()?;
    Some(OwnerReference { controller: None, block_owner_deletion: None, ..set })
}

/// The StatefulSet of a LeaderWorkerSet's leaders. It has the set's name, owner and number of replicas.
fn leaders(stores: &Stores, namespace: &str, set: &str) -> Option<Arc<StatefulSet>> {
    let leaders = stores.stateful_sets.get(&ObjectKey::namespaced(namespace, set))?;
    controller_of(&leaders.metadata).is_some_and(|owner| owner.kind == KIND).then_some(leaders)
}

/// Handles the Workload of a replica whose pods are gone, if its LeaderWorkerSet exists. The set creates
/// the pods of a wanted replica again, for which the Workload waits, also if it is deactivated. That of a
/// replica beyond the set's size is deleted. Returns false if there is no such set.
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
