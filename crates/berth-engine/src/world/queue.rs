//! A cluster queue as decisions use it: its configuration, with names turned into ids.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Requests, Tally, World};
use crate::ids::{FlavorId, FrId, Name, NodeId, ResourceId, WorkloadId};
use crate::model::{ClusterQueue, FlavorFungibility, PreemptionPolicies, ResourceGroup};
use crate::quota::NodeQuota;
use crate::status::QueueReadiness;

/// A cluster queue, or the name of one that does not exist.
#[derive(Debug)]
pub(crate) struct Queue {
    pub name: Name,
    pub node: NodeId,
    /// The object; `None` if the queue is only named by others.
    pub spec: Option<Arc<ClusterQueue>>,
    pub config: Arc<QueueConfig>,
    pub readiness: QueueReadiness,
    /// Number of changes that may make flavors fit that did not fit before (§7.8).
    pub generation: u64,
    /// Workloads that hold quota here.
    pub holding: BTreeSet<WorkloadId>,
    /// Sum of the quota that they hold.
    pub tally: Tally,
    /// Total requests of the workloads that wait here.
    pub waiting: Requests,
}

/// The parts of the configuration that the searches for flavors and victims read. Queues with
/// equal parts share them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct QueueConfig {
    pub groups: Vec<Group>,
    pub fungibility: FlavorFungibility,
    pub preemption: PreemptionPolicies,
}

/// A resource group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Group {
    pub resources: Vec<ResourceId>,
    pub flavors: Vec<FlavorSlot>,
}

/// A flavor of a resource group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct FlavorSlot {
    pub flavor: FlavorId,
    pub name: Name,
    /// One flavor-resource per resource of the group, in its order.
    pub frs: Vec<FrId>,
}

impl QueueConfig {
    /// The group that covers a resource.
    pub fn group_of(&self, resource: ResourceId) -> Option<usize> {
        self.groups.iter().position(|group| group.resources.contains(&resource))
    }

    /// Every flavor of every group.
    pub fn slots(&self) -> impl Iterator<Item = &FlavorSlot> {
        self.groups.iter().flat_map(|group| &group.flavors)
    }

    /// Every flavor of every group, without repetitions, in order of appearance.
    pub fn flavors(&self) -> Vec<FlavorId> {
        let mut flavors = Vec::new();
        for slot in self.slots() {
            if !flavors.contains(&slot.flavor) {
                flavors.push(slot.flavor);
            }
        }
        flavors
    }
}

impl Group {
    /// The flavor-resource of a flavor of this group and a resource that it covers.
    pub fn fr(&self, slot: usize, resource: ResourceId) -> Option<FrId> {
        let at = self.resources.iter().position(|id| *id == resource)?;
        self.flavors.get(slot).and_then(|slot| slot.frs.get(at)).copied()
    }
}

impl Queue {
    pub fn named(name: Name, node: NodeId) -> Self {
        Queue {
            name,
            node,
            spec: None,
            config: Arc::new(QueueConfig::default()),
            readiness: super::readiness::not_found(),
            generation: 0,
            holding: BTreeSet::new(),
            tally: Tally::default(),
            waiting: Requests::default(),
        }
    }

    /// True if cycles consider it.
    pub fn is_active(&self) -> bool {
        self.readiness.is_active()
    }
}

impl World {
    /// The shared copy of a configuration. Most queues of a cluster differ only in their quotas,
    /// which the tree holds. With shared copies, a cycle over thousands of queues finds the rest in
    /// the CPU's cache.
    pub fn share_config(&mut self, config: QueueConfig) -> Arc<QueueConfig> {
        if let Some(shared) = self.configs.get(&config) {
            return shared.clone();
        }
        // At least half of the shared configurations are unused.
        if self.configs.len() > 2 * self.queues.len() {
            self.configs.retain(|config| Arc::strong_count(config) > 1);
        }
        let shared = Arc::new(config);
        self.configs.insert(shared.clone());
        shared
    }

    /// Turns resource groups into ids, with the quotas of each flavor-resource.
    pub fn compile_groups(&mut self, groups: &[ResourceGroup]) -> (Vec<Group>, Vec<(FrId, NodeQuota)>) {
        let mut quotas = Vec::new();
        let mut compiled = Vec::new();
        for group in groups {
            let resources: Vec<ResourceId> = group.resources.iter().map(|name| self.resources.intern(name)).collect();
            let mut flavors = Vec::new();
            for entry in &group.flavors {
                let flavor = self.flavor_id(&entry.flavor);
                let frs = resources.iter().map(|resource| self.frs.intern(flavor, *resource)).collect();
                for (resource, quota) in &entry.quotas {
                    let resource = self.resources.intern(resource);
                    let fr = self.frs.intern(flavor, resource);
                    quotas.push((
                        fr,
                        NodeQuota {
                            nominal: quota.nominal,
                            borrowing_limit: quota.borrowing_limit,
                            lending_limit: quota.lending_limit,
                        },
                    ));
                }
                flavors.push(FlavorSlot { flavor, name: entry.flavor.clone(), frs });
            }
            compiled.push(Group { resources, flavors });
        }
        (compiled, quotas)
    }
}
