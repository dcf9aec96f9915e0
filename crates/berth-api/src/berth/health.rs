//! Configuration of the reaction to unhealthy nodes: which labels, taints and conditions of a node
//! take resources away, and with which effect.
//!
//! The fields that AppWrapper's configuration file has too (`appwrapper.autopilot`) have its names
//! and defaults. The crate berth-operators evaluates them.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::configuration::strict;
use super::problem::join;
use super::{ConfigurationError, Problem, TaintEffect};

/// Label that a health agent (Autopilot) sets on a node with GPUs.
pub const GPU_HEALTH_LABEL: &str = "autopilot.ibm.com/gpuhealth";
/// Label with the result and time of the last diagnostics of level 3 by DCGM.
pub const DCGM_LEVEL_3_LABEL: &str = "autopilot.ibm.com/dcgm.level.3";
/// Annotation with the failed tests of these diagnostics and their GPUs.
pub const DCGM_LEVEL_3_OUTPUT_ANNOTATION: &str = "autopilot.ibm.com/dcgm.level.3.output";
/// Default weight of the preference for healthy nodes.
const WEIGHT_DEFAULT: i32 = 50;

/// Reaction to unhealthy nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeHealthConfiguration {
    /// True if pods that request a resource of `resourceTaints` get a node affinity that avoids
    /// nodes with these labels.
    pub inject_anti_affinities: bool,
    /// True if nodes are monitored: running pods leave nodes by the effect `NoExecute`, and the
    /// slack queue follows the amounts that unhealthy nodes take away.
    pub monitor_nodes: bool,
    /// Labels by resource: a node with such a label offers none of the resource. The written
    /// entries replace or extend the defaults, resource by resource; an empty list removes a
    /// default.
    #[serde(deserialize_with = "over_defaults")]
    pub resource_taints: BTreeMap<String, Vec<ResourceTaint>>,
    /// Weight of the preference for nodes without a label of effect `PreferNoSchedule`, 1 to 100.
    pub prefer_no_schedule_weight: i32,
    /// States of a node that take all its resources away.
    pub whole_node: WholeNodeConfiguration,
}

impl Default for NodeHealthConfiguration {
    /// The labels of AppWrapper 1.2, and `ERR` of AppWrapper 0.30.
    fn default() -> Self {
        let label = |value: &str, effect| ResourceTaint { key: GPU_HEALTH_LABEL.into(), value: value.into(), effect };
        let labels = vec![
            label("WARN", TaintEffect::PreferNoSchedule),
            label("ERR", TaintEffect::NoSchedule),
            label("TESTING", TaintEffect::NoSchedule),
            label("EVICT", TaintEffect::NoExecute),
        ];
        Self {
            inject_anti_affinities: true,
            monitor_nodes: true,
            resource_taints: BTreeMap::from([("nvidia.com/gpu".to_owned(), labels)]),
            prefer_no_schedule_weight: WEIGHT_DEFAULT,
            whole_node: WholeNodeConfiguration::default(),
        }
    }
}

/// The written labels, and the defaults of the other resources.
fn over_defaults<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Vec<ResourceTaint>>, D::Error> {
    let mut taints = NodeHealthConfiguration::default().resource_taints;
    taints.extend(BTreeMap::<String, Vec<ResourceTaint>>::deserialize(deserializer)?);
    Ok(taints)
}

/// A label of a node that acts like a taint, for one resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceTaint {
    /// Label key.
    pub key: String,
    /// Label value.
    #[serde(default)]
    pub value: String,
    /// Effect on pods that request the resource.
    pub effect: TaintEffect,
}

/// States of a node that take all its resources away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WholeNodeConfiguration {
    /// The node is cordoned.
    pub cordoned: NodeEffect,
    /// The node has the taint `node.kubernetes.io/not-ready`.
    pub not_ready: NodeEffect,
    /// The node has the taint `node.kubernetes.io/unreachable`.
    pub unreachable: NodeEffect,
    /// Further taints.
    pub taints: Vec<WholeNodeTaint>,
}

impl Default for WholeNodeConfiguration {
    fn default() -> Self {
        let effect = NodeEffect::NoSchedule;
        Self { cordoned: effect, not_ready: effect, unreachable: effect, taints: Vec::new() }
    }
}

