//! The controller of the pods of LeaderWorkerSets: the workers of a leader, the Service of its
//! group, and the recreation of a group whose pod has restarted or was deleted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::frameworks::LeaderWorkerSet;
use berth_runtime::{
    Action, Cache, Error, EventType, Index, Manager, ObjectKey, Reconciler, Recorder, Writer, is_already_exists,
    message, owned_by,
};
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use kube::ResourceExt;
use parking_lot::Mutex;

use super::constants::{EXCLUSIVE_TOPOLOGY, GROUP_INDEX, LEADER_NAME, NAME, RECREATE_AFTER_START};
use super::facts::{annotation, label, revision_of};
use super::set::{of_sets, revisions_of};
use super::types::LeaderWorkerSetSpec;
use super::{facts, objects, revisions};

/// Time after which a leader whose revision is not in the cache is reconciled again.
const REVISION_DELAY: Duration = Duration::from_secs(1);

/// Adds the controller to the manager.
pub fn install(manager: &mut Manager) {
    let sets = manager.cache_if_served::<LeaderWorkerSet>();
    let stateful_sets = manager.cache::<StatefulSet>();
    let pods = manager.cache::<Pod>();
    let services = manager.cache::<Service>();
    let all_revisions = manager.cache::<ControllerRevision>();
    let controller = PodController {
        recorder: manager.recorder("leaderworkerset"),
        sets,
        nodes: manager.nodes(),
        group: pods.index(|pod: &Pod| group_of(pod).into_iter().collect()),
        revisions: of_sets(&all_revisions),
        write_pod: Writer::new(manager, &pods),
        write_service: Writer::new(manager, &services),
        write_set: Writer::new(manager, &stateful_sets),
        removed: Arc::default(),
    };
    let removed = controller.removed.clone();
    manager
        .controller("leaderworkerset-pods")
        .watch(&pods, move |delta| {
            let pod = delta.latest();
            let key = (!label(&pod.metadata, NAME).is_empty()).then(|| ObjectKey::of(pod.as_ref()))?;
            if delta.new.is_none() && pod.metadata.deletion_timestamp.is_none() {
                removed.lock().insert(key.clone(), pod.clone());
            }
            Some(key)
        })
        .watch_owned::<Pod, _>(&stateful_sets)
        .run(controller);
}

/// Identifies the group of a pod among the groups of all sets.
fn group_of(pod: &Pod) -> Option<String> {
    let (set, index) = (label(&pod.metadata, NAME), label(&pod.metadata, GROUP_INDEX));
    (!set.is_empty() && !index.is_empty())
        .then(|| format!("{}/{set}/{index}", pod.metadata.namespace.as_deref().unwrap_or_default()))
}

struct PodController {
    recorder: Recorder,
    sets: Cache<LeaderWorkerSet>,
    nodes: Cache<Node>,
    group: Index<Pod>,
    revisions: Index<ControllerRevision>,
    write_pod: Writer<Pod>,
    write_service: Writer<Service>,
    write_set: Writer<StatefulSet>,
    /// Last states of pods that were removed without a grace period and are not reconciled yet.
    removed: Arc<Mutex<BTreeMap<ObjectKey, Arc<Pod>>>>,
}

