//! Tables with typed columns, as CSV and as Parquet.

pub mod parquet;

use std::io::IsTerminal;

use anyhow::{Context, bail};
use berth_apimachinery::printed::Table;
use berth_apimachinery::times;
use jiff::Timestamp;

use crate::process;

/// Type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Text.
    Text,
    /// A whole number.
    Integer,
    /// A number.
    Number,
    /// A time.
    Time,
}

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name in files: lower case, with underscores.
    pub name: String,
    /// Type of its values.
    pub kind: Kind,
    /// True if a cell may be empty. Empty text is a value.
    pub is_optional: bool,
}

/// A cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// No value.
    Empty,
    /// A value of [`Kind::Text`].
    Text(String),
    /// A value of [`Kind::Integer`].
    Integer(i64),
    /// A value of [`Kind::Number`].
    Number(f64),
    /// A value of [`Kind::Time`].
    Time(Timestamp),
}

/// A table: each row has a cell for each column, of the type of the column.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Flat {
    /// The columns.
    pub columns: Vec<Column>,
    /// The rows.
    pub rows: Vec<Vec<Cell>>,
}

impl Column {
    /// A column whose cells all have a value.
    pub fn required(title: &str, kind: Kind) -> Self {
        Self { name: name_in_files(title), kind, is_optional: false }
    }

    /// A column whose cells may be empty.
    pub fn optional(title: &str, kind: Kind) -> Self {
        Self { is_optional: true, ..Self::required(title, kind) }
    }
}

/// The name of a column in files, from its title in tables.
pub fn name_in_files(title: &str) -> String {
    title.to_lowercase().replace([' ', '-'], "_")
}

impl Cell {
    /// A cell of a type, from its text in a table, where `-` and `<none>` mean that there is no
    /// value.
    ///
    /// # Errors
    /// The text is no value of the type.
    pub fn parse(kind: Kind, text: &str) -> anyhow::Result<Self> {
        Ok(match kind {
            Kind::Text => Self::Text(text.to_owned()),
            _ if matches!(text, "" | "-" | "<none>") => Self::Empty,
            Kind::Integer => Self::Integer(text.parse()?),
            Kind::Number => Self::Number(text.parse()?),
            Kind::Time => Self::Time(text.parse()?),
        })
    }

    fn text(&self) -> String {
        match self {
            Self::Empty => String::new(),
            Self::Text(text) => text.clone(),
            Self::Integer(number) => number.to_string(),
            Self::Number(number) => number.to_string(),
            Self::Time(at) => times::time(*at),
        }
    }
}

impl Flat {
    /// The table as CSV.
    ///
    /// # Errors
    /// Never for text.
    pub fn csv(&self) -> anyhow::Result<String> {
        let columns = self.columns.iter().map(|column| column.name.clone()).collect();
        let rows = self.rows.iter().map(|row| row.iter().map(Cell::text).collect()).collect();
        csv_text(&Table { columns, rows })
    }

    /// Writes the table to the standard output, as Parquet.
    ///
    /// # Errors
    /// The output is a terminal, or the table cannot be written.
    pub fn print_parquet(&self) -> anyhow::Result<()> {
        if std::io::stdout().is_terminal() {
            bail!("-o parquet writes a file that no terminal can show; redirect it: berth … -o parquet > FILE");
        }
        process::print_bytes(&parquet::file(self)?)
    }
}

/// A table as CSV.
///
/// # Errors
/// Never for text.
pub fn csv_text(table: &Table) -> anyhow::Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(table.columns.iter().map(|title| name_in_files(title)))?;
    for row in &table.rows {
        writer.write_record(row)?;
    }
    String::from_utf8(writer.into_inner()?).context("the table is text")
}
