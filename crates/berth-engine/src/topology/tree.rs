//! The domains of one flavor: its nodes grouped by the levels of its topology (§14.1).
//!
//! Domains are numbered level by level, coarse to fine, and within a level in the order of their
//! values. So a level is a range of numbers, and a domain's children are a range of the next level.
//! Of two domains of one level, the one with the smaller number comes first by values.

use std::collections::HashMap;
use std::ops::Range;

use super::amounts::Grid;
use super::ledger::{Claim, Ledger, RowId};
use super::nodes::{NodeIx, Nodes};
use crate::ids::{FlavorId, Name};
use crate::model::{Node, ResourceFlavor, Topology};

/// The label whose domains are single nodes.
pub(crate) const HOSTNAME: &str = "kubernetes.io/hostname";

/// Domains of a flavor, coarse to fine; every domain's number is greater than its parent's.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FlavorTree {
    pub topology: Name,
    pub levels: Vec<Name>,
    pub domains: Vec<Domain>,
    /// True if the lowest level is the node itself.
    pub node_level: bool,
    /// First domain of each level, and the number of domains.
    starts: Vec<usize>,
    leaves: Vec<Leaf>,
    /// Capacity of the nodes of each leaf, minus the usage of pods outside topology-aware
    /// scheduling.
    base: Grid,
    by_row: HashMap<RowId, usize>,
    by_node: HashMap<NodeIx, usize>,
}

/// One domain.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Domain {
    pub level: usize,
    /// One value per level, down to the level of the domain.
    pub values: Vec<Name>,
    pub parent: Option<usize>,
    pub children: Range<usize>,
}

/// Fields that only the lowest domains have.
#[derive(Debug, Clone, PartialEq)]
struct Leaf {
    nodes: Vec<NodeIx>,
    row: RowId,
}

/// The values of a node's domain, if the node serves the flavor. It must be ready and schedulable,
/// and have the flavor's labels and a value for every level.
pub(crate) fn domain_of(node: &Node, flavor: &ResourceFlavor, topology: &Topology) -> Option<Vec<Name>> {
    let serves = node.ready
        && !node.unschedulable
        && flavor.node_labels.iter().all(|(key, value)| node.labels.get(key) == Some(value));
    if !serves {
        return None;
    }
    topology.levels.iter().map(|level| node.labels.get(level).cloned()).collect()
}

impl FlavorTree {
    /// Groups the nodes that serve a flavor.
    pub fn build(
        id: FlavorId,
        flavor: &ResourceFlavor,
        topology: &Topology,
        nodes: &Nodes,
        ledger: &mut Ledger,
        width: usize,
        overlapping: bool,
    ) -> FlavorTree {
        let levels = topology.levels.clone();
        let node_level = is_node_level(&levels);
        let mut found: Vec<(Vec<Name>, NodeIx)> =
            nodes.iter().filter_map(|(at, node)| Some((domain_of(node, flavor, topology)?, at))).collect();
        found.sort();
        let mut domains: Vec<Domain> = Vec::new();
        let mut starts = vec![0];
        let mut above: Range<usize> = 0..0;
        for level in 0..levels.len() {
            let start = domains.len();
            let mut parents = above.clone();
            let mut parent = parents.next();
            for (values, _) in &found {
                let values = &values[..=level];
                if domains[start..].last().is_some_and(|last| last.values == values) {
                    continue;
                }
                let at = domains.len();
                // Both levels are in the order of their values. Therefore the parent of this domain
                // is that of the previous domain, or a later one.
                while let Some(candidate) = parent
                    && domains[candidate].values != values[..level]
                {
                    parent = parents.next();
                }
                if let Some(parent) = parent {
                    let children = &mut domains[parent].children;
                    *children = if children.start == children.end { at..at + 1 } else { children.start..at + 1 };
                }
                domains.push(Domain { level, values: values.to_vec(), parent, children: 0..0 });
            }
            above = start..domains.len();
            starts.push(domains.len());
        }
        let mut tree = FlavorTree {
            topology: topology.name.clone(),
            node_level,
            base: Grid::new(width, above.len()),
            starts,
            leaves: Vec::with_capacity(above.len()),
            by_row: HashMap::with_capacity(above.len()),
            by_node: HashMap::with_capacity(found.len()),
            levels,
            domains,
        };
        let mut found = found.into_iter().peekable();
        for id_of_leaf in above {
            let values = &tree.domains[id_of_leaf].values;
            let mut members = Vec::new();
            while let Some((_, node)) = found.next_if(|(of, _)| of == values) {
                members.push(node);
                tree.by_node.insert(node, id_of_leaf);
            }
            let claim = claim(id, node_level && overlapping, tree.leaf_values(values));
            let row = ledger.row(claim);
            tree.by_row.insert(row, id_of_leaf);
            tree.leaves.push(Leaf { nodes: members, row });
            tree.count_base(id_of_leaf, nodes);
        }
        tree
    }

