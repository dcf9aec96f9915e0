//! Places the pods of an assignment (§8.14): on the nodes in their current state, on empty nodes,
//! and after victims have left.

use std::collections::BTreeSet;

use super::Topologies;
use super::count::{Count, Overlay};
use super::placement::{Placement, exists, find};
use super::replace::merge;
use super::request::{GroupRequest, PlacementRequest, build};
use super::tree::FlavorTree;
use crate::assignment::{Assignment, AssignmentRequest, FlavorChoice, PodSetOutcome};
use crate::decision::{AssignmentMode, Finding, FlavorAttempt, PendingReason, TopologyProblem};
use crate::ids::{FlavorId, Name};
use crate::model::TopologyAssignment;
use crate::preemption::Target;
use crate::quota::FrAmounts;
use crate::world::World;

/// The request for which domains were searched, and the placement on empty nodes if it was
/// computed.
#[derive(Debug)]
pub(crate) struct Sought {
    pub request: PlacementRequest,
    when_empty: Option<Found>,
}

/// Finds domains for the pods of an assignment that fits by quota (§8.14). Returns the request, if
/// any pods had to be placed.
pub(crate) fn place(world: &mut World, ask: &AssignmentRequest, assignment: &mut Assignment) -> Option<Sought> {
    if !world.config.gates.topology_aware_scheduling || assignment.mode() == AssignmentMode::NoFit {
        return None;
    }
    let request = build(world, ask, assignment, None)?;
    let mut when_empty = None;
    let replacing = request.replaces_nodes();
    if assignment.mode() == AssignmentMode::Fit {
        let found = place_all(world, &request, false);
        let failed: Vec<(usize, Finding)> =
            found.iter().filter_map(|(at, result)| Some((*at, result.as_ref().err()?.clone()))).collect();
        if failed.is_empty() {
            take(assignment, found);
        } else {
            for (at, reason) in failed {
                note(world, &mut assignment.pod_sets[at], reason);
                set_mode(&mut assignment.pod_sets[at], AssignmentMode::Preempt);
            }
            if replacing {
                for set in &mut assignment.pod_sets {
                    set_mode(set, AssignmentMode::Preempt);
                }
            }
        }
    }
    if assignment.mode() == AssignmentMode::Preempt && !replacing {
        let found = place_all(world, &request, true);
        let mut failed = false;
        for (at, result) in &found {
            let Err(reason) = result else { continue };
            failed = true;
            let set = &mut assignment.pod_sets[*at];
            note(world, set, reason.clone());
            set_mode(set, AssignmentMode::NoFit);
            for attempt in chosen_attempts(world, set) {
                attempt.mode = AssignmentMode::NoFit;
                attempt.no_fit = Some(PendingReason::TopologyPlacementFailed);
            }
        }
        if failed {
            assignment.no_fit = Some(PendingReason::TopologyPlacementFailed);
        } else {
            let members: Vec<usize> = found.iter().map(|(at, _)| *at).collect();
            for at in members {
                set_mode(&mut assignment.pod_sets[at], AssignmentMode::Preempt);
            }
        }
        when_empty = Some(found);
    }
    Some(Sought { request, when_empty })
}

/// Adds a finding about the nodes of a pod set's flavor, also to the attempt at that flavor.
fn note(world: &World, set: &mut PodSetOutcome, finding: Finding) {
    if set.findings.contains(&finding) {
        return;
    }
    for attempt in chosen_attempts(world, set) {
        attempt.findings.push(finding.clone());
    }
    set.findings.push(finding);
}

/// The attempts at the flavors that a pod set was given.
fn chosen_attempts<'a>(world: &World, set: &'a mut PodSetOutcome) -> impl Iterator<Item = &'a mut FlavorAttempt> {
    let flavors: Vec<Name> = set.flavors.iter().map(|choice| world.flavor_name(choice.flavor).clone()).collect();
    set.attempts.iter_mut().filter(move |attempt| flavors.contains(&attempt.flavor))
}

fn set_mode(set: &mut PodSetOutcome, mode: AssignmentMode) {
    for choice in &mut set.flavors {
        choice.mode = choice.mode.min(mode);
    }
}

fn take(assignment: &mut Assignment, found: Found) {
    for (at, result) in found {
        if let Ok(topology) = result {
            let set = &mut assignment.pod_sets[at];
            if set.delayed == Some(true) {
                set.delayed = Some(false);
            }
            set.topology = Some(topology);
        }
    }
}

