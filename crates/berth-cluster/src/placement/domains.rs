//! Rules between pods: (anti-)affinity and topology spread, counted over topology domains.
//!
//! The evaluation takes time only if the pod has such rules, or if pods with anti-affinity already
//! run.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::PodAffinityTerm;

use super::matching::{Labels, matches_label_selector, matches_node_affinity, untolerated};
use super::{Cluster, NodeState, PodInfo, Unfit};

/// The rules of one pod, evaluated once for a cluster and then checked for each node.
pub(super) struct Domains<'a> {
    pod: &'a PodInfo,
    /// Per required affinity term: topology values with a matching pod; `None` if the pod may be
    /// the first of its group.
    affinity: Vec<(&'a str, Option<BTreeSet<String>>)>,
    /// Topology key and value pairs that the pod's own anti-affinity forbids.
    forbidden: BTreeSet<(String, String)>,
    /// Pairs that the anti-affinity of other pods forbids.
    forbidden_by_others: BTreeSet<(String, String)>,
    spread: Vec<Spread<'a>>,
    /// True if another pod uses a claim that only one pod may use.
    is_claim_in_use: bool,
}

struct Spread<'a> {
    key: &'a str,
    max_skew: i64,
    own: i64,
    counts: BTreeMap<String, i64>,
    minimum: i64,
}

impl<'a> Domains<'a> {
    /// Evaluates the rules. Pods in `gone` are ignored, for preemption.
    pub(super) fn new(pod: &'a PodInfo, cluster: &Cluster, gone: &BTreeSet<&berth_runtime::ObjectKey>) -> Self {
        let mut forbidden_by_others = BTreeSet::new();
        for (node, other) in cluster.exclusive_pods().filter(|(_, other)| !gone.contains(&other.key)) {
            for term in other.required_anti_affinity() {
                if term_selects(term, other, pod, cluster)
                    && let Some(value) = node.labels().get(&term.topology_key)
                {
                    forbidden_by_others.insert((term.topology_key.clone(), value.clone()));
                }
            }
        }
        let mut affinity = Vec::new();
        let mut forbidden = BTreeSet::new();
        let mut spread = Vec::new();
        if pod.depends_on_pods() {
            for term in pod.required_affinity() {
                let values = values_with(term, pod, cluster, gone);
                // The first pod of a group with affinity to itself may run on any node with the
                // label.
                let founds = values.is_empty() && term_selects(term, pod, pod, cluster);
                affinity.push((term.topology_key.as_str(), (!founds).then_some(values)));
            }
            for term in pod.required_anti_affinity() {
                let values = values_with(term, pod, cluster, gone);
                forbidden.extend(values.into_iter().map(|value| (term.topology_key.clone(), value)));
            }
            spread = spreads(pod, cluster, gone);
        }
        let exclusive = &pod.volumes().exclusive;
        let is_claim_in_use = !exclusive.is_empty()
            && cluster.placed().any(|other| {
                other.key != pod.key
                    && !gone.contains(&other.key)
                    && other.claims().any(|claim| exclusive.contains(&claim))
            });
        Self { pod, affinity, forbidden, forbidden_by_others, spread, is_claim_in_use }
    }

    /// Checks if the node satisfies the rules.
    pub(super) fn check(&self, node: &NodeState) -> Result<(), Unfit> {
        if self.is_claim_in_use {
            return Err(Unfit::ClaimInUse);
        }
        let labels = node.labels();
        for spread in &self.spread {
            let Some(value) = labels.get(spread.key) else { return Err(Unfit::SpreadLabel) };
            let count = spread.counts.get(value).copied().unwrap_or(0);
            if count + spread.own - spread.minimum > spread.max_skew {
                return Err(Unfit::Spread);
            }
        }
        if self.pod.depends_on_pods() {
            for (key, values) in &self.affinity {
                let stands_with =
                    labels.get(*key).is_some_and(|value| values.as_ref().is_none_or(|v| v.contains(value)));
                if !stands_with {
                    return Err(Unfit::PodAffinity);
                }
            }
            if hits(&self.forbidden, labels) {
                return Err(Unfit::PodAntiAffinity);
            }
        }
        if hits(&self.forbidden_by_others, labels) {
            return Err(Unfit::ExistingAntiAffinity);
        }
        Ok(())
    }
}

