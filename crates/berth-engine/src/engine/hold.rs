//! Reserving and releasing the quota and places of workloads.

use std::sync::Arc;

use crate::assignment::holding_usage;
use crate::ids::{Name, QueueId, WorkloadId};
use crate::model::{Admission, Time};
use crate::quota::FrAmounts;
use crate::topology::Places;
use crate::world::{Holding, Shape, World};

/// Reserves quota and places for an admission that was just decided. `taken` is what the admission
/// uses, if the decision computed it already.
pub(crate) fn assume(
    world: &mut World,
    id: WorkloadId,
    queue: QueueId,
    admission: Admission,
    taken: Option<(FrAmounts, Places)>,
    now: Time,
) {
    release(world, id);
    let no_checks = checks_for(world, queue, Some(&admission)).is_empty();
    let delayed = admission.pod_sets.iter().any(|set| set.delayed_topology_pending == Some(true));
    let admitted = no_checks && !delayed;
    match taken {
        Some((usage, places)) => {
            let shape = world.record(id).shape.clone();
            debug_assert_eq!(usage, holding_usage(world, &admission, &shape.pod_sets));
            hold_amounts(world, id, Holding { queue, admission, shape, usage, places, admitted, assumed: true });
        }
        None => hold(world, id, queue, admission, admitted, true),
    }
    world.record_mut(id).facts.reserved_at.get_or_insert(now);
}

/// Reserves the quota and places that a workload's object shows.
pub(crate) fn hold(
    world: &mut World,
    id: WorkloadId,
    queue: QueueId,
    admission: Admission,
    admitted: bool,
    assumed: bool,
) {
    let shape = world.record(id).shape.clone();
    let usage = holding_usage(world, &admission, &shape.pod_sets);
    let places = places(world, &admission, &shape);
    hold_amounts(world, id, Holding { queue, admission, shape, usage, places, admitted, assumed });
}

/// The places of an admission. Without a flavor that has a topology, there are none.
fn places(world: &mut World, admission: &Admission, shape: &Shape) -> Places {
    let mut places = Places::default();
    for set in &admission.pod_sets {
        let Some(topology) = &set.topology else { continue };
        let Some(info) = shape.pod_sets.iter().find(|info| info.name == set.name) else { continue };
        let flavors: Vec<_> = set.flavors.values().map(|name| world.flavor_id(name)).collect();
        let flavor = flavors.into_iter().find(|id| world.flavor(*id).is_some_and(|it| it.topology.is_some()));
        if let Some(flavor) = flavor {
            let demand = info.demand(&mut world.topologies).clone();
            world.topologies.add_places(&mut places, flavor, topology, &demand);
        }
    }
    places
}

/// Counts the places of a workload again, after a flavor of its admission has changed. After a
/// start of the process, workloads may be known before their flavors.
pub(crate) fn place_again(world: &mut World, id: WorkloadId) {
    let Some(holding) = world.take_holding(id) else { return };
    world.topologies.remove_usage(&holding.places);
    let places = places(world, &holding.admission, &holding.shape);
    world.topologies.add_usage(&places);
    world.set_holding(id, Holding { places, ..Arc::unwrap_or_clone(holding) });
}

/// Adds the quota and places of a workload to the usage.
fn hold_amounts(world: &mut World, id: WorkloadId, holding: Holding) {
    let node = world.queue(holding.queue).node;
    world.add_usage(node, &holding.usage);
    world.topologies.add_usage(&holding.places);
    world.set_holding(id, holding);
}

/// Records that the object now shows an assumed admission. Its usage is already counted.
pub(crate) fn confirm(world: &mut World, id: WorkloadId, admitted: bool) {
    if world.record(id).holding.as_ref().is_some_and(|holding| holding.admitted == admitted) {
        if let Some(holding) = &mut world.record_mut(id).holding {
            Arc::make_mut(holding).assumed = false;
        }
        return;
    }
    let Some(holding) = world.take_holding(id) else { return };
    world.set_holding(id, Holding { assumed: false, admitted, ..Arc::unwrap_or_clone(holding) });
}

/// Releases what a workload holds. Returns the queue in which it held that.
pub(crate) fn release(world: &mut World, id: WorkloadId) -> Option<QueueId> {
    let holding = world.take_holding(id)?;
    let node = world.queue(holding.queue).node;
    world.remove_usage(node, &holding.usage);
    world.topologies.remove_usage(&holding.places);
    world.queue_mut(holding.queue).generation += 1;
    Some(holding.queue)
}

/// Admission checks that a queue requires: those for the flavors of an admission, or those for all
/// flavors (§17.2).
pub(crate) fn checks_for(world: &World, queue: QueueId, admission: Option<&Admission>) -> Vec<Name> {
    let Some(spec) = &world.queue(queue).spec else { return Vec::new() };
    let mut checks: Vec<Name> = spec
        .checks
        .iter()
        .filter(|rule| match admission {
            _ if rule.on_flavors.is_empty() => true,
            Some(admission) => {
                admission.pod_sets.iter().flat_map(|set| set.flavors.values()).any(|it| rule.on_flavors.contains(it))
            }
            None => {
                let flavors = world.queue(queue).config.flavors();
                flavors.iter().all(|id| rule.on_flavors.contains(world.flavor_name(*id)))
            }
        })
        .map(|rule| rule.check.clone())
        .collect();
    checks.sort();
    checks.dedup();
    checks
}
