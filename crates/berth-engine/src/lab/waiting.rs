//! Functions on waiting workloads: popping, requeueing, flushing.

use std::collections::BTreeMap;

use super::Lab;
use crate::assignment::ScanState;
use crate::cycle::{Entry, put_back};
use crate::decision::{CycleOutcome, Decision, PendingReason, RequeueReason, WaitCause};
use crate::ids::Name;
use crate::model::{StopPolicy, Time, WorkloadKey};
use crate::waiting::is_queueable;

/// Why a workload is not in a queue (§4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotQueued {
    /// The workload is finished, inactive, on hold, gated, or holds quota.
    NotQueueable,
    /// The workload's local queue does not exist or is stopped.
    NoLocalQueue,
    /// The cluster queue of the workload's local queue does not exist.
    NoClusterQueue,
}

impl Lab<'_> {
    /// Pops the head of a queue's heap.
    pub fn pop(&mut self, queue: &str) -> Option<WorkloadKey> {
        let queue = self.queue(queue)?;
        let (id, _) = self.engine.pending_queues.pop(&mut self.engine.world, queue)?;
        Some(self.engine.world.record(id).key().clone())
    }

    /// Removes a workload from its queue, as if it had been popped some time ago.
    pub fn take_out(&mut self, workload: &WorkloadKey) {
        if let Some(id) = self.engine.world.workloads.id(workload) {
            self.engine.pending_queues.take_out(&mut self.engine.world, id);
        }
    }

    /// Requeues a popped workload. Returns whether this queued it, and whether it is in the heap.
    pub fn requeue(
        &mut self,
        workload: &WorkloadKey,
        reason: RequeueReason,
        shown: PendingReason,
        now: Time,
    ) -> (bool, bool) {
        let Some(id) = self.engine.world.workloads.id(workload) else { return (false, false) };
        let Some(queue) = self.engine.waiting_queue(id) else { return (false, false) };
        let requeued = self.engine.pending_queues.requeue(&mut self.engine.world, queue, id, reason, shown, now);
        (requeued.added, requeued.active)
    }

    /// Ends a popped workload's cycle: it returns to its queue for a cause (§5.10).
    pub fn put_back(&mut self, workload: &WorkloadKey, cause: WaitCause, now: Time) -> Option<Decision> {
        let id = self.engine.world.workloads.id(workload)?;
        let queue = self.engine.waiting_queue(id)?;
        let mut entry = Entry::new(id, queue, false, false);
        let mut outcome = CycleOutcome::default();
        let (world, pending_queues) = (&mut self.engine.world, &mut self.engine.pending_queues);
        put_back(world, pending_queues, &mut entry, cause, Vec::new(), &mut outcome, now);
        outcome.decisions.pop()
    }

    /// Records the progress of the search through a workload's flavors: per pod set, an index per
    /// resource.
    pub fn set_scan(&mut self, workload: &WorkloadKey, tried: &[BTreeMap<Name, i32>]) {
        let Some(id) = self.engine.world.workloads.id(workload) else { return };
        let world = &mut self.engine.world;
        let mut scan = ScanState::default();
        for (at, set) in tried.iter().enumerate() {
            for (resource, index) in set {
                scan.note(at, world.resources.intern(resource), *index);
            }
        }
        world.record_mut(id).scan = Some(Box::new(scan));
    }

    /// The sticky workload of a queue: it waits for preemptions that it started, and goes first.
    pub fn sticky(&self, queue: &str) -> Option<WorkloadKey> {
        let id = self.queue(queue)?;
        let spec = self.engine.world.queue(id).spec.as_ref()?;
        let (preemptor, _) = self.engine.pending_queues.get(id)?.preemptor?;
        (spec.strategy == crate::model::QueueingStrategy::BestEffortFifo)
            .then(|| self.engine.world.record(preemptor).key().clone())
    }

    /// Sets or clears the workload of a queue that waits for preemptions that it started.
    pub fn set_preemptor(&mut self, queue: &str, workload: Option<&WorkloadKey>) {
        let Some(queue) = self.queue(queue) else { return };
        let id = workload.and_then(|key| self.engine.world.workloads.id(key));
        let preemptor = id.map(|id| (id, self.engine.world.record(id).facts.generation));
        self.engine.pending_queues.get_or_insert(queue).preemptor = preemptor;
    }

    /// The reason why a workload's class is inadmissible; `None` if it is not.
    pub fn inadmissible_class_reason(&self, queue: &str, workload: &WorkloadKey) -> Option<PendingReason> {
        let world = &self.engine.world;
        let class = world.record(world.workloads.id(workload)?).class;
        self.engine.pending_queues.get(self.queue(queue)?)?.no_fit_reason(class)
    }

    /// Moves the inadmissible workloads of a queue's tree back to the heap; returns the number
    /// moved.
    pub fn flush(&mut self, queue: &str, now: Time) -> usize {
        let Some(id) = self.queue(queue) else { return 0 };
        let root = self.engine.world.tree.node(self.engine.world.queue(id).node).root;
        self.engine.pending_queues.flush(&mut self.engine.world, root, now)
    }

    /// Carries out every requested flush, due or not, one pass per tree. Returns the number of
    /// workloads moved for each tree whose cohorts form no cycle.
    pub fn flush_requested(&mut self, now: Time) -> Vec<usize> {
        let mut moved = Vec::new();
        for root in self.engine.pending_queues.due_flushes(Time(i64::MAX)) {
            let count = self.engine.pending_queues.flush(&mut self.engine.world, root, now);
            if !self.engine.world.tree.node(root).cyclic {
                moved.push(count);
            }
        }
        moved
    }

    /// Workloads whose second pass is due.
    pub fn second_pass_due(&mut self, now: Time) -> Vec<WorkloadKey> {
        let due = self.engine.pending_queues.second_pass.take_due(now);
        due.into_iter().map(|id| self.engine.world.record(id).key().clone()).collect()
    }

    /// True if a second pass is scheduled for a workload.
    pub fn awaits_second_pass(&self, workload: &WorkloadKey) -> bool {
        self.engine.world.workloads.id(workload).is_some_and(|id| self.engine.pending_queues.second_pass.awaits(id))
    }

    /// Why a workload is not in any queue. `None` if it is in a queue, or does not exist.
    pub fn why_not_queued(&self, workload: &WorkloadKey) -> Option<NotQueued> {
        let world = &self.engine.world;
        let id = world.workloads.id(workload)?;
        let record = world.record(id);
        if record.place.queue().is_some() {
            return None;
        }
        let local = world.local(record.local);
        Some(match local.spec.as_ref() {
            _ if !is_queueable(&record.facts, &world.config.gates) => NotQueued::NotQueueable,
            Some(spec) if spec.stop_policy == StopPolicy::None => NotQueued::NoClusterQueue,
            _ => NotQueued::NoLocalQueue,
        })
    }

    /// True if a workload has no back-off, or it has expired (§4.6).
    pub fn is_backoff_over(&self, workload: &WorkloadKey, now: Time) -> bool {
        let world = &self.engine.world;
        world.workloads.id(workload).is_some_and(|id| crate::waiting::is_backoff_over(&world.record(id).facts, now))
    }

    /// True if a workload waits in some queue.
    pub fn is_waiting(&self, workload: &WorkloadKey) -> bool {
        let world = &self.engine.world;
        world.workloads.id(workload).is_some_and(|id| world.record(id).place.queue().is_some())
    }
}
