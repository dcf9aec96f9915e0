//! The health of one node, and the amounts that all nodes lack.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_apimachinery::quantity::Quantity;
use berth_apimachinery::well_known::{NOT_READY, UNREACHABLE, UNSCHEDULABLE};
use k8s_openapi::api::core::v1::{Node, PodSpec};
use kube::ResourceExt;

use super::{NodeEffect, NodeHealthConfiguration, TaintEffect, requested};

/// Amounts by resource name.
pub type Amounts = BTreeMap<String, Quantity>;

/// Number of pods that a node can run. Health does not take it away.
const PODS: &str = "pods";

/// What health takes away from a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeHealth {
    /// Resources that running pods must leave, each with the reason.
    pub no_execute: BTreeMap<String, String>,
    /// The reason why all running pods must leave the node.
    pub no_execute_any: Option<String>,
    /// Amounts that are not available to new pods. Amounts of zero are absent.
    pub no_schedule: Amounts,
    /// Reasons for these amounts, such as `cordoned`.
    pub reasons: Vec<String>,
}

impl NodeHealth {
    /// The health of a node by a configuration.
    pub fn of(node: &Node, configuration: &NodeHealthConfiguration) -> Self {
        let mut health = Self::default();
        let whole = whole_node(node, configuration);
        let (mut tainted, mut reasons) = (Vec::new(), Vec::new());
        for (resource, labels) in &configuration.resource_taints {
            for label in labels.iter().filter(|label| node.labels().get(&label.key) == Some(&label.value)) {
                let reason = format!("label {}={}", label.key, label.value);
                match label.effect {
                    TaintEffect::PreferNoSchedule => continue,
                    TaintEffect::NoSchedule => {}
                    TaintEffect::NoExecute => {
                        health.no_execute.insert(resource.clone(), reason.clone());
                    }
                }
                tainted.push(resource.as_str());
                if !reasons.contains(&reason) {
                    reasons.push(reason);
                }
            }
        }
        let capacity = capacity(node);
        if whole.is_empty() {
            let is_tainted = |resource: &str| tainted.contains(&resource);
            health.no_schedule = capacity.into_iter().filter(|(resource, _)| is_tainted(resource)).collect();
        } else {
            health.no_schedule = capacity.into_iter().filter(|(resource, _)| resource != PODS).collect();
        }
        health.no_schedule.retain(|_, amount| !amount.is_zero());
        let evicting = whole.iter().find(|(effect, _)| *effect == NodeEffect::NoExecute);
        health.no_execute_any = evicting.map(|(_, reason)| reason.clone());
        health.reasons = whole.into_iter().map(|(_, reason)| reason).chain(reasons).collect();
        health
    }

    /// True if health takes nothing away.
    pub fn is_healthy(&self) -> bool {
        *self == Self::default()
    }

    /// The reason why a running pod must leave the node; `None` if it may stay.
    pub fn evicts(&self, pod: &PodSpec) -> Option<String> {
        if let Some(reason) = &self.no_execute_any {
            return Some(reason.clone());
        }
        let resources = requested(pod);
        let hit = self.no_execute.iter().find(|(resource, _)| resources.contains(resource.as_str()));
        hit.map(|(resource, reason)| format!("{resource}: {reason}"))
    }
}

