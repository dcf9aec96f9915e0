//! Lists of objects in the formats of kubectl: a table, a wide table, JSON, YAML, names and CSV.

use anyhow::Context;
use berth_apimachinery::printed::Table;
use clap::ValueEnum;
use serde_json::{Value, json};

use crate::install;

/// Output format of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table.
    Table,
    /// A table with more columns.
    Wide,
    /// One JSON object.
    Json,
    /// The same as YAML.
    Yaml,
    /// Names that kubectl accepts, one a line.
    Name,
    /// All columns as CSV.
    Csv,
}

/// Output format of a text about one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TextFormat {
    /// Text.
    Text,
    /// The whole object as JSON.
    Json,
}

/// A column of a list.
#[derive(Clone, Copy, Debug)]
pub enum Column {
    /// Shown in every table.
    Usual(&'static str),
    /// Shown in wide tables and CSV only.
    Wide(&'static str),
}

impl Column {
    /// Its title.
    pub fn name(self) -> &'static str {
        let (Self::Usual(name) | Self::Wide(name)) = self;
        name
    }
}

/// A list.
#[derive(Debug, Default)]
pub struct Listing {
    /// All columns.
    pub columns: Vec<Column>,
    /// A cell for each column.
    pub rows: Vec<Vec<String>>,
    /// Names such as `job.batch/train`, one for each row.
    pub names: Vec<String>,
    /// The objects of the rows.
    pub items: Vec<Value>,
}

impl Listing {
    /// The list as text.
    ///
    /// # Errors
    /// The list cannot be written in this format.
    pub fn render(&self, format: Format) -> anyhow::Result<String> {
        match format {
            Format::Table => Ok(self.table(false).render()),
            Format::Wide => Ok(self.table(true).render()),
            Format::Csv => csv_text(&self.table(true)),
            Format::Name => Ok(self.names.iter().map(|name| format!("{name}\n")).collect()),
            Format::Json => Ok(format!("{:#}\n", json!({ "items": self.items }))),
            Format::Yaml => install::yaml(&json!({ "items": self.items })),
        }
    }

    fn table(&self, wide: bool) -> Table {
        let shown = |column: &Column| wide || matches!(column, Column::Usual(_));
        let select = |cells: &[String]| {
            let cells = self.columns.iter().zip(cells).filter(|(column, _)| shown(column));
            cells.map(|(_, cell)| cell.clone()).collect::<Vec<_>>()
        };
        Table {
            columns: self.columns.iter().filter(|it| shown(it)).map(|it| it.name().to_owned()).collect(),
            rows: self.rows.iter().map(|row| select(row)).collect(),
        }
    }
}

/// A table as CSV. Column names are written in lower case, with underscores.
///
/// # Errors
/// Never for text.
pub fn csv_text(table: &Table) -> anyhow::Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let header = table.columns.iter().map(|column| column.to_lowercase().replace([' ', '-'], "_"));
    writer.write_record(header)?;
    for row in &table.rows {
        writer.write_record(row)?;
    }
    String::from_utf8(writer.into_inner()?).context("the table is text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_columns_are_in_wide_tables_and_csv_only() {
        let listing = Listing {
            columns: vec![Column::Usual("NAME"), Column::Wide("LOCAL QUEUE")],
            rows: vec![vec!["a,b".to_owned(), "main".to_owned()]],
            names: vec!["job.batch/a".to_owned()],
            items: vec![json!({"name": "a"})],
        };
        let text = |format: Format| listing.render(format).expect("text");
        assert_eq!(text(Format::Table), "NAME\na,b\n");
        assert_eq!(text(Format::Wide), "NAME   LOCAL QUEUE\na,b    main\n");
        assert_eq!(text(Format::Csv), "name,local_queue\n\"a,b\",main\n");
        assert_eq!(text(Format::Name), "job.batch/a\n");
        assert_eq!(text(Format::Json), "{\n  \"items\": [\n    {\n      \"name\": \"a\"\n    }\n  ]\n}\n");
        assert!(text(Format::Yaml).starts_with("items:\n"), "{}", text(Format::Yaml));
    }
}
