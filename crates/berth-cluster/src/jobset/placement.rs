//! Exclusive placement: every job gets its own topology domain (a rack, a node pool). The first pod
//! of a job, the leader, chooses the domain by affinity; the other pods, the followers, get the
//! domain as a node selector. A follower whose selector differs from the leader's domain is
//! removed.
//!
//! Pure functions: the admission chain and the controller read pods and nodes.

use std::collections::BTreeMap;

use berth_api::jobset::constants::{
    EXCLUSIVE_PLACEMENT_VIOLATION, EXCLUSIVE_TOPOLOGY, JOB_INDEX, JOB_KEY, JOBSET_NAME, NODE_SELECTOR_STRATEGY,
    PRIORITY, REPLICATED_JOB_NAME,
};
use berth_api::pod::node_of;
use berth_apimachinery::well_known::COMPLETION_INDEX;
use berth_runtime::stamp;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, PodAffinity, PodAffinityTerm, PodAntiAffinity, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, OwnerReference};

use crate::job::facts::{is_deleted, is_terminated, name};

/// Why a pod cannot be placed, or cannot be created yet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// The pod lacks a label that every pod of a set has.
    #[error("pod missing label: {0}")]
    LabelMissing(&'static str),
    /// There is not exactly one running leader.
    #[error("expected 1 leader pod ({name}), but got {found}")]
    LeaderCount {
        /// Name of the leader without its random suffix.
        name: String,
        /// Number of leaders.
        found: usize,
    },
    /// The leader has no controller.
    #[error("leader pod {0:?} has no owner reference")]
    LeaderOwnerMissing(String),
    /// The follower has no controller.
    #[error("follower pod has no owner reference")]
    FollowerOwnerMissing,
    /// The leader belongs to another job, which is an earlier job of the same name.
    #[error("follower pod owner UID ({follower}) != leader pod owner UID ({leader})")]
    OwnersDiffer {
        /// UID of the follower's job.
        follower: String,
        /// UID of the leader's job.
        leader: String,
    },
    /// The leader's node does not exist.
    #[error("nodes {0:?} not found")]
    NodeMissing(String),
    /// The leader's domain is unknown.
    #[error("leader topology is unknown (node not found)")]
    TopologyUnknown,
    /// The leader's node does not have this label.
    #[error("node does not have topology label: {0}")]
    NodeLabelMissing(String),
    /// The follower has no node selector.
    #[error("follower pod node selector not set")]
    SelectorMissing,
    /// The follower's node selector does not have this key.
    #[error("follower pod node selector for topology domain not found. missing selector: {0}")]
    TopologySelectorMissing(String),
    /// The leader has no node yet.
    #[error("leader pod not yet scheduled, not creating follower pod. this is an expected, transient error")]
    LeaderNotScheduled,
}

/// Reads of the cluster that placement needs.
pub trait ClusterView {
    /// The pods of a set, found by label.
    fn pods_of_set(&self, namespace: &str, set: &str) -> Vec<Pod>;
    /// A node.
    fn node(&self, name: &str) -> Option<Node>;
}

/// True for pods of a set.
pub fn is_set_pod(pod: &Pod) -> bool {
    annotation(pod, JOBSET_NAME).is_some()
}

/// The topology in which the pod's job needs its own domain; `None` if the job uses prepared nodes.
pub fn exclusive_topology(pod: &Pod) -> Option<&str> {
    if annotation(pod, NODE_SELECTOR_STRATEGY).is_some() { None } else { annotation(pod, EXCLUSIVE_TOPOLOGY) }
}

/// True for the pod with completion index 0.
pub fn is_leader(pod: &Pod) -> bool {
    annotation(pod, COMPLETION_INDEX) == Some("0")
}

