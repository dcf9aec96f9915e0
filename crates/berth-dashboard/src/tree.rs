//! Cohorts and cluster queues as a tree, with their quota, usage and counts.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::kueue::v1beta2::{ClusterQueue, Cohort, FlavorUsage, ResourceGroup};
use berth_apimachinery::quantity::Quantity;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kube::ResourceExt;

/// A cohort or cluster queue, and its place in the tree.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// True for a cohort.
    pub is_cohort: bool,
    /// Number of cohorts above it.
    pub depth: usize,
    /// Quota and usage per flavor and resource. Those of a cohort include everything below it.
    pub amounts: BTreeMap<(String, String), Figures>,
    /// Numbers of workloads that wait, hold quota, and are admitted. Those of a cohort include all
    /// queues below it.
    pub workloads: Workloads,
    /// Why it admits nothing; `None` if it is active.
    pub problem: Option<String>,
    parent: Option<usize>,
}

/// Counts of workloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Workloads {
    /// Waiting.
    pub waiting: i64,
    /// Holding quota.
    pub reserving: i64,
    /// Admitted.
    pub admitted: i64,
}

impl Workloads {
    fn add(&mut self, other: Workloads) {
        self.waiting += other.waiting;
        self.reserving += other.reserving;
        self.admitted += other.admitted;
    }
}

/// Quota of one resource of a flavor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Nominal quota.
    pub nominal: Quantity,
    /// Usage.
    pub used: Quantity,
    /// Borrowed part of the usage; that of a cohort is the sum of its queues.
    pub borrowed: Quantity,
    /// Own quota that is not in use and may be lent: at most the lending limit. That of a cohort is
    /// the sum of its queues.
    pub idle: Quantity,
    /// Part of `idle` that the cohort tree lends at most: what all its queues borrow.
    pub lent: Quantity,
    /// Borrowing limit.
    pub borrowing_limit: Option<Quantity>,
    /// Lending limit.
    pub lending_limit: Option<Quantity>,
}

impl Default for Figures {
    fn default() -> Self {
        let zero = Quantity::ZERO;
        Figures {
            nominal: zero,
            used: zero,
            borrowed: zero,
            idle: zero,
            lent: zero,
            borrowing_limit: None,
            lending_limit: None,
        }
    }
}

/// The amount of an API quantity; zero if it cannot be parsed.
pub fn amount(quantity: &ApiQuantity) -> Quantity {
    Quantity::parse(if quantity.0.is_empty() { "0" } else { &quantity.0 }).unwrap_or(Quantity::ZERO)
}

/// A cluster queue alone.
pub fn queue(queue: &ClusterQueue) -> Node {
    let mut amounts = quotas(&queue.spec.resource_groups);
    let status = queue.status.clone().unwrap_or_default();
    add_usage(&mut amounts, &status.flavors_reservation);
    for figures in amounts.values_mut() {
        figures.idle = idle(figures);
    }
    let active = status.conditions.iter().find(|condition| condition.type_ == "Active");
    Node {
        name: queue.name_any(),
        amounts,
        workloads: Workloads {
            waiting: status.pending_workloads.into(),
            reserving: status.reserving_workloads.into(),
            admitted: status.admitted_workloads.into(),
        },
        problem: active.filter(|condition| condition.status != "True").map(|condition| condition.message.clone()),
        ..Node::default()
    }
}

/// Own quota that a queue does not use and may lend.
fn idle(figures: &Figures) -> Quantity {
    let mut unused = figures.nominal;
    let mut own = figures.used;
    own.sub(figures.borrowed);
    unused.sub(own);
    let unused = unused.max(Quantity::ZERO);
    figures.lending_limit.map_or(unused, |limit| unused.min(limit))
}