/// Finds domains for a workload that preempts: once its targets have left, or on empty nodes if
/// there are no targets (§5.5 step 3). The domains are only reserved.
pub(crate) fn place_after(world: &mut World, assignment: &mut Assignment, sought: Sought, targets: &[Target]) {
    if sought.request.replaces_nodes() {
        return;
    }
    let found = match sought.when_empty {
        Some(found) if targets.is_empty() => found,
        _ => {
            let mark = world.mark();
            for target in targets {
                world.hide(target.workload);
            }
            let found = place_all(world, &sought.request, targets.is_empty());
            world.rollback(mark);
            found
        }
    };
    if found.iter().all(|(_, result)| result.is_ok()) {
        for (at, result) in found {
            assignment.pod_sets[at].topology = result.ok();
        }
    }
}

/// Per pod set, its domains, or the reason why it has none.
type Found = Vec<(usize, Result<TopologyAssignment, Finding>)>;

/// Places every group in order. Each group sees the capacity that earlier groups left. If a group
/// found no domains in a flavor, no later group is placed in that flavor, because the capacity that
/// it would see would be wrong.
fn place_all(world: &mut World, request: &PlacementRequest, empty: bool) -> Found {
    let mut found = Found::new();
    let mut failed: BTreeSet<FlavorId> = BTreeSet::new();
    let mut overlay = released(world, request, empty);
    for (at, group) in request.groups.iter().enumerate() {
        if failed.contains(&group.flavor) {
            continue;
        }
        match place_group(&mut world.topologies, request, at, &mut overlay, empty) {
            Ok((workers, leader)) => {
                found.push((group.workers, Ok(workers)));
                found.extend(group.leader.zip(leader).map(|(at, leader)| (at, Ok(leader))));
            }
            Err(reason) => {
                failed.insert(group.flavor);
                found.push((group.workers, Err(reason.clone())));
                found.extend(group.leader.map(|leader| (leader, Err(reason))));
            }
        }
    }
    found
}

/// Capacity that the replaced elastic slice returns.
fn released(world: &World, request: &PlacementRequest, empty: bool) -> Overlay {
    let mut overlay = Overlay::default();
    let replaced = request.replaced.filter(|id| !empty && !world.hidden.contains(id));
    if let Some(holding) = replaced.and_then(|id| world.record(id).holding.as_ref()) {
        for place in &holding.places.list {
            overlay.add(place.row, &place.demand, -place.count);
        }
    }
    overlay
}

/// The domains of one group's workers, and those of its leader.
fn place_group(
    topologies: &mut Topologies,
    request: &PlacementRequest,
    at: usize,
    overlay: &mut Overlay,
    empty: bool,
) -> Result<(TopologyAssignment, Option<TopologyAssignment>), Finding> {
    let group = &request.groups[at];
    let wanted = group.wanted.as_ref().map_err(|problem| Finding::TopologyRequest(problem.clone()))?;
    topologies.tree(group.flavor);
    let Some(tree) = topologies.current_tree(group.flavor) else {
        return Err(Finding::TopologyRequest(TopologyProblem::Gone));
    };
    for (kept, demand) in group.assumed() {
        for domain in &kept.domains {
            if let Some(leaf) = topologies.leaf(tree, group.flavor, &domain.values) {
                overlay.add(tree.row(leaf), demand, i64::from(domain.count));
            }
        }
    }
    let placement = if wanted.count == 0 && wanted.leader.is_none() {
        Placement::default()
    } else {
        let found = topologies.with_count(wanted, overlay, empty, |topologies, tree, count| {
            find(tree, wanted, &count.capacities)
                .map_err(|misfit| misfit.finding(topologies, tree, wanted, count, overlay))
        });
        found.ok_or(Finding::TopologyRequest(TopologyProblem::Gone))??
    };
    let Some(tree) = topologies.current_tree(group.flavor) else {
        return Err(Finding::TopologyRequest(TopologyProblem::Gone));
    };
    for &(leaf, pods) in &placement.workers {
        overlay.add(tree.row(leaf), &wanted.workers.demand, pods);
    }
    if let (Some(leaf), Some(leader)) = (placement.leader, &wanted.leader) {
        overlay.add(tree.row(leaf), &leader.demand, 1);
    }
    Ok(group.with_retained(topologies, tree, &placement))
}

