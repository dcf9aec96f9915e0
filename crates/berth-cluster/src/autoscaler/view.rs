//! The autoscaler's snapshot: pools, nodes (existing and ordered), and unschedulable pods.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use berth_api::berth::{NodePool, Provisioning};
use berth_api::pod::node_of;
use berth_apimachinery::well_known;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::ResourceExt;

use crate::Site;
use crate::devices::slices_of;
use crate::placement::{Cluster, NodeState, Packing, Placement, PodInfo, Resources, place};
use crate::pools::{POOL_LABEL, REMOVAL_TAINT, has_taint, is_ready, request_of, template, zones};
use crate::replicas::daemon_set;

/// The snapshot of one scan.
#[derive(Clone, Default)]
pub struct View {
    /// The pools, by name.
    pub pools: BTreeMap<String, Arc<NodePool>>,
    /// Existing nodes, by pool.
    pub nodes: BTreeMap<String, Vec<Arc<Node>>>,
    /// Nodes without a pool.
    others: Vec<Arc<Node>>,
    /// Bound pods that have not terminated.
    pods: Vec<Arc<Pod>>,
    /// Built on first use: most reconciles of a waiting ProvisioningRequest only count nodes.
    cluster: OnceLock<Cluster>,
    /// Unschedulable pods, by descending priority, then creation time, then name.
    pub pending: Vec<Arc<PodInfo>>,
    /// The cluster's name, region and version.
    pub site: Site,
    /// DaemonSets, each with a sample of its pods that is not bound to a node.
    daemons: Vec<(Arc<DaemonSet>, PodInfo)>,
    /// Pods that do not exist yet, for which capacity is reserved.
    promised: Vec<Arc<PodInfo>>,
}

impl View {
    /// Builds a snapshot. `pods` are bound pods that have not terminated.
    pub fn new(
        pools: Vec<Arc<NodePool>>,
        nodes: Vec<Arc<Node>>,
        pods: Vec<Arc<Pod>>,
        mut pending: Vec<Arc<PodInfo>>,
        site: Site,
    ) -> Self {
        let pools: BTreeMap<String, Arc<NodePool>> = pools
            .into_iter()
            .filter(|pool| pool.metadata.deletion_timestamp.is_none())
            .map(|pool| (pool.name_any(), pool))
            .collect();
        let mut view = Self { pools, pods, site, ..Self::default() };
        for node in nodes {
            match node.labels().get(POOL_LABEL).cloned() {
                Some(pool) => view.nodes.entry(pool).or_default().push(node),
                None => view.others.push(node),
            }
        }
        pending.sort_by_key(|pod| (std::cmp::Reverse(pod.priority), pod.created(), pod.key.clone()));
        view.pending = pending;
        view
    }

    /// The view with DaemonSets, whose pods use a part of each new node.
    pub fn and_daemons(mut self, sets: Vec<Arc<DaemonSet>>) -> Self {
        self.daemons = sets.into_iter().map(|set| (set.clone(), daemon_set::pod::sample(&set))).collect();
        self
    }

    /// The view with pods that do not exist yet, for which capacity is reserved. They count as
    /// bound pods.
    pub fn and_promised(mut self, pods: Vec<Arc<PodInfo>>) -> Self {
        self.promised = pods;
        self.cluster = OnceLock::new();
        self
    }

    /// A new node with its daemon pods, and the devices that it will publish.
    pub fn with_daemons(&self, node: Node) -> NodeState {
        let mut state = NodeState::new(Arc::new(node));
        state.expected = self.expected(&state.node);
        for (set, sample) in &self.daemons {
            if daemon_set::pod::eligibility(sample, &state.node).should_run {
                let mut pod = daemon_set::pod::pod_for(set, state.name(), "");
                pod.metadata.name = Some(format!("{}-{}", set.name_any(), state.name()));
                state.add(Arc::new(PodInfo::new(Arc::new(pod))));
            }
        }
        state
    }

    /// The devices that a node publishes once it is ready.
    fn expected(&self, node: &Node) -> Vec<Arc<ResourceSlice>> {
        let pool = node.labels().get(POOL_LABEL).and_then(|pool| self.pools.get(pool));
        pool.map(|pool| slices_of(node, pool)).unwrap_or_default().into_values().map(Arc::new).collect()
    }

    /// Nodes and the pods on them. Nodes that are still starting count as ready, and ordered
    /// machines count as nodes.
    pub fn cluster(&self) -> &Cluster {
        self.cluster.get_or_init(|| self.build_cluster())
    }

