//! Topology-aware scheduling: nodes, the domains that they form, and the domains of pods (§14).
//!
//! [`nodes`] holds the capacity of nodes, [`ledger`] the usage of each domain by workloads, and
//! [`tree`] groups a flavor's nodes into domains. All three hold amounts as dense rows over the
//! columns of [`amounts`]. [`count`] and [`placement`] find domains for pods, [`count_cache`]
//! caches counts, [`balanced`] finds evenly filled domains, [`replace`] repairs a placement that
//! lost a node, [`request`] turns the pod sets of an assignment into a placement request, and
//! [`assign`] carries it out. Workloads count as usage while they hold quota. Changes can be tried
//! after a mark in the undo log and rolled back to that mark, as in the quota tree.

pub(crate) mod amounts;
pub(crate) mod assign;
mod balanced;
pub(crate) mod count;
mod count_cache;
pub(crate) mod ledger;
mod nodes;
pub(crate) mod placement;
pub(crate) mod replace;
pub(crate) mod request;
pub(crate) mod tree;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::ids::{FlavorId, Name};
use crate::model::{Node, NodePod, ResourceFlavor, ResourceList, Topology, TopologyAssignment};

use amounts::{Columns, Demand};
use count::{Count, Overlay};
use count_cache::CountCache;
pub(crate) use ledger::Mark;
use ledger::{Ledger, RowId};
use nodes::{NodeIx, Nodes};
use placement::Wanted;
use tree::{FlavorTree, claim, domain_of, is_node_level};

/// The resource `pods`: every pod uses 1.
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
    /// Row of the ledger that counts the usage of these pods.
    pub row: RowId,
    pub demand: Demand,
    pub count: i64,
}

