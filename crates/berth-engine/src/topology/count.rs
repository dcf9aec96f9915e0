//! Counts how many pods each domain could hold: phase one of a placement (§14.5). Also gives the
//! reasons that exclude nodes.
//!
//! The nodes that the pods may use at all are computed once. After that, only the leaves whose
//! usage changed are counted again, and only the domains above them are summed up. A search for
//! victims counts the same pods after every candidate. Each such count takes time in proportion to
//! the candidate's nodes, not to the nodes of the cluster. The same holds for the next placement of
//! pods of the same kind, because [`super::count_cache`] keeps the counts.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::Topologies;
use super::amounts::Demand;
use super::ledger::RowId;
use super::placement::{Pods, Wanted};
use super::tree::FlavorTree;
use crate::assignment::filter::untolerated;
use crate::decision::Exclusion;
use crate::ids::Name;
use crate::model::{Labels, Node, NodeAffinity, SelectorTerm, Taint};

/// Number of pods and slices that a domain could hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Capacity {
    pub pods: i64,
    pub slices: i64,
    /// Number of pods and slices that fit together with the leader.
    pub pods_with_leader: i64,
    pub slices_with_leader: i64,
    /// 1 if the leader fits.
    pub leader: i64,
    /// Weight of the preferred node affinities that match.
    pub score: i64,
}

impl Capacity {
    /// Sort key without a leader: better affinity first, then larger (or, to fill gaps, smaller) in
    /// slices, then smaller in pods.
    pub fn rank(&self, least_free: bool) -> (Reverse<i64>, Reverse<i64>, i64, i64) {
        let slices = if least_free { self.slices } else { -self.slices };
        (Reverse(0), Reverse(self.score), slices, self.pods)
    }

    /// Sort key while the leader has not been placed: domains that can take it come first.
    pub fn rank_with_leader(&self, least_free: bool) -> (Reverse<i64>, Reverse<i64>, i64, i64) {
        let slices = if least_free { self.slices_with_leader } else { -self.slices_with_leader };
        (Reverse(self.leader), Reverse(self.score), slices, self.pods_with_leader)
    }
}

/// Usage to count in addition to the ledger's: the usage of earlier pod sets of the same workload
/// in this placement.
#[derive(Debug, Clone, Default)]
pub(crate) struct Overlay {
    rows: BTreeMap<RowId, Vec<(usize, i64)>>,
}

impl Overlay {
    /// Adds pods in a domain.
    pub fn add(&mut self, row: RowId, demand: &Demand, count: i64) {
        let cells = self.rows.entry(row).or_default();
        for &(column, amount) in demand.cells.iter() {
            let amount = amount.saturating_mul(count);
            match cells.iter_mut().find(|cell| cell.0 == column) {
                Some(cell) => cell.1 = cell.1.saturating_add(amount),
                None => cells.push((column, amount)),
            }
        }
    }

    pub fn of(&self, row: RowId) -> Option<&[(usize, i64)]> {
        if self.rows.is_empty() { None } else { self.rows.get(&row).map(Vec::as_slice) }
    }
}

/// Reason why the pods cannot use a leaf, regardless of its free capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Bar {
    /// The leaf is outside the domain that they must stay in.
    Outside,
    /// The host of the leaf failed.
    Failed,
    /// The leaf's node has a taint that the pods do not tolerate. Boxed, because most leaves have
    /// none and a count has an entry per leaf.
    Taint(Box<Taint>),
    NodeSelector,
    Affinity,
}

/// Number of pods of one kind that each domain could hold.
#[derive(Debug, Clone)]
pub(crate) struct Count {
    pub capacities: Vec<Capacity>,
    /// The pods and how they are counted: the part of a request that [`Wanted::counts_alike`]
    /// compares.
    pub of: Wanted,
    /// True if the count assumes that no workload is placed.
    pub empty: bool,
    /// Leaves that the pods may use, in order.
    open: Vec<Open>,
    barred: Vec<Bar>,
    /// Numbers of the last changes in usage and node capacity that were counted; `None` before
    /// the first count.
    seen: Option<(u64, u64)>,
    /// Open leaves that were counted with an overlay. They are counted again next time.
    overlaid: Vec<usize>,
    /// Domains above the leaves that must be summed up again.
    stale: Vec<bool>,
}