/// Prepares a new pod: its priority as a label, and its affinity or node selector. A follower whose
/// leader is not found or has no node is not changed, and [`validate_pod`] rejects it.
pub fn prepare_pod(pod: &mut Pod, cluster: &dyn ClusterView) -> Result<(), PlacementError> {
    if !is_set_pod(pod) {
        return Ok(());
    }
    if let Some(priority) = pod.spec.as_ref().and_then(|spec| spec.priority) {
        pod.metadata.labels.get_or_insert_default().insert(PRIORITY.to_owned(), priority.to_string());
    }
    let Some(topology) = exclusive_topology(pod).map(str::to_owned) else { return Ok(()) };
    if is_leader(pod) {
        claim_domain(pod, &topology);
        return Ok(());
    }
    let Ok(leader) = leader_of(pod, cluster) else { return Ok(()) };
    let Some(node_name) = node_of(&leader) else { return Ok(()) };
    let node = cluster.node(node_name).ok_or_else(|| PlacementError::NodeMissing(node_name.to_owned()))?;
    let domain = domain_of(&node, &topology)?.to_owned();
    pod.spec.get_or_insert_default().node_selector.get_or_insert_default().insert(topology, domain);
    Ok(())
}

/// Rejects a follower that must wait for its leader.
pub fn validate_pod(pod: &Pod, cluster: &dyn ClusterView) -> Result<(), PlacementError> {
    let Some(topology) = exclusive_topology(pod).filter(|_| is_set_pod(pod) && !is_leader(pod)) else { return Ok(()) };
    let leader = leader_of(pod, cluster)?;
    if node_of(&leader).is_none() {
        return Err(PlacementError::LeaderNotScheduled);
    }
    let selector = pod.spec.as_ref().and_then(|spec| spec.node_selector.as_ref());
    let selector = selector.ok_or(PlacementError::SelectorMissing)?;
    if selector.contains_key(topology) {
        Ok(())
    } else {
        Err(PlacementError::TopologySelectorMissing(topology.to_owned()))
    }
}

/// The name, without its random suffix, of the leader of this pod's job.
pub fn leader_name(pod: &Pod) -> Result<String, PlacementError> {
    let label = |key: &'static str| label(pod, key).ok_or(PlacementError::LabelMissing(key));
    Ok(format!("{}-{}-{}-0", label(JOBSET_NAME)?, label(REPLICATED_JOB_NAME)?, label(JOB_INDEX)?))
}

/// The leader of a follower's job. There must be exactly one that has not terminated and is not
/// being deleted.
pub fn leader_of(follower: &Pod, cluster: &dyn ClusterView) -> Result<Pod, PlacementError> {
    let wanted = leader_name(follower)?;
    let namespace = follower.metadata.namespace.as_deref().unwrap_or_default();
    let set = label(follower, JOBSET_NAME).unwrap_or_default();
    let mut leaders: Vec<Pod> = cluster.pods_of_set(namespace, set);
    leaders.retain(|pod| {
        let stem = name(pod).rsplit_once('-').map_or("", |(stem, _)| stem);
        stem == wanted && !is_terminated(pod) && !is_deleted(pod)
    });
    match leaders.pop() {
        Some(leader) if leaders.is_empty() => {
            same_job(&leader, follower)?;
            Ok(leader)
        }
        last => Err(PlacementError::LeaderCount { name: wanted, found: leaders.len() + usize::from(last.is_some()) }),
    }
}

/// Rejects a leader of another job, which may still exist shortly after a restart.
pub fn same_job(leader: &Pod, follower: &Pod) -> Result<(), PlacementError> {
    let of_follower = controller(follower).ok_or(PlacementError::FollowerOwnerMissing)?;
    let of_leader = controller(leader).ok_or_else(|| PlacementError::LeaderOwnerMissing(name(leader).to_owned()))?;
    if of_follower.uid == of_leader.uid {
        return Ok(());
    }
    Err(PlacementError::OwnersDiffer { follower: of_follower.uid.clone(), leader: of_leader.uid.clone() })
}

/// True if the node selector of every follower among `pods` selects the domain of `leader`, which
/// is on `node`.
pub fn placements_match<'a>(
    leader: &Pod,
    pods: impl IntoIterator<Item = &'a Pod>,
    node: Option<&Node>,
) -> Result<bool, PlacementError> {
    let Some(topology) = annotation(leader, EXCLUSIVE_TOPOLOGY) else { return Ok(true) };
    let domain = domain_of(node.ok_or(PlacementError::TopologyUnknown)?, topology)?;
    Ok(pods.into_iter().filter(|pod| !is_leader(pod)).all(|pod| {
        let selector = pod.spec.as_ref().and_then(|spec| spec.node_selector.as_ref());
        selector.and_then(|selector| selector.get(topology)).is_some_and(|wanted| wanted == domain)
    }))
}

