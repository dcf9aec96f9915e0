//! Figures for statuses, and the positions of waiting workloads.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::Engine;
use crate::amount::Amount;
use crate::ids::{FrId, LocalQueueId, Name, NodeId, QueueId, WorkloadId};
use crate::model::WorkloadKey;
use crate::status::{
    ClusterQueueFigures, ClusterQueueStatus, CohortFigures, FlavorUsage, LocalQueueStatus, QueuePosition, QuotaFigures,
    QuotaHolder, WeightedShare,
};
use crate::waiting::order::{Turn, keep_first};
use crate::waiting::pending_queue::PendingQueue;
use crate::world::{CohortEntry, Tally};

type FlavorFigures = Vec<(Name, BTreeMap<Name, FlavorUsage>)>;

impl Engine {
    pub(super) fn report_cluster_queue(&self, id: QueueId) -> ClusterQueueStatus {
        let world = &self.world;
        let queue = world.queue(id);
        let in_cohort = world.tree.node(queue.node).parent.is_some();
        ClusterQueueStatus {
            pending: count(self.pending_queues.pending(id)),
            reserving: queue.tally.reserving,
            admitted: queue.tally.admitted,
            flavors_reservation: self.figures(id, |fr| queue.tally.reserved(fr), in_cohort),
            flavors_usage: self.figures(id, |fr| queue.tally.used(fr), in_cohort),
            readiness: queue.readiness.clone(),
            weighted_share: self.report_share(queue.node),
        }
    }

    pub(super) fn report_cluster_queue_figures(&self, id: QueueId) -> ClusterQueueFigures {
        let world = &self.world;
        let (queue, tree) = (world.queue(id), &world.tree);
        let parent = tree.node(queue.node).parent;
        let (kinds_active, kinds_inadmissible) = self.pending_queues.get(id).map_or((0, 0), PendingQueue::classes);
        let quotas = queue.config.groups.iter().flat_map(|group| {
            group.flavors.iter().flat_map(move |slot| {
                group.resources.iter().zip(&slot.frs).map(move |(resource, fr)| {
                    let quota = tree.cell(queue.node, *fr).quota;
                    QuotaFigures {
                        flavor: slot.name.clone(),
                        resource: world.resource_name(*resource).clone(),
                        nominal: quota.nominal,
                        borrowing_limit: quota.borrowing_limit,
                        lending_limit: quota.lending_limit,
                    }
                })
            })
        });
        let requests = queue.waiting.amounts();
        ClusterQueueFigures {
            status: self.report_cluster_queue(id),
            inadmissible: count(self.pending_queues.inadmissible(id)),
            kinds_active: count(kinds_active),
            kinds_inadmissible: count(kinds_inadmissible),
            pending_requests: requests.map(|(id, amount)| (world.resource_name(id).clone(), amount)).collect(),
            cohort: parent.map(|parent| tree.node(parent).name.clone()),
            root: parent.map(|_| tree.node(tree.node(queue.node).root).name.clone()),
            quotas: quotas.collect(),
        }
    }

    /// Every cohort, by name. A cohort exists as an object or because a queue names it. Makes one
    /// pass over the queues.
    pub(super) fn report_cohorts(&self) -> Vec<CohortFigures> {
        let (world, tree) = (&self.world, &self.world.tree);
        let mut sums: HashMap<NodeId, (u32, HashMap<FrId, i128>)> = HashMap::new();
        for queue in world.queues.iter().filter(|queue| queue.spec.is_some()) {
            for above in tree.path_to_root(queue.node).skip(1) {
                let (admitted, reserved) = sums.entry(above).or_default();
                *admitted = admitted.saturating_add(queue.tally.admitted);
                for (fr, amount) in queue.tally.reserved_amounts() {
                    *reserved.entry(fr).or_default() += amount;
                }
            }
        }
        let exists = |entry: &&CohortEntry| entry.spec.is_some() || !tree.node(entry.node).children.is_empty();
        let figures = world.cohorts.values().filter(exists).map(|entry| {
            let node = tree.node(entry.node);
            let (admitted, reserved) = sums.remove(&entry.node).unwrap_or_default();
            let mut quotas: Vec<(Name, Name, Amount, i64)> = node
                .cells()
                .iter()
                .filter(|(fr, cell)| cell.declared || !cell.subtree.is_zero() || reserved.contains_key(fr))
                .map(|(fr, cell)| {
                    let of = world.frs.get(*fr);
                    let sum = reserved.get(fr).copied().unwrap_or(0);
                    let sum = i64::try_from(sum).unwrap_or(i64::MAX);
                    (world.flavor_name(of.flavor).clone(), world.resource_name(of.resource).clone(), cell.subtree, sum)
                })
                .collect();
            quotas.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
            CohortFigures {
                name: node.name.clone(),
                parent: node.parent.map(|parent| tree.node(parent).name.clone()),
                root: tree.node(node.root).name.clone(),
                weighted_share: self.report_share(entry.node),
                admitted,
                quotas,
            }
        });
        let mut figures: Vec<CohortFigures> = figures.collect();
        figures.sort_by(|a, b| a.name.cmp(&b.name));
        figures
    }

