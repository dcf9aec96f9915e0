//! Why no node pool can ever run the pods of a request: taints, labels, or too few machines.
//!
//! A request that waits for stock is different: it fits a pool, and the pool's machines are in use
//! or out of stock.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_api::berth::NodePool;
use k8s_openapi::api::core::v1::Taint;
use kube::ResourceExt;

use super::capacity::nodes_for;
use super::step::World;
use crate::placement::{PodInfo, Resources, Unfit, fits, matches_node_affinity, untolerated};
use crate::pools::{template, zones};

/// Reason of `Provisioned=False` if the pods do not tolerate the taints of the pools.
pub const UNTOLERATED_TAINT: &str = "UntoleratedTaint";
/// Reason of `Provisioned=False` if no pool can run the pods, for other reasons than taints.
pub const NO_MATCHING_POOL: &str = "NoMatchingNodePool";
/// Maximum number of pools that a message names.
const NAMED_MAX: usize = 8;

/// The reason and the message of a request that no pool can ever serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// Reason of the condition.
    pub reason: &'static str,
    /// Message of the condition.
    pub message: String,
}

/// Why none of these pools can run these pods; `None` if one of the pools, at its maximum size,
/// could run them. Messages call the pools `what`.
pub fn obstacle(pools: &[&Arc<NodePool>], pods: &[Arc<PodInfo>], world: &World, what: &str) -> Option<Obstacle> {
    if pools.is_empty() {
        let message = format!("There is no {what}.");
        return Some(Obstacle { reason: NO_MATCHING_POOL, message });
    }
    let mut kinds = BTreeSet::new();
    let distinct: Vec<&Arc<PodInfo>> = pods.iter().filter(|pod| kinds.insert(pod.class().clone())).collect();
    let (mut by_taint, mut otherwise) = (Vec::new(), Vec::new());
    for pool in pools {
        let found = distinct.iter().find_map(|pod| against(pool, pod, world)).or_else(|| too_few(pool, pods, world));
        let (is_taint, text) = found?;
        let list = if is_taint { &mut by_taint } else { &mut otherwise };
        list.push(format!("pool {} {text}", pool.name_any()));
    }
    // The user most likely means a pool whose taint the pods do not tolerate, so the message names
    // only such pools, if there are any.
    let (reason, mut why) =
        if by_taint.is_empty() { (NO_MATCHING_POOL, otherwise) } else { (UNTOLERATED_TAINT, by_taint) };
    let more = why.len().saturating_sub(NAMED_MAX);
    why.truncate(NAMED_MAX);
    if more > 0 {
        why.push(format!("{more} more pools do not fit either"));
    }
    let advice = if reason == UNTOLERATED_TAINT { " Add the toleration to the pods." } else { "" };
    let message = format!("No {what} can run the pods: {}.{advice}", why.join("; "));
    Some(Obstacle { reason, message })
}

/// Why an empty machine of the pool cannot run the pod, and true if the reason is a taint.
fn against(pool: &NodePool, pod: &PodInfo, world: &World) -> Option<(bool, String)> {
    let unfit = zones(pool, &world.view.site).into_iter().map(|zone| {
        let name = format!("{}-new", pool.name_any());
        let node = world.view.with_daemons(template(pool, &world.view.site, &zone, &name));
        let unfit = if matches_node_affinity(pod, node.name(), node.labels()) {
            fits(pod, &node, &Resources::default()).err()
        } else {
            Some(vec![Unfit::NodeAffinity])
        };
        unfit.map(|unfit| (node, unfit))
    });
    // The pod fits if it fits in one zone.
    let (node, unfit) = unfit.collect::<Option<Vec<_>>>()?.into_iter().next()?;
    if let Some(Unfit::Taint { .. }) = unfit.first() {
        let taint = untolerated(pod.tolerations(), node.taints())?;
        return Some((true, format!("has taint {}, which the pods do not tolerate", written(taint))));
    }
    let reasons: Vec<String> = unfit
        .iter()
        .map(|unfit| match unfit {
            Unfit::NodeAffinity => "does not have the labels that the pods select".to_owned(),
            Unfit::Beyond(resource) | Unfit::Insufficient(resource) => {
                format!("has machines with too little {resource} for one pod")
            }
            other => format!("does not fit: {other}"),
        })
        .collect();
    Some((false, reasons.join(" and ")))
}

/// Why the pool is too small for all pods even at its maximum size.
fn too_few(pool: &NodePool, pods: &[Arc<PodInfo>], world: &World) -> Option<(bool, String)> {
    let most = pool.spec.nodes_max();
    let needed = nodes_for(pool, pods, world)?;
    (needed > most).then(|| (false, format!("has at most {most} machines, and the pods need {needed}")))
}

fn written(taint: &Taint) -> String {
    match taint.value.as_deref().filter(|value| !value.is_empty()) {
        Some(value) => format!("{}={value}:{}", taint.key, taint.effect),
        None => format!("{}:{}", taint.key, taint.effect),
    }
}
