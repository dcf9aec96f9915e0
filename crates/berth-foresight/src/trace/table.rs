//! CSV files with a header line: columns by name, and errors with the line.

use std::collections::HashMap;
use std::str::FromStr;

use csv::{ReaderBuilder, StringRecord};

use super::Problem;

/// The rows of a CSV file.
pub(super) struct Table {
    columns: HashMap<String, usize>,
    /// Names of the columns in their order.
    pub header: Vec<String>,
    rows: Vec<StringRecord>,
}

impl Table {
    /// Reads a file and checks that it has the required columns.
    pub fn read(text: &str, required: &[&str]) -> Result<Table, Problem> {
        let mut reader = ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
        let header: Vec<String> = reader.headers().map_err(problem)?.iter().map(str::to_owned).collect();
        let columns: HashMap<String, usize> = header.iter().cloned().zip(0..).collect();
        if let Some(missing) = required.iter().find(|name| !columns.contains_key(**name)) {
            let needed = required.join(", ");
            return Err(Problem::at(1, format!("column {missing} is missing: the header line needs {needed}")));
        }
        let rows = reader.into_records().collect::<Result<_, _>>().map_err(problem)?;
        Ok(Table { columns, header, rows })
    }

    /// The rows.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|record| Row { table: self, record })
    }
}

fn problem(error: csv::Error) -> Problem {
    let line = error.position().map(csv::Position::line);
    let text = match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("the line has {len} columns: the header line has {expected_len}")
        }
        _ => format!("is not a CSV file: {error}"),
    };
    Problem { line, text }
}

/// One row.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    table: &'a Table,
    record: &'a StringRecord,
}

impl<'a> Row<'a> {
    /// The line of the row.
    pub fn line(self) -> u64 {
        self.record.position().map_or(0, csv::Position::line)
    }

    /// A problem in this row.
    pub fn problem(self, text: impl Into<String>) -> Problem {
        Problem::at(self.line(), text)
    }

    /// The text of a column; `None` if the column is missing or empty here.
    pub fn text(self, column: &str) -> Option<&'a str> {
        self.record.get(*self.table.columns.get(column)?).filter(|text| !text.is_empty())
    }

    /// The parsed value of a column; `None` if it is missing or empty here.
    pub fn value<T: FromStr>(self, column: &str, expected: &str) -> Result<Option<T>, Problem> {
        let Some(text) = self.text(column) else { return Ok(None) };
        let value = text.parse().map_err(|_| self.problem(format!("{column} is \"{text}\": expected {expected}")))?;
        Ok(Some(value))
    }

    /// A value that must be present.
    pub fn required<T: FromStr>(self, column: &str, expected: &str) -> Result<T, Problem> {
        let value = self.value(column, expected)?;
        value.ok_or_else(|| self.problem(format!("{column} is empty: expected {expected}")))
    }

    /// A number of seconds that is not negative.
    pub fn seconds(self, column: &str) -> Result<Option<std::time::Duration>, Problem> {
        const EXPECTED: &str = "seconds, not negative";
        let Some(value) = self.value::<f64>(column, EXPECTED)? else { return Ok(None) };
        let duration = super::builder::seconds(value);
        let text = self.text(column).unwrap_or_default();
        duration.map(Some).ok_or_else(|| self.problem(format!("{column} is \"{text}\": expected {EXPECTED}")))
    }
}
