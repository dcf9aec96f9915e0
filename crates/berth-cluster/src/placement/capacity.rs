//! How many equal pods fit on each node, for gangs that are placed as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::domains::Domains;
use super::filters::is_by_devices;
use super::plan::reserved_for_others;
use super::{Cluster, NodeState, PodInfo, Unfit, fits};

/// The capacity of nodes for pods that are equal to one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Number of pods that fit, for nodes on which any fits.
    pub pods: BTreeMap<String, usize>,
    /// Number of nodes without room, by reason; a node may have several reasons.
    pub reasons: BTreeMap<Unfit, usize>,
}

/// The capacity of all nodes for at most `most` pods each.
///
/// Rules between pods are evaluated for the first pod only: see [`can_place`].
pub fn capacity(pod: &PodInfo, cluster: &Cluster, most: usize) -> Capacity {
    let domains = Domains::new(pod, cluster, &BTreeSet::new());
    let mut capacity = Capacity::default();
    for node in cluster.nodes() {
        match capacity_on(pod, cluster, node, &domains, most) {
            Ok(count) => {
                capacity.pods.insert(node.name().to_owned(), count);
            }
            Err(refusals) => {
                for refusal in refusals {
                    *capacity.reasons.entry(refusal).or_insert(0) += 1;
                }
            }
        }
    }
    capacity
}

/// The capacity of one node for at most `most` pods; 0 if the node does not exist.
pub fn capacity_of_node(pod: &PodInfo, cluster: &Cluster, node: &str, most: usize) -> usize {
    let Some(node) = cluster.node(node) else { return 0 };
    capacity_on(pod, cluster, node, &Domains::new(pod, cluster, &BTreeSet::new()), most).unwrap_or(0)
}

/// True if the pod fits on the node, with all rules between pods.
pub fn can_place(pod: &PodInfo, cluster: &Cluster, node: &str) -> bool {
    capacity_of_node(pod, cluster, node, 1) > 0
}

/// True if the numbers of [`capacity`] may be too large for pods like this one: they may exclude
/// each other, or their claims differ.
pub fn needs_check(pod: &PodInfo, cluster: &Cluster) -> bool {
    pod.depends_on_pods() || pod.has_claims() || cluster.exclusive_pods().next().is_some()
}

fn capacity_on(
    pod: &PodInfo,
    cluster: &Cluster,
    node: &NodeState,
    domains: &Domains<'_>,
    most: usize,
) -> Result<usize, Vec<Unfit>> {
    let reserved = reserved_for_others(pod, cluster, node);
    fits(pod, node, &reserved)?;
    domains.check(node).map_err(|reason| vec![reason])?;
    if pod.host_ports().next().is_some() {
        return Ok(most.min(1));
    }
    let is_counted = |resource: &str| !is_by_devices(pod, node, resource);
    let wanted = pod.requests.iter().filter(|(resource, wanted)| *wanted > 0 && is_counted(resource));
    let most = wanted.fold(most, |most, (resource, wanted)| {
        let free = (node.free(resource) - reserved.get(resource)).max(0);
        most.min(usize::try_from(free / wanted).unwrap_or(usize::MAX))
    });
    Ok(most)
}

/// Nodes and numbers of the pods that really fit if these pods are placed there one after the
/// other; `Ok` if all do. A copy of the cluster is changed, not the cluster.
///
/// # Errors
/// The first node that takes fewer pods, with their number.
pub fn check_places(cluster: &Cluster, places: &[(Arc<PodInfo>, String)]) -> Result<(), (String, usize)> {
    let mut cluster = cluster.clone();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (pod, node) in places {
        let count = counts.entry(node).or_insert(0);
        if !can_place(pod, &cluster, node) {
            return Err((node.clone(), *count));
        }
        cluster.place(pod.clone(), node);
        *count += 1;
    }
    Ok(())
}
