//! The gangs that the scheduler knows: their declarations, their pods, and what was tried.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::scheduling::{
    POD_GROUP_LABEL, PodGroup, SAKKARA_GROUP_LABEL, SAKKARA_GROUP_NAME_LABEL, SAKKARA_TOPOLOGY_LABEL,
};
use berth_runtime::ObjectKey;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;

use super::profile::{GangPlugin, Profile};
use crate::gangs::group::{BOUND, Group};
use crate::gangs::pod_group::{Rules, Siblings};
use crate::gangs::topology::Topology;
use crate::placement::{PodInfo, Resources};

/// How a gang is declared and placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GangKind {
    /// By a PodGroup, pod by pod, with reserved nodes.
    Coscheduled,
    /// By a Sakkara group's ConfigMap, as a whole.
    Sakkara,
    /// By a PodGroup, as a whole.
    Whole,
}

/// A gang.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gang {
    /// Namespace of its pods, and its name in their labels.
    pub key: ObjectKey,
    /// How it is declared and placed.
    pub kind: GangKind,
}

impl Gang {
    /// The gang of a pod of this profile, if it has one.
    pub fn of(pod: &PodInfo, profile: &Profile) -> Option<Self> {
        let labelled = |label: &str, kind| {
            let name = pod.label(label).filter(|name| !name.is_empty())?;
            Some(Self { key: ObjectKey::namespaced(&pod.key.namespace, name), kind })
        };
        match profile.gangs {
            GangPlugin::None => None,
            GangPlugin::Coscheduling { .. } => labelled(POD_GROUP_LABEL, GangKind::Coscheduled),
            GangPlugin::PlacementGroup { .. } => labelled(SAKKARA_GROUP_NAME_LABEL, GangKind::Sakkara)
                .or_else(|| labelled(POD_GROUP_LABEL, GangKind::Whole)),
        }
    }

    /// The label by which pods name the gang.
    pub fn label(&self) -> &'static str {
        match self.kind {
            GangKind::Sakkara => SAKKARA_GROUP_NAME_LABEL,
            GangKind::Coscheduled | GangKind::Whole => POD_GROUP_LABEL,
        }
    }

    /// The gang in messages: `PodGroup ns/name` or `group ns/name`.
    pub fn title(&self) -> String {
        match self.kind {
            GangKind::Sakkara => format!("group {}", self.key),
            GangKind::Coscheduled | GangKind::Whole => format!("PodGroup {}", self.key),
        }
    }
}

/// The facts of a pod that count for its gang.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PodFacts {
    is_gated: bool,
    has_succeeded: bool,
    /// UID of its controller.
    controller: Option<String>,
}

/// UID of the controller of a pod.
fn controller_of(pod: &Pod) -> Option<&str> {
    pod.owner_references().iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.as_str())
}

/// What was tried with a gang. A restart may lose it.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// When the gang was last rejected, which moves it back in the order.
    pub failed_at: Option<Timestamp>,
    /// The gang is not tried before this time.
    pub back_off_until: Option<Timestamp>,
    /// The check of `minResources` is not repeated before this time.
    pub permitted_until: Option<Timestamp>,
    /// Pods with a reserved node, and when they give it up.
    pub held: BTreeMap<ObjectKey, Timestamp>,
    /// Number of attempts that failed.
    pub retries: u32,
    /// When the gang was first tried with all of its pods.
    pub began: Option<Timestamp>,
}

/// All gangs.
#[derive(Default)]
pub struct Gangs {
    pod_groups: BTreeMap<ObjectKey, Arc<PodGroup>>,
    /// ConfigMaps of groups and topologies.
    config_maps: BTreeMap<ObjectKey, Arc<ConfigMap>>,
    /// Pods by label, namespace and value.
    pods: BTreeMap<(&'static str, ObjectKey), BTreeMap<ObjectKey, PodFacts>>,
    memory: BTreeMap<Gang, Memory>,
}

/// The declaration of a Sakkara group.
pub struct Declared {
    /// The group's ConfigMap.
    pub config_map: Arc<ConfigMap>,
    /// Its contents, or the error in them.
    pub group: Result<Group, String>,
}

impl Gangs {
    /// Applies a change to a pod.
    pub fn pod_changed(&mut self, old: Option<&Arc<Pod>>, new: Option<&Arc<Pod>>) {
        for label in [POD_GROUP_LABEL, SAKKARA_GROUP_NAME_LABEL] {
            let entry = |pod: &Arc<Pod>| {
                let key = ObjectKey::of(pod.as_ref());
                let value = pod.labels().get(label).filter(|value| !value.is_empty())?;
                Some(((label, ObjectKey::namespaced(&key.namespace, value)), key))
            };
            if let Some((gang, key)) = old.and_then(entry)
                && let Some(pods) = self.pods.get_mut(&gang)
            {
                pods.remove(&key);
                if pods.is_empty() {
                    self.pods.remove(&gang);
                }
            }
            if let Some(pod) = new
                && let Some((gang, key)) = entry(pod)
            {
                let gates = pod.spec.as_ref().and_then(|spec| spec.scheduling_gates.as_ref());
                let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
                let facts = PodFacts {
                    is_gated: gates.is_some_and(|gates| !gates.is_empty()),
                    has_succeeded: phase == Some("Succeeded"),
                    controller: controller_of(pod).map(str::to_owned),
                };
                self.pods.entry(gang).or_default().insert(key, facts);
            }
        }
    }

