//! The usage of each domain by workloads, with an undo log. Each domain has one row, regardless of
//! the flavors that it serves.
//!
//! Rows outlive their domains. If a node is removed and returns, the usage of the workloads that
//! still hold it is intact, and a flavor's tree can be rebuilt without recomputing usage.

use std::collections::{HashMap, VecDeque};

use super::amounts::{Demand, Grid};
use crate::ids::{FlavorId, Name};

/// The domain whose usage a row counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Claim {
    /// A domain of one flavor, by the values of all its levels.
    Domain(FlavorId, Vec<Name>),
    /// A node, regardless of the flavor through which it is used.
    Host(Name),
}

/// A row of the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RowId(usize);

/// Maximum number of recent changes that are remembered by row. A reader that is further behind
/// reads all rows.
const RECENT_MAX: usize = 4096;

/// Usage per domain.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    rows: HashMap<Claim, RowId>,
    claims: Vec<Claim>,
    used: Grid,
    /// Number of changes. A reader that remembers it can read only the rows that changed since.
    changes: u64,
    /// The rows that changed most recently, the latest at the end.
    recent: VecDeque<RowId>,
    log: Vec<(RowId, usize, i64)>,
    open_marks: u32,
}

/// A position in the undo log to roll back to.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub(crate) struct Mark(usize);

impl Ledger {
    pub fn widen(&mut self, width: usize) {
        self.used.widen(width);
    }

    /// The row of a domain. A new domain gets a new row.
    pub fn row(&mut self, claim: Claim) -> RowId {
        if let Some(&row) = self.rows.get(&claim) {
            return row;
        }
        let row = RowId(self.used.push());
        self.claims.push(claim.clone());
        self.rows.insert(claim, row);
        row
    }

    /// The row of a domain, if any usage was ever counted for it.
    pub fn find(&self, claim: &Claim) -> Option<RowId> {
        self.rows.get(claim).copied()
    }

    /// The domain whose usage a row counts.
    #[cfg(feature = "lab")]
    pub fn claim(&self, row: RowId) -> &Claim {
        &self.claims[row.0]
    }

    /// Amounts used, per column.
    pub fn used(&self, row: RowId) -> &[i64] {
        self.used.row(row.0)
    }

    /// Number of the last change to any row.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// The rows that changed after this change, possibly with repetitions. `None` if the change is
    /// too long ago.
    pub fn changed_since(&self, change: u64) -> Option<Vec<RowId>> {
        let missed = usize::try_from(self.changes - change).ok()?;
        let first = self.recent.len().checked_sub(missed)?;
        Some(self.recent.range(first..).copied().collect())
    }

    /// Adds the usage of pods, or subtracts it for a negative count.
    pub fn add(&mut self, row: RowId, demand: &Demand, count: i64) {
        self.touch(row);
        let used = self.used.row_mut(row.0);
        for &(column, amount) in demand.cells.iter() {
            if self.open_marks > 0 {
                self.log.push((row, column, used[column]));
            }
            used[column] = used[column].saturating_add(amount.saturating_mul(count));
        }
    }

    /// Replaces a row's usage.
    #[cfg(feature = "lab")]
    pub fn set(&mut self, row: RowId, cells: &[(usize, i64)]) {
        self.touch(row);
        let used = self.used.row_mut(row.0);
        used.fill(0);
        for &(column, amount) in cells {
            used[column] = amount;
        }
    }

    /// Records a change that concerns a row.
    pub fn touch(&mut self, row: RowId) {
        self.changes += 1;
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(row);
    }

    pub fn mark(&mut self) -> Mark {
        self.open_marks += 1;
        Mark(self.log.len())
    }

    pub fn rollback(&mut self, mark: Mark) {
        while self.log.len() > mark.0 {
            if let Some((row, column, amount)) = self.log.pop() {
                self.used.row_mut(row.0)[column] = amount;
                self.touch(row);
            }
        }
        self.open_marks -= 1;
    }
}
