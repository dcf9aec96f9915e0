//! Finds the pods of lower priority whose eviction would let a pod fit.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_runtime::ObjectKey;
use jiff::Timestamp;

use super::domains::Domains;
use super::matching::matches_label_selector;
use super::plan::reserved_for_others;
use super::{Cluster, DeviceNeeds, PodInfo, fits};

/// Result of preemption for a pod that fits nowhere.
#[derive(Clone, Debug)]
pub enum Preemption {
    /// Evicting `victims` makes room on `node`.
    Possible {
        /// The node.
        node: String,
        /// Pods to delete, in key order, including pods that are already being deleted.
        victims: Vec<Arc<PodInfo>>,
    },
    /// Preemption cannot help; the string is the reason, in kube-scheduler's words.
    Impossible(String),
}

/// Searches for the node with the fewest and least important victims.
///
/// Source: kube-scheduler's DefaultPreemption: remove all pods of lower priority, put back as many
/// as still fit (first those whose disruption budget would be violated, then the most important),
/// then prefer the node with the fewest violations of budgets, then the node whose most important
/// victim has the lowest priority, then the smallest sum of priorities, then the fewest victims,
/// and then the latest start of the most important victims. Pods that are being deleted for another
/// reason count like all others. Equal nodes are taken by name.
///
/// The devices of a claim become free with its last user, so sharing pods are evicted together or
/// not at all. kube-scheduler 1.37 evicts no pods for devices; KEP-5690 proposes it, for devices of
/// one node. No pod is evicted while the claims of ended pods that have enough devices are being
/// released: `pod` counts these ([`PodInfo::after_releases`]).
pub fn preempt(pod: &PodInfo, cluster: &Cluster, preemptible: &[String]) -> Preemption {
    if !pod.may_preempt() {
        return Preemption::Impossible("preemption: not eligible due to preemptionPolicy=Never.".into());
    }
    let count = cluster.node_count();
    if let Some(node) = pod.nominated_node().and_then(|name| cluster.node(name))
        && preemptible.iter().any(|name| name == node.name())
        && node.pods.values().any(|other| other.is_preempted() && other.priority < pod.priority)
    {
        return Preemption::Impossible(
            "preemption: not eligible due to a terminating pod on the nominated node.".into(),
        );
    }
    if pod.devices().is_some_and(DeviceNeeds::expects_releases)
        && let Some(node) = preemptible.iter().find(|name| fits_as_it_is(pod, cluster, name))
    {
        return Preemption::Impossible(format!(
            "preemption: not eligible because ended pods release the needed devices on node {node}."
        ));
    }
    let mut best: Option<(Cost, String, Vec<Arc<PodInfo>>)> = None;
    for name in preemptible {
        let Some((victims, violations)) = victims_on(pod, cluster, name) else { continue };
        let cost = Cost::of(&victims, violations);
        if best.as_ref().is_none_or(|(known, ..)| cost < *known) {
            best = Some((cost, name.clone(), victims));
        }
    }
    match best {
        Some((_, node, victims)) => Preemption::Possible { node, victims },
        None => {
            let mut reasons = BTreeMap::new();
            let helpless = count - preemptible.len();
            if helpless > 0 {
                reasons.insert("Preemption is not helpful for scheduling".to_owned(), helpless);
            }
            if !preemptible.is_empty() {
                reasons.insert("No preemption victims found for incoming pod".to_owned(), preemptible.len());
            }
            let reasons = super::message::join(reasons);
            Preemption::Impossible(format!("preemption: 0/{count} nodes are available: {reasons}."))
        }
    }
}

/// True if the pod fits on the node without victims, when the claims of ended pods are released.
fn fits_as_it_is(pod: &PodInfo, cluster: &Cluster, name: &str) -> bool {
    cluster.node(name).is_some_and(|node| {
        let reserved = reserved_for_others(pod, cluster, node);
        fits(pod, node, &reserved).is_ok() && Domains::new(pod, cluster, &BTreeSet::new()).check(node).is_ok()
    })
}

