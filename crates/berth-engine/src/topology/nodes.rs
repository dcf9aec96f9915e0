//! Nodes, and the pods outside topology-aware scheduling that use their capacity.

use std::collections::{BTreeMap, HashMap};

use super::amounts::{Columns, Grid, add};
use crate::ids::Name;
use crate::model::{Node, NodePod};

/// Number of a node name. The node may be deleted, or not known yet.
pub(crate) type NodeIx = usize;

/// All nodes.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    ids: HashMap<Name, NodeIx>,
    slots: Vec<Option<Node>>,
    allocatable: Grid,
    /// Usage by pods outside topology-aware scheduling.
    used: Grid,
    pods: BTreeMap<(Name, Name), (NodeIx, Vec<(usize, i64)>)>,
}

impl Nodes {
    pub fn widen(&mut self, width: usize) {
        self.allocatable.widen(width);
        self.used.widen(width);
    }

    /// The number of a node name. A new name gets a new number.
    fn intern(&mut self, name: &Name) -> NodeIx {
        if let Some(&at) = self.ids.get(name) {
            return at;
        }
        let at = self.slots.len();
        self.slots.push(None);
        self.allocatable.push();
        self.used.push();
        self.ids.insert(name.clone(), at);
        at
    }

    pub fn by_name(&self, name: &Name) -> Option<&Node> {
        self.slots[*self.ids.get(name)?].as_ref()
    }

    pub fn get(&self, at: NodeIx) -> Option<&Node> {
        self.slots[at].as_ref()
    }

    /// Nodes that exist.
    pub fn iter(&self) -> impl Iterator<Item = (NodeIx, &Node)> {
        self.slots.iter().enumerate().filter_map(|(at, node)| Some((at, node.as_ref()?)))
    }

    /// Sets a node's newest state. Returns its number and its previous state.
    pub fn upsert(&mut self, node: Node, columns: &mut Columns) -> (NodeIx, Option<Node>) {
        let cells = columns.cells(&node.allocatable);
        self.widen(columns.width());
        let at = self.intern(&node.name);
        let row = self.allocatable.row_mut(at);
        row.fill(0);
        add(row, &cells, 1);
        (at, self.slots[at].replace(node))
    }

    pub fn remove(&mut self, name: &Name) -> Option<(NodeIx, Node)> {
        let at = *self.ids.get(name)?;
        Some((at, self.slots[at].take()?))
    }

    /// True if a pod is already stored in this state. Most updates of a pod do not change a node's
    /// free capacity.
    pub fn has_pod(&self, pod: &NodePod, columns: &mut Columns) -> bool {
        let known = self.pods.get(&(pod.namespace.clone(), pod.name.clone()));
        known.is_some_and(|(at, cells)| {
            self.ids.get(&pod.node) == Some(at) && *cells == *columns.demand(&pod.requests).cells
        })
    }

    /// Adds a pod; returns the node whose free capacity it changes.
    pub fn upsert_pod(&mut self, pod: NodePod, columns: &mut Columns) -> NodeIx {
        let demand = columns.demand(&pod.requests);
        self.widen(columns.width());
        let at = self.intern(&pod.node);
        add(self.used.row_mut(at), &demand.cells, 1);
        self.pods.insert((pod.namespace, pod.name), (at, demand.cells.to_vec()));
        at
    }

    /// Removes a pod; returns the node it was on.
    pub fn remove_pod(&mut self, namespace: &Name, name: &Name) -> Option<NodeIx> {
        let (at, cells) = self.pods.remove(&(namespace.clone(), name.clone()))?;
        add(self.used.row_mut(at), &cells, -1);
        Some(at)
    }

    /// Adds the capacity that a node has for workloads under topology-aware scheduling.
    pub fn add_free(&self, at: NodeIx, free: &mut [i64]) {
        let (allocatable, used) = (self.allocatable.row(at), self.used.row(at));
        for ((free, allocatable), used) in free.iter_mut().zip(allocatable).zip(used) {
            *free = free.saturating_add(*allocatable).saturating_sub(*used);
        }
    }
}