/// The states of a node that take all its resources away: effect and reason of each.
fn whole_node(node: &Node, configuration: &NodeHealthConfiguration) -> Vec<(NodeEffect, String)> {
    let configuration = &configuration.whole_node;
    let spec = node.spec.as_ref();
    let taints = spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let is_cordoned = spec.is_some_and(|spec| spec.unschedulable == Some(true));
    let has = |key: &str| taints.iter().any(|taint| taint.key == key);
    let mut found = Vec::new();
    if is_cordoned || has(UNSCHEDULABLE) {
        found.push((configuration.cordoned, "cordoned".to_owned()));
    }
    if has(NOT_READY) {
        found.push((configuration.not_ready, "not ready".to_owned()));
    }
    if has(UNREACHABLE) {
        found.push((configuration.unreachable, "unreachable".to_owned()));
    }
    for rule in &configuration.taints {
        let matches = |taint: &&k8s_openapi::api::core::v1::Taint| {
            taint.key == rule.key
                && rule.value.as_ref().is_none_or(|value| taint.value.as_deref().unwrap_or_default() == value)
        };
        if let Some(taint) = taints.iter().find(matches) {
            let value = taint.value.as_deref().map(|value| format!("={value}")).unwrap_or_default();
            found.push((rule.effect, format!("taint {}{value}", taint.key)));
        }
    }
    found.retain(|(effect, _)| *effect != NodeEffect::Ignore);
    found
}

/// Capacity of a node. Amounts that cannot be read are absent.
pub fn capacity(node: &Node) -> Amounts {
    let capacity = node.status.iter().filter_map(|status| status.capacity.as_ref()).flatten();
    capacity.filter_map(|(resource, amount)| Some((resource.clone(), Quantity::parse(&amount.0).ok()?))).collect()
}

/// The health of all nodes that health takes anything away from, by name.
pub fn by_node(nodes: &[Arc<Node>], configuration: &NodeHealthConfiguration) -> BTreeMap<String, NodeHealth> {
    let health = nodes.iter().map(|node| (node.name_any(), NodeHealth::of(node, configuration)));
    health.filter(|(_, health)| !health.is_healthy()).collect()
}

