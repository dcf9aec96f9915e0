//! Who goes first in a cycle (§6): by borrowing level and priority, or by the fair-sharing tournament.

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;

use super::Entry;
use crate::ids::NodeId;
use crate::quota::{FrAmounts, Share};
use crate::world::World;

/// The entries still to be processed, and the rule by which the next is taken.
pub(crate) struct EntryOrder {
    entries: Vec<Entry>,
}

impl EntryOrder {
    /// Orders entries; under fair sharing the order is found step by step, because every step changes the shares.
    pub fn new(world: &World, mut entries: Vec<Entry>) -> Self {
        if !world.is_fair_sharing() {
            entries.sort_by(|a, b| classical(world, a, b));
            entries.reverse();
        }
        EntryOrder { entries }
    }

    /// Takes the next entry.
    pub fn next(&mut self, world: &mut World) -> Option<Entry> {
        if !world.is_fair_sharing() {
            return self.entries.pop();
        }
        let at = tournament(world, &self.entries)?;
        Some(self.entries.remove(at))
    }
}

/// The order without fair sharing (§6.1).
pub(crate) fn classical(world: &World, a: &Entry, b: &Entry) -> Ordering {
    let gates = &world.config.gates;
    let key = |entry: &Entry| {
        let record = world.record(entry.workload);
        (
            !entry.second_pass,
            gates.prioritize_preemptor_workloads && !entry.is_preemptor,
            entry.assignment.borrowing,
            gates.priority_sorting_within_cohort.then_some(Reverse(record.priority)),
            record.order_time,
        )
    };
    key(a)
        .cmp(&key(b))
        .then_with(|| world.record(a.workload).facts.uid.cmp(&world.record(b.workload).facts.uid))
        .then_with(|| world.record(a.workload).key().cmp(world.record(b.workload).key()))
}

/// What a node's share would be with an entry's usage added.
struct Standing {
    share: Share,
}

/// The entry that goes next under fair sharing (§6.2).
fn tournament(world: &mut World, entries: &[Entry]) -> Option<usize> {
    let first = entries.first()?;
    let node = world.queue(first.queue).node;
    let root = world.tree.node(node).root;
    if world.tree.node(node).parent.is_none() {
        return Some(0);
    }
    // An entry of a queue hides an earlier one of the same queue (a second pass beside a normal head).
    let mut by_queue: BTreeMap<NodeId, usize> = BTreeMap::new();
    for (at, entry) in entries.iter().enumerate() {
        let node = world.queue(entry.queue).node;
        if world.tree.node(node).root == root {
            by_queue.insert(node, at);
        }
    }
    let mut standings: BTreeMap<(NodeId, usize), Standing> = BTreeMap::new();
    for (&queue, &at) in &by_queue {
        let usage = entries[at].quota_usage();
        let mark = world.mark();
        world.add_usage(queue, &usage);
        let path: Vec<NodeId> = world.tree.path_to_root(queue).collect();
        for node in path {
            standings.insert((node, at), Standing { share: world.share(node) });
        }
        world.rollback(mark);
    }
    best_below(world, entries, &by_queue, &standings, root)
}

fn best_below(
    world: &World,
    entries: &[Entry],
    by_queue: &BTreeMap<NodeId, usize>,
    standings: &BTreeMap<(NodeId, usize), Standing>,
    cohort: NodeId,
) -> Option<usize> {
    let mut best: Option<(usize, NodeId)> = None;
    for &child in &world.tree.node(cohort).children {
        let candidate = if world.tree.node(child).is_queue {
            by_queue.get(&child).copied()
        } else {
            best_below(world, entries, by_queue, standings, child)
        };
        let Some(at) = candidate else { continue };
        let better = best.is_none_or(|(best_at, best_child)| {
            let (Some(a), Some(b)) = (standings.get(&(child, at)), standings.get(&(best_child, best_at))) else {
                return false;
            };
            goes_before(world, (&entries[at], &a.share), (&entries[best_at], &b.share))
        });
        if better {
            best = Some((at, child));
        }
    }
    best.map(|(at, _)| at)
}

/// True if the first of two entries of one cohort wins (§6.2), given the shares of the children they come from.
fn goes_before(world: &World, a: (&Entry, &Share), b: (&Entry, &Share)) -> bool {
    let facts = |(entry, share): (&Entry, &Share)| {
        let record = world.record(entry.workload);
        Contender {
            is_preemptor: entry.is_preemptor,
            share: share.clone(),
            requested: entry.quota_usage(),
            priority: record.priority,
            time: record.order_time,
        }
    };
    facts(a).goes_before(&facts(b), &world.config.gates)
}

/// What two entries are compared by under fair sharing.
#[derive(Debug, Clone)]
pub(crate) struct Contender {
    pub is_preemptor: bool,
    pub share: Share,
    pub requested: FrAmounts,
    pub priority: i64,
    pub time: crate::model::Time,
}

impl Contender {
    /// True if this one goes first (§6.2).
    pub fn goes_before(&self, other: &Contender, gates: &crate::config::FeatureGates) -> bool {
        if gates.prioritize_preemptor_workloads && self.is_preemptor != other.is_preemptor {
            return self.is_preemptor;
        }
        if gates.fair_sharing_prioritize_non_borrowing {
            let borrows = (self.share.is_borrowing_on(&self.requested), other.share.is_borrowing_on(&other.requested));
            if borrows.0 != borrows.1 {
                return !borrows.0;
            }
        }
        match self.share.compare(&other.share) {
            Ordering::Less => return true,
            Ordering::Greater => return false,
            Ordering::Equal => {}
        }
        if gates.priority_sorting_within_cohort && self.priority != other.priority {
            return self.priority > other.priority;
        }
        self.time < other.time
    }
}
