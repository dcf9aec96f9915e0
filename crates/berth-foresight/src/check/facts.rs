//! What several rules need to know about a set of objects.

use std::collections::{BTreeMap, BTreeSet};

use berth_controllers::translate::{self, amounts};
use berth_engine::model::{ClusterQueue, Cohort, Quota, ResourceFlavor, ResourceGroup};
use berth_engine::{Amount, Name};

use crate::objects::machines::adds_tolerations;
use crate::objects::{Machines, ObjectRef, Objects, Source, Template, Translator};

/// The objects, and what follows from them.
pub(super) struct Facts<'a> {
    pub objects: &'a Objects,
    pub translator: Translator<'a>,
    /// Nodes and pools; empty if the set has none.
    pub machines: Vec<Machines>,
    /// True if pods get tolerations for the extended resources that they request.
    pub adds_tolerations: bool,
    pub flavors: BTreeMap<Name, ResourceFlavor>,
    pub queues: Vec<ClusterQueue>,
    pub cohorts: BTreeMap<Name, Cohort>,
}

/// A quota and where it is.
pub(super) struct Place<'a> {
    pub owner: ObjectRef,
    pub field: String,
    pub flavor: &'a Name,
    pub resource: &'a Name,
    pub quota: &'a Quota,
}

impl<'a> Facts<'a> {
    pub fn new(objects: &'a Objects, template: Template<'_>) -> Facts<'a> {
        let flavors = objects.flavors.values().map(|it| translate::flavor(&it.object));
        let cohorts = objects.cohorts.values().map(|it| translate::cohort(&it.object));
        Facts {
            objects,
            translator: Translator::new(objects),
            machines: objects.machines(template),
            adds_tolerations: adds_tolerations(objects),
            flavors: flavors.map(|flavor| (flavor.name.clone(), flavor)).collect(),
            queues: objects.cluster_queues.values().map(|it| translate::cluster_queue(&it.object)).collect(),
            cohorts: cohorts.map(|cohort| (cohort.name.clone(), cohort)).collect(),
        }
    }

    /// Every quota of queues and cohorts.
    pub fn quotas(&self) -> Vec<Place<'_>> {
        let mut places = Vec::new();
        for queue in &self.queues {
            places.extend(quotas_of("ClusterQueue", &queue.name, &queue.resource_groups));
        }
        for cohort in self.cohorts.values() {
            places.extend(quotas_of("Cohort", &cohort.name, &cohort.resource_groups));
        }
        places
    }

    /// The cohorts above a queue, the nearest first; ends at a cohort that was met before.
    pub fn cohorts_above(&self, queue: &ClusterQueue) -> Vec<Name> {
        let mut above: Vec<Name> = Vec::new();
        let mut next = queue.cohort.clone();
        while let Some(name) = next.filter(|name| !above.contains(name)) {
            next = self.cohorts.get(&name).and_then(|cohort| cohort.parent.clone());
            above.push(name);
        }
        above
    }

    /// The name of the tree of a queue: its highest cohort.
    pub fn tree(&self, queue: &ClusterQueue) -> Option<Name> {
        self.cohorts_above(queue).pop()
    }

    /// The other queues in the tree of a queue.
    pub fn others_in_tree(&self, queue: &ClusterQueue) -> Vec<&ClusterQueue> {
        let Some(tree) = self.tree(queue) else { return Vec::new() };
        let others = self.queues.iter().filter(|other| other.name != queue.name);
        others.filter(|other| self.tree(other).as_ref() == Some(&tree)).collect()
    }

    /// The machines that have the labels of a flavor.
    pub fn machines_of(&self, flavor: &ResourceFlavor) -> Vec<&Machines> {
        self.machines.iter().filter(|machines| machines.have(&flavor.node_labels)).collect()
    }

    /// The names of the labels of namespaces that the set knows completely.
    pub fn known_namespaces(&self) -> BTreeSet<&str> {
        self.objects.namespaces.keys().map(String::as_str).collect()
    }

    /// Where a ClusterQueue was read.
    pub fn queue_source(&self, name: &str) -> Option<&Source> {
        self.objects.cluster_queues.get(name)?.source.as_ref()
    }

    /// Where a ClusterQueue or Cohort was read.
    pub fn owner_source(&self, owner: &ObjectRef) -> Option<&Source> {
        match owner.kind.as_str() {
            "Cohort" => self.objects.cohorts.get(&owner.name)?.source.as_ref(),
            _ => self.queue_source(&owner.name),
        }
    }
}

fn quotas_of<'a>(kind: &'a str, name: &'a Name, groups: &'a [ResourceGroup]) -> impl Iterator<Item = Place<'a>> {
    groups.iter().enumerate().flat_map(move |(g, group)| {
        group.flavors.iter().enumerate().flat_map(move |(f, flavor)| {
            flavor.quotas.iter().enumerate().map(move |(r, (resource, quota))| Place {
                owner: ObjectRef::cluster(kind, name),
                field: format!("spec.resourceGroups[{g}].flavors[{f}].resources[{r}]"),
                flavor: &flavor.flavor,
                resource,
                quota,
            })
        })
    })
}

/// An amount of a resource as a quantity.
pub(super) fn shown(resource: &str, amount: i64) -> String {
    amounts::to_quantity(resource, amount).0
}

/// The part of a quota that others may borrow.
pub(super) fn lendable(quota: &Quota) -> Amount {
    quota.lending_limit.unwrap_or(quota.nominal)
}
