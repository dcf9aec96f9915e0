//! Plans one step of a DaemonSet: from the set, the nodes, its pods and the time, the pods to
//! create and to delete, and the status. Pure.
//!
//! Source: Kubernetes documentation, "DaemonSet" and "Perform a Rolling Update on a DaemonSet", and
//! the behaviour of kube-controller-manager 1.35.

use berth_api::pod::node_of;
use berth_runtime::PlannedEvent;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetStatus};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;

use super::super::{ready_since, time_until_available};
use super::pod::{Eligibility, HASH, eligibility, sample, target_node};
use super::rollout;
use crate::job::facts::{is_deleted, is_terminated, phase};

/// Maximum number of pods created or deleted in one step.
const BURST: usize = 250;
/// Time for which the second failed pod of a node is kept; the first one is deleted at once. The
/// time doubles with each further failure on the same node.
const BACKOFF_FIRST: SignedDuration = SignedDuration::from_secs(1);
/// Maximum of that time.
const BACKOFF_MAX: SignedDuration = SignedDuration::from_mins(15);

/// The next writes for a DaemonSet.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Nodes to create a pod for.
    pub create: Vec<String>,
    /// Pods to delete.
    pub delete: Vec<Arc<Pod>>,
    /// The new status.
    pub status: DaemonSetStatus,
    /// Events to record.
    pub events: Vec<PlannedEvent>,
    /// Back-off of nodes on which pods failed, after this step.
    pub backoff: BTreeMap<String, Backoff>,
    /// Time after which to reconcile again even if no object changes.
    pub requeue_after: Option<Duration>,
}

impl Plan {
    fn requeue(&mut self, after: Duration) {
        self.requeue_after = Some(self.requeue_after.map_or(after, |known| known.min(after)));
    }
}

/// Back-off of a node on which a pod failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// When the last failed pod was deleted.
    pub since: Timestamp,
    /// Time for which the next failed pod is kept.
    pub delay: SignedDuration,
}

/// A DaemonSet and the state of the cluster.
pub(super) struct Snapshot<'a> {
    pub(super) set: &'a DaemonSet,
    /// Hash of the current template.
    pub(super) hash: &'a str,
    /// Eligibility of each node, by name.
    pub(super) nodes: BTreeMap<String, Eligibility>,
    /// Pods of each node, the bound ones first, then the oldest.
    pub(super) pods: BTreeMap<String, Vec<Arc<Pod>>>,
    pub(super) now: Timestamp,
}

impl Snapshot<'_> {
    pub(super) fn pods_on(&self, node: &str) -> &[Arc<Pod>] {
        self.pods.get(node).map(Vec::as_slice).unwrap_or_default()
    }

    /// True if the pod has the current template.
    pub(super) fn is_updated(&self, pod: &Pod) -> bool {
        pod.labels().get(HASH).is_some_and(|hash| hash == self.hash)
    }

    /// Time until the pod is available; `None` if it is not ready.
    fn time_until_available(&self, pod: &Pod) -> Option<Duration> {
        let min_ready = self.set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0);
        Some(time_until_available(ready_since(pod)?, min_ready, self.now))
    }

    pub(super) fn is_available(&self, pod: &Pod) -> bool {
        self.time_until_available(pod).is_some_and(|wait| wait.is_zero())
    }
}

/// Plans the next writes. `pods` are the pods that the set controls; `backoff` is the back-off of
/// the previous step.
pub fn plan(
    set: &DaemonSet,
    hash: &str,
    nodes: &[Arc<Node>],
    pods: &[Arc<Pod>],
    backoff: &BTreeMap<String, Backoff>,
    now: Timestamp,
) -> Plan {
    let sample = sample(set);
    let mut by_node: BTreeMap<String, Vec<Arc<Pod>>> = BTreeMap::new();
    for pod in pods {
        if let Some(node) = target_node(pod) {
            by_node.entry(node.to_owned()).or_default().push(pod.clone());
        }
    }
    by_node.values_mut().for_each(|pods| pods.sort_by_key(|pod| rank(pod)));
    let nodes = nodes.iter().map(|node| (node.name_any(), eligibility(&sample, node))).collect();
    let snapshot = Snapshot { set, hash, nodes, pods: by_node, now };
    let mut plan = Plan { status: status(&snapshot), ..Plan::default() };
    // The back-off of a node ends when the node is deleted, or some time after the last failure.
    plan.backoff = backoff.clone();
    plan.backoff.retain(|node, known| {
        snapshot.nodes.contains_key(node) && now.duration_since(known.since) < BACKOFF_MAX.saturating_mul(2)
    });
    if set.metadata.deletion_timestamp.is_none() {
        place(&snapshot, &mut plan);
        // A rollout replaces pods only when no other pods must be created or deleted.
        if plan.create.is_empty() && plan.delete.is_empty() {
            rollout::Rollout { delete: plan.delete, create: plan.create } = rollout::plan(&snapshot);
        }
        plan.create.truncate(BURST);
        plan.delete.truncate(BURST);
    }
    let waits = pods.iter().filter_map(|pod| snapshot.time_until_available(pod));
    if let Some(wait) = waits.filter(|wait| !wait.is_zero()).min() {
        plan.requeue(wait);
    }
    plan
}

