//! Tables: the output of `kubectl get` as an object.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::field::show_float;
use crate::jsonpath::{JsonPath, JsonPathError};

/// One column.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Column {
    /// Column heading.
    pub name: String,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    pub column_type: String,
    /// OpenAPI format; `name` marks the column that identifies the row.
    pub format: String,
    /// Description for users.
    pub description: String,
    /// 0 for columns that are always shown; larger values are shown only with `-o wide`.
    pub priority: i64,
}

impl Column {
    /// The serialized column definition.
    pub fn to_value(&self) -> Value {
        json!({"name": self.name, "type": self.column_type, "format": self.format, "description": self.description, "priority": self.priority})
    }
}

/// The part of an object that its row includes (`includeObject`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IncludeObject {
    /// Kind, apiVersion and metadata.
    #[default]
    Metadata,
    /// The whole object.
    Object,
    /// No part of the object.
    None,
}

/// A `meta.k8s.io/v1` Table. `headers` is true to include column definitions (a watch sends them
/// once).
pub fn table(columns: &[Column], rows: Vec<Value>, list_metadata: Value, headers: bool) -> Value {
    let columns = if headers { columns.iter().map(Column::to_value).collect() } else { Value::Array(Vec::new()) };
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": list_metadata, "columnDefinitions": columns, "rows": rows
    })
}

/// One row.
pub fn row(cells: Vec<Value>, object: &Value, include: IncludeObject) -> Value {
    let mut row = Map::new();
    row.insert("cells".to_owned(), Value::Array(cells));
    match include {
        IncludeObject::None => {}
        IncludeObject::Object => {
            row.insert("object".to_owned(), object.clone());
        }
        IncludeObject::Metadata => {
            let metadata = object.get("metadata").cloned().unwrap_or_else(|| json!({}));
            let partial =
                json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata});
            row.insert("object".to_owned(), partial);
        }
    }
    Value::Object(row)
}

/// A column of a custom resource with its parsed path.
#[derive(Clone, Debug)]
pub struct CustomColumn {
    /// The column definition.
    pub column: Column,
    path: JsonPath,
}

impl CustomColumn {
    /// Makes a column from its definition and the JSONPath of its cells.
    pub fn new(column: Column, path: &str) -> Result<Self, JsonPathError> {
        Ok(CustomColumn { column, path: JsonPath::parse(path)? })
    }

    /// Parses an entry of `additionalPrinterColumns`.
    pub fn from_crd(entry: &Value) -> Result<Self, JsonPathError> {
        let text = |field: &str| entry.get(field).and_then(Value::as_str).unwrap_or_default();
        let column = Column {
            name: text("name").to_owned(),
            column_type: text("type").to_owned(),
            format: text("format").to_owned(),
            description: text("description").to_owned(),
            priority: entry.get("priority").and_then(Value::as_i64).unwrap_or_default(),
        };
        CustomColumn::new(column, text("jsonPath"))
    }

    /// The cell of an object; null if the path selects nothing.
    pub fn cell(&self, object: &Value, now: Timestamp) -> Value {
        let Some(first) = self.path.first(object) else { return Value::Null };
        if self.column.column_type == "string" {
            return Value::String(text_of(first));
        }
        typed_cell(&self.column.column_type, first, now)
    }
}

/// The cells of a custom resource: its name, then the columns.
pub fn custom_cells(columns: &[CustomColumn], object: &Value, now: Timestamp) -> Vec<Value> {
    let mut cells = Vec::with_capacity(columns.len() + 1);
    cells.push(Value::from(crate::meta::name(object)));
    cells.extend(columns.iter().map(|column| column.cell(object, now)));
    cells
}

/// A value as the text of a cell: strings unquoted, lists and maps as JSON.
fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "<nil>".to_owned(),
        Value::Number(number) if number.is_f64() => show_float(number.as_f64().unwrap_or_default()),
        other => other.to_string(),
    }
}

fn typed_cell(column_type: &str, value: &Value, now: Timestamp) -> Value {
    match (column_type, value) {
        ("integer", Value::Number(number)) => match number.as_i64() {
            Some(integer) => Value::from(integer),
            None => Value::from(number.as_f64().unwrap_or_default() as i64),
        },
        ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => value.clone(),
        ("date", Value::String(text)) => Value::from(match text.parse::<Timestamp>() {
            Ok(time) => age(time, now),
            Err(_) => "<invalid>".to_owned(),
        }),
        _ => Value::Null,
    }
}

/// The time since `time`, in the form of tables.
pub fn age(time: Timestamp, now: Timestamp) -> String {
    human_duration(now.duration_since(time).as_secs())
}

/// A duration of whole seconds with at most two units: `5m30s`, `2d4h`, `3y`.
pub fn human_duration(seconds: i64) -> String {
    let two = |large: i64, large_unit: &str, small: i64, small_unit: &str| {
        if small == 0 { format!("{large}{large_unit}") } else { format!("{large}{large_unit}{small}{small_unit}") }
    };
    // Clock skew of up to a second between machines is ignored.
    if seconds < -1 {
        return "<invalid>".to_owned();
    }
    let seconds = seconds.max(0);
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let days = hours / 24;
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => two(hours, "h", minutes % 60, "m"),
        () if hours < 48 => format!("{hours}h"),
        () if hours < 24 * 8 => two(days, "d", hours % 24, "h"),
        () if days < 365 * 2 => format!("{days}d"),
        () if days < 365 * 8 => two(days / 365, "y", days % 365, "d"),
        () => format!("{}y", days / 365),
    }
}

/// A duration of whole seconds in its largest unit: `5m`, `2d`.
pub fn short_duration(seconds: i64) -> String {
    if seconds < -1 {
        return "<invalid>".to_owned();
    }
    let seconds = seconds.max(0);
    match seconds {
        s if s < 60 => format!("{s}s"),
        s if s < 3600 => format!("{}m", s / 60),
        s if s < 86_400 => format!("{}h", s / 3600),
        s if s < 86_400 * 365 => format!("{}d", s / 86_400),
        s => format!("{}y", s / (86_400 * 365)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_read_as_in_kubectl() {
        let texts: Vec<String> =
            [0, 119, 130, 600, 10_800, 30_000, 200_000, 900_000].into_iter().map(human_duration).collect();
        assert_eq!(texts, ["0s", "119s", "2m10s", "10m", "3h", "8h", "2d7h", "10d"]);
    }

    #[test]
    fn cells_follow_their_column_type() {
        let object =
            json!({"metadata": {"name": "a"}, "spec": {"n": 2.0, "s": ["x", "y"]}, "at": "2026-01-01T00:00:00Z"});
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().expect("is a time");
        let column = |column_type: &str, path: &str| {
            CustomColumn::new(Column { column_type: column_type.to_owned(), ..Column::default() }, path)
                .expect("parses")
        };
        let columns = [
            column("integer", ".spec.n"),
            column("string", ".spec.s"),
            column("date", ".at"),
            column("integer", ".none"),
        ];
        assert_eq!(
            custom_cells(&columns, &object, now),
            [json!("a"), json!(2), json!("[\"x\",\"y\"]"), json!("60s"), Value::Null]
        );
    }
}