fn quotas(groups: &[ResourceGroup]) -> BTreeMap<(String, String), Figures> {
    let mut amounts = BTreeMap::new();
    for flavor in groups.iter().flat_map(|group| &group.flavors) {
        for quota in &flavor.resources {
            let figures = Figures {
                nominal: amount(&quota.nominal_quota),
                borrowing_limit: quota.borrowing_limit.as_ref().map(amount),
                lending_limit: quota.lending_limit.as_ref().map(amount),
                ..Figures::default()
            };
            amounts.insert((flavor.name.clone(), quota.name.clone()), figures);
        }
    }
    amounts
}

fn add_usage(amounts: &mut BTreeMap<(String, String), Figures>, usage: &[FlavorUsage]) {
    for flavor in usage {
        for resource in &flavor.resources {
            let figures = amounts.entry((flavor.name.clone(), resource.name.clone())).or_default();
            figures.used = amount(&resource.total);
            figures.borrowed = amount(&resource.borrowed);
        }
    }
}

/// The whole forest, parents before children: cohorts by name, in each its queues and then its
/// child cohorts, and last the queues without a cohort.
pub fn forest(queues: &[ClusterQueue], cohorts: &[Cohort]) -> Vec<Node> {
    let mut below: BTreeMap<&str, (Vec<&ClusterQueue>, BTreeSet<&str>)> = BTreeMap::new();
    let mut parents: BTreeMap<&str, &str> = BTreeMap::new();
    let own: BTreeMap<&str, &Cohort> =
        cohorts.iter().filter_map(|cohort| Some((cohort.metadata.name.as_deref()?, cohort))).collect();
    for (name, cohort) in &own {
        below.entry(name).or_default();
        let parent = cohort.spec.parent_name.as_str();
        if !parent.is_empty() {
            below.entry(parent).or_default().1.insert(name);
            parents.insert(name, parent);
        }
    }
    let mut alone = Vec::new();
    for queue in queues {
        match queue.spec.cohort_name.as_str() {
            "" => alone.push(queue),
            cohort => below.entry(cohort).or_default().0.push(queue),
        }
    }
    let mut nodes = Vec::new();
    let mut seen = BTreeSet::new();
    let roots = below.keys().filter(|name| !parents.contains_key(*name)).copied();
    // Cohorts that no root reaches are in a cycle, or below one. The first of them that was not
    // visited yet is shown as a root.
    let circles = below.keys().filter(|name| parents.contains_key(*name)).copied();
    for root in roots.chain(circles).collect::<Vec<&str>>() {
        let mut open = vec![(root, None, 0)];
        while let Some((name, parent, depth)) = open.pop() {
            if !seen.insert(name) {
                continue;
            }
            let at = nodes.len();
            let (members, children) = &below[name];
            nodes.push(Node {
                name: name.to_owned(),
                is_cohort: true,
                depth,
                amounts: own.get(name).map(|cohort| quotas(&cohort.spec.resource_groups)).unwrap_or_default(),
                problem: (depth == 0 && parents.contains_key(name))
                    .then(|| "Its cohorts form a cycle, so no workload of the queues below is admitted.".to_owned()),
                parent,
                ..Node::default()
            });
            let mut members: Vec<Node> = members.iter().map(|it| queue(it)).collect();
            members.sort_by(|a, b| a.name.cmp(&b.name));
            nodes.extend(members.into_iter().map(|member| Node { depth: depth + 1, parent: Some(at), ..member }));
            open.extend(children.iter().rev().map(|child| (*child, Some(at), depth + 1)));
        }
    }
    sum_up(&mut nodes);
    let mut alone: Vec<Node> = alone.into_iter().map(queue).collect();
    alone.sort_by(|a, b| a.name.cmp(&b.name));
    nodes.extend(alone);
    nodes
}