    /// Applies a change to a PodGroup. Returns true if it can affect decisions.
    pub fn pod_group_changed(&mut self, key: &ObjectKey, new: Option<&Arc<PodGroup>>) -> bool {
        let old = match new {
            Some(group) => self.pod_groups.insert(key.clone(), group.clone()),
            None => self.pod_groups.remove(key),
        };
        old.map(|old| old.spec.clone()) != new.map(|new| new.spec.clone())
    }

    /// Applies a change to a ConfigMap. Returns the names of affected groups in its namespace, and
    /// true if it is a topology.
    pub fn config_map_changed(
        &mut self,
        old: Option<&Arc<ConfigMap>>,
        new: Option<&Arc<ConfigMap>>,
    ) -> (BTreeSet<String>, bool) {
        let Some(any) = new.or(old) else { return Default::default() };
        let key = ObjectKey::of(any.as_ref());
        let is_relevant = |map: &&Arc<ConfigMap>| {
            let labels = map.labels();
            labels.contains_key(SAKKARA_GROUP_LABEL) || labels.contains_key(SAKKARA_TOPOLOGY_LABEL)
        };
        let new = new.filter(is_relevant);
        let old = match new {
            Some(map) => self.config_maps.insert(key, map.clone()),
            None => self.config_maps.remove(&key),
        };
        let declared = |map: Option<&Arc<ConfigMap>>| {
            let data = map.and_then(|map| map.data.clone()).unwrap_or_default();
            ["name", "size", "priority", "constraints", "level-names", "tree"].map(|key| data.get(key).cloned())
        };
        let sides = || [old.as_ref(), new].into_iter().flatten();
        if old.is_some() == new.is_some() && declared(old.as_ref()) == declared(new) {
            return Default::default();
        }
        let is_topology = sides().any(|map| map.labels().contains_key(SAKKARA_TOPOLOGY_LABEL));
        (sides().filter_map(|map| map.data.as_ref()?.get("name").cloned()).collect(), is_topology)
    }

    /// The pods of a gang, in any phase.
    pub fn siblings(&self, gang: &Gang) -> Siblings {
        let pods = self.pods.get(&(gang.label(), gang.key.clone()));
        let gated = pods.into_iter().flatten().filter(|(_, facts)| facts.is_gated).count();
        Siblings { all: pods.map_or(0, BTreeMap::len), gated }
    }

    /// Number of pods of a gang that have succeeded and have the controller of one of `pods`. Pods
    /// of an earlier job with the same gang do not count.
    pub fn succeeded(&self, gang: &Gang, pods: &[Arc<PodInfo>]) -> usize {
        let controllers: BTreeSet<&str> = pods.iter().filter_map(|pod| controller_of(&pod.pod)).collect();
        let siblings = self.pods.get(&(gang.label(), gang.key.clone())).into_iter().flat_map(BTreeMap::values);
        let of_same = |facts: &&PodFacts| facts.controller.as_deref().is_some_and(|uid| controllers.contains(uid));
        siblings.filter(|facts| facts.has_succeeded).filter(of_same).count()
    }

    /// The keys of all pods of a gang, in any phase.
    pub fn pods(&self, gang: &Gang) -> impl Iterator<Item = &ObjectKey> {
        self.pods.get(&(gang.label(), gang.key.clone())).into_iter().flat_map(BTreeMap::keys)
    }

    /// The keys of the pods of all gangs.
    pub fn all_pods(&self) -> impl Iterator<Item = &ObjectKey> {
        self.pods.values().flat_map(BTreeMap::keys)
    }

    /// The PodGroup of a gang.
    pub fn pod_group(&self, gang: &Gang) -> Option<&Arc<PodGroup>> {
        self.pod_groups.get(&gang.key)
    }

