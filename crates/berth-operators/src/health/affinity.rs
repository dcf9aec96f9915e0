//! The node affinity by which pods avoid unhealthy nodes.

use std::collections::BTreeMap;

use berth_api::json::Json;
use berth_api::kueue::labels::{MANAGED, POD_SET};
use k8s_openapi::api::core::v1::{
    Affinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, PreferredSchedulingTerm,
};
use serde_json::{Value, json};

use super::{NodeHealthConfiguration, TaintEffect, requested};

/// The affinity of a pod with the terms that avoid nodes whose labels take a requested resource
/// away. `None` if the pod needs no further term: it requests no such resource, injection is off,
/// or it has the terms already.
///
/// Labels of effect `NoSchedule` and `NoExecute` are excluded by every required term. Labels of
/// effect `PreferNoSchedule` become one preferred term.
pub fn affinity(spec: &PodSpec, configuration: &NodeHealthConfiguration) -> Option<Affinity> {
    if !configuration.inject_anti_affinities {
        return None;
    }
    let required = exclusions(spec, configuration, |effect| effect != TaintEffect::PreferNoSchedule);
    let preferred = exclusions(spec, configuration, |effect| effect == TaintEffect::PreferNoSchedule);
    let before = spec.affinity.clone().unwrap_or_default();
    let mut affinity = before.clone();
    let mut of_nodes = affinity.node_affinity.unwrap_or_default();
    if !required.is_empty() {
        let selector = of_nodes.required_during_scheduling_ignored_during_execution.get_or_insert_default();
        require(selector, &required);
    }
    if !preferred.is_empty() {
        let term = PreferredSchedulingTerm {
            weight: configuration.prefer_no_schedule_weight,
            preference: NodeSelectorTerm { match_expressions: Some(preferred), match_fields: None },
        };
        let terms = of_nodes.preferred_during_scheduling_ignored_during_execution.get_or_insert_default();
        if !terms.contains(&term) {
            terms.push(term);
        }
    }
    affinity.node_affinity = Some(of_nodes);
    let unchanged = before.node_affinity.is_none() && affinity.node_affinity == Some(Default::default());
    (!unchanged && affinity != before).then_some(affinity)
}

/// Adds the affinity to a new pod of a queued job, as an object of the API. Other pods stay
/// unchanged.
pub fn avoid_unhealthy_nodes(pod: &mut Value, configuration: &NodeHealthConfiguration) {
    let labels = &pod["metadata"]["labels"];
    if labels[POD_SET].is_null() && labels[MANAGED] != "true" {
        return;
    }
    // The API validates the spec. One that is no PodSpec is rejected there.
    let Ok(spec) = PodSpec::from_json_value(&pod["spec"]) else { return };
    if let Some(affinity) = affinity(&spec, configuration) {
        pod["spec"]["affinity"] = json!(affinity);
    }
}

/// Adds the affinity to a pod. Returns true if the pod changed.
pub fn inject(spec: &mut PodSpec, configuration: &NodeHealthConfiguration) -> bool {
    let Some(affinity) = affinity(spec, configuration) else { return false };
    spec.affinity = Some(affinity);
    true
}

/// Adds the expressions to every term. Terms are alternatives, so each of them needs all.
fn require(selector: &mut NodeSelector, expressions: &[NodeSelectorRequirement]) {
    if selector.node_selector_terms.is_empty() {
        selector.node_selector_terms.push(NodeSelectorTerm::default());
    }
    for term in &mut selector.node_selector_terms {
        let known = term.match_expressions.get_or_insert_default();
        let missing = expressions.iter().filter(|expression| !known.contains(expression));
        let missing: Vec<_> = missing.cloned().collect();
        known.extend(missing);
    }
}