#[derive(Debug, Clone, PartialEq)]
struct Open {
    leaf: usize,
    row: RowId,
    score: i64,
    /// Reason why the leader cannot use the leaf's node, regardless of the node's free capacity.
    leader: Option<Bar>,
}

impl Count {
    /// Finds the leaves that the pods may use. [`Count::refresh`] counts them.
    pub fn new(topologies: &Topologies, tree: &FlavorTree, wanted: &Wanted, empty: bool) -> Count {
        let mut count = Count {
            capacities: vec![Capacity::default(); tree.domains.len()],
            of: wanted.clone(),
            empty,
            open: Vec::with_capacity(tree.leaves().len()),
            barred: Vec::new(),
            seen: None,
            overlaid: Vec::new(),
            stale: vec![false; tree.leaf_start()],
        };
        for leaf in tree.leaves() {
            match bar(topologies, tree, wanted, leaf) {
                Ok((score, leader)) => {
                    count.open.push(Open { leaf, row: tree.row(leaf), score, leader });
                }
                Err(bar) => count.barred.push(bar),
            }
        }
        count
    }

    /// True if both counts have the same capacities, open leaves and barred leaves.
    #[cfg(debug_assertions)]
    pub fn agrees_with(&self, other: &Count) -> bool {
        self.capacities == other.capacities && self.open == other.open && self.barred == other.barred
    }

    /// Recounts what changed since the last time, with the overlay's usage.
    pub fn refresh(&mut self, topologies: &Topologies, tree: &FlavorTree, overlay: &Overlay) {
        let now = (topologies.ledger.changes(), topologies.offers);
        let before = self.seen.replace(now);
        let overlaid = std::mem::take(&mut self.overlaid);
        let changed = match before {
            // On empty nodes, only the capacity of nodes counts.
            Some((_, offers)) if self.empty && offers == now.1 => Some(Vec::new()),
            Some((usage, _)) => topologies.ledger.changed_since(usage),
            None => None,
        };
        match changed {
            Some(rows) => {
                let mut rows: Vec<RowId> = rows.into_iter().chain(overlay.rows.keys().copied()).collect();
                rows.sort_unstable();
                rows.dedup();
                let leaves = rows.into_iter().filter_map(|row| tree.leaf_of_row(row));
                let changed = leaves.filter_map(|leaf| self.open.binary_search_by_key(&leaf, |open| open.leaf).ok());
                // A leaf may be in the overlay of the last count and also in this one.
                let mut changed: Vec<usize> = changed.chain(overlaid).collect();
                changed.sort_unstable();
                changed.dedup();
                for at in changed {
                    self.count_leaf(topologies, tree, overlay, at);
                }
            }
            None => {
                self.stale.fill(true);
                for at in 0..self.open.len() {
                    self.count_leaf(topologies, tree, overlay, at);
                }
            }
        }
        debug_assert!(self.overlaid.is_sorted_by(|a, b| a < b), "the list has a leaf twice");
        for id in (0..tree.leaf_start()).rev() {
            if std::mem::take(&mut self.stale[id]) {
                let capacity = sum_children(tree, &self.of, &self.capacities, id);
                self.set_capacity(tree, id, capacity);
            }
        }
    }

    fn count_leaf(&mut self, topologies: &Topologies, tree: &FlavorTree, overlay: &Overlay, at: usize) {
        let open = &self.open[at];
        let extra = overlay.of(open.row);
        let (leaf, capacity) = (open.leaf, leaf_capacity(topologies, tree, &self.of, open, extra, self.empty));
        if extra.is_some() {
            self.overlaid.push(at);
        }
        self.set_capacity(tree, leaf, capacity);
    }

    /// Sets a domain's capacity. If it changed, the domain above must be summed up again.
    fn set_capacity(&mut self, tree: &FlavorTree, id: usize, capacity: Capacity) {
        if self.capacities[id] != capacity {
            self.capacities[id] = capacity;
            if let Some(parent) = tree.domains[id].parent {
                self.stale[parent] = true;
            }
        }
    }