    /// Sums up the capacity of a leaf's nodes.
    fn count_base(&mut self, leaf: usize, nodes: &Nodes) {
        let at = leaf - self.leaf_start();
        let base = self.base.row_mut(at);
        base.fill(0);
        for &node in &self.leaves[at].nodes {
            nodes.add_free(node, base);
        }
    }

    /// Makes a node join, leave or change its domain. `values` are those of its current domain. For
    /// each domain that is added or removed, all domain numbers are read once.
    pub fn move_node(
        &mut self,
        id: FlavorId,
        node: NodeIx,
        values: Option<&[Name]>,
        nodes: &Nodes,
        ledger: &mut Ledger,
        overlapping: bool,
    ) {
        if let Some(leaf) = self.by_node.remove(&node) {
            let at = leaf - self.leaf_start();
            self.leaves[at].nodes.retain(|other| *other != node);
            if self.leaves[at].nodes.is_empty() {
                self.remove_leaf(leaf);
            } else {
                self.count_base(leaf, nodes);
            }
        }
        let Some(values) = values else { return };
        let mut parent = None;
        for level in 0..self.levels.len() {
            let known = self.level_domains(level);
            let found = self.domains[known.clone()].binary_search_by(|domain| domain.values[..].cmp(&values[..=level]));
            parent = Some(match found {
                Ok(at) => known.start + at,
                Err(at) => {
                    let domain = Domain { level, values: values[..=level].to_vec(), parent, children: 0..0 };
                    self.insert_domain(known.start + at, domain);
                    known.start + at
                }
            });
        }
        let Some(leaf) = parent else { return };
        let at = leaf - self.leaf_start();
        if self.leaves.len() < self.leaves().len() {
            let row = ledger.row(claim(id, self.node_level && overlapping, self.leaf_values(values)));
            self.leaves.insert(at, Leaf { nodes: Vec::new(), row });
            self.base.insert(at);
            self.by_row.insert(row, leaf);
        }
        let members = &mut self.leaves[at].nodes;
        members.insert(members.partition_point(|other| *other < node), node);
        self.by_node.insert(node, leaf);
        self.count_base(leaf, nodes);
    }

    /// Inserts a domain at its number.
    fn insert_domain(&mut self, at: usize, domain: Domain) {
        self.renumber(|number| if number >= at { number + 1 } else { number });
        for start in &mut self.starts[domain.level + 1..] {
            *start += 1;
        }
        self.domains.insert(at, domain);
        self.link_children();
    }

    /// Removes a leaf, and the domains above it that have no other leaf.
    fn remove_leaf(&mut self, leaf: usize) {
        let place = leaf - self.leaf_start();
        let removed = self.leaves.remove(place);
        self.by_row.remove(&removed.row);
        self.base.remove(place);
        let mut empty = Some(leaf);
        while let Some(at) = empty {
            let Domain { level, parent, .. } = self.domains.remove(at);
            self.renumber(|number| if number > at { number - 1 } else { number });
            for start in &mut self.starts[level + 1..] {
                *start -= 1;
            }
            self.link_children();
            empty = parent.filter(|parent| self.domains[*parent].children.end == 0);
        }
    }

    fn renumber(&mut self, moved: impl Fn(usize) -> usize) {
        for domain in &mut self.domains {
            domain.parent = domain.parent.map(&moved);
        }
        for leaf in self.by_row.values_mut().chain(self.by_node.values_mut()) {
            *leaf = moved(*leaf);
        }
    }

    /// Computes every domain's children from the parents.
    fn link_children(&mut self) {
        for domain in &mut self.domains {
            domain.children = 0..0;
        }
        for at in 0..self.domains.len() {
            let Some(parent) = self.domains[at].parent else { continue };
            let children = &mut self.domains[parent].children;
            let start = if children.end == 0 { at } else { children.start };
            *children = start..at + 1;
        }
    }

    /// Updates the tree for a change in a node's capacity; returns the row of its leaf.
    pub fn recount_node(&mut self, node: NodeIx, nodes: &Nodes) -> Option<RowId> {
        let leaf = *self.by_node.get(&node)?;
        self.count_base(leaf, nodes);
        Some(self.row(leaf))
    }

    pub fn widen(&mut self, width: usize) {
        self.base.widen(width);
    }