/// One expression per label key, with the values of these effects.
fn exclusions(
    spec: &PodSpec,
    configuration: &NodeHealthConfiguration,
    has_effect: fn(TaintEffect) -> bool,
) -> Vec<NodeSelectorRequirement> {
    let resources = requested(spec);
    let mut values: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (_, labels) in configuration.resource_taints.iter().filter(|(name, _)| resources.contains(name.as_str())) {
        for label in labels.iter().filter(|label| has_effect(label.effect)) {
            let known = values.entry(&label.key).or_default();
            if !known.contains(&label.value) {
                known.push(label.value.clone());
            }
        }
    }
    let requirement = |(key, values): (&str, Vec<String>)| NodeSelectorRequirement {
        key: key.to_owned(),
        operator: "NotIn".to_owned(),
        values: Some(values),
    };
    values.into_iter().map(requirement).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(affinity: Value, limits: Value) -> PodSpec {
        let spec = json!({"affinity": affinity, "containers": [{"name": "a", "resources": {"limits": limits}}]});
        serde_json::from_value(spec).expect("a pod spec")
    }

    fn gpus(affinity: Value) -> PodSpec {
        pod(affinity, json!({"nvidia.com/gpu": "4"}))
    }

    #[track_caller]
    fn check(mut spec: PodSpec, configuration: &NodeHealthConfiguration, expected: Value) {
        let changed = inject(&mut spec, configuration);
        let expected = serde_json::from_value::<Option<Affinity>>(expected).expect("an affinity");
        assert_eq!(spec.affinity, expected);
        assert!(!inject(&mut spec, configuration), "a second injection changes nothing");
        assert_eq!(spec.affinity, expected);
        assert_eq!(changed, expected.is_some_and(|it| it.node_affinity.is_some()));
    }

    fn excluded() -> Value {
        json!({"key": "autopilot.ibm.com/gpuhealth", "operator": "NotIn", "values": ["ERR", "TESTING", "EVICT"]})
    }

    fn preferred() -> Value {
        json!({"weight": 50, "preference": {"matchExpressions": [
            {"key": "autopilot.ibm.com/gpuhealth", "operator": "NotIn", "values": ["WARN"]}]}})
    }

    #[test]
    fn a_pod_with_gpus_avoids_unhealthy_nodes() {
        let expected = json!({"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchExpressions": [excluded()]}]},
            "preferredDuringSchedulingIgnoredDuringExecution": [preferred()]}});
        check(gpus(Value::Null), &NodeHealthConfiguration::default(), expected);
    }

    #[test]
    fn every_alternative_of_the_user_gets_the_exclusion() {
        let zone = |value: &str| json!({"key": "zone", "operator": "In", "values": [value]});
        let given = json!({"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [zone("a")]}, {"matchFields": [zone("b")]}]},
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}});
        let expected = json!({"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [zone("a"), excluded()]},
                {"matchFields": [zone("b")], "matchExpressions": [excluded()]}]},
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}, preferred()]}});
        check(gpus(given), &NodeHealthConfiguration::default(), expected);
    }

    #[test]
    fn pods_without_the_resource_and_other_affinities_stay_unchanged() {
        let configuration = NodeHealthConfiguration::default();
        check(pod(Value::Null, json!({"cpu": "1"})), &configuration, Value::Null);
        let off = NodeHealthConfiguration { inject_anti_affinities: false, ..configuration };
        check(gpus(Value::Null), &off, Value::Null);
    }

    #[test]
    fn only_pods_of_queued_jobs_avoid_unhealthy_nodes() {
        let avoids = |labels: Value| {
            let mut pod = json!({"metadata": {"labels": labels}, "spec": gpus(Value::Null)});
            avoid_unhealthy_nodes(&mut pod, &NodeHealthConfiguration::default());
            pod["spec"]["affinity"].is_object()
        };
        assert!(avoids(json!({"kueue.x-k8s.io/podset": "main"})));
        assert!(avoids(json!({"kueue.x-k8s.io/managed": "true"})));
        assert!(!avoids(json!({"kueue.x-k8s.io/managed": "false"})) && !avoids(Value::Null));
        let mut unreadable = json!({"metadata": {"labels": {"kueue.x-k8s.io/podset": "main"}}, "spec": "none"});
        let before = unreadable.clone();
        avoid_unhealthy_nodes(&mut unreadable, &NodeHealthConfiguration::default());
        assert_eq!(unreadable, before);
    }

    #[test]
    fn labels_of_several_resources_are_grouped_by_key() {
        let configuration: NodeHealthConfiguration = serde_json::from_value(json!({"resourceTaints": {
            "example.com/a": [{"key": "k", "value": "1", "effect": "NoSchedule"}],
            "example.com/b": [{"key": "k", "value": "2", "effect": "NoExecute"},
                              {"key": "j", "value": "3", "effect": "NoExecute"}],
            "example.com/c": [{"key": "l", "value": "4", "effect": "NoExecute"}]}}))
        .expect("valid");
        let expected = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "j", "operator": "NotIn", "values": ["3"]},
                {"key": "k", "operator": "NotIn", "values": ["1", "2"]}]}]}}});
        let both = pod(Value::Null, json!({"example.com/a": "1", "example.com/b": "1"}));
        check(both, &configuration, expected);
    }
}
