//! Preemption candidates and the order in which they are tried (§9.3–§9.5).

use std::cmp::{Ordering, Reverse};

use super::{Preemptor, satisfies};
use crate::amount::Amount;
use crate::decision::PreemptionReason;
use crate::ids::{FrId, NodeId, QueueId, WorkloadId};
use crate::model::{BorrowWithinCohort, PreemptionPolicy, Time};
use crate::waiting::order::is_usage_based;
use crate::world::World;

/// A workload that a policy allows to be preempted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub workload: WorkloadId,
    pub queue: QueueId,
    pub node: NodeId,
    pub class: CandidateClass,
    /// Lowest cohort that it shares with the preemptor; `None` in the preemptor's own queue.
    pub common: Option<NodeId>,
    /// True if it may not be preempted in an attempt in which the preemptor borrows.
    pub only_without_borrowing: bool,
    pub reason: PreemptionReason,
}

/// The rule that allows a preemption, in the order candidates are tried (§9.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CandidateClass {
    /// The candidate is in another queue, and the preemptor's request fits into the quota of its
    /// own subtree.
    Hierarchical,
    /// The candidate is in another queue, and the preemptor has no such advantage over it.
    Priority,
    /// The candidate is in the preemptor's own queue.
    SameQueue,
}

/// All candidates of the classical search, in the order they are tried.
pub(crate) fn classical(world: &World, preemptor: &Preemptor<'_>) -> Vec<Candidate> {
    let policies = world.queue(preemptor.queue).config.preemption;
    let mut candidates = Vec::new();
    if policies.within_cluster_queue != PreemptionPolicy::Never {
        for workload in of_queue(world, preemptor, preemptor.queue, policies.within_cluster_queue) {
            candidates.push(Candidate {
                workload,
                queue: preemptor.queue,
                node: preemptor.node,
                class: CandidateClass::SameQueue,
                common: None,
                only_without_borrowing: false,
                reason: PreemptionReason::InClusterQueue,
            });
        }
    }
    if policies.reclaim_within_cohort != PreemptionPolicy::Never {
        from_cohort(world, preemptor, &mut candidates);
    }
    sort_by_order(world, &mut candidates, preemptor.queue, preemptor.now, |candidate| {
        (candidate.workload, candidate.queue)
    });
    candidates.sort_by_cached_key(|candidate| (!is_evicted(world, candidate.workload), candidate.class));
    candidates
}

/// Collects candidates of other queues from the preemptor's parent up to the root.
fn from_cohort(world: &World, preemptor: &Preemptor<'_>, candidates: &mut Vec<Candidate>) {
    let tree = &world.tree;
    let policies = world.queue(preemptor.queue).config.preemption;
    let fits = |node: NodeId, amounts: &[(FrId, Amount)]| {
        amounts.iter().all(|&(fr, amount)| {
            let cell = tree.cell(node, fr);
            cell.usage + amount <= cell.subtree
        })
    };
    let reduce = |node: NodeId, amounts: &mut Vec<(FrId, Amount)>| {
        for (fr, amount) in amounts {
            *amount = (*amount - tree.local_available(node, *fr)).or_zero();
        }
    };
    let mut remaining: Vec<(FrId, Amount)> =
        preemptor.request.iter().map(|(fr, amount)| (*fr, Amount::Bounded(*amount))).collect();
    let mut advantage = fits(preemptor.node, &remaining);
    reduce(preemptor.node, &mut remaining);
    let mut visited = preemptor.node;
    for cohort in tree.path_to_root(preemptor.node).skip(1) {
        let mut stack: Vec<NodeId> = tree.node(cohort).children.clone();
        while let Some(node) = stack.pop() {
            if node == visited || tree.is_within_nominal(node, preemptor.need) {
                continue;
            }
            if !tree.node(node).is_queue {
                stack.extend(&tree.node(node).children);
                continue;
            }
            let Some(queue) = world.queue_of_node(node) else { continue };
            for workload in of_queue(world, preemptor, queue, policies.reclaim_within_cohort) {
                let (class, only_without_borrowing, reason) = if advantage {
                    (CandidateClass::Hierarchical, false, PreemptionReason::InCohortReclamation)
                } else {
                    let (only, reason) = borrowing_rule(world, preemptor, workload);
                    (CandidateClass::Priority, only, reason)
                };
                candidates.push(Candidate {
                    workload,
                    queue,
                    node,
                    class,
                    common: Some(cohort),
                    only_without_borrowing,
                    reason,
                });
            }
        }
        advantage = advantage || fits(cohort, &remaining);
        reduce(cohort, &mut remaining);
        visited = cohort;
    }
}

