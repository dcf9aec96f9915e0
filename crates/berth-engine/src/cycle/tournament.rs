//! The fair-sharing tournament (§6.2). Of all heads of a cohort tree, the next is the one whose
//! subtree would have the smallest share. Every step changes the shares.
//!
//! A step changes usage only on the path from one queue to its root. Shares of nodes off that path
//! are unchanged, and so are the winners below those nodes. Therefore every cohort keeps its
//! children in a bracket, and a step replays only the matches on the path. Its cost is the depth of
//! the tree times the logarithm of a cohort's children.

use std::collections::{BTreeMap, BTreeSet};

use super::Entry;
use super::order::Contender;
use crate::ids::NodeId;
use crate::world::World;

/// The entries that were not taken yet. See the module's documentation.
pub(crate) struct Tournament {
    /// Entries in the order of nomination; `None` once taken.
    entries: Vec<Option<Box<Entry>>>,
    /// Index of the first entry that may not be taken yet.
    first: usize,
    /// Entries of each queue; only the last one competes.
    by_queue: BTreeMap<NodeId, Vec<usize>>,
    /// Roots whose brackets are filled.
    started: BTreeSet<NodeId>,
    brackets: BTreeMap<NodeId, Bracket>,
    /// The queue whose entry was taken last.
    played: Option<NodeId>,
}

impl Tournament {
    pub fn new(world: &World, entries: Vec<Box<Entry>>) -> Self {
        let mut by_queue: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
        for (at, entry) in entries.iter().enumerate() {
            by_queue.entry(world.queue(entry.queue).node).or_default().push(at);
        }
        Tournament {
            entries: entries.into_iter().map(Some).collect(),
            first: 0,
            by_queue,
            started: BTreeSet::new(),
            brackets: BTreeMap::new(),
            played: None,
        }
    }

    /// Takes the next entry: the winner in the tree of the first remaining entry.
    pub fn next(&mut self, world: &mut World) -> Option<Box<Entry>> {
        if let Some(queue) = self.played.take() {
            self.replay(world, queue);
        }
        while self.entries.get(self.first)?.is_none() {
            self.first += 1;
        }
        let node = world.queue(self.entries[self.first].as_ref()?.queue).node;
        if world.tree.node(node).parent.is_none() {
            return self.take(node, self.first);
        }
        let root = world.tree.node(node).root;
        if self.started.insert(root) {
            self.start(world, root);
        }
        let winner = self.brackets.get(&root)?.winner()?.entry;
        let queue = world.queue(self.entries[winner].as_ref()?.queue).node;
        self.played = Some(queue);
        self.take(queue, winner)
    }

    fn take(&mut self, queue: NodeId, at: usize) -> Option<Box<Entry>> {
        if let Some(entries) = self.by_queue.get_mut(&queue) {
            entries.retain(|other| *other != at);
        }
        self.entries[at].take()
    }

    /// Builds the brackets of a tree from the children that have entries, in their order.
    fn start(&mut self, world: &mut World, root: NodeId) {
        let queues: Vec<NodeId> =
            self.by_queue.keys().copied().filter(|queue| world.tree.node(*queue).root == root).collect();
        let mut involved: BTreeSet<NodeId> = BTreeSet::new();
        for &queue in &queues {
            involved.extend(world.tree.path_to_root(queue));
        }
        for &node in &involved {
            if !world.tree.node(node).is_queue {
                let children = world.tree.node(node).children.iter().copied().filter(|child| involved.contains(child));
                self.brackets.insert(node, Bracket::new(children.collect()));
            }
        }
        // The brackets are filled from the queues upwards, so that each match is played once.
        let mut upwards: Vec<NodeId> = involved.into_iter().filter(|node| *node != root).collect();
        upwards.sort_by_cached_key(|node| std::cmp::Reverse(world.tree.path_to_root(*node).count()));
        for node in upwards {
            let Some(cohort) = world.tree.node(node).parent else { continue };
            let contender = self.candidate(node).and_then(|at| self.contender(world, node, at));
            if let Some(bracket) = self.brackets.get_mut(&cohort) {
                bracket.set(node, contender, &world.config.gates);
            }
        }
    }

    /// The entry that represents a queue or a cohort in the next match.
    fn candidate(&self, node: NodeId) -> Option<usize> {
        match self.brackets.get(&node) {
            Some(bracket) => bracket.winner().map(|winner| winner.entry),
            None => self.by_queue.get(&node)?.last().copied(),
        }
    }

    /// Replays the matches that depend on the entries and the usage of a queue.
    fn replay(&mut self, world: &mut World, queue: NodeId) {
        let way: Vec<NodeId> = world.tree.path_to_root(queue).collect();
        for step in way.windows(2) {
            let &[child, cohort] = step else { continue };
            let contender = self.candidate(child).and_then(|at| self.contender(world, child, at));
            if let Some(bracket) = self.brackets.get_mut(&cohort) {
                bracket.set(child, contender, &world.config.gates);
            }
        }
    }

    /// The properties by which an entry is compared among the children of a cohort. Its share is
    /// the one that the child would have with the entry admitted.
    fn contender(&self, world: &mut World, child: NodeId, at: usize) -> Option<Contender> {
        let entry = self.entries[at].as_ref()?;
        let requested = entry.quota_usage();
        let queue = world.queue(entry.queue).node;
        let mark = world.tree.mark();
        world.add_usage(queue, &requested);
        let share = world.share(child);
        world.tree.rollback(mark);
        let record = world.record(entry.workload);
        Some(Contender {
            entry: at,
            is_preemptor: entry.is_preemptor,
            share,
            requested,
            priority: record.priority,
            time: record.order_time,
        })
    }
}

/// The children of one cohort, as the leaves of a binary tree of matches.
struct Bracket {
    children: BTreeMap<NodeId, usize>,
    contenders: Vec<Option<Contender>>,
    /// Winner of each match. Match 1 is the final, and the matches below match `n` are `2n` and `2n
    /// + 1`. A leaf's number is its position plus the number of leaves.
    wins: Vec<Option<usize>>,
}

impl Bracket {
    fn new(children: Vec<NodeId>) -> Self {
        let leaves = children.len().next_power_of_two();
        Bracket {
            contenders: children.iter().map(|_| None).collect(),
            children: children.into_iter().enumerate().map(|(at, child)| (child, at)).collect(),
            wins: vec![None; 2 * leaves],
        }
    }

    fn winner(&self) -> Option<&Contender> {
        self.wins[1].and_then(|at| self.contenders[at].as_ref())
    }

    /// Replaces the contender of a child. Of two equal contenders, the child that comes first
    /// wins.
    fn set(&mut self, child: NodeId, contender: Option<Contender>, gates: &crate::config::FeatureGates) {
        let Some(&at) = self.children.get(&child) else { return };
        let mut game = self.wins.len() / 2 + at;
        self.wins[game] = contender.is_some().then_some(at);
        self.contenders[at] = contender;
        while game > 1 {
            game /= 2;
            let (left, right) = (self.wins[2 * game], self.wins[2 * game + 1]);
            let contender = |at: Option<usize>| at.and_then(|at| self.contenders[at].as_ref());
            self.wins[game] = match (contender(left), contender(right)) {
                (Some(a), Some(b)) if b.goes_before(a, gates) => right,
                (None, _) => right,
                _ => left,
            };
        }
    }
}
