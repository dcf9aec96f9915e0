//! The fair-sharing search for victims (§10.4–§10.9). It preempts in the queue with the largest
//! share, as long as the preemptor's share stays no larger than the victim's.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::candidates::{compare, is_exposed, of_queue, sort_by_order};
use super::{Preemptor, Searched, Target};
use crate::config::PreemptionStrategy;
use crate::decision::{PreemptionReason, VictimFate};
use crate::ids::{NodeId, QueueId, WorkloadId};
use crate::model::PreemptionPolicy;
use crate::quota::Share;
use crate::world::World;

/// Finds targets. Leaves the world changed; the caller must roll back.
pub(crate) fn find(world: &mut World, preemptor: &Preemptor<'_>) -> (Vec<Target>, Searched) {
    let candidates = collect(world, preemptor);
    let mut taken = Vec::new();
    let mut retry = Vec::new();
    let fits = !candidates.is_empty() && take_until_it_fits(world, preemptor, &candidates, &mut taken, &mut retry);
    let ids: Vec<WorkloadId> = taken.iter().map(|target| target.workload).collect();
    let targets = if fits { preemptor.fill_back(world, taken, true) } else { Vec::new() };
    let passed_over = retry.into_iter().map(|id| (id, VictimFate::ShareTooSmall)).collect();
    let searched = Searched::new(candidates.into_iter(), &ids, &targets, passed_over);
    (targets, searched)
}

/// Adds candidates until the preemptor fits: first under the first configured strategy, then under
/// `LessThanInitialShare` if that is the second one. Candidates whose share was too small are left
/// in `retry`.
fn take_until_it_fits(
    world: &mut World,
    preemptor: &Preemptor<'_>,
    candidates: &[WorkloadId],
    targets: &mut Vec<Target>,
    retry: &mut Vec<WorkloadId>,
) -> bool {
    let strategies = world.config.fair_sharing.clone().unwrap_or_default().preemption_strategies;
    world.add_usage(preemptor.node, preemptor.request);
    let mut fits = first_pass(world, preemptor, candidates, strategies.first().copied(), targets, retry);
    if !fits && strategies.get(1) == Some(&PreemptionStrategy::LessThanInitialShare) {
        fits = second_pass(world, preemptor, retry, targets);
    }
    world.remove_usage(preemptor.node, preemptor.request);
    fits
}

type QueueCandidates = BTreeMap<NodeId, VecDeque<WorkloadId>>;

/// Candidates of the preemptor's queue and of every borrowing queue of the tree (§10.4), in the
/// order they are tried.
fn collect(world: &World, preemptor: &Preemptor<'_>) -> Vec<WorkloadId> {
    let policies = world.queue(preemptor.queue).config.preemption;
    let mut candidates: Vec<(WorkloadId, QueueId)> = Vec::new();
    if policies.within_cluster_queue != PreemptionPolicy::Never {
        let own = of_queue(world, preemptor, preemptor.queue, policies.within_cluster_queue);
        candidates.extend(own.into_iter().map(|id| (id, preemptor.queue)));
    }
    let has_cohort = world.tree.node(preemptor.node).parent.is_some();
    if has_cohort && policies.reclaim_within_cohort != PreemptionPolicy::Never {
        for node in world.tree.queues_below(world.tree.node(preemptor.node).root) {
            if node == preemptor.node || !is_exposed(world, preemptor, node) {
                continue;
            }
            let Some(queue) = world.queue_of_node(node) else { continue };
            let others = of_queue(world, preemptor, queue, policies.reclaim_within_cohort);
            candidates.extend(others.into_iter().map(|id| (id, queue)));
        }
    }
    sort_by_order(world, &mut candidates, preemptor.queue, preemptor.now, |it| *it);
    candidates.into_iter().map(|(id, _)| id).collect()
}