    /// The rules of the PodGroup of a gang.
    pub fn rules(&self, gang: &Gang) -> Option<Rules> {
        let spec = &self.pod_group(gang)?.spec;
        Some(Rules {
            min_member: usize::try_from(spec.min_member).unwrap_or(0),
            min_resources: (!spec.min_resources.is_empty()).then(|| Resources::from_quantities(&spec.min_resources)),
        })
    }

    /// The declaration of a Sakkara group: of several ConfigMaps with its name, the first by name.
    pub fn declared(&self, gang: &Gang) -> Option<Declared> {
        let from = ObjectKey::namespaced(&gang.key.namespace, "");
        let of_namespace = self.config_maps.range(from..).take_while(|(key, _)| key.namespace == gang.key.namespace);
        let mut groups = of_namespace.filter(|(_, map)| map.labels().contains_key(SAKKARA_GROUP_LABEL));
        let (_, map) = groups.find(|(_, map)| {
            map.data.as_ref().and_then(|data| data.get("name")).is_some_and(|name| *name == gang.key.name)
        })?;
        let group = Group::read(map.data.as_ref().unwrap_or(&BTreeMap::new()));
        Some(Declared { config_map: map.clone(), group })
    }

    /// True if the ConfigMap of a group exists and does not state that its pods are bound.
    pub fn is_unreported(&self, gang: &Gang) -> bool {
        self.declared(gang).is_some_and(|declared| {
            let data = declared.config_map.data.as_ref();
            data.and_then(|data| data.get("status")).map(String::as_str) != Some(BOUND)
        })
    }

    /// The topology of a namespace: of several ConfigMaps, the first by name. Without one, all
    /// nodes are in one level.
    ///
    /// # Errors
    /// The ConfigMap is invalid.
    pub fn topology(&self, namespace: &str) -> Result<Topology, String> {
        let is_topology = |map: &ConfigMap| map.labels().contains_key(SAKKARA_TOPOLOGY_LABEL);
        let mut maps = self.config_maps.iter().filter(|(key, map)| key.namespace == namespace && is_topology(map));
        let Some((key, map)) = maps.next() else { return Ok(Topology::default()) };
        let read = Topology::read(map.data.as_ref().unwrap_or(&BTreeMap::new()));
        read.map_err(|error| format!("ConfigMap {key}: {error}"))
    }

    /// What was tried with a gang.
    pub fn memory(&self, gang: &Gang) -> Option<&Memory> {
        self.memory.get(gang)
    }

    /// What was tried with a gang, to be changed.
    pub fn memory_mut(&mut self, gang: &Gang) -> &mut Memory {
        self.memory.entry(gang.clone()).or_default()
    }

    /// Forgets gangs without pods.
    pub fn forget_unused(&mut self) {
        let pods = &self.pods;
        self.memory.retain(|gang, _| pods.contains_key(&(gang.label(), gang.key.clone())));
    }

    /// Removes and returns the reservations of a gang.
    pub fn take_held(&mut self, gang: &Gang) -> BTreeMap<ObjectKey, Timestamp> {
        self.memory.get_mut(gang).map(|memory| std::mem::take(&mut memory.held)).unwrap_or_default()
    }

    /// Removes the reservation of a pod, if it has one.
    pub fn release(&mut self, pod: &ObjectKey) {
        for memory in self.memory.values_mut() {
            memory.held.remove(pod);
        }
    }

    /// True if the pod has a reservation.
    pub fn is_held(&self, pod: &ObjectKey) -> bool {
        self.memory.values().any(|memory| memory.held.contains_key(pod))
    }

    /// The gangs whose pods have reservations.
    pub fn holding(&self) -> BTreeSet<Gang> {
        let holding = self.memory.iter().filter(|(_, memory)| !memory.held.is_empty());
        holding.map(|(gang, _)| gang.clone()).collect()
    }

    /// The gangs whose reservations have expired, and those whose back-off has ended.
    pub fn expired(&self, now: Timestamp) -> (Vec<Gang>, Vec<Gang>) {
        let with = |is_due: fn(&Memory, Timestamp) -> bool| -> Vec<Gang> {
            self.memory.iter().filter(|(_, memory)| is_due(memory, now)).map(|(gang, _)| gang.clone()).collect()
        };
        (
            with(|memory, now| memory.held.values().any(|until| *until <= now)),
            with(|memory, now| memory.back_off_until.is_some_and(|until| until <= now)),
        )
    }

    /// The next time at which a reservation or a back-off ends.
    pub fn due(&self) -> Option<Timestamp> {
        let times = self.memory.values().flat_map(|memory| memory.held.values().copied().chain(memory.back_off_until));
        times.min()
    }
}
