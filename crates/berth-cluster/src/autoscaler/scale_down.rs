//! Which nodes are idle since when, and which of them go.
//!
//! A node goes in three steps, each written before the next: it is found unneeded (a soft taint with the time), it is
//! marked for removal (a hard taint) and drained, and then its pool wants one node less. The node pool controller
//! removes marked nodes first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::berth::{AutoscalingConfiguration, NodePool, NodePoolSpec};
use berth_runtime::ObjectKey;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::view::{View, is_complete};
use crate::pools::{REMOVAL_TAINT, request_of};
use crate::scheduling::{Cluster, NodeState, Packing, Placement, PodInfo, place};

/// Soft taint of nodes found unneeded; its value is since when, in Unix seconds.
pub const CANDIDATE_TAINT: &str = "DeletionCandidateOfClusterAutoscaler";
/// Non-empty nodes drained at once.
const DRAINED_AT_ONCE: usize = 1;

/// The plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScaleDown {
    /// Nodes found unneeded now.
    pub candidates: Vec<String>,
    /// Nodes that are needed again.
    pub needed_again: Vec<String>,
    /// Nodes to mark for removal.
    pub mark: Vec<String>,
    /// Pods to move away from marked nodes.
    pub evict: Vec<ObjectKey>,
    /// Pools that want fewer nodes, with their new spec.
    pub shrink: Vec<(String, NodePoolSpec)>,
    /// Pools made by auto-provisioning that are empty.
    pub delete_pools: Vec<String>,
    /// When something is due next.
    pub due: Option<Timestamp>,
}

/// Plans removal. `protected` are resize requests whose capacity is still booked, with the time it ends;
/// `last_growth` is when machines were last ordered.
pub fn plan_scale_down(
    view: &View,
    scaling: &AutoscalingConfiguration,
    protected: &BTreeMap<String, Timestamp>,
    last_growth: Option<Timestamp>,
    now: Timestamp,
) -> ScaleDown {
    let mut plan = ScaleDown::default();
    let mut due: Vec<Timestamp> = Vec::new();
    let span = |duration: std::time::Duration| SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
    let after = |time: Timestamp, by: SignedDuration| time.checked_add(by).unwrap_or(Timestamp::MAX);
    let may_remove_from = last_growth.map_or(Timestamp::MIN, |grown| after(grown, span(scaling.after_add())));
    let mut drains = DRAINED_AT_ONCE;
    let mut world = view.cluster().clone();
    for (name, pool) in &view.pools {
        if pool.spec.is_static {
            continue;
        }
        let none = Vec::new();
        let nodes = view.nodes.get(name).unwrap_or(&none);
        let creating = pool.status.as_ref().map_or(0, |status| status.creating.len());
        let mut removable = i64::from(pool.spec.nodes_wanted()) - i64::from(pool.spec.min_nodes);
        removable -= nodes.iter().filter(|node| taint_time(node, REMOVAL_TAINT).is_some()).count() as i64;
        let mut gone: Vec<&Arc<Node>> = Vec::new();
        for node in nodes {
            let node_name = node.name_any();
            let Some(state) = view.cluster().node(&node_name) else { continue };
            if let Some(marked) = taint_time(node, REMOVAL_TAINT) {
                let pods: Vec<&Arc<PodInfo>> = counted(state).collect();
                plan.evict.extend(pods.iter().filter(|pod| !pod.is_terminating()).map(|pod| pod.key.clone()));
                let goes = after(marked, span(scaling.node_removal_delay.0));
                if pods.is_empty() && goes <= now {
                    gone.push(node);
                } else if pods.is_empty() {
                    due.push(goes);
                }
                continue;
            }
            let booked = request_of(node).and_then(|request| protected.get(request)).filter(|until| **until > now);
            due.extend(booked);
            let is_unneeded = removable > 0
                && booked.is_none()
                // A node whose accelerators have not shown up is not idle, it is not there yet.
                && is_complete(pool, node)
                && node.annotations().get("cluster-autoscaler.kubernetes.io/scale-down-disabled").map(String::as_str) != Some("true")
                && can_go(state, pool, &world, scaling);
            let since = taint_time(node, CANDIDATE_TAINT);
            match (is_unneeded, since) {
                (false, None) => {}
                (false, Some(_)) => plan.needed_again.push(node_name),
                (true, since) => {
                    if since.is_none() {
                        plan.candidates.push(node_name.clone());
                    }
                    let goes = after(since.unwrap_or(now), span(scaling.unneeded())).max(may_remove_from);
                    let is_empty = counted(state).next().is_none();
                    if goes > now {
                        due.push(goes);
                    } else if since.is_some() && (is_empty || drains > 0) {
                        drains -= usize::from(!is_empty);
                        removable -= 1;
                        move_pods(state, &mut world);
                        world.remove_node(&node_name);
                        plan.mark.push(node_name);
                        due.push(after(now, span(scaling.node_removal_delay.0)));
                    }
                }
            }
        }
        // Only a pool that is where it wants to be says less: a decrease that is still being carried out counts once.
        let settled = nodes.len() + creating == usize::try_from(pool.spec.nodes_wanted()).unwrap_or(0);
        if settled && !gone.is_empty() {
            plan.shrink.push((name.clone(), without(pool, &gone)));
        }
        if pool.spec.autoprovisioned
            && pool.spec.min_nodes == 0
            && pool.spec.nodes_wanted() == 0
            && nodes.is_empty()
            && creating == 0
        {
            plan.delete_pools.push(name.clone());
        }
    }
    plan.due = due.into_iter().filter(|at| *at > now).min();
    plan
}

