//! Topology-aware scheduling: nodes, the domains they form, and which pods sit where (§14).
//!
//! [`tree`] groups a flavor's nodes into domains, [`placement`] finds domains for pods, [`request`] turns pod sets of an
//! assignment into placements and back. Usage per domain is kept up to date with what workloads hold; trying things
//! goes through marks, as in the quota tree.

pub(crate) mod count;
pub(crate) mod placement;
pub(crate) mod replace;
pub(crate) mod request;
pub(crate) mod tree;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::ids::{FlavorId, Name};
use crate::model::{Node, NodePod, ResourceFlavor, ResourceList, Topology, TopologyAssignment};

use tree::FlavorTree;

/// The resource every pod takes one of.
pub(crate) const PODS: &str = "pods";

/// Pods in topology domains.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Places {
    pub list: Vec<PlacedPods>,
}

/// Pods of one kind in one domain.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PlacedPods {
    pub flavor: FlavorId,
    pub values: Vec<Name>,
    /// What one pod uses, without the implied one of `pods`.
    pub per_pod: ResourceList,
    pub count: i64,
}

impl Places {
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Adds every domain of an assignment.
    pub fn add(&mut self, flavor: FlavorId, topology: &TopologyAssignment, per_pod: &ResourceList) {
        for domain in &topology.domains {
            self.list.push(PlacedPods {
                flavor,
                values: domain.values.clone(),
                per_pod: per_pod.clone(),
                count: i64::from(domain.count),
            });
        }
    }

    /// What is here beyond what is there (§5.8).
    #[must_use]
    pub fn without(&self, held: &Places) -> Places {
        let mut left = self.clone();
        let mut held = held.clone();
        for place in &mut left.list {
            for other in &mut held.list {
                if other.flavor == place.flavor && other.values == place.values && other.per_pod == place.per_pod {
                    let both = place.count.min(other.count);
                    place.count -= both;
                    other.count -= both;
                }
            }
        }
        left.list.retain(|place| place.count > 0);
        left
    }
}

/// Usage of one domain: of one flavor, or of all flavors together where domains are nodes.
type UsageKey = (Option<FlavorId>, Vec<Name>);

/// Nodes, topologies and usage per domain.
#[derive(Debug, Default)]
pub(crate) struct Topologies {
    topologies: BTreeMap<Name, Topology>,
    nodes: BTreeMap<Name, Node>,
    pods: BTreeMap<(Name, Name), NodePod>,
    /// What pods outside topology-aware scheduling use, per node.
    node_usage: BTreeMap<Name, ResourceList>,
    flavors: HashMap<FlavorId, Arc<ResourceFlavor>>,
    trees: HashMap<FlavorId, Arc<FlavorTree>>,
    usage: HashMap<UsageKey, ResourceList>,
    log: Vec<(UsageKey, ResourceList)>,
    open_marks: u32,
    /// Usage of a node counts whatever flavor it is held through (`TASHandleOverlappingFlavors`).
    pub overlapping: bool,
}

/// A point in the log to go back to.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub(crate) struct Mark(usize);

impl Topologies {
    pub fn has_topology(&self, name: &Name) -> bool {
        self.topologies.contains_key(name)
    }

    /// The levels of a topology.
    pub fn levels(&self, name: &Name) -> Option<&[Name]> {
        self.topologies.get(name).map(|topology| topology.levels.as_slice())
    }

    pub fn upsert_topology(&mut self, topology: Topology) {
        self.trees.clear();
        self.topologies.insert(topology.name.clone(), topology);
    }

    pub fn remove_topology(&mut self, name: &Name) {
        self.trees.clear();
        self.topologies.remove(name);
    }

    pub fn upsert_flavor(&mut self, id: FlavorId, flavor: Option<Arc<ResourceFlavor>>) {
        self.trees.remove(&id);
        match flavor {
            Some(flavor) if flavor.topology.is_some() => self.flavors.insert(id, flavor),
            _ => self.flavors.remove(&id),
        };
    }

    /// Notes a node. True if that can change where pods fit.
    pub fn upsert_node(&mut self, node: Node) -> bool {
        if self.nodes.get(&node.name) == Some(&node) {
            return false;
        }
        self.trees.clear();
        self.nodes.insert(node.name.clone(), node);
        true
    }

    pub fn remove_node(&mut self, name: &Name) -> bool {
        self.trees.clear();
        self.nodes.remove(name).is_some()
    }

    pub fn node(&self, name: &Name) -> Option<&Node> {
        self.nodes.get(name)
    }

