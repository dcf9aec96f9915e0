//! Waiting workloads: one [`PendingQueue`] per cluster queue, and the moves of workloads within and
//! between them (§3, §4).
//!
//! A pending queue has three disjoint places: the active heap, the inadmissible workloads, and the
//! popped workload. Nothing is polled: an event that can change a decision moves exactly the
//! workloads that it concerns.

pub(crate) mod order;
pub(crate) mod pending_queue;
pub(crate) mod second_pass;

use std::collections::{BTreeMap, BTreeSet};

use crate::config::FeatureGates;
use crate::decision::{PendingReason, RequeueReason};
use crate::ids::{Id, IdSet, NodeId, QueueId, WorkloadId};
use crate::model::{QueueingStrategy, Time, Workload, WorkloadKey};
use crate::world::World;
use crate::world::record::Place;

use pending_queue::PendingQueue;
use second_pass::SecondPass;

/// The pending queues of all cluster queues, with the flushes and second passes that are scheduled.
#[derive(Debug, Default)]
pub(crate) struct PendingQueues {
    queues: Vec<PendingQueue>,
    /// Queues that have a workload that may be popped.
    candidates: IdSet<QueueId>,
    /// Trees whose inadmissible workloads are to be tried again, and when (§4.7).
    flushes: BTreeMap<NodeId, Time>,
    /// The trees of `flushes`, ordered by time.
    flush_times: BTreeSet<(Time, NodeId)>,
    pub second_pass: SecondPass,
    /// Workloads that joined an inadmissible class and whose condition still shows why they were
    /// evicted, or that are new ([`report_represented`](crate::EngineConfig::report_represented)).
    /// The reason why they wait now was not reported yet.
    pub to_report: Vec<WorkloadKey>,
}

/// True if a workload may wait in a queue at all (§4.1). Does not consider variants that wait in
/// its place ([`World::has_variants`]).
pub(crate) fn is_queueable(facts: &Workload, gates: &FeatureGates) -> bool {
    let gated = gates.admission_gated_by && facts.admission_gated;
    let held_back = facts.on_hold || facts.waiting_for_replacement_pods;
    facts.active && !facts.deleting && facts.admission.is_none() && !(gated || held_back || facts.finished)
}

/// True if a workload has no back-off, or it has expired (§4.6).
pub(crate) fn is_backoff_over(facts: &Workload, now: Time) -> bool {
    facts.requeued != Some(false) && facts.requeue_at.is_none_or(|at| at.seconds() <= now.seconds())
}

/// Result of requeueing a workload.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Requeued {
    /// True if it is queued now and was not before.
    pub added: bool,
    /// True if it went to the heap.
    pub active: bool,
    /// Equivalent workloads that became inadmissible with it (§4.8).
    pub bypassed: Vec<WorkloadId>,
}

impl PendingQueues {
    pub fn get(&self, queue: QueueId) -> Option<&PendingQueue> {
        self.queues.get(queue.index())
    }

    pub fn get_or_insert(&mut self, queue: QueueId) -> &mut PendingQueue {
        while self.queues.len() <= queue.index() {
            self.queues.push(PendingQueue::default());
        }
        &mut self.queues[queue.index()]
    }

    /// Puts a new or changed workload in its place (§4.3). `relevant` is true if the change can
    /// affect a decision.
    pub fn push_or_update(&mut self, world: &mut World, queue: QueueId, id: WorkloadId, relevant: bool, now: Time) {
        let strategy = strategy(world, queue);
        let record = world.record(id);
        let class_is_inadmissible = self.get_or_insert(queue).no_fit_reason(record.class).is_some();
        let backoff_over = is_backoff_over(&record.facts, now);
        match record.place {
            Place::InFlight(at) if at == queue => return,
            Place::Inadmissible(at) if at == queue && !relevant => return,
            // Its sort key has not changed. A workload whose key changes is removed first.
            Place::Queued(at) if at == queue && (!class_is_inadmissible || (backoff_over && !relevant)) => return,
            _ => {}
        }
        self.take_out(world, id);
        let class_is_inadmissible = class_is_inadmissible && strategy == QueueingStrategy::BestEffortFifo;
        let selected = world.is_selected(queue, world.record(id).local);
        if !backoff_over || (class_is_inadmissible && !selected) {
            self.mark_inadmissible(world, queue, id);
            if backoff_over && world.config.report_represented {
                self.to_report.push(world.record(id).key().clone());
            }
        } else {
            self.put_in_line(world, queue, id, false);
            let config = &world.config;
            let reports_new = config.report_represented || config.gates.unadmitted_workloads_explicit_status;
            let record = world.record(id);
            if class_is_inadmissible && (record.facts.evicted.is_some() || reports_new) {
                self.to_report.push(record.key().clone());
            }
        }
    }

