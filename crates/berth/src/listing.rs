//! Lists of objects in the formats of kubectl: a table, a wide table, JSON, YAML, names, JSONPath,
//! Go templates, CSV and Parquet.

use std::str::FromStr;

use anyhow::{Context, bail};
use berth_apimachinery::printed::Table;
use serde_json::{Value, json};

use crate::flat::{self, Cell, Flat, Kind, csv_text};
use crate::go_template::GoTemplate;
use crate::template::Template;
use crate::{install, process};

/// The text of a cell, or `<none>` if it is empty.
pub fn or_none(text: &str) -> String {
    if text.is_empty() { "<none>".to_owned() } else { text.to_owned() }
}

/// Output format of a list.
#[derive(Clone, Debug, PartialEq)]
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
    /// All columns as a Parquet file.
    Parquet,
    /// A JSONPath template of the JSON object, as for kubectl.
    JsonPath(Template),
    /// The values of a JSONPath template as a JSON array.
    JsonPathAsJson(Template),
    /// A Go template of the JSON object, as for kubectl.
    GoTemplate(GoTemplate),
}

impl Format {
    /// True for formats of objects rather than of rows.
    pub fn is_of_objects(&self) -> bool {
        matches!(self, Self::Json | Self::Yaml | Self::JsonPath(_) | Self::JsonPathAsJson(_) | Self::GoTemplate(_))
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value))) {
            ("table", None) => Self::Table,
            ("wide", None) => Self::Wide,
            ("json", None) => Self::Json,
            ("yaml", None) => Self::Yaml,
            ("name", None) => Self::Name,
            ("csv", None) => Self::Csv,
            ("parquet", None) => Self::Parquet,
            ("jsonpath", Some(template)) => Self::JsonPath(Template::parse(template)?),
            ("jsonpath-as-json", Some(template)) => Self::JsonPathAsJson(Template::parse(template)?),
            ("jsonpath-file", Some(file)) => Self::JsonPath(Template::parse(&of_file(file)?)?),
            ("go-template" | "template", Some(template)) => Self::GoTemplate(GoTemplate::parse(template)?),
            ("go-template-file" | "templatefile", Some(file)) => Self::GoTemplate(GoTemplate::parse(&of_file(file)?)?),
            _ => return Err(format!("expected table, wide, name, csv, parquet, {OF_OBJECTS}")),
        })
    }
}

/// The formats of objects, for messages.
const OF_OBJECTS: &str = "json, yaml, jsonpath=TEMPLATE, jsonpath-as-json=TEMPLATE, jsonpath-file=FILE, \
                          go-template=TEMPLATE or go-template-file=FILE";

/// The template in a file.
fn of_file(file: &str) -> Result<String, String> {
    std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))
}

/// Output format of a text about one object.
#[derive(Clone, Debug, PartialEq)]
pub enum TextFormat {
    /// Text.
    Text,
    /// The whole object in a format of lists that needs no columns.
    Object(Format),
}

impl FromStr for TextFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<Format>() {
            _ if text == "text" => Ok(Self::Text),
            Ok(format) if format.is_of_objects() => Ok(Self::Object(format)),
            // An error in a template or its file says where it is.
            Err(error) if !error.starts_with("expected table") => Err(error),
            Ok(_) | Err(_) => Err(format!("expected text, {OF_OBJECTS}")),
        }
    }
}

impl TextFormat {
    /// The text, or the object in the chosen format.
    ///
    /// # Errors
    /// The object cannot be written in this format.
    pub fn render(&self, text: &str, object: &Value) -> anyhow::Result<String> {
        match self {
            Self::Text => Ok(format!("{}\n", text.trim_end())),
            Self::Object(format) => Listing { items: vec![object.clone()], ..Listing::default() }.render_one(format),
        }
    }
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
    /// Columns with other values than text, and the type of their values in typed files.
    pub kinds: &'static [(&'static str, Kind)],
}

impl Listing {
    /// The list as text.
    ///
    /// # Errors
    /// The list cannot be written in this format.
    pub fn render(&self, format: &Format) -> anyhow::Result<String> {
        self.render_with(format, &|| json!({ "items": self.items }))
    }

    /// Prints the list; in place of an empty table, a message to standard error.
    ///
    /// # Errors
    /// The list cannot be written in this format, or not be printed.
    pub fn print(&self, format: &Format, if_empty: &str) -> anyhow::Result<()> {
        if self.rows.is_empty() && matches!(format, Format::Table | Format::Wide) {
            eprintln!("{if_empty}");
            return Ok(());
        }
        self.print_with(format, &|| json!({ "items": self.items }))
    }

    /// Prints the list; JSON, YAML and templates are those of another object.
    ///
    /// # Errors
    /// The list cannot be written in this format, or not be printed.
    pub fn print_with(&self, format: &Format, value: &dyn Fn() -> Value) -> anyhow::Result<()> {
        match format {
            Format::Parquet => self.flat()?.print_parquet(),
            format => process::print(&self.render_with(format, value)?),
        }
    }

    /// All columns with the types of their values.
    fn flat(&self) -> anyhow::Result<Flat> {
        let kinds: Vec<Kind> = self.columns.iter().map(|column| self.kind(column.name())).collect();
        let columns = self.columns.iter().zip(&kinds).map(|(column, kind)| match kind {
            Kind::Text => flat::Column::required(column.name(), Kind::Text),
            kind => flat::Column::optional(column.name(), *kind),
        });
        let columns = columns.collect();
        let cell = |(at, text): (usize, &String)| {
            Cell::parse(kinds[at], text).with_context(|| format!("column {}: {text}", self.columns[at].name()))
        };
        let row = |row: &Vec<String>| row.iter().enumerate().map(cell).collect::<anyhow::Result<_>>();
        Ok(Flat { columns, rows: self.rows.iter().map(row).collect::<anyhow::Result<_>>()? })
    }