fn hits(pairs: &BTreeSet<(String, String)>, labels: &Labels) -> bool {
    pairs.iter().any(|(key, value)| labels.get(key) == Some(value))
}

/// True if `term` of the pod `owner` selects `other`.
fn term_selects(term: &PodAffinityTerm, owner: &PodInfo, other: &PodInfo, cluster: &Cluster) -> bool {
    let listed = term.namespaces.as_deref().unwrap_or_default();
    let in_namespace = match &term.namespace_selector {
        None if listed.is_empty() => other.key.namespace == owner.key.namespace,
        None => listed.contains(&other.key.namespace),
        Some(selector) => {
            listed.contains(&other.key.namespace)
                || cluster
                    .namespace_labels(&other.key.namespace)
                    .is_some_and(|labels| matches_label_selector(Some(selector), labels))
        }
    };
    if !in_namespace {
        return false;
    }
    static NONE: Labels = Labels::new();
    let labels = other.pod.metadata.labels.as_ref().unwrap_or(&NONE);
    let same = |key: &String| owner.label(key).is_none_or(|value| other.label(key) == Some(value));
    let differs = |key: &String| owner.label(key).is_none_or(|value| other.label(key) != Some(value));
    matches_label_selector(term.label_selector.as_ref(), labels)
        && term.match_label_keys.iter().flatten().all(same)
        && term.mismatch_label_keys.iter().flatten().all(differs)
}

fn values_with(
    term: &PodAffinityTerm,
    pod: &PodInfo,
    cluster: &Cluster,
    gone: &BTreeSet<&berth_runtime::ObjectKey>,
) -> BTreeSet<String> {
    let mut values = BTreeSet::new();
    for node in cluster.nodes() {
        let Some(value) = node.labels().get(&term.topology_key) else { continue };
        if values.contains(value) {
            continue;
        }
        let stands_there =
            |other: &&std::sync::Arc<PodInfo>| !gone.contains(&other.key) && term_selects(term, pod, other, cluster);
        if node.pods.values().any(|other| stands_there(&other)) {
            values.insert(value.clone());
        }
    }
    values
}

fn spreads<'a>(pod: &'a PodInfo, cluster: &Cluster, gone: &BTreeSet<&berth_runtime::ObjectKey>) -> Vec<Spread<'a>> {
    pod.spread_constraints()
        .map(|constraint| {
            let selects = |other: &PodInfo| {
                static NONE: Labels = Labels::new();
                let labels = other.pod.metadata.labels.as_ref().unwrap_or(&NONE);
                let keys = constraint.match_label_keys.iter().flatten();
                other.key.namespace == pod.key.namespace
                    && matches_label_selector(constraint.label_selector.as_ref(), labels)
                    && keys.clone().all(|key| pod.label(key).is_none_or(|value| other.label(key) == Some(value)))
            };
            let mut counts: BTreeMap<String, i64> = BTreeMap::new();
            for node in cluster.nodes() {
                let Some(value) = node.labels().get(&constraint.topology_key) else { continue };
                let honors_affinity = constraint.node_affinity_policy.as_deref() != Some("Ignore");
                if honors_affinity && !matches_node_affinity(pod, node.name(), node.labels()) {
                    continue;
                }
                let honors_taints = constraint.node_taints_policy.as_deref() == Some("Honor");
                if honors_taints && untolerated(pod.tolerations(), node.taints()).is_some() {
                    continue;
                }
                let here = node
                    .pods
                    .values()
                    .filter(|other| !gone.contains(&other.key) && !other.is_terminating() && selects(other));
                *counts.entry(value.clone()).or_insert(0) += here.count() as i64;
            }
            let too_few = (counts.len() as i64) < i64::from(constraint.min_domains.unwrap_or(1));
            let minimum = if too_few { 0 } else { counts.values().copied().min().unwrap_or(0) };
            Spread {
                key: &constraint.topology_key,
                max_skew: i64::from(constraint.max_skew),
                own: i64::from(selects(pod)),
                counts,
                minimum,
            }
        })
        .collect()
}
