//! Claims of a cycle's earlier entries: their victims, and the capacity that those will release.
//!
//! Victims keep their quota until the cycle ends (§5.7). Only the check whether an entry fits
//! assumes that they have left. That assumed usage is maintained separately from the real usage, so
//! that the cost of a check does not grow with the number of victims.

use std::collections::{BTreeMap, BTreeSet};

use super::Entry;
use crate::amount::Amount;
use crate::ids::{NodeId, QueueId, WorkloadId};
use crate::preemption::Target;
use crate::quota::{AssumedUsage, FrAmounts};
use crate::topology::Places;
use crate::topology::count::Overlay;
use crate::world::World;

/// The claims of a cycle's earlier entries.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// Workloads that earlier entries evict.
    victims: BTreeSet<WorkloadId>,
    /// The same workloads, by the root of the cohort tree whose quota they hold, and those that use
    /// topology domains.
    by_root: BTreeMap<NodeId, Vec<WorkloadId>>,
    placed: Vec<WorkloadId>,
    /// Quota without the victims, and the usage they release in their domains.
    quota: AssumedUsage,
    domains: Overlay,
}

impl Claims {
    /// True if one of the targets is already claimed.
    pub fn overlap(&self, targets: &[Target]) -> bool {
        targets.iter().any(|target| self.victims.contains(&target.workload))
    }

    /// Claims targets.
    pub fn claim(&mut self, world: &World, targets: &[Target]) {
        for target in targets {
            if self.victims.insert(target.workload) {
                self.give_back(world, target.workload);
            }
        }
    }

    fn give_back(&mut self, world: &World, victim: WorkloadId) {
        let Some(holding) = &world.record(victim).holding else { return };
        let node = world.queue(holding.queue).node;
        self.quota.remove(&world.tree, node, &holding.usage);
        self.by_root.entry(world.tree.node(node).root).or_default().push(victim);
        if !holding.places.is_empty() {
            self.placed.push(victim);
        }
        for place in &holding.places.list {
            self.domains.add(place.row, &place.demand, -place.count);
        }
    }

    /// Hides the victims whose release could help this queue's heads: those with quota of its tree,
    /// and those that use topology domains.
    pub fn hide_victims(&self, world: &mut World, queue: QueueId) {
        let root = world.tree.node(world.queue(queue).node).root;
        for victim in self.by_root.get(&root).into_iter().flatten().chain(&self.placed) {
            world.hide(*victim);
        }
    }

    /// Adds usage of quota and domains for the rest of the cycle.
    pub fn add_usage(&mut self, world: &mut World, node: NodeId, usage: &FrAmounts, places: &Places) {
        if !self.victims.is_empty() {
            self.quota.add(&world.tree, node, usage);
        }
        world.add_usage(node, usage);
        world.topologies.add_usage(places);
    }

    /// True if the usage fits once every victim of the cycle and of the entry has left (§5.7). A
    /// replaced elastic slice stays: `usage` and `places` are the amounts that the newer slice
    /// needs in addition.
    pub fn fit(&mut self, world: &mut World, entry: &Entry, usage: &FrAmounts, places: &Places) -> bool {
        let mark = self.quota.mark();
        let own: Vec<WorkloadId> =
            entry.targets.iter().map(|target| target.workload).filter(|id| !self.victims.contains(id)).collect();
        let mut with_own = None;
        for &id in &own {
            let Some(holding) = &world.record(id).holding else { continue };
            self.quota.remove(&world.tree, world.queue(holding.queue).node, &holding.usage);
            if !places.is_empty() {
                let domains = with_own.get_or_insert_with(|| self.domains.clone());
                for place in &holding.places.list {
                    domains.add(place.row, &place.demand, -place.count);
                }
            }
        }
        let node = world.queue(entry.queue).node;
        let available = |fr| self.quota.available(&world.tree, node, fr).or_zero();
        let quota_fits = usage.iter().all(|&(fr, amount)| Amount::Bounded(amount) <= available(fr));
        self.quota.rollback(mark);
        quota_fits && world.topologies.has_capacity(places, with_own.as_ref().unwrap_or(&self.domains))
    }
}
