//! Nomination: the assignment that a head would get on its own (§5.4, §5.5, §12).

use std::sync::Arc;

use super::{Entry, is_usable};
use crate::assignment::search::assign_flavors;
use crate::assignment::{Assignment, AssignmentRequest, Pins, RequestedPodSet, reduce, requested_pod_set};
use crate::decision::{AssignmentMode, WaitCause};
use crate::ids::WorkloadId;
use crate::model::{CheckState, Time};
use crate::preemption::{Preemptor, RealOracle, Target, find_targets};
use crate::topology::assign::{Sought, place, place_after};
use crate::world::World;

/// Whether a head takes part in the cycle.
pub(crate) enum Nomination {
    /// The head has an assignment, usable or not.
    Considered,
    /// The head cannot be considered.
    Refused(WaitCause),
    /// The head already holds quota: it does not return to a queue.
    Dropped,
}

/// Sets an entry's assignment and targets, or returns the reason why it has none.
pub(crate) fn nominate(world: &mut World, entry: &mut Entry, now: Time) -> Nomination {
    if let Some(cause) = refusal(world, entry) {
        return Nomination::Refused(cause);
    }
    if world.record(entry.workload).holding.is_some() && !entry.second_pass {
        return Nomination::Dropped;
    }
    drop_outdated_scan(world, entry);
    entry.replaced = replaced_slice(world, entry);
    let (assignment, requested, targets) = assign(world, entry, None, now);
    entry.take(assignment, requested, targets);
    Nomination::Considered
}

/// Reason why a head cannot be considered at all (§5.4, §2.8).
fn refusal(world: &mut World, entry: &Entry) -> Option<WaitCause> {
    let selected = world.is_selected(entry.queue, world.record(entry.workload).local);
    let record = world.record(entry.workload);
    if record.holding.is_some() && !entry.second_pass {
        return None;
    }
    let facts = &record.facts;
    if facts.checks.iter().any(|check| matches!(check.state, CheckState::Retry | CheckState::Rejected)) {
        return Some(WaitCause::FailedChecks);
    }
    let queue = world.queue(entry.queue);
    if queue.spec.is_none() {
        return Some(WaitCause::QueueNotFound { queue: queue.name.clone() });
    }
    if !world.is_schedulable(entry.queue) {
        return Some(WaitCause::QueueInactive { queue: queue.name.clone() });
    }
    if !selected {
        return Some(unselected(world, entry.workload));
    }
    facts.inadmissible.clone().map(|problem| WaitCause::Invalid { problem })
}

/// Why a workload waits whose namespace its cluster queue does not select.
pub(crate) fn unselected(world: &World, workload: WorkloadId) -> WaitCause {
    let namespace = &world.record(workload).key().namespace;
    if world.namespaces.contains_key(namespace) {
        WaitCause::NamespaceMismatch
    } else {
        WaitCause::NamespaceNotFound { namespace: namespace.clone() }
    }
}

fn drop_outdated_scan(world: &mut World, entry: &Entry) {
    let preserve = world.config.gates.flavor_fungibility_preserve_scan_progress;
    let (cycle, generation) = (world.cycle, world.queue(entry.queue).generation);
    let record = world.record_mut(entry.workload);
    let class = Some(record.class);
    if record.scan.as_ref().is_some_and(|scan| scan.is_outdated(preserve, class, cycle, generation)) {
        record.scan = None;
    }
}

/// The elastic slice a workload replaces, if that holds quota in the same queue (§13.2).
pub(crate) fn replaced_slice(world: &World, entry: &Entry) -> Option<WorkloadId> {
    if !world.config.gates.elastic_jobs_via_workload_slices {
        return None;
    }
    let key = world.record(entry.workload).facts.replaces.as_ref()?;
    let id = world.workloads.id(key)?;
    let holding = world.record(id).holding.as_ref()?;
    (holding.queue == entry.queue && !world.record(id).facts.finished).then_some(id)
}

