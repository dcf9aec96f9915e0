//! Decides the entries of a cycle (§5.6). Each entry is admitted, preempts, reserves quota or is
//! skipped, against the state that the earlier entries left.

use super::claims::Claims;
use super::nominate::assign;
use super::order::EntryOrder;
use super::victims::victims;
use super::{Entry, Turn, count, is_usable};
use crate::amount::Amount;
use crate::decision::{AssignmentMode, CycleOutcome, PendingReason, WaitCause};
use crate::ids::{QueueId, WorkloadId};
use crate::model::{PreemptionPolicy, Time};
use crate::preemption::candidates::is_evicted;
use crate::quota::FrAmounts;
use crate::topology::Places;
use crate::world::World;

/// Decides every entry. Returns the entries with their outcomes, in the order in which they were
/// decided.
pub(crate) fn run(
    world: &mut World,
    entries: Vec<Box<Entry>>,
    outcome: &mut CycleOutcome,
    now: Time,
) -> Vec<(Box<Entry>, Turn)> {
    let mut order = EntryOrder::new(world, entries);
    let mut claims = Claims::default();
    let mut done = Vec::new();
    let mut pods_not_ready = world.config.block_admission_on_pods_ready && has_workload_without_ready_pods(world);
    while let Some(mut entry) = order.next(world) {
        let turn = process(world, &mut entry, &mut claims, pods_not_ready, outcome, now);
        // The pods of a workload that is admitted now cannot be ready yet, so all later entries
        // wait for them (§20.4).
        let admitted = matches!(turn, Turn::Admits) && !entry.second_pass;
        pods_not_ready |= admitted && world.config.block_admission_on_pods_ready;
        done.push((entry, turn));
    }
    done
}

/// True if no flavor can take an entry, regardless of the other entries, and no other entry's
/// outcome depends on it. Only its reason is left to report. False under fair sharing: the
/// tournament compares a queue by its head, regardless of the head's outcome.
pub(crate) fn is_hopeless(world: &World, entry: &Entry) -> bool {
    entry.assignment.mode() == AssignmentMode::NoFit
        && !entry.second_pass
        && !world.config.gates.concurrent_admission
        && !world.is_fair_sharing()
}

/// True if no entry of a cohort tree can be admitted or preempt, and none reserves domains that
/// other trees could use. The quota that they would reserve (§5.9) belongs to their tree, so the
/// order of their reports does not matter. False under fair sharing if a second pass (among those
/// `before`) is in the tournament, because a queue has one turn there.
pub(crate) fn no_entry_acts(world: &World, before: &[Box<Entry>], tree: &[Box<Entry>]) -> bool {
    let in_tournament = world.is_fair_sharing() && before.iter().any(|entry| entry.second_pass);
    // Variants depend on each other.
    !world.config.gates.concurrent_admission
        && !in_tournament
        && tree.iter().all(|entry| {
            let assignment = &entry.assignment;
            !is_usable(assignment.mode(), &entry.targets)
                && !assignment.deferred
                && assignment.pod_sets.iter().all(|set| set.topology.is_none())
        })
}

/// Reason why an entry can neither be admitted nor preempt.
pub(crate) fn no_assignment(entry: &Entry) -> WaitCause {
    match entry.assignment.mode() {
        AssignmentMode::NoFit => {
            WaitCause::NoFit { reason: entry.assignment.no_fit.unwrap_or(PendingReason::NoMatchingFlavor) }
        }
        _ => WaitCause::NoCandidates,
    }
}

/// Decides an entry as if it were the first of its cycle. Leaves the world changed; the caller must
/// roll back.
pub(crate) fn alone(world: &mut World, entry: &mut Entry, now: Time) -> Turn {
    let pods_not_ready = world.config.block_admission_on_pods_ready && has_workload_without_ready_pods(world);
    process(world, entry, &mut Claims::default(), pods_not_ready, &mut CycleOutcome::default(), now)
}

