//! Decides which gated pods are released, and to which domain (semantics §14.11).
//!
//! Pods of a pod set with a topology assignment have a scheduling gate. If every pod has a rank,
//! the pod of rank k goes to the k-th slot of the assignment, so that neighbours by rank are
//! neighbours in the topology. Otherwise each domain is filled up in order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::kueue::v1beta2::{PodSetTopologyRequest, Workload};
use berth_api::kueue::{annotations, constants};
use berth_engine::model::{TopologyAssignment, TopologyDomain};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::{has_ended, is_gated, pinned_to, pod_set_of};
use crate::podset;
use crate::translate::admission::decode;
use crate::workload::status;

/// A pod to release to the nodes with these labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Release {
    /// The pod.
    pub pod: Arc<Pod>,
    /// Additions to its node selector.
    pub node_selector: BTreeMap<String, String>,
}

impl Release {
    /// The pod without its gate, and with the node selector of its domain.
    pub fn released(&self) -> Pod {
        let mut pod = (*self.pod).clone();
        podset::remove_gate(&mut pod, constants::TOPOLOGY_GATE);
        if let Some(spec) = &mut pod.spec {
            spec.node_selector.get_or_insert_with(BTreeMap::new).extend(self.node_selector.clone());
        }
        pod
    }
}

/// True if pods of the workload may have to be released: a pod set has a topology assignment.
/// Otherwise [`releases`] need not read the pods, of which a large job has thousands.
pub fn may_release(workload: &Workload) -> bool {
    let admission = workload.status.as_ref().and_then(|status| status.admission.as_ref());
    let mut assignments = admission.into_iter().flat_map(|admission| &admission.pod_set_assignments);
    assignments.any(|assignment| assignment.topology_assignment.is_some())
}

/// The pods of a workload to release now.
pub fn releases(workload: &Workload, pods: &[Arc<Pod>]) -> Vec<Release> {
    let admitted = status::is_admitted(workload) && !status::is_evicted(workload) && !status::is_finished(workload);
    let Some(status) = workload.status.as_ref().filter(|_| admitted) else { return Vec::new() };
    let unhealthy: BTreeSet<&str> = status.unhealthy_nodes.iter().map(|node| node.name.as_str()).collect();
    let mut releases = Vec::new();
    for assignment in status.admission.iter().flat_map(|admission| &admission.pod_set_assignments) {
        let Some(topology) = assignment.topology_assignment.as_ref().map(decode) else { continue };
        let members: Vec<&Arc<Pod>> =
            pods.iter().filter(|pod| pod_set_of(pod) == Some(&assignment.name) && !has_ended(pod)).collect();
        if !members.iter().any(|pod| is_gated(pod)) {
            continue;
        }
        let spec = workload.spec.pod_sets.iter().find(|set| set.name == assignment.name);
        let request = spec.and_then(|set| set.topology_request.as_ref());
        let chosen = request
            .and_then(|request| by_rank(request, ranked_before(workload, &assignment.name), &topology, &members))
            .unwrap_or_else(|| greedily(&topology, &members, &unhealthy));
        for (pod, domain) in chosen {
            let leaves = pod.metadata.deletion_timestamp.is_some();
            let failed = domain.values.last().is_some_and(|host| unhealthy.contains(&**host));
            if !leaves && !failed {
                releases.push(Release { pod: pod.clone(), node_selector: selector(&topology, domain) });
            }
        }
    }
    releases
}

/// Number of pods that are ranked before those of a pod set. Leader and workers of a group are
/// numbered together, with the leader first; the smaller pod set is the leader's.
fn ranked_before(workload: &Workload, pod_set: &str) -> usize {
    let group_of = |name: &str| {
        let spec = workload.spec.pod_sets.iter().find(|set| set.name == name)?;
        spec.topology_request.as_ref()?.pod_set_group_name.as_deref()
    };
    let Some(group) = group_of(pod_set) else { return 0 };
    let admission = workload.status.as_ref().and_then(|status| status.admission.as_ref());
    let assignments = admission.into_iter().flat_map(|admission| &admission.pod_set_assignments);
    let members: Vec<(&str, i32)> = assignments
        .filter(|assignment| group_of(&assignment.name) == Some(group))
        .map(|assignment| (assignment.name.as_str(), assignment.count.unwrap_or(0)))
        .collect();
    match members.as_slice() {
        [first, second] => {
            let (leader, workers) = if first.1 > second.1 { (second, first) } else { (first, second) };
            if workers.0 == pod_set { usize::try_from(leader.1).unwrap_or(0) } else { 0 }
        }
        _ => 0,
    }
}

