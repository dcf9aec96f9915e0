//! The classical search for victims (§9.6–§9.9): take candidates in order until the workload fits, then give back those
//! that were not needed.

use super::candidates::{Candidate, CandidateClass, classical};
use super::{Preemptor, Target};
use crate::model::BorrowWithinCohort;
use crate::world::World;

/// Finds targets. Leaves the world changed; the caller rolls back.
pub(crate) fn find(world: &mut World, preemptor: &Preemptor<'_>) -> Vec<Target> {
    let candidates = classical(world, preemptor);
    for borrow in attempts(world, preemptor, &candidates) {
        let mark = world.mark();
        let targets = attempt(world, preemptor, &candidates, borrow);
        world.rollback(mark);
        if !targets.is_empty() {
            return targets;
        }
    }
    Vec::new()
}

/// Whether to try with and without borrowing, and in which order (§9.6).
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
fn attempt(world: &mut World, preemptor: &Preemptor<'_>, candidates: &[Candidate], borrow: bool) -> Vec<Target> {
    let mut targets = Vec::new();
    for candidate in candidates {
        if candidate.class != CandidateClass::SameQueue
            && ((borrow && candidate.only_without_borrowing) || is_covered(world, preemptor, candidate))
        {
            continue;
        }
        world.hide(candidate.workload);
        targets.push(Target { workload: candidate.workload, reason: candidate.reason });
        if preemptor.fits(world, borrow) {
            return preemptor.fill_back(world, targets, borrow);
        }
    }
    Vec::new()
}

/// True if the candidate's queue, or a cohort between it and the common one, no longer uses more than it owns: what is
/// left there belongs to it.
fn is_covered(world: &World, preemptor: &Preemptor<'_>, candidate: &Candidate) -> bool {
    world
        .tree
        .path_to_root(candidate.node)
        .take_while(|node| Some(*node) != candidate.common)
        .any(|node| world.tree.is_within_nominal(node, &preemptor.need))
}
