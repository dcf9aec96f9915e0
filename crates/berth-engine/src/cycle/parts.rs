//! A cycle in parts. Each part decides some whole cohort trees. The cycle is complete when every
//! queue that had a head at its start was decided.
//!
//! Quota is shared only within a tree, victims are found within it (§9, §10), and the order of
//! entries (§6) matters only among entries of the same tree. A tree's decisions are therefore the
//! same whether other trees are decided with it, before it or after it.
//!
//! Trees that are not independent are decided together. All trees whose queues have flavors with a
//! topology are one part, because they share nodes (§14). All trees are one part if a second pass
//! precedes all other entries (§17.6), if one admission holds back all later entries (§20.4), or if
//! variants depend on each other (§23).

use super::Entry;
use crate::ids::{NodeId, QueueId};
use crate::waiting::PendingQueues;
use crate::world::World;

/// The current cycle: its queues that were not decided yet, and its result so far.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// Queues with a head in the cycle, each with its root; queues of one tree are adjacent.
    queues: Vec<(NodeId, QueueId)>,
    /// Number of queues that were decided.
    decided: usize,
    /// Number of leading queues that belong to one part.
    together: usize,
    /// Version of the trees for which the roots were computed.
    roots: u64,
    /// True once a workload was decided.
    pub has_decided: bool,
    /// True once a part of the cycle was a success; see `CycleOutcome::is_success`.
    pub succeeded: bool,
    /// True once the next cycle may decide something that this one could not.
    pub progress: bool,
}

impl Parts {
    /// Begins a cycle with these second passes. Every active queue with a candidate contributes a
    /// head (§4.9).
    pub fn begin(world: &World, pending_queues: &PendingQueues, second_passes: &[Box<Entry>]) -> Parts {
        let candidates = pending_queues.queues_with_candidates().into_iter();
        let active = candidates.filter(|queue| world.queue(*queue).is_active());
        let mut queues: Vec<_> = active.map(|queue| (root(world, queue), queue)).collect();
        // The sort is stable: queues of a tree stay in order.
        queues.sort_by_key(|(root, _)| *root);
        let all = !second_passes.is_empty()
            || world.config.block_admission_on_pods_ready
            || world.config.gates.concurrent_admission;
        let together = if all { queues.len() } else { put_trees_on_nodes_first(world, &mut queues) };
        Parts { queues, together, roots: world.tree.roots_version(), ..Parts::default() }
    }

    /// True if every queue was decided.
    pub fn is_done(&self) -> bool {
        self.decided == self.queues.len()
    }

    /// The queues of the next part: whole trees, until they have `heads` heads.
    pub fn next(&mut self, world: &World, heads: usize) -> Vec<(NodeId, QueueId)> {
        let rest = &mut self.queues[self.decided..];
        if self.roots != world.tree.roots_version() {
            // A queue or cohort changed its tree since the last part.
            rest.iter_mut().for_each(|(known, queue)| *known = root(world, *queue));
            rest.sort_by_key(|(root, _)| *root);
            self.roots = world.tree.roots_version();
        }
        let mut part: Vec<(NodeId, QueueId)> = Vec::new();
        while let Some(&(root, queue)) = self.queues.get(self.decided) {
            let begins_tree = part.last().is_some_and(|(last, _)| *last != root);
            if begins_tree && part.len() >= heads && self.decided >= self.together {
                break;
            }
            self.decided += 1;
            // The queue may have been stopped since the cycle began.
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

/// Moves trees whose heads may be placed on nodes before the others; returns the number of their
/// queues.
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
