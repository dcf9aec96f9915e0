//! Plans scale-down: since when nodes are unneeded, and which of them are removed.
//!
//! A node is removed in three steps, each written before the next. First it gets a soft taint with
//! the time when it became unneeded. Then it gets a hard taint (marked for removal) and is drained.
//! The hard taint is taken back if pods that cannot move were bound to the node in the meantime.
//! Last, its pool's node count is reduced; the node pool controller removes marked nodes first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::berth::{AutoscalingConfiguration, NodePool, NodePoolSpec, SCALED_UP_AT_ANNOTATION};
use berth_runtime::{ObjectKey, later};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::view::{View, is_complete, is_node_bound};
use crate::placement::{Cluster, NodeState, Packing, Placement, PodInfo, place};
use crate::pools::{REMOVAL_TAINT, annotated_time, request_of};

/// Soft taint of unneeded nodes. Its value is the time since which the node is unneeded, in Unix
/// seconds.
pub const CANDIDATE_TAINT: &str = "DeletionCandidateOfClusterAutoscaler";
/// Maximum number of non-empty nodes to mark in one scan.
const DRAINED_AT_ONCE: usize = 1;

/// The planned scale-down.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScaleDown {
    /// Nodes that became unneeded.
    pub candidates: Vec<String>,
    /// Nodes that are needed again: they lose the taints of the autoscaler.
    pub needed: Vec<String>,
    /// Nodes to mark for removal.
    pub mark: Vec<String>,
    /// Pods to evict from marked nodes.
    pub evict: Vec<ObjectKey>,
    /// Pools to shrink, with their new spec.
    pub shrink: Vec<(String, NodePoolSpec)>,
    /// Empty pools of node auto-provisioning, to be deleted.
    pub delete_pools: Vec<String>,
    /// When the next scan is needed, even if no object changes.
    pub due: Option<Timestamp>,
}

/// Plans the removal of nodes. `protected` has the resize requests whose nodes are reserved, with
/// the end of the reservation.
pub fn plan_scale_down(
    view: &View,
    scaling: &AutoscalingConfiguration,
    protected: &BTreeMap<String, Timestamp>,
    now: Timestamp,
) -> ScaleDown {
    let last_growth =
        view.pools.values().filter_map(|pool| annotated_time(pool.as_ref(), SCALED_UP_AT_ANNOTATION)).max();
    let mut scan = Scan {
        view,
        scaling,
        protected,
        now,
        may_remove_from: last_growth.map_or(Timestamp::MIN, |grown| later(grown, scaling.after_add())),
        drains: DRAINED_AT_ONCE,
        remaining_cluster: view.cluster().clone(),
        plan: ScaleDown::default(),
        due: Vec::new(),
    };
    let pools = view.pools.iter().filter(|(_, pool)| !pool.spec.is_fixed());
    // The pods of marked nodes go to other nodes, which are then needed: an empty one as well.
    let drained: Vec<_> = pools
        .map(|(name, pool)| {
            let nodes = scan.nodes(name);
            let is_busy_slice = scan.is_busy_slice(nodes, pool);
            (name, pool, is_busy_slice, scan.drain_marked(nodes, pool, is_busy_slice))
        })
        .collect();
    for (name, pool, is_busy_slice, removed) in drained {
        scan.pool(name, pool, is_busy_slice, &removed);
    }
    let due = scan.due.into_iter().filter(|at| *at > now).min();
    ScaleDown { due, ..scan.plan }
}

/// A scan of all pools.
struct Scan<'a> {
    view: &'a View,
    scaling: &'a AutoscalingConfiguration,
    protected: &'a BTreeMap<String, Timestamp>,
    now: Timestamp,
    /// Nodes are not removed before this time, because the cluster has just grown.
    may_remove_from: Timestamp,
    /// Number of further nodes with pods that may be marked.
    drains: usize,
    /// The cluster without the nodes to remove.
    remaining_cluster: Cluster,
    plan: ScaleDown,
    due: Vec<Timestamp>,
}

