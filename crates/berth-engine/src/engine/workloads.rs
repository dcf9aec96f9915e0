//! Events about workloads: how a new version of an object changes the quota it holds and the place
//! where it waits.

use std::sync::Arc;

use super::{Effects, Engine, hold};
use crate::config::FeatureGates;
use crate::decision::{PendingReason, RequeueReason};
use crate::ids::{Name, QueueId, WorkloadId};
use crate::model::{Admission, PodSet, StopPolicy, Time, Workload, WorkloadKey};
use crate::waiting::is_queueable;
use crate::waiting::order::{effective_priority, order_time};
use crate::waiting::second_pass::needs_second_pass;
use crate::world::record::Place;
use crate::world::{PodSetInfo, Record, Shape, World};

impl Engine {
    /// Applies the newest version of a workload.
    pub(super) fn upsert_workload(&mut self, workload: Workload, effects: &mut Effects, now: Time) {
        let (id, relevant) = match self.world.workloads.id(&workload.key) {
            Some(id) => {
                let priority = self.world.record(id).priority;
                let relevant = self.update_record(id, workload);
                let record = self.world.record(id);
                if let Some(holding) = record.holding.as_ref().filter(|_| record.priority != priority) {
                    // Other workloads may be able to preempt this workload now (§4.7).
                    self.request_flush(holding.queue, now);
                }
                (id, relevant)
            }
            None => (self.insert_workload(workload), true),
        };
        self.settle(id, relevant, effects, now);
    }

    fn insert_workload(&mut self, mut facts: Workload) -> WorkloadId {
        let world = &mut self.world;
        let shape = compile_shape(world, &facts.pod_sets);
        facts.pod_sets = Vec::new();
        let shape = world.workloads.share_shape(shape);
        let priority = effective_priority(&facts, &world.config);
        let class = world.workloads.class(priority, &shape, allowed_flavors(&facts));
        let local = world.local_id(&facts.key.namespace, &facts.queue);
        let order_time = order_time(&facts, &world.config);
        let id = world.workloads.insert(Record {
            facts: Box::new(facts),
            shape,
            class,
            local,
            priority,
            order_time,
            holding: None,
            scan: None,
            evaluated_generation: i64::MIN,
            eviction_expected: false,
            place: Place::None,
        });
        world.local_mut(local).members.insert(id);
        id
    }

    /// Replaces a record's facts. True if the change can affect a decision (§4.3).
    fn update_record(&mut self, id: WorkloadId, mut facts: Workload) -> bool {
        let world = &mut self.world;
        let priority = effective_priority(&facts, &world.config);
        let order = order_time(&facts, &world.config);
        // Most versions of an object differ in status only.
        let record = world.record(id);
        let (mut shape, mut class, mut local) = (record.shape.clone(), record.class, record.local);
        let same_shape = is_shape(world, &shape, &facts.pod_sets);
        let same_class =
            same_shape && record.priority == priority && allowed_flavors(&record.facts) == allowed_flavors(&facts);
        let same_local = record.facts.queue == facts.queue;
        if !same_shape {
            let compiled = compile_shape(world, &facts.pod_sets);
            shape = world.workloads.share_shape(compiled);
        }
        if !same_class {
            class = world.workloads.class(priority, &shape, allowed_flavors(&facts));
        }
        if !same_local {
            local = world.local_id(&facts.key.namespace, &facts.queue);
        }
        facts.pod_sets = Vec::new();
        let record = world.record(id);
        let old = &record.facts;
        let relevant = !Arc::ptr_eq(&record.shape, &shape)
            || record.class != class
            || record.local != local
            || (facts.generation != old.generation && facts.generation != record.evaluated_generation)
            || old.priority != facts.priority
            || old.priority_boost != facts.priority_boost
            || old.active != facts.active
            || old.deleting != facts.deleting
            || old.evicted != facts.evicted
            || old.requeued != facts.requeued
            || old.requeue_at != facts.requeue_at
            || old.preemption_gated != facts.preemption_gated
            || old.inadmissible != facts.inadmissible;
        // The heap is ordered by the record: remove the workload before the record changes.
        let reorders = record.priority != priority
            || record.order_time != order
            || record.class != class
            || record.local != local
            || old.uid != facts.uid;
        let place = record.place;
        match place {
            Place::Queued(_) if reorders => self.pending_queues.take_out(&mut self.world, id),
            // Inadmissible workloads are counted by class and local queue. The workload gets its
            // place again after this change.
            Place::Inadmissible(_) if record.class != class || record.local != local => {
                self.pending_queues.take_out(&mut self.world, id);
            }
            Place::InFlight(queue) if reorders => self.pending_queues.detach(queue),
            _ => {}
        }
        let world = &mut self.world;
        if world.record(id).local != local {
            world.set_local(id, local);
        }
        let record = world.record_mut(id);
        if is_assumed(record) && facts.reserved_at.is_none() {
            // This is an older version of the object, from before the decision on the reservation.
            facts.reserved_at = record.facts.reserved_at;
        }
        if facts.evicted.is_some() || facts.admission.is_none() {
            record.eviction_expected = record.eviction_expected && facts.evicted.is_none() && facts.admission.is_some();
        }
        world.workloads.set_facts(id, facts);
        world.set_shape(id, shape);
        let record = world.record_mut(id);
        record.class = class;
        record.priority = priority;
        record.order_time = order;
        relevant || reorders
    }

