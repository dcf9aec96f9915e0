//! The pods of a DaemonSet: the nodes on which they belong, and their binding to these nodes.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{
    Affinity, Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, Taint, Toleration,
};
use kube::ResourceExt;

use super::super::pod_of;
use crate::placement::{PodInfo, matches_node_affinity, untolerated};

/// Label with the hash of the template that a pod was created from.
pub const HASH: &str = "controller-revision-hash";
/// Label with the number of the template, in addition to the hash.
const TEMPLATE_GENERATION_LABEL: &str = "pod-template-generation";
/// Annotation of a DaemonSet with that number, which the API server updates.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";
/// Field of a node by which a daemon pod names its node.
const NODE_NAME_FIELD: &str = "metadata.name";

/// Whether a node's daemon pod is created, and whether an existing one may stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eligibility {
    /// True if a pod belongs on the node.
    pub should_run: bool,
    /// True if an existing pod may stay: the node fits, and has no untolerated `NoExecute` taint.
    pub may_stay: bool,
}

/// The DaemonSet's pod without a node, to test nodes with.
pub fn sample(set: &DaemonSet) -> PodInfo {
    let mut pod = pod_of(set, &set.spec.clone().unwrap_or_default().template);
    tolerate_node_conditions(&mut pod);
    PodInfo::new(Arc::new(pod))
}

/// Eligibility of a node for the pod [`sample`]. Free resources do not matter: a pod that does not
/// fit waits for its node.
pub fn eligibility(sample: &PodInfo, node: &Node) -> Eligibility {
    let (name, taints) = (node.name_any(), node.spec.as_ref().and_then(|spec| spec.taints.as_deref()));
    let fits =
        sample.node_name().is_none_or(|wanted| wanted == name) && matches_node_affinity(sample, &name, node.labels());
    let taints = taints.unwrap_or_default();
    let evicting: Vec<Taint> = taints.iter().filter(|taint| taint.effect == "NoExecute").cloned().collect();
    Eligibility {
        should_run: fits && untolerated(sample.tolerations(), taints).is_none(),
        may_stay: fits && untolerated(sample.tolerations(), &evicting).is_none(),
    }
}

/// The pod of a node. The scheduler can only bind it to this node.
pub fn pod_for(set: &DaemonSet, node: &str, hash: &str) -> Pod {
    let mut pod = pod_of(set, &set.spec.clone().unwrap_or_default().template);
    pod.metadata.generate_name = Some(format!("{}-", set.name_any()));
    pod.labels_mut().insert(HASH.to_owned(), hash.to_owned());
    if let Some(generation) = set.annotations().get(TEMPLATE_GENERATION) {
        pod.labels_mut().insert(TEMPLATE_GENERATION_LABEL.to_owned(), generation.clone());
    }
    tolerate_node_conditions(&mut pod);
    let requirement = NodeSelectorRequirement {
        key: NODE_NAME_FIELD.to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![requirement]), match_expressions: None };
    let affinity: &mut Affinity = pod.spec.get_or_insert_default().affinity.get_or_insert_default();
    // The set's own required terms were tested by `eligibility`.
    affinity.node_affinity.get_or_insert_default().required_during_scheduling_ignored_during_execution =
        Some(NodeSelector { node_selector_terms: vec![term] });
    pod
}

/// The node that a daemon pod runs on or is meant for.
pub fn target_node(pod: &Pod) -> Option<&str> {
    let spec = pod.spec.as_ref()?;
    if let Some(node) = spec.node_name.as_deref().filter(|node| !node.is_empty()) {
        return Some(node);
    }
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
    let fields = required.node_selector_terms.iter().filter_map(|term| term.match_fields.as_deref()).flatten();
    let mut names = fields.filter(|field| field.key == NODE_NAME_FIELD && field.operator == "In");
    names.find_map(|field| field.values.as_ref()?.first().map(String::as_str))
}

/// Adds the tolerations of daemon pods: they run on nodes that are cordoned, unreachable or short
/// of something.
///
/// Source: Kubernetes documentation, "DaemonSet: Taints and tolerations".
fn tolerate_node_conditions(pod: &mut Pod) {
    let spec = pod.spec.get_or_insert_default();
    let network = spec.host_network == Some(true);
    let known = [
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    ];
    let tolerations = spec.tolerations.get_or_insert_default();
    for (condition, effect) in known.into_iter().chain(network.then_some(("network-unavailable", "NoSchedule"))) {
        let toleration = Toleration {
            key: Some(format!("node.kubernetes.io/{condition}")),
            operator: Some("Exists".to_owned()),
            effect: Some(effect.to_owned()),
            ..Toleration::default()
        };
        if !tolerations.contains(&toleration) {
            tolerations.push(toleration);
        }
    }
}