impl<'a> Scan<'a> {
    /// The nodes of a pool.
    fn nodes(&self, pool: &str) -> &'a [Arc<Node>] {
        self.view.nodes.get(pool).map(Vec::as_slice).unwrap_or_default()
    }

    /// True if pods run on a TPU slice, whose machines are only removed together.
    fn is_busy_slice(&self, nodes: &[Arc<Node>], pool: &NodePool) -> bool {
        pool.spec.is_slice()
            && nodes
                .iter()
                .filter_map(|node| self.view.cluster().node(&node.name_any()))
                .any(|state| counted(state).any(|pod| pod.priority >= self.scaling.expendable_pods_priority_cutoff))
    }

    /// Drains the marked nodes of a pool. Returns those to remove now.
    fn drain_marked(&mut self, nodes: &'a [Arc<Node>], pool: &NodePool, is_busy_slice: bool) -> Vec<&'a Arc<Node>> {
        let mut removed = Vec::new();
        for node in nodes {
            if let (Some(marked), Some(state)) =
                (taint_time(node, REMOVAL_TAINT), self.view.cluster().node(&node.name_any()))
                && self.drain(state, pool, is_busy_slice, marked)
            {
                removed.push(node);
            }
        }
        removed
    }

    /// Observes the other nodes of a pool, and shrinks it by these nodes.
    fn pool(&mut self, name: &str, pool: &NodePool, is_busy_slice: bool, removed_nodes: &[&Arc<Node>]) {
        let nodes = self.nodes(name);
        let creating = pool.status.as_ref().map_or(0, |status| status.creating.len());
        let mut removable = i64::from(pool.spec.nodes_wanted()) - i64::from(pool.spec.min_nodes);
        removable -= nodes.iter().filter(|node| taint_time(node, REMOVAL_TAINT).is_some()).count() as i64;
        for node in nodes.iter().filter(|node| taint_time(node, REMOVAL_TAINT).is_none()) {
            // With the pods that will come from nodes to remove.
            let Some(state) = self.remaining_cluster.node(&node.name_any()).cloned() else { continue };
            self.observe(node, &state, pool, is_busy_slice, &mut removable);
        }
        // A pool shrinks only from its desired size, so that a decrease in progress is not planned
        // a second time.
        let settled = nodes.len() + creating == usize::try_from(pool.spec.nodes_wanted()).unwrap_or(0);
        let is_whole = !pool.spec.is_slice() || removed_nodes.len() == nodes.len();
        if settled && is_whole && !removed_nodes.is_empty() {
            self.plan.shrink.push((name.to_owned(), spec_without(pool, removed_nodes)));
        }
        if pool.spec.autoprovisioned
            && pool.spec.min_nodes == 0
            && pool.spec.nodes_wanted() == 0
            && nodes.is_empty()
            && creating == 0
        {
            self.plan.delete_pools.push(name.to_owned());
        }
    }

    /// A marked node: drains it. Returns true once it is empty and its delay has elapsed.
    fn drain(&mut self, state: &NodeState, pool: &NodePool, is_busy_slice: bool, marked: Timestamp) -> bool {
        let pods: Vec<&Arc<PodInfo>> = counted(state).collect();
        // The scheduler may have bound pods before it saw the taint. If these would have prevented
        // the removal, the node is kept.
        let is_drained = pods.iter().all(|pod| pod.is_terminating());
        if is_busy_slice || !is_drained && !is_removable(state, pool, &self.remaining_cluster, self.scaling) {
            self.plan.needed.push(state.name().to_owned());
            return false;
        }
        move_pods(state, &mut self.remaining_cluster);
        self.plan.evict.extend(pods.iter().filter(|pod| !pod.is_terminating()).map(|pod| pod.key.clone()));
        let removal_time = later(marked, self.scaling.node_removal_delay.0);
        if pods.is_empty() && removal_time > self.now {
            self.due.push(removal_time);
        }
        pods.is_empty() && removal_time <= self.now
    }

    /// Any other node: updates its candidate taint, and marks it after the unneeded time.
    fn observe(&mut self, node: &Node, state: &NodeState, pool: &NodePool, is_busy_slice: bool, removable: &mut i64) {
        let node_name = state.name().to_owned();
        let now = self.now;
        let booked = request_of(node).and_then(|request| self.protected.get(request)).filter(|until| **until > now);
        self.due.extend(booked);
        let is_unneeded = *removable > 0
            && !is_busy_slice
            && booked.is_none()
            // A node without its accelerators is not idle: it is still starting.
            && is_complete(pool, node)
            && node.annotations().get("cluster-autoscaler.kubernetes.io/scale-down-disabled").map(String::as_str) != Some("true")
            && is_removable(state, pool, &self.remaining_cluster, self.scaling);
        let since = taint_time(node, CANDIDATE_TAINT);
        if !is_unneeded {
            self.plan.needed.extend(since.map(|_| node_name));
            return;
        }
        if since.is_none() {
            self.plan.candidates.push(node_name.clone());
        }
        let removal_time = later(since.unwrap_or(now), self.scaling.unneeded()).max(self.may_remove_from);
        let is_empty = counted(state).next().is_none();
        if removal_time > now {
            self.due.push(removal_time);
        } else if since.is_some() && (is_empty || self.drains > 0) {
            self.drains -= usize::from(!is_empty);
            *removable -= 1;
            move_pods(state, &mut self.remaining_cluster);
            self.remaining_cluster.remove_node(&node_name);
            self.plan.mark.push(node_name);
            self.due.push(later(now, self.scaling.node_removal_delay.0));
        }
    }
}

