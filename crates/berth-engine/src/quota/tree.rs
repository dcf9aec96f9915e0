//! The tree of cluster queues and cohorts with quota and usage per flavor and resource (§7).
//!
//!
//! Leaves are cluster queues, inner nodes are cohorts. Usage enters at a leaf and climbs only as
//! far as it exceeds what each node keeps for itself. Therefore adding or removing a workload costs
//! its number of flavor-resources times the depth.
//!
//! Changes to configuration are only recorded. [`QuotaTree::refresh`] then moves nodes to their new
//! parents, once per batch of changes. It recomputes the nodes that changed or that lost or gained
//! a child, and all nodes above them.
//!
//! Decisions try changes on the live tree: after [`QuotaTree::mark`] every change in usage is
//! logged, and [`QuotaTree::rollback`] restores the exact values, even if saturated arithmetic
//! could not be reversed.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::amount::Amount;
use crate::ids::{FrId, Id, Name, NodeId, QueueId};

/// Quota of one node for one flavor-resource, as configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct NodeQuota {
    pub nominal: Amount,
    pub borrowing_limit: Option<Amount>,
    pub lending_limit: Option<Amount>,
}

/// Quota and usage of one node for one flavor-resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Cell {
    pub quota: NodeQuota,
    /// False if there is only usage: a workload runs on a flavor that was removed from the quota.
    pub declared: bool,
    /// Quota of the node, including the amounts that its children lend it.
    pub subtree: Amount,
    /// Part of `subtree` that other nodes cannot use.
    pub guaranteed: Amount,
    /// Usage. For a cohort, the usage of its children that exceeds what they keep for themselves.
    pub usage: Amount,
}

impl Cell {
    /// Amount the node can still use without borrowing from its parent.
    fn local_available(&self) -> Amount {
        (self.guaranteed - self.usage).or_zero()
    }

    /// The part of an added amount that the parent has to provide (§7.5).
    pub(super) fn climbs_when_added(&self, amount: Amount) -> Option<Amount> {
        let local = self.local_available();
        (amount > local).then(|| amount - local)
    }

    /// The part of a removed amount that the parent gets back (§7.5).
    pub(super) fn climbs_when_removed(&self, amount: Amount) -> Option<Amount> {
        let stored_above = self.usage - self.guaranteed;
        (stored_above > Amount::ZERO).then(|| amount.min(stored_above))
    }
}

/// A cluster queue or a cohort.
#[derive(Debug, Clone)]
pub(crate) struct TreeNode {
    pub name: Name,
    pub is_queue: bool,
    /// The cluster queue, if the node is a leaf.
    pub queue: Option<QueueId>,
    /// True if the node exists: as an object, or because another node names it.
    pub alive: bool,
    /// Parent by configuration, and the nodes that name this node as their parent.
    pub declared_parent: Option<NodeId>,
    declared_children: Vec<NodeId>,
    /// Parent in effect. `None` at the root, and on or below a cycle.
    pub parent: Option<NodeId>,
    /// Children in effect, in name order; queues and cohorts are mixed.
    pub children: Vec<NodeId>,
    /// True if the node is on or below a cycle of cohorts.
    pub cyclic: bool,
    pub root: NodeId,
    /// Zero for queues and cohorts without children. For other cohorts, one more than the height of
    /// the highest child.
    pub height: u32,
    pub fair_weight_milli: i64,
    cells: Vec<(FrId, Cell)>,
}

impl TreeNode {
    /// Flavor-resources of this node with their cells, in id order.
    pub fn cells(&self) -> &[(FrId, Cell)] {
        &self.cells
    }
}

/// A position in the undo log to roll back to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) struct Mark(usize);

#[derive(Debug, Clone, Copy)]
struct Undo {
    node: NodeId,
    fr: FrId,
    usage: Amount,
}

/// The tree. See the module's documentation.
#[derive(Debug, Clone, Default)]
pub(crate) struct QuotaTree {
    nodes: Vec<TreeNode>,
    log: Vec<Undo>,
    open_marks: u32,
    /// Nodes whose configuration or usage changed since the last refresh.
    changed: Vec<NodeId>,
    /// Queues of each tree, by root, in order.
    queues: Vec<Vec<QueueId>>,
    /// Number of changes of nodes' roots.
    roots_version: u64,
}

