//! Preemption: the search for workloads to preempt so that another one fits. The classical search
//! is in §9, the fair-sharing search in §10.
//!
//! Both searches try evictions on the live world between a mark and a rollback. The result is a
//! list of targets, and the fate of every candidate.

pub(crate) mod candidates;
pub(crate) mod classical;
pub(crate) mod fair;
mod searched;

use crate::amount::Amount;
use crate::assignment::{AssignmentRequest, Oracle, Simulated};
use crate::decision::{PreemptionMode, PreemptionReason, SearchOutcome};
use crate::ids::{FrId, NodeId, QueueId, WorkloadId};
use crate::model::{PreemptionPolicy, Time};
use crate::quota::FrAmounts;
use crate::topology::request::PlacementRequest;
use crate::world::World;

pub(crate) use searched::{Fate, Searched};

/// A workload to preempt, and the rule that allows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    pub workload: WorkloadId,
    pub reason: PreemptionReason,
}

/// The workload that needs quota, and its request (§9.1).
#[derive(Debug)]
pub(crate) struct Preemptor<'a> {
    pub workload: WorkloadId,
    pub queue: QueueId,
    pub node: NodeId,
    /// The elastic slice that it replaces. The quota of the slice already counts as the workload's,
    /// so the slice is not a preemption candidate.
    pub replaced: Option<WorkloadId>,
    /// Flavor-resources that are short.
    pub need: &'a [FrId],
    /// All quota that the workload would use.
    pub request: &'a FrAmounts,
    /// The placement that the workload would need; `None` if only quota counts.
    pub placement: Option<&'a PlacementRequest>,
    pub now: Time,
}

/// Returns the targets that make the workload fit, or none if no set of allowed targets does. Also
/// returns a record of the search.
pub(crate) fn find_targets(world: &mut World, preemptor: &Preemptor<'_>) -> (Vec<Target>, Searched) {
    let policies = world.queue(preemptor.queue).config.preemption;
    let has_cohort = world.tree.node(preemptor.node).parent.is_some();
    if policies.within_cluster_queue == PreemptionPolicy::Never
        && (!has_cohort || policies.reclaim_within_cohort == PreemptionPolicy::Never)
    {
        return (Vec::new(), Searched::without_candidates(SearchOutcome::Forbidden));
    }
    let mark = world.mark();
    let found = if world.is_fair_sharing() { fair::find(world, preemptor) } else { classical::find(world, preemptor) };
    world.rollback(mark);
    found
}

impl Preemptor<'_> {
    /// True if the workload fits into the current state (§9.8).
    pub fn fits(&self, world: &mut World, borrow: bool) -> bool {
        let quota_fits = self.request.iter().all(|&(fr, amount)| {
            let amount = Amount::Bounded(amount);
            (borrow || !world.tree.is_borrowing_with(self.node, fr, amount))
                && amount <= world.tree.available(self.node, fr).or_zero()
        });
        quota_fits && self.placement.is_none_or(|request| crate::topology::assign::is_placeable(world, request))
    }

    /// Drops targets that are not needed, from the second-to-last backwards (§9.9). The targets
    /// must be hidden.
    pub fn fill_back(&self, world: &mut World, mut targets: Vec<Target>, borrow: bool) -> Vec<Target> {
        let mut at = targets.len().saturating_sub(1);
        while at > 0 {
            at -= 1;
            world.unhide(targets[at].workload);
            if self.fits(world, borrow) {
                targets.swap_remove(at);
            } else {
                world.hide(targets[at].workload);
            }
        }
        targets
    }
}

/// True if a policy lets one workload preempt another (§9.2).
pub(crate) fn satisfies(world: &World, policy: PreemptionPolicy, preemptor: WorkloadId, candidate: WorkloadId) -> bool {
    let (preemptor, candidate) = (world.record(preemptor), world.record(candidate));
    let lower = preemptor.priority > candidate.priority;
    match policy {
        PreemptionPolicy::Never => false,
        PreemptionPolicy::Any => true,
        PreemptionPolicy::LowerPriority => lower,
        PreemptionPolicy::LowerOrNewerEqualPriority => {
            lower || (preemptor.priority == candidate.priority && preemptor.order_time < candidate.order_time)
        }
    }
}

/// Simulates preemption for single flavor-resources by a real search for victims (§8.6).
pub(crate) struct RealOracle {
    now: Time,
    /// The searches that were made.
    pub searches: Vec<Searched>,
    /// The last search: its flavor-resource, its amount and its targets.
    last: Option<(FrId, i64, Vec<Target>)>,
}

impl RealOracle {
    pub fn at(now: Time) -> Self {
        RealOracle { now, searches: Vec::new(), last: None }
    }

    /// Takes the result of the last search if it is reusable: it was for exactly this amount, and
    /// the assignment has no placement.
    pub fn take_found(&mut self, request: &FrAmounts) -> Option<(Vec<Target>, Searched)> {
        let (.., targets) = self.last.take_if(|(fr, amount, _)| **request == [(*fr, *amount)])?;
        let searched = self.searches.last()?.clone();
        Some((targets, searched.of_flavor_resource(None)))
    }
}

impl Oracle for RealOracle {
    fn simulate(&mut self, world: &mut World, ask: &AssignmentRequest, fr: FrId, amount: i64) -> Simulated {
        let node = world.queue(ask.queue).node;
        let preemptor = Preemptor {
            workload: ask.workload,
            queue: ask.queue,
            node,
            replaced: ask.replaced,
            need: &[fr],
            request: &vec![(fr, amount)],
            placement: None,
            now: self.now,
        };
        let (targets, searched) = find_targets(world, &preemptor);
        self.searches.push(searched.of_flavor_resource(Some(fr)));
        self.last = Some((fr, amount, targets));
        let targets = self.last.as_ref().map_or(&[][..], |(.., targets)| targets);
        if targets.is_empty() {
            let (level, _) = world.tree.borrowing_level(node, fr, amount);
            return Simulated { mode: PreemptionMode::NoPreemptionCandidates, level };
        }
        let mark = world.mark();
        for target in targets {
            world.hide(target.workload);
        }
        let (level, _) = world.tree.borrowing_level(node, fr, amount);
        world.rollback(mark);
        let own = targets.iter().any(|target| {
            world.record(target.workload).holding.as_ref().is_some_and(|holding| holding.queue == ask.queue)
        });
        Simulated { mode: if own { PreemptionMode::Preempt } else { PreemptionMode::Reclaim }, level }
    }
}