/// Sort key of a node's pods: bound ones first, then by age.
fn rank(pod: &Pod) -> (bool, Option<Timestamp>, String) {
    let bound = node_of(pod).is_some();
    (!bound, pod.metadata.creation_timestamp.as_ref().map(|time| time.0), pod.name_any())
}

/// Plans one pod for each node that needs one, and the removal of all others.
fn place(snapshot: &Snapshot<'_>, plan: &mut Plan) {
    for (node, eligible) in &snapshot.nodes {
        let pods = snapshot.pods_on(node);
        if eligible.should_run && pods.is_empty() {
            plan.create.push(node.clone());
        } else if eligible.may_stay {
            let running = remove_ended(snapshot, node, pods, plan);
            keep_one(snapshot, node, *eligible, &running, plan);
        } else {
            plan.delete.extend(pods.iter().filter(|pod| !is_deleted(pod)).cloned());
        }
    }
    // Pods that wait for a node that no longer exists. The pod garbage collector deletes pods that
    // were bound to it.
    for (node, pods) in &snapshot.pods {
        if !snapshot.nodes.contains_key(node) {
            let waiting = pods.iter().filter(|pod| !is_deleted(pod) && rank(pod).0);
            plan.delete.extend(waiting.cloned());
        }
    }
}

/// Plans the deletion of pods that have ended, failed ones after a back-off. Returns the others.
fn remove_ended(snapshot: &Snapshot<'_>, node: &str, pods: &[Arc<Pod>], plan: &mut Plan) -> Vec<Arc<Pod>> {
    let mut running = Vec::new();
    for pod in pods.iter().filter(|pod| !is_deleted(pod)) {
        let (state, warning, reason, verb) = match phase(pod) {
            "Failed" => ("failed", true, "FailedDaemonPod", "kill"),
            "Succeeded" => ("succeeded", false, "SucceededDaemonPod", "delete"),
            _ => {
                running.push(pod.clone());
                continue;
            }
        };
        if warning && let Some(wait) = back_off(node, snapshot.now, plan) {
            plan.requeue(wait);
            continue;
        }
        let name = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
        let message = format!("Found {state} daemon pod {name} on node {node}, will try to {verb} it");
        plan.events.push(PlannedEvent::with_warning(warning, reason, message));
        plan.delete.push(pod.clone());
    }
    running
}

/// The time for which a failed pod of a node is kept; `None` if it is deleted now, which begins a
/// longer back-off.
fn back_off(node: &str, now: Timestamp, plan: &mut Plan) -> Option<Duration> {
    let known = plan.backoff.get(node).copied();
    let left = known.map(|it| it.delay - now.duration_since(it.since)).filter(|left| left.is_positive());
    if let Some(left) = left {
        return Duration::try_from(left).ok();
    }
    let delay = known.map_or(BACKOFF_FIRST, |it| it.delay.saturating_mul(2).min(BACKOFF_MAX));
    plan.backoff.insert(node.to_owned(), Backoff { since: now, delay });
    None
}

/// Plans the deletion of a node's surplus pods. During a rollout with a surge, a node has an old
/// pod and a new one until the new one is available.
fn keep_one(snapshot: &Snapshot<'_>, node: &str, eligible: Eligibility, running: &[Arc<Pod>], plan: &mut Plan) {
    if !rollout::surges(snapshot.set) {
        plan.delete.extend(running.iter().skip(1).cloned());
        return;
    }
    // A failed pod that is kept during the back-off prevents a new pod on its node.
    if eligible.should_run && snapshot.pods_on(node).iter().all(|pod| is_deleted(pod)) {
        plan.create.push(node.to_owned());
    }
    if running.len() <= 1 {
        return;
    }
    let (new, old): (Vec<_>, Vec<_>) = running.iter().partition(|pod| snapshot.is_updated(pod));
    plan.delete.extend(new.iter().skip(1).chain(old.iter().skip(1)).map(|pod| (*pod).clone()));
    if let (Some(new), Some(old)) = (new.first(), old.first())
        && (ready_since(old).is_none() || snapshot.is_available(new))
    {
        plan.delete.push((*old).clone());
    }
}

fn status(snapshot: &Snapshot<'_>) -> DaemonSetStatus {
    let known = snapshot.set.status.clone().unwrap_or_default();
    let (mut desired, mut current, mut misscheduled, mut ready, mut available, mut updated) = (0, 0, 0, 0, 0, 0);
    for (node, eligible) in &snapshot.nodes {
        let first = snapshot.pods_on(node).iter().find(|pod| !(is_deleted(pod) && is_terminated(pod)));
        if !eligible.should_run {
            misscheduled += i32::from(first.is_some());
            continue;
        }
        desired += 1;
        let Some(pod) = first else { continue };
        current += 1;
        ready += i32::from(ready_since(pod).is_some());
        available += i32::from(snapshot.is_available(pod));
        updated += i32::from(snapshot.is_updated(pod));
    }
    let count = |count: i32| (count > 0).then_some(count);
    DaemonSetStatus {
        current_number_scheduled: current,
        desired_number_scheduled: desired,
        number_misscheduled: misscheduled,
        number_ready: ready,
        number_available: count(available),
        number_unavailable: count(desired - available),
        updated_number_scheduled: count(updated),
        observed_generation: snapshot.set.metadata.generation,
        collision_count: known.collision_count,
        conditions: known.conditions,
    }
}