fn process(
    world: &mut World,
    entry: &mut Entry,
    claims: &mut Claims,
    pods_not_ready: bool,
    outcome: &mut CycleOutcome,
    now: Time,
) -> Turn {
    let queue_name = world.queue(entry.queue).name.clone();
    if better_sibling_admitted(world, entry) {
        return Turn::Waits(WaitCause::BetterSiblingAdmitted);
    }
    refresh(world, entry, claims, outcome, now);
    let mode = entry.assignment.mode();
    let gates = world.config.gates.clone();
    if gates.tas_failed_node_replacement_fail_fast && entry.second_pass && mode != AssignmentMode::Fit {
        let nodes = &world.record(entry.workload).facts.unhealthy_nodes;
        if !nodes.is_empty() {
            return Turn::LosesNodes(nodes.to_vec());
        }
    }
    if mode == AssignmentMode::NoFit {
        return Turn::Waits(no_assignment(entry));
    }
    if mode == AssignmentMode::Preempt && entry.targets.is_empty() {
        let can_always_reclaim =
            world.queue(entry.queue).config.preemption.reclaim_within_cohort == PreemptionPolicy::Any;
        if !can_always_reclaim || (gates.prioritize_preemptor_workloads && entry.is_preemptor) {
            let node = world.queue(entry.queue).node;
            let reserved =
                amounts_to_reserve(world, entry.queue, &entry.assignment.usage, entry.assignment.is_borrowing());
            let places = entry.net_places(world);
            claims.add_usage(world, node, &reserved, &places);
        }
        return Turn::Waits(WaitCause::NoCandidates);
    }
    let gated = gates.concurrent_admission || gates.multikueue_orchestrated_preemption;
    if mode == AssignmentMode::Preempt && gated && world.record(entry.workload).facts.preemption_gated {
        return Turn::Waits(WaitCause::PreemptionGated);
    }
    let usage = entry.quota_usage();
    let places = entry.net_places(world);
    let node = world.queue(entry.queue).node;
    if mode == AssignmentMode::DeferredFit {
        claims.add_usage(world, node, &usage, &places);
        return Turn::Waits(WaitCause::FitsAfterPreemption);
    }
    if claims.overlap(&entry.targets) {
        count(&mut outcome.skipped_preemptions, &queue_name);
        return Turn::Waits(WaitCause::VictimsTaken);
    }
    if !claims.fit(world, entry, &usage, &places) {
        if mode == AssignmentMode::Preempt {
            count(&mut outcome.skipped_preemptions, &queue_name);
        }
        return Turn::Waits(WaitCause::NoLongerFits);
    }
    // The victims are recorded before they are claimed, so that the record shows the usage on which
    // the decision was based.
    let victims = (mode == AssignmentMode::Preempt).then(|| victims(world, entry, &usage));
    claims.claim(world, &entry.targets);
    claims.add_usage(world, node, &usage, &places);
    if let Some(victims) = victims {
        return Turn::Preempts(victims);
    }
    if pods_not_ready && !entry.second_pass {
        return Turn::Waits(WaitCause::PodsNotReady);
    }
    migrate(world, entry).unwrap_or(Turn::Admits)
}

/// Recomputes the assignment if the outcome of earlier entries requires it (§5.6 step 1).
fn refresh(world: &mut World, entry: &mut Entry, claims: &mut Claims, outcome: &mut CycleOutcome, now: Time) {
    let gates = world.config.gates.clone();
    let overlaps = claims.overlap(&entry.targets);
    if gates.recompute_assignment_upon_preemption_targets_overlap && overlaps {
        let mark = world.mark();
        claims.hide_victims(world, entry.queue);
        let (assignment, requested, targets) = assign(world, entry, Some(entry.assignment.pins()), now);
        world.rollback(mark);
        entry.take(assignment, requested, targets);
        let result = if entry.assignment.mode() == AssignmentMode::Fit {
            entry.assignment.deferred = true;
            "deferred_fit"
        } else if entry.targets.is_empty() {
            return;
        } else {
            "new_targets"
        };
        let queue = world.queue(entry.queue).name.clone();
        *outcome.target_recomputations.entry(queue).or_default().entry(result).or_default() += 1;
        return;
    }
    if gates.tas_recompute_assignment_within_scheduling_cycle && entry.assignment.mode() != AssignmentMode::NoFit {
        let usage = entry.quota_usage();
        let places = entry.net_places(world);
        if places.is_empty()
            || !claims.fit(world, entry, &usage, &Places::default())
            || claims.fit(world, entry, &usage, &places)
        {
            return;
        }
        let (assignment, requested, targets) = assign(world, entry, Some(entry.assignment.pins()), now);
        entry.take(assignment, requested, targets);
    }
}

