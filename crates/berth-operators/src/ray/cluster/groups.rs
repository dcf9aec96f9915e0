//! Which pods of a worker group are created and deleted.
//!
//! In a group with one host per replica, each pod is created and deleted on its own. In a group
//! with several hosts per replica, all hosts of a replica have the same replica name in a label,
//! and are created and deleted together.

use berth_runtime::PlannedEvent;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::facts::Facts;
use super::plan::{Creation, Failure, Plan, Removal, is_dead, is_terminating, label, name, names, state};
use super::pod::{self, NodeType, Place};
use crate::ray::constants::{REPLICA_INDEX, REPLICA_NAME};
use crate::ray::names::suffix;
use crate::ray::types::WorkerGroupSpec;

/// Adds the creations and deletions of the pods of one group to the plan.
pub fn plan(facts: &Facts<'_>, group: &WorkerGroupSpec, pods: &[Arc<Pod>], nonce: &str, plan: &mut Plan) {
    if group.is_suspended() {
        if plan.delete_all(pods, Failure::DeleteWorkerPod) {
            let message = format!(
                "Deleted all pods for suspended worker group {} in RayCluster {}",
                group.group_name,
                facts.key()
            );
            plan.events.push(PlannedEvent::normal("DeletedWorkerPod", message));
        }
    } else if group.hosts() > 1 {
        several_hosts(facts, group, pods, nonce, plan);
    } else {
        one_host(facts, group, pods, plan);
    }
}

fn remove(plan: &mut Plan, pod: &Arc<Pod>, message: impl FnOnce() -> String) {
    if is_terminating(pod) {
        return;
    }
    let event = Some(PlannedEvent::normal("DeletedWorkerPod", message()));
    plan.delete.push(Removal { pod: pod.clone(), event, failure: Failure::DeleteWorkerPod });
}

/// The indexes that are not taken, the lowest first.
fn free_indexes(taken: BTreeSet<usize>) -> impl Iterator<Item = usize> {
    (0..).filter(move |index| !taken.contains(index))
}

fn index(pod: &Pod) -> Option<usize> {
    label(pod, REPLICA_INDEX).parse().ok()
}

fn one_host(facts: &Facts<'_>, group: &WorkerGroupSpec, pods: &[Arc<Pod>], plan: &mut Plan) {
    let dead: Vec<_> = pods.iter().filter(|pod| is_dead(pod)).collect();
    for pod in &dead {
        remove(plan, pod, || format!("Deleted worker Pod {}/{}; {}", facts.namespace, name(pod), state(pod)));
    }
    if !dead.is_empty() {
        // The replacements are created when the dead pods no longer exist.
        plan.is_interim = true;
        return;
    }
    let chosen = names(&group.scale_strategy.workers_to_delete);
    let (leaving, staying): (Vec<_>, Vec<_>) = pods.iter().cloned().partition(|pod| chosen.contains(name(pod)));
    for pod in &leaving {
        remove(plan, pod, || format!("Deleted pod {}/{}", facts.namespace, name(pod)));
    }
    let wanted = usize::try_from(group.desired_pods()).unwrap_or(0);
    if staying.len() > wanted && !facts.spec.is_autoscaled() {
        for pod in surplus(staying, wanted) {
            remove(plan, &pod, || format!("Deleted Pod {}/{}", facts.namespace, name(&pod)));
        }
        return;
    }
    let missing = wanted.saturating_sub(staying.len());
    let taken = staying.iter().filter_map(|pod| index(pod)).collect();
    for replica in free_indexes(taken).take(missing) {
        let place = Place { replica, ..Place::default() };
        plan.create.push(Creation { pod: pod::worker(facts, group, &place), node_type: NodeType::Worker });
    }
}

/// The pods beyond the wanted number. Pods that are being deleted are chosen first, then pods that
/// do not run yet, then those with the highest indexes.
fn surplus(mut pods: Vec<Arc<Pod>>, wanted: usize) -> Vec<Arc<Pod>> {
    let is_running = |pod: &Pod| super::plan::phase(pod) == "Running";
    pods.sort_by_key(|pod| (is_terminating(pod), !is_running(pod), index(pod), name(pod).to_owned()));
    pods.split_off(wanted)
}

fn several_hosts(facts: &Facts<'_>, group: &WorkerGroupSpec, pods: &[Arc<Pod>], nonce: &str, plan: &mut Plan) {
    let hosts = usize::try_from(group.hosts()).unwrap_or(1);
    let chosen = names(&group.scale_strategy.workers_to_delete);
    let mut replicas: BTreeMap<&str, Vec<&Arc<Pod>>> = BTreeMap::new();
    for pod in pods {
        replicas.entry(label(pod, REPLICA_NAME)).or_default().push(pod);
    }
    let mut whole = Vec::new();
    let mut waits = false;
    for pods in replicas.into_values() {
        let reason = if pods.iter().any(|pod| is_dead(pod)) {
            "a host of the replica has ended"
        } else if pods.iter().any(|pod| chosen.contains(name(pod))) {
            "autoscaler scale-down request"
        } else if pods.len() < hosts || pods.iter().any(|pod| is_terminating(pod)) {
            "cleanup of incomplete multi-host group"
        } else {
            whole.push(pods);
            continue;
        };
        waits = true;
        remove_replica(facts, group, &pods, reason, plan);
    }
    let wanted = usize::try_from(group.desired_replicas()).unwrap_or(0);
    if whole.len() > wanted && !facts.spec.is_autoscaled() {
        whole.sort_by_key(|pods| {
            let runs = pods.iter().all(|pod| super::plan::phase(pod) == "Running");
            (!runs, pods.first().and_then(|pod| index(pod)))
        });
        for pods in whole.split_off(wanted) {
            remove_replica(facts, group, &pods, "scaling down", plan);
        }
    } else if whole.len() < wanted && waits {
        // The replacement can use the machines only when all hosts of the old replica are gone.
        plan.is_interim = true;
    } else if whole.len() < wanted {
        let taken = whole.iter().filter_map(|pods| index(pods.first()?)).collect();
        for replica in free_indexes(taken).take(wanted - whole.len()) {
            let words = [facts.uid, group.group_name.as_str(), &replica.to_string(), nonce];
            let replica_name = Some(format!("{}-{}", group.group_name, suffix(&words)));
            for host in 0..hosts {
                let place = Place { replica_name: replica_name.clone(), replica, host };
                plan.create.push(Creation { pod: pod::worker(facts, group, &place), node_type: NodeType::Worker });
            }
        }
    }
}

fn remove_replica(facts: &Facts<'_>, group: &WorkerGroupSpec, pods: &[&Arc<Pod>], reason: &str, plan: &mut Plan) {
    for pod in pods {
        remove(plan, pod, || {
            format!("Deleted worker Pod {}/{} for group {}: {reason}", facts.namespace, name(pod), group.group_name)
        });
    }
}
