//! The order of entries in a cycle (§6): by borrowing level and priority, or by the fair-sharing
//! [`Tournament`].

use std::cmp::{Ordering, Reverse};

use super::Entry;
use super::tournament::Tournament;
use crate::model::Time;
use crate::quota::{FrAmounts, Share};
use crate::world::World;

/// The entries still to be processed, and the rule that picks the next. Entries are boxed: they
/// are large, and sorting moves them.
pub(crate) enum EntryOrder {
    /// Sorted once, with the next entry last.
    Classical(Vec<Box<Entry>>),
    /// Determined step by step, because every step changes the shares.
    Fair(Tournament),
}

impl EntryOrder {
    /// Orders entries.
    pub fn new(world: &World, entries: Vec<Box<Entry>>) -> Self {
        if world.is_fair_sharing() {
            return EntryOrder::Fair(Tournament::new(world, entries));
        }
        let mut keyed: Vec<(Key, Box<Entry>)> = entries.into_iter().map(|entry| (key(world, &entry), entry)).collect();
        keyed.sort_by(|(a_key, a), (b_key, b)| b_key.cmp(a_key).then_with(|| ties(world, b, a)));
        EntryOrder::Classical(keyed.into_iter().map(|(_, entry)| entry).collect())
    }

    /// Takes the next entry. The caller finishes processing it before the next call.
    pub fn next(&mut self, world: &mut World) -> Option<Box<Entry>> {
        match self {
            EntryOrder::Classical(entries) => entries.pop(),
            EntryOrder::Fair(tournament) => tournament.next(world),
        }
    }
}

/// Sort key without fair sharing (§6.1), except for ties.
type Key = (bool, bool, u32, Option<Reverse<i64>>, Time);

fn key(world: &World, entry: &Entry) -> Key {
    let gates = &world.config.gates;
    let record = world.record(entry.workload);
    (
        !entry.second_pass,
        gates.prioritize_preemptor_workloads && !entry.is_preemptor,
        entry.assignment.borrowing,
        gates.priority_sorting_within_cohort.then_some(Reverse(record.priority)),
        record.order_time,
    )
}

fn ties(world: &World, a: &Entry, b: &Entry) -> Ordering {
    let (a, b) = (world.record(a.workload), world.record(b.workload));
    a.facts.uid.cmp(&b.facts.uid).then_with(|| a.key().cmp(b.key()))
}

/// The order without fair sharing (§6.1).
#[cfg(feature = "lab")]
pub(crate) fn classical(world: &World, a: &Entry, b: &Entry) -> Ordering {
    key(world, a).cmp(&key(world, b)).then_with(|| ties(world, a, b))
}

/// Properties by which fair sharing compares two entries.
#[derive(Debug, Clone)]
pub(crate) struct Contender {
    /// Number of the entry.
    pub entry: usize,
    pub is_preemptor: bool,
    pub share: Share,
    pub requested: FrAmounts,
    pub priority: i64,
    pub time: Time,
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
