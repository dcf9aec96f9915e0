//! Matches selectors with labels, and tolerations with taints.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::PodInfo;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// True if a label selector matches. An absent selector matches nothing, an empty one everything.
/// Requirements that the API server would reject match nothing.
pub fn matches_label_selector(selector: Option<&LabelSelector>, labels: &Labels) -> bool {
    let Some(selector) = selector else { return false };
    let equal = selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    equal
        && selector.match_expressions.iter().flatten().all(|requirement| {
            let value = labels.get(&requirement.key);
            let listed = || value.is_some_and(|value| requirement.values.iter().flatten().any(|v| v == value));
            match requirement.operator.as_str() {
                "In" => listed(),
                "NotIn" => !listed(),
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}

/// True if a node with these labels and this name satisfies the pod's nodeSelector and required
/// node affinity.
pub fn matches_node_affinity(pod: &PodInfo, name: &str, labels: &Labels) -> bool {
    pod.node_selector().all(|(key, value)| labels.get(key).is_some_and(|have| have == value))
        && pod.required_nodes().is_none_or(|required| matches_node_selector(required, name, labels))
}

/// True if a node satisfies a node selector, that is, one of its terms.
pub fn matches_node_selector(selector: &NodeSelector, name: &str, labels: &Labels) -> bool {
    selector.node_selector_terms.iter().any(|term| matches_term(term, name, labels))
}

/// True if a node satisfies one term of a node selector. An empty term matches nothing.
pub fn matches_term(term: &NodeSelectorTerm, name: &str, labels: &Labels) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    expressions.iter().all(|requirement| matches_requirement(requirement, labels.get(&requirement.key)))
        && fields.iter().all(|requirement| {
            requirement.key == "metadata.name" && matches_requirement(requirement, Some(&name.to_owned()))
        })
}

fn matches_requirement(requirement: &NodeSelectorRequirement, value: Option<&String>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let compare = |wanted: fn(&i64, &i64) -> bool| {
        let have = value.and_then(|value| value.parse::<i64>().ok());
        let bound = values.first().and_then(|value| value.parse::<i64>().ok());
        matches!((have, bound), (Some(have), Some(bound)) if wanted(&have, &bound))
    };
    match requirement.operator.as_str() {
        "In" => value.is_some_and(|value| values.contains(value)),
        "NotIn" => !value.is_some_and(|value| values.contains(value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(i64::gt),
        "Lt" => compare(i64::lt),
        _ => false,
    }
}

/// True if this toleration tolerates this taint.
///
/// Source: Kubernetes' "Taints and tolerations": an empty key with `Exists` tolerates everything,
/// an empty effect every effect.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    if !effect.is_empty() && effect != taint.effect {
        return false;
    }
    let key = toleration.key.as_deref().unwrap_or_default();
    if !key.is_empty() && key != taint.key {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or("Equal") {
        "Exists" => true,
        "Equal" | "" => {
            !key.is_empty()
                && toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
        }
        _ => false,
    }
}

/// The first taint that these tolerations do not tolerate.
pub fn untolerated<'a>(tolerations: &[Toleration], taints: &'a [Taint]) -> Option<&'a Taint> {
    taints
        .iter()
        .filter(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"))
        .find(|taint| !tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}

/// Number of `PreferNoSchedule` taints that the tolerations do not tolerate.
pub(super) fn unpreferred(tolerations: &[Toleration], taints: &[Taint]) -> usize {
    taints
        .iter()
        .filter(|taint| taint.effect == "PreferNoSchedule")
        .filter(|taint| !tolerations.iter().any(|toleration| tolerates(toleration, taint)))
        .count()
}
