//! Events about queues, cohorts, flavors, checks, namespaces and nodes.

use std::sync::Arc;

use super::{Effects, Engine, hold};
use crate::ids::{Id, LocalQueueId, Name, NodeId, QueueId, WorkloadId};
use crate::model::{ClusterQueue, Cohort, LocalQueue, ResourceFlavor, Time};
use crate::world::QueueConfig;

impl Engine {
    pub(super) fn upsert_cluster_queue(&mut self, spec: ClusterQueue, effects: &mut Effects, now: Time) {
        let id = self.world.queue_id(&spec.name);
        effects.cluster_queues.insert(spec.name.clone());
        let before = self.world.queue(id).spec.clone();
        if before.as_deref() == Some(&spec) {
            return;
        }
        let old_root = self.world.tree.node(self.world.queue(id).node).root;
        let parent = spec.cohort.as_ref().map(|name| self.world.cohort_node(name));
        let (groups, quotas) = self.world.compile_groups(&spec.resource_groups);
        let config = QueueConfig { groups, fungibility: spec.fungibility, preemption: spec.preemption };
        let node = self.world.queue(id).node;
        self.world.tree.set_alive(node, true);
        let quota_changed = self.world.tree.configure(node, parent, spec.fair_weight_milli, &quotas);
        let created = before.is_none();
        let strategy_changed = before
            .as_ref()
            .is_none_or(|old| old.strategy != spec.strategy || old.admission_scope != spec.admission_scope);
        // The order of the heap may depend on the admission scope, so every workload is removed
        // before the scope changes.
        let waiting: Vec<WorkloadId> = if created || strategy_changed { self.waiting_in(id) } else { Vec::new() };
        for workload in &waiting {
            self.pending_queues.take_out(&mut self.world, *workload);
        }
        if strategy_changed {
            self.pending_queues.get_or_insert(id).forget_no_fit();
        }
        if before.as_ref().is_none_or(|old| old.namespace_selector != spec.namespace_selector) {
            self.world.selection += 1;
        }
        let groups_changed = before.as_ref().is_none_or(|old| old.resource_groups != spec.resource_groups);
        let config = self.world.share_config(config);
        let queue = self.world.queue_mut(id);
        queue.spec = Some(Arc::new(spec));
        queue.config = config;
        if groups_changed || quota_changed {
            queue.generation += 1;
        }
        self.refresh_tree();
        if quota_changed {
            self.bump_trees(&[node, old_root]);
        }
        let readiness = self.world.readiness(id);
        self.world.queue_mut(id).readiness = readiness;
        for workload in waiting {
            self.queue_up(workload, true, now);
        }
        if created {
            let locals: Vec<LocalQueueId> = self.locals_of(id);
            for local in locals {
                self.add_members(local, now);
            }
        }
        self.request_flush(id, now);
        let root = self.world.tree.node(node).root;
        if root != old_root {
            self.pending_queues.request_flush(old_root, now.after(self.world.config.flush_delay));
        }
    }

    pub(super) fn remove_cluster_queue(&mut self, name: &Name, effects: &mut Effects, now: Time) {
        let Some(&id) = self.world.queue_ids.get(name) else { return };
        effects.cluster_queues.insert(name.clone());
        for workload in self.waiting_in(id) {
            self.pending_queues.forget(&mut self.world, workload);
        }
        let node = self.world.queue(id).node;
        self.request_flush(id, now);
        let old_root = self.world.tree.node(node).root;
        self.world.tree.configure(node, None, 1000, &[]);
        self.world.tree.set_alive(node, false);
        let queue = self.world.queue_mut(id);
        queue.spec = None;
        queue.config = Arc::new(QueueConfig::default());
        self.refresh_tree();
        self.bump_trees(&[old_root]);
        let readiness = self.world.readiness(id);
        self.world.queue_mut(id).readiness = readiness;
    }

