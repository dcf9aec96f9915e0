//! Properties of the quota tree on random trees and usage, checked against a slow, obvious model.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::tree::{Cell, NodeQuota, QuotaTree};
use crate::amount::Amount;
use crate::ids::{FrId, Id, Name, NodeId, QueueId};

/// A cohort or queue of a random tree: which earlier cohort is its parent, and its quota.
#[derive(Debug, Clone)]
struct Plan {
    parent: Option<usize>,
    nominal: i64,
    borrowing: Option<i64>,
    lending: Option<i64>,
}

/// Random queues and cohorts: cohorts first (each under an earlier one), then queues, then usage
/// that is added and removed.
#[derive(Debug, Clone)]
struct RandomTree {
    cohorts: Vec<Plan>,
    queues: Vec<Plan>,
    /// Queue, amount, and whether the usage is removed again.
    usage: Vec<(usize, i64, bool)>,
}

fn amount() -> impl Strategy<Value = i64> {
    prop_oneof![8 => 0_i64..20, 1 => Just(i64::MAX), 1 => Just(0)]
}

fn plan(parents: usize) -> impl Strategy<Value = Plan> {
    let parent = if parents == 0 { Just(None).boxed() } else { proptest::option::of(0..parents).boxed() };
    (parent, amount(), proptest::option::of(0_i64..15), proptest::option::of(0_i64..15))
        .prop_map(|(parent, nominal, borrowing, lending)| Plan { parent, nominal, borrowing, lending })
}

fn random_tree() -> impl Strategy<Value = RandomTree> {
    (1_usize..5, 1_usize..6).prop_flat_map(|(cohorts, queues)| {
        let cohorts: Vec<_> = (0..cohorts).map(plan).collect();
        let count = cohorts.len();
        let queues: Vec<_> = (0..queues).map(|_| plan(count)).collect();
        let queue_count = queues.len();
        let usage = proptest::collection::vec((0..queue_count, 0_i64..12, any::<bool>()), 0..20);
        (cohorts, queues, usage).prop_map(|(cohorts, queues, usage)| RandomTree { cohorts, queues, usage })
    })
}

fn quota(plan: &Plan) -> NodeQuota {
    let amount = |value: i64| if value == i64::MAX { Amount::Unlimited } else { Amount::Bounded(value) };
    NodeQuota {
        nominal: amount(plan.nominal),
        // Limits only have a meaning if there is a parent.
        borrowing_limit: plan.borrowing.filter(|_| plan.parent.is_some()).map(Amount::Bounded),
        lending_limit: plan.lending.filter(|_| plan.parent.is_some()).map(Amount::Bounded),
    }
}

const COHORTS: usize = 5;
const QUEUES: usize = 4;

/// A change to a tree: one node gets a new configuration, and some quota is used.
#[derive(Debug, Clone)]
struct Step {
    node: usize,
    parent: Option<usize>,
    alive: bool,
    quota: Plan,
    usage: Option<(usize, i64)>,
    /// True if the tree is refreshed before the next change.
    refresh: bool,
}

fn step() -> impl Strategy<Value = Step> {
    let usage = proptest::option::of((0..QUEUES, 0_i64..12));
    // Any cohort may be the parent of any other, so cycles appear and disappear.
    let place = (0..COHORTS + QUEUES, proptest::option::of(0..COHORTS), prop_oneof![5 => Just(true), 1 => Just(false)]);
    (place, plan(1), usage, any::<bool>()).prop_map(|((node, parent, alive), quota, usage, refresh)| Step {
        node,
        parent,
        alive,
        quota,
        usage,
        refresh,
    })
}

fn bare() -> (QuotaTree, Vec<NodeId>) {
    let mut tree = QuotaTree::default();
    let cohorts = (0..COHORTS).map(|at| (format!("cohort-{at}"), None));
    let queues = (0..QUEUES).map(|at| (format!("queue-{at}"), Some(QueueId::from_index(at))));
    let nodes = cohorts.chain(queues).map(|(name, queue)| tree.add_node(Name::from(name), queue)).collect();
    (tree, nodes)
}

fn apply(tree: &mut QuotaTree, nodes: &[NodeId], step: &Step) {
    let quota = NodeQuota {
        borrowing_limit: step.quota.borrowing.map(Amount::Bounded),
        lending_limit: step.quota.lending.map(Amount::Bounded),
        ..quota(&step.quota)
    };
    tree.configure(nodes[step.node], step.parent.map(|at| nodes[at]), 1000, &[(fr(), quota)]);
    tree.set_alive(nodes[step.node], step.alive);
}

