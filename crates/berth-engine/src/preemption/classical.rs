//! The classical search for victims (§9.6–§9.9). It adds candidates in order until the workload
//! fits, and then drops those that were not needed.

use super::candidates::{Candidate, CandidateClass, classical};
use super::{Fate, Preemptor, Searched, Target};
use crate::decision::{SearchOutcome, VictimFate};
use crate::ids::WorkloadId;
use crate::model::BorrowWithinCohort;
use crate::world::World;

/// Finds targets. Leaves the world changed; the caller must roll back. The reported candidate fates
/// come from the attempt that found targets, or from the last one.
pub(crate) fn find(world: &mut World, preemptor: &Preemptor<'_>) -> (Vec<Target>, Searched) {
    let candidates = classical(world, preemptor);
    let mut last = Attempt::default();
    if candidates.is_empty() {
        return (Vec::new(), Searched::without_candidates(SearchOutcome::NoCandidates));
    }
    for borrow in attempts(world, preemptor, &candidates) {
        let mark = world.mark();
        last = attempt(world, preemptor, &candidates, borrow);
        world.rollback(mark);
        if !last.targets.is_empty() {
            break;
        }
    }
    let order = candidates.iter().map(|candidate| candidate.workload);
    let searched = Searched::new(order, &last.taken, &last.targets, last.passed_over);
    (last.targets, searched)
}

/// Result of one pass over the candidates.
#[derive(Default)]
struct Attempt {
    /// Workloads to evict; empty if the pass failed.
    targets: Vec<Target>,
    /// All candidates that were hidden.
    taken: Vec<WorkloadId>,
    passed_over: Vec<Fate>,
}

/// The attempts in the order in which they are made: true for an attempt in which the preemptor may
/// borrow (§9.6).
fn attempts(world: &World, preemptor: &Preemptor<'_>, candidates: &[Candidate]) -> Vec<bool> {
    let forbidden = world.queue(preemptor.queue).config.preemption.borrow_within_cohort == BorrowWithinCohort::Never;
    let from_others = candidates.iter().any(|candidate| candidate.class != CandidateClass::SameQueue);
    let hierarchical = candidates.iter().any(|candidate| candidate.class == CandidateClass::Hierarchical);
    let under_nominal = preemptor.need.iter().all(|&fr| {
        let cell = world.tree.cell(preemptor.node, fr);
        cell.usage < cell.quota.nominal
    });
    if !from_others || (forbidden && !under_nominal) {
        vec![true]
    } else if forbidden && !hierarchical {
        vec![false, true]
    } else {
        vec![true, false]
    }
}

/// One pass over the candidates (§9.7).
fn attempt(world: &mut World, preemptor: &Preemptor<'_>, candidates: &[Candidate], borrow: bool) -> Attempt {
    let mut attempt = Attempt::default();
    let mut targets = Vec::new();
    for candidate in candidates {
        let passes_over = match candidate.class {
            CandidateClass::SameQueue => None,
            _ if borrow && candidate.only_without_borrowing => Some(VictimFate::OnlyWithoutBorrowing),
            _ => is_covered(world, preemptor, candidate).then_some(VictimFate::WithinNominal),
        };
        if let Some(fate) = passes_over {
            attempt.passed_over.push((candidate.workload, fate));
            continue;
        }
        world.hide(candidate.workload);
        attempt.taken.push(candidate.workload);
        targets.push(Target { workload: candidate.workload, reason: candidate.reason });
        if preemptor.fits(world, borrow) {
            attempt.targets = preemptor.fill_back(world, targets, borrow);
            break;
        }
    }
    attempt
}

/// True if the candidate's queue, or a cohort between it and the common one, no longer uses more
/// than its own quota. Then no quota is left there to reclaim.
fn is_covered(world: &World, preemptor: &Preemptor<'_>, candidate: &Candidate) -> bool {
    world
        .tree
        .path_to_root(candidate.node)
        .take_while(|node| Some(*node) != candidate.common)
        .any(|node| world.tree.is_within_nominal(node, preemptor.need))
}