/// The victims on one node, and the number of them whose disruption budget is violated; `None` if
/// their eviction would not help.
fn victims_on(pod: &PodInfo, cluster: &Cluster, name: &str) -> Option<(Vec<Arc<PodInfo>>, usize)> {
    let mut node = cluster.node(name)?.clone();
    let mut lower: Vec<Arc<PodInfo>> = node.pods.values().filter(|p| p.priority < pod.priority).cloned().collect();
    if lower.is_empty() {
        return None;
    }
    for victim in &lower {
        node.evict(&victim.key);
    }
    let reserved = reserved_for_others(pod, cluster, &node);
    let all: BTreeSet<_> = lower.iter().map(|victim| &victim.key).collect();
    if fits(pod, &node, &reserved).is_err() || Domains::new(pod, cluster, &all).check(&node).is_err() {
        return None;
    }
    // Put back the most important and longest-running pods first.
    drop(all);
    let order = |p: &Arc<PodInfo>| (Reverse(p.priority), p.started().unwrap_or(Timestamp::MAX), p.key.clone());
    lower.sort_by_key(order);
    let violating = violating(&lower, cluster);
    lower.sort_by_key(|candidate| !violating.contains(&candidate.key));
    let mut gone: BTreeSet<_> = lower.iter().map(|victim| &victim.key).collect();
    let mut victims = Vec::new();
    for candidate in &lower {
        node.put_back(candidate.clone());
        gone.remove(&candidate.key);
        let stays = fits(pod, &node, &reserved).is_ok() && Domains::new(pod, cluster, &gone).check(&node).is_ok();
        if !stays {
            node.evict(&candidate.key);
            gone.insert(&candidate.key);
            victims.push(candidate.clone());
        }
    }
    victims.sort_by(|a, b| a.key.cmp(&b.key));
    let violations = victims.iter().filter(|victim| violating.contains(&victim.key)).count();
    Some((victims, violations))
}

/// The pods whose eviction would violate a disruption budget, if all of `pods` were evicted in this
/// order. As in kube-scheduler, an empty selector matches no pod.
fn violating(pods: &[Arc<PodInfo>], cluster: &Cluster) -> BTreeSet<ObjectKey> {
    let mut violating = BTreeSet::new();
    for (key, budget) in cluster.budgets() {
        let Some(selector) = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref()) else { continue };
        let is_empty = selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
            && selector.match_expressions.as_ref().is_none_or(Vec::is_empty);
        let status = budget.status.as_ref();
        let disrupted = status.and_then(|status| status.disrupted_pods.as_ref());
        let mut allowed = status.map_or(0, |status| status.disruptions_allowed);
        let selected = pods.iter().filter(|pod| {
            let labels = pod.pod.metadata.labels.as_ref().filter(|labels| !labels.is_empty());
            !is_empty
                && pod.key.namespace == key.namespace
                && labels.is_some_and(|labels| matches_label_selector(Some(selector), labels))
                && !disrupted.is_some_and(|disrupted| disrupted.contains_key(&pod.key.name))
        });
        for pod in selected {
            allowed -= 1;
            if allowed < 0 {
                violating.insert(pod.key.clone());
            }
        }
    }
    violating
}

impl PodInfo {
    /// The pod for [`preempt`]: claims of pods that have ended count as released. `is_alive`: true
    /// if the pod of this key and UID has not ended.
    pub fn after_releases(&self, is_alive: impl Fn(&ObjectKey, &str) -> bool) -> Option<Self> {
        self.devices()?.after_releases(is_alive).map(|needs| self.with_device_needs(needs))
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    violations: usize,
    highest: i32,
    sum: i64,
    count: usize,
    latest_start: Reverse<Timestamp>,
}

impl Cost {
    fn of(victims: &[Arc<PodInfo>], violations: usize) -> Self {
        let highest = victims.iter().map(|p| p.priority).max().unwrap_or(i32::MIN);
        let important = victims.iter().filter(|p| p.priority == highest);
        Self {
            violations,
            highest,
            // The priorities are shifted, so that each further victim increases the sum, regardless
            // of the sign of its priority.
            sum: victims.iter().map(|p| i64::from(p.priority) - i64::from(i32::MIN)).sum(),
            count: victims.len(),
            latest_start: Reverse(important.filter_map(|p| p.started()).min().unwrap_or(Timestamp::MAX)),
        }
    }
}
