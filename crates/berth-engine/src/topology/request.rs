//! Turns pod sets into placement requests: which flavors can serve a topology request, and what is
//! searched for in them (§14.2–§14.4, §13.5, §15.3).

use std::collections::BTreeMap;

use super::amounts::Demand;
use super::placement::{Pods, Wanted};
use super::replace::{Broken, is_broken, truncate, without};
use super::tree::FlavorTree;
use crate::assignment::filter::merged;
use crate::assignment::{Assignment, AssignmentRequest, RequestedPodSet};
use crate::decision::TopologyProblem;
use crate::ids::{FlavorId, Name, QueueId, WorkloadId};
use crate::model::{CheckState, ResourceFlavor, TopologyAssignment, TopologyMode, TopologyRequest};
use crate::world::World;
use crate::world::queue::{FlavorSlot, Group};

/// Groups of pods to place, in this order.
#[derive(Debug, Default)]
pub(crate) struct PlacementRequest {
    pub groups: Vec<GroupRequest>,
    /// The elastic slice whose capacity counts as free for this request (§13.2).
    pub replaced: Option<WorkloadId>,
}

impl PlacementRequest {
    /// True if failed nodes are replaced. No workload is preempted for that.
    pub fn replaces_nodes(&self) -> bool {
        self.groups.iter().any(|group| group.replaces_nodes)
    }
}

/// Pod sets placed together: workers, perhaps with a leader.
#[derive(Debug, Clone)]
pub(crate) struct GroupRequest {
    pub flavor: FlavorId,
    pub workers: usize,
    pub leader: Option<usize>,
    /// What is searched for; `Err` if the request itself is invalid.
    pub wanted: Result<Wanted, TopologyProblem>,
    /// Pods of an earlier placement that stay.
    pub retained: Option<RetainedPlacement>,
    /// True if failed nodes are replaced.
    pub replaces_nodes: bool,
}

/// Pods of an earlier placement that stay.
#[derive(Debug, Clone, Default)]
pub(crate) struct RetainedPlacement {
    pub workers: TopologyAssignment,
    pub leader: Option<TopologyAssignment>,
    /// Retained pods whose usage no workload accounts for, with the demand of each pod.
    assumed: Vec<(TopologyAssignment, Demand)>,
}

impl GroupRequest {
    /// Retained pods whose usage no workload accounts for, with the demand of each pod.
    pub fn assumed(&self) -> &[(TopologyAssignment, Demand)] {
        self.retained.as_ref().map_or(&[], |retained| &retained.assumed)
    }
}

/// True if a pod set requests a topology. A group name alone is not such a request.
pub(crate) fn is_explicit(request: Option<&TopologyRequest>) -> bool {
    request.is_some_and(|request| request.mode.is_some() || !request.slices.is_empty())
}

/// True if every flavor of the queue has a topology. Then pods without a request are placed as
/// well.
fn is_topology_only(world: &World, queue: QueueId) -> bool {
    let mut slots = world.queue(queue).config.slots().peekable();
    slots.peek().is_some() && slots.all(|slot| has_topology(world, slot))
}

fn has_topology_flavor(world: &World, queue: QueueId) -> bool {
    world.queue(queue).config.slots().any(|slot| has_topology(world, slot))
}

fn has_topology(world: &World, slot: &FlavorSlot) -> bool {
    world.flavor(slot.flavor).is_some_and(|flavor| flavor.topology.is_some())
}

/// Reason why a flavor cannot serve a pod set's topology request, if any (§14.2).
pub(crate) fn flavor_mismatch(
    world: &World,
    queue: QueueId,
    group: &Group,
    set: &RequestedPodSet,
    flavor: &ResourceFlavor,
) -> Option<TopologyProblem> {
    let flavor_name = || flavor.name.clone();
    let request = set.info.topology.as_ref();
    if !is_explicit(request) {
        let only = flavor.topology.is_some() && !is_topology_only(world, queue) && !is_grouped(set);
        return only.then(|| TopologyProblem::FlavorOnlyWith { flavor: flavor_name() });
    }
    let Some(topology) = &flavor.topology else {
        let own = &set.info.template.requests;
        let covers = group.resources.iter().any(|resource| own.contains_key(world.resource_name(*resource)));
        return covers.then(|| TopologyProblem::FlavorWithout { flavor: flavor_name() });
    };
    let Some(levels) = world.topologies.levels(topology) else {
        return Some(TopologyProblem::FlavorUnknown { flavor: flavor_name() });
    };
    let missing = request.into_iter().flat_map(requested_levels).find(|level| !levels.contains(level));
    missing.map(|level| TopologyProblem::FlavorWithoutLevel {
        flavor: flavor_name(),
        level: level.clone(),
        levels: levels.to_vec(),
    })
}

