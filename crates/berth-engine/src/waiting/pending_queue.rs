//! The waiting workloads of one cluster queue.
//!
//! Equivalent workloads (§4.8) wait together in one ordered line per class. A class that does not
//! fit becomes inadmissible as a whole and is tried again as a whole. Both cost the same for one
//! workload and for a hundred thousand. Workloads that are inadmissible for a reason of their own
//! (a back-off, their namespace) are listed one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use super::order::HeapKey;
use crate::decision::PendingReason;
use crate::ids::{ClassId, Id, LocalQueueId, WorkloadId};
use crate::ordered_set::OrderedSet;

/// The places of one queue, and its state between cycles. See [`super`].
#[derive(Debug, Default)]
pub(crate) struct PendingQueue {
    lines: BTreeMap<LineId, Line>,
    /// The first workload of every line that may be popped.
    heads: OrderedSet<(HeapKey, ClassId)>,
    /// Number of workloads in lines that may be popped, and in all lines.
    active: usize,
    waiting: usize,
    /// Workloads that are inadmissible individually, not with the line of their class.
    inadmissible_alone: BTreeSet<WorkloadId>,
    /// Number of these workloads per class.
    inadmissible_alone_classes: BTreeMap<ClassId, u32>,
    /// Number of inadmissible workloads per local queue, individually or with their line. It is
    /// part of the status of local queues.
    inadmissible_locals: BTreeMap<LocalQueueId, u32>,
    in_flight: Option<WorkloadId>,
    /// The line whose first workload is the popped one, and its local queue. Most popped workloads
    /// return to this position, so the workload stays in the line. Everywhere else it counts as
    /// popped.
    attached: Option<(LineId, LocalQueueId)>,
    /// The workload that waits for preemptions that it started, and the generation that started
    /// them (§3.4).
    pub preemptor: Option<(WorkloadId, i64)>,
    /// Classes that are inadmissible until something changes (§4.8), in order, each with the
    /// reason.
    no_fit: Vec<(ClassId, PendingReason)>,
    /// Number of the last pop, and of the last pop before the last flush. Pops count from 1.
    pub pop_cycle: u64,
    flush_cycle: Option<u64>,
    /// The value of [`World::selection`](crate::world::World::selection) for which the namespace of
    /// every workload in line is known to be selected.
    pub selection: Option<u64>,
}

/// The key of a line: its class and, in usage-based queues, its local queue.
type LineId = (ClassId, LocalQueueId);

/// All lines of a class: one, or one per local queue.
fn lines_of(class: ClassId) -> RangeInclusive<LineId> {
    (class, LocalQueueId::from_index(0))..=(class, LocalQueueId::from_index(u32::MAX as usize))
}

/// Workloads of one class, in order.
#[derive(Debug)]
struct Line {
    first: HeapKey,
    rest: BTreeSet<HeapKey>,
    /// Number of its members per local queue.
    locals: Locals,
    /// The reason that was last reported for the members, when the class became inadmissible, and
    /// the members that joined since.
    reported: Option<PendingReason>,
    unreported: BTreeSet<WorkloadId>,
}

/// Counts per local queue, in the order of the queues. No count is zero.
type Locals = Vec<(LocalQueueId, u32)>;

