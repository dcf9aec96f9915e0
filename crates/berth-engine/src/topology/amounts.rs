//! Amounts per resource as dense rows. Resource names become column numbers when they enter the
//! engine.

use std::collections::HashMap;
use std::sync::Arc;

use super::PODS;
use crate::ids::Name;
use crate::model::ResourceList;

/// Resource names as column numbers, in order of first appearance.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    ids: HashMap<Name, usize>,
    names: Vec<Name>,
}

/// Rows grow by this many columns at a time.
const STEP: usize = 8;

impl Columns {
    /// The column of a resource. A new name gets a new column.
    pub fn intern(&mut self, name: &Name) -> usize {
        if let Some(&column) = self.ids.get(name) {
            return column;
        }
        let column = self.names.len();
        self.names.push(name.clone());
        self.ids.insert(name.clone(), column);
        column
    }

    /// The resource of a column.
    pub fn name(&self, column: usize) -> &Name {
        &self.names[column]
    }

    /// Number of columns that every row must have.
    pub fn width(&self) -> usize {
        self.names.len().div_ceil(STEP) * STEP
    }

    /// A list of amounts as (column, amount), in name order.
    pub fn cells(&mut self, list: &ResourceList) -> Vec<(usize, i64)> {
        list.iter().map(|(name, amount)| (self.intern(name), *amount)).collect()
    }

    /// The demand of one pod: its requests, and one of `pods`.
    pub fn demand(&mut self, per_pod: &ResourceList) -> Demand {
        let mut list = per_pod.clone();
        let pods = list.entry(Name::from(PODS)).or_default();
        *pods = pods.saturating_add(1);
        Demand { cells: self.cells(&list).into() }
    }
}

/// Amounts that one pod uses of a node, in name order of the resources, including one of `pods`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Demand {
    pub cells: Arc<[(usize, i64)]>,
}

impl Demand {
    /// Number of such pods that fit into the free amounts (§1.4).
    pub fn count_in(&self, left: impl Fn(usize) -> i64) -> i64 {
        self.limit_in(left).0
    }

    /// Number of such pods that fit into the free amounts, and the column that limits it. On ties,
    /// the column of the first resource by name.
    pub fn limit_in(&self, left: impl Fn(usize) -> i64) -> (i64, Option<usize>) {
        const MOST: i64 = i32::MAX as i64;
        let mut least = (i64::MAX, None);
        for &(column, amount) in self.cells.iter() {
            let fits = if amount <= 0 { MOST } else { (left(column) / amount).clamp(0, MOST) };
            if fits < least.0 {
                least = (fits, Some(column));
            }
        }
        if least.1.is_none() { (0, None) } else { least }
    }

    /// The amount in one column.
    pub fn of(&self, column: usize) -> i64 {
        self.cells.iter().find(|cell| cell.0 == column).map_or(0, |cell| cell.1)
    }

    /// The requests as a list, without the implied request for one of `pods`.
    #[cfg(feature = "lab")]
    pub fn requests(&self, columns: &Columns) -> ResourceList {
        let cells = self.cells.iter().map(|&(column, amount)| (columns.name(column).clone(), amount));
        cells
            .filter_map(|(name, amount)| match (&*name, amount) {
                (PODS, 1) => None,
                (PODS, more) => Some((name, more - 1)),
                _ => Some((name, amount)),
            })
            .collect()
    }
}

/// Rows of equal width.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Grid {
    width: usize,
    cells: Vec<i64>,
}

impl Grid {
    pub fn new(width: usize, rows: usize) -> Grid {
        Grid { width, cells: vec![0; width * rows] }
    }

    /// Adds a row of zeros. Returns its number.
    pub fn push(&mut self) -> usize {
        let row = self.cells.len().checked_div(self.width).unwrap_or(0);
        self.cells.resize(self.cells.len() + self.width, 0);
        row
    }

    /// Inserts a row of zeros before another row.
    pub fn insert(&mut self, row: usize) {
        let at = row * self.width;
        self.cells.splice(at..at, std::iter::repeat_n(0, self.width));
    }

    /// Removes a row.
    pub fn remove(&mut self, row: usize) {
        self.cells.drain(row * self.width..(row + 1) * self.width);
    }

    pub fn row(&self, row: usize) -> &[i64] {
        &self.cells[row * self.width..(row + 1) * self.width]
    }

    pub fn row_mut(&mut self, row: usize) -> &mut [i64] {
        &mut self.cells[row * self.width..(row + 1) * self.width]
    }

    /// Gives every row more columns. A grid has at least one column before its first row.
    pub fn widen(&mut self, width: usize) {
        if width <= self.width {
            return;
        }
        if !self.cells.is_empty() {
            let rows = self.cells.len() / self.width;
            let mut cells = vec![0; rows * width];
            for row in 0..rows {
                cells[row * width..row * width + self.width].copy_from_slice(self.row(row));
            }
            self.cells = cells;
        }
        self.width = width;
    }
}

/// Adds `count` times the cells to a row, saturating.
pub(crate) fn add(row: &mut [i64], cells: &[(usize, i64)], count: i64) {
    for &(column, amount) in cells {
        row[column] = row[column].saturating_add(amount.saturating_mul(count));
    }
}