    pub(super) fn report_local_queue(&self, id: LocalQueueId) -> LocalQueueStatus {
        let world = &self.world;
        let local = world.local(id);
        let mut status = LocalQueueStatus { pending: local.waiting, ..LocalQueueStatus::default() };
        status.usage = world.config.admission_fair_sharing.is_some().then(|| world.local_usage(id));
        if let Some(queue) = local.queue {
            status.inadmissible =
                self.pending_queues.get(queue).map_or(0, |pending_queue| pending_queue.inadmissible_of(id));
            // Quota that was admitted through another cluster queue, before the local queue moved,
            // does not count as its usage.
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
            let mut named: BTreeMap<Name, f64> = named.collect();
            // A queue that consumed nothing of a resource reports 0 of it. Without a half-life,
            // consumption is not recorded.
            let config = world.config.admission_fair_sharing.as_ref();
            let records = config.is_some_and(|config| !config.usage_half_life.is_zero());
            if let Some(queue) = local.queue
                && records
            {
                for resource in world.queue(queue).config.groups.iter().flat_map(|group| &group.resources) {
                    named.entry(world.resource_name(*resource).clone()).or_default();
                }
            }
            status.consumed = Some((named, at));
        }
        status
    }

    /// Amounts per flavor and resource, in the order in which the queue declares them.
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
        self.world.weighted_share(node)
    }

    /// Positions of the workloads that wait in a cluster queue, in order; with `of`, only of those
    /// from one local queue. `part` is the range to return. Reads all waiting workloads, and sorts
    /// only those that it returns.
    pub(super) fn report_pending(
        &self,
        id: QueueId,
        of: Option<LocalQueueId>,
        part: Range<usize>,
    ) -> Vec<QueuePosition> {
        let Some(pending_queue) = self.pending_queues.get(id) else { return Vec::new() };
        let world = &self.world;
        let compare = |a: &Turn, b: &Turn| a.compare(b, world);
        let all = || Turn::all(world, id, pending_queue);
        let mut shown: Vec<Turn> = all().filter(|turn| of.is_none_or(|local| turn.local == local)).collect();
        if part.start >= shown.len() || part.is_empty() {
            return Vec::new();
        }
        shown.select_nth_unstable_by(part.start, compare);
        let mut in_local: HashMap<LocalQueueId, usize> = HashMap::new();
        for before in shown.drain(..part.start) {
            *in_local.entry(before.local).or_default() += 1;
        }
        keep_first(&mut shown, part.len(), compare);
        // Number of workloads, from any local queue, per gap: before the first shown workload, and
        // from each shown workload up to the next one. The last entry is not used.
        let mut between = vec![0; shown.len() + 1];
        match of {
            None => {
                between.fill(1);
                between[0] = part.start;
            }
            Some(_) => {
                for turn in all() {
                    between[shown.partition_point(|it| compare(it, &turn) != Ordering::Greater)] += 1;
                }
            }
        }
        let mut before = 0;
        let positions = shown.iter().zip(between).map(|(turn, more)| {
            before += more;
            let in_local = in_local.entry(turn.local).or_default();
            *in_local += 1;
            self.position(turn, before, *in_local - 1)
        });
        positions.collect()
    }

    /// Part of the workloads that hold quota of a queue, longest-holding first, and their total
    /// number. Sorts only those that it returns.
    pub(super) fn report_holders(&self, id: QueueId, part: Range<usize>) -> (Vec<QuotaHolder>, usize) {
        let world = &self.world;
        let mut shown: Vec<WorkloadId> = world.queue(id).holding.iter().copied().collect();
        let total = shown.len();
        if part.start >= total || part.is_empty() {
            return (Vec::new(), total);
        }
        let rank = |id: &WorkloadId| {
            let record = world.record(*id);
            (record.facts.reserved_at.is_none(), record.facts.reserved_at, record.key())
        };
        let compare = |a: &WorkloadId, b: &WorkloadId| rank(a).cmp(&rank(b));
        shown.select_nth_unstable_by(part.start, compare);
        shown.drain(..part.start);
        keep_first(&mut shown, part.len(), compare);
        (shown.into_iter().map(|id| self.holder(id)).collect(), total)
    }

    fn holder(&self, id: WorkloadId) -> QuotaHolder {
        let world = &self.world;
        let record = world.record(id);
        let usage = record.holding.iter().flat_map(|holding| &holding.usage);
        let holds = usage.map(|(fr, amount)| {
            let of = world.frs.get(*fr);
            (world.flavor_name(of.flavor).clone(), world.resource_name(of.resource).clone(), *amount)
        });
        let mut holds: Vec<(Name, Name, i64)> = holds.collect();
        holds.sort();
        QuotaHolder {
            workload: record.key().clone(),
            local_queue: record.facts.queue.clone(),
            priority: record.priority,
            since: record.facts.reserved_at,
            admitted: record.holding.as_ref().is_some_and(|holding| holding.admitted),
            evicted: record.eviction().map(|eviction| eviction.reason.clone()),
            holds,
        }
    }

    /// The workloads that wait in a queue, each with a flag: true if it is inadmissible.
    pub(super) fn report_waiting(&self, id: QueueId) -> Vec<(WorkloadKey, bool)> {
        let Some(pending_queue) = self.pending_queues.get(id) else { return Vec::new() };
        let active = pending_queue.active().map(|key| key.id).chain(pending_queue.in_flight());
        let all = active.map(|id| (id, false)).chain(pending_queue.inadmissible().map(|id| (id, true)));
        all.map(|(id, is_inadmissible)| (self.world.record(id).key().clone(), is_inadmissible)).collect()
    }

    /// The position of a workload that waits in a queue, and the workloads ahead of it, next one
    /// first, up to a limit. `None` while it is in flight. Reads all waiting workloads, and sorts
    /// only those listed.
    pub(crate) fn place_in_line(
        &self,
        id: QueueId,
        workload: WorkloadId,
        listed: usize,
    ) -> Option<(QueuePosition, Vec<WorkloadKey>)> {
        let (pending_queue, world) = (self.pending_queues.get(id)?, &self.world);
        let own = Turn::of(world, id, pending_queue, workload)?;
        let compare = |a: &Turn, b: &Turn| a.compare(b, world);
        let (mut in_cluster, mut in_local) = (0, 0);
        let mut ahead: Vec<Turn> = Vec::with_capacity(2 * listed);
        for turn in Turn::all(world, id, pending_queue).filter(|turn| compare(turn, &own) == Ordering::Less) {
            in_cluster += 1;
            in_local += usize::from(turn.local == own.local);
            if ahead.len() == 2 * listed {
                keep_first(&mut ahead, listed, compare);
            }
            ahead.push(turn);
        }
        keep_first(&mut ahead, listed, compare);
        let ahead = ahead.iter().map(|turn| world.record(turn.id).key().clone()).collect();
        Some((self.position(&own, in_cluster, in_local), ahead))
    }

    fn position(&self, turn: &Turn, in_cluster: usize, in_local: usize) -> QueuePosition {
        let record = self.world.record(turn.id);
        QueuePosition {
            workload: record.key().clone(),
            local_queue: record.facts.queue.clone(),
            priority: record.priority,
            in_cluster_queue: count(in_cluster),
            in_local_queue: count(in_local),
            inadmissible: turn.is_inadmissible,
        }
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