impl Places {
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The pods of `self` that are not in `held` (§5.8).
    #[must_use]
    pub fn without(&self, held: &Places) -> Places {
        let mut left = self.clone();
        let mut held: HashMap<RowId, Vec<PlacedPods>> =
            held.list.iter().fold(HashMap::new(), |mut rows: HashMap<RowId, Vec<PlacedPods>>, place| {
                rows.entry(place.row).or_default().push(place.clone());
                rows
            });
        for place in &mut left.list {
            for other in held.get_mut(&place.row).into_iter().flatten() {
                if other.flavor == place.flavor && other.demand == place.demand {
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

/// Number of domains per moved node above which moving nodes one by one is cheaper than rebuilding
/// the tree.
const MOVES_PER_BUILD: usize = 50;

/// Nodes, topologies and usage per domain.
#[derive(Debug, Default)]
pub(crate) struct Topologies {
    columns: Columns,
    topologies: BTreeMap<Name, Topology>,
    nodes: Nodes,
    flavors: HashMap<FlavorId, Arc<ResourceFlavor>>,
    /// The trees built so far, by flavor.
    trees: HashMap<FlavorId, FlavorTree>,
    /// Per flavor, the nodes that joined, left or changed their domain since its tree was last
    /// read.
    moved: HashMap<FlavorId, BTreeSet<NodeIx>>,
    ledger: Ledger,
    /// Number of pods that fit into each domain, as counted in earlier searches.
    counts: CountCache,
    /// Number of capacity changes of nodes that stayed in their domain. Cached counts of empty
    /// nodes are valid while it stays the same.
    offers: u64,
    /// True if usage of a node counts in all flavors that it serves
    /// (`TASHandleOverlappingFlavors`).
    overlapping: bool,
}

impl Topologies {
    pub fn new(overlapping: bool) -> Topologies {
        let mut topologies = Topologies { overlapping, ..Topologies::default() };
        topologies.columns.intern(&Name::from(PODS));
        topologies.widen();
        topologies
    }

    /// Widens every row to the number of columns.
    fn widen(&mut self) {
        let width = self.columns.width();
        self.nodes.widen(width);
        self.ledger.widen(width);
        for tree in self.trees.values_mut() {
            tree.widen(width);
        }
    }

    pub fn has_topology(&self, name: &Name) -> bool {
        self.topologies.contains_key(name)
    }

    /// The levels of a topology, top level first; `None` if the topology does not exist.
    pub fn levels(&self, name: &Name) -> Option<&[Name]> {
        self.topologies.get(name).map(|topology| topology.levels.as_slice())
    }

    pub fn upsert_topology(&mut self, topology: Topology) {
        self.counts.clear();
        self.trees.clear();
        self.topologies.insert(topology.name.clone(), topology);
    }

    pub fn remove_topology(&mut self, name: &Name) {
        self.counts.clear();
        self.trees.clear();
        self.topologies.remove(name);
    }

    pub fn upsert_flavor(&mut self, id: FlavorId, flavor: Option<Arc<ResourceFlavor>>) {
        self.counts.clear_flavor(id);
        self.trees.remove(&id);
        match flavor {
            Some(flavor) if flavor.topology.is_some() => self.flavors.insert(id, flavor),
            _ => self.flavors.remove(&id),
        };
    }

    /// Stores a node's newest state. True if it differs from the stored state.
    pub fn upsert_node(&mut self, node: Node) -> bool {
        if self.nodes.by_name(&node.name) == Some(&node) {
            return false;
        }
        let (at, before) = self.nodes.upsert(node.clone(), &mut self.columns);
        self.widen();
        self.node_changed(at, before.as_ref(), Some(&node));
        true
    }

    pub fn remove_node(&mut self, name: &Name) -> bool {
        let Some((at, before)) = self.nodes.remove(name) else { return false };
        self.node_changed(at, Some(&before), None);
        true
    }

    /// Updates the trees for a node's new state. If the node stays in its domain, the domain's
    /// capacity is counted again. Otherwise the node is moved when the tree is next read.
    fn node_changed(&mut self, at: NodeIx, before: Option<&Node>, after: Option<&Node>) {
        let only_amounts = matches!((before, after), (Some(before), Some(after))
            if *before == Node { allocatable: before.allocatable.clone(), ..after.clone() });
        let (flavors, topologies, nodes, moved) = (&self.flavors, &self.topologies, &self.nodes, &mut self.moved);
        let counts = &mut self.counts;
        self.trees.retain(|id, tree| {
            let Some(flavor) = flavors.get(id) else { return false };
            let Some(topology) = flavor.topology.as_ref().and_then(|name| topologies.get(name)) else { return false };
            let domain = |node: Option<&Node>| node.and_then(|node| domain_of(node, flavor, topology));
            let (before, after) = (domain(before), domain(after));
            if !only_amounts && (before.is_some() || after.is_some()) {
                counts.clear_flavor(*id);
            }
            if before == after {
                if let Some(row) = tree.recount_node(at, nodes) {
                    self.offers += 1;
                    self.ledger.touch(row);
                }
            } else {
                moved.entry(*id).or_default().insert(at);
            }
            true
        });
    }

    fn recount_node(&mut self, at: NodeIx) {
        for tree in self.trees.values_mut() {
            if let Some(row) = tree.recount_node(at, &self.nodes) {
                self.offers += 1;
                self.ledger.touch(row);
            }
        }
    }

    /// Stores the newest state of a pod outside topology-aware scheduling.
    pub fn upsert_pod(&mut self, pod: NodePod) {
        if self.nodes.has_pod(&pod, &mut self.columns) {
            return;
        }
        self.remove_pod(&pod.namespace.clone(), &pod.name.clone());
        let at = self.nodes.upsert_pod(pod, &mut self.columns);
        self.widen();
        self.recount_node(at);
    }

    pub fn remove_pod(&mut self, namespace: &Name, name: &Name) -> bool {
        let Some(at) = self.nodes.remove_pod(namespace, name) else { return false };
        self.recount_node(at);
        true
    }

    /// The current tree of a flavor's domains, built or updated if needed. `None` if the flavor has
    /// no topology or the topology does not exist.
    pub fn tree(&mut self, flavor: FlavorId) -> Option<&FlavorTree> {
        let moved = if self.moved.is_empty() { None } else { self.moved.remove(&flavor) };
        if self.trees.contains_key(&flavor) && moved.is_none() {
            return self.trees.get(&flavor);
        }
        self.counts.clear_flavor(flavor);
        let spec = self.flavors.get(&flavor)?;
        let topology = self.topologies.get(spec.topology.as_ref()?)?;
        let moved = moved.unwrap_or_default();
        match self.trees.get_mut(&flavor) {
            // Each moved node costs a walk over all domains. If many nodes moved, a new tree costs
            // less.
            Some(tree) if moved.len() * MOVES_PER_BUILD <= tree.domains.len() => {
                for node in moved {
                    let values = self.nodes.get(node).and_then(|node| domain_of(node, spec, topology));
                    tree.move_node(flavor, node, values.as_deref(), &self.nodes, &mut self.ledger, self.overlapping);
                }
            }
            _ => {
                let (width, overlapping) = (self.columns.width(), self.overlapping);
                let tree = FlavorTree::build(flavor, spec, topology, &self.nodes, &mut self.ledger, width, overlapping);
                self.trees.insert(flavor, tree);
            }
        }
        self.trees.get(&flavor)
    }

    /// The tree of a flavor in the state of the last [`tree`](Self::tree) call.
    pub fn current_tree(&self, flavor: FlavorId) -> Option<&FlavorTree> {
        self.trees.get(&flavor)
    }

    /// The leaf for a domain of an assignment with these `values`; `None` if the tree has no such
    /// leaf.
    pub fn leaf(&self, tree: &FlavorTree, flavor: FlavorId, values: &[Name]) -> Option<usize> {
        let claim = claim(flavor, tree.node_level && self.overlapping, tree.leaf_values(values));
        tree.leaf_of_row(self.ledger.find(&claim)?)
    }

    /// True if an assignment's domain exists.
    pub fn has_leaf(&mut self, flavor: FlavorId, values: &[Name]) -> bool {
        self.tree(flavor);
        self.current_tree(flavor).is_some_and(|tree| self.leaf(tree, flavor, values).is_some())
    }

    /// Calls `then` with the number of wanted pods that each domain could hold, given the
    /// overlay's usage. With `empty`, no workload counts as placed. `None` if the flavor has no
    /// domains.
    pub fn with_count<T>(
        &mut self,
        wanted: &Wanted,
        overlay: &Overlay,
        empty: bool,
        then: impl FnOnce(&Topologies, &FlavorTree, &Count) -> T,
    ) -> Option<T> {
        self.tree(wanted.flavor)?;
        let cached = self.counts.take(wanted, empty);
        let tree = self.current_tree(wanted.flavor)?;
        let mut count = cached.unwrap_or_else(|| Count::new(self, tree, wanted, empty));
        count.refresh(self, tree, overlay);
        #[cfg(debug_assertions)]
        {
            let mut recounted = Count::new(self, tree, wanted, empty);
            recounted.refresh(self, tree, overlay);
            assert!(count.agrees_with(&recounted), "a cached count, refreshed, equals a new count");
        }
        let result = then(self, tree, &count);
        self.counts.put(count);
        Some(result)
    }

    /// Drops cached counts.
    #[cfg(feature = "lab")]
    pub fn forget_counts(&mut self) {
        self.counts.clear();
    }

    /// The demand of one pod, in columns.
    pub fn demand(&mut self, per_pod: &ResourceList) -> Demand {
        let demand = self.columns.demand(per_pod);
        self.widen();
        demand
    }

    /// Adds the places of an assignment's pods in a flavor to a list.
    pub fn add_places(
        &mut self,
        places: &mut Places,
        flavor: FlavorId,
        topology: &TopologyAssignment,
        demand: &Demand,
    ) {
        for domain in &topology.domains {
            let row = self.row(flavor, topology, &domain.values);
            let count = i64::from(domain.count);
            places.list.push(PlacedPods { flavor, row, demand: demand.clone(), count });
        }
    }

    /// The row that counts usage of an assignment's domain.
    fn row(&mut self, flavor: FlavorId, topology: &TopologyAssignment, values: &[Name]) -> RowId {
        let levels = if topology.levels.is_empty() {
            let name = self.flavors.get(&flavor).and_then(|spec| spec.topology.as_ref());
            name.and_then(|name| self.levels(name)).unwrap_or(&[])
        } else {
            &topology.levels
        };
        let node_level = is_node_level(levels);
        let values = if node_level { &values[values.len().saturating_sub(1)..] } else { values };
        let claim = claim(flavor, node_level && self.overlapping, values);
        self.ledger.row(claim)
    }

    /// The values of a row's domain.
    #[cfg(feature = "lab")]
    pub fn row_values(&self, row: RowId) -> Vec<Name> {
        match self.ledger.claim(row) {
            ledger::Claim::Domain(_, values) => values.clone(),
            ledger::Claim::Host(host) => vec![host.clone()],
        }
    }

    /// Requests of one pod, without its implied request for the resource `pods`.
    #[cfg(feature = "lab")]
    pub fn requests(&self, demand: &Demand) -> ResourceList {
        demand.requests(&self.columns)
    }

    /// Usage of workloads per domain of a flavor. The keys are the domains' values, as in
    /// assignments. Unused domains are omitted. With overlapping flavors, a node's usage is the
    /// same in every flavor that it serves (§14.1).
    #[cfg(feature = "lab")]
    pub fn used_domains(&mut self, flavor: FlavorId) -> BTreeMap<Vec<Name>, ResourceList> {
        self.tree(flavor);
        let Some(tree) = self.current_tree(flavor) else { return BTreeMap::new() };
        let used = tree.leaves().map(|leaf| {
            let values = tree.leaf_values(&tree.domains[leaf].values).to_vec();
            let amounts = self.ledger.used(tree.row(leaf)).iter().enumerate().filter(|(_, amount)| **amount != 0);
            (values, amounts.map(|(column, amount)| (self.columns.name(column).clone(), *amount)).collect())
        });
        used.filter(|(_, amounts): &(_, ResourceList)| !amounts.is_empty()).collect()
    }

    /// Sets the usage of a node, summed over all flavors.
    #[cfg(feature = "lab")]
    pub fn set_host_usage(&mut self, host: Name, usage: &ResourceList) {
        let cells = self.columns.cells(usage);
        self.widen();
        let row = self.ledger.row(ledger::Claim::Host(host));
        self.ledger.set(row, &cells);
    }

    pub fn add_usage(&mut self, places: &Places) {
        for place in &places.list {
            self.ledger.add(place.row, &place.demand, place.count);
        }
    }

    pub fn remove_usage(&mut self, places: &Places) {
        for place in &places.list {
            self.ledger.add(place.row, &place.demand, -place.count);
        }
    }

    /// True if the pods fit into the free capacity of their domains (§5.7), without the capacity
    /// that the overlay uses.
    pub fn has_capacity(&mut self, places: &Places, overlay: &Overlay) -> bool {
        let mut order: Vec<&PlacedPods> = places.list.iter().collect();
        order.sort_by_key(|place| place.row);
        let width = self.columns.width();
        order.chunk_by(|a, b| a.row == b.row).all(|same| {
            let mut wanted = vec![0; width];
            for place in same {
                amounts::add(&mut wanted, &place.demand.cells, place.count);
            }
            same.iter().all(|place| {
                if self.tree(place.flavor).is_none() {
                    return false;
                }
                let Some(tree) = self.trees.get(&place.flavor) else { return false };
                let Some(leaf) = tree.leaf_of_row(place.row) else { return false };
                let (base, used) = (tree.base(leaf), self.ledger.used(place.row));
                let extra = overlay.of(place.row).unwrap_or(&[]);
                wanted.iter().zip(base).zip(used).enumerate().all(|(column, ((wanted, base), used))| {
                    let extra = extra.iter().find(|cell| cell.0 == column).map_or(0, |cell| cell.1);
                    *wanted <= 0 || base.saturating_sub(*used).saturating_sub(extra) >= *wanted
                })
            })
        })
    }

    pub fn mark(&mut self) -> Mark {
        self.ledger.mark()
    }

    pub fn rollback(&mut self, mark: Mark) {
        self.ledger.rollback(mark);
    }
}
