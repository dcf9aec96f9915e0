//! A table of `berth top`: columns, rows, and the selection of rows by a filter and their order.

use std::cmp::Ordering;

use berth_apimachinery::quantity::Quantity;
use regex::{Regex, RegexBuilder};

use crate::listing::{Column, Listing};

/// A table.
#[derive(Clone, Debug, Default)]
pub struct Sheet {
    /// All columns.
    pub columns: Vec<Column>,
    /// The rows in their own order.
    pub rows: Vec<Row>,
    /// Sentences about what is not shown, and why.
    pub notices: Vec<String>,
    /// The text in place of rows, if there are none.
    pub if_empty: String,
}

/// A row.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// A cell for each column.
    pub cells: Vec<Cell>,
    /// The object of the row.
    pub target: Target,
    /// Identifies the row among those of the sheet. The filter searches it too.
    pub id: String,
    /// How the row is emphasized.
    pub tone: Tone,
}

/// The content of a cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Text.
    Text(String),
    /// A bar of use against a quota.
    Bar(Bar),
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// Use of an amount. The part above `own` is borrowed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bar {
    /// Used amount.
    pub used: f64,
    /// The amount that may be used without borrowing; infinite without a limit.
    pub own: f64,
}

impl Bar {
    /// Numbers of the `width` positions for the own use and the borrowed use.
    pub fn parts(self, width: usize) -> (usize, usize) {
        let whole = self.own.max(self.used);
        if !whole.is_finite() || whole <= 0.0 {
            return (0, 0);
        }
        let positions = |amount: f64| (amount / whole * width as f64).round() as usize;
        let own = positions(self.used.min(self.own)).min(width);
        let all = positions(self.used).min(width);
        // A small use is visible, and a borrowed part too.
        let own = if self.used > 0.0 && self.own > 0.0 { own.max(1).min(width) } else { own };
        let borrowed = all.saturating_sub(own);
        if self.used > self.own && borrowed == 0 && own > 1 { (own - 1, 1) } else { (own, borrowed) }
    }
}

/// Emphasis of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// None.
    #[default]
    Plain,
    /// Works as it should.
    Good,
    /// Waits.
    Wait,
    /// Failed, or cannot work.
    Bad,
    /// Of little interest.
    Quiet,
    /// A group of rows.
    Group,
}

/// The object of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Target {
    /// None.
    #[default]
    None,
    /// A cohort or ClusterQueue: the ClusterQueues that it stands for, and its name.
    Queues { names: Vec<String>, title: String, is_cohort: bool },
    /// A LocalQueue.
    LocalQueue { namespace: String, name: String },
    /// A Workload.
    Workload { namespace: String, name: String },
    /// A node.
    Node(String),
    /// A pod.
    Pod { namespace: String, name: String },
    /// A text: its title and lines.
    Text { title: String, text: String },
}

impl Sheet {
    /// The sheet of a list, with the target and the tone of each row.
    pub fn of(listing: Listing, about: impl Fn(usize) -> (Target, Tone)) -> Self {
        let rows = listing.rows.into_iter().zip(listing.names).enumerate().map(|(at, (cells, name))| {
            let (target, tone) = about(at);
            let id = match &target {
                Target::Workload { namespace, name } | Target::Pod { namespace, name } => format!("{namespace}/{name}"),
                _ => name,
            };
            Row { cells: cells.into_iter().map(Cell::Text).collect(), target, id, tone }
        });
        Self { columns: listing.columns, rows: rows.collect(), ..Self::default() }
    }

    /// Indices of the rows that the filter selects, in the order of `sort`.
    pub fn select(&self, filter: &Filter, sort: Option<Sort>) -> Vec<usize> {
        let mut selected: Vec<usize> = (0..self.rows.len()).filter(|at| filter.selects(&self.rows[*at])).collect();
        let Some(sort) = sort else { return selected };
        let Some(column) = self.columns.iter().position(|it| it.name() == sort.column) else { return selected };
        let mut ranked: Vec<(Rank, usize)> =
            selected.iter().map(|at| (rank(sort.column, self.rows[*at].cells.get(column)), *at)).collect();
        ranked.sort_by(|(a, at), (b, bt)| {
            let order = a.cmp(b);
            if sort.is_descending { order.reverse() } else { order }.then(at.cmp(bt))
        });
        selected.clear();
        selected.extend(ranked.into_iter().map(|(_, at)| at));
        selected
    }
}

/// Order of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sort {
    /// Title of the column.
    pub column: &'static str,
    /// True for the largest value first.
    pub is_descending: bool,
}

/// Selects rows by a text. An exclamation mark in front selects the others.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// The text as typed.
    pub text: String,
    pattern: Option<Regex>,
}

impl Filter {
    /// A filter: a regular expression, or text if it is not a valid one. Case is ignored.
    pub fn new(text: &str) -> Self {
        let searched = text.strip_prefix('!').unwrap_or(text);
        let build = |pattern: &str| RegexBuilder::new(pattern).case_insensitive(true).size_limit(1 << 20).build().ok();
        let pattern = build(searched).or_else(|| build(&regex::escape(searched)));
        Self { text: text.to_owned(), pattern: pattern.filter(|_| !searched.is_empty()) }
    }