    pub(super) fn upsert_cohort(&mut self, spec: Cohort, effects: &mut Effects, now: Time) {
        let node = self.world.cohort_node(&spec.name);
        let parent = spec.parent.as_ref().map(|name| self.world.cohort_node(name));
        let (_, quotas) = self.world.compile_groups(&spec.resource_groups);
        let old_root = self.world.tree.node(node).root;
        let changed = self.world.tree.configure(node, parent, spec.fair_weight_milli, &quotas);
        let name = spec.name.clone();
        let known = self.world.cohorts.get_mut(&name).map(|entry| entry.spec.replace(spec));
        if !changed && matches!(known, Some(Some(_))) {
            return;
        }
        self.refresh_tree();
        self.bump_trees(&[node, old_root]);
        self.note_tree(node, effects);
        self.pending_queues.request_flush(self.world.tree.node(node).root, now.after(self.world.config.flush_delay));
        self.pending_queues.request_flush(old_root, now.after(self.world.config.flush_delay));
    }

    pub(super) fn remove_cohort(&mut self, name: &Name, effects: &mut Effects, now: Time) {
        let Some(entry) = self.world.cohorts.get_mut(name) else { return };
        entry.spec = None;
        let node = entry.node;
        self.note_tree(node, effects);
        let old_root = self.world.tree.node(node).root;
        self.world.tree.configure(node, None, 1000, &[]);
        self.refresh_tree();
        self.bump_trees(&[node, old_root]);
        self.pending_queues.request_flush(old_root, now.after(self.world.config.flush_delay));
        self.pending_queues.request_flush(node, now.after(self.world.config.flush_delay));
    }

    pub(super) fn upsert_local_queue(&mut self, spec: LocalQueue, effects: &mut Effects, now: Time) {
        let id = self.world.local_id(&spec.namespace, &spec.name);
        let queue = self.world.queue_id(&spec.cluster_queue);
        effects.local_queues.insert((spec.namespace.clone(), spec.name.clone()));
        effects.cluster_queues.insert(spec.cluster_queue.clone());
        let local = self.world.local_mut(id);
        if local.spec.as_ref() == Some(&spec) {
            return;
        }
        let moved =
            local.queue != Some(queue) || local.spec.as_ref().is_none_or(|old| old.stop_policy != spec.stop_policy);
        local.spec = Some(spec);
        local.queue = Some(queue);
        if moved {
            self.add_members(id, now);
        }
    }

    pub(super) fn remove_local_queue(&mut self, namespace: &Name, name: &Name, effects: &mut Effects) {
        let Some(&id) = self.world.local_ids.get(&(namespace.clone(), name.clone())) else { return };
        effects.local_queues.insert((namespace.clone(), name.clone()));
        if let Some(queue) = self.world.local(id).queue {
            effects.cluster_queues.insert(self.world.queue(queue).name.clone());
        }
        let local = self.world.local_mut(id);
        local.spec = None;
        local.queue = None;
        local.ledger = crate::world::ledger::Ledger::default();
        let members: Vec<WorkloadId> = local.members.iter().copied().collect();
        for workload in members {
            self.pending_queues.forget(&mut self.world, workload);
        }
    }

    pub(super) fn upsert_flavor(&mut self, flavor: ResourceFlavor, effects: &mut Effects, now: Time) {
        let id = self.world.flavor_id(&flavor.name);
        if self.world.flavor(id).is_some_and(|old| **old == flavor) {
            return;
        }
        let flavor = Arc::new(flavor);
        let topology = self.world.flavor(id).and_then(|old| old.topology.clone());
        let is_placed_otherwise = flavor.topology != topology;
        self.world.topologies.upsert_flavor(id, Some(flavor.clone()));
        self.world.flavors[id.index()] = Some(flavor);
        if is_placed_otherwise {
            let name = self.world.flavor_name(id).clone();
            let uses = |id: &WorkloadId| {
                let holding = self.world.record(*id).holding.as_ref();
                let mut sets = holding.iter().flat_map(|holding| &holding.admission.pod_sets);
                sets.any(|set| set.topology.is_some() && set.flavors.values().any(|it| *it == name))
            };
            let holders = self.world.queues.iter().flat_map(|queue| queue.holding.iter().copied());
            let placed: Vec<WorkloadId> = holders.filter(uses).collect();
            for id in placed {
                hold::place_again(&mut self.world, id);
            }
        }
        self.facts_changed(|engine, queue| engine.world.queue(queue).config.flavors().contains(&id), effects, now);
    }