    /// The reason why a workload's class is inadmissible, if it was not reported for the workload
    /// yet. From then on it counts as reported.
    pub fn take_unreported_reason(&mut self, world: &World, id: WorkloadId) -> Option<PendingReason> {
        let record = world.record(id);
        let Place::Queued(queue) = record.place else { return None };
        let (class, lane) = (record.class, order::lane(world, queue, id));
        self.get_or_insert(queue).take_unreported_reason(class, lane, id)
    }

    /// Requeues a popped workload (§4.4, §4.5). It is not added again if it may no longer wait.
    pub fn requeue(
        &mut self,
        world: &mut World,
        queue: QueueId,
        id: WorkloadId,
        reason: RequeueReason,
        shown: PendingReason,
        now: Time,
    ) -> Requeued {
        let gates = world.config.gates.clone();
        let strategy = strategy(world, queue);
        let record = world.record(id);
        let generation = record.facts.generation;
        let (class, local) = (record.class, record.local);
        let class_is_inadmissible = self.get_or_insert(queue).no_fit_reason(class).is_some();
        if matches!(record.place, Place::Queued(_)) && !class_is_inadmissible {
            return Requeued { active: true, ..Requeued::default() };
        }
        let was_inadmissible = matches!(record.place, Place::Inadmissible(_) | Place::Queued(_));
        let queueable =
            is_queueable(&record.facts, &gates) && record.holding.is_none() && !world.has_variants(id, queue);
        let backoff_over = is_backoff_over(&record.facts, now);
        let more_flavors = record.scan.as_ref().is_some_and(|scan| scan.has_more_flavors());
        if !queueable {
            self.take_out(world, id);
            return Requeued::default();
        }
        let pending_queue = self.get_or_insert(queue);
        if matches!(reason, RequeueReason::PendingPreemption | RequeueReason::PendingMigration) {
            pending_queue.preemptor = Some((id, generation));
        }
        let immediate = match strategy {
            QueueingStrategy::StrictFifo => reason != RequeueReason::NamespaceMismatch,
            QueueingStrategy::BestEffortFifo => matches!(
                reason,
                RequeueReason::FailedAfterNomination
                    | RequeueReason::PendingPreemption
                    | RequeueReason::PendingMigration
                    | RequeueReason::PreemptionFailed
            ),
        };
        if backoff_over && (immediate || pending_queue.was_flushed_since_pop() || more_flavors) {
            self.put_back_in_line(world, queue, id, false);
            self.get_or_insert(queue).reactivate_class(class);
            self.note_candidates(queue);
            return Requeued { added: true, active: true, bypassed: Vec::new() };
        }
        if was_inadmissible {
            self.take_out(world, id);
            self.mark_inadmissible(world, queue, id);
            return Requeued::default();
        }
        let hashing = world.config.gates.scheduling_equivalence_hashing;
        if !hashing || strategy != QueueingStrategy::BestEffortFifo || !makes_class_inadmissible(reason) {
            self.take_out(world, id);
            self.mark_inadmissible(world, queue, id);
            return Requeued { added: true, active: false, bypassed: Vec::new() };
        }
        if backoff_over && world.is_selected(queue, local) {
            self.put_back_in_line(world, queue, id, true);
        } else {
            self.take_out(world, id);
            self.mark_inadmissible(world, queue, id);
        }
        let bypassed = self.get_or_insert(queue).mark_class_inadmissible(class, shown, id);
        self.note_candidates(queue);
        Requeued { added: true, active: false, bypassed }
    }

