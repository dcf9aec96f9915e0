//! Usage of the quota tree without certain workloads, stored separately from the tree's own usage.
//! Every entry of a cycle needs the usage without all earlier victims. Removing these from the tree
//! for each entry would cost their number every time.

use std::collections::HashMap;

use super::FrAmounts;
use super::tree::{Cell, QuotaTree};
use crate::amount::Amount;
use crate::ids::{FrId, NodeId};

/// Usage of the cells that differ from the tree's.
#[derive(Debug, Default)]
pub(crate) struct AssumedUsage {
    usage: HashMap<(NodeId, FrId), Amount>,
    log: Vec<((NodeId, FrId), Option<Amount>)>,
}

impl AssumedUsage {
    fn cell(&self, tree: &QuotaTree, id: NodeId, fr: FrId) -> Cell {
        let mut cell = tree.cell(id, fr);
        if let Some(usage) = self.usage.get(&(id, fr)) {
            cell.usage = *usage;
        }
        cell
    }

    fn set(&mut self, id: NodeId, fr: FrId, usage: Amount) {
        let before = self.usage.insert((id, fr), usage);
        self.log.push(((id, fr), before));
    }

    /// Amount available to a node (§7.3).
    pub fn available(&self, tree: &QuotaTree, id: NodeId, fr: FrId) -> Amount {
        tree.available_of(id, &|id| self.cell(tree, id, fr))
    }

    /// Removes amounts at a queue here, not in the tree.
    pub fn remove(&mut self, tree: &QuotaTree, queue: NodeId, amounts: &FrAmounts) {
        for &(fr, amount) in amounts {
            let mut at = Some(queue);
            let mut amount = Amount::Bounded(amount);
            while let Some(id) = at {
                let cell = self.cell(tree, id, fr);
                self.set(id, fr, cell.usage - amount);
                let Some(part) = cell.climbs_when_removed(amount) else { break };
                amount = part;
                at = tree.node(id).parent;
            }
        }
    }

    /// Adds amounts at a queue. The caller adds them to the tree as well, after this call.
    pub fn add(&mut self, tree: &QuotaTree, queue: NodeId, amounts: &FrAmounts) {
        for &(fr, amount) in amounts {
            let mut climbing = Some(Amount::Bounded(amount));
            // The tree's usage may change up to the root. Here it must not change above the node to
            // which the amount climbs, so those cells are stored with their current usage.
            for id in tree.path_to_root(queue) {
                let cell = self.cell(tree, id, fr);
                self.set(id, fr, cell.usage + climbing.unwrap_or(Amount::ZERO));
                climbing = climbing.and_then(|amount| cell.climbs_when_added(amount));
            }
        }
    }

    /// A state to [roll back](Self::rollback) to.
    pub fn mark(&self) -> usize {
        self.log.len()
    }

    /// Rolls back to a mark. The tree must not have changed since then.
    pub fn rollback(&mut self, mark: usize) {
        for (cell, before) in self.log.drain(mark..).rev() {
            match before {
                Some(usage) => self.usage.insert(cell, usage),
                None => self.usage.remove(&cell),
            };
        }
    }
}