fn fr() -> FrId {
    FrId::from_index(0)
}

fn build(random: &RandomTree) -> (QuotaTree, Vec<NodeId>, Vec<NodeId>) {
    let mut tree = QuotaTree::default();
    let name = |kind: &str, at: usize| Name::from(format!("{kind}-{at}"));
    let cohorts: Vec<NodeId> = (0..random.cohorts.len()).map(|at| tree.add_node(name("cohort", at), None)).collect();
    let queues: Vec<NodeId> =
        (0..random.queues.len()).map(|at| tree.add_node(name("queue", at), Some(QueueId::from_index(at)))).collect();
    for (plan, id) in random.cohorts.iter().zip(&cohorts).chain(random.queues.iter().zip(&queues)) {
        tree.configure(*id, plan.parent.map(|at| cohorts[at]), 1000, &[(fr(), quota(plan))]);
    }
    tree.refresh();
    (tree, cohorts, queues)
}

/// The definitions of §7, recomputed at every step.
struct Reference<'a> {
    random: &'a RandomTree,
    used: BTreeMap<usize, i64>,
}

#[derive(Clone, Copy)]
enum Node {
    Cohort(usize),
    Queue(usize),
}

impl Reference<'_> {
    fn plan(&self, node: Node) -> &Plan {
        match node {
            Node::Cohort(at) => &self.random.cohorts[at],
            Node::Queue(at) => &self.random.queues[at],
        }
    }

    fn children(&self, node: Node) -> Vec<Node> {
        let Node::Cohort(id) = node else { return Vec::new() };
        let cohorts = self.random.cohorts.iter().enumerate().filter(|(_, it)| it.parent == Some(id));
        let queues = self.random.queues.iter().enumerate().filter(|(_, it)| it.parent == Some(id));
        cohorts.map(|(at, _)| Node::Cohort(at)).chain(queues.map(|(at, _)| Node::Queue(at))).collect()
    }

    fn subtree(&self, node: Node) -> Amount {
        let lent = self.children(node).into_iter().map(|child| self.subtree(child) - self.guaranteed(child));
        quota(self.plan(node)).nominal + lent.sum()
    }

    fn guaranteed(&self, node: Node) -> Amount {
        match quota(self.plan(node)).lending_limit {
            Some(limit) => (self.subtree(node) - limit).or_zero(),
            None => Amount::ZERO,
        }
    }

    fn usage(&self, node: Node) -> Amount {
        match node {
            Node::Queue(at) => Amount::Bounded(self.used.get(&at).copied().unwrap_or(0)),
            Node::Cohort(_) => {
                let above = self.children(node).into_iter().map(|it| (self.usage(it) - self.guaranteed(it)).or_zero());
                above.sum()
            }
        }
    }

    fn available(&self, node: Node) -> Amount {
        let Some(parent) = self.plan(node).parent else { return self.subtree(node) - self.usage(node) };
        let mut from_parent = self.available(Node::Cohort(parent));
        if let Some(limit) = quota(self.plan(node)).borrowing_limit {
            let lent = self.subtree(node) - self.guaranteed(node);
            let taken = (self.usage(node) - self.guaranteed(node)).or_zero();
            from_parent = from_parent.min(lent - taken + limit);
        }
        (self.guaranteed(node) - self.usage(node)).or_zero() + from_parent
    }

    fn potential(&self, node: Node) -> Amount {
        let Some(parent) = self.plan(node).parent else { return self.subtree(node) };
        let most = self.guaranteed(node) + self.potential(Node::Cohort(parent));
        match quota(self.plan(node)).borrowing_limit {
            Some(limit) => most.min(self.subtree(node) + limit),
            None => most,
        }
    }
}

