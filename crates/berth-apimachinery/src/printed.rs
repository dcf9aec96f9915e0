//! Tables as kubectl prints them.

/// A table: column names, and rows of cells as printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Upper-case column names.
    pub columns: Vec<String>,
    /// Cells, one list per object. A listing over all namespaces begins with a NAMESPACE column.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// Index of a column by its name, ignoring case.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.eq_ignore_ascii_case(name))
    }

    /// The table as kubectl prints it: padded columns, separated by three spaces.
    pub fn render(&self) -> String {
        if self.rows.is_empty() {
            return "No resources found\n".into();
        }
        let mut widths: Vec<usize> = self.columns.iter().map(|c| c.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut text = String::new();
        for row in std::iter::once(&self.columns).chain(&self.rows) {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line += &format!("{cell:<width$}   ");
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}
