//! Functions on one workload: its requests, its quota, its order, and its equivalence to others.

use std::collections::BTreeMap;

use super::Lab;
use crate::assignment::{Held, requested_pod_set};
use crate::cycle::Entry;
use crate::cycle::nominate::replaced_slice;
use crate::ids::Name;
use crate::model::{ResourceList, Time, WorkloadKey};

/// Requests of one pod set, or the quota that it holds.
#[derive(Debug, Clone, PartialEq)]
pub struct PodSetTotal {
    /// Pod set.
    pub name: Name,
    /// Pods that need quota.
    pub count: i32,
    /// Amounts for all these pods.
    pub requests: ResourceList,
    /// Flavors by resource; empty without quota.
    pub flavors: BTreeMap<Name, Name>,
}

impl Lab<'_> {
    /// The usage by which a local queue is ordered (§16.4). `None` if no event named the queue.
    pub fn local_usage(&self, namespace: &str, name: &str) -> Option<f64> {
        let world = &self.engine.world;
        let id = world.local_ids.get(&(Name::from(namespace), Name::from(name)))?;
        Some(world.local_usage(*id))
    }

    /// The elastic slice that a workload of a queue replaces, if that slice holds quota there
    /// (§13.2).
    pub fn replaced_slice(&self, workload: &WorkloadKey, queue: &str) -> Option<WorkloadKey> {
        let world = &self.engine.world;
        let entry = Entry::new(world.workloads.id(workload)?, self.queue(queue)?, false, false);
        replaced_slice(world, &entry).map(|id| world.record(id).key().clone())
    }

    /// True if the usage that an earlier run of the process recorded is part of a local queue's
    /// ledger (§16.5).
    pub fn is_record_accounted(&self, namespace: &str, name: &str) -> bool {
        let world = &self.engine.world;
        let id = world.local_ids.get(&(Name::from(namespace), Name::from(name)));
        id.is_some_and(|id| world.local(*id).ledger.accounted)
    }

    /// Total requests of a workload's pod sets (§2.5).
    pub fn totals(&self, workload: &WorkloadKey) -> Vec<PodSetTotal> {
        let world = &self.engine.world;
        let Some(record) = world.workloads.id(workload).map(|id| world.record(id)) else { return Vec::new() };
        let admission = record.holding.as_ref().map(|holding| &holding.admission);
        let total = |info: &std::sync::Arc<crate::world::PodSetInfo>| {
            if let Some(set) = admission.and_then(|it| it.pod_sets.iter().find(|set| set.name == info.name)) {
                let held = Held::of(set, Some(info));
                let requests = set.usage.iter().map(|(name, total)| (name.clone(), held.amount(*total))).collect();
                return PodSetTotal {
                    name: set.name.clone(),
                    count: held.count,
                    requests,
                    flavors: set.flavors.clone(),
                };
            }
            let requested = requested_pod_set(info, info.count);
            let requests = requested.requests.iter().map(|(id, amount)| (world.resource_name(*id).clone(), *amount));
            let (name, count) = (info.name.clone(), info.count);
            PodSetTotal { name, count, requests: requests.collect(), flavors: Default::default() }
        };
        record.shape.pod_sets.iter().map(total).collect()
    }

    /// The time by which a workload is ordered in its queue (§3.2).
    pub fn order_time(&self, workload: &WorkloadKey) -> Option<Time> {
        let world = &self.engine.world;
        Some(world.record(world.workloads.id(workload)?).order_time)
    }

    /// True if two workloads are equivalent: no decision distinguishes them (§4.8).
    pub fn same_class(&self, a: &WorkloadKey, b: &WorkloadKey) -> bool {
        let world = &self.engine.world;
        let class = |key: &WorkloadKey| world.workloads.id(key).map(|id| world.record(id).class);
        class(a).is_some() && class(a) == class(b)
    }

    /// True if a workload that holds quota needs a second pass (§17.6).
    pub fn needs_second_pass(&self, workload: &WorkloadKey) -> bool {
        let world = &self.engine.world;
        let id = world.workloads.id(workload);
        id.is_some_and(|id| crate::waiting::second_pass::needs_second_pass(&world.record(id).facts))
    }

    /// Charges the quota of a workload to its local queue, as the decision on its admission does
    /// (§16.3).
    pub fn charge(&mut self, workload: &WorkloadKey) {
        if let Some(id) = self.engine.world.workloads.id(workload) {
            self.engine.push_penalty(id);
        }
    }
}
