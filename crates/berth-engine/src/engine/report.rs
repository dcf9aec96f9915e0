//! Figures for statuses, and the places of waiting workloads.

use std::collections::BTreeMap;

use super::Engine;
use crate::ids::{FrId, LocalQueueId, Name, NodeId, QueueId, WorkloadId};
use crate::status::{ClusterQueueStatus, FlavorUsage, LocalQueueStatus, QueuePosition, WeightedShare};
use crate::waiting::order::sorted;
use crate::world::Tally;

type FlavorFigures = Vec<(Name, BTreeMap<Name, FlavorUsage>)>;

impl Engine {
    pub(super) fn report_cluster_queue(&self, id: QueueId) -> ClusterQueueStatus {
        let world = &self.world;
        let queue = world.queue(id);
        let in_cohort = world.tree.node(queue.node).parent.is_some();
        ClusterQueueStatus {
            pending: count(self.rooms.pending(id)),
            reserving: queue.tally.reserving,
            admitted: queue.tally.admitted,
            flavors_reservation: self.figures(id, |fr| queue.tally.reserved(fr), in_cohort),
            flavors_usage: self.figures(id, |fr| queue.tally.used(fr), in_cohort),
            readiness: queue.readiness.clone(),
            weighted_share: self.report_share(queue.node),
        }
    }

    pub(super) fn report_local_queue(&self, id: LocalQueueId) -> LocalQueueStatus {
        let world = &self.world;
        let local = world.local(id);
        let mut status = LocalQueueStatus { pending: local.waiting, ..LocalQueueStatus::default() };
        if let Some(queue) = local.queue {
            // What was admitted through another cluster queue before the local queue moved is not its usage.
            let none = Tally::default();
            let tally = local.holding.get(&queue).unwrap_or(&none);
            status.reserving = tally.reserving;
            status.admitted = tally.admitted;
            status.flavors_reservation = self.figures(queue, |fr| tally.reserved(fr), false);
            status.flavors_usage = self.figures(queue, |fr| tally.used(fr), false);
        }
        if let Some(at) = local.ledger.updated {
            let consumed = local.ledger.consumed.iter();
            let named = consumed.map(|(resource, amount)| (world.resource_name(*resource).clone(), *amount));
            status.consumed = Some((named.collect(), at));
        }
        status
    }

    /// Amounts per flavor and resource in the order the queue declares them.
    fn figures(&self, id: QueueId, usage: impl Fn(FrId) -> i64, in_cohort: bool) -> FlavorFigures {
        let world = &self.world;
        let queue = world.queue(id);
        let mut figures = FlavorFigures::new();
        for group in &queue.config.groups {
            for slot in &group.flavors {
                let mut resources = BTreeMap::new();
                for (resource, fr) in group.resources.iter().zip(&slot.frs) {
                    let total = usage(*fr);
                    let nominal = world.tree.cell(queue.node, *fr).quota.nominal;
                    let above = (crate::amount::Amount::Bounded(total) - nominal).or_zero().saturated();
                    let borrowed = if in_cohort { above } else { 0 };
                    resources.insert(world.resource_name(*resource).clone(), FlavorUsage { total, borrowed });
                }
                match figures.iter_mut().find(|(name, _)| *name == slot.name) {
                    Some((_, known)) => known.extend(resources),
                    None => figures.push((slot.name.clone(), resources)),
                }
            }
        }
        figures
    }

    pub(crate) fn report_share(&self, node: NodeId) -> WeightedShare {
        let share = self.world.share(node);
        WeightedShare {
            value: share.rounded(),
            dominant_resource: share.dominant.map(|id| self.world.resource_name(id).clone()),
            borrowing: share.is_borrowing(),
            precise: share.precise(),
        }
    }

    pub(super) fn report_pending(&self, id: QueueId) -> Vec<QueuePosition> {
        let Some(room) = self.rooms.room(id) else { return Vec::new() };
        let sticky = room.preemptor.map(|(id, _)| id);
        let mut order: Vec<(WorkloadId, bool)> =
            sorted(&self.world, id, room, sticky).into_iter().map(|id| (id, false)).collect();
        let mut aside: Vec<WorkloadId> = room.set_aside().collect();
        aside.sort_by_cached_key(|id| {
            let record = self.world.record(*id);
            (std::cmp::Reverse(record.priority), record.order_time, record.facts.uid.clone(), record.key().clone())
        });
        order.extend(aside.into_iter().map(|id| (id, true)));
        let mut per_local: BTreeMap<LocalQueueId, u32> = BTreeMap::new();
        let positions = order.into_iter().enumerate().map(|(at, (id, inadmissible))| {
            let record = self.world.record(id);
            let in_local = per_local.entry(record.local).or_default();
            *in_local += 1;
            QueuePosition {
                workload: record.key().clone(),
                local_queue: record.facts.queue.clone(),
                priority: record.priority,
                in_cluster_queue: count(at),
                in_local_queue: *in_local - 1,
                inadmissible,
            }
        });
        positions.collect()
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