    /// Removes a workload from its queue: it was admitted, deleted, deactivated, or moved.
    pub fn forget(&mut self, world: &mut World, id: WorkloadId) {
        if let Some(queue) = world.record(id).place.queue() {
            let pending_queue = self.get_or_insert(queue);
            if pending_queue.preemptor.is_some_and(|(preemptor, _)| preemptor == id) {
                pending_queue.preemptor = None;
            }
        }
        self.take_out(world, id);
        self.second_pass.forget(id);
    }

    /// Removes a workload from its place.
    pub fn take_out(&mut self, world: &mut World, id: WorkloadId) {
        let place = world.set_place(id, Place::None);
        let (class, local) = (world.record(id).class, world.record(id).local);
        match place {
            Place::None => {}
            Place::Queued(queue) => {
                let key = order::key(world, queue, id);
                self.get_or_insert(queue).remove(&key, class, local);
                self.note_candidates(queue);
            }
            Place::Inadmissible(queue) => self.get_or_insert(queue).remove_inadmissible(id, class, local),
            Place::InFlight(queue) => self.get_or_insert(queue).land(),
        }
    }

    /// Puts a workload in the line of its class; see [`PendingQueue::insert`] for `reported`.
    fn put_in_line(&mut self, world: &mut World, queue: QueueId, id: WorkloadId, reported: bool) {
        world.set_place(id, Place::Queued(queue));
        let key = order::key(world, queue, id);
        let (class, local) = (world.record(id).class, world.record(id).local);
        let selected = world.is_selected(queue, local);
        let pending_queue = self.get_or_insert(queue);
        if !selected {
            // A flush must leave this workload inadmissible. Without `selection`, the flush checks
            // the namespace of each workload in line.
            pending_queue.selection = None;
        }
        pending_queue.insert(key, class, local, reported);
        self.note_candidates(queue);
    }

    /// Returns a popped workload to its line, or inserts it there if it has no place any more.
    fn put_back_in_line(&mut self, world: &mut World, queue: QueueId, id: WorkloadId, reported: bool) {
        if world.record(id).place == Place::InFlight(queue) && self.get_or_insert(queue).put_back(reported) {
            world.set_place(id, Place::Queued(queue));
            return;
        }
        self.take_out(world, id);
        self.put_in_line(world, queue, id, reported);
    }

    /// Prepares for a change to a popped workload's sort key.
    pub fn detach(&mut self, queue: QueueId) {
        self.get_or_insert(queue).detach();
    }

    fn mark_inadmissible(&mut self, world: &mut World, queue: QueueId, id: WorkloadId) {
        world.set_place(id, Place::Inadmissible(queue));
        let (class, local) = (world.record(id).class, world.record(id).local);
        self.get_or_insert(queue).insert_inadmissible(id, class, local);
    }

    /// Updates the set of queues with candidates.
    fn note_candidates(&mut self, queue: QueueId) {
        if self.queues[queue.index()].has_no_candidate() {
            self.candidates.remove(queue);
        } else {
            self.candidates.insert(queue);
        }
    }

    /// Pops the first workload of a queue's heap. The flag is set if it is the queue's sticky
    /// workload (§3.4).
    pub fn pop(&mut self, world: &mut World, queue: QueueId) -> Option<(WorkloadId, bool)> {
        let pending_queue = self.get_or_insert(queue);
        pending_queue.pop_cycle += 1;
        pending_queue.detach();
        let preemptor = pending_queue.preemptor;
        let id = order::first(world, queue, pending_queue, order::sticky(world, queue, pending_queue))?;
        let (class, lane) = (world.record(id).class, order::lane(world, queue, id));
        pending_queue.pop(id, (class, lane), world.record(id).local, || order::key(world, queue, id));
        self.note_candidates(queue);
        world.set_place(id, Place::InFlight(queue));
        let record = world.record(id);
        Some((id, preemptor == Some((id, record.facts.generation))))
    }

    /// The queues with a workload that may be popped.
    pub fn queues_with_candidates(&self) -> Vec<QueueId> {
        self.candidates.iter().collect()
    }

    /// True if a workload may be popped from a queue that takes part in cycles.
    pub fn has_schedulable_candidates(&self, world: &World) -> bool {
        self.candidates.iter().any(|queue| world.is_schedulable(queue))
    }

