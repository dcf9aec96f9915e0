//! The domains of one flavor: its nodes grouped by the levels of its topology (§14.1).

use std::collections::BTreeMap;

use crate::ids::Name;
use crate::model::{Node, ResourceFlavor, ResourceList, Topology};

/// The label whose domains are single nodes.
pub(crate) const HOSTNAME: &str = "kubernetes.io/hostname";

/// Domains of a flavor, coarse to fine; every domain's index is above its parent's.
#[derive(Debug, Clone, Default)]
pub(crate) struct FlavorTree {
    pub topology: Name2,
    pub levels: Vec<Name>,
    pub domains: Vec<Domain>,
    /// Domains per level, in the order of their values.
    pub by_level: Vec<Vec<usize>>,
    /// The lowest level is the node itself.
    pub node_level: bool,
}

type Name2 = Option<Name>;

/// One domain.
#[derive(Debug, Clone)]
pub(crate) struct Domain {
    pub level: usize,
    /// One value per level down to this one.
    pub values: Vec<Name>,
    pub parent: Option<usize>,
    pub children: Vec<usize>,
    /// Of a leaf: what its nodes can allocate.
    pub capacity: ResourceList,
    /// Of a leaf: its nodes.
    pub nodes: Vec<Name>,
}

impl FlavorTree {
    /// Groups the nodes that serve a flavor.
    pub fn build(flavor: &ResourceFlavor, topology: &Topology, nodes: &BTreeMap<Name, Node>) -> FlavorTree {
        let levels = topology.levels.clone();
        let mut tree = FlavorTree {
            topology: Some(topology.name.clone()),
            node_level: levels.last().is_some_and(|level| &**level == HOSTNAME),
            by_level: vec![Vec::new(); levels.len()],
            levels,
            ..FlavorTree::default()
        };
        let mut leaves: BTreeMap<Vec<Name>, Vec<&Node>> = BTreeMap::new();
        for node in nodes.values() {
            let serves = node.ready
                && !node.unschedulable
                && flavor.node_labels.iter().all(|(key, value)| node.labels.get(key) == Some(value));
            let values: Option<Vec<Name>> = tree.levels.iter().map(|level| node.labels.get(level).cloned()).collect();
            if let (true, Some(values)) = (serves, values) {
                leaves.entry(values).or_default().push(node);
            }
        }
        // Level by level, so that parents come first and every level is in the order of its values.
        let mut ids: BTreeMap<Vec<Name>, usize> = BTreeMap::new();
        for level in 0..tree.levels.len() {
            for values in leaves.keys() {
                let values = values[..=level].to_vec();
                if ids.contains_key(&values) {
                    continue;
                }
                let id = tree.domains.len();
                let parent = ids.get(&values[..level]).copied().filter(|_| level > 0);
                if let Some(parent) = parent {
                    tree.domains[parent].children.push(id);
                }
                tree.by_level[level].push(id);
                tree.domains.push(Domain {
                    level,
                    values: values.clone(),
                    parent,
                    children: Vec::new(),
                    capacity: ResourceList::new(),
                    nodes: Vec::new(),
                });
                ids.insert(values, id);
            }
        }
        for (values, nodes) in leaves {
            let Some(&id) = ids.get(&values) else { continue };
            let leaf = &mut tree.domains[id];
            for node in nodes {
                leaf.nodes.push(node.name.clone());
                for (resource, amount) in &node.allocatable {
                    let sum = leaf.capacity.entry(resource.clone()).or_default();
                    *sum = sum.saturating_add(*amount);
                }
            }
        }
        tree
    }

    /// The lowest domains.
    pub fn leaves(&self) -> &[usize] {
        self.by_level.last().map_or(&[], Vec::as_slice)
    }

    /// How assignments name a leaf: by its host alone where leaves are nodes, else by all levels.
    pub fn leaf_values<'a>(&self, values: &'a [Name]) -> &'a [Name] {
        if self.node_level { &values[values.len().saturating_sub(1)..] } else { values }
    }

    /// The levels assignments carry.
    pub fn assigned_levels(&self) -> Vec<Name> {
        self.leaf_values(&self.levels).to_vec()
    }

    /// The leaf an assignment names, if it exists.
    pub fn leaf(&self, values: &[Name]) -> Option<usize> {
        let named = self.leaf_values(values);
        self.leaves().iter().copied().find(|id| self.leaf_values(&self.domains[*id].values) == named)
    }

    /// The index of a level.
    pub fn level(&self, label: &str) -> Option<usize> {
        self.levels.iter().position(|level| &**level == label)
    }

    /// The domain of a level that a domain lies in.
    pub fn ancestor(&self, mut domain: usize, level: usize) -> usize {
        while self.domains[domain].level > level {
            match self.domains[domain].parent {
                Some(parent) => domain = parent,
                None => break,
            }
        }
        domain
    }
}