/// The spec without these nodes.
fn without(pool: &NodePool, gone: &[&Arc<Node>]) -> NodePoolSpec {
    let mut spec = pool.spec.clone();
    for node in gone {
        match request_of(node) {
            Some(request) => {
                if let Some(known) = spec.resize_requests.iter_mut().find(|known| known.name == request) {
                    known.nodes -= 1;
                }
            }
            None => spec.nodes = Some((spec.nodes.unwrap_or(spec.initial_nodes) - 1).max(0)),
        }
    }
    spec.resize_requests.retain(|request| request.nodes > 0);
    spec
}

/// Pods that keep a node: all that have not ended, except those every node runs.
fn counted(node: &NodeState) -> impl Iterator<Item = &Arc<PodInfo>> {
    node.pods.values().filter(|pod| !is_of_every_node(pod))
}

fn is_of_every_node(pod: &PodInfo) -> bool {
    let owned =
        pod.pod.owner_references().iter().any(|owner| owner.controller == Some(true) && owner.kind == "DaemonSet");
    owned || pod.annotation("kubernetes.io/config.mirror").is_some()
}

/// Is the node empty, or little used with pods that can all stand elsewhere?
fn can_go(node: &NodeState, pool: &NodePool, world: &Cluster, scaling: &AutoscalingConfiguration) -> bool {
    let holds: Vec<&Arc<PodInfo>> =
        counted(node).filter(|pod| pod.priority >= scaling.expendable_pods_priority_cutoff).collect();
    if holds.is_empty() {
        return true;
    }
    // Accelerator nodes are judged by their accelerators alone.
    let resources = match pool.spec.accelerator() {
        Some(accelerator) => vec![accelerator.resource_name().to_owned()],
        None => vec!["cpu".to_owned(), "memory".to_owned()],
    };
    let is_little_used = resources.iter().all(|resource| {
        let used = counted(node).map(|pod| pod.requests.get(resource)).sum::<i64>() as f64;
        used < scaling.utilization_threshold * node.allocatable.get(resource) as f64
    });
    if !is_little_used || holds.iter().any(|pod| stays(pod)) {
        return false;
    }
    let mut elsewhere = world.clone();
    move_pods(node, &mut elsewhere)
}

/// Pods that may not be moved: without a controller to make them again, or that say so.
fn stays(pod: &PodInfo) -> bool {
    let has_controller = pod.pod.owner_references().iter().any(|owner| owner.controller == Some(true));
    match pod.annotation("cluster-autoscaler.kubernetes.io/safe-to-evict") {
        Some("true") => false,
        Some("false") => true,
        _ => !has_controller || pod.consumed_request().is_some(),
    }
}

/// Moves a node's pods to other nodes of `world`; false when one finds no room.
fn move_pods(node: &NodeState, world: &mut Cluster) -> bool {
    let pods: Vec<Arc<PodInfo>> = counted(node).cloned().collect();
    world.remove_node(node.name());
    let marked: BTreeSet<&ObjectKey> = pods.iter().map(|pod| &pod.key).collect();
    for key in marked {
        world.remove_pod(key);
    }
    for pod in pods {
        match place(&pod, world, Packing::Pack) {
            Placement::Node(name) => world.place(pod, &name),
            Placement::Nowhere { .. } => return false,
        }
    }
    true
}

fn taint_time(node: &Node, key: &str) -> Option<Timestamp> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let taint = taints.into_iter().flatten().find(|taint| taint.key == key)?;
    let seconds = taint.value.as_deref().and_then(|value| value.parse().ok()).unwrap_or(0);
    Some(Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH))
}