    /// Number of leaves that cannot take a single pod, by reason, in the order of the reasons'
    /// messages. If no leaf can take the leader, the leaves that cannot take the leader are counted
    /// as well.
    pub fn exclusions(
        &self,
        topologies: &Topologies,
        tree: &FlavorTree,
        wanted: &Wanted,
        overlay: &Overlay,
    ) -> Vec<(Exclusion, usize)> {
        let mut by_reason: BTreeMap<Exclusion, usize> = BTreeMap::new();
        let mut note = |reason: Exclusion| *by_reason.entry(reason).or_default() += 1;
        let no_leaf_takes_leader = || self.open.iter().all(|open| self.capacities[open.leaf].leader == 0);
        let of_leader = wanted.leader.is_some() && no_leaf_takes_leader();
        let of_leader = self.open.iter().filter(|_| of_leader).filter_map(|open| open.leader.as_ref());
        for bar in self.barred.iter().chain(of_leader) {
            match bar {
                Bar::Outside => note(Exclusion::OtherDomain),
                Bar::Failed => {}
                Bar::Taint(taint) => note(Exclusion::Taint(taint.as_ref().clone())),
                Bar::NodeSelector => note(Exclusion::NodeSelector),
                Bar::Affinity => note(Exclusion::Affinity),
            }
        }
        // To look up a resource name for every node would cost more than the search. Therefore
        // resources are counted by column first.
        let mut short: BTreeMap<usize, usize> = BTreeMap::new();
        for open in self.open.iter().filter(|open| self.capacities[open.leaf].pods == 0) {
            let left = Left::of(topologies, tree, open, overlay.of(open.row), self.empty);
            if let (_, Some(column)) = wanted.workers.demand.limit_in(|column| left.amount(column)) {
                *short.entry(column).or_default() += 1;
            }
        }
        for (column, count) in short {
            let reason = Exclusion::Resource(topologies.columns.name(column).clone());
            by_reason.insert(reason, count);
        }
        by_reason.into_iter().collect()
    }
}

/// The free amounts of a leaf.
struct Left<'a> {
    base: &'a [i64],
    used: Option<&'a [i64]>,
    extra: Option<&'a [(usize, i64)]>,
}

impl<'a> Left<'a> {
    fn of(
        topologies: &'a Topologies,
        tree: &'a FlavorTree,
        open: &Open,
        extra: Option<&'a [(usize, i64)]>,
        empty: bool,
    ) -> Left<'a> {
        let used = (!empty).then(|| topologies.ledger.used(open.row));
        Left { base: tree.base(open.leaf), used, extra }
    }

    fn amount(&self, column: usize) -> i64 {
        let mut left = self.base[column];
        if let Some(used) = self.used {
            left = left.saturating_sub(used[column]);
        }
        for &(_, amount) in self.extra.into_iter().flatten().filter(|cell| cell.0 == column) {
            left = left.saturating_sub(amount);
        }
        left
    }
}

/// `Ok` if the workers can use a leaf: the preference score of its node, and the reason why the
/// leader cannot use the leaf, if there is one. `Err` is the reason why the workers cannot use it.
fn bar(topologies: &Topologies, tree: &FlavorTree, wanted: &Wanted, leaf: usize) -> Result<(i64, Option<Bar>), Bar> {
    if let Some(required) = wanted.within
        && tree.ancestor(leaf, tree.domains[required].level) != required
    {
        return Err(Bar::Outside);
    }
    if !tree.node_level {
        return Ok((0, None));
    }
    if tree.domains[leaf].values.last().is_some_and(|host| wanted.excluded_hosts.contains(host)) {
        return Err(Bar::Failed);
    }
    let Some(node) = tree.nodes(leaf).first().and_then(|node| topologies.nodes.get(*node)) else {
        return Ok((0, None));
    };
    bar_of_node(&wanted.workers, node).map_or(Ok(()), Err)?;
    let preferred = &wanted.workers.affinity;
    let score = if wanted.respect_preferred { preferred_score(preferred, node) } else { 0 };
    Ok((score, wanted.leader.as_ref().and_then(|leader| bar_of_node(leader, node))))
}