    /// Updates the quota that a workload holds, and the place where it waits, to match its facts.
    fn settle(&mut self, id: WorkloadId, relevant: bool, effects: &mut Effects, now: Time) {
        self.note_queues(id, effects);
        let record = self.world.record(id);
        let facts = &record.facts;
        let is_over = facts.deleting || !facts.active;
        if facts.finished || (is_over && facts.admission.is_none() && !is_assumed(record)) {
            let held = hold::release(&mut self.world, id);
            self.pending_queues.forget(&mut self.world, id);
            if let Some(queue) = held {
                self.request_flush(queue, now);
            }
            self.drop_penalty(id);
            return;
        }
        if let Some(name) = facts.admission.as_ref().map(|admission| admission.cluster_queue.clone()) {
            return self.settle_admission(id, &name, relevant, effects, now);
        }
        if is_assumed(self.world.record(id)) {
            return;
        }
        if let Some(queue) = hold::release(&mut self.world, id) {
            // The workload's penalty stays, because the workload is about to be admitted again with
            // the same penalty.
            self.request_flush(queue, now);
        }
        self.queue_up(id, relevant, now);
    }

    /// Updates the quota that a workload with an admission holds.
    fn settle_admission(&mut self, id: WorkloadId, name: &Name, relevant: bool, effects: &mut Effects, now: Time) {
        let facts = &self.world.record(id).facts;
        let admitted = facts.admitted;
        if facts.has_variants && self.world.config.gates.concurrent_admission {
            // The workload runs as one of its variants, which holds the quota (§23).
            hold::release(&mut self.world, id);
            self.pending_queues.forget(&mut self.world, id);
            return;
        }
        let queue = self.world.queue_id(name);
        let record = self.world.record(id);
        let known = record
            .holding
            .as_ref()
            .filter(|holding| holding.queue == queue && record.facts.admission.as_ref() == Some(&holding.admission));
        let same = known.is_some();
        let confirmed = known.is_some_and(|known| known.assumed && Arc::ptr_eq(&known.shape, &record.shape));
        let unchanged = known.is_some_and(|known| !known.assumed && !relevant && known.admitted == admitted);
        if record.place != Place::None {
            self.pending_queues.forget(&mut self.world, id);
        }
        if confirmed {
            // This confirms the assumed admission, which is already counted.
            hold::confirm(&mut self.world, id, admitted);
            if admitted {
                self.settle_penalty(id, now);
            }
        } else if let Some(admission) = self.world.record(id).facts.admission.clone().filter(|_| !unchanged) {
            self.hold_anew(id, queue, admission, admitted, now);
            if admitted && self.world.record(id).facts.active {
                self.settle_penalty(id, now);
            }
        }
        if needs_second_pass(&self.world.record(id).facts) {
            self.pending_queues.second_pass.schedule(id, now);
        } else {
            self.pending_queues.second_pass.forget(id);
        }
        if !same {
            self.note_queues(id, effects);
        }
    }

    /// Replaces the quota that a workload holds, and flushes its earlier queue if that frees some.
    fn hold_anew(&mut self, id: WorkloadId, queue: QueueId, admission: Admission, admitted: bool, now: Time) {
        let generation = self.world.queue(queue).generation;
        let before = self.world.record(id).holding.clone();
        hold::release(&mut self.world, id);
        hold::hold(&mut self.world, id, queue, admission, admitted, false);
        let after = self.world.record(id).holding.clone();
        let freed = match (&before, &after) {
            (Some(before), Some(after)) => {
                before.queue != after.queue
                    || before.usage.iter().any(|(fr, amount)| crate::quota::amount_of(&after.usage, *fr) < *amount)
            }
            _ => false,
        };
        if freed {
            let queue = before.map_or(queue, |holding| holding.queue);
            self.request_flush(queue, now);
        } else {
            // Confirming or refining an admission that is already counted frees no quota.
            self.world.queue_mut(queue).generation = generation;
        }
    }

    /// Puts a workload without quota into its place in its queue, if it may wait there.
    pub(super) fn queue_up(&mut self, id: WorkloadId, relevant: bool, now: Time) {
        let record = self.world.record(id);
        let queue = self.waiting_queue(id);
        match queue {
            Some(queue)
                if is_queueable(&record.facts, &self.world.config.gates) && !self.world.has_variants(id, queue) =>
            {
                if record.place.queue().is_some_and(|at| at != queue) {
                    self.pending_queues.forget(&mut self.world, id);
                }
                self.pending_queues.push_or_update(&mut self.world, queue, id, relevant, now);
            }
            _ => self.pending_queues.forget(&mut self.world, id),
        }
    }