/// Runs `cases` cases, the same cases in every run, so that a failure is due to a change to the
/// code. `BERTH_PROPERTY_CASES` sets another number of cases, which then differ from run to run.
fn config(cases: u32) -> ProptestConfig {
    let given = std::env::var("BERTH_PROPERTY_CASES").ok().and_then(|text| text.parse().ok());
    ProptestConfig {
        cases: given.unwrap_or(cases),
        failure_persistence: None,
        rng_seed: if given.is_some() { RngSeed::Random } else { RngSeed::Fixed(1) },
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config(2000))]

    #[test]
    fn the_tree_agrees_with_its_definitions(random in random_tree()) {
        let (mut tree, cohorts, queues) = build(&random);
        let mut reference = Reference { random: &random, used: BTreeMap::new() };
        for (queue, amount, leaves) in &random.usage {
            tree.add_usage(queues[*queue], fr(), *amount);
            *reference.used.entry(*queue).or_default() += amount;
            if *leaves {
                tree.remove_usage(queues[*queue], fr(), *amount);
                *reference.used.entry(*queue).or_default() -= amount;
            }
        }
        let nodes = cohorts.iter().enumerate().map(|(at, id)| (Node::Cohort(at), *id));
        let nodes = nodes.chain(queues.iter().enumerate().map(|(at, id)| (Node::Queue(at), *id)));
        for (node, id) in nodes {
            let cell = tree.cell(id, fr());
            prop_assert_eq!(cell.subtree, reference.subtree(node));
            prop_assert_eq!(cell.guaranteed, reference.guaranteed(node));
            prop_assert_eq!(cell.usage, reference.usage(node));
            prop_assert_eq!(tree.available(id, fr()), reference.available(node));
            prop_assert_eq!(tree.potential(id, fr()), reference.potential(node));
        }
    }

    #[test]
    fn a_changed_tree_equals_a_new_tree_with_the_same_configuration(
        steps in proptest::collection::vec(step(), 1..40),
    ) {
        let (mut tree, nodes) = bare();
        let mut last: BTreeMap<usize, Step> = BTreeMap::new();
        let mut usage: Vec<(usize, i64)> = Vec::new();
        for step in &steps {
            apply(&mut tree, &nodes, step);
            last.insert(step.node, step.clone());
            if step.refresh {
                tree.refresh();
            }
            if let Some((queue, amount)) = step.usage {
                tree.add_usage(nodes[COHORTS + queue], fr(), amount);
                usage.push((queue, amount));
            }
        }
        tree.refresh();
        let (mut fresh, nodes) = bare();
        for step in last.values() {
            apply(&mut fresh, &nodes, step);
        }
        fresh.refresh();
        for (queue, amount) in usage {
            fresh.add_usage(nodes[COHORTS + queue], fr(), amount);
        }
        for id in nodes {
            let look = |tree: &QuotaTree| {
                let node = tree.node(id);
                let place = (node.parent, node.children.clone(), node.cyclic, node.root, node.height);
                // A cohort still lists a flavor-resource of which a child once had quota, with
                // amount zero.
                let cell = Cell { declared: true, ..tree.cell(id, fr()) };
                (place, cell, tree.queues_of_root(id).to_vec())
            };
            prop_assert_eq!(look(&tree), look(&fresh));
        }
    }

    #[test]
    fn a_rollback_restores_the_exact_usage(random in random_tree(), tried in proptest::collection::vec((0_usize..6, -50_i64..50), 0..20)) {
        let (mut tree, cohorts, queues) = build(&random);
        for (queue, amount, _) in &random.usage {
            tree.add_usage(queues[*queue], fr(), *amount);
        }
        let cells = |tree: &QuotaTree| -> Vec<_> { cohorts.iter().chain(&queues).map(|id| tree.cell(*id, fr())).collect() };
        let before = cells(&tree);
        let outer = tree.mark();
        for (at, (queue, amount)) in tried.iter().enumerate() {
            let inner = (at % 3 == 0).then(|| tree.mark());
            let queue = queues[queue % queues.len()];
            if *amount >= 0 {
                tree.add_usage(queue, fr(), *amount);
            } else {
                tree.remove_usage(queue, fr(), -amount);
            }
            if let Some(inner) = inner {
                tree.rollback(inner);
            }
        }
        tree.rollback(outer);
        prop_assert_eq!(before, cells(&tree));
    }

    #[test]
    fn no_request_fits_beyond_the_capacity_of_an_unused_tree(random in random_tree()) {
        let (mut tree, _, queues) = build(&random);
        for (queue, amount, _) in &random.usage {
            let id = queues[*queue];
            // Only usage that fits is added, as a scheduler does.
            if Amount::Bounded(*amount) <= tree.available(id, fr()) {
                tree.add_usage(id, fr(), *amount);
            }
        }
        for id in &queues {
            prop_assert!(tree.available(*id, fr()) <= tree.potential(*id, fr()));
            prop_assert!(tree.cell(*id, fr()).usage <= tree.potential(*id, fr()));
        }
    }
}
