//! A cycle answered in parts: whole cohort trees, some at a time, until every queue that had a head when the cycle began
//! has been asked once.
//!
//! Quota is shared within a tree and nowhere else, victims are found within it (§9, §10), and whose turn it is (§6) matters
//! to entries of the same tree only: a tree's answers are the same whether other trees are answered with it, before it or
//! after it. Where that is not so, trees are answered together: all whose queues have flavors with a topology, as they share
//! nodes (§14); all there are when a second pass goes before everybody (§17.6), when one admission holds back whoever comes
//! after it (§20.4), and when variants look at each other (§23).

use super::Entry;
use crate::ids::{NodeId, QueueId};
use crate::waiting::PendingQueues;
use crate::world::World;

/// The cycle that was begun last: who is still to be asked, and what came of it so far.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// The queues that give a head to the cycle, with the root of each, those of one tree together.
    queues: Vec<(NodeId, QueueId)>,
    /// How many of them have been asked.
    asked: usize,
    /// How many of the first ones are asked in one part.
    together: usize,
    /// The state of the trees for which the roots were found.
    roots: u64,
    /// Somebody was answered; was admitted or evicted; or the next cycle may decide something this one could not.
    pub answered: bool,
    pub succeeded: bool,
    pub progress: bool,
}

impl Parts {
    /// Begins a cycle, with these second passes: every active queue that has a candidate gives a head (§4.9).
    pub fn begin(world: &World, pending_queues: &PendingQueues, second_passes: &[Box<Entry>]) -> Parts {
        let candidates = pending_queues.queues_with_candidates().into_iter();
        let active = candidates.filter(|queue| world.queue(*queue).is_active());
        let mut queues: Vec<_> = active.map(|queue| (root(world, queue), queue)).collect();
        // Stable: queues of a tree stay in order.
        queues.sort_by_key(|(root, _)| *root);
        let all = !second_passes.is_empty()
            || world.config.block_admission_on_pods_ready
            || world.config.gates.concurrent_admission;
        let together = if all { queues.len() } else { put_trees_on_nodes_first(world, &mut queues) };
        Parts { queues, together, roots: world.tree.roots_version(), ..Parts::default() }
    }

    /// True if nobody is left to be asked.
    pub fn is_done(&self) -> bool {
        self.asked == self.queues.len()
    }

    /// The queues of the next part: whole trees, until there are so many heads.
    pub fn next(&mut self, world: &World, heads: usize) -> Vec<(NodeId, QueueId)> {
        let rest = &mut self.queues[self.asked..];
        if self.roots != world.tree.roots_version() {
            // A queue or cohort moved since the last part.
            rest.iter_mut().for_each(|(known, queue)| *known = root(world, *queue));
            rest.sort_by_key(|(root, _)| *root);
            self.roots = world.tree.roots_version();
        }
        let mut part: Vec<(NodeId, QueueId)> = Vec::new();
        while let Some(&(root, queue)) = self.queues.get(self.asked) {
            let begins_tree = part.last().is_some_and(|(last, _)| *last != root);
            if begins_tree && part.len() >= heads && self.asked >= self.together {
                break;
            }
            self.asked += 1;
            // It may have been stopped since the cycle began.
            if world.queue(queue).is_active() {
                part.push((root, queue));
            }
        }
        part
    }
}

fn root(world: &World, queue: QueueId) -> NodeId {
    world.tree.node(world.queue(queue).node).root
}

/// Moves trees whose heads may go to nodes before the others. How many queues those have.
fn put_trees_on_nodes_first(world: &World, queues: &mut [(NodeId, QueueId)]) -> usize {
    if world.flavors.iter().flatten().all(|flavor| flavor.topology.is_none()) {
        return 0;
    }
    let on_nodes = |queue: QueueId| {
        let mut slots = world.queue(queue).config.slots();
        slots.any(|slot| world.flavor(slot.flavor).is_some_and(|flavor| flavor.topology.is_some()))
    };
    let mut roots: Vec<NodeId> = queues.iter().filter(|(_, queue)| on_nodes(*queue)).map(|(root, _)| *root).collect();
    roots.dedup();
    let is_first = |root: &NodeId| roots.binary_search(root).is_ok();
    queues.sort_by_key(|(root, _)| !is_first(root));
    queues.partition_point(|(root, _)| is_first(root))
}