/// Adds candidates under the first strategy (§10.7). True if the preemptor fits.
fn first_pass(
    world: &mut World,
    preemptor: &Preemptor<'_>,
    candidates: &[WorkloadId],
    strategy: Option<PreemptionStrategy>,
    targets: &mut Vec<Target>,
    retry: &mut Vec<WorkloadId>,
) -> bool {
    // This is evaluated once, before any candidate is removed: victims of the preemptor's own queue
    // do not turn borrowing into reclaiming.
    let within_nominal = world.config.gates.fair_sharing_preempt_within_nominal
        && world.tree.is_within_nominal(preemptor.node, preemptor.need);
    let mut ordering = VictimQueues::new(world, preemptor, candidates);
    while let Some(queue) = ordering.next(world, preemptor) {
        if queue == preemptor.node {
            let Some(id) = ordering.pop(queue) else { continue };
            if take(world, preemptor, id, PreemptionReason::InClusterQueue, targets) {
                return true;
            }
            continue;
        }
        if within_nominal {
            let Some(id) = ordering.pop(queue) else { continue };
            if take(world, preemptor, id, PreemptionReason::InCohortReclamation, targets) {
                return true;
            }
            continue;
        }
        let (mine, theirs) = below_common(world, preemptor.node, queue);
        let (new_share, old_share) = (world.share(mine), world.share(theirs));
        if new_share.is_infinite() && !old_share.is_infinite() {
            while let Some(id) = ordering.pop(queue) {
                retry.push(id);
            }
            continue;
        }
        while let Some(id) = ordering.pop(queue) {
            let passes = match strategy {
                Some(PreemptionStrategy::LessThanInitialShare) => new_share.compare(&old_share) == Ordering::Less,
                _ => {
                    world.hide(id);
                    let final_share = world.share(theirs);
                    world.unhide(id);
                    new_share.compare(&final_share) != Ordering::Greater
                }
            };
            if passes {
                if take(world, preemptor, id, PreemptionReason::InCohortFairSharing, targets) {
                    return true;
                }
                break;
            }
            retry.push(id);
        }
    }
    false
}

/// Adds at most one more candidate per queue, as long as the preemptor's share is below the
/// victim's (§10.8).
fn second_pass(world: &mut World, preemptor: &Preemptor<'_>, retry: &[WorkloadId], targets: &mut Vec<Target>) -> bool {
    let mut ordering = VictimQueues::new(world, preemptor, retry);
    while let Some(queue) = ordering.next(world, preemptor) {
        let (mine, theirs) = below_common(world, preemptor.node, queue);
        if world.share(mine).compare(&world.share(theirs)) == Ordering::Less
            && let Some(id) = ordering.pop(queue)
            && take(world, preemptor, id, PreemptionReason::InCohortFairSharing, targets)
        {
            return true;
        }
        ordering.drop_queue(queue);
    }
    false
}

/// Adds a candidate to the targets. True if the preemptor fits now.
fn take(
    world: &mut World,
    preemptor: &Preemptor<'_>,
    id: WorkloadId,
    reason: PreemptionReason,
    targets: &mut Vec<Target>,
) -> bool {
    world.hide(id);
    targets.push(Target { workload: id, reason });
    let mark = world.mark();
    world.remove_usage(preemptor.node, preemptor.request);
    let fits = preemptor.fits(world, true);
    world.rollback(mark);
    fits
}

/// The ancestors of two queues (or the queues themselves) just below their lowest common cohort.
pub(crate) fn below_common(world: &World, a: NodeId, b: NodeId) -> (NodeId, NodeId) {
    let a_path: Vec<NodeId> = world.tree.path_to_root(a).collect();
    let mut theirs = b;
    for node in world.tree.path_to_root(b) {
        if let Some(at) = a_path.iter().position(|it| *it == node) {
            return (if at == 0 { a } else { a_path[at - 1] }, theirs);
        }
        theirs = node;
    }
    (a, b)
}

/// The order in which queues provide victims (§10.6).
pub(crate) struct VictimQueues {
    root: NodeId,
    own_path: Vec<NodeId>,
    candidates: QueueCandidates,
    pruned: BTreeSet<NodeId>,
    /// Shares of nodes, as far as they are known and current.
    shares: BTreeMap<NodeId, Share>,
    /// The queue that provided the last victim.
    last: Option<NodeId>,
}