    /// The domains of a level.
    pub fn level_domains(&self, level: usize) -> Range<usize> {
        match (self.starts.get(level), self.starts.get(level + 1)) {
            (Some(&start), Some(&end)) => start..end,
            _ => 0..0,
        }
    }

    /// The lowest domains.
    pub fn leaves(&self) -> Range<usize> {
        self.level_domains(self.levels.len().saturating_sub(1))
    }

    /// The first of the lowest domains.
    pub fn leaf_start(&self) -> usize {
        self.leaves().start
    }

    /// The nodes of a leaf.
    pub fn nodes(&self, leaf: usize) -> &[NodeIx] {
        &self.leaves[leaf - self.leaf_start()].nodes
    }

    /// The row of the ledger that counts the usage of a leaf by workloads.
    pub fn row(&self, leaf: usize) -> RowId {
        self.leaves[leaf - self.leaf_start()].row
    }

    /// Capacity of a leaf for workloads, per column.
    pub fn base(&self, leaf: usize) -> &[i64] {
        self.base.row(leaf - self.leaf_start())
    }

    /// The leaf whose usage a row counts.
    pub fn leaf_of_row(&self, row: RowId) -> Option<usize> {
        self.by_row.get(&row).copied()
    }

    /// The name of a leaf in assignments: its host alone if leaves are nodes, otherwise the values
    /// of all levels.
    pub fn leaf_values<'a>(&self, values: &'a [Name]) -> &'a [Name] {
        if self.node_level { &values[values.len().saturating_sub(1)..] } else { values }
    }

    /// The levels that assignments name.
    pub fn assigned_levels(&self) -> Vec<Name> {
        self.leaf_values(&self.levels).to_vec()
    }

    /// The index of a level.
    pub fn level(&self, label: &str) -> Option<usize> {
        self.levels.iter().position(|level| &**level == label)
    }

    /// The domain of a level that contains a domain.
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

/// True if the lowest level is the node itself.
pub(crate) fn is_node_level(levels: &[Name]) -> bool {
    levels.last().is_some_and(|level| &**level == HOSTNAME)
}

/// The key under which a domain's usage is counted. `shared` is set if domains are nodes that
/// several flavors may serve.
pub(crate) fn claim(flavor: FlavorId, shared: bool, values: &[Name]) -> Claim {
    match values.last() {
        Some(host) if shared => Claim::Host(host.clone()),
        _ => Claim::Domain(flavor, values.to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::amounts::Columns;
    use super::*;

    fn node(at: usize, place: u8) -> Node {
        let host = format!("host-{at}");
        let labels = [("block", place / 4), ("rack", place % 4)];
        Node {
            name: Name::from(host.as_str()),
            labels: labels
                .into_iter()
                .map(|(key, value)| (Name::from(key), Name::from(value.to_string())))
                .chain([(Name::from(HOSTNAME), Name::from(host.as_str()))])
                .collect(),
            taints: Vec::new(),
            allocatable: [(Name::from("cpu"), 1000 + at as i64)].into(),
            ready: true,
            unschedulable: false,
        }
    }

    proptest! {
        /// Moving nodes one by one gives the same tree as grouping all of them again.
        #[test]
        fn moving_nodes_equals_grouping_them_again(
            by_host: bool,
            moves in prop::collection::vec((0..12_usize, prop::option::of(0..12_u8)), 1..60),
        ) {
            let mut levels = vec![Name::from("block"), Name::from("rack")];
            levels.extend(by_host.then(|| Name::from(HOSTNAME)));
            let topology = Topology { name: Name::from("t"), levels };
            let flavor = ResourceFlavor::default();
            let (mut columns, mut nodes, mut ledger) = (Columns::default(), Nodes::default(), Ledger::default());
            columns.intern(&Name::from("pods"));
            ledger.widen(columns.width());
            let id = <FlavorId as crate::ids::Id>::from_index(0);
            let width = columns.width();
            let mut tree = FlavorTree::build(id, &flavor, &topology, &nodes, &mut ledger, width, true);
            for (at, place) in moves {
                let ix = match place {
                    Some(place) => Some(nodes.upsert(node(at, place), &mut columns).0),
                    None => nodes.remove(&Name::from(format!("host-{at}"))).map(|(ix, _)| ix),
                };
                let Some(ix) = ix else { continue };
                let values = nodes.get(ix).and_then(|node| domain_of(node, &flavor, &topology));
                tree.move_node(id, ix, values.as_deref(), &nodes, &mut ledger, true);
                let rebuilt = FlavorTree::build(id, &flavor, &topology, &nodes, &mut ledger, columns.width(), true);
                prop_assert_eq!(&tree, &rebuilt);
            }
        }
    }
}