    fn kind(&self, column: &str) -> Kind {
        self.kinds.iter().find(|(name, _)| *name == column).map_or(Kind::Text, |(_, kind)| *kind)
    }

    /// The only object of a list as text.
    ///
    /// # Errors
    /// The object cannot be written in this format.
    pub fn render_one(&self, format: &Format) -> anyhow::Result<String> {
        self.render_with(format, &|| self.items.first().cloned().unwrap_or_default())
    }

    /// The list as text; JSON, YAML and JSONPath are those of another object.
    ///
    /// # Errors
    /// The list cannot be written in this format.
    pub fn render_with(&self, format: &Format, value: &dyn Fn() -> Value) -> anyhow::Result<String> {
        match format {
            Format::Table => Ok(self.table(false).render()),
            Format::Wide => Ok(self.table(true).render()),
            Format::Csv => csv_text(&self.table(true)),
            Format::Parquet => bail!("-o parquet: only whole lists can be written as Parquet"),
            Format::Name => Ok(self.names.iter().map(|name| format!("{name}\n")).collect()),
            Format::Json => Ok(format!("{:#}\n", value())),
            Format::Yaml => install::yaml(&value()),
            Format::JsonPath(template) => Ok(template.render(&value())),
            Format::GoTemplate(template) => template.render(&value()),
            Format::JsonPathAsJson(template) => Ok(format!("{:#}\n", Value::Array(template.values(&value())))),
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
            ..Listing::default()
        };
        let text = |format: Format| listing.render(&format).expect("text");
        assert_eq!(text(Format::Table), "NAME\na,b\n");
        assert_eq!(text(Format::Wide), "NAME   LOCAL QUEUE\na,b    main\n");
        assert_eq!(text(Format::Csv), "name,local_queue\n\"a,b\",main\n");
        assert_eq!(text(Format::Name), "job.batch/a\n");
        assert_eq!(text(Format::Json), "{\n  \"items\": [\n    {\n      \"name\": \"a\"\n    }\n  ]\n}\n");
        assert!(text(Format::Yaml).starts_with("items:\n"), "{}", text(Format::Yaml));
        let parsed = |text: &str| text.parse::<Format>().expect(text);
        assert_eq!(text(parsed("jsonpath={.items[*].name}")), "a");
        assert_eq!(text(parsed("go-template={{range .items}}{{.name}}{{end}}")), "a");
        assert_eq!(text(parsed("jsonpath-as-json={.items[*].name}")), "[\n  \"a\"\n]\n");
        assert_eq!(listing.render_one(&parsed("jsonpath={.name}")).expect("text"), "a");
    }

    #[test]
    fn columns_have_types_in_typed_files() {
        let row = |pods: &str, end: &str| vec!["a".to_owned(), pods.to_owned(), end.to_owned()];
        let listing = Listing {
            columns: vec![Column::Usual("NAME"), Column::Usual("PODS"), Column::Wide("END")],
            rows: vec![row("2", "2026-01-01T00:00:00Z"), row("-", "-")],
            kinds: &[("PODS", Kind::Integer), ("END", Kind::Time)],
            ..Listing::default()
        };
        let flat = listing.flat().expect("a table");
        let types: Vec<_> = flat.columns.iter().map(|it| (it.name.as_str(), it.kind, it.is_optional)).collect();
        assert_eq!(types, [("name", Kind::Text, false), ("pods", Kind::Integer, true), ("end", Kind::Time, true)]);
        let end = Cell::Time("2026-01-01T00:00:00Z".parse().expect("a time"));
        assert_eq!(flat.rows[0][1..], [Cell::Integer(2), end]);
        assert_eq!(flat.rows[1][1..], [Cell::Empty, Cell::Empty]);
        let wrong = Listing { rows: vec![row("two", "-")], ..listing }.flat().expect_err("no number");
        assert_eq!(wrong.to_string(), "column PODS: two");
    }

    #[test]
    fn a_text_about_an_object_can_be_the_object() {
        let render = |format: &str| {
            let format: TextFormat = format.parse().expect(format);
            format.render("It waits.\n\n", &json!({"name": "a"})).expect("text")
        };
        assert_eq!(render("text"), "It waits.\n");
        assert_eq!(render("json"), "{\n  \"name\": \"a\"\n}\n");
        assert_eq!(render("yaml"), "name: a\n");
        assert_eq!(render("jsonpath={.name}"), "a");
        assert_eq!(render("go-template={{.name}}"), "a");
        for wrong in ["table", "wide", "csv", "name", "json5", "jsonpath", ""] {
            let error = wrong.parse::<TextFormat>().expect_err(wrong);
            assert!(error.starts_with("expected text, json, yaml, "), "{wrong}: {error}");
        }
        assert!("jsonpath={.a".parse::<TextFormat>().expect_err("no template").contains("the brace is not closed"));
    }

    #[test]
    fn an_unknown_format_names_the_known_ones() {
        for wrong in ["xml", "json=x", "jsonpath", "go-template", ""] {
            assert!(wrong.parse::<Format>().expect_err(wrong).starts_with("expected table, wide, name"), "{wrong}");
        }
        assert!("jsonpath={.a".parse::<Format>().expect_err("no template").contains("the brace is not closed"));
        for file in ["jsonpath-file=/none", "go-template-file=/none", "templatefile=/none"] {
            assert!(file.parse::<Format>().expect_err("no file").starts_with("/none: "), "{file}");
            assert!(file.parse::<TextFormat>().expect_err("no file").starts_with("/none: "), "{file}");
        }
    }
}
