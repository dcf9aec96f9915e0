//! Order inside a queue (§3).

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;

use super::pending_queue::PendingQueue;
use crate::config::{EngineConfig, RequeuingTimestamp};
use crate::ids::{Id, LocalQueueId, Name, QueueId, WorkloadId};
use crate::model::{AdmissionScope, QueueingStrategy, Time, Workload, WorkloadKey};
use crate::world::World;
use crate::world::record::Place;

/// Sort key of a workload in its queue's heap; the smallest is popped first.
///
/// In usage-based queues (§16) the lane is the local queue. In other queues all workloads have the
/// same lane.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HeapKey {
    pub lane: LocalQueueId,
    priority: Reverse<i64>,
    time: Time,
    /// The UID, or the name if there is no UID. Workloads without a UID come first.
    tie: (bool, Name),
    pub id: WorkloadId,
}

impl HeapKey {
    /// A key before every workload of a lane.
    pub fn before_lane(lane: LocalQueueId) -> HeapKey {
        HeapKey {
            lane,
            priority: Reverse(i64::MAX),
            time: Time::UNSET,
            tie: (false, Name::default()),
            id: WorkloadId::from_index(0),
        }
    }
}

/// The heap key of a workload, from its current record.
pub(crate) fn key(world: &World, queue: QueueId, id: WorkloadId) -> HeapKey {
    let (record, lane) = (world.record(id), lane(world, queue, id));
    let facts = &record.facts;
    let tie = if facts.uid.is_empty() { (false, facts.key.name.clone()) } else { (true, facts.uid.clone()) };
    HeapKey { lane, priority: Reverse(record.priority), time: record.order_time, tie, id }
}

/// The lane of a workload; see [`HeapKey`].
pub(crate) fn lane(world: &World, queue: QueueId, id: WorkloadId) -> LocalQueueId {
    if is_usage_based(world, queue) { world.record(id).local } else { LocalQueueId::from_index(0) }
}

/// The workload to pop: by usage of the local queue in usage-based queues, then the sticky
/// workload, then by key (§3.3).
pub(crate) fn first(
    world: &World,
    queue: QueueId,
    pending_queue: &PendingQueue,
    sticky: Option<WorkloadId>,
) -> Option<WorkloadId> {
    let may_be_popped = |id: &WorkloadId| {
        let record = world.record(*id);
        record.place == Place::Queued(queue) && pending_queue.no_fit_reason(record.class).is_none()
    };
    let sticky = sticky.filter(may_be_popped);
    if !is_usage_based(world, queue) {
        return sticky
            .or_else(|| pending_queue.first().map(|key| preferred_variant(world, queue, key.id, may_be_popped)));
    }
    let sticky_key = sticky.map(|id| key(world, queue, id));
    let mut best: Option<(f64, HeapKey)> = None;
    let mut at = pending_queue.first();
    while let Some(head) = at {
        let head_of_lane = match &sticky_key {
            Some(sticky) if sticky.lane == head.lane => sticky,
            _ => head,
        };
        let usage = world.local_usage(head.lane);
        let better = best.as_ref().is_none_or(|(least, key)| {
            let rank = |key: &HeapKey| (Some(key.id) != sticky, key.priority, key.time, key.tie.clone());
            usage.total_cmp(least).then_with(|| rank(head_of_lane).cmp(&rank(key))) == Ordering::Less
        });
        if better {
            best = Some((usage, head_of_lane.clone()));
        }
        at = pending_queue.first_from_lane(LocalQueueId::from_index(head.lane.index() + 1));
    }
    best.map(|(_, key)| key.id)
}

/// The sticky workload of a queue, if it goes first. Strict queues order by priority and age alone
/// (§3.4).
pub(crate) fn sticky(world: &World, queue: QueueId, pending_queue: &PendingQueue) -> Option<WorkloadId> {
    let (id, _) = pending_queue.preemptor?;
    (super::strategy(world, queue) == QueueingStrategy::BestEffortFifo).then_some(id)
}

/// Among variants with equal priority and time, the one on the most preferred flavor. Otherwise a
/// job could start on any of its flavors, and would soon migrate to the most preferred one (§23).
fn preferred_variant(
    world: &World,
    queue: QueueId,
    first: WorkloadId,
    may_be_popped: impl Fn(&WorkloadId) -> bool,
) -> WorkloadId {
    if !world.config.gates.concurrent_admission {
        return first;
    }
    let of = |id: WorkloadId| (world.record(id).priority, world.record(id).order_time);
    let equals = world.workloads.siblings(first).filter(|id| may_be_popped(id) && of(*id) == of(first));
    let rank = |id: &WorkloadId| world.variant_rank(queue, *id).unwrap_or(usize::MAX);
    std::iter::once(first).chain(equals).min_by_key(rank).unwrap_or(first)
}

/// A waiting workload's rank. First those that may be popped, in the order of popping, then the
/// inadmissible ones by priority and age.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    pub id: WorkloadId,
    pub local: LocalQueueId,
    pub is_inadmissible: bool,
    /// Usage of its local queue, in usage-based queues.
    usage: f64,
    sticky_first: bool,
    priority: Reverse<i64>,
    time: Time,
}

