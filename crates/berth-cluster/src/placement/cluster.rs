//! The snapshot: nodes and their pods, updated with each change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_runtime::ObjectKey;
use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::ResourceSlice;

use super::matching::Labels;
use super::{PodInfo, Resources};

/// A node and its usage.
#[derive(Clone, Debug)]
pub struct NodeState {
    /// The object.
    pub node: Arc<Node>,
    /// Amounts that pods can request.
    pub allocatable: Resources,
    /// Sum of its pods' requests.
    pub used: Resources,
    /// Its pods that have not terminated.
    pub pods: BTreeMap<ObjectKey, Arc<PodInfo>>,
    /// UIDs of the pods that preemption would evict. Their devices count as free.
    pub evicted: BTreeSet<String>,
    /// Devices that it will publish. Those that it has published count instead.
    pub expected: Vec<Arc<ResourceSlice>>,
}

impl NodeState {
    /// A node without pods.
    pub fn new(node: Arc<Node>) -> Self {
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        let allocatable = allocatable.map(Resources::from_quantities).unwrap_or_default();
        let (used, pods, evicted, expected) = Default::default();
        Self { node, allocatable, used, pods, evicted, expected }
    }

    /// Name of the node.
    pub fn name(&self) -> &str {
        self.node.metadata.name.as_deref().unwrap_or_default()
    }

    /// Labels of the node.
    pub fn labels(&self) -> &Labels {
        static NONE: Labels = Labels::new();
        self.node.metadata.labels.as_ref().unwrap_or(&NONE)
    }

    /// Taints of the node.
    pub fn taints(&self) -> &[Taint] {
        self.node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
    }

    /// True if the node is cordoned.
    pub fn is_unschedulable(&self) -> bool {
        self.node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true)
    }

    /// Free amount of a resource.
    pub fn free(&self, resource: &str) -> i64 {
        self.allocatable.get(resource) - self.used.get(resource)
    }

    /// Adds a pod.
    pub fn add(&mut self, pod: Arc<PodInfo>) {
        self.used.add(&pod.requests);
        if let Some(before) = self.pods.insert(pod.key.clone(), pod) {
            self.used.subtract(&before.requests);
        }
    }

    /// Removes a pod.
    pub fn remove(&mut self, key: &ObjectKey) -> Option<Arc<PodInfo>> {
        let pod = self.pods.remove(key)?;
        self.used.subtract(&pod.requests);
        Some(pod)
    }

    /// Removes a pod that preemption would evict, with its devices.
    pub fn evict(&mut self, key: &ObjectKey) {
        if let Some(pod) = self.remove(key) {
            self.evicted.insert(pod.uid().to_owned());
        }
    }

    /// Adds a pod again that preemption does not have to evict.
    pub fn put_back(&mut self, pod: Arc<PodInfo>) {
        self.evicted.remove(pod.uid());
        self.add(pod);
    }
}

/// Nodes and the pods on them.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    nodes: BTreeMap<String, NodeState>,
    /// The node of each pod, even if the node does not exist or was deleted.
    places: BTreeMap<ObjectKey, (String, Arc<PodInfo>)>,
    /// Pods with required anti-affinity, which other pods must respect.
    exclusive: BTreeSet<ObjectKey>,
    /// Pods that wait for a node on which preemption made room, by node.
    nominated: BTreeMap<String, BTreeMap<ObjectKey, Arc<PodInfo>>>,
    /// Labels of namespaces, for namespace selectors.
    namespaces: BTreeMap<String, Labels>,
    /// Disruption budgets, which preemption spares if it can.
    budgets: BTreeMap<ObjectKey, Arc<PodDisruptionBudget>>,
}

impl Cluster {
    /// The nodes, in name order.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeState> {
        self.nodes.values()
    }

    /// Number of nodes.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// The node with this name.
    pub fn node(&self, name: &str) -> Option<&NodeState> {
        self.nodes.get(name)
    }

    /// Adds or replaces a node. Its pods remain on it.
    pub fn set_node(&mut self, node: Arc<Node>) {
        let mut state = NodeState::new(node);
        let name = state.name().to_owned();
        match self.nodes.remove(&name) {
            Some(before) => {
                state.used = before.used;
                state.pods = before.pods;
                state.expected = before.expected;
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

    /// Sets the devices that a node will publish.
    pub fn expect_slices(&mut self, name: &str, slices: Vec<Arc<ResourceSlice>>) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.expected = slices;
        }
    }

    /// Adds a new node with its pods.
    pub fn add_node(&mut self, node: &NodeState) {
        self.set_node(node.node.clone());
        self.expect_slices(node.name(), node.expected.clone());
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

    /// Removes a node. Its pods are kept in case the node is added again.
    pub fn remove_node(&mut self, name: &str) {
        self.nodes.remove(name);
    }

    /// Adds a pod to a node, and removes it from any other node.
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

    /// Removes a pod from its node, and from the node for which it was nominated.
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

    /// Records that preemption made room for a pod on a node.
    pub fn nominate(&mut self, pod: Arc<PodInfo>, node: &str) {
        self.remove_pod(&pod.key);
        self.nominated.entry(node.to_owned()).or_default().insert(pod.key.clone(), pod);
    }

    /// Pods nominated for a node.
    pub fn nominated(&self, node: &str) -> impl Iterator<Item = &Arc<PodInfo>> {
        self.nominated.get(node).into_iter().flat_map(BTreeMap::values)
    }

    /// All pods for which preemption made room, with their nodes.
    pub fn all_nominated(&self) -> impl Iterator<Item = (&str, &Arc<PodInfo>)> {
        self.nominated.iter().flat_map(|(node, pods)| pods.values().map(move |pod| (node.as_str(), pod)))
    }

    /// The name of the node on which a pod is counted.
    pub fn place_of(&self, key: &ObjectKey) -> Option<&str> {
        self.places.get(key).map(|(node, _)| node.as_str())
    }

    /// The pod with this key, if it is counted on a node.
    pub fn pod(&self, key: &ObjectKey) -> Option<&Arc<PodInfo>> {
        self.places.get(key).map(|(_, pod)| pod)
    }

    /// All pods that are counted on a node, in key order.
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

    /// Sets or removes a disruption budget.
    pub fn set_budget(&mut self, key: &ObjectKey, budget: Option<Arc<PodDisruptionBudget>>) {
        match budget {
            Some(budget) => self.budgets.insert(key.clone(), budget),
            None => self.budgets.remove(key),
        };
    }

    /// The disruption budgets, in key order.
    pub(super) fn budgets(&self) -> impl Iterator<Item = (&ObjectKey, &PodDisruptionBudget)> {
        self.budgets.iter().map(|(key, budget)| (key, budget.as_ref()))
    }

    /// The labels of a namespace.
    pub(super) fn namespace_labels(&self, name: &str) -> Option<&Labels> {
        self.namespaces.get(name)
    }

    /// Pods with required anti-affinity, which other pods must respect, each with its node.
    pub(super) fn exclusive_pods(&self) -> impl Iterator<Item = (&NodeState, &Arc<PodInfo>)> {
        self.exclusive.iter().filter_map(|key| {
            let (node, pod) = self.places.get(key)?;
            Some((self.nodes.get(node)?, pod))
        })
    }
}