/// Adds one to the count of a key, or subtracts one from it.
fn count_one<K: Ord>(counts: &mut BTreeMap<K, u32>, key: K, more: bool) {
    if more {
        *counts.entry(key).or_default() += 1;
    } else if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

impl Line {
    fn new(first: HeapKey, local: LocalQueueId, reported: Option<PendingReason>) -> Line {
        Line { first, rest: BTreeSet::new(), locals: vec![(local, 1)], reported, unreported: BTreeSet::new() }
    }

    fn count_local(&mut self, local: LocalQueueId, more: bool) {
        match (self.locals.binary_search_by_key(&local, |(id, _)| *id), more) {
            (Ok(at), true) => self.locals[at].1 += 1,
            (Ok(at), false) if self.locals[at].1 == 1 => {
                self.locals.remove(at);
            }
            (Ok(at), false) => self.locals[at].1 -= 1,
            (Err(at), true) => self.locals.insert(at, (local, 1)),
            (Err(_), false) => debug_assert!(false, "a workload's local queue changed while it waited"),
        }
    }

    fn keys(&self) -> impl Iterator<Item = &HeapKey> {
        std::iter::once(&self.first).chain(&self.rest)
    }
}

impl PendingQueue {
    /// The first workload that may be popped, by key.
    pub fn first(&self) -> Option<&HeapKey> {
        self.heads.first().map(|(key, _)| key)
    }

    /// The first workload of the first lane at or after the given one.
    pub fn first_from_lane(&self, lane: LocalQueueId) -> Option<&HeapKey> {
        let from = (HeapKey::before_lane(lane), <ClassId as crate::ids::Id>::from_index(0));
        self.heads.first_from(&from).map(|(key, _)| key)
    }

    /// Workloads that may be popped, in no particular order of classes.
    pub fn active(&self) -> impl Iterator<Item = &HeapKey> {
        let lines = self.heads.iter().filter_map(|(key, class)| self.lines.get(&(*class, key.lane)));
        lines.flat_map(Line::keys).filter(|key| Some(key.id) != self.in_flight)
    }

    /// Workloads that are inadmissible until something changes.
    pub fn inadmissible(&self) -> impl Iterator<Item = WorkloadId> {
        self.in_inadmissible_lines().chain(self.inadmissible_alone.iter().copied())
    }

    /// Number of workloads in all places.
    pub fn len(&self) -> usize {
        self.waiting + self.inadmissible_alone.len() + usize::from(self.in_flight.is_some())
    }

    /// Number of inadmissible workloads.
    pub fn inadmissible_len(&self) -> usize {
        self.waiting - self.active + self.inadmissible_alone.len()
    }

    /// Number of inadmissible workloads of a local queue.
    pub fn inadmissible_of(&self, local: LocalQueueId) -> u32 {
        self.inadmissible_locals.get(&local).copied().unwrap_or(0)
    }

    /// Number of classes among the workloads that may be popped, and among the inadmissible ones.
    /// Reads every line.
    pub fn classes(&self) -> (usize, usize) {
        let (mut active, mut inadmissible) = (0, 0);
        let mut last = None;
        for (class, _) in self.lines.keys() {
            if last.replace(*class) == Some(*class) {
                continue;
            }
            match self.no_fit_reason(*class) {
                Some(_) => inadmissible += 1,
                None => active += 1,
            }
        }
        let has_line = |class: ClassId| self.lines.range(lines_of(class)).next().is_some();
        let alone = |class: &&ClassId| self.no_fit_reason(**class).is_none() || !has_line(**class);
        (active, inadmissible + self.inadmissible_alone_classes.keys().filter(alone).count())
    }

    /// True if no workload may be popped.
    pub fn has_no_candidate(&self) -> bool {
        self.active == 0
    }

    /// Adds a workload to its line. `reported` is true if the reason why its class is inadmissible
    /// was reported for it.
    pub fn insert(&mut self, key: HeapKey, class: ClassId, local: LocalQueueId, reported: bool) {
        self.detach();
        let id = (class, key.lane);
        let reason = self.no_fit_reason(class);
        let inadmissible = reason.is_some();
        self.waiting += 1;
        self.active += usize::from(!inadmissible);
        if inadmissible {
            count_one(&mut self.inadmissible_locals, local, true);
        }
        match self.lines.get_mut(&id) {
            None => {
                if !inadmissible {
                    self.heads.insert((key.clone(), class));
                }
                let reason = reason.filter(|_| reported);
                self.lines.insert(id, Line::new(key, local, reason));
            }
            Some(line) => {
                line.count_local(local, true);
                if line.reported.is_some() && !reported {
                    line.unreported.insert(key.id);
                }
                if key < line.first {
                    if !inadmissible {
                        self.heads.remove(&(line.first.clone(), class));
                        self.heads.insert((key.clone(), class));
                    }
                    let first = std::mem::replace(&mut line.first, key);
                    line.rest.insert(first);
                } else {
                    line.rest.insert(key);
                }
            }
        }
    }

    /// Removes a workload from its line.
    pub fn remove(&mut self, key: &HeapKey, class: ClassId, local: LocalQueueId) {
        self.detach();
        self.unlink(key, class, local);
    }

    fn unlink(&mut self, key: &HeapKey, class: ClassId, local: LocalQueueId) {
        let id = (class, key.lane);
        let inadmissible = self.no_fit_reason(class).is_some();
        let Some(line) = self.lines.get_mut(&id) else {
            debug_assert!(false, "a workload's class changed while it waited");
            return;
        };
        self.waiting -= 1;
        self.active -= usize::from(!inadmissible);
        if inadmissible {
            count_one(&mut self.inadmissible_locals, local, false);
        }
        line.count_local(local, false);
        line.unreported.remove(&key.id);
        if line.first != *key {
            let removed = line.rest.remove(key);
            debug_assert!(removed, "a workload's key changed while it waited");
            return;
        }
        if !inadmissible {
            self.heads.remove(&(line.first.clone(), class));
        }
        match line.rest.pop_first() {
            Some(next) => {
                if !inadmissible {
                    self.heads.insert((next.clone(), class));
                }
                line.first = next;
            }
            None => {
                self.lines.remove(&id);
            }
        }
    }

    /// Makes one workload inadmissible for a reason of its own.
    pub fn insert_inadmissible(&mut self, id: WorkloadId, class: ClassId, local: LocalQueueId) {
        if self.inadmissible_alone.insert(id) {
            count_one(&mut self.inadmissible_alone_classes, class, true);
            count_one(&mut self.inadmissible_locals, local, true);
        }
    }

    /// Removes a workload that is inadmissible for a reason of its own.
    pub fn remove_inadmissible(&mut self, id: WorkloadId, class: ClassId, local: LocalQueueId) {
        if self.inadmissible_alone.remove(&id) {
            count_one(&mut self.inadmissible_alone_classes, class, false);
            count_one(&mut self.inadmissible_locals, local, false);
        }
    }

    /// Workloads that are inadmissible for reasons of their own.
    pub fn inadmissible_alone(&self) -> Vec<WorkloadId> {
        self.inadmissible_alone.iter().copied().collect()
    }

    /// Workloads of inadmissible lines.
    pub fn inadmissible_in_lines(&self) -> Vec<WorkloadId> {
        self.in_inadmissible_lines().collect()
    }

    fn in_inadmissible_lines(&self) -> impl Iterator<Item = WorkloadId> {
        let lines = self.no_fit.iter().flat_map(|(class, _)| self.lines.range(lines_of(*class)));
        lines.flat_map(|(_, line)| line.keys()).map(|key| key.id)
    }

    /// The popped workload, while the cycle decides it.
    pub fn in_flight(&self) -> Option<WorkloadId> {
        self.in_flight
    }

    /// Marks a workload in line, of this class, lane and local queue, as popped. `key` is called
    /// only if the workload is not the first in its line.
    pub fn pop(
        &mut self,
        workload: WorkloadId,
        (class, lane): (ClassId, LocalQueueId),
        local: LocalQueueId,
        key: impl FnOnce() -> HeapKey,
    ) {
        self.detach();
        self.in_flight = Some(workload);
        let id = (class, lane);
        if self.lines.get(&id).is_some_and(|line| line.first.id == workload) {
            self.attached = Some((id, local));
            self.waiting -= 1;
            self.active -= 1;
        } else {
            self.unlink(&key(), class, local);
        }
    }

    /// Removes the popped workload from the queue.
    pub fn land(&mut self) {
        self.detach();
        self.in_flight = None;
    }

    /// Returns the popped workload to its line, if it is still in it. The line must not be
    /// inadmissible. True if it was returned. `reported` is as for [`PendingQueue::insert`].
    pub fn put_back(&mut self, reported: bool) -> bool {
        let (Some(id), Some(line)) = (self.in_flight, self.attached.and_then(|(line, _)| self.lines.get_mut(&line)))
        else {
            return false;
        };
        if reported {
            line.unreported.remove(&id);
        } else if line.reported.is_some() {
            line.unreported.insert(id);
        }
        self.attached = None;
        self.in_flight = None;
        self.waiting += 1;
        self.active += 1;
        true
    }

    /// Removes the popped workload from its line. Called before the first workload of a line is
    /// read, and before a sort key changes.
    pub fn detach(&mut self) {
        let Some((id, local)) = self.attached.take() else { return };
        self.waiting += 1;
        self.active += 1;
        if let Some(key) = self.lines.get(&id).map(|line| line.first.clone()) {
            self.unlink(&key, id.0, local);
        }
    }

    /// Makes a class inadmissible (§4.8). Returns the workloads for which this reason was not
    /// reported yet, without `except`.
    pub fn mark_class_inadmissible(
        &mut self,
        class: ClassId,
        reason: PendingReason,
        except: WorkloadId,
    ) -> Vec<WorkloadId> {
        self.detach();
        match self.no_fit.binary_search_by_key(&class, |(class, _)| *class) {
            Ok(at) => {
                self.no_fit[at].1 = reason;
                return Vec::new();
            }
            Err(at) => self.no_fit.insert(at, (class, reason)),
        }
        let mut unreported = Vec::new();
        for line in self.lines.range_mut(lines_of(class)).map(|(_, line)| line) {
            self.heads.remove(&(line.first.clone(), class));
            self.active -= 1 + line.rest.len();
            for (local, count) in &line.locals {
                *self.inadmissible_locals.entry(*local).or_default() += count;
            }
            if line.reported == Some(reason) {
                unreported.extend(std::mem::take(&mut line.unreported));
            } else {
                unreported.extend(line.keys().map(|key| key.id).filter(|id| *id != except));
                line.reported = Some(reason);
                line.unreported.clear();
            }
        }
        unreported
    }

    /// The reason why a workload's class is inadmissible, if it was not reported for the workload
    /// yet. From then on it counts as reported.
    pub fn take_unreported_reason(
        &mut self,
        class: ClassId,
        lane: LocalQueueId,
        workload: WorkloadId,
    ) -> Option<PendingReason> {
        let reason = self.no_fit_reason(class)?;
        let line = self.lines.get_mut(&(class, lane))?;
        // If no reason was reported for its line, the workload is included when the class becomes
        // inadmissible again.
        (line.unreported.remove(&workload) || line.reported != Some(reason)).then_some(reason)
    }

    /// Makes one class active again, because one of its workloads returns to the heap. Earlier
    /// results for the class are dropped.
    pub fn reactivate_class(&mut self, class: ClassId) {
        let Ok(at) = self.no_fit.binary_search_by_key(&class, |(class, _)| *class) else { return };
        self.no_fit.remove(at);
        self.line_up(class);
    }

    /// Returns the lines of an inadmissible class to the heap.
    fn line_up(&mut self, class: ClassId) {
        for line in self.lines.range(lines_of(class)).map(|(_, line)| line) {
            self.active += 1 + line.rest.len();
            self.heads.insert((line.first.clone(), class));
            for (local, count) in &line.locals {
                if let Some(inadmissible) = self.inadmissible_locals.get_mut(local) {
                    *inadmissible -= count;
                    if *inadmissible == 0 {
                        self.inadmissible_locals.remove(local);
                    }
                }
            }
        }
    }

    /// The reason why a class is inadmissible; `None` if it is not.
    pub fn no_fit_reason(&self, class: ClassId) -> Option<PendingReason> {
        self.no_fit.binary_search_by_key(&class, |(class, _)| *class).ok().map(|at| self.no_fit[at].1)
    }

    /// Forgets which classes are inadmissible. Only for a queue without workloads in line.
    pub fn forget_no_fit(&mut self) {
        debug_assert!(
            self.in_inadmissible_lines().next().is_none(),
            "the queue has an inadmissible line, which would be lost"
        );
        self.no_fit.clear();
    }

    /// Makes all inadmissible classes active again. The workload in flight may then return to the
    /// heap (§4.5). Returns the number of workloads that may be popped again.
    pub fn reactivate(&mut self) -> usize {
        self.flush_cycle = Some(self.pop_cycle);
        let before = self.active;
        let mut classes = std::mem::take(&mut self.no_fit);
        for (class, _) in &classes {
            self.line_up(*class);
        }
        classes.clear();
        self.no_fit = classes;
        self.active - before
    }

    /// True if a flush came after the last pop.
    pub fn was_flushed_since_pop(&self) -> bool {
        self.flush_cycle.is_some_and(|at| at >= self.pop_cycle)
    }
}