/// Amounts to reserve for a workload that must preempt but has no targets, so that later entries
/// cannot take them (§5.9).
pub(crate) fn amounts_to_reserve(world: &World, queue: QueueId, usage: &FrAmounts, borrows: bool) -> FrAmounts {
    let node = world.queue(queue).node;
    usage
        .iter()
        .map(|&(fr, amount)| {
            let cell = world.tree.cell(node, fr);
            let own = cell.quota.nominal;
            let wanted = Amount::Bounded(amount);
            let reserved = if borrows {
                match cell.quota.borrowing_limit {
                    Some(limit) => wanted.min(own + limit - cell.usage),
                    None => wanted,
                }
            } else {
                wanted.min(own - cell.usage).or_zero()
            };
            (fr, reserved.saturated())
        })
        .collect()
}

/// True if some workload holds quota and its pods are not all ready (§20.4).
fn has_workload_without_ready_pods(world: &World) -> bool {
    workloads_without_ready_pods(world).next().is_some()
}

/// Workloads that hold quota and whose pods are not all ready (§20.4).
pub(crate) fn workloads_without_ready_pods(world: &World) -> impl Iterator<Item = WorkloadId> + '_ {
    let holding = world.queues.iter().flat_map(|queue| &queue.holding).copied();
    holding.filter(|id| !world.record(*id).facts.pods_ready && !world.record(*id).facts.finished)
}

/// True if a sibling variant on a better flavor was admitted (§23).
fn better_sibling_admitted(world: &World, entry: &Entry) -> bool {
    world.config.gates.concurrent_admission
        && world.workloads.siblings(entry.workload).any(|id| {
            world.record(id).holding.as_ref().is_some_and(|holding| holding.admitted)
                && world.variant_rank(entry.queue, id) < world.variant_rank(entry.queue, entry.workload)
        })
}

/// Makes the sibling variants on worse flavors leave first, if there are any and the target flavor
/// is good enough for a migration (§23). `None` if the entry need not wait.
fn migrate(world: &World, entry: &Entry) -> Option<Turn> {
    if !world.config.gates.concurrent_admission {
        return None;
    }
    let own = world.variant_rank(entry.queue, entry.workload);
    let worse: Vec<WorkloadId> = world
        .workloads
        .siblings(entry.workload)
        .filter(|id| world.record(*id).holding.is_some() && world.variant_rank(entry.queue, *id) > own)
        .collect();
    if worse.is_empty() {
        return None;
    }
    let policy = world.queue(entry.queue).spec.as_ref().and_then(|spec| spec.concurrent_admission.clone());
    let flavors = world.queue(entry.queue).config.flavors();
    let last = policy.and_then(|policy| policy.last_acceptable_flavor);
    let limit = last.and_then(|name| flavors.iter().position(|it| *world.flavor_name(*it) == name));
    if limit.is_some_and(|limit| own > Some(limit)) {
        return Some(Turn::Waits(WaitCause::BelowLastAcceptableFlavor));
    }
    let siblings = worse.len();
    Some(Turn::Migrates { evicts: worse.into_iter().filter(|id| !is_evicted(world, *id)).collect(), siblings })
}
