//! The snapshot: nodes and what runs on them, kept up to date change by change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_runtime::ObjectKey;
use k8s_openapi::api::core::v1::{Node, Taint};

use super::matching::Labels;
use super::{PodInfo, Resources};

/// A node and what is used on it.
#[derive(Clone, Debug)]
pub struct NodeState {
    /// The object.
    pub node: Arc<Node>,
    /// What pods can have of it.
    pub allocatable: Resources,
    /// What its pods asked for.
    pub used: Resources,
    /// Its pods that have not ended.
    pub pods: BTreeMap<ObjectKey, Arc<PodInfo>>,
}

impl NodeState {
    /// A node without pods.
    pub fn new(node: Arc<Node>) -> Self {
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        let allocatable = allocatable.map(Resources::from_quantities).unwrap_or_default();
        Self { node, allocatable, used: Resources::default(), pods: BTreeMap::new() }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.node.metadata.name.as_deref().unwrap_or_default()
    }

    /// Its labels.
    pub fn labels(&self) -> &Labels {
        static NONE: Labels = Labels::new();
        self.node.metadata.labels.as_ref().unwrap_or(&NONE)
    }

    /// Its taints.
    pub fn taints(&self) -> &[Taint] {
        self.node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
    }

    /// Is it cordoned?
    pub fn is_unschedulable(&self) -> bool {
        self.node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true)
    }

    /// What is left of a resource.
    pub fn free(&self, resource: &str) -> i64 {
        self.allocatable.get(resource) - self.used.get(resource)
    }

    /// Puts a pod on it.
    pub fn add(&mut self, pod: Arc<PodInfo>) {
        self.used.add(&pod.requests);
        if let Some(before) = self.pods.insert(pod.key.clone(), pod) {
            self.used.subtract(&before.requests);
        }
    }

    /// Takes a pod off it.
    pub fn remove(&mut self, key: &ObjectKey) -> Option<Arc<PodInfo>> {
        let pod = self.pods.remove(key)?;
        self.used.subtract(&pod.requests);
        Some(pod)
    }
}

/// Nodes and the pods on them.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    nodes: BTreeMap<String, NodeState>,
    /// Where each pod counts, also on nodes that are not (or no longer) there.
    places: BTreeMap<ObjectKey, (String, Arc<PodInfo>)>,
    /// Pods with required anti-affinity, which other pods must respect.
    exclusive: BTreeSet<ObjectKey>,
    /// Pods that wait for a node preemption made room on, by node.
    nominated: BTreeMap<String, BTreeMap<ObjectKey, Arc<PodInfo>>>,
    /// Labels of namespaces, for namespace selectors.
    namespaces: BTreeMap<String, Labels>,
}

impl Cluster {
    /// The nodes, in name order.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeState> {
        self.nodes.values()
    }

    /// How many nodes there are.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// The node with this name.
    pub fn node(&self, name: &str) -> Option<&NodeState> {
        self.nodes.get(name)
    }

    /// Adds or replaces a node; its pods stay on it.
    pub fn set_node(&mut self, node: Arc<Node>) {
        let mut state = NodeState::new(node);
        let name = state.name().to_owned();
        match self.nodes.remove(&name) {
            Some(before) => {
                state.used = before.used;
                state.pods = before.pods;
            }
            None => {
                for (place, pod) in self.places.values() {
                    if *place == name {
                        state.add(pod.clone());
                    }
                }
            }
        }
        self.nodes.insert(name, state);
    }

    /// Adds a new node with its pods.
    pub fn add_node(&mut self, node: &NodeState) {
        self.set_node(node.node.clone());
        for pod in node.pods.values() {
            self.place(pod.clone(), node.name());
        }
    }

    /// Removes a node and its pods.
    pub fn drop_node(&mut self, node: &NodeState) {
        self.remove_node(node.name());
        for key in node.pods.keys() {
            self.remove_pod(key);
        }
    }

    /// Removes a node. Its pods are remembered in case it comes back.
    pub fn remove_node(&mut self, name: &str) {
        self.nodes.remove(name);
    }

    /// Puts a pod on a node, moving it if it is elsewhere.
    pub fn place(&mut self, pod: Arc<PodInfo>, node: &str) {
        self.remove_pod(&pod.key);
        if !pod.required_anti_affinity().is_empty() {
            self.exclusive.insert(pod.key.clone());
        }
        if let Some(state) = self.nodes.get_mut(node) {
            state.add(pod.clone());
        }
        self.places.insert(pod.key.clone(), (node.to_owned(), pod));
    }

    /// Takes a pod off its node, and off the node it was nominated for.
    pub fn remove_pod(&mut self, key: &ObjectKey) -> Option<Arc<PodInfo>> {
        self.nominated.retain(|_, pods| {
            pods.remove(key);
            !pods.is_empty()
        });
        let (node, pod) = self.places.remove(key)?;
        self.exclusive.remove(key);
        if let Some(state) = self.nodes.get_mut(&node) {
            state.remove(key);
        }
        Some(pod)
    }

    /// Notes that preemption made room for a pod on a node.
    pub fn nominate(&mut self, pod: Arc<PodInfo>, node: &str) {
        self.remove_pod(&pod.key);
        self.nominated.entry(node.to_owned()).or_default().insert(pod.key.clone(), pod);
    }

    /// Pods nominated for a node.
    pub fn nominated(&self, node: &str) -> impl Iterator<Item = &Arc<PodInfo>> {
        self.nominated.get(node).into_iter().flat_map(BTreeMap::values)
    }

    /// The node a pod counts on.
    pub fn place_of(&self, key: &ObjectKey) -> Option<&str> {
        self.places.get(key).map(|(node, _)| node.as_str())
    }

    /// A pod that counts on a node.
    pub fn pod(&self, key: &ObjectKey) -> Option<&Arc<PodInfo>> {
        self.places.get(key).map(|(_, pod)| pod)
    }

    /// The pods that count on a node, in key order.
    pub(super) fn placed(&self) -> impl Iterator<Item = &Arc<PodInfo>> {
        self.places.values().map(|(_, pod)| pod)
    }

    /// Sets the labels of a namespace.
    pub fn set_namespace(&mut self, name: &str, labels: Option<Labels>) {
        match labels {
            Some(labels) => self.namespaces.insert(name.to_owned(), labels),
            None => self.namespaces.remove(name),
        };
    }

    /// The labels of a namespace.
    pub(super) fn namespace_labels(&self, name: &str) -> Option<&Labels> {
        self.namespaces.get(name)
    }

    /// Pods whose required anti-affinity others must respect, with the node they are on.
    pub(super) fn exclusive_pods(&self) -> impl Iterator<Item = (&NodeState, &Arc<PodInfo>)> {
        self.exclusive.iter().filter_map(|key| {
            let (node, pod) = self.places.get(key)?;
            Some((self.nodes.get(node)?, pod))
        })
    }
}
