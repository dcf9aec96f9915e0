//! How many new nodes of one kind pods need: first fit, in the order given.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use crate::scheduling::{Cluster, NodeState, Packing, Placement, PodInfo, Resources, fits, place};

/// New nodes and the pods on them.
#[derive(Default)]
pub struct Packed {
    /// The nodes, with their pods.
    pub nodes: Vec<NodeState>,
    /// The pods that found room, by position in the list given.
    pub placed: Vec<usize>,
}

/// Packs pods on at most `limit` new nodes made by `make` (given a number). Pods whose place depends on other pods are
/// tried against the whole cluster with the new nodes in it.
pub fn pack(pods: &[Arc<PodInfo>], cluster: &Cluster, limit: usize, make: impl Fn(usize) -> Node) -> Packed {
    let mut packed = Packed::default();
    let mut world: Option<Cluster> = None;
    // Pods of one class fill nodes from left to right: where the last one did not fit, none after it does.
    let mut cursors: BTreeMap<Arc<str>, usize> = BTreeMap::new();
    let empty = NodeState::new(Arc::new(make(0)));
    for (position, pod) in pods.iter().enumerate() {
        if pod.depends_on_pods() {
            let world = world.get_or_insert_with(|| {
                let mut world = cluster.clone();
                for node in &packed.nodes {
                    world.set_node(node.node.clone());
                    for pod in node.pods.values() {
                        world.place(pod.clone(), node.name());
                    }
                }
                world
            });
            let mut found = matching_new_node(pod, world, &packed);
            if found.is_none() && packed.nodes.len() < limit {
                let node = Arc::new(make(packed.nodes.len()));
                world.set_node(node.clone());
                found = matching_new_node(
                    pod,
                    world,
                    &Packed { nodes: vec![NodeState::new(node.clone())], placed: Vec::new() },
                )
                .map(|_| packed.nodes.len());
                match found {
                    Some(_) => packed.nodes.push(NodeState::new(node)),
                    None => world.remove_node(&node.name_any()),
                }
            }
            if let Some(at) = found {
                world.place(pod.clone(), packed.nodes[at].name());
                packed.nodes[at].add(pod.clone());
                packed.placed.push(position);
            }
            continue;
        }
        let cursor = cursors.entry(pod.class().clone()).or_insert(0);
        while *cursor < packed.nodes.len() && fits(pod, &packed.nodes[*cursor], &Resources::default()).is_err() {
            *cursor += 1;
        }
        if *cursor == packed.nodes.len() {
            if packed.nodes.len() >= limit || fits(pod, &empty, &Resources::default()).is_err() {
                continue;
            }
            let node = Arc::new(make(packed.nodes.len()));
            if let Some(world) = &mut world {
                world.set_node(node.clone());
            }
            packed.nodes.push(NodeState::new(node));
        }
        if let Some(world) = &mut world {
            world.place(pod.clone(), packed.nodes[*cursor].name());
        }
        packed.nodes[*cursor].add(pod.clone());
        packed.placed.push(position);
    }
    packed
}

/// The new node the pod would go to, if the best node for it is a new one (or only new ones fit).
fn matching_new_node(pod: &PodInfo, world: &Cluster, packed: &Packed) -> Option<usize> {
    match place(pod, world, Packing::Pack) {
        Placement::Node(name) => packed.nodes.iter().position(|node| node.name() == name),
        Placement::Nowhere { .. } => None,
    }
}
