//! Searches for capacity for the pods of a request: on existing nodes, or as new machines of one
//! pool.

use std::sync::Arc;

use berth_api::berth::NodePool;
use jiff::Timestamp;
use kube::ResourceExt;

use super::step::World;
use crate::autoscaler::pack;
use crate::placement::{Cluster, Packing, Placement, PodInfo, place};
use crate::pools::{next_change, stock, template, zones};

/// Next time at which the stock of a pool may change.
pub fn next_supply(world: &World) -> Option<Timestamp> {
    world.view.pools.values().filter_map(|pool| next_change(pool, world.now)).min()
}

/// The pool, its zone, and the number of new nodes that run all pods at the lowest price. The
/// pool's maximum must allow the nodes, and the cloud must have the machines. Without `each_zone`,
/// only the first zone of each pool is tried.
pub fn cheapest<'a>(
    pools: impl Iterator<Item = &'a Arc<NodePool>>,
    pods: &[Arc<PodInfo>],
    world: &World,
    each_zone: bool,
) -> Option<(&'a Arc<NodePool>, String, i32)> {
    let mut best: Option<(f64, &Arc<NodePool>, String, i32)> = None;
    for pool in pools {
        let most = stock(pool, &world.view.site, world.now).unwrap_or(i32::MAX).min(pool.spec.nodes_max());
        let room = most.saturating_sub(pool.spec.nodes_wanted()).max(0);
        let zones = zones(pool, &world.view.site);
        for zone in zones.iter().take(if each_zone { usize::MAX } else { 1 }) {
            let Some(nodes) = nodes_in(pool, zone, pods, world, room) else { continue };
            let cost = pool.spec.price() * f64::from(nodes);
            if best.as_ref().is_none_or(|(known, ..)| cost.total_cmp(known).is_lt()) {
                best = Some((cost, pool, zone.clone(), nodes));
            }
        }
    }
    best.map(|(_, pool, zone, nodes)| (pool, zone, nodes))
}

/// Number of new machines of the pool that all pods need, in the zone in which they need the
/// fewest. `None` if no number of machines is enough.
pub fn nodes_for(pool: &NodePool, pods: &[Arc<PodInfo>], world: &World) -> Option<i32> {
    let zones = zones(pool, &world.view.site);
    // A pod needs at most one machine.
    let limit = i32::try_from(pods.len()).unwrap_or(i32::MAX).max(pool.spec.slice_hosts());
    zones.iter().filter_map(|zone| nodes_in(pool, zone, pods, world, limit)).min()
}

/// Number of machines that all pods need in this zone; `None` if `room` machines are too few. A TPU
/// slice counts as a whole.
fn nodes_in(pool: &NodePool, zone: &str, pods: &[Arc<PodInfo>], world: &World, room: i32) -> Option<i32> {
    let name = pool.name_any();
    let make = |i: usize| world.view.with_daemons(template(pool, &world.view.site, zone, &format!("{name}-new-{i}")));
    let packed = pack(pods, &Cluster::default(), usize::try_from(room).unwrap_or(0), make);
    if packed.placed.len() < pods.len() {
        return None;
    }
    let nodes = pool.spec.whole_slices(i32::try_from(packed.nodes.len()).unwrap_or(i32::MAX));
    (nodes <= room).then_some(nodes)
}

/// True if all pods fit on existing and ordered nodes, beside the pods for which capacity is
/// reserved.
pub fn fit(pods: &[Arc<PodInfo>], world: &World) -> bool {
    let mut cluster = world.view.cluster().clone();
    pods.iter().all(|pod| match place(pod, &cluster, Packing::Pack) {
        Placement::Node(node) => {
            cluster.place(pod.clone(), &node);
            true
        }
        Placement::Nowhere { .. } => false,
    })
}
