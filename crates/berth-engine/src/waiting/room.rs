//! One cluster queue's waiting workloads.

use std::collections::{BTreeSet, HashMap};

use super::order::HeapKey;
use crate::decision::PendingReason;
use crate::ids::{ClassId, WorkloadId};

/// The places of one queue and what it remembers. See [`super`].
#[derive(Debug)]
pub(crate) struct Room {
    heap: BTreeSet<HeapKey>,
    by_class: HashMap<ClassId, BTreeSet<WorkloadId>>,
    pub inadmissible: BTreeSet<WorkloadId>,
    pub in_flight: Option<WorkloadId>,
    /// The workload that waits for preemptions it started, and the generation that started them (§3.4).
    pub preemptor: Option<(WorkloadId, i64)>,
    /// Classes that do not fit until something changes (§4.8).
    no_fit: HashMap<ClassId, PendingReason>,
    pub pop_cycle: i64,
    flush_cycle: i64,
}

impl Default for Room {
    fn default() -> Self {
        Room {
            heap: BTreeSet::new(),
            by_class: HashMap::new(),
            inadmissible: BTreeSet::new(),
            in_flight: None,
            preemptor: None,
            no_fit: HashMap::new(),
            pop_cycle: 0,
            flush_cycle: -1,
        }
    }
}

impl Room {
    pub fn heap(&self) -> &BTreeSet<HeapKey> {
        &self.heap
    }

    pub fn heap_len(&self) -> usize {
        self.heap.len()
    }

    pub fn is_heap_empty(&self) -> bool {
        self.heap.is_empty()
    }

    pub fn insert_into_heap(&mut self, key: HeapKey, class: ClassId) {
        self.by_class.entry(class).or_default().insert(key.id);
        self.heap.insert(key);
    }

    pub fn remove_from_heap(&mut self, key: &HeapKey, class: ClassId) {
        let removed = self.heap.remove(key);
        debug_assert!(removed, "a workload's heap key changed while it was in the heap");
        if let Some(members) = self.by_class.get_mut(&class) {
            members.remove(&key.id);
            if members.is_empty() {
                self.by_class.remove(&class);
            }
        }
    }

    /// Workloads of a class in the heap.
    pub fn heap_of_class(&self, class: ClassId) -> Vec<WorkloadId> {
        self.by_class.get(&class).map(|members| members.iter().copied().collect()).unwrap_or_default()
    }

    /// Remembers that workloads of a class do not fit.
    pub fn remember_no_fit(&mut self, class: ClassId, reason: PendingReason) {
        self.no_fit.insert(class, reason);
    }

    /// Why workloads of a class are set aside unseen, if they are.
    pub fn no_fit_reason(&self, class: ClassId) -> Option<PendingReason> {
        self.no_fit.get(&class).copied()
    }

    /// Notes a flush: what failed before may fit now, and what is in flight may not be set aside (§4.5).
    pub fn note_flush(&mut self) {
        self.no_fit.clear();
        self.flush_cycle = self.pop_cycle;
    }

    /// True if a flush came after the last pop.
    pub fn was_flushed_since_pop(&self) -> bool {
        self.flush_cycle >= self.pop_cycle
    }
}