fn levels(topology: &TopologyAssignment) -> Vec<&str> {
    topology.levels.iter().map(|level| &**level).collect()
}

fn selector(topology: &TopologyAssignment, domain: &TopologyDomain) -> BTreeMap<String, String> {
    topology.levels.iter().zip(&domain.values).map(|(level, value)| (level.to_string(), value.to_string())).collect()
}

fn is_in(pod: &Pod, topology: &TopologyAssignment, domain: &TopologyDomain) -> bool {
    pinned_to(pod, &levels(topology))
        .is_some_and(|pinned| pinned.iter().copied().eq(domain.values.iter().map(|it| &**it)))
}

/// The domains of the gated pods by rank. `None` if the ranks are unusable: a pod has none, two
/// pods share one, one exceeds the assignment, or a released pod is in another domain.
fn by_rank<'a>(
    request: &PodSetTopologyRequest,
    before: usize,
    topology: &'a TopologyAssignment,
    members: &[&'a Arc<Pod>],
) -> Option<Vec<(&'a Arc<Pod>, &'a TopologyDomain)>> {
    let slots: Vec<&TopologyDomain> = topology
        .domains
        .iter()
        .flat_map(|domain| std::iter::repeat_n(domain, usize::try_from(domain.count).unwrap_or(0)))
        .collect();
    let mut taken = BTreeSet::new();
    let mut chosen = Vec::new();
    for &pod in members {
        let rank = rank(request, before, pod, slots.len())?;
        let slot = slots.get(rank)?;
        if !taken.insert(rank) {
            return None;
        }
        if is_gated(pod) {
            chosen.push((pod, *slot));
        } else if !is_in(pod, topology, slot) {
            return None;
        }
    }
    Some(chosen)
}

/// The rank of a pod in its pod set, after `before` pods of the leader's pod set; `pods`: size of
/// the assignment.
fn rank(request: &PodSetTopologyRequest, before: usize, pod: &Pod, pods: usize) -> Option<usize> {
    let number = |label: &str| pod.labels().get(label)?.parse::<usize>().ok();
    let offset = match pod.annotations().get(annotations::POD_INDEX_OFFSET) {
        Some(text) => text.parse::<usize>().ok()?.checked_add(before)?,
        None => before,
    };
    let index = number(request.pod_index_label.as_ref()?)?.checked_sub(offset)?;
    let (Some(label), Some(groups)) = (&request.sub_group_index_label, request.sub_group_count) else {
        return Some(index);
    };
    let size = pods.checked_div(usize::try_from(groups).ok()?)?;
    (index < size).then_some(number(label)? * size + index)
}

/// Fills each domain up to its count, in the order of the assignment and of the pods' names.
fn greedily<'a>(
    topology: &'a TopologyAssignment,
    members: &[&'a Arc<Pod>],
    unhealthy: &BTreeSet<&str>,
) -> Vec<(&'a Arc<Pod>, &'a TopologyDomain)> {
    let levels = levels(topology);
    let mut capacity: BTreeMap<Vec<&str>, i32> = BTreeMap::new();
    for domain in &topology.domains {
        *capacity.entry(domain.values.iter().map(|it| &**it).collect()).or_default() += domain.count;
    }
    for pod in members.iter().filter(|pod| !is_gated(pod)) {
        if let Some(left) = pinned_to(pod, &levels).and_then(|pinned| capacity.get_mut(&pinned)) {
            *left -= 1;
        }
    }
    let healthy = |domain: &&TopologyDomain| !domain.values.last().is_some_and(|host| unhealthy.contains(&**host));
    let mut free = topology.domains.iter().filter(healthy).flat_map(|domain| {
        let key: Vec<&str> = domain.values.iter().map(|it| &**it).collect();
        let left = capacity.get(&key).copied().unwrap_or(0);
        std::iter::repeat_n(domain, usize::try_from(left).unwrap_or(0))
    });
    let gated = members.iter().filter(|pod| is_gated(pod) && pod.metadata.deletion_timestamp.is_none());
    gated.map_while(|pod| Some((*pod, free.next()?))).collect()
}
