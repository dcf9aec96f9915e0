//! Quota over the tree of cohorts, computed directly from its definitions (§7, §10.1).

use std::cmp::Ordering;

use super::{Amounts, Fr, Use};
use crate::random::plan::{FLAVORS, Plan, Quota, RESOURCES};

/// A queue or a cohort, by its index in the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    Cohort(usize),
    Queue(usize),
}

/// Adds amounts to the usage of a queue.
pub fn add(usage: &mut Use, queue: usize, amounts: &Amounts) {
    for (fr, amount) in amounts {
        *usage.entry((queue, *fr)).or_default() += amount;
    }
}

/// Subtracts amounts from the usage of a queue.
pub fn remove(usage: &mut Use, queue: usize, amounts: &Amounts) {
    for (fr, amount) in amounts {
        *usage.entry((queue, *fr)).or_default() -= amount;
    }
}

/// All flavor-resources.
pub fn all_frs() -> impl Iterator<Item = Fr> {
    (0..FLAVORS).flat_map(|flavor| (0..RESOURCES).map(move |resource| (flavor, resource)))
}

pub fn parent(plan: &Plan, node: Node) -> Option<Node> {
    match node {
        Node::Cohort(at) => plan.cohorts[at].parent,
        Node::Queue(at) => plan.queues[at].cohort,
    }
    .map(Node::Cohort)
}

/// The node, its parent, and so on to the root.
pub fn path(plan: &Plan, node: Node) -> Vec<Node> {
    std::iter::successors(Some(node), |node| parent(plan, *node)).collect()
}

pub fn root(plan: &Plan, node: Node) -> Node {
    path(plan, node).pop().unwrap_or(node)
}

/// Children in name order; cohorts before queues.
pub fn children(plan: &Plan, node: Node) -> Vec<Node> {
    let cohorts = (0..plan.cohorts.len()).map(Node::Cohort);
    let queues = (0..plan.queues.len()).map(Node::Queue);
    cohorts.chain(queues).filter(|child| parent(plan, *child) == Some(node)).collect()
}

/// Queues at or below a node.
pub fn queues_below(plan: &Plan, node: Node) -> Vec<usize> {
    (0..plan.queues.len()).filter(|at| path(plan, Node::Queue(*at)).contains(&node)).collect()
}

fn configured(plan: &Plan, node: Node, fr: Fr) -> Option<Quota> {
    let quotas = match node {
        Node::Cohort(at) => &plan.cohorts[at].quotas,
        Node::Queue(at) => &plan.queues[at].flavors,
    };
    quotas.iter().find(|(flavor, _)| *flavor == fr.0).map(|(_, quotas)| quotas[fr.1])
}

pub fn quota(plan: &Plan, node: Node, fr: Fr) -> Quota {
    configured(plan, node, fr).unwrap_or(Quota { nominal: 0, borrowing: None, lending: None })
}

/// True if the node, or a node below it, has quota for the flavor-resource.
fn declares(plan: &Plan, node: Node, fr: Fr) -> bool {
    configured(plan, node, fr).is_some() || children(plan, node).into_iter().any(|child| declares(plan, child, fr))
}

pub fn subtree(plan: &Plan, node: Node, fr: Fr) -> i64 {
    let lent = children(plan, node).into_iter().map(|it| subtree(plan, it, fr) - guaranteed(plan, it, fr));
    quota(plan, node, fr).nominal + lent.sum::<i64>()
}

pub fn guaranteed(plan: &Plan, node: Node, fr: Fr) -> i64 {
    quota(plan, node, fr).lending.map_or(0, |limit| (subtree(plan, node, fr) - limit).max(0))
}

pub fn usage(plan: &Plan, used: &Use, node: Node, fr: Fr) -> i64 {
    match node {
        Node::Queue(at) => used.get(&(at, fr)).copied().unwrap_or(0),
        Node::Cohort(_) => children(plan, node)
            .into_iter()
            .map(|it| (usage(plan, used, it, fr) - guaranteed(plan, it, fr)).max(0))
            .sum(),
    }
}

pub fn local_available(plan: &Plan, used: &Use, node: Node, fr: Fr) -> i64 {
    (guaranteed(plan, node, fr) - usage(plan, used, node, fr)).max(0)
}

/// Amount that the node could still use; negative if it uses too much.
pub fn balance(plan: &Plan, used: &Use, node: Node, fr: Fr) -> i64 {
    let (subtree, usage) = (subtree(plan, node, fr), usage(plan, used, node, fr));
    let Some(parent) = parent(plan, node) else { return subtree - usage };
    let mut from_parent = balance(plan, used, parent, fr);
    if let Some(limit) = quota(plan, node, fr).borrowing {
        let guaranteed = guaranteed(plan, node, fr);
        from_parent = from_parent.min((subtree - guaranteed) - (usage - guaranteed).max(0) + limit);
    }
    local_available(plan, used, node, fr) + from_parent
}