/// Reason why pods cannot run on a node, regardless of its free capacity (§14.5).
fn bar_of_node(pods: &Pods, node: &Node) -> Option<Bar> {
    if let Some(taint) = untolerated(&node.taints, &[&pods.tolerations]) {
        return Some(Bar::Taint(Box::new(taint.clone())));
    }
    if !pods.node_selector.iter().all(|(key, value)| node.labels.get(key) == Some(value)) {
        return Some(Bar::NodeSelector);
    }
    (!matches(&pods.affinity, node)).then_some(Bar::Affinity)
}

fn leaf_capacity(
    topologies: &Topologies,
    tree: &FlavorTree,
    wanted: &Wanted,
    open: &Open,
    extra: Option<&[(usize, i64)]>,
    empty: bool,
) -> Capacity {
    let left = Left::of(topologies, tree, open, extra, empty);
    let workers = &wanted.workers.demand;
    let pods = workers.count_in(|column| left.amount(column));
    let mut capacity = Capacity { pods, pods_with_leader: pods, score: open.score, ..Capacity::default() };
    if let Some(leader) = wanted.leader.as_ref().filter(|_| open.leader.is_none())
        && leader.demand.count_in(|column| left.amount(column)) >= 1
    {
        capacity.leader = 1;
        capacity.pods_with_leader =
            workers.count_in(|column| left.amount(column).saturating_sub(leader.demand.of(column)));
    }
    if tree.domains[open.leaf].level == wanted.slice_level {
        capacity.slices = capacity.pods / wanted.slice_size;
        capacity.slices_with_leader = capacity.pods_with_leader / wanted.slice_size;
    }
    capacity
}

pub(crate) fn sum_children(tree: &FlavorTree, wanted: &Wanted, capacities: &[Capacity], id: usize) -> Capacity {
    let domain = &tree.domains[id];
    let unit = wanted.layer_size(domain.level + 1).unwrap_or(1).max(1);
    let whole = |pods: i64| pods / unit * unit;
    let mut sum = Capacity::default();
    let mut least_loss: Option<(i64, i64)> = None;
    for capacity in &capacities[domain.children.clone()] {
        sum.pods += whole(capacity.pods);
        sum.slices += capacity.slices;
        sum.score += capacity.score;
        sum.leader = sum.leader.max(capacity.leader);
        if capacity.leader > 0 {
            let loss = (
                whole(capacity.pods) - whole(capacity.pods_with_leader),
                capacity.slices - capacity.slices_with_leader,
            );
            least_loss = Some(least_loss.map_or(loss, |known| (known.0.min(loss.0), known.1.min(loss.1))));
        }
    }
    let (pods_lost, slices_lost) = least_loss.unwrap_or_default();
    sum.pods_with_leader = sum.pods - pods_lost;
    sum.slices_with_leader = sum.slices - slices_lost;
    if domain.level == wanted.slice_level {
        sum.slices = sum.pods / wanted.slice_size;
        sum.slices_with_leader = sum.pods_with_leader / wanted.slice_size;
    }
    sum
}

/// True if required node affinity matches a node.
fn matches(affinity: &NodeAffinity, node: &Node) -> bool {
    affinity.required.as_ref().is_none_or(|terms| terms.iter().any(|term| holds(term, node)))
}

/// Preference for a node: the sum of the weights of the terms that match it.
fn preferred_score(affinity: &NodeAffinity, node: &Node) -> i64 {
    affinity.preferred.iter().filter(|it| holds(&it.term, node)).map(|it| i64::from(it.weight)).sum()
}

/// True if a term matches a node; an empty term matches none.
fn holds(term: &SelectorTerm, node: &Node) -> bool {
    let named = || Labels::from([(Name::from("metadata.name"), node.name.clone())]);
    (!term.expressions.is_empty() || !term.fields.is_empty())
        && term.expressions.iter().all(|requirement| requirement.matches(&node.labels))
        && (term.fields.is_empty() || term.fields.iter().all(|requirement| requirement.matches(&named())))
}