    pub fn upsert_pod(&mut self, pod: NodePod) {
        let key = (pod.namespace.clone(), pod.name.clone());
        self.remove_pod(&key.0, &key.1);
        let usage = self.node_usage.entry(pod.node.clone()).or_default();
        add(usage, &pod.requests, 1);
        self.pods.insert(key, pod);
    }

    pub fn remove_pod(&mut self, namespace: &Name, name: &Name) -> bool {
        let Some(pod) = self.pods.remove(&(namespace.clone(), name.clone())) else { return false };
        if let Some(usage) = self.node_usage.get_mut(&pod.node) {
            add(usage, &pod.requests, -1);
        }
        true
    }

    /// The domains of a flavor; `None` if the flavor has no topology or that does not exist.
    pub fn tree(&mut self, flavor: FlavorId) -> Option<Arc<FlavorTree>> {
        if let Some(tree) = self.trees.get(&flavor) {
            return Some(tree.clone());
        }
        let spec = self.flavors.get(&flavor)?;
        let topology = self.topologies.get(spec.topology.as_ref()?)?;
        let tree = Arc::new(FlavorTree::build(spec, topology, &self.nodes));
        self.trees.insert(flavor, tree.clone());
        Some(tree)
    }

    /// Replaces what is known to be used of a node through all flavors.
    pub fn set_total_usage(&mut self, values: Vec<Name>, usage: ResourceList) {
        self.usage.insert((None, values), usage);
    }

    /// What is left of a leaf. With `empty`, as if no workload were placed.
    pub fn remaining(&self, tree: &FlavorTree, flavor: FlavorId, leaf: usize, empty: bool) -> ResourceList {
        let domain = &tree.domains[leaf];
        let mut left = domain.capacity.clone();
        for usage in domain.nodes.iter().filter_map(|node| self.node_usage.get(node)) {
            subtract(&mut left, usage);
        }
        if !empty {
            let shared = tree.node_level && self.overlapping;
            let key = ((!shared).then_some(flavor), tree.leaf_values(&domain.values).to_vec());
            if let Some(usage) = self.usage.get(&key) {
                subtract(&mut left, usage);
            }
        }
        left
    }

    pub fn add_usage(&mut self, places: &Places) {
        self.change_usage(places, 1);
    }

    pub fn remove_usage(&mut self, places: &Places) {
        self.change_usage(places, -1);
    }

    fn change_usage(&mut self, places: &Places, sign: i64) {
        for place in &places.list {
            for flavor in [Some(place.flavor), None] {
                let key = (flavor, place.values.clone());
                let entry = self.usage.entry(key.clone()).or_default();
                if self.open_marks > 0 {
                    self.log.push((key, entry.clone()));
                }
                add(entry, &place.per_pod, sign * place.count);
            }
        }
    }

    /// True if the pods fit into what is left of their domains (§5.7).
    pub fn has_room(&mut self, places: &Places) -> bool {
        let mut wanted: BTreeMap<(FlavorId, &[Name]), ResourceList> = BTreeMap::new();
        for place in &places.list {
            let entry = wanted.entry((place.flavor, &place.values)).or_default();
            add(entry, &place.per_pod, place.count);
        }
        wanted.into_iter().all(|((flavor, values), wanted)| {
            let Some(tree) = self.tree(flavor) else { return false };
            let Some(leaf) = tree.leaf(values) else { return false };
            let left = self.remaining(&tree, flavor, leaf, false);
            wanted.iter().all(|(name, amount)| *amount <= 0 || left.get(name).copied().unwrap_or(0) >= *amount)
        })
    }

    pub fn mark(&mut self) -> Mark {
        self.open_marks += 1;
        Mark(self.log.len())
    }

    pub fn rollback(&mut self, mark: Mark) {
        while self.log.len() > mark.0 {
            if let Some((key, usage)) = self.log.pop() {
                self.usage.insert(key, usage);
            }
        }
        self.open_marks -= 1;
    }
}

/// Adds what `count` pods use, each taking one of `pods` besides.
fn add(usage: &mut ResourceList, per_pod: &ResourceList, count: i64) {
    for (name, amount) in per_pod {
        let sum = usage.entry(name.clone()).or_default();
        *sum = sum.saturating_add(amount.saturating_mul(count));
    }
    if !per_pod.contains_key(PODS) {
        *usage.entry(Name::from(PODS)).or_default() += count;
    }
}

fn subtract(left: &mut ResourceList, usage: &ResourceList) {
    for (name, amount) in usage {
        let left = left.entry(name.clone()).or_default();
        *left = left.saturating_sub(*amount);
    }
}