/// The levels that a request names.
pub(crate) fn requested_levels(request: &TopologyRequest) -> impl Iterator<Item = &Name> {
    let mode = match &request.mode {
        Some(TopologyMode::Required(level) | TopologyMode::Preferred(level)) => Some(level),
        _ => None,
    };
    mode.into_iter().chain(request.slices.iter().map(|slice| &slice.level))
}

fn is_grouped(set: &RequestedPodSet) -> bool {
    set.info.topology.as_ref().is_some_and(|request| request.group.is_some())
}

/// Computes the placement request of an assignment. `None` if there is nothing to place, or if a
/// pod set does not have exactly one topology flavor.
///
/// `earlier` has the placements to retain if possible. By default, these are the placements of the
/// elastic slice that is replaced.
pub(crate) fn build(
    world: &mut World,
    ask: &AssignmentRequest,
    assignment: &mut Assignment,
    earlier: Option<&Earlier>,
) -> Option<PlacementRequest> {
    let implied = is_topology_only(world, ask.queue);
    if !implied && !ask.pod_sets.iter().any(|requested| is_explicit(requested.info.topology.as_ref())) {
        return None;
    }
    let facts = &world.record(ask.workload).facts;
    let unhealthy = facts.unhealthy_nodes.clone();
    let keeps_nodes = facts.owned_by_pod && world.config.gates.skip_reassignment_for_pod_owned_workloads;
    let mut by_flavor: BTreeMap<Name, (FlavorId, Vec<usize>)> = BTreeMap::new();
    for at in 0..assignment.pod_sets.len() {
        let set = &assignment.pod_sets[at];
        let requested = ask.pod_sets.iter().find(|requested| requested.info.name == set.name)?;
        if set.count == 0 || !(implied || is_explicit(requested.info.topology.as_ref())) {
            continue;
        }
        if let Some(error) = elastic_error(world, ask, requested.info.topology.as_ref()) {
            assignment.pod_sets[at].error = Some(error);
            return None;
        }
        if !has_topology_flavor(world, ask.queue) {
            assignment.pod_sets[at].error = Some(TopologyProblem::NothingKnown);
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
                assignment.pod_sets[at].error = Some(TopologyProblem::NoFlavor);
                return None;
            }
            several => {
                let flavors = several.iter().map(|(name, _)| name.clone()).collect();
                assignment.pod_sets[at].error = Some(TopologyProblem::SeveralFlavors { flavors });
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
    let known = earlier.cloned().unwrap_or_else(|| earlier_of_replaced(world, ask));
    let mut request = PlacementRequest { replaced: ask.replaced, ..PlacementRequest::default() };
    for (flavor, members) in by_flavor.into_values() {
        let (broken, whole): (Vec<usize>, Vec<usize>) = members.into_iter().partition(|at| {
            ask.second_pass && assignment.pod_sets[*at].topology.as_ref().is_some_and(|it| is_broken(it, &unhealthy))
        });
        for at in broken {
            request.groups.push(replace_nodes(world, ask, assignment, flavor, at, &unhealthy));
        }
        for (workers, leader) in pair_up(ask, assignment, &whole) {
            request.groups.push(group_request(world, ask, assignment, flavor, (workers, leader), &known));
        }
    }
    (!request.groups.is_empty()).then_some(request)
}

/// Placements of an earlier slice of an elastic workload, per pod set (§13.5).
pub(crate) type Earlier = BTreeMap<Name, TopologyAssignment>;

fn earlier_of_replaced(world: &World, ask: &AssignmentRequest) -> Earlier {
    let gates = &world.config.gates;
    let keeps = gates.elastic_jobs_via_workload_slices && gates.elastic_jobs_via_workload_slices_with_tas;
    let holding = ask.replaced.filter(|_| keeps).and_then(|id| world.record(id).holding.as_ref());
    let sets = holding.into_iter().flat_map(|holding| &holding.admission.pod_sets);
    sets.filter_map(|set| Some((set.name.clone(), set.topology.clone()?))).collect()
}

/// Reason why an elastic workload's request is not supported. Its pods come and go one by one, so
/// no level can be guaranteed for all of them (§13.5).
fn elastic_error(world: &World, ask: &AssignmentRequest, request: Option<&TopologyRequest>) -> Option<TopologyProblem> {
    if !world.config.gates.elastic_jobs_via_workload_slices_with_tas || !world.record(ask.workload).facts.elastic {
        return None;
    }
    let mode = match request?.mode.as_ref()? {
        TopologyMode::Required(_) => "required",
        TopologyMode::Preferred(_) => "preferred",
        TopologyMode::Unconstrained => return None,
    };
    Some(TopologyProblem::NotForElasticJobs { mode })
}

/// Pairs pod sets with the same group name: the smaller one is the leader, or the second one if
/// both are equal (§14.4).
fn pair_up(ask: &AssignmentRequest, assignment: &Assignment, members: &[usize]) -> Vec<(usize, Option<usize>)> {
    let group = |at: usize| {
        let name = &assignment.pod_sets[at].name;
        let requested = ask.pod_sets.iter().find(|requested| requested.info.name == *name)?;
        requested.info.topology.as_ref()?.group.clone()
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

/// Request for a group that is placed for the first time, or that grows from an earlier placement.
fn group_request(
    world: &mut World,
    ask: &AssignmentRequest,
    assignment: &Assignment,
    flavor: FlavorId,
    (workers, leader): (usize, Option<usize>),
    earlier: &Earlier,
) -> GroupRequest {
    let mut wanted = wanted(world, ask, assignment, flavor, workers, leader);
    let mut retained = None;
    if let Ok(wanted) = &mut wanted
        && let Some(of_workers) = earlier.get(&assignment.pod_sets[workers].name)
    {
        let of_leader = leader.and_then(|at| earlier.get(&assignment.pod_sets[at].name));
        let placements = || [Some(of_workers), of_leader].into_iter().flatten();
        let stands = placements().flat_map(|it| &it.domains).all(|it| world.topologies.has_leaf(flavor, &it.values));
        if stands && of_leader.is_some() == leader.is_some() {
            retained = Some(grow(wanted, of_workers, of_leader));
        }
    }
    GroupRequest { flavor, workers, leader, wanted, retained, replaces_nodes: false }
}

/// Retains the pods of an earlier placement and requests only the others. Surplus pods are dropped.
fn grow(wanted: &mut Wanted, workers: &TopologyAssignment, leader: Option<&TopologyAssignment>) -> RetainedPlacement {
    let kept = truncate(workers, i32::try_from(wanted.count).unwrap_or(i32::MAX));
    wanted.count -= kept.domains.iter().map(|domain| i64::from(domain.count)).sum::<i64>();
    let mut assumed = vec![(kept.clone(), wanted.workers.demand.clone())];
    if let (Some(placed), Some(pods)) = (leader, wanted.leader.take()) {
        assumed.push((placed.clone(), pods.demand));
    }
    RetainedPlacement { workers: kept, leader: leader.cloned(), assumed }
}

/// Request for a pod set that lost nodes: its other pods stay (§15.3).
fn replace_nodes(
    world: &mut World,
    ask: &AssignmentRequest,
    assignment: &Assignment,
    flavor: FlavorId,
    at: usize,
    unhealthy: &[Name],
) -> GroupRequest {
    let broken = assignment.pod_sets[at].topology.as_ref().and_then(|topology| without(topology, unhealthy));
    let wanted = wanted(world, ask, assignment, flavor, at, None).and_then(|mut wanted| {
        let Some(broken) = &broken else { return Ok(wanted) };
        if let Some(stale) = broken.kept.domains.iter().find(|it| !world.topologies.has_leaf(flavor, &it.values)) {
            return Err(TopologyProblem::StaleDomain { values: stale.values.clone() });
        }
        let anchor = broken.kept.domains.first().or_else(|| companion(ask, assignment, at, unhealthy)).cloned();
        restrict(world, &mut wanted, broken, anchor.as_ref().map(|domain| domain.values.as_slice()));
        wanted.excluded_hosts = unhealthy.to_vec();
        Ok(wanted)
    });
    let retained = broken.map(|broken| RetainedPlacement { workers: broken.kept, ..RetainedPlacement::default() });
    GroupRequest { flavor, workers: at, leader: None, wanted, retained, replaces_nodes: true }
}

/// A healthy domain of another pod set of the same group. The pods that are placed again must be
/// close to it.
fn companion<'a>(
    ask: &AssignmentRequest,
    assignment: &'a Assignment,
    at: usize,
    unhealthy: &[Name],
) -> Option<&'a crate::model::TopologyDomain> {
    let group = |at: usize| {
        let name = &assignment.pod_sets[at].name;
        let requested = ask.pod_sets.iter().find(|requested| requested.info.name == *name)?;
        requested.info.topology.as_ref()?.group.as_ref()
    };
    let own = group(at)?;
    let others = (0..assignment.pod_sets.len()).filter(|other| *other != at && group(*other) == Some(own));
    let domains = others.filter_map(|other| assignment.pod_sets[other].topology.as_ref()).flat_map(|it| &it.domains);
    domains.into_iter().find(|domain| !domain.values.last().is_some_and(|host| unhealthy.contains(host)))
}

/// Restricts a request to the missing pods and to the domains where they may go (§15.3).
fn restrict(world: &World, wanted: &mut Wanted, broken: &Broken, anchor: Option<&[Name]>) {
    let topologies = &world.topologies;
    let Some(tree) = topologies.current_tree(wanted.flavor) else { return };
    let leaf = |values: &[Name]| topologies.leaf(tree, wanted.flavor, values);
    wanted.count = i64::from(broken.missing);
    let layers: Vec<(usize, i64)> =
        [(wanted.slice_level, wanted.slice_size)].into_iter().chain(wanted.layers.clone()).collect();
    // A broken slice is completed in its own domain: the domain of the innermost broken slice.
    // Intact slices inside it stay intact.
    let torn = layers.iter().rposition(|(_, size)| *size > 1 && wanted.count % size != 0);
    if let Some(torn) = torn {
        let (level, size) = layers[torn];
        let mut counts: BTreeMap<usize, i64> = BTreeMap::new();
        for domain in &broken.kept.domains {
            if let Some(leaf) = leaf(&domain.values) {
                *counts.entry(tree.ancestor(leaf, level)).or_default() += i64::from(domain.count);
            }
        }
        let incomplete = counts.into_iter().find(|(_, count)| count % size != 0).map(|(domain, _)| domain);
        wanted.within = incomplete.or_else(|| leaf(&broken.failed.values).map(|leaf| tree.ancestor(leaf, level)));
        let inner = layers.get(torn + 1).copied();
        (wanted.slice_level, wanted.slice_size) = inner.unwrap_or((tree.levels.len() - 1, 1));
        wanted.layers = layers.into_iter().skip(torn + 2).collect();
    } else if wanted.required {
        wanted.within = anchor.and_then(leaf).map(|leaf| tree.ancestor(leaf, wanted.level));
    }
}

/// The levels and sizes of a request, resolved in one flavor's topology (§14.2).
struct Levels {
    level: usize,
    required: bool,
    unconstrained: bool,
    /// Slices from coarse to fine: level and size; at least one.
    slices: Vec<(usize, i64)>,
}

impl Levels {
    fn of(request: &TopologyRequest, tree: &FlavorTree, multi_layer: bool) -> Result<Levels, TopologyProblem> {
        let lowest = tree.levels.len().saturating_sub(1);
        let mut slices = Vec::new();
        for slice in request.slices.iter().take(if multi_layer { usize::MAX } else { 1 }) {
            let level = tree
                .level(&slice.level)
                .ok_or_else(|| TopologyProblem::NoSuchLevel { level: slice.level.clone(), of_slices: true })?;
            if slice.size <= 0 {
                return Err(TopologyProblem::NoSliceSize);
            }
            slices.push((level, i64::from(slice.size)));
        }
        for pair in slices.windows(2) {
            if pair[1].0 <= pair[0].0 || pair[0].1 % pair[1].1 != 0 {
                return Err(TopologyProblem::LayersDoNotNest {
                    inner: tree.levels[pair[1].0].clone(),
                    outer: tree.levels[pair[0].0].clone(),
                    outer_size: pair[0].1,
                });
            }
        }
        let asks_slices = !slices.is_empty();
        if slices.is_empty() {
            slices.push((lowest, 1));
        }
        let level_of = |label: &Name| {
            let missing = || TopologyProblem::NoSuchLevel { level: label.clone(), of_slices: false };
            tree.level(label).ok_or_else(missing)
        };
        let (level, required, unconstrained) = match &request.mode {
            Some(TopologyMode::Required(label)) => (level_of(label)?, true, false),
            Some(TopologyMode::Preferred(label)) => (level_of(label)?, false, false),
            // Slices may go to any domains but stay whole, so the search starts at the top.
            _ if asks_slices => (0, false, true),
            _ => (lowest, false, true),
        };
        if level > slices[0].0 {
            return Err(TopologyProblem::SliceAboveRequest {
                slice: tree.levels[slices[0].0].clone(),
                level: tree.levels[level].clone(),
            });
        }
        Ok(Levels { level, required, unconstrained, slices })
    }
}

/// The request of a group, checked against the flavor's levels (§14.2).
fn wanted(
    world: &mut World,
    ask: &AssignmentRequest,
    assignment: &Assignment,
    flavor: FlavorId,
    workers: usize,
    leader: Option<usize>,
) -> Result<Wanted, TopologyProblem> {
    let missing = || TopologyProblem::NothingKnown;
    let requested = |at: usize| {
        let name = &assignment.pod_sets[at].name;
        ask.pod_sets.iter().find(|requested| requested.info.name == *name)
    };
    let worker = requested(workers).ok_or_else(missing)?;
    let request = worker.info.topology.clone().unwrap_or_default();
    let multi_layer = world.config.gates.tas_multi_layer_topology;
    let tree = world.topologies.tree(flavor).ok_or_else(missing)?;
    let Levels { level, required, unconstrained, slices } = Levels::of(&request, tree, multi_layer)?;
    let workers_pods = pods(world, ask, worker, flavor);
    let leader_pods = leader.and_then(requested).map(|set| pods(world, ask, set, flavor));
    let gates = &world.config.gates;
    Ok(Wanted {
        flavor,
        workers: workers_pods,
        count: i64::from(assignment.pod_sets[workers].count),
        leader: leader_pods,
        level,
        required,
        unconstrained,
        slice_level: slices[0].0,
        slice_size: slices[0].1,
        layers: slices.into_iter().skip(1).collect(),
        within: None,
        excluded_hosts: Vec::new(),
        mixed_profile: gates.tas_profile_mixed,
        balanced: gates.tas_balanced_placement,
        respect_preferred: gates.tas_respect_node_affinity_preferred,
    })
}

/// The pods of a pod set on a flavor, with the additions of admission checks.
fn pods(world: &mut World, ask: &AssignmentRequest, set: &RequestedPodSet, flavor: FlavorId) -> Pods {
    let template = &set.info.template;
    let mut pods = Pods {
        demand: set.info.demand(&mut world.topologies).clone(),
        node_selector: template.node_selector.clone(),
        affinity: template.affinity.clone(),
        tolerations: template.tolerations.clone(),
    };
    let checks = &world.record(ask.workload).facts.checks;
    for check in checks.iter().filter(|check| check.state == CheckState::Ready) {
        pods.tolerations.extend(check.tolerations.get(&set.info.name).into_iter().flatten().cloned());
        pods.node_selector = merged(&pods.node_selector, check.node_selectors.get(&set.info.name));
    }
    if let Some(flavor) = world.flavor(flavor) {
        pods.tolerations.extend(flavor.tolerations.iter().cloned());
    }
    pods
}