/// A follower to remove, and the conditions to write first, if they change.
#[derive(Clone, Debug, PartialEq)]
pub struct FollowerRemoval {
    /// The follower's position in the list of pods.
    pub position: usize,
    /// All conditions of the follower, including the condition with the reason of the removal;
    /// `None` if it already has that condition.
    pub conditions: Option<Vec<PodCondition>>,
}

/// The followers among `pods`. Each is marked as disrupted (so that its end does not count) and
/// removed.
pub fn follower_removals<'a>(pods: impl IntoIterator<Item = &'a Pod>, now: Timestamp) -> Vec<FollowerRemoval> {
    let followers = pods.into_iter().enumerate().filter(|(_, pod)| !is_leader(pod));
    followers.map(|(position, pod)| FollowerRemoval { position, conditions: disrupted(pod, now) }).collect()
}

fn disrupted(pod: &Pod, now: Timestamp) -> Option<Vec<PodCondition>> {
    let known = pod.status.as_ref().and_then(|status| status.conditions.clone());
    let mut conditions = known.unwrap_or_default();
    let wanted = PodCondition {
        type_: "DisruptionTarget".into(),
        status: "True".into(),
        reason: Some(EXCLUSIVE_PLACEMENT_VIOLATION.into()),
        message: Some("Pod violated JobSet exclusive placement policy".into()),
        last_transition_time: Some(stamp(now)),
        ..Default::default()
    };
    match conditions.iter_mut().find(|condition| condition.type_ == wanted.type_) {
        Some(known) if known.status == wanted.status => return None,
        Some(known) => *known = wanted,
        None => conditions.push(wanted),
    }
    Some(conditions)
}

/// Makes a leader choose a domain in which no other job of its priority has a pod.
fn claim_domain(pod: &mut Pod, topology: &str) {
    let key = label(pod, JOB_KEY).unwrap_or_default().to_owned();
    let priority = label(pod, PRIORITY).map(str::to_owned);
    let require = |key: &str, operator: &str, values: Option<Vec<String>>| LabelSelectorRequirement {
        key: key.to_owned(),
        operator: operator.to_owned(),
        values,
    };
    let term = |requirements: Vec<LabelSelectorRequirement>| PodAffinityTerm {
        label_selector: Some(LabelSelector { match_expressions: Some(requirements), match_labels: None }),
        topology_key: topology.to_owned(),
        // Jobs of all namespaces exclude each other.
        namespace_selector: Some(LabelSelector::default()),
        ..Default::default()
    };
    let mut others = vec![require(JOB_KEY, "Exists", None), require(JOB_KEY, "NotIn", Some(vec![key.clone()]))];
    others.extend(priority.map(|priority| require(PRIORITY, "In", Some(vec![priority]))));
    let affinity = pod.spec.get_or_insert_default().affinity.get_or_insert_default();
    let own: &mut PodAffinity = affinity.pod_affinity.get_or_insert_default();
    let own = own.required_during_scheduling_ignored_during_execution.get_or_insert_default();
    own.push(term(vec![require(JOB_KEY, "In", Some(vec![key]))]));
    let other: &mut PodAntiAffinity = affinity.pod_anti_affinity.get_or_insert_default();
    other.required_during_scheduling_ignored_during_execution.get_or_insert_default().push(term(others));
}

fn domain_of<'a>(node: &'a Node, topology: &str) -> Result<&'a str, PlacementError> {
    let labels: Option<&BTreeMap<String, String>> = node.metadata.labels.as_ref();
    let domain = labels.and_then(|labels| labels.get(topology));
    domain.map(String::as_str).ok_or_else(|| PlacementError::NodeLabelMissing(topology.to_owned()))
}

fn controller(pod: &Pod) -> Option<&OwnerReference> {
    pod.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn label<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.labels.as_ref()?.get(key).map(String::as_str)
}
