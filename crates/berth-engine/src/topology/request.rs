//! From pod sets to placement: which flavors can serve a topology request, and putting an assignment's pods somewhere
//! (§8.14, §14.2–§14.4).

use crate::assignment::{Ask, AskedPodSet, Assignment, FlavorChoice, PodSetOutcome};
use crate::decision::AssignmentMode;
use crate::ids::QueueId;
use crate::model::ResourceFlavor;
use crate::preemption::Target;
use crate::quota::FrAmounts;
use crate::world::World;
use crate::world::queue::Group;

/// Pods that need places, per flavor.
#[derive(Debug, Clone, Default)]
pub(crate) struct PlacementRequest {}

/// Why a flavor cannot serve a pod set's topology, if it cannot (§14.2).
pub(crate) fn flavor_mismatch(
    world: &World,
    queue: QueueId,
    group: &Group,
    set: &AskedPodSet,
    flavor: &ResourceFlavor,
) -> Option<String> {
    let _ = (world, queue, group, set, flavor);
    None
}

/// Finds places for the pods of an assignment that fits by quota (§8.14).
pub(crate) fn place(world: &mut World, ask: &Ask, assignment: &mut Assignment) -> Option<PlacementRequest> {
    let _ = (world, ask, assignment);
    None
}

/// Finds places for a workload that preempts, once its targets have left (§5.5 step 3).
pub(crate) fn place_after(world: &mut World, ask: &Ask, assignment: &mut Assignment, targets: &[Target]) {
    let _ = (world, ask, assignment, targets);
}

/// True if all pods find places as things stand.
pub(crate) fn is_placeable(world: &mut World, request: &PlacementRequest) -> bool {
    let _ = (world, request);
    true
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