impl GroupRequest {
    /// The complete placement of a group: retained pods and newly placed pods.
    fn with_retained(
        &self,
        topologies: &Topologies,
        tree: &FlavorTree,
        placement: &Placement,
    ) -> (TopologyAssignment, Option<TopologyAssignment>) {
        let (workers, leader) = (placement.workers(tree), placement.leader(tree));
        let Some(retained) = &self.retained else { return (workers, leader) };
        let mut workers = merge(&retained.workers, &workers);
        workers.domains.sort_by_key(|domain| topologies.leaf(tree, self.flavor, &domain.values));
        (workers, leader.or_else(|| retained.leader.clone()))
    }
}

/// True if all pods can be placed now.
pub(crate) fn is_placeable(world: &mut World, request: &PlacementRequest) -> bool {
    // The usual case needs no domain names: one group, nothing retained.
    if let [group] = request.groups.as_slice()
        && let (Ok(wanted), None, None) = (&group.wanted, &group.retained, request.replaced)
        && !wanted.balanced
    {
        let exists = |_: &Topologies, tree: &FlavorTree, count: &Count| exists(tree, wanted, &count.capacities);
        return world.topologies.with_count(wanted, &Overlay::default(), false, exists) == Some(true);
    }
    place_all(world, request, false).iter().all(|(_, result)| result.is_ok())
}

/// The domains of a workload's pods in one flavor, regardless of quota. Per pod set, or the reason
/// why it has none.
#[cfg(feature = "lab")]
pub(crate) fn places_in(
    world: &mut World,
    ask: &AssignmentRequest,
    flavor: FlavorId,
    earlier: &super::request::Earlier,
) -> Vec<(Name, Result<TopologyAssignment, Finding>)> {
    let resource = world.resources.intern(&Name::from(super::PODS));
    let fr = world.frs.intern(flavor, resource);
    let choice = FlavorChoice { resource, flavor, fr, mode: AssignmentMode::Fit, tried: -1 };
    let mut assignment = if ask.second_pass { held_assignment(world, ask) } else { Assignment::default() };
    if !ask.second_pass {
        assignment.pod_sets = ask
            .pod_sets
            .iter()
            .map(|set| PodSetOutcome {
                name: set.info.name.clone(),
                count: set.count,
                requests: Default::default(),
                flavors: Vec::new(),
                findings: Vec::new(),
                error: None,
                attempts: Vec::new(),
                topology: None,
                delayed: None,
            })
            .collect();
    }
    for set in &mut assignment.pod_sets {
        set.flavors = vec![choice];
    }
    let Some(request) = build(world, ask, &mut assignment, Some(earlier)) else {
        let kept = assignment.pod_sets.into_iter().filter_map(|set| Some((set.name, Ok(set.topology?))));
        return kept.collect();
    };
    let found = place_all(world, &request, false);
    found.into_iter().map(|(at, result)| (assignment.pod_sets[at].name.clone(), result)).collect()
}

/// The assignment of a workload that already holds quota (§8.2).
pub(crate) fn held_assignment(world: &mut World, ask: &AssignmentRequest) -> Assignment {
    let record = world.record(ask.workload);
    let Some(holding) = record.holding.clone() else { return Assignment::default() };
    let mut assignment = Assignment { usage: FrAmounts::new(), ..Assignment::default() };
    for set in &holding.admission.pod_sets {
        let requested = ask.pod_sets.iter().find(|requested| requested.info.name == set.name);
        let mut flavors = Vec::new();
        for (resource, flavor) in &set.flavors {
            let resource = world.resources.intern(resource);
            let flavor = world.flavor_id(flavor);
            let fr = world.frs.intern(flavor, resource);
            flavors.push(FlavorChoice { resource, flavor, fr, mode: AssignmentMode::Fit, tried: -1 });
        }
        let requests = set.usage.iter().map(|(resource, amount)| (world.resources.intern(resource), *amount)).collect();
        assignment.pod_sets.push(PodSetOutcome {
            name: set.name.clone(),
            count: set.count.or(requested.map(|requested| requested.count)).unwrap_or(1),
            requests,
            flavors,
            findings: Vec::new(),
            error: None,
            attempts: Vec::new(),
            topology: set.topology.clone(),
            delayed: set.delayed_topology_pending,
        });
    }
    assignment
}