    /// True if some active queue has a workload that may be popped.
    pub fn has_candidates(&self, world: &World) -> bool {
        self.candidates.iter().any(|queue| world.queue(queue).is_active())
    }

    /// Requests another try for the inadmissible workloads of a tree, at `due` (§4.7).
    pub fn request_flush(&mut self, root: NodeId, due: Time) {
        match self.flushes.get(&root) {
            Some(&known) if known <= due => return,
            Some(&known) => self.flush_times.remove(&(known, root)),
            None => false,
        };
        self.flushes.insert(root, due);
        self.flush_times.insert((due, root));
    }

    /// When the next flush is due.
    pub fn next_flush(&self) -> Option<Time> {
        self.flush_times.first().map(|(at, _)| *at)
    }

    /// Takes the flushes that are due.
    pub fn due_flushes(&mut self, now: Time) -> Vec<NodeId> {
        let mut due = Vec::new();
        while let Some(&(at, root)) = self.flush_times.first().filter(|(at, _)| *at <= now) {
            self.flush_times.remove(&(at, root));
            self.flushes.remove(&root);
            due.push(root);
        }
        due.sort_unstable();
        due
    }

    /// Moves the inadmissible workloads of a tree back to the heap, because a change may have
    /// helped them. Returns the number of workloads moved.
    pub fn flush(&mut self, world: &mut World, root: NodeId, now: Time) -> usize {
        if world.tree.node(root).cyclic {
            return 0;
        }
        let queues = world.tree.queues_of_root(root).to_vec();
        queues.into_iter().map(|queue| self.flush_queue(world, queue, now)).sum()
    }

    /// Moves the inadmissible workloads of one queue back to the heap. Returns the number of
    /// workloads moved.
    pub fn flush_queue(&mut self, world: &mut World, queue: QueueId, now: Time) -> usize {
        if self.queues.len() <= queue.index() {
            return 0;
        }
        if self.get_or_insert(queue).selection != Some(world.selection) {
            self.mark_unselected_inadmissible(world, queue);
        }
        let pending_queue = self.get_or_insert(queue);
        let mut moved = pending_queue.reactivate();
        for id in pending_queue.inadmissible_alone() {
            let (local, backoff_over) = (world.record(id).local, is_backoff_over(&world.record(id).facts, now));
            if backoff_over && world.is_selected(queue, local) {
                self.take_out(world, id);
                self.put_in_line(world, queue, id, false);
                moved += 1;
            }
        }
        self.note_candidates(queue);
        moved
    }

    /// Takes workloads whose namespace the queue does not select out of inadmissible lines, and
    /// makes each inadmissible for that reason: a flush of the lines does not help them.
    fn mark_unselected_inadmissible(&mut self, world: &mut World, queue: QueueId) {
        let mut all_selected = true;
        for id in self.get_or_insert(queue).inadmissible_in_lines() {
            if !world.is_selected(queue, world.record(id).local) {
                self.take_out(world, id);
                self.mark_inadmissible(world, queue, id);
            }
        }
        let active: Vec<WorkloadId> = self.get_or_insert(queue).active().map(|key| key.id).collect();
        for id in active {
            all_selected &= world.is_selected(queue, world.record(id).local);
        }
        self.get_or_insert(queue).selection = all_selected.then_some(world.selection);
    }

    /// Number of inadmissible workloads of a queue.
    pub fn inadmissible(&self, queue: QueueId) -> usize {
        self.get(queue).map_or(0, PendingQueue::inadmissible_len)
    }

    /// Number of waiting workloads of a queue: in the heap, inadmissible, in flight.
    pub fn pending(&self, queue: QueueId) -> usize {
        self.get(queue).map_or(0, PendingQueue::len)
    }
}

/// True if a failure for this reason makes all equivalent workloads inadmissible (§4.8).
pub(crate) fn makes_class_inadmissible(reason: RequeueReason) -> bool {
    matches!(reason, RequeueReason::NoFit | RequeueReason::PreemptionNoCandidates)
}

fn strategy(world: &World, queue: QueueId) -> QueueingStrategy {
    world.queue(queue).spec.as_ref().map_or(QueueingStrategy::default(), |spec| spec.strategy)
}
