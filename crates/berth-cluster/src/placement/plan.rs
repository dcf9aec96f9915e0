//! Chooses the node of one pod: filters all nodes, then takes the best.

use std::collections::{BTreeMap, BTreeSet};

use super::domains::Domains;
use super::matching::{matches_term, unpreferred};
use super::{Cluster, NodeState, PodInfo, Resources, Scoring, Unfit, fits};

/// How pods without accelerators are distributed. Pods with accelerators are always packed, because
/// a half-used accelerator node cannot be removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Packing {
    /// A pod gets the emptiest node on which it fits. This is kube-scheduler's default.
    #[default]
    Spread,
    /// A pod gets the fullest node on which it fits, as with GKE's optimize-utilization profile.
    Pack,
}

/// How the nodes on which a pod fits are ranked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ranking {
    /// By Berth's own rules.
    Packing(Packing),
    /// By preferences for nodes, then by configured scores.
    Scoring(Scoring),
}

/// Result for one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The pod fits on this node.
    Node(String),
    /// The pod fits nowhere: the number of nodes that reject it, by reason, and the nodes on which
    /// preemption could help.
    Nowhere {
        /// Reasons and numbers of nodes; a node may have several reasons.
        reasons: BTreeMap<Unfit, usize>,
        /// Nodes that only reject the pod for resolvable reasons.
        preemptible: Vec<String>,
    },
}

/// Finds a node for a pod. Of equal nodes, the first by name is chosen, so that the same cluster
/// gives the same result.
pub fn place(pod: &PodInfo, cluster: &Cluster, packing: Packing) -> Placement {
    place_by(pod, cluster, &Ranking::Packing(packing))
}

/// Finds a node for a pod, with this ranking of nodes.
pub fn place_by(pod: &PodInfo, cluster: &Cluster, ranking: &Ranking) -> Placement {
    let domains = Domains::new(pod, cluster, &BTreeSet::new());
    let mut best: Option<(Score, &str)> = None;
    let mut reasons: BTreeMap<Unfit, usize> = BTreeMap::new();
    let mut preemptible = Vec::new();
    for node in cluster.nodes() {
        let reserved = reserved_for_others(pod, cluster, node);
        let answer = fits(pod, node, &reserved).and_then(|()| domains.check(node).map_err(|reason| vec![reason]));
        match answer {
            Ok(()) => {
                let score = Score::of(pod, node, ranking);
                if best.as_ref().is_none_or(|(known, _)| score < *known) {
                    best = Some((score, node.name()));
                }
            }
            Err(refusals) => {
                if refusals.iter().all(Unfit::is_resolvable) {
                    preemptible.push(node.name().to_owned());
                }
                for refusal in refusals {
                    *reasons.entry(refusal).or_insert(0) += 1;
                }
            }
        }
    }
    match best {
        Some((_, name)) => Placement::Node(name.to_owned()),
        None => Placement::Nowhere { reasons, preemptible },
    }
}

/// Requests of pods that are nominated for the node and at least as important as this pod.
pub(super) fn reserved_for_others(pod: &PodInfo, cluster: &Cluster, node: &NodeState) -> Resources {
    let mut reserved = Resources::default();
    for other in cluster.nominated(node.name()) {
        if other.key != pod.key && other.priority >= pod.priority {
            reserved.add(&other.requests);
        }
    }
    reserved
}

/// Smaller is better, compared field by field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Score {
    unpreferred_taints: usize,
    unmet_preference: i64,
    /// Number of kinds of accelerators of the node that the pod does not request, so that CPU pods
    /// avoid accelerator nodes. Not counted with configured scores.
    wasted_kinds: usize,
    /// Share that is free after placement (packing) or used (spreading), in millionths, as the
    /// average over the requested resources; or the negated configured score.
    packing: i64,
}

impl Score {
    fn of(pod: &PodInfo, node: &NodeState, ranking: &Ranking) -> Self {
        let met: i64 = pod
            .preferred_nodes()
            .iter()
            .filter(|term| matches_term(&term.preference, node.name(), node.labels()))
            .map(|term| i64::from(term.weight))
            .sum();
        let (wasted_kinds, packing) = match ranking {
            Ranking::Packing(packing) => packed(pod, node, *packing),
            Ranking::Scoring(scoring) => (0, -scoring.score(pod, node)),
        };
        Self {
            unpreferred_taints: unpreferred(pod.tolerations(), node.taints()),
            unmet_preference: -met,
            wasted_kinds,
            packing,
        }
    }
}

/// Wasted kinds of accelerators, and the rank by free share.
fn packed(pod: &PodInfo, node: &NodeState, packing: Packing) -> (usize, i64) {
    let wants_accelerator = pod.requests.extended().next().is_some();
    let wasted_kinds = node.allocatable.extended().filter(|(name, _)| pod.requests.get(name) == 0).count();
    let free = |resource: &str| {
        let all = node.allocatable.get(resource).max(1);
        let left = (node.free(resource) - pod.requests.get(resource)).max(0);
        i64::try_from(i128::from(left) * 1_000_000 / i128::from(all)).unwrap_or(i64::MAX)
    };
    let rank = if wants_accelerator {
        let shares: Vec<i64> = pod.requests.extended().map(|(name, _)| free(name)).collect();
        shares.iter().sum::<i64>() / shares.len().max(1) as i64
    } else {
        let left = (free("cpu") + free("memory")) / 2;
        if packing == Packing::Pack { left } else { -left }
    };
    (wasted_kinds, rank)
}