/// The best assignment, with the preemption targets it needs (§5.5). With pins, only the pinned
/// flavors are considered and the search starts at the first flavor.
pub(crate) fn assign(
    world: &mut World,
    entry: &Entry,
    pins: Option<Pins>,
    now: Time,
) -> (Assignment, Arc<[RequestedPodSet]>, Vec<Target>) {
    let record = world.record(entry.workload);
    let shape = record.shape.clone();
    let resume = pins.is_none();
    let ask = |pod_sets: Arc<[RequestedPodSet]>| AssignmentRequest {
        queue: entry.queue,
        workload: entry.workload,
        pod_sets,
        pinned: pins.clone(),
        replaced: entry.replaced,
        second_pass: entry.second_pass,
        resume,
    };
    let full_ask = ask(shape.requested().clone());
    let (mut assignment, sought, targets) = assign_once(world, &full_ask, now);
    if is_usable(assignment.mode(), &targets) {
        reserve_topology(world, &mut assignment, sought, &targets);
        return (assignment, full_ask.pod_sets, targets);
    }
    let may_reduce = world.config.gates.partial_admission
        && !entry.second_pass
        && entry.replaced.is_none()
        && world.record(entry.workload).facts.replaces.is_none()
        && shape.pod_sets.iter().any(|set| set.min_count.is_some_and(|least| least < set.count));
    if may_reduce {
        let counts: Vec<(i32, Option<i32>)> = shape.pod_sets.iter().map(|set| (set.count, set.min_count)).collect();
        let found = reduce::search(&counts, |counts| {
            let reduced: Arc<[RequestedPodSet]> =
                shape.pod_sets.iter().zip(counts).map(|(info, count)| requested_pod_set(info, *count)).collect();
            let reduced_ask = ask(reduced.clone());
            let (mut assignment, sought, targets) = assign_once(world, &reduced_ask, now);
            if !is_usable(assignment.mode(), &targets) {
                return None;
            }
            reserve_topology(world, &mut assignment, sought, &targets);
            Some((assignment, reduced, targets))
        });
        if let Some((_, answer)) = found {
            return answer;
        }
    }
    reserve_topology(world, &mut assignment, sought, &[]);
    (assignment, full_ask.pod_sets, Vec::new())
}

/// Flavors, topology, and targets for exactly these counts.
fn assign_once(world: &mut World, ask: &AssignmentRequest, now: Time) -> (Assignment, Option<Sought>, Vec<Target>) {
    let mut oracle = RealOracle::at(now);
    let mut assignment = if ask.second_pass {
        crate::topology::assign::held_assignment(world, ask)
    } else {
        assign_flavors(world, ask, &mut oracle)
    };
    let sought = place(world, ask, &mut assignment);
    let mut targets = Vec::new();
    if assignment.mode() == AssignmentMode::Preempt {
        let node = world.queue(ask.queue).node;
        let preemptor = Preemptor {
            workload: ask.workload,
            queue: ask.queue,
            node,
            replaced: ask.replaced,
            need: &assignment.frs_needing_preemption(),
            request: &assignment.usage,
            placement: sought.as_ref().map(|sought| &sought.request),
            now,
        };
        // If only the quota of one flavor-resource is short, the assignment already made this
        // search.
        let known = if sought.is_none() { oracle.take_found(&assignment.usage) } else { None };
        debug_assert!(known.as_ref().is_none_or(|(targets, _)| *targets == find_targets(world, &preemptor).0));
        let (found, searched) = known.unwrap_or_else(|| find_targets(world, &preemptor));
        oracle.searches.push(searched);
        targets = found;
    }
    assignment.searches = oracle.searches;
    (assignment, sought, targets)
}

/// Chooses the domains a preempting workload will use, so that they can be reserved for it (§5.5
/// step 3).
fn reserve_topology(world: &mut World, assignment: &mut Assignment, sought: Option<Sought>, targets: &[Target]) {
    if let Some(sought) = sought.filter(|_| assignment.mode() == AssignmentMode::Preempt) {
        place_after(world, assignment, sought, targets);
    }
}