impl QuotaTree {
    /// Adds a node without parent or quota.
    pub fn add_node(&mut self, name: Name, queue: Option<QueueId>) -> NodeId {
        let id = NodeId::from_index(self.nodes.len());
        self.nodes.push(TreeNode {
            name,
            is_queue: queue.is_some(),
            queue,
            alive: true,
            declared_parent: None,
            declared_children: Vec::new(),
            parent: None,
            children: Vec::new(),
            cyclic: false,
            root: id,
            height: 0,
            fair_weight_milli: 1000,
            cells: Vec::new(),
        });
        self.queues.push(queue.into_iter().collect());
        id
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> &TreeNode {
        &self.nodes[id.index()]
    }

    /// Sets whether a node exists.
    pub fn set_alive(&mut self, id: NodeId, alive: bool) {
        if std::mem::replace(&mut self.nodes[id.index()].alive, alive) != alive {
            self.changed.push(id);
        }
    }

    /// Changes the configuration and keeps the usage. True if anything changed.
    pub fn configure(
        &mut self,
        id: NodeId,
        parent: Option<NodeId>,
        fair_weight_milli: i64,
        quotas: &[(FrId, NodeQuota)],
    ) -> bool {
        let node = &mut self.nodes[id.index()];
        let before: Vec<_> =
            node.cells.iter().filter(|(_, cell)| cell.declared).map(|(fr, cell)| (*fr, cell.quota)).collect();
        let mut wanted = quotas.to_vec();
        wanted.sort_by_key(|(fr, _)| *fr);
        let own_declared = node.is_queue;
        let changed = node.declared_parent != parent
            || node.fair_weight_milli != fair_weight_milli
            || if own_declared { before != wanted } else { node.own_quotas() != wanted };
        let parent_before = std::mem::replace(&mut node.declared_parent, parent);
        node.fair_weight_milli = fair_weight_milli;
        for (_, cell) in &mut node.cells {
            cell.quota = NodeQuota::default();
            cell.declared = false;
        }
        for (fr, quota) in wanted {
            let cell = node.cell_mut(fr);
            cell.quota = quota;
            cell.declared = true;
        }
        if parent_before != parent {
            if let Some(before) = parent_before {
                self.nodes[before.index()].declared_children.retain(|child| *child != id);
            }
            if let Some(parent) = parent {
                self.nodes[parent.index()].declared_children.push(id);
            }
        }
        self.changed.push(id);
        changed
    }

    /// Recomputes parents, heights, subtree quotas and cohort usage after changes.
    pub fn refresh(&mut self) {
        if self.changed.is_empty() {
            return;
        }
        debug_assert_eq!(self.open_marks, 0, "configuration changes during a decision");
        let changed = std::mem::take(&mut self.changed);
        let mut outdated: BTreeSet<NodeId> = changed.iter().copied().collect();
        let places = changed.into_iter().filter(|id| self.place(*id) != (self.node(*id).cyclic, self.node(*id).parent));
        let moved = self.declared_below(places.collect());
        for &id in &moved {
            outdated.extend(self.hang(id));
        }
        for &id in &moved {
            self.note_root(id);
        }
        for id in self.bottom_up(&outdated) {
            self.derive(id);
        }
    }

    /// Whether a node is on or below a cycle, and the parent it has in effect.
    fn place(&self, id: NodeId) -> (bool, Option<NodeId>) {
        let cyclic = self.leads_to_cycle(id);
        (cyclic, self.node(id).declared_parent.filter(|_| !cyclic && self.node(id).alive))
    }

    /// Nodes and all nodes below them, by configuration.
    fn declared_below(&self, mut stack: Vec<NodeId>) -> BTreeSet<NodeId> {
        let mut below = BTreeSet::new();
        while let Some(id) = stack.pop() {
            if below.insert(id) {
                stack.extend(&self.node(id).declared_children);
            }
        }
        below
    }

    /// Moves a node to its parent. Returns the parent that lost it and the one that gained it.
    fn hang(&mut self, id: NodeId) -> impl Iterator<Item = NodeId> + use<> {
        let (cyclic, parent) = self.place(id);
        let node = &mut self.nodes[id.index()];
        node.cyclic = cyclic;
        let before = std::mem::replace(&mut node.parent, parent);
        if before != parent {
            if let Some(before) = before
                && let Ok(at) = self.child_at(before, id)
            {
                self.nodes[before.index()].children.remove(at);
            }
            if let Some(parent) = parent
                && let Err(at) = self.child_at(parent, id)
            {
                self.nodes[parent.index()].children.insert(at, id);
            }
        }
        [before, parent].into_iter().flatten()
    }

    /// Index of a child among the children of a parent, or the index at which it would be inserted.
    fn child_at(&self, parent: NodeId, child: NodeId) -> Result<usize, usize> {
        let key = |id: NodeId| (&self.node(id).name, self.node(id).is_queue, id);
        self.node(parent).children.binary_search_by(|id| key(*id).cmp(&key(child)))
    }

    /// Updates the root of a node that was moved, or that is below a moved node.
    fn note_root(&mut self, id: NodeId) {
        let root = self.path_to_root(id).last().unwrap_or(id);
        let node = &mut self.nodes[id.index()];
        let before = std::mem::replace(&mut node.root, root);
        self.roots_version += u64::from(before != root);
        let Some(queue) = node.queue.filter(|_| before != root) else { return };
        if let Ok(at) = self.queues[before.index()].binary_search(&queue) {
            self.queues[before.index()].remove(at);
        }
        if let Err(at) = self.queues[root.index()].binary_search(&queue) {
            self.queues[root.index()].insert(at, queue);
        }
    }

    /// Version of all nodes' roots: it changes when a root changes.
    pub fn roots_version(&self) -> u64 {
        self.roots_version
    }

    fn leads_to_cycle(&self, start: NodeId) -> bool {
        let mut at = start;
        for _ in 0..=self.nodes.len() {
            match self.node(at).declared_parent {
                Some(parent) => at = parent,
                None => return false,
            }
        }
        true
    }

    /// Nodes and all nodes above them. Each node comes after those below it.
    fn bottom_up(&self, nodes: &BTreeSet<NodeId>) -> Vec<NodeId> {
        let mut above: BTreeSet<NodeId> = BTreeSet::new();
        for &id in nodes {
            above.extend(self.path_to_root(id));
        }
        let mut order: Vec<(usize, NodeId)> = above.iter().map(|id| (self.path_to_root(*id).count(), *id)).collect();
        order.sort_by_key(|(depth, id)| (Reverse(*depth), *id));
        order.into_iter().map(|(_, id)| id).collect()
    }

    fn derive(&mut self, id: NodeId) {
        let children = std::mem::take(&mut self.nodes[id.index()].children);
        let mut height = 0;
        let mut below: Vec<(FrId, Cell)> = Vec::new();
        for &child in &children {
            let child = self.node(child);
            height = height.max(if child.is_queue { 1 } else { 1 + child.height });
            for (fr, cell) in &child.cells {
                let at = match below.binary_search_by_key(fr, |(id, _)| *id) {
                    Ok(at) => at,
                    Err(at) => {
                        below.insert(at, (*fr, Cell::default()));
                        at
                    }
                };
                let sum = &mut below[at].1;
                sum.declared |= cell.declared;
                sum.subtree += cell.subtree - cell.guaranteed;
                sum.usage += (cell.usage - cell.guaranteed).or_zero();
            }
        }
        let node = &mut self.nodes[id.index()];
        node.children = children;
        node.height = height;
        if !node.is_queue {
            // A cohort's usage and inherited flavor-resources are derived. Only its own quotas
            // persist.
            node.cells.retain(|(_, cell)| cell.quota != NodeQuota::default() || cell.declared);
            for (_, cell) in &mut node.cells {
                cell.subtree = cell.quota.nominal;
                cell.usage = Amount::ZERO;
            }
            for (fr, sum) in below {
                let cell = node.cell_mut(fr);
                cell.declared |= sum.declared;
                cell.subtree = cell.quota.nominal + sum.subtree;
                cell.usage = sum.usage;
            }
        } else {
            for (_, cell) in &mut node.cells {
                cell.subtree = cell.quota.nominal;
            }
        }
        for (_, cell) in &mut node.cells {
            cell.guaranteed = cell.quota.lending_limit.map_or(Amount::ZERO, |limit| (cell.subtree - limit).or_zero());
        }
    }

    /// The cell of a node and flavor-resource; all zero if there is none.
    pub fn cell(&self, id: NodeId, fr: FrId) -> Cell {
        let cells = &self.node(id).cells;
        cells.binary_search_by_key(&fr, |(id, _)| *id).map_or_else(|_| Cell::default(), |at| cells[at].1)
    }

    /// Amount available to a node; negative when usage exceeds the quota (§7.3).
    pub fn available(&self, id: NodeId, fr: FrId) -> Amount {
        self.available_of(id, &|id| self.cell(id, fr))
    }

    /// [`QuotaTree::available`] with the cells that `cell_of` returns.
    pub(super) fn available_of(&self, id: NodeId, cell_of: &impl Fn(NodeId) -> Cell) -> Amount {
        let cell = cell_of(id);
        let Some(parent) = self.node(id).parent else {
            return cell.subtree - cell.usage;
        };
        let mut from_parent = self.available_of(parent, cell_of);
        if let Some(limit) = cell.quota.borrowing_limit {
            let lent = cell.subtree - cell.guaranteed;
            let taken = (cell.usage - cell.guaranteed).or_zero();
            from_parent = from_parent.min(lent - taken + limit);
        }
        cell.local_available() + from_parent
    }

    /// Amount that would be available to a node if no quota were in use (§7.4).
    pub fn potential(&self, id: NodeId, fr: FrId) -> Amount {
        let cell = self.cell(id, fr);
        let Some(parent) = self.node(id).parent else {
            return cell.subtree;
        };
        let most = cell.guaranteed + self.potential(parent, fr);
        match cell.quota.borrowing_limit {
            Some(limit) => most.min(cell.subtree + limit),
            None => most,
        }
    }

    /// The node at or above this one whose quota or borrowing limit determines the
    /// [available](Self::available) amount.
    pub fn limits_available(&self, id: NodeId, fr: FrId) -> NodeId {
        let Some(parent) = self.node(id).parent else { return id };
        let cell = self.cell(id, fr);
        let by_limit = cell.quota.borrowing_limit.is_some_and(|limit| {
            let taken = (cell.usage - cell.guaranteed).or_zero();
            cell.subtree - cell.guaranteed - taken + limit <= self.available(parent, fr)
        });
        if by_limit { id } else { self.limits_available(parent, fr) }
    }

    /// The node at or above this one whose quota or borrowing limit determines the
    /// [potential](Self::potential) amount.
    pub fn limits_potential(&self, id: NodeId, fr: FrId) -> NodeId {
        let Some(parent) = self.node(id).parent else { return id };
        let cell = self.cell(id, fr);
        let by_limit = cell
            .quota
            .borrowing_limit
            .is_some_and(|limit| cell.subtree + limit <= cell.guaranteed + self.potential(parent, fr));
        if by_limit { id } else { self.limits_potential(parent, fr) }
    }

    /// Adds usage at a queue. The part that exceeds the queue's own quota climbs (§7.5).
    pub fn add_usage(&mut self, id: NodeId, fr: FrId, amount: i64) {
        let mut at = Some(id);
        let mut amount = Amount::Bounded(amount);
        while let Some(id) = at {
            let cell = self.cell(id, fr);
            self.set_usage(id, fr, cell.usage + amount);
            match cell.climbs_when_added(amount) {
                Some(rest) if self.changed.is_empty() => amount = rest,
                Some(_) => return self.changed.push(id),
                None => return,
            }
            at = self.node(id).parent;
        }
    }

    /// Removes usage at a queue (§7.5).
    pub fn remove_usage(&mut self, id: NodeId, fr: FrId, amount: i64) {
        let mut at = Some(id);
        let mut amount = Amount::Bounded(amount);
        while let Some(id) = at {
            let cell = self.cell(id, fr);
            self.set_usage(id, fr, cell.usage - amount);
            match cell.climbs_when_removed(amount) {
                Some(part) if self.changed.is_empty() => amount = part,
                Some(_) => return self.changed.push(id),
                None => return,
            }
            at = self.node(id).parent;
        }
    }

    fn set_usage(&mut self, id: NodeId, fr: FrId, usage: Amount) {
        let open = self.open_marks > 0;
        let cell = self.nodes[id.index()].cell_mut(fr);
        let before = std::mem::replace(&mut cell.usage, usage);
        if open {
            self.log.push(Undo { node: id, fr, usage: before });
        }
    }

    /// Marks the current usage, for [`QuotaTree::rollback`].
    pub fn mark(&mut self) -> Mark {
        self.open_marks += 1;
        Mark(self.log.len())
    }

    /// Restores the usage at the mark. Marks nest.
    pub fn rollback(&mut self, mark: Mark) {
        while self.log.len() > mark.0 {
            let undo = self.log.pop().expect("the log is longer than the mark");
            self.nodes[undo.node.index()].cell_mut(undo.fr).usage = undo.usage;
        }
        self.open_marks -= 1;
    }

    /// True if the amount exceeds what the node owns: the nominal quota of a queue, or the
    /// subtree's quota of a cohort (§7.6).
    pub fn is_borrowing_with(&self, id: NodeId, fr: FrId, amount: Amount) -> bool {
        let cell = self.cell(id, fr);
        let own = if self.node(id).is_queue { cell.quota.nominal } else { cell.subtree };
        own < cell.usage + amount
    }

    /// True if usage is within the node's own quota for all of the flavor-resources.
    pub fn is_within_nominal(&self, id: NodeId, frs: &[FrId]) -> bool {
        frs.iter().all(|&fr| {
            let cell = self.cell(id, fr);
            cell.usage <= cell.subtree
        })
    }

    /// Amount a node can still use without borrowing from its parent.
    pub fn local_available(&self, id: NodeId, fr: FrId) -> Amount {
        self.cell(id, fr).local_available()
    }

    /// Level of the tree from which a request has to borrow, and whether reclaiming may help it
    /// (§7.7).
    pub fn borrowing_level(&self, queue: NodeId, fr: FrId, amount: i64) -> (u32, bool) {
        let amount = Amount::Bounded(amount);
        let has_cohort = self.node(queue).parent.is_some();
        if !has_cohort || !self.is_borrowing_with(queue, fr, amount) {
            return (0, has_cohort);
        }
        let mut remaining = amount - self.local_available(queue, fr);
        let mut at = self.node(queue).parent;
        let mut level = 0;
        while let Some(cohort) = at {
            let node = self.node(cohort);
            level = node.height;
            if !self.is_borrowing_with(cohort, fr, remaining) {
                return (level, node.parent.is_some());
            }
            remaining -= self.local_available(cohort, fr);
            at = node.parent;
        }
        (level, false)
    }

    /// The node, its parent, and so on to the root.
    pub fn path_to_root(&self, id: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        std::iter::successors(Some(id), |id| self.node(*id).parent)
    }

    /// The queues at or below a node, in name order at every level.
    pub fn queues_below(&self, id: NodeId) -> Vec<NodeId> {
        let mut queues = Vec::new();
        let mut stack = vec![id];
        while let Some(id) = stack.pop() {
            let node = self.node(id);
            if node.is_queue {
                queues.push(id);
            } else {
                stack.extend(node.children.iter().rev());
            }
        }
        queues
    }

    /// All queues of a tree, by its root, in order of their ids.
    pub fn queues_of_root(&self, root: NodeId) -> &[QueueId] {
        self.queues.get(root.index()).map_or(&[], Vec::as_slice)
    }

    /// Names from the root down to this node (§11.1).
    pub fn names_from_root(&self, id: NodeId) -> Vec<Name> {
        let mut names: Vec<Name> = self.path_to_root(id).map(|id| self.node(id).name.clone()).collect();
        names.reverse();
        names
    }
}

impl TreeNode {
    fn cell_mut(&mut self, fr: FrId) -> &mut Cell {
        match self.cells.binary_search_by_key(&fr, |(id, _)| *id) {
            Ok(at) => &mut self.cells[at].1,
            Err(at) => {
                self.cells.insert(at, (fr, Cell::default()));
                &mut self.cells[at].1
            }
        }
    }

    fn own_quotas(&self) -> Vec<(FrId, NodeQuota)> {
        self.cells
            .iter()
            .filter(|(_, cell)| cell.quota != NodeQuota::default())
            .map(|(fr, cell)| (*fr, cell.quota))
            .collect()
    }
}