impl Turn {
    /// The rank of a workload that waits in a queue; `None` while it is in flight.
    pub fn of(world: &World, queue: QueueId, pending_queue: &PendingQueue, id: WorkloadId) -> Option<Turn> {
        let record = world.record(id);
        let is_inadmissible = match record.place {
            Place::Queued(at) if at == queue => pending_queue.no_fit_reason(record.class).is_some(),
            Place::Inadmissible(at) if at == queue => true,
            _ => return None,
        };
        let usage = if is_usage_based(world, queue) { world.local_usage(record.local) } else { 0.0 };
        Some(Turn::at(world, sticky(world, queue, pending_queue), id, is_inadmissible, usage))
    }

    /// The ranks of all workloads that wait in a queue, in no particular order.
    pub fn all<'a>(
        world: &'a World,
        queue: QueueId,
        pending_queue: &'a PendingQueue,
    ) -> impl Iterator<Item = Turn> + 'a {
        let (usage_based, sticky) = (is_usage_based(world, queue), sticky(world, queue, pending_queue));
        let active = pending_queue.active().map(|key| (key.id, false));
        let all = active.chain(pending_queue.inadmissible().map(|id| (id, true)));
        // Summing up a local queue's usage costs more than reading a waiting workload.
        let mut usages: HashMap<LocalQueueId, f64> = HashMap::new();
        all.map(move |(id, is_inadmissible)| {
            let local = world.record(id).local;
            let mut usage = || *usages.entry(local).or_insert_with(|| world.local_usage(local));
            let usage = if usage_based { usage() } else { 0.0 };
            Turn::at(world, sticky, id, is_inadmissible, usage)
        })
    }

    fn at(world: &World, sticky: Option<WorkloadId>, id: WorkloadId, is_inadmissible: bool, usage: f64) -> Turn {
        let record = world.record(id);
        Turn {
            id,
            local: record.local,
            is_inadmissible,
            usage: if is_inadmissible { 0.0 } else { usage },
            sticky_first: is_inadmissible || sticky != Some(id),
            priority: Reverse(record.priority),
            time: record.order_time,
        }
    }

    /// The order of two waiting workloads.
    pub fn compare(&self, other: &Turn, world: &World) -> Ordering {
        let rank = |turn: &Turn| (turn.sticky_first, turn.priority, turn.time);
        let by_usage =
            self.is_inadmissible.cmp(&other.is_inadmissible).then_with(|| self.usage.total_cmp(&other.usage));
        by_usage.then_with(|| rank(self).cmp(&rank(other))).then_with(|| self.tie(world).cmp(&other.tie(world)))
    }

    fn tie<'a>(&self, world: &'a World) -> (bool, &'a str, Option<&'a WorkloadKey>, WorkloadId) {
        let facts = &world.record(self.id).facts;
        match (self.is_inadmissible, facts.uid.is_empty()) {
            (true, _) => (true, &facts.uid, Some(&facts.key), self.id),
            (false, true) => (false, &facts.key.name, None, self.id),
            (false, false) => (true, &facts.uid, None, self.id),
        }
    }
}

/// Keeps the first `count` items of an order, in that order, without sorting the others. Returns
/// the number of items dropped.
pub(crate) fn keep_first<T>(items: &mut Vec<T>, count: usize, compare: impl Fn(&T, &T) -> Ordering) -> usize {
    let left_out = items.len().saturating_sub(count);
    if left_out > 0 {
        items.select_nth_unstable_by(count, &compare);
        items.truncate(count);
    }
    items.sort_unstable_by(compare);
    left_out
}

/// True if the local queues of this queue are ordered by their usage (§16.1).
pub(crate) fn is_usage_based(world: &World, queue: QueueId) -> bool {
    world.config.gates.admission_fair_sharing
        && world.config.admission_fair_sharing.is_some()
        && world.queue(queue).spec.as_ref().is_some_and(|spec| spec.admission_scope == Some(AdmissionScope::UsageBased))
}

/// Effective priority (§3.1).
pub(crate) fn effective_priority(facts: &Workload, config: &EngineConfig) -> i64 {
    let boost = if config.gates.priority_boost { i64::from(facts.priority_boost) } else { 0 };
    facts.priority + boost
}

/// Queue-order timestamp (§3.2).
pub(crate) fn order_time(facts: &Workload, config: &EngineConfig) -> Time {
    const ONE_MILLISECOND: std::time::Duration = std::time::Duration::from_millis(1);
    if let Some(evicted) = &facts.evicted {
        let for_pods_ready =
            &*evicted.reason == "PodsReadyTimeout" && config.requeuing_timestamp == RequeuingTimestamp::Eviction;
        if for_pods_ready || &*evicted.reason == "AdmissionCheck" {
            return evicted.at;
        }
    }
    if !config.gates.priority_sorting_within_cohort
        && let Some(preempted) = facts.preempted.as_ref().filter(|it| &*it.reason == "InCohortReclaimWhileBorrowing")
    {
        return preempted.at.after(ONE_MILLISECOND);
    }
    facts.created
}