/// The pool's spec, reduced by these nodes.
fn spec_without(pool: &NodePool, removed_nodes: &[&Arc<Node>]) -> NodePoolSpec {
    let mut spec = pool.spec.clone();
    for node in removed_nodes {
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

/// The node's pods other than DaemonSet and mirror pods.
fn counted(node: &NodeState) -> impl Iterator<Item = &Arc<PodInfo>> {
    node.pods.values().filter(|pod| !is_node_bound(pod))
}

/// True if the node is empty, or its utilization is low and all its pods fit on other nodes.
fn is_removable(
    node: &NodeState,
    pool: &NodePool,
    remaining_cluster: &Cluster,
    scaling: &AutoscalingConfiguration,
) -> bool {
    let holds: Vec<&Arc<PodInfo>> =
        counted(node).filter(|pod| pod.priority >= scaling.expendable_pods_priority_cutoff).collect();
    if holds.is_empty() {
        return true;
    }
    // If a node has accelerators, only these count for its utilization.
    let resources = match pool.spec.accelerator() {
        Some(accelerator) => vec![accelerator.resource_name().to_owned()],
        None => vec!["cpu".to_owned(), "memory".to_owned()],
    };
    let is_little_used = resources.iter().all(|resource| {
        let used = counted(node).map(|pod| pod.requests.get(resource)).sum::<i64>() as f64;
        used < scaling.utilization_threshold * node.allocatable.get(resource) as f64
    });
    if !is_little_used || holds.iter().any(|pod| must_stay(pod)) {
        return false;
    }
    let mut elsewhere = remaining_cluster.clone();
    move_pods(node, &mut elsewhere)
}

/// True if the pod must not be evicted: an annotation forbids it, no controller would recreate the
/// pod, or it runs on capacity of a ProvisioningRequest.
fn must_stay(pod: &PodInfo) -> bool {
    let has_controller = pod.pod.owner_references().iter().any(|owner| owner.controller == Some(true));
    match pod.annotation("cluster-autoscaler.kubernetes.io/safe-to-evict") {
        Some("true") => false,
        Some("false") => true,
        _ => !has_controller || pod.consumed_request().is_some(),
    }
}

/// Moves a node's pods to other nodes of `world`. Returns false if one does not fit.
fn move_pods(node: &NodeState, remaining_cluster: &mut Cluster) -> bool {
    let pods: Vec<Arc<PodInfo>> = counted(node).cloned().collect();
    remaining_cluster.remove_node(node.name());
    let marked: BTreeSet<&ObjectKey> = pods.iter().map(|pod| &pod.key).collect();
    for key in marked {
        remaining_cluster.remove_pod(key);
    }
    for pod in pods {
        match place(&pod, remaining_cluster, Packing::Pack) {
            Placement::Node(name) => remaining_cluster.place(pod, &name),
            Placement::Nowhere { .. } => return false,
        }
    }
    true
}

/// The time in the value of a taint; `None` if the node does not have the taint.
fn taint_time(node: &Node, key: &str) -> Option<Timestamp> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let taint = taints.into_iter().flatten().find(|taint| taint.key == key)?;
    let seconds = taint.value.as_deref().and_then(|value| value.parse().ok()).unwrap_or(0);
    Some(Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH))
}
