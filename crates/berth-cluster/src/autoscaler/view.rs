//! What the autoscaler sees: pools, nodes (also those to come), and pods without a node.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use berth_api::berth::{NodePool, Provisioning};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;

use crate::Site;
use crate::pools::{POOL_LABEL, REMOVAL_TAINT, has_taint, is_ready, request_of, template, zones};
use crate::scheduling::{Cluster, PodInfo, Resources};

/// A snapshot for one look.
#[derive(Clone, Default)]
pub struct View {
    /// The pools, by name.
    pub pools: BTreeMap<String, Arc<NodePool>>,
    /// Nodes as they are, by pool.
    pub nodes: BTreeMap<String, Vec<Arc<Node>>>,
    /// Nodes of no pool.
    others: Vec<Arc<Node>>,
    /// Pods on nodes that have not ended.
    pods: Vec<Arc<Pod>>,
    /// Made of all that when it is first asked for: most looks at a request that waits for machines only count those.
    cluster: OnceLock<Cluster>,
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

    /// Nodes and the pods on them; starting nodes count as they will be, ordered machines as nodes.
    pub fn cluster(&self) -> &Cluster {
        self.cluster.get_or_init(|| self.put_together())
    }

    fn put_together(&self) -> Cluster {
        let mut cluster = Cluster::default();
        for node in &self.others {
            cluster.set_node(node.clone());
        }
        for (pool_name, nodes) in &self.nodes {
            for node in nodes {
                cluster.set_node(match self.pools.get(pool_name) {
                    Some(pool) if !has_taint(node, REMOVAL_TAINT) && !is_complete(pool, node) => {
                        Arc::new(completed(pool, node, &self.site))
                    }
                    _ => node.clone(),
                });
            }
        }
        for pool in self.pools.values() {
            let creating = pool.status.as_ref().map(|status| status.creating.as_slice()).unwrap_or_default();
            let standing = self.nodes.get(&pool.name_any()).map_or(0, Vec::len);
            let wanted = usize::try_from(pool.spec.nodes_wanted()).unwrap_or(0);
            for instance in creating {
                let mut node = template(pool, &self.site.region, &instance.zone, &instance.name, &self.site.version);
                if let Some(request) = &instance.resize_request {
                    node.labels_mut().insert(berth_api::berth::RESIZE_REQUEST_LABEL.into(), request.clone());
                }
                cluster.set_node(Arc::new(node));
            }
            for i in standing + creating.len()..wanted {
                let zone = zones(pool, &self.site).swap_remove(0);
                let name = format!("{}-to-come-{i}", pool.name_any());
                cluster.set_node(Arc::new(template(pool, &self.site.region, &zone, &name, &self.site.version)));
            }
        }
        for pod in &self.pods {
            let pod = Arc::new(PodInfo::new(pod.clone()));
            if let Some(node) = pod.node_name().map(str::to_owned) {
                cluster.place(pod, &node);
            }
        }
        cluster
    }

    /// Pools the autoscaler may grow for ordinary pods.
    pub fn growable(&self) -> impl Iterator<Item = &Arc<NodePool>> {
        self.pools.values().filter(|pool| !pool.spec.is_static && pool.spec.provisioning != Provisioning::Queued)
    }

    /// What all nodes that are there or wanted have, by `cpu`, `memory` and accelerator type.
    pub fn totals(&self) -> BTreeMap<String, i64> {
        let mut totals = BTreeMap::new();
        for node in self.cluster().nodes() {
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