    fn build_cluster(&self) -> Cluster {
        let mut cluster = Cluster::default();
        for node in &self.others {
            cluster.set_node(node.clone());
        }
        for (pool_name, nodes) in &self.nodes {
            for node in nodes {
                match self.pools.get(pool_name) {
                    // A node that is still starting counts as ready. This does not hold for the
                    // node of this machine, which does not become ready by waiting.
                    Some(pool)
                        if !pool.spec.is_process() && !has_taint(node, REMOVAL_TAINT) && !is_complete(pool, node) =>
                    {
                        let state = self.with_daemons(completed(pool, node, &self.site));
                        cluster.set_node(state.node.clone());
                        cluster.expect_slices(state.name(), state.expected.clone());
                        // Existing daemon pods are already counted.
                        for pod in state.pods.values().filter(|pod| !self.has_daemon(pod, state.name())) {
                            cluster.place(pod.clone(), state.name());
                        }
                    }
                    _ => {
                        cluster.set_node(node.clone());
                        cluster.expect_slices(&node.name_any(), self.expected(node));
                    }
                }
            }
        }
        for pool in self.pools.values() {
            let creating = pool.status.as_ref().map(|status| status.creating.as_slice()).unwrap_or_default();
            let standing = self.nodes.get(&pool.name_any()).map_or(0, Vec::len);
            let wanted = usize::try_from(pool.spec.nodes_wanted()).unwrap_or(0);
            for instance in creating {
                let mut node = template(pool, &self.site, &instance.zone, &instance.name);
                if let Some(request) = &instance.resize_request {
                    node.labels_mut().insert(berth_api::berth::RESIZE_REQUEST_LABEL.into(), request.clone());
                }
                cluster.add_node(&self.with_daemons(node));
            }
            for i in standing + creating.len()..wanted {
                let zone = zones(pool, &self.site).swap_remove(0);
                let name = format!("{}-to-come-{i}", pool.name_any());
                cluster.add_node(&self.with_daemons(template(pool, &self.site, &zone, &name)));
            }
        }
        for pod in &self.pods {
            let pod = Arc::new(PodInfo::new(pod.clone()));
            if let Some(node) = pod.node_name().map(str::to_owned) {
                cluster.place(pod, &node);
            }
        }
        for pod in &self.promised {
            if let Placement::Node(node) = place(pod, &cluster, Packing::Pack) {
                cluster.place(pod.clone(), &node);
            }
        }
        cluster
    }

    /// True if a pod of the same DaemonSet is bound to the node.
    fn has_daemon(&self, daemon: &PodInfo, node: &str) -> bool {
        let owner = daemon.pod.owner_references().first().map(|owner| &owner.uid);
        let bound = |pod: &&Arc<Pod>| node_of(pod) == Some(node);
        self.pods.iter().filter(bound).any(|pod| pod.owner_references().first().map(|owner| &owner.uid) == owner)
    }

    /// Pools that the autoscaler may grow for pods without a ProvisioningRequest.
    pub fn growable(&self) -> impl Iterator<Item = &Arc<NodePool>> {
        self.pools.values().filter(|pool| !pool.spec.is_fixed() && pool.spec.provisioning != Provisioning::Queued)
    }

    /// Total capacity of existing and ordered nodes, by `cpu` (milli), `memory` (bytes) and
    /// accelerator type.
    pub fn totals(&self) -> BTreeMap<String, i64> {
        let mut totals = BTreeMap::new();
        for node in self.cluster().nodes() {
            add_capacity(&mut totals, &node.node, 1);
        }
        totals
    }
}

/// True for the pod of a DaemonSet and for a mirror pod: it belongs to its node. It neither keeps a
/// node nor makes a pool grow.
pub fn is_node_bound(pod: &PodInfo) -> bool {
    let owned =
        pod.pod.owner_references().iter().any(|owner| owner.controller == Some(true) && owner.kind == "DaemonSet");
    owned || pod.annotation("kubernetes.io/config.mirror").is_some()
}

/// Adds a node's capacity, `count` times, to totals by `cpu` (milli), `memory` (bytes) and
/// accelerator type.
pub fn add_capacity(totals: &mut BTreeMap<String, i64>, node: &Node, count: i64) {
    let capacity = node.status.as_ref().and_then(|status| status.capacity.as_ref());
    let capacity = capacity.map(Resources::from_quantities).unwrap_or_default();
    let labels = node.labels();
    let accelerator =
        labels.get("cloud.google.com/gke-accelerator").or_else(|| labels.get("cloud.google.com/gke-tpu-accelerator"));
    for (name, amount) in capacity.iter() {
        let key = match name {
            "cpu" | "memory" => name,
            "nvidia.com/gpu" | "google.com/tpu" => accelerator.map_or(name, String::as_str),
            _ => continue,
        };
        let total = totals.entry(key.to_owned()).or_insert(0);
        *total = total.saturating_add(amount.saturating_mul(count));
    }
}

/// True if the node is Ready and its accelerators are allocatable.
pub fn is_complete(pool: &NodePool, node: &Node) -> bool {
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    let has = |resource: &str| allocatable.is_some_and(|known| known.contains_key(resource));
    is_ready(node) && pool.spec.accelerator().is_none_or(|accelerator| has(accelerator.resource_name()))
}

/// A node that is still starting, in the state that it will have when it is ready.
fn completed(pool: &NodePool, node: &Node, site: &Site) -> Node {
    let zone = node.labels().get(well_known::ZONE).cloned().unwrap_or_default();
    let mut completed_node = template(pool, site, &zone, &node.name_any());
    if let Some(request) = request_of(node) {
        completed_node.labels_mut().insert(berth_api::berth::RESIZE_REQUEST_LABEL.into(), request.to_owned());
    }
    completed_node
}