impl Reconciler for PodController {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let removed = self.removed.lock().remove(&key);
        if let Some(pod) = removed
            && let Err(error) = self.reconcile_removed(&pod).await
        {
            self.removed.lock().entry(key).or_insert(pod);
            return Err(error);
        }
        let Some(pod) = self.write_pod.cache().get(&key) else { return Ok(Action::Wait) };
        let set = ObjectKey::namespaced(key.namespace, label(&pod.metadata, NAME));
        // Pods of a deleted set are deleted by the garbage collector.
        let Some(set) = self.sets.get(&set) else { return Ok(Action::Wait) };
        // The controller of sets reports an unreadable spec.
        let Ok(spec) = LeaderWorkerSetSpec::read(&set.spec) else { return Ok(Action::Wait) };
        if let Some(leader) = self.leader_to_delete(&pod, &set, &spec) {
            self.recreate_group(&pod, &leader, &set).await?;
            return Ok(Action::Wait);
        }
        // A leader that is deleted gets no workers: its successor does.
        if !facts::is_leader(&pod) || pod.metadata.deletion_timestamp.is_some() {
            return Ok(Action::Wait);
        }
        if !annotation(&pod.metadata, LEADER_NAME).is_empty() {
            let message = format!(
                "leader pod {} contains mistake annotation '{LEADER_NAME}': requires Kubernetes ≥v1.27 or v1.26 with \
                 StatefulSetStartOrdinal feature",
                ObjectKey::of(pod.as_ref())
            );
            self.recorder.event(set.as_ref(), EventType::Warning, "FailedCreate", &message);
            return Ok(Action::Wait);
        }
        self.complete_group(&pod, &set, &spec).await
    }
}

/// True if the restart policy recreates the group of a lost pod.
fn recreates(policy: &str) -> bool {
    matches!(policy, "RecreateGroupOnPodRestart" | "RecreateGroupAfterStart")
}

/// True if the restart policy recreates a group because of this pod.
fn is_lost(pod: &Pod, policy: &str) -> bool {
    recreates(policy) && (facts::has_restarted(pod) || pod.metadata.deletion_timestamp.is_some())
}

/// The pods of a group before this pod was lost: its replacement does not count.
fn with_lost(mut group: Vec<Arc<Pod>>, lost: &Pod) -> Vec<Arc<Pod>> {
    group.retain(|pod| pod.metadata.name != lost.metadata.name);
    group.push(Arc::new(lost.clone()));
    group
}

/// True if a pod of the group does not exist yet or has not started.
fn is_starting(group: &[Arc<Pod>], size: i32) -> bool {
    i32::try_from(group.len()) != Ok(size) || group.iter().any(|pod| facts::phase(pod) == "Pending")
}

impl PodController {
    /// Recreates the group of a worker that was removed at once, so that no state of it has a
    /// deletionTimestamp. The workers of a removed leader are deleted with it.
    async fn reconcile_removed(&self, pod: &Pod) -> Result<(), Error> {
        let namespace = pod.namespace().unwrap_or_default();
        let set = self.sets.get(&ObjectKey::namespaced(namespace, label(&pod.metadata, NAME)));
        let Some(set) = set.filter(|_| !facts::is_leader(pod)) else { return Ok(()) };
        let Ok(spec) = LeaderWorkerSetSpec::read(&set.spec) else { return Ok(()) };
        if !recreates(&spec.leader_worker_template.restart_policy) {
            return Ok(());
        }
        match self.leader_of_lost(pod, &set, &spec) {
            Some(leader) => self.recreate_group(pod, &leader, &set).await,
            None => Ok(()),
        }
    }

    /// The leader whose deletion recreates the group of this pod.
    fn leader_to_delete(&self, pod: &Pod, set: &LeaderWorkerSet, spec: &LeaderWorkerSetSpec) -> Option<Arc<Pod>> {
        let is_lost = is_lost(pod, &spec.leader_worker_template.restart_policy);
        if is_lost { self.leader_of_lost(pod, set, spec) } else { None }
    }

    /// The leader of a lost pod, if its group must be recreated.
    fn leader_of_lost(&self, pod: &Pod, set: &LeaderWorkerSet, spec: &LeaderWorkerSetSpec) -> Option<Arc<Pod>> {
        let after_start = spec.leader_worker_template.restart_policy == "RecreateGroupAfterStart"
            || set
                .metadata
                .annotations
                .as_ref()
                .is_some_and(|annotations| annotations.contains_key(RECREATE_AFTER_START));
        let group = group_of(pod).map(|group| self.group.get(&group)).unwrap_or_default();
        if after_start && is_starting(&with_lost(group, pod), spec.size()) {
            return None;
        }
        if facts::is_leader(pod) {
            return self.write_pod.cache().get(&ObjectKey::of(pod));
        }
        let (leader, _) = facts::parent_and_ordinal(pod.metadata.name.as_deref()?)?;
        let key = ObjectKey::namespaced(pod.metadata.namespace.clone().unwrap_or_default(), leader);
        let leader = self.write_pod.cache().get(&key)?;
        // A pod of another revision is replaced anyway, and one of an earlier leader is left over.
        let is_of_leader = revision_of(&leader.metadata) == revision_of(&pod.metadata)
            && self.is_worker_of(pod, leader.metadata.uid.as_deref().unwrap_or_default());
        is_of_leader.then_some(leader)
    }