    /// The cluster queue for which a workload waits, if its local queue routes to one and is not
    /// stopped.
    pub(crate) fn waiting_queue(&self, id: WorkloadId) -> Option<QueueId> {
        let local = self.world.local(self.world.record(id).local);
        let spec = local.spec.as_ref()?;
        if spec.stop_policy != StopPolicy::None {
            return None;
        }
        local.queue.filter(|queue| self.world.queue(*queue).spec.is_some())
    }

    /// Removes a workload.
    pub(super) fn remove_workload(&mut self, key: &WorkloadKey, effects: &mut Effects, now: Time) {
        let Some(id) = self.world.workloads.id(key) else { return };
        self.note_queues(id, effects);
        let held = hold::release(&mut self.world, id);
        let waited_in = self.world.record(id).place.queue();
        self.pending_queues.forget(&mut self.world, id);
        self.drop_penalty(id);
        let local = self.world.record(id).local;
        self.world.local_mut(local).members.remove(&id);
        self.world.workloads.remove(id);
        if let Some(queue) = held.or(waited_in) {
            self.request_flush(queue, now);
        }
    }

    /// Reverts an assumed admission whose write failed.
    pub(super) fn admission_failed(&mut self, key: &WorkloadKey, effects: &mut Effects, now: Time) {
        let Some(id) = self.world.workloads.id(key) else { return };
        if !is_assumed(self.world.record(id)) {
            return;
        }
        self.note_queues(id, effects);
        let admission = self.world.record(id).facts.admission.clone();
        let released = hold::release(&mut self.world, id);
        self.drop_penalty(id);
        if let Some(admission) = admission {
            // The write of a second pass failed. The workload keeps the quota that it held before.
            let queue = self.world.queue_id(&admission.cluster_queue);
            let admitted = self.world.record(id).facts.admitted;
            hold::hold(&mut self.world, id, queue, admission, admitted, false);
            self.pending_queues.second_pass.schedule(id, now);
            return;
        }
        self.world.record_mut(id).facts.reserved_at = None;
        match self.waiting_queue(id) {
            Some(queue) => {
                let (reason, shown) = (RequeueReason::FailedAfterNomination, PendingReason::PendingEvaluation);
                self.pending_queues.requeue(&mut self.world, queue, id, reason, shown, now);
            }
            None => self.pending_queues.forget(&mut self.world, id),
        }
        // Other workloads may have become inadmissible because of the quota that it was assigned.
        if let Some(queue) = released {
            self.request_flush(queue, now);
        }
    }
}

fn is_assumed(record: &Record) -> bool {
    record.holding.as_ref().is_some_and(|holding| holding.assumed)
}

/// The flavors that a concurrent-admission variant may use.
fn allowed_flavors(facts: &Workload) -> &[Name] {
    facts.variant.as_ref().map(|variant| variant.allowed_flavors.as_slice()).unwrap_or_default()
}

/// True if pod sets compile to exactly this shape.
fn is_shape(world: &World, shape: &Shape, pod_sets: &[PodSet]) -> bool {
    let gates = &world.config.gates;
    shape.pod_sets.len() == pod_sets.len()
        && shape.pod_sets.iter().zip(pod_sets).all(|(info, set)| {
            info.name == set.name
                && info.spec_count == set.count
                && info.count == effective_count(set, gates)
                && info.min_count == set.min_count.filter(|_| gates.partial_admission)
                && info.requests.len() == set.requests.len()
                && info
                    .requests
                    .iter()
                    .zip(&set.requests)
                    .all(|((id, amount), (name, wanted))| amount == wanted && world.resource_name(*id) == name)
                && (Arc::ptr_eq(&info.template, &set.template) || info.template == set.template)
                && info.topology == set.topology
        })
}

/// Pods that still need quota (§2.3).
fn effective_count(set: &PodSet, gates: &FeatureGates) -> i32 {
    if gates.reclaimable_pods { (set.count - set.reclaimable).max(0) } else { set.count }
}

/// Turns pod sets into a shape, with ids in place of names.
pub(crate) fn compile_shape(world: &mut World, pod_sets: &[PodSet]) -> Shape {
    let sets = pod_sets.iter().map(|set| {
        let count = effective_count(set, &world.config.gates);
        let min_count = set.min_count.filter(|_| world.config.gates.partial_admission);
        let requests = set.requests.iter().map(|(name, amount)| (world.resources.intern(name), *amount)).collect();
        PodSetInfo::new(set, count, min_count, requests)
    });
    Shape::new(sets.map(Arc::new).collect())
}
