//! Taint-based eviction: deletes the pods of nodes that have `NoExecute` taints, unless the pods
//! tolerate them. A toleration with `tolerationSeconds` delays the deletion.
//!
//! The seconds count from the time that the taint has in `timeAdded`, or else from when this
//! process saw it first; for a pod that was bound later, from its binding.
//!
//! Source: Kubernetes documentation, "Taints and Tolerations: Taint based Evictions".

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::pod::node_of;
use berth_runtime::{
    Action, Cache, Clock, Error, EventType, Manager, ObjectKey, Reconciler, Recorder, is_conflict, is_not_found, stamp,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;

use crate::indexes::pods_by_node;
use crate::placement::tolerates;

/// Effect of the taints that evict pods.
const NO_EXECUTE: &str = "NoExecute";
/// Reason of the events, like upstream's.
const REASON: &str = "TaintManagerEviction";

/// Adds the controller.
pub fn install(manager: &mut Manager) {
    let pods: Cache<Pod> = manager.cache();
    let nodes = manager.nodes();
    let on_node = pods_by_node(&pods);
    let controller = Controller {
        pods: pods.clone(),
        nodes: nodes.clone(),
        client: manager.client(),
        clock: manager.clock(),
        recorder: manager.recorder("taint-eviction-controller"),
        seen: Mutex::default(),
        waiting: Mutex::default(),
    };
    let of_pod = nodes.clone();
    manager
        .controller("taint-eviction")
        .watch(&nodes, move |delta| {
            let taints = |node: &Option<Arc<Node>>| node.as_deref().map(no_execute).unwrap_or_default();
            let has_changed = taints(&delta.old) != taints(&delta.new);
            let pods = if has_changed { on_node.get(&delta.latest().name_any()) } else { Vec::new() };
            pods.iter().map(|pod| ObjectKey::of(pod.as_ref())).collect::<Vec<_>>()
        })
        .watch(&pods, move |delta| {
            let pod = delta.new.as_ref()?;
            let node = of_pod.get(&ObjectKey::cluster(node_of(pod)?))?;
            if no_execute(&node).is_empty() {
                return None;
            }
            let facts = |pod: &Pod| pod.spec.as_ref().map(|spec| (spec.node_name.clone(), spec.tolerations.clone()));
            let has_changed = delta.old.as_ref().is_none_or(|old| facts(old) != facts(pod));
            has_changed.then(|| ObjectKey::of(pod.as_ref()))
        })
        .run(controller);
}

/// The taints of a node that evict pods.
fn no_execute(node: &Node) -> Vec<Taint> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    taints.iter().filter(|taint| taint.effect == NO_EXECUTE).cloned().collect()
}

/// When a pod with these tolerations must leave; `None` if it may stay. Each taint has the time
/// from which its seconds count.
fn eviction_time(tolerations: &[Toleration], taints: &[(Taint, Timestamp)]) -> Option<Timestamp> {
    let times = taints.iter().filter_map(|(taint, since)| {
        let matching = tolerations.iter().filter(|toleration| tolerates(toleration, taint));
        let limits: Vec<Option<i64>> = matching.map(|toleration| toleration.toleration_seconds).collect();
        if limits.is_empty() {
            return Some(*since);
        }
        // A toleration without a limit does not lift the limit of another one.
        let seconds = limits.into_iter().flatten().min()?;
        let delay = SignedDuration::from_secs(seconds.max(0));
        Some(since.checked_add(delay).unwrap_or(Timestamp::MAX))
    });
    times.min()
}

/// Time at which the pod was bound, from its status.
fn bound_at(pod: &Pod) -> Timestamp {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let scheduled = conditions.into_iter().flatten().find(|it| it.type_ == "PodScheduled" && it.status == "True");
    let time = scheduled.and_then(|it| it.last_transition_time.clone()).or_else(|| pod.creation_timestamp());
    time.map_or(Timestamp::MIN, |time| time.0)
}

/// A taint by key and value.
type TaintId = (String, Option<String>);

struct Controller {
    pods: Cache<Pod>,
    nodes: Cache<Node>,
    client: Client,
    clock: Clock,
    recorder: Recorder,
    /// When taints without `timeAdded` were first seen, by node.
    seen: Mutex<BTreeMap<String, BTreeMap<TaintId, Timestamp>>>,
    /// Pods whose eviction is due later.
    waiting: Mutex<BTreeSet<ObjectKey>>,
}