/// Whether a candidate without hierarchical advantage may be preempted while the preemptor borrows
/// (§9.4).
fn borrowing_rule(world: &World, preemptor: &Preemptor<'_>, candidate: WorkloadId) -> (bool, PreemptionReason) {
    match world.queue(preemptor.queue).config.preemption.borrow_within_cohort {
        BorrowWithinCohort::Never => (true, PreemptionReason::InCohortReclamation),
        BorrowWithinCohort::LowerPriority { max_priority_threshold } => {
            let priority = world.record(candidate).priority;
            let too_high = priority >= world.record(preemptor.workload).priority
                || max_priority_threshold.is_some_and(|threshold| priority > threshold);
            if too_high {
                (true, PreemptionReason::InCohortReclamation)
            } else {
                (false, PreemptionReason::InCohortReclaimWhileBorrowing)
            }
        }
    }
}

/// Workloads of a queue that the policy allows to be preempted and that use a needed
/// flavor-resource (§9.3).
pub(crate) fn of_queue(
    world: &World,
    preemptor: &Preemptor<'_>,
    queue: QueueId,
    policy: PreemptionPolicy,
) -> Vec<WorkloadId> {
    let holding = world.queue(queue).holding.iter().copied();
    holding
        .filter(|&id| {
            id != preemptor.workload
                && Some(id) != preemptor.replaced
                && !world.hidden.contains(&id)
                && uses_any(world, id, preemptor.need)
                && satisfies(world, policy, preemptor.workload, id)
        })
        .collect()
}

fn uses_any(world: &World, id: WorkloadId, frs: &[FrId]) -> bool {
    let Some(holding) = &world.record(id).holding else { return false };
    holding.usage.iter().any(|(fr, _)| frs.contains(fr))
}

/// True if a workload is already being evicted.
pub(crate) fn is_evicted(world: &World, id: WorkloadId) -> bool {
    let record = world.record(id);
    record.eviction().is_some() || record.eviction_expected
}

/// True if the quota of another queue may be reclaimed (§9.4, §10.4): the queue uses more than its
/// own quota of a needed flavor-resource. In the classical search, this must also hold for every
/// cohort between the queue and the path from the preemptor to the root.
pub(crate) fn is_exposed(world: &World, preemptor: &Preemptor<'_>, node: NodeId) -> bool {
    if world.is_fair_sharing() {
        return preemptor.need.iter().any(|&fr| {
            let cell = world.tree.cell(node, fr);
            cell.usage > cell.quota.nominal
        });
    }
    let mine: Vec<NodeId> = world.tree.path_to_root(preemptor.node).collect();
    let mut between = world.tree.path_to_root(node).take_while(|node| !mine.contains(node));
    between.all(|node| !world.tree.is_within_nominal(node, preemptor.need))
}

/// Sorts workloads in the order of preemption (§9.5).
pub(crate) fn sort_by_order<T: Copy>(
    world: &World,
    candidates: &mut [T],
    own: QueueId,
    now: Time,
    of: impl Fn(&T) -> (WorkloadId, QueueId),
) {
    if world.config.gates.admission_fair_sharing && world.config.admission_fair_sharing.is_some() {
        candidates.sort_by(|a, b| compare(world, of(a), of(b), Some(own), now, true));
        return;
    }
    // Each head may have thousands of candidates. The values that [`compare`] reads are looked up
    // once per candidate.
    let mut keyed: Vec<_> = candidates
        .iter()
        .map(|candidate| {
            let (workload, queue) = of(candidate);
            let record = world.record(workload);
            let reserved = Reverse(record.facts.reserved_at.unwrap_or(now));
            let first = (!is_evicted(world, workload), queue == own, record.priority, reserved);
            ((first, &record.facts.uid, record.key()), *candidate)
        })
        .collect();
    keyed.sort_unstable_by_key(|(key, _)| *key);
    for (slot, (_, candidate)) in candidates.iter_mut().zip(keyed) {
        *slot = candidate;
    }
}

/// Compares two candidates in the order of preemption (§9.5).
pub(crate) fn compare(
    world: &World,
    (a, a_queue): (WorkloadId, QueueId),
    (b, b_queue): (WorkloadId, QueueId),
    own: Option<QueueId>,
    now: Time,
    by_usage: bool,
) -> Ordering {
    let (ra, rb) = (world.record(a), world.record(b));
    let evicted_first = (!is_evicted(world, a)).cmp(&!is_evicted(world, b));
    let others_first = (own == Some(a_queue)).cmp(&(own == Some(b_queue)));
    let usage = || {
        if by_usage && a_queue == b_queue && ra.local != rb.local && is_usage_based(world, a_queue) {
            world.local_usage(rb.local).total_cmp(&world.local_usage(ra.local))
        } else {
            Ordering::Equal
        }
    };
    let reserved = |time: Option<Time>| Reverse(time.unwrap_or(now));
    evicted_first
        .then(others_first)
        .then_with(usage)
        .then_with(|| ra.priority.cmp(&rb.priority))
        .then_with(|| reserved(ra.facts.reserved_at).cmp(&reserved(rb.facts.reserved_at)))
        .then_with(|| ra.facts.uid.cmp(&rb.facts.uid))
        .then_with(|| ra.key().cmp(rb.key()))
}