    /// True if the pod with this UID controls the pod, directly or through a StatefulSet.
    fn is_worker_of(&self, pod: &Pod, leader: &str) -> bool {
        let controller = |owners: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference]| {
            owners.iter().find(|owner| owner.controller == Some(true)).cloned()
        };
        let Some(owner) = controller(pod.owner_references()) else { return false };
        if owner.kind == "Pod" {
            return owner.uid == leader;
        }
        let key = ObjectKey::namespaced(pod.namespace().unwrap_or_default(), &owner.name);
        let Some(workers) = self.write_set.cache().get(&key).filter(|_| owner.kind == "StatefulSet") else {
            return false;
        };
        workers.metadata.uid.as_deref() == Some(&owner.uid)
            && controller(workers.owner_references()).is_some_and(|owner| owner.kind == "Pod" && owner.uid == leader)
    }

    async fn recreate_group(&self, pod: &Pod, leader: &Pod, set: &LeaderWorkerSet) -> Result<(), Error> {
        if leader.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        // The workers end first, so that the new leader does not meet them.
        self.write_pod.delete_after_dependents(leader).await?;
        let message = format!(
            "Worker pod {} failed, deleted leader pod {} to recreate group {}",
            pod.name_any(),
            leader.name_any(),
            label(&leader.metadata, GROUP_INDEX)
        );
        self.recorder.event(set, EventType::Normal, "RecreateGroup", &message);
        Ok(())
    }

    /// Makes what the group of a leader lacks.
    async fn complete_group(
        &self,
        leader: &Pod,
        set: &LeaderWorkerSet,
        spec: &LeaderWorkerSetSpec,
    ) -> Result<Action, Error> {
        let key = ObjectKey::of(leader);
        if spec.has_service_per_group() && self.write_service.cache().get(&key).is_none() {
            let selector = [(NAME, set.name_any()), (GROUP_INDEX, label(&leader.metadata, GROUP_INDEX).to_owned())];
            let service = objects::service(set, &key.name, owned_by(leader), selector);
            self.write_service.create_owned(&service, leader).await?;
        }
        let waits = spec.waits_for_leader() && !facts::is_pod_ready(leader);
        if spec.size() == 1 || waits || self.write_set.cache().get(&key).is_some() {
            return Ok(Action::Wait);
        }
        let known = revisions_of(&self.revisions, set);
        let Some(revision) = revisions::find(&known, revision_of(&leader.metadata)) else {
            return Ok(Action::After(REVISION_DELAY));
        };
        let spec = LeaderWorkerSetSpec::read(&revisions::spec_at(set, revision))?;
        if spec.size() == 1 {
            return Ok(Action::Wait);
        }
        let topology = annotation(&set.metadata, EXCLUSIVE_TOPOLOGY);
        let domain = match self.domain(leader, set, topology) {
            Ok(domain) => domain,
            Err(action) => return Ok(action),
        };
        let selector = domain.as_deref().map(|value| (topology, value));
        let workers = berth_api::json::from_value(objects::workers(set, &spec, leader, selector))?;
        self.create_workers(&workers, leader, set).await?;
        Ok(Action::Wait)
    }

    /// The domain of the exclusive topology in which the leader runs; `None` without such a
    /// topology. `Err` if it is not known yet.
    fn domain(&self, leader: &Pod, set: &LeaderWorkerSet, topology: &str) -> Result<Option<String>, Action> {
        if topology.is_empty() {
            return Ok(None);
        }
        // The leader is reconciled again when it is bound to a node.
        let node = leader.spec.as_ref().and_then(|spec| spec.node_name.clone()).ok_or(Action::Wait)?;
        let found = self.nodes.get(&ObjectKey::cluster(&node));
        match found.as_ref().map(|node| label(&node.metadata, topology)) {
            Some(domain) if !domain.is_empty() => Ok(Some(domain.to_owned())),
            _ => {
                let message = format!(
                    "Node {node} of leader pod {} has no label {topology}, which the annotation {EXCLUSIVE_TOPOLOGY} \
                     names; the workers of the group are not created",
                    leader.name_any()
                );
                self.recorder.event(set, EventType::Warning, "FailedCreate", &message);
                Err(Action::After(REVISION_DELAY))
            }
        }
    }

    async fn create_workers(&self, workers: &StatefulSet, leader: &Pod, set: &LeaderWorkerSet) -> Result<(), Error> {
        let name = leader.name_any();
        match self.write_set.create(workers).await {
            Ok(_) => {
                let message = format!("Created worker statefulset for leader pod {name}");
                self.recorder.event(set, EventType::Normal, "GroupsProgressing", &message);
                Ok(())
            }
            // That of an earlier leader is about to be deleted; its deletion reconciles the leader.
            Err(error) if is_already_exists(&error) => Ok(()),
            Err(error) => {
                let message = format!("Failed to create worker statefulset for leader pod {name}: {}", message(&error));
                self.recorder.event(set, EventType::Warning, "FailedCreate", &message);
                Err(error.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::leader_worker_set::constants::WORKER_INDEX;

    fn pod(status: Value, deleted: bool) -> Pod {
        let mut pod = json!({"metadata": {"name": "web-0-1", "labels": {NAME: "web", WORKER_INDEX: "1"}}});
        pod["status"] = status;
        if deleted {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-05T09:00:00Z");
        }
        serde_json::from_value(pod).expect("a pod")
    }

    #[test]
    fn a_restart_or_a_deletion_recreates_the_group_unless_the_policy_is_none() {
        let restarts = |phase: &str, count: i32| {
            let containers = json!([{"name": "c", "restartCount": count, "image": "", "imageID": "", "ready": true}]);
            pod(json!({"phase": phase, "containerStatuses": containers}), false)
        };
        let policy = "RecreateGroupOnPodRestart";
        assert!(is_lost(&restarts("Running", 1), policy));
        assert!(!is_lost(&restarts("Running", 0), policy));
        assert!(!is_lost(&restarts("Failed", 1), policy), "a pod that has ended is replaced by its StatefulSet");
        assert!(is_lost(&pod(json!({"phase": "Running"}), true), policy));
        assert!(!is_lost(&pod(json!({"phase": "Running"}), true), "None"));
        assert!(is_lost(&restarts("Running", 1), "RecreateGroupAfterStart"));
    }

    #[test]
    fn the_replacement_of_a_lost_pod_does_not_count_in_its_group() {
        let named = |name: &str, phase: &str| {
            let mut pod = pod(json!({"phase": phase}), false);
            pod.metadata.name = Some(name.to_owned());
            Arc::new(pod)
        };
        let lost = named("web-0-1", "Running");
        assert!(!is_starting(&with_lost(vec![named("web-0", "Running")], &lost), 2));
        let replaced = vec![named("web-0", "Running"), named("web-0-1", "Pending")];
        assert!(!is_starting(&with_lost(replaced, &lost), 2));
        assert!(is_starting(&with_lost(vec![named("web-0", "Pending")], &lost), 2));
    }

    #[test]
    fn a_group_starts_until_all_of_its_pods_exist_and_run() {
        let running = || Arc::new(pod(json!({"phase": "Running"}), false));
        assert!(is_starting(&[running()], 2));
        assert!(is_starting(&[running(), Arc::new(pod(json!({"phase": "Pending"}), false))], 2));
        assert!(!is_starting(&[running(), running()], 2));
    }
}