/// Adds the amounts and counts of every node to its parent. Children come after their parents.
fn sum_up(nodes: &mut [Node]) {
    for at in (0..nodes.len()).rev() {
        let (above, rest) = nodes.split_at_mut(at);
        let Some(parent) = rest[0].parent.and_then(|parent| above.get_mut(parent)) else { continue };
        parent.workloads.add(rest[0].workloads);
        for (key, figures) in &rest[0].amounts {
            let sum = parent.amounts.entry(key.clone()).or_default();
            sum.nominal.add(figures.nominal);
            sum.used.add(figures.used);
            sum.borrowed.add(figures.borrowed);
            sum.idle.add(figures.idle);
        }
    }
    // What a tree borrows, its idle quota lends.
    let mut borrowed: BTreeMap<(String, String), Quantity> = BTreeMap::new();
    for node in nodes.iter_mut() {
        if node.parent.is_none() {
            borrowed = node.amounts.iter().map(|(key, figures)| (key.clone(), figures.borrowed)).collect();
        }
        for (key, figures) in &mut node.amounts {
            figures.lent = borrowed.get(key).map_or(Quantity::ZERO, |all| (*all).min(figures.idle));
        }
    }
}

/// Names of the queues at or below each node, which come after it.
pub fn queues_of(nodes: &[Node], at: usize) -> BTreeSet<&str> {
    let depth = nodes[at].depth;
    let below = nodes[at + 1..].iter().take_while(|node| node.depth > depth);
    let own = std::iter::once(&nodes[at]);
    own.chain(below).filter(|node| !node.is_cohort).map(|node| node.name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cluster_queue(name: &str, cohort: &str, nominal: &str, used: &str) -> ClusterQueue {
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"cohortName": cohort, "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [
                {"name": "default", "resources": [{"name": "cpu", "nominalQuota": nominal}]}]}]},
            "status": {"pendingWorkloads": 2, "reservingWorkloads": 1, "admittedWorkloads": 1, "flavorsReservation": [
                {"name": "default", "resources": [{"name": "cpu", "total": used, "borrowed": "0"}]}]},
        }))
        .expect("a queue")
    }

    fn cohort(name: &str, parent: &str) -> Cohort {
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"parentName": parent}})).expect("a cohort")
    }

    fn outline(nodes: &[Node]) -> Vec<(usize, &str)> {
        nodes.iter().map(|node| (node.depth, node.name.as_str())).collect()
    }

    #[test]
    fn queues_are_below_their_cohorts_and_cohorts_are_sums() {
        let queues = [
            cluster_queue("solo", "", "1", "0"),
            cluster_queue("b", "team", "1500m", "500m"),
            cluster_queue("a", "team", "2", "1"),
            cluster_queue("c", "implicit", "1", "1"),
        ];
        let nodes = forest(&queues, &[cohort("team", "company"), cohort("company", "")]);
        let expected = [(0, "company"), (1, "team"), (2, "a"), (2, "b"), (0, "implicit"), (1, "c"), (0, "solo")];
        assert_eq!(outline(&nodes), expected);
        let company = &nodes[0];
        let figures = company.amounts[&("default".to_owned(), "cpu".to_owned())];
        assert_eq!((figures.nominal.to_string(), figures.used.to_string()), ("3500m".to_owned(), "1500m".to_owned()));
        assert_eq!(company.workloads, Workloads { waiting: 4, reserving: 2, admitted: 2 });
    }

    #[test]
    fn a_cycle_of_cohorts_is_reported() {
        let nodes =
            forest(&[cluster_queue("q", "b", "1", "0")], &[cohort("a", "b"), cohort("b", "a"), cohort("c", "c")]);
        assert_eq!(outline(&nodes), [(0, "a"), (1, "b"), (2, "q"), (0, "c")]);
        assert!(nodes[0].problem.is_some() && nodes[3].problem.is_some(), "{nodes:?}");
    }

    #[test]
    fn a_long_chain_of_cohorts_causes_no_deep_recursion() {
        let cohorts: Vec<Cohort> =
            (0..20_000).map(|at| cohort(&format!("c{at:05}"), &format!("c{:05}", at + 1))).collect();
        let nodes = forest(&[cluster_queue("q", "c00000", "3", "2")], &cohorts);
        assert_eq!((nodes.len(), nodes[0].amounts.len()), (20_002, 1));
    }
}