/// A taint that takes all resources of a node away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WholeNodeTaint {
    /// Key of the taint.
    pub key: String,
    /// Value of the taint. Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Effect on managed pods.
    pub effect: NodeEffect,
}

/// What a state of a node means for managed pods. Kubernetes' own reaction to taints is independent
/// of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum NodeEffect {
    /// Nothing.
    Ignore,
    /// The node's capacity counts as lost.
    #[default]
    NoSchedule,
    /// The node's capacity counts as lost, and running pods leave it.
    NoExecute,
}

impl NodeHealthConfiguration {
    /// Reads a configuration from the value of a file.
    ///
    /// # Errors
    /// A field is unknown or has a wrong value; all problems are listed.
    pub fn from_value(value: Value) -> Result<Self, ConfigurationError> {
        let mut problems = Vec::new();
        let read: Option<Self> = strict(value, "", &mut problems);
        problems.extend(read.iter().flat_map(|read| read.problems("")));
        read.filter(|_| problems.is_empty()).ok_or(ConfigurationError { problems })
    }

    /// Problems of the values; `path` is the path of this object.
    pub fn problems(&self, path: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        if !(1..=100).contains(&self.prefer_no_schedule_weight) {
            let message = format!("{} is outside 1 to 100", self.prefer_no_schedule_weight);
            problems.push(Problem::new(join(path, "preferNoScheduleWeight"), message));
        }
        for (resource, labels) in &self.resource_taints {
            for (i, label) in labels.iter().enumerate() {
                if label.key.is_empty() {
                    let field = format!("resourceTaints[{resource}][{i}].key");
                    problems.push(Problem::new(join(path, &field), "required: the key of a node label"));
                }
            }
        }
        for (i, taint) in self.whole_node.taints.iter().enumerate() {
            if taint.key.is_empty() {
                let field = format!("wholeNode.taints[{i}].key");
                problems.push(Problem::new(join(path, &field), "required: the key of a node taint"));
            }
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_fields_of_appwrappers_configuration_are_read() {
        let value = json!({
            "injectAntiAffinities": false,
            "resourceTaints": { "example.com/fpga": [{ "key": "fpga", "value": "bad", "effect": "NoExecute" }] },
        });
        let read: NodeHealthConfiguration = serde_json::from_value(value).expect("valid");
        assert!(!read.inject_anti_affinities && read.monitor_nodes);
        assert_eq!(read.resource_taints["example.com/fpga"][0].effect, TaintEffect::NoExecute);
        assert_eq!(read.problems("autopilot"), []);
    }

    #[test]
    fn an_unknown_field_of_a_file_is_reported() {
        let value = json!({"wholeNode": {"cordoned": "NoExecute", "notReady": "Sometimes"}, "extra": 1});
        let error = NodeHealthConfiguration::from_value(value).expect_err("invalid").to_string();
        assert!(error.contains("extra: unknown field") && error.contains("wholeNode.notReady: "), "{error}");
        let value = json!({"wholeNode": {"cordoned": "NoExecute"}});
        let read = NodeHealthConfiguration::from_value(value).expect("valid");
        assert_eq!(read.whole_node.cordoned, NodeEffect::NoExecute);
    }

    #[test]
    fn bad_values_are_reported_with_their_fields() {
        let value = json!({
            "preferNoScheduleWeight": 0,
            "resourceTaints": { "nvidia.com/gpu": [{ "key": "", "effect": "NoSchedule" }] },
            "wholeNode": { "taints": [{ "key": "", "effect": "NoExecute" }] },
        });
        let read: NodeHealthConfiguration = serde_json::from_value(value).expect("readable");
        let problems: Vec<String> = read.problems("nodeHealth").iter().map(ToString::to_string).collect();
        assert_eq!(
            problems,
            [
                "nodeHealth.preferNoScheduleWeight: 0 is outside 1 to 100",
                "nodeHealth.resourceTaints[nvidia.com/gpu][0].key: required: the key of a node label",
                "nodeHealth.wholeNode.taints[0].key: required: the key of a node taint",
            ]
        );
    }
}