    pub(super) fn remove_flavor(&mut self, name: &Name, effects: &mut Effects, now: Time) {
        let id = self.world.flavor_id(name);
        self.world.topologies.upsert_flavor(id, None);
        self.world.flavors[id.index()] = None;
        self.facts_changed(|engine, queue| engine.world.queue(queue).config.flavors().contains(&id), effects, now);
    }

    /// Recomputes the readiness of queues that refer to a changed object, and requests another try
    /// for their inadmissible workloads.
    pub(super) fn facts_changed(
        &mut self,
        concerns: impl Fn(&Engine, QueueId) -> bool,
        effects: &mut Effects,
        now: Time,
    ) {
        for index in 0..self.world.queues.len() {
            let id = QueueId::from_index(index);
            if self.world.queue(id).spec.is_none() || !concerns(self, id) {
                continue;
            }
            let readiness = self.world.readiness(id);
            effects.cluster_queues.insert(self.world.queue(id).name.clone());
            self.world.queue_mut(id).readiness = readiness;
            self.request_flush(id, now);
        }
    }

    /// Recomputes the quota tree after a change to configuration.
    pub(super) fn refresh_tree(&mut self) {
        self.world.tree.refresh();
    }

    /// Records that quota changed in the trees of these nodes, which include the tree that a node
    /// left. Flavor searches of all their queues start over (§7.8).
    pub(super) fn bump_trees(&mut self, nodes: &[NodeId]) {
        let mut roots: Vec<NodeId> = nodes.iter().map(|node| self.world.tree.node(*node).root).collect();
        roots.dedup();
        roots.retain(|root| !self.world.tree.node(*root).is_queue);
        for root in roots {
            for id in self.world.tree.queues_of_root(root).to_vec() {
                self.world.queue_mut(id).generation += 1;
            }
        }
    }

    fn note_tree(&self, node: NodeId, effects: &mut Effects) {
        for leaf in self.world.tree.queues_below(self.world.tree.node(node).root) {
            effects.cluster_queues.insert(self.world.tree.node(leaf).name.clone());
        }
    }

    fn locals_of(&self, queue: QueueId) -> Vec<LocalQueueId> {
        (0..self.world.locals.len())
            .map(LocalQueueId::from_index)
            .filter(|id| self.world.local(*id).queue == Some(queue))
            .collect()
    }

    /// Queues the members of a local queue that are not queued yet. Removes them from their queue
    /// if the local queue routes to none now.
    fn add_members(&mut self, local: LocalQueueId, now: Time) {
        let members: Vec<WorkloadId> = self.world.local(local).members.iter().copied().collect();
        for id in members {
            let record = self.world.record(id);
            if record.holding.is_none() && !record.facts.finished {
                self.queue_up(id, false, now);
            }
        }
    }

    /// Every workload that waits in this queue: active, inadmissible or in flight.
    fn waiting_in(&self, queue: QueueId) -> Vec<WorkloadId> {
        let Some(pending_queue) = self.pending_queues.get(queue) else { return Vec::new() };
        pending_queue
            .active()
            .map(|key| key.id)
            .chain(pending_queue.inadmissible())
            .chain(pending_queue.in_flight())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EngineConfig, Event};

    fn queue(name: &str, cohort: Option<&str>) -> Event {
        let mut queue = ClusterQueue::new(name);
        queue.cohort = cohort.map(Name::from);
        Event::ClusterQueueUpserted(queue)
    }

    #[test]
    fn a_queue_that_leaves_a_tree_makes_the_others_search_again() {
        let mut engine = Engine::new(EngineConfig::default());
        for name in ["stays", "moves", "goes"] {
            engine.apply(queue(name, Some("first")), Time::from_seconds(1));
        }
        let generation = |engine: &Engine| engine.world.queue(engine.world.queue_ids["stays"]).generation;
        let mut last = generation(&engine);
        for event in [
            queue("moves", Some("second")),
            Event::ClusterQueueRemoved(Name::from("goes")),
            Event::CohortUpserted(Cohort { parent: Some(Name::from("all")), ..Cohort::new("first") }),
            Event::CohortRemoved(Name::from("first")),
        ] {
            engine.apply(event.clone(), Time::from_seconds(2));
            assert!(generation(&engine) > last, "{event:?}");
            last = generation(&engine);
        }
    }
}
