//! Tables in other formats than text.

use anyhow::Context;
use berth_apimachinery::printed::Table;

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
