//! From pod sets to placement: which flavors can serve a topology request, and putting an assignment's pods somewhere
//! (§8.14, §14.2–§14.4).

use std::collections::BTreeMap;

use super::placement::{Placement, Pods, Wanted, find};
use super::replace::{is_broken, merge, stale_domain, without};
use super::tree::FlavorTree;
use super::{PODS, Topologies};
use crate::assignment::{Ask, AskedPodSet, Assignment, FlavorChoice, PodSetOutcome};
use crate::decision::{AssignmentMode, Finding, PendingReason};
use crate::ids::{FlavorId, Name, QueueId};
use crate::model::{CheckState, ResourceFlavor, ResourceList, TopologyAssignment, TopologyMode, TopologyRequest};
use crate::preemption::Target;
use crate::quota::FrAmounts;
use crate::world::World;
use crate::world::queue::Group;

/// Pods that need places, in the order they get them.
#[derive(Debug, Clone, Default)]
pub(crate) struct PlacementRequest {
    groups: Vec<GroupRequest>,
}

/// Pod sets placed together: workers, perhaps with a leader.
#[derive(Debug, Clone)]
struct GroupRequest {
    flavor: FlavorId,
    workers: usize,
    leader: Option<usize>,
    /// What to look for; `Err` where the request itself is wrong.
    wanted: Result<Wanted, String>,
    /// What stays of an earlier placement.
    kept: Option<TopologyAssignment>,
}

/// True if a pod set asks for a topology (a group alone asks for none).
fn is_explicit(request: Option<&TopologyRequest>) -> bool {
    request.is_some_and(|request| request.mode.is_some() || !request.slices.is_empty())
}

/// True if every flavor of the queue has a topology: pods that ask for none are placed all the same.
fn is_topology_only(world: &World, queue: QueueId) -> bool {
    let flavors = world.queue(queue).config.flavors();
    !flavors.is_empty() && flavors.iter().all(|id| world.flavor(*id).is_some_and(|flavor| flavor.topology.is_some()))
}

fn has_topology_flavor(world: &World, queue: QueueId) -> bool {
    let flavors = world.queue(queue).config.flavors();
    flavors.iter().any(|id| world.flavor(*id).is_some_and(|flavor| flavor.topology.is_some()))
}

/// Why a flavor cannot serve a pod set's topology, if it cannot (§14.2).
pub(crate) fn flavor_mismatch(
    world: &World,
    queue: QueueId,
    group: &Group,
    set: &AskedPodSet,
    flavor: &ResourceFlavor,
) -> Option<String> {
    let name = &flavor.name;
    let request = set.info.topology.as_ref();
    if !is_explicit(request) {
        let only = flavor.topology.is_some() && !is_topology_only(world, queue) && !is_grouped(set);
        return only.then(|| format!("Flavor {name:?} supports only TopologyAwareScheduling"));
    }
    let Some(topology) = &flavor.topology else {
        let own = &set.info.template.requests;
        let covers = group.resources.iter().any(|resource| own.contains_key(world.resource_name(*resource)));
        return covers.then(|| format!("Flavor {name:?} does not support TopologyAwareScheduling"));
    };
    let Some(levels) = world.topologies.levels(topology) else {
        return Some(format!("Flavor {name:?} information missing in TAS cache"));
    };
    let missing = request.into_iter().flat_map(requested_levels).any(|level| !levels.contains(level));
    missing.then(|| format!("Flavor {name:?} does not contain the requested level"))
}

/// The levels a request names.
pub(crate) fn requested_levels(request: &TopologyRequest) -> impl Iterator<Item = &Name> {
    let mode = match &request.mode {
        Some(TopologyMode::Required(level) | TopologyMode::Preferred(level)) => Some(level),
        _ => None,
    };
    mode.into_iter().chain(request.slices.iter().map(|slice| &slice.level))
}

fn is_grouped(set: &AskedPodSet) -> bool {
    set.info.topology.as_ref().is_some_and(|request| request.group.is_some())
}

