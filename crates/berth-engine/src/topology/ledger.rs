//! What workloads use of each domain: one row per domain, whoever serves it, with an undo log.
//!
//! Rows outlive the domains they stand for. A node that goes and comes back finds the usage of the workloads that still
//! claim it, and a flavor's tree can be rebuilt without asking anybody what they hold.

use std::collections::{HashMap, VecDeque};

use super::amounts::{Demand, Grid};
use crate::ids::{FlavorId, Name};

/// What a row of usage is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Claim {
    /// A domain of one flavor, by the values of all its levels.
    Domain(FlavorId, Vec<Name>),
    /// A node, through whatever flavor.
    Host(Name),
}

/// A row of the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RowId(usize);

/// Changes that are remembered by row. Whoever has not looked for longer looks at everything.
const RECENT_MAX: usize = 4096;

/// Usage per domain.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    rows: HashMap<Claim, RowId>,
    claims: Vec<Claim>,
    used: Grid,
    /// Counts changes: whoever remembers the counter can ask what is new.
    changes: u64,
    /// The rows that changed last, the latest at the end.
    recent: VecDeque<RowId>,
    log: Vec<(RowId, usize, i64)>,
    open_marks: u32,
}

/// A point in the log to go back to.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub(crate) struct Mark(usize);

impl Ledger {
    pub fn widen(&mut self, width: usize) {
        self.used.widen(width);
    }

    /// The row of a domain, made now if it is new.
    pub fn row(&mut self, claim: Claim) -> RowId {
        if let Some(&row) = self.rows.get(&claim) {
            return row;
        }
        let row = RowId(self.used.push());
        self.claims.push(claim.clone());
        self.rows.insert(claim, row);
        row
    }

    /// The row of a domain, if anything was ever counted for it.
    pub fn find(&self, claim: &Claim) -> Option<RowId> {
        self.rows.get(claim).copied()
    }

    /// What a row is about.
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

    /// The rows that changed after this change, some perhaps several times; `None` if that is too long ago to say.
    pub fn changed_since(&self, change: u64) -> Option<Vec<RowId>> {
        let missed = usize::try_from(self.changes - change).ok()?;
        let first = self.recent.len().checked_sub(missed)?;
        Some(self.recent.range(first..).copied().collect())
    }

    /// Adds (or, with a negative count, takes away) what pods use.
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

    /// Replaces what is used.
    #[cfg(feature = "lab")]
    pub fn set(&mut self, row: RowId, cells: &[(usize, i64)]) {
        self.touch(row);
        let used = self.used.row_mut(row.0);
        used.fill(0);
        for &(column, amount) in cells {
            used[column] = amount;
        }
    }

    /// Notes a change that concerns a row.
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