impl Reconciler for Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(pod) = self.pods.get(&key).filter(|pod| !is_gone(pod)) else {
            self.waiting.lock().remove(&key);
            return Ok(Action::Wait);
        };
        let now = self.clock.now();
        let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
        let bound = bound_at(&pod);
        let taints = self.taints(node_of(&pod).unwrap_or_default(), now);
        let taints: Vec<_> = taints.into_iter().map(|(taint, since)| (taint, since.max(bound))).collect();
        match eviction_time(tolerations, &taints) {
            None => {
                if self.waiting.lock().remove(&key) {
                    self.event(&pod, &format!("Cancelling deletion of Pod {key}"));
                }
                Ok(Action::Wait)
            }
            Some(time) if time > now => {
                self.waiting.lock().insert(key);
                Ok(Action::After(time.duration_since(now).try_into().unwrap_or_default()))
            }
            Some(_) => {
                self.waiting.lock().remove(&key);
                self.event(&pod, &format!("Marking for deletion Pod {key}"));
                self.evict(&key, &pod, now).await?;
                Ok(Action::Wait)
            }
        }
    }
}

/// True for a pod that has ended or is being deleted.
fn is_gone(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed")) || pod.metadata.deletion_timestamp.is_some()
}

impl Controller {
    fn event(&self, pod: &Pod, message: &str) {
        self.recorder.event(pod, EventType::Normal, REASON, message);
    }

    /// The evicting taints of a node, each with the time at which it was added.
    fn taints(&self, node: &str, now: Timestamp) -> Vec<(Taint, Timestamp)> {
        let taints = self.nodes.get(&ObjectKey::cluster(node)).map(|node| no_execute(&node)).unwrap_or_default();
        let mut seen = self.seen.lock();
        let of_node = seen.entry(node.to_owned()).or_default();
        let id = |taint: &Taint| (taint.key.clone(), taint.value.clone());
        of_node.retain(|known, _| taints.iter().any(|taint| id(taint) == *known));
        let mut dated = Vec::new();
        for taint in taints {
            let since = match &taint.time_added {
                Some(time) => time.0,
                None => *of_node.entry(id(&taint)).or_insert(now),
            };
            dated.push((taint, since));
        }
        if of_node.is_empty() {
            seen.remove(node);
        }
        dated
    }

    /// Marks the pod as disrupted, and deletes it with its grace period.
    async fn evict(&self, key: &ObjectKey, pod: &Pod, now: Timestamp) -> Result<(), Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        let patch = json!({
            "metadata": { "uid": pod.metadata.uid },
            "status": { "conditions": [{
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "DeletionByTaintManager",
                "message": "Taint manager: deleting due to NoExecute taint",
                "lastTransitionTime": stamp(now),
                "observedGeneration": pod.metadata.generation,
            }] },
        });
        match berth_runtime::write::patch_status(&api, &key.name, &PatchParams::default(), &Patch::Strategic(&patch))
            .await
        {
            Ok(written) => self.pods.observe(written),
            Err(error) if is_not_found(&error) || is_conflict(&error) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let preconditions = Preconditions { uid: pod.uid(), resource_version: None };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match berth_runtime::write::delete(&api, &key.name, &parameters).await {
            Ok(_) => Ok(()),
            Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    /// The second of the eviction, for taints by key with the second at which each was added.
    fn evicted(tolerations: Value, taints: &[(&str, i64)]) -> Option<i64> {
        let tolerations: Vec<Toleration> = serde_json::from_value(tolerations).expect("tolerations");
        let taints: Vec<_> = taints
            .iter()
            .map(|(key, since)| {
                let taint = Taint { key: (*key).into(), effect: NO_EXECUTE.into(), ..Taint::default() };
                (taint, at(*since))
            })
            .collect();
        eviction_time(&tolerations, &taints).map(Timestamp::as_second)
    }

    #[test]
    fn a_pod_leaves_when_its_shortest_toleration_ends() {
        let forever = json!({"key": "a", "operator": "Exists"});
        let minute = json!({"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60});
        let other = json!({"key": "b", "operator": "Exists", "tolerationSeconds": 10});
        assert_eq!(evicted(json!([]), &[]), None);
        assert_eq!(evicted(json!([]), &[("a", 100)]), Some(100));
        assert_eq!(evicted(json!([forever]), &[("a", 100)]), None);
        assert_eq!(evicted(json!([minute]), &[("a", 100)]), Some(160));
        assert_eq!(evicted(json!([forever, minute]), &[("a", 100)]), Some(160));
        assert_eq!(evicted(json!([minute, other]), &[("a", 100), ("b", 120)]), Some(130));
        assert_eq!(evicted(json!([minute]), &[("a", 100), ("b", 120)]), Some(120), "the other is not tolerated");
        let past = json!({"key": "a", "operator": "Exists", "tolerationSeconds": -5});
        assert_eq!(evicted(json!([past]), &[("a", 100)]), Some(100));
        let scheduling_only = json!({"key": "a", "operator": "Exists", "effect": "NoSchedule"});
        assert_eq!(evicted(json!([scheduling_only]), &[("a", 100)]), Some(100));
    }
}
