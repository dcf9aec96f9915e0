//! What the autoscaler sees: pools, nodes (also those to come), and pods without a node.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::berth::{NodePool, Provisioning};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use crate::Site;
use crate::pools::{POOL_LABEL, REMOVAL_TAINT, has_taint, is_ready, request_of, template, zones};
use crate::scheduling::{Cluster, PodInfo, Resources};

/// A snapshot for one look.
#[derive(Clone, Default)]
pub struct View {
    /// The pools, by name.
    pub pools: BTreeMap<String, Arc<NodePool>>,
    /// Nodes and the pods on them; starting nodes count as they will be, ordered machines as nodes.
    pub cluster: Cluster,
    /// Nodes as they are, by pool.
    pub nodes: BTreeMap<String, Vec<Arc<Node>>>,
    /// Pods that fit nowhere, most important first.
    pub pending: Vec<Arc<PodInfo>>,
    /// Where the cluster is.
    pub site: Site,
}

impl View {
    /// Puts a snapshot together. `pods` are those on nodes that have not ended.
    pub fn new(
        pools: Vec<Arc<NodePool>>,
        nodes: Vec<Arc<Node>>,
        pods: Vec<Arc<PodInfo>>,
        mut pending: Vec<Arc<PodInfo>>,
        site: Site,
    ) -> Self {
        let pools: BTreeMap<String, Arc<NodePool>> = pools
            .into_iter()
            .filter(|pool| pool.metadata.deletion_timestamp.is_none())
            .map(|pool| (pool.name_any(), pool))
            .collect();
        let mut view = Self { pools, site, ..Self::default() };
        for node in nodes {
            let pool_name = node.labels().get(POOL_LABEL).cloned();
            let pool = pool_name.as_ref().and_then(|name| view.pools.get(name));
            let as_it_will_be = match pool {
                Some(pool) if !has_taint(&node, REMOVAL_TAINT) && !is_complete(pool, &node) => {
                    Arc::new(completed(pool, &node, &view.site))
                }
                _ => node.clone(),
            };
            view.cluster.set_node(as_it_will_be);
            if let Some(name) = pool_name {
                view.nodes.entry(name).or_default().push(node);
            }
        }
        let mut coming = Vec::new();
        for pool in view.pools.values() {
            let status = pool.status.clone().unwrap_or_default();
            let zone = zones(pool, &view.site).swap_remove(0);
            let standing = view.nodes.get(&pool.name_any()).map_or(0, Vec::len);
            let wanted = usize::try_from(pool.spec.nodes_wanted()).unwrap_or(0);
            let creating = status.creating.iter().map(|instance| {
                let mut node = template(pool, &view.site.region, &instance.zone, &instance.name, &view.site.version);
                if let Some(request) = &instance.resize_request {
                    node.labels_mut().insert(berth_api::berth::RESIZE_REQUEST_LABEL.into(), request.clone());
                }
                node
            });
            coming.extend(creating);
            for i in standing + status.creating.len()..wanted {
                let name = format!("{}-to-come-{i}", pool.name_any());
                coming.push(template(pool, &view.site.region, &zone, &name, &view.site.version));
            }
        }
        for node in coming {
            view.cluster.set_node(Arc::new(node));
        }
        for pod in pods {
            if let Some(node) = pod.node_name().map(str::to_owned) {
                view.cluster.place(pod, &node);
            }
        }
        pending.sort_by_key(|pod| (std::cmp::Reverse(pod.priority), pod.created(), pod.key.clone()));
        view.pending = pending;
        view
    }

    /// Pools the autoscaler may grow for ordinary pods.
    pub fn growable(&self) -> impl Iterator<Item = &Arc<NodePool>> {
        self.pools.values().filter(|pool| !pool.spec.is_static && pool.spec.provisioning != Provisioning::Queued)
    }

    /// What all nodes that are there or wanted have, by `cpu`, `memory` and accelerator type.
    pub fn totals(&self) -> BTreeMap<String, i64> {
        let mut totals = BTreeMap::new();
        for node in self.cluster.nodes() {
            add_capacity(&mut totals, &node.node, 1);
        }
        totals
    }
}

/// Adds a node's capacity, `count` times, to totals by `cpu` (milli), `memory` and accelerator type.
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

/// Is the node Ready with all its accelerators?
pub fn is_complete(pool: &NodePool, node: &Node) -> bool {
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    let has = |resource: &str| allocatable.is_some_and(|known| known.contains_key(resource));
    is_ready(node) && pool.spec.accelerator().is_none_or(|accelerator| has(accelerator.resource_name()))
}

/// A starting node as it will be once it is ready.
fn completed(pool: &NodePool, node: &Node, site: &Site) -> Node {
    let zone = node.labels().get("topology.kubernetes.io/zone").cloned().unwrap_or_default();
    let mut whole = template(pool, &site.region, &zone, &node.name_any(), &site.version);
    if let Some(request) = request_of(node) {
        whole.labels_mut().insert(berth_api::berth::RESIZE_REQUEST_LABEL.into(), request.to_owned());
    }
    whole
}