    fn selects(&self, row: &Row) -> bool {
        let Some(pattern) = &self.pattern else { return true };
        let mut texts = row.cells.iter().filter_map(|cell| match cell {
            Cell::Text(text) => Some(text.as_str()),
            Cell::Bar(_) => None,
        });
        let is_found = pattern.is_match(&row.id) || texts.any(|text| pattern.is_match(text));
        is_found != self.text.starts_with('!')
    }
}

/// Order of a cell within its column. Missing values come first.
#[derive(Clone, Debug, PartialEq)]
enum Rank {
    Missing,
    Number(f64),
    Text(String),
}

impl Rank {
    fn cmp(&self, other: &Self) -> Ordering {
        let class = |rank: &Self| match rank {
            Self::Missing => 0,
            Self::Number(_) => 1,
            Self::Text(_) => 2,
        };
        match (self, other) {
            (Self::Number(a), Self::Number(b)) => a.total_cmp(b),
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            (a, b) => class(a).cmp(&class(b)),
        }
    }
}

/// Columns whose cells are durations as kubectl prints them.
const DURATIONS: [&str; 3] = ["TIME", "AGE", "LAST SEEN"];

fn rank(column: &str, cell: Option<&Cell>) -> Rank {
    let text = match cell {
        Some(Cell::Text(text)) => text.trim(),
        Some(Cell::Bar(bar)) => return Rank::Number(if bar.own > 0.0 { bar.used / bar.own } else { bar.used }),
        None => return Rank::Missing,
    };
    if matches!(text, "" | "-" | "<none>" | "<unknown>") {
        return Rank::Missing;
    }
    let number = match DURATIONS.contains(&column) {
        true => seconds(text),
        false => {
            Quantity::parse(text.split_once('/').map_or(text, |(used, _)| used)).ok().map(|it| it.as_approximate_f64())
        }
    };
    number.map_or_else(|| Rank::Text(text.to_lowercase()), Rank::Number)
}

/// Seconds of a duration such as `3d4h`.
fn seconds(text: &str) -> Option<f64> {
    let (mut total, mut digits) = (0.0, String::new());
    for character in text.chars() {
        if character.is_ascii_digit() {
            digits.push(character);
            continue;
        }
        let unit = match character {
            's' => 1.0,
            'm' => 60.0,
            'h' => 3_600.0,
            'd' => 86_400.0,
            'y' => 31_536_000.0,
            _ => return None,
        };
        total += std::mem::take(&mut digits).parse::<f64>().ok()? * unit;
    }
    digits.is_empty().then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sheet(column: &'static str, cells: &[&str]) -> Sheet {
        let row = |cell: &&str| Row {
            cells: vec![Cell::Text((*cell).to_owned())],
            id: format!("id-{cell}"),
            ..Row::default()
        };
        Sheet { columns: vec![Column::Usual(column)], rows: cells.iter().map(row).collect(), ..Sheet::default() }
    }

    fn sorted(column: &'static str, cells: &[&str], is_descending: bool) -> Vec<String> {
        let sheet = sheet(column, cells);
        let order = sheet.select(&Filter::default(), Some(Sort { column, is_descending }));
        order.into_iter().map(|at| cells[at].to_owned()).collect()
    }

    #[test]
    fn rows_are_sorted_by_the_value_of_their_cells() {
        assert_eq!(sorted("TIME", &["2h", "90s", "3d4h", "-", "10m"], false), ["-", "90s", "10m", "2h", "3d4h"]);
        assert_eq!(sorted("CPU", &["500m/4", "10/16", "2/4", "-"], true), ["10/16", "2/4", "500m/4", "-"]);
        assert_eq!(sorted("PRIORITY", &["100", "-5", "20"], false), ["-5", "20", "100"]);
        assert_eq!(sorted("USER", &["bob", "Alice", "<none>"], false), ["<none>", "Alice", "bob"]);
    }

    #[test]
    fn a_filter_is_an_expression_or_a_text_and_can_be_inverted() {
        let sheet = sheet("JOB", &["train-1", "eval[2]", "Train-3"]);
        let found = |text: &str| sheet.select(&Filter::new(text), None);
        assert_eq!(found(""), [0, 1, 2]);
        assert_eq!(found("^train-.$"), [0, 2]);
        assert_eq!(found("!train"), [1]);
        assert_eq!(found("l[2"), [1], "no valid expression is a text");
        assert_eq!(found("!"), [0, 1, 2]);
        assert_eq!(found("id-eval"), [1]);
    }

    #[test]
    fn a_bar_shows_small_uses_and_borrowed_parts() {
        let parts = |used: f64, own: f64| Bar { used, own }.parts(10);
        assert_eq!(parts(0.0, 8.0), (0, 0));
        assert_eq!(parts(0.1, 8.0), (1, 0));
        assert_eq!(parts(4.0, 8.0), (5, 0));
        assert_eq!(parts(8.0, 4.0), (5, 5));
        assert_eq!(parts(8.1, 8.0), (9, 1));
        assert_eq!(parts(3.0, 0.0), (0, 10));
        assert_eq!(parts(3.0, f64::INFINITY), (0, 0));
        assert_eq!(parts(0.0, 0.0), (0, 0));
    }
}