/// Finds places for the pods of an assignment that fits by quota (§8.14). What was looked for, if anything was.
pub(crate) fn place(world: &mut World, ask: &Ask, assignment: &mut Assignment) -> Option<PlacementRequest> {
    if !world.config.gates.topology_aware_scheduling || assignment.mode() == AssignmentMode::NoFit {
        return None;
    }
    let request = build(world, ask, assignment)?;
    let replacing = request.groups.iter().any(|group| group.kept.is_some());
    if assignment.mode() == AssignmentMode::Fit {
        let found = place_all(&mut world.topologies, &request, false);
        let failed: Vec<(usize, String)> =
            found.iter().filter_map(|(at, result)| Some((*at, result.as_ref().err()?.clone()))).collect();
        if failed.is_empty() {
            take(assignment, found);
        } else {
            for (at, reason) in failed {
                let set = &mut assignment.pod_sets[at];
                set.findings.push(Finding::Other(reason));
                set_mode(set, AssignmentMode::Preempt);
            }
            if replacing {
                for set in &mut assignment.pod_sets {
                    set_mode(set, AssignmentMode::Preempt);
                }
            }
        }
    }
    if assignment.mode() == AssignmentMode::Preempt && !replacing {
        let found = place_all(&mut world.topologies, &request, true);
        let mut failed = false;
        for (at, result) in &found {
            let Err(reason) = result else { continue };
            failed = true;
            let set = &mut assignment.pod_sets[*at];
            let finding = Finding::Other(reason.clone());
            if !set.findings.contains(&finding) {
                set.findings.push(finding);
            }
            set_mode(set, AssignmentMode::NoFit);
            let flavors: Vec<Name> =
                set.flavors.iter().map(|choice| world.flavor_names.name(choice.flavor).clone()).collect();
            for attempt in set.attempts.iter_mut().filter(|attempt| flavors.contains(&attempt.flavor)) {
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
    }
    Some(request)
}

fn set_mode(set: &mut PodSetOutcome, mode: AssignmentMode) {
    for choice in &mut set.flavors {
        choice.mode = choice.mode.min(mode);
    }
}

fn take(assignment: &mut Assignment, found: Vec<(usize, Result<TopologyAssignment, String>)>) {
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

/// Finds places for a workload that preempts, once its targets have left, or on empty nodes if there are none (§5.5
/// step 3). Only so that they can be kept for it.
pub(crate) fn place_after(world: &mut World, ask: &Ask, assignment: &mut Assignment, targets: &[Target]) {
    if !world.config.gates.topology_aware_scheduling {
        return;
    }
    let Some(request) = build(world, ask, assignment) else { return };
    if request.groups.iter().any(|group| group.kept.is_some()) {
        return;
    }
    let mark = world.mark();
    for target in targets {
        world.hide(target.workload);
    }
    let found = place_all(&mut world.topologies, &request, targets.is_empty());
    world.rollback(mark);
    if found.iter().all(|(_, result)| result.is_ok()) {
        for (at, result) in found {
            assignment.pod_sets[at].topology = result.ok();
        }
    }
}

/// True if all pods find places as things stand.
pub(crate) fn is_placeable(world: &mut World, request: &PlacementRequest) -> bool {
    place_all(&mut world.topologies, request, false).iter().all(|(_, result)| result.is_ok())
}

/// Works out what has to be placed where. `None` if nothing has to be, or if a pod set has no one topology flavor.
fn build(world: &mut World, ask: &Ask, assignment: &mut Assignment) -> Option<PlacementRequest> {
    let implied = is_topology_only(world, ask.queue);
    let facts = &world.record(ask.workload).facts;
    let unhealthy = facts.unhealthy_nodes.clone();
    let keeps_nodes = facts.owned_by_pod && world.config.gates.skip_reassignment_for_pod_owned_workloads;
    let mut by_flavor: BTreeMap<Name, (FlavorId, Vec<usize>)> = BTreeMap::new();
    for at in 0..assignment.pod_sets.len() {
        let set = &assignment.pod_sets[at];
        let asked = ask.pod_sets.iter().find(|asked| asked.info.name == set.name)?;
        if set.count == 0 || !(implied || is_explicit(asked.info.topology.as_ref())) {
            continue;
        }
        if !has_topology_flavor(world, ask.queue) {
            assignment.pod_sets[at].error =
                Some("workload requires Topology, but there is no TAS cache information".to_owned());
            return None;
        }
        let mut flavors: Vec<(Name, FlavorId)> = set
            .flavors
            .iter()
            .filter(|choice| world.flavor(choice.flavor).is_some_and(|flavor| flavor.topology.is_some()))
            .map(|choice| (world.flavor_name(choice.flavor).clone(), choice.flavor))
            .collect();
        flavors.sort();
        flavors.dedup();
        let (name, flavor) = match flavors.as_slice() {
            [one] => one.clone(),
            [] => {
                assignment.pod_sets[at].error = Some("no TAS flavor assigned".to_owned());
                return None;
            }
            several => {
                let names: Vec<&str> = several.iter().map(|(name, _)| &**name).collect();
                assignment.pod_sets[at].error =
                    Some(format!("more than one TAS flavor assigned: {}", names.join(", ")));
                return None;
            }
        };
        let delayed = world.uses_multikueue(ask.queue) || (!ask.second_pass && world.provisions(ask.queue, &name));
        if delayed {
            assignment.pod_sets[at].delayed = Some(true);
            continue;
        }
        if ask.second_pass {
            let healthy = assignment.pod_sets[at]
                .topology
                .as_ref()
                .is_some_and(|topology| keeps_nodes || !is_broken(topology, &unhealthy));
            if healthy {
                continue;
            }
        }
        by_flavor.entry(name).or_insert((flavor, Vec::new())).1.push(at);
    }
    let mut request = PlacementRequest::default();
    for (flavor, members) in by_flavor.into_values() {
        for (workers, leader) in pair_up(ask, assignment, &members) {
            request.groups.push(group_request(world, ask, assignment, flavor, workers, leader));
        }
    }
    (!request.groups.is_empty()).then_some(request)
}

/// Pod sets of one group name belong together: the smaller one leads, the second one on equality (§14.4).
fn pair_up(ask: &Ask, assignment: &Assignment, members: &[usize]) -> Vec<(usize, Option<usize>)> {
    let group = |at: usize| {
        let name = &assignment.pod_sets[at].name;
        let asked = ask.pod_sets.iter().find(|asked| asked.info.name == *name)?;
        asked.info.topology.as_ref()?.group.clone()
    };
    let mut pairs: Vec<(usize, Option<usize>)> = Vec::new();
    for &at in members {
        let partner = group(at).and_then(|name| {
            pairs.iter().position(|(known, leader)| leader.is_none() && group(*known).as_ref() == Some(&name))
        });
        match partner {
            None => pairs.push((at, None)),
            Some(index) => {
                let first = pairs[index].0;
                pairs[index] = if assignment.pod_sets[first].count < assignment.pod_sets[at].count {
                    (at, Some(first))
                } else {
                    (first, Some(at))
                };
            }
        }
    }
    pairs
}

fn group_request(
    world: &mut World,
    ask: &Ask,
    assignment: &Assignment,
    flavor: FlavorId,
    workers: usize,
    leader: Option<usize>,
) -> GroupRequest {
    let facts = world.record(ask.workload).facts.clone();
    let set = &assignment.pod_sets[workers];
    let broken = set
        .topology
        .as_ref()
        .filter(|topology| ask.second_pass && is_broken(topology, &facts.unhealthy_nodes))
        .and_then(|topology| without(topology, &facts.unhealthy_nodes));
    let wanted = wanted(world, ask, assignment, flavor, workers, leader).and_then(|mut wanted| {
        let Some(broken) = &broken else { return Ok(wanted) };
        let tree = world.topologies.tree(flavor).ok_or("the flavor's topology is gone")?;
        if let Some(stale) = stale_domain(&tree, &broken.kept) {
            return Err(format!(
                "Cannot replace the node, because the existing topologyAssignment is invalid, as it contains the stale \
                 domain {stale}"
            ));
        }
        restrict(&tree, &mut wanted, broken);
        wanted.excluded_hosts = facts.unhealthy_nodes.clone();
        Ok(wanted)
    });
    GroupRequest { flavor, workers, leader, wanted, kept: broken.map(|broken| broken.kept) }
}

/// Narrows a request to the pods that are missing, and to where they may go (§15.3).
fn restrict(tree: &FlavorTree, wanted: &mut Wanted, broken: &super::replace::Broken) {
    wanted.count = i64::from(broken.missing);
    wanted.leader = None;
    let anchor = broken.kept.domains.iter().find_map(|domain| tree.leaf(&domain.values));
    let failed = tree.leaf(&broken.failed.values);
    let layers: Vec<(usize, i64)> =
        [(wanted.slice_level, wanted.slice_size)].into_iter().chain(wanted.layers.clone()).collect();
    // A broken slice is completed in its own domain, the innermost one that is broken; what is whole inside stays whole.
    let torn = layers.iter().rposition(|(_, size)| *size > 1 && wanted.count % size != 0);
    if let Some(torn) = torn {
        let (level, size) = layers[torn];
        let mut counts: BTreeMap<usize, i64> = BTreeMap::new();
        for domain in &broken.kept.domains {
            if let Some(leaf) = tree.leaf(&domain.values) {
                *counts.entry(tree.ancestor(leaf, level)).or_default() += i64::from(domain.count);
            }
        }
        let incomplete = counts.into_iter().find(|(_, count)| count % size != 0).map(|(domain, _)| domain);
        let domain = incomplete.or_else(|| failed.map(|leaf| tree.ancestor(leaf, level)));
        wanted.within = domain;
        let inner = layers.get(torn + 1).copied();
        (wanted.slice_level, wanted.slice_size) = inner.unwrap_or((tree.levels.len() - 1, 1));
        wanted.layers = layers.into_iter().skip(torn + 2).collect();
    } else if wanted.required {
        wanted.within = anchor.map(|leaf| tree.ancestor(leaf, wanted.level));
    }
}

/// The request of a group, checked against the flavor's levels (§14.2).
fn wanted(
    world: &mut World,
    ask: &Ask,
    assignment: &Assignment,
    flavor: FlavorId,
    workers: usize,
    leader: Option<usize>,
) -> Result<Wanted, String> {
    let missing = || "workload requires Topology, but there is no TAS cache information".to_owned();
    let tree = world.topologies.tree(flavor).ok_or_else(missing)?;
    let asked = |at: usize| {
        let name = &assignment.pod_sets[at].name;
        ask.pod_sets.iter().find(|asked| asked.info.name == *name)
    };
    let worker = asked(workers).ok_or_else(missing)?;
    let request = worker.info.topology.clone().unwrap_or_default();
    let level_of = |label: &Name| tree.level(label).ok_or_else(|| format!("no requested topology level: {label}"));
    let lowest = tree.levels.len().saturating_sub(1);
    let mut slices = request.slices.clone();
    if !world.config.gates.tas_multi_layer_topology {
        slices.truncate(1);
    }
    let mut layers = Vec::new();
    for slice in &slices {
        let level = tree
            .level(&slice.level)
            .ok_or_else(|| format!("no requested topology level for slices: {}", slice.level))?;
        if slice.size <= 0 {
            return Err("slice topology requested, but slice size not provided".to_owned());
        }
        layers.push((level, i64::from(slice.size)));
    }
    let (slice_level, slice_size) = layers.first().copied().unwrap_or((lowest, 1));
    for pair in layers.windows(2) {
        if pair[1].0 <= pair[0].0 || pair[0].1 % pair[1].1 != 0 {
            return Err(format!(
                "podset slice topology {} must be below {} and its size must divide {}",
                tree.levels[pair[1].0], tree.levels[pair[0].0], pair[0].1
            ));
        }
    }
    let (level, required, unconstrained) = match &request.mode {
        Some(TopologyMode::Required(label)) => (level_of(label)?, true, false),
        Some(TopologyMode::Preferred(label)) => (level_of(label)?, false, false),
        Some(TopologyMode::Unconstrained) => (lowest, false, true),
        None if !slices.is_empty() => (0, false, true),
        None => (lowest, false, true),
    };
    if level > slice_level {
        return Err(format!(
            "podset slice topology {} is above the podset topology {}",
            tree.levels[slice_level], tree.levels[level]
        ));
    }
    let spec = world.flavor(flavor).cloned();
    let facts = &world.record(ask.workload).facts;
    let pods = |set: &AskedPodSet| {
        let mut pods = Pods {
            per_pod: set.info.template.requests.clone(),
            node_selector: set.info.template.node_selector.clone(),
            affinity: set.info.template.affinity.clone(),
            tolerations: set.info.template.tolerations.clone(),
        };
        for check in facts.checks.iter().filter(|check| check.state == CheckState::Ready) {
            pods = pods.tolerate(check.tolerations.get(&set.info.name).map_or(&[], Vec::as_slice));
            pods.node_selector =
                crate::assignment::filter::merged(&pods.node_selector, check.node_selectors.get(&set.info.name));
        }
        pods.tolerate(spec.as_ref().map_or(&[], |flavor| &flavor.tolerations))
    };
    Ok(Wanted {
        flavor,
        workers: pods(worker),
        count: i64::from(assignment.pod_sets[workers].count),
        leader: leader.and_then(asked).map(pods),
        level,
        required,
        unconstrained,
        slice_level,
        slice_size,
        layers: layers.into_iter().skip(1).collect(),
        within: None,
        excluded_hosts: Vec::new(),
        assumed: Vec::new(),
        empty: false,
        mixed_profile: world.config.gates.tas_profile_mixed,
        respect_preferred: world.config.gates.tas_respect_node_affinity_preferred,
    })
}

/// Places every group in order, each seeing what the earlier ones took. Per pod set, where it goes or why nowhere.
fn place_all(
    topologies: &mut Topologies,
    request: &PlacementRequest,
    empty: bool,
) -> Vec<(usize, Result<TopologyAssignment, String>)> {
    let mut found = Vec::new();
    let mut assumed: Vec<(FlavorId, Vec<Name>, ResourceList)> = Vec::new();
    for group in &request.groups {
        let placed = group.wanted.clone().and_then(|mut wanted| {
            let tree = topologies.tree(group.flavor).ok_or("the flavor's topology is gone")?;
            let shared = tree.node_level && topologies.overlapping;
            let seen = assumed.iter().filter(|(flavor, ..)| shared || *flavor == group.flavor);
            wanted.assumed = seen.map(|(_, values, usage)| (values.clone(), usage.clone())).collect();
            wanted.empty = empty;
            let placement = find(topologies, &tree, &wanted)?;
            note(&mut assumed, group.flavor, &wanted, &placement);
            Ok(placement)
        });
        match placed {
            Ok(placement) => {
                let workers = match &group.kept {
                    Some(kept) => {
                        let mut all = merge(kept, &placement.workers);
                        if let Some(tree) = topologies.tree(group.flavor) {
                            all.domains.sort_by_key(|domain| tree.leaf(&domain.values));
                        }
                        all
                    }
                    None => placement.workers,
                };
                found.push((group.workers, Ok(workers)));
                if let (Some(leader), Some(assignment)) = (group.leader, placement.leader) {
                    found.push((leader, Ok(assignment)));
                }
            }
            Err(reason) => {
                found.push((group.workers, Err(reason.clone())));
                found.extend(group.leader.map(|leader| (leader, Err(reason))));
            }
        }
    }
    found
}

/// Where the pods of a workload would go in one flavor, whatever its quota says; per pod set, or why nowhere.
pub(crate) fn places_in(
    world: &mut World,
    ask: &Ask,
    flavor: FlavorId,
) -> Vec<(Name, Result<TopologyAssignment, String>)> {
    let resource = world.resources.intern(&Name::from(PODS));
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
                requests: Vec::new(),
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
    let Some(request) = build(world, ask, &mut assignment) else {
        let kept = assignment.pod_sets.into_iter().filter_map(|set| Some((set.name, Ok(set.topology?))));
        return kept.collect();
    };
    let found = place_all(&mut world.topologies, &request, false);
    found.into_iter().map(|(at, result)| (assignment.pod_sets[at].name.clone(), result)).collect()
}

fn note(
    assumed: &mut Vec<(FlavorId, Vec<Name>, ResourceList)>,
    flavor: FlavorId,
    wanted: &Wanted,
    placement: &Placement,
) {
    let workers = placement.workers.domains.iter().map(|domain| (domain, &wanted.workers.per_pod));
    let leader = placement.leader.iter().flat_map(|it| &it.domains);
    let leader = leader.filter_map(|domain| Some((domain, &wanted.leader.as_ref()?.per_pod)));
    for (domain, per_pod) in workers.chain(leader) {
        let mut usage: ResourceList =
            per_pod.iter().map(|(name, it)| (name.clone(), it.saturating_mul(i64::from(domain.count)))).collect();
        *usage.entry(Name::from(PODS)).or_default() += i64::from(domain.count);
        assumed.push((flavor, domain.values.clone(), usage));
    }
}

/// The assignment of a workload that holds quota already (§8.2).
pub(crate) fn held_assignment(world: &mut World, ask: &Ask) -> Assignment {
    let record = world.record(ask.workload);
    let Some(holding) = record.holding.clone() else { return Assignment::default() };
    let mut assignment = Assignment { usage: FrAmounts::new(), ..Assignment::default() };
    for set in &holding.admission.pod_sets {
        let asked = ask.pod_sets.iter().find(|asked| asked.info.name == set.name);
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
            count: set.count.or(asked.map(|asked| asked.count)).unwrap_or(1),
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
