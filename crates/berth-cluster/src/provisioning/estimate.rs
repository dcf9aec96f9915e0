//! When the machines of a waiting request are expected, if the schedule of a pool's supply says so.

use std::sync::Arc;

use berth_api::berth::NodePool;
use jiff::{SignedDuration, Timestamp};

use super::capacity::nodes_for;
use super::step::World;
use crate::placement::PodInfo;
use crate::pools::{next_period, scheduled_stock, start_time};

/// How far an estimate looks ahead: the longest wait of a request.
const HORIZON: SignedDuration = SignedDuration::from_hours(7 * 24);

/// The first time at which the machines for all pods are complete in one of these pools, if the
/// machines in use now stay in use. `None` if only chance (random supply) or the end of other
/// machines can help.
pub fn estimate(pools: &[&Arc<NodePool>], pods: &[Arc<PodInfo>], world: &World) -> Option<Timestamp> {
    pools.iter().filter_map(|pool| estimate_in(pool, pods, world)).min()
}

fn estimate_in(pool: &NodePool, pods: &[Arc<PodInfo>], world: &World) -> Option<Timestamp> {
    let needed = nodes_for(pool, pods, world)?.saturating_add(pool.spec.nodes_wanted());
    if needed > pool.spec.nodes_max() {
        return None;
    }
    let horizon = world.now.checked_add(HORIZON).ok()?;
    let mut at = world.now;
    loop {
        at = next_period(pool, at).filter(|at| *at <= horizon)?;
        if scheduled_stock(pool, at).is_some_and(|stock| stock >= needed) {
            return at.checked_add(start_time(pool)).ok();
        }
    }
}