/// Amount that the node can still use.
pub fn available(plan: &Plan, used: &Use, node: Node, fr: Fr) -> i64 {
    balance(plan, used, node, fr).max(0)
}

/// Amount that the node could use if no quota were in use.
pub fn potential(plan: &Plan, node: Node, fr: Fr) -> i64 {
    let subtree = subtree(plan, node, fr);
    let Some(parent) = parent(plan, node) else { return subtree };
    let most = guaranteed(plan, node, fr) + potential(plan, parent, fr);
    quota(plan, node, fr).borrowing.map_or(most, |limit| most.min(subtree + limit))
}

/// True if the node would borrow with this additional amount.
pub fn borrows_with(plan: &Plan, used: &Use, node: Node, fr: Fr, more: i64) -> bool {
    let own = match node {
        Node::Queue(_) => quota(plan, node, fr).nominal,
        Node::Cohort(_) => subtree(plan, node, fr),
    };
    own < usage(plan, used, node, fr) + more
}

/// True if the node uses no more than the quota of its subtree, for each of these flavor-resources.
pub fn within_nominal(plan: &Plan, used: &Use, node: Node, frs: &[Fr]) -> bool {
    frs.iter().all(|fr| usage(plan, used, node, *fr) <= subtree(plan, node, *fr))
}

fn height(plan: &Plan, node: Node) -> u32 {
    let below = children(plan, node).into_iter().map(|child| match child {
        Node::Queue(_) => 1,
        Node::Cohort(_) => 1 + height(plan, child),
    });
    below.max().unwrap_or(0)
}

/// Level of the tree from which a request has to borrow, and whether reclaiming may help it (§7.7).
pub fn borrowing_level(plan: &Plan, used: &Use, queue: usize, fr: Fr, amount: i64) -> (u32, bool) {
    let node = Node::Queue(queue);
    let in_cohort = parent(plan, node).is_some();
    if !in_cohort || !borrows_with(plan, used, node, fr, amount) {
        return (0, in_cohort);
    }
    let mut remaining = amount - local_available(plan, used, node, fr);
    let mut level = 0;
    for cohort in path(plan, node).into_iter().skip(1) {
        level = height(plan, cohort);
        if !borrows_with(plan, used, cohort, fr, remaining) {
            return (level, parent(plan, cohort).is_some());
        }
        remaining -= local_available(plan, used, cohort, fr);
    }
    (level, false)
}

/// A dominant resource share (§10.1): borrowed and lendable amount of the dominant resource, and
/// the weight.
#[derive(Debug, Clone)]
pub struct Share {
    ratio: (i64, i64),
    weight: i64,
    /// Flavor-resources used above the node's own quota.
    pub borrowed: Vec<Fr>,
}

/// The share of a node.
pub fn share(plan: &Plan, used: &Use, node: Node) -> Share {
    let weight = match node {
        Node::Cohort(at) => plan.cohorts[at].weight,
        Node::Queue(at) => plan.queues[at].weight,
    };
    let mut share = Share { ratio: (0, 1), weight, borrowed: Vec::new() };
    let Some(parent) = parent(plan, node) else { return share };
    let above = |fr: Fr| (usage(plan, used, node, fr) - subtree(plan, node, fr)).max(0);
    share.borrowed = all_frs().filter(|fr| declares(plan, node, *fr) && above(*fr) > 0).collect();
    let root = root(plan, node);
    for resource in 0..RESOURCES {
        let borrowed: i64 = share.borrowed.iter().filter(|fr| fr.1 == resource).map(|fr| above(*fr)).sum();
        let lendable: i64 = all_frs()
            .filter(|fr| fr.1 == resource && declares(plan, root, *fr))
            .map(|fr| potential(plan, parent, fr))
            .sum();
        let larger =
            i128::from(borrowed) * i128::from(share.ratio.1) > i128::from(share.ratio.0) * i128::from(lendable);
        if lendable > 0 && larger {
            share.ratio = (borrowed, lendable);
        }
    }
    share
}

impl Share {
    /// True if the share is above every finite share: something is borrowed at weight zero.
    pub fn is_infinite(&self) -> bool {
        self.weight == 0 && self.ratio.0 > 0
    }

    /// Compares two shares (§10.2).
    pub fn compare(&self, other: &Share) -> Ordering {
        let weight = |share: &Share, of: i64| if share.is_infinite() || share.weight == 0 { 1 } else { of };
        match (self.is_infinite(), other.is_infinite()) {
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            _ => {
                let left =
                    i128::from(self.ratio.0) * i128::from(other.ratio.1) * i128::from(weight(other, other.weight));
                let right =
                    i128::from(other.ratio.0) * i128::from(self.ratio.1) * i128::from(weight(self, self.weight));
                left.cmp(&right)
            }
        }
    }
}