/// Sum of the amounts that these nodes lack, by resource.
pub fn unschedulable<'a>(nodes: impl IntoIterator<Item = &'a NodeHealth>) -> Amounts {
    let mut sum = Amounts::new();
    for (resource, amount) in nodes.into_iter().flat_map(|health| &health.no_schedule) {
        sum.entry(resource.clone()).and_modify(|known| known.add(*amount)).or_insert(*amount);
    }
    sum
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(change: impl FnOnce(&mut Value)) -> Node {
        let mut node = json!({
            "metadata": {"name": "n", "labels": {}}, "spec": {},
            "status": {"capacity": {"cpu": "224", "memory": "2113411288Ki", "nvidia.com/gpu": "8", "pods": "250",
                "hugepages-2Mi": "0"}},
        });
        change(&mut node);
        serde_json::from_value(node).expect("a node")
    }

    fn labelled(value: &str) -> Node {
        node(|node| node["metadata"]["labels"]["autopilot.ibm.com/gpuhealth"] = json!(value))
    }

    fn tainted(key: &str) -> Node {
        node(|node| node["spec"]["taints"] = json!([{"key": key, "value": "x", "effect": "NoExecute"}]))
    }

    /// Checks the amounts that health takes away, and the resources that pods must leave.
    #[track_caller]
    fn check(node: &Node, configuration: &NodeHealthConfiguration, lost: &[(&str, &str)], left: &[&str]) {
        let health = NodeHealth::of(node, configuration);
        let amounts: Vec<(&str, String)> =
            health.no_schedule.iter().map(|(resource, amount)| (resource.as_str(), amount.to_string())).collect();
        let amounts: Vec<(&str, &str)> =
            amounts.iter().map(|(resource, amount)| (*resource, amount.as_str())).collect();
        assert_eq!(amounts, lost);
        assert_eq!(health.no_execute.keys().collect::<Vec<_>>(), left);
    }

    const WHOLE: [(&str, &str); 3] = [("cpu", "224"), ("memory", "2113411288Ki"), ("nvidia.com/gpu", "8")];
    const GPUS: [(&str, &str); 1] = [("nvidia.com/gpu", "8")];

    #[test]
    fn a_label_takes_its_resource_away_and_evict_moves_running_pods() {
        let configuration = NodeHealthConfiguration::default();
        for value in ["", "PASS", "WARN", "unknown"] {
            check(&labelled(value), &configuration, &[], &[]);
        }
        check(&node(|_| {}), &configuration, &[], &[]);
        check(&labelled("TESTING"), &configuration, &GPUS, &[]);
        check(&labelled("ERR"), &configuration, &GPUS, &[]);
        check(&labelled("EVICT"), &configuration, &GPUS, &["nvidia.com/gpu"]);
    }

    #[test]
    fn a_cordon_and_a_missing_report_take_the_whole_capacity_without_pods() {
        let configuration = NodeHealthConfiguration::default();
        check(&node(|node| node["spec"]["unschedulable"] = json!(true)), &configuration, &WHOLE, &[]);
        check(&tainted("node.kubernetes.io/not-ready"), &configuration, &WHOLE, &[]);
        check(&tainted("node.kubernetes.io/unreachable"), &configuration, &WHOLE, &[]);
        check(&tainted("example.com/other"), &configuration, &[], &[]);
    }

    #[test]
    fn a_cordoned_node_with_a_label_counts_once() {
        let both = node(|node| {
            node["spec"]["unschedulable"] = json!(true);
            node["metadata"]["labels"]["autopilot.ibm.com/gpuhealth"] = json!("EVICT");
        });
        check(&both, &NodeHealthConfiguration::default(), &WHOLE, &["nvidia.com/gpu"]);
        let health = NodeHealth::of(&both, &NodeHealthConfiguration::default());
        assert_eq!(health.reasons, ["cordoned", "label autopilot.ibm.com/gpuhealth=EVICT"]);
    }

    #[test]
    fn states_of_a_node_have_the_configured_effect() {
        let configuration: NodeHealthConfiguration = serde_json::from_value(json!({"wholeNode": {
            "cordoned": "Ignore", "unreachable": "NoExecute",
            "taints": [{"key": "example.com/repair", "effect": "NoExecute"},
                       {"key": "example.com/other", "value": "y", "effect": "NoExecute"}]}}))
        .expect("valid");
        check(&node(|node| node["spec"]["unschedulable"] = json!(true)), &configuration, &[], &[]);
        check(&tainted("example.com/other"), &configuration, &[], &[]);
        let cpu_only: PodSpec =
            serde_json::from_value(json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}]}))
                .expect("a pod spec");
        let why = |node: &Node| NodeHealth::of(node, &configuration).evicts(&cpu_only);
        assert_eq!(why(&tainted("node.kubernetes.io/unreachable")), Some("unreachable".into()));
        assert_eq!(why(&tainted("node.kubernetes.io/not-ready")), None);
        assert_eq!(why(&tainted("example.com/repair")), Some("taint example.com/repair=x".into()));
    }

    #[test]
    fn only_pods_that_request_the_resource_leave() {
        let health = NodeHealth::of(&labelled("EVICT"), &NodeHealthConfiguration::default());
        let pod = |limits: Value| -> PodSpec {
            serde_json::from_value(json!({"containers": [{"name": "a", "resources": {"limits": limits}}]}))
                .expect("a pod spec")
        };
        let expected = "nvidia.com/gpu: label autopilot.ibm.com/gpuhealth=EVICT";
        assert_eq!(health.evicts(&pod(json!({"nvidia.com/gpu": "1"}))).as_deref(), Some(expected));
        assert_eq!(health.evicts(&pod(json!({"cpu": "1"}))), None);
        assert_eq!(health.evicts(&pod(json!({"nvidia.com/gpu": "0"}))), None);
    }

    #[test]
    fn amounts_of_several_nodes_are_added() {
        let nodes = [Arc::new(labelled("EVICT")), Arc::new(labelled("PASS")), Arc::new(labelled("TESTING"))];
        let health = by_node(&nodes, &NodeHealthConfiguration::default());
        assert_eq!(health.len(), 1, "nodes of one name are one node");
        let lost: Vec<NodeHealth> =
            nodes.iter().map(|node| NodeHealth::of(node, &NodeHealthConfiguration::default())).collect();
        assert_eq!(unschedulable(&lost)["nvidia.com/gpu"].to_string(), "16");
    }
}
