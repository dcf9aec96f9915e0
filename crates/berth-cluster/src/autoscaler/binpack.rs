//! Bin packing: how many new nodes of one kind some pods need. First fit, in the order given.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::placement::{Cluster, NodeState, Packing, Placement, PodInfo, Resources, fits, place};

/// New nodes and the pods on them.
#[derive(Default)]
pub struct Packed {
    /// The new nodes, with their pods.
    pub nodes: Vec<NodeState>,
    /// Positions, in the given list, of the pods that fit.
    pub placed: Vec<usize>,
}

/// Packs pods on at most `limit` new nodes. `make` returns the node with a given index, with its
/// daemon pods. Pods with constraints that depend on other pods are placed in the whole cluster
/// plus the new nodes.
pub fn pack(pods: &[Arc<PodInfo>], cluster: &Cluster, limit: usize, make: impl Fn(usize) -> NodeState) -> Packed {
    let mut packed = Packed::default();
    let mut cluster_with_new: Option<Cluster> = None;
    // Per scheduling class and devices, the first node to try: equal pods do not fit on the nodes
    // before it.
    let mut cursors: BTreeMap<(Arc<str>, Option<String>), usize> = BTreeMap::new();
    let empty = make(0);
    for (position, pod) in pods.iter().enumerate() {
        if pod.depends_on_pods() {
            let cluster_with_new = cluster_with_new.get_or_insert_with(|| {
                let mut cluster_with_new = cluster.clone();
                for node in &packed.nodes {
                    cluster_with_new.add_node(node);
                }
                cluster_with_new
            });
            let mut found = matching_new_node(pod, cluster_with_new, &packed);
            if found.is_none() && packed.nodes.len() < limit {
                let node = make(packed.nodes.len());
                cluster_with_new.add_node(&node);
                let alone = Packed { nodes: vec![node.clone()], placed: Vec::new() };
                found = matching_new_node(pod, cluster_with_new, &alone).map(|_| packed.nodes.len());
                match found {
                    Some(_) => packed.nodes.push(node),
                    None => cluster_with_new.drop_node(&node),
                }
            }
            if let Some(at) = found {
                cluster_with_new.place(pod.clone(), packed.nodes[at].name());
                packed.nodes[at].add(pod.clone());
                packed.placed.push(position);
            }
            continue;
        }
        let asked = pod.devices().map(|needs| needs.asked());
        let mut alone = 0;
        let cursor = match asked {
            // A pod with devices has no equal.
            Some(None) => &mut alone,
            Some(asked) => cursors.entry((pod.class().clone(), asked)).or_insert(0),
            None => cursors.entry((pod.class().clone(), None)).or_insert(0),
        };
        while *cursor < packed.nodes.len() && fits(pod, &packed.nodes[*cursor], &Resources::default()).is_err() {
            *cursor += 1;
        }
        if *cursor == packed.nodes.len() {
            if packed.nodes.len() >= limit || fits(pod, &empty, &Resources::default()).is_err() {
                continue;
            }
            let node = make(packed.nodes.len());
            if let Some(cluster_with_new) = &mut cluster_with_new {
                cluster_with_new.add_node(&node);
            }
            packed.nodes.push(node);
        }
        if let Some(cluster_with_new) = &mut cluster_with_new {
            cluster_with_new.place(pod.clone(), packed.nodes[*cursor].name());
        }
        packed.nodes[*cursor].add(pod.clone());
        packed.placed.push(position);
    }
    packed
}

/// Position of the new node on which the scheduler would place the pod; `None` if it would choose
/// an existing node, or none fits.
fn matching_new_node(pod: &PodInfo, cluster_with_new: &Cluster, packed: &Packed) -> Option<usize> {
    match place(pod, cluster_with_new, Packing::Pack) {
        Placement::Node(name) => packed.nodes.iter().position(|node| node.name() == name),
        Placement::Nowhere { .. } => None,
    }
}