impl VictimQueues {
    pub fn new(world: &World, preemptor: &Preemptor<'_>, candidates: &[WorkloadId]) -> Self {
        let mut per_queue = QueueCandidates::new();
        for &id in candidates {
            if let Some(holding) = &world.record(id).holding {
                per_queue.entry(world.queue(holding.queue).node).or_default().push_back(id);
            }
        }
        VictimQueues {
            root: world.tree.node(preemptor.node).root,
            own_path: world.tree.path_to_root(preemptor.node).collect(),
            candidates: per_queue,
            pruned: BTreeSet::new(),
            shares: BTreeMap::new(),
            last: None,
        }
    }

    /// Takes the next candidate of a queue.
    pub fn pop(&mut self, queue: NodeId) -> Option<WorkloadId> {
        self.candidates.get_mut(&queue)?.pop_front()
    }

    /// Drops a queue: it provides no more victims.
    pub fn drop_queue(&mut self, queue: NodeId) {
        self.pruned.insert(queue);
    }

    /// The queue that provides the next victim. Between two calls, only usage of the queue that the
    /// first call returned may change.
    pub fn next(&mut self, world: &World, preemptor: &Preemptor<'_>) -> Option<NodeId> {
        for node in self.last.take().into_iter().flat_map(|queue| world.tree.path_to_root(queue)) {
            self.shares.remove(&node);
        }
        if world.tree.node(self.root).is_queue {
            let has_candidates = self.candidates.get(&self.root).is_some_and(|list| !list.is_empty());
            return (has_candidates && !self.pruned.contains(&self.root)).then_some(self.root);
        }
        while !self.pruned.contains(&self.root) {
            if let Some(queue) = self.descend(world, preemptor, self.root) {
                self.last = Some(queue);
                return Some(queue);
            }
        }
        None
    }

    /// One walk down from a cohort. `None` if a node was pruned instead; then the caller starts the
    /// walk again.
    fn descend(&mut self, world: &World, preemptor: &Preemptor<'_>, cohort: NodeId) -> Option<NodeId> {
        let Self { own_path, candidates, pruned, shares, .. } = self;
        let mut best_queue: Option<(&Share, NodeId)> = None;
        let mut best_cohort: Option<(&Share, NodeId)> = None;
        let children = &world.tree.node(cohort).children;
        for &child in children {
            if world.tree.node(child).is_queue && candidates.get(&child).is_none_or(VecDeque::is_empty) {
                pruned.insert(child);
            }
            if !pruned.contains(&child) {
                shares.entry(child).or_insert_with(|| world.share(child));
            }
        }
        for &child in children {
            let Some(share) = shares.get(&child).filter(|_| !pruned.contains(&child)) else { continue };
            if !share.is_borrowing() && !own_path.contains(&child) {
                pruned.insert(child);
                continue;
            }
            if world.tree.node(child).is_queue {
                let better = best_queue.as_ref().is_none_or(|(best, node)| match share.compare(best) {
                    Ordering::Greater => true,
                    Ordering::Less => false,
                    Ordering::Equal => first_goes_before(candidates, world, preemptor, child, *node),
                });
                if better {
                    best_queue = Some((share, child));
                }
            } else if best_cohort.as_ref().is_none_or(|(best, _)| share.compare(best) != Ordering::Less) {
                best_cohort = Some((share, child));
            }
        }
        match (best_queue, best_cohort) {
            (None, None) => {
                pruned.insert(cohort);
                None
            }
            (Some((_, queue)), None) => Some(queue),
            (Some((queue_share, queue)), Some((cohort_share, _)))
                if cohort_share.compare(queue_share) == Ordering::Less =>
            {
                Some(queue)
            }
            (_, Some((_, cohort))) => self.descend(world, preemptor, cohort),
        }
    }
}

/// True if the first candidate of queue `a` is tried before the first one of queue `b`.
fn first_goes_before(
    candidates: &QueueCandidates,
    world: &World,
    preemptor: &Preemptor<'_>,
    a: NodeId,
    b: NodeId,
) -> bool {
    let first = |node: NodeId| {
        let id = *candidates.get(&node)?.front()?;
        Some((id, world.record(id).holding.as_ref()?.queue))
    };
    match (first(a), first(b)) {
        (Some(a), Some(b)) => compare(world, a, b, Some(preemptor.queue), preemptor.now, false) == Ordering::Less,
        _ => false,
    }
}
