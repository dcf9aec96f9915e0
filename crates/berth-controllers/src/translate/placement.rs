//! Translates selectors, affinity, taints and tolerations.

use std::collections::BTreeMap;

use berth_engine::Name;
use berth_engine::model::{
    LabelSelector, Labels, NodeAffinity, Operator, PreferredTerm, Requirement, SelectorTerm, Taint, TaintEffect,
    Toleration,
};
use k8s_openapi::api::core::v1::{
    Affinity, NodeSelectorRequirement, NodeSelectorTerm, Taint as ApiTaint, Toleration as ApiToleration,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector as ApiSelector;

/// A name from a string.
pub fn name(text: &str) -> Name {
    Name::from(text)
}

/// A set of labels.
pub fn labels(map: Option<&BTreeMap<String, String>>) -> Labels {
    map.into_iter().flatten().map(|(key, value)| (name(key), name(value))).collect()
}

/// A label selector.
pub fn selector(selector: &ApiSelector) -> LabelSelector {
    let by_value = selector.match_labels.iter().flatten().map(|(key, value)| Requirement {
        key: name(key),
        operator: Operator::In,
        values: vec![name(value)],
    });
    let by_expression = selector.match_expressions.iter().flatten().map(|expression| Requirement {
        key: name(&expression.key),
        operator: operator(&expression.operator),
        values: expression.values.iter().flatten().map(|value| name(value)).collect(),
    });
    LabelSelector { requirements: by_value.chain(by_expression).collect() }
}

fn operator(text: &str) -> Operator {
    match text {
        "In" => Operator::In,
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        "Gt" => Operator::Gt,
        "Lt" => Operator::Lt,
        other => Operator::Unknown(name(other)),
    }
}

/// The node affinity of a pod.
pub fn node_affinity(affinity: Option<&Affinity>) -> NodeAffinity {
    let Some(node) = affinity.and_then(|affinity| affinity.node_affinity.as_ref()) else {
        return NodeAffinity::default();
    };
    let required = node.required_during_scheduling_ignored_during_execution.as_ref();
    let preferred = node.preferred_during_scheduling_ignored_during_execution.iter().flatten();
    NodeAffinity {
        required: required.map(|selector| selector.node_selector_terms.iter().map(term).collect()),
        preferred: preferred.map(|it| PreferredTerm { weight: it.weight, term: term(&it.preference) }).collect(),
    }
}

fn term(term: &NodeSelectorTerm) -> SelectorTerm {
    let requirements = |list: Option<&Vec<NodeSelectorRequirement>>| {
        let requirement = |it: &NodeSelectorRequirement| Requirement {
            key: name(&it.key),
            operator: operator(&it.operator),
            values: it.values.iter().flatten().map(|value| name(value)).collect(),
        };
        list.into_iter().flatten().map(requirement).collect()
    };
    SelectorTerm {
        expressions: requirements(term.match_expressions.as_ref()),
        fields: requirements(term.match_fields.as_ref()),
    }
}

fn effect(text: &str) -> Option<TaintEffect> {
    match text {
        "NoSchedule" => Some(TaintEffect::NoSchedule),
        "PreferNoSchedule" => Some(TaintEffect::PreferNoSchedule),
        "NoExecute" => Some(TaintEffect::NoExecute),
        _ => None,
    }
}

/// Taints; those with an unknown effect repel no pods and are omitted.
pub fn taints(list: &[ApiTaint]) -> Vec<Taint> {
    let taint = |it: &ApiTaint| {
        Some(Taint {
            key: name(&it.key),
            value: name(it.value.as_deref().unwrap_or_default()),
            effect: effect(&it.effect)?,
        })
    };
    list.iter().filter_map(taint).collect()
}

/// Tolerations.
pub fn tolerations(list: &[ApiToleration]) -> Vec<Toleration> {
    list.iter()
        .map(|it| Toleration {
            key: name(it.key.as_deref().unwrap_or_default()),
            exists: it.operator.as_deref() == Some("Exists"),
            value: name(it.value.as_deref().unwrap_or_default()),
            effect: it.effect.as_deref().and_then(effect),
        })
        .collect()
}
