//! Tables of objects, fetched from the API and printed as kubectl does.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_apimachinery::printed::Table;
use serde::Deserialize;
use serde_json::Value;

use crate::path::{FieldPath, plain};
use crate::resource::{ResourceError, Resources};
use crate::scenario::Show;

/// The printed part of a `meta.k8s.io/v1` Table.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Answer {
    #[serde(rename = "columnDefinitions")]
    columns: Option<Vec<Column>>,
    rows: Option<Vec<Row>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Column {
    name: String,
    priority: i64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Row {
    cells: Vec<Value>,
    object: Option<RowObject>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RowObject {
    metadata: RowMetadata,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RowMetadata {
    namespace: String,
}

/// Fetches the table that `kubectl get RESOURCE` shows, or the counts per group if `show`
/// groups the objects.
pub async fn fetch(resources: &Resources, show: &Show) -> Result<Table, ResourceError> {
    let found = resources.by_name(&show.resource).await?;
    let (namespace, selector) = (show.namespace.as_deref(), show.selector.as_deref());
    if let Some(path) = &show.group_by {
        let objects = resources.list(&found, namespace, selector).await?;
        return Ok(grouped(path, objects.into_iter()));
    }
    let with_namespace = found.namespaced && namespace.is_none();
    let answer: Answer = resources.table(&found, namespace, selector, with_namespace).await?;
    Ok(from_answer(&answer, show.wide, with_namespace))
}

fn from_answer(answer: &Answer, wide: bool, with_namespace: bool) -> Table {
    let shown: Vec<(usize, &Column)> =
        answer.columns.iter().flatten().enumerate().filter(|(_, column)| wide || column.priority == 0).collect();
    let mut columns: Vec<String> = shown.iter().map(|(_, column)| column.name.to_uppercase()).collect();
    if with_namespace {
        columns.insert(0, "NAMESPACE".into());
    }
    let rows = answer.rows.iter().flatten().map(|row| {
        let mut cells: Vec<String> =
            shown.iter().map(|(i, _)| row.cells.get(*i).map(cell).unwrap_or_default()).collect();
        if with_namespace {
            let namespace = row.object.as_ref().map(|object| object.metadata.namespace.clone());
            cells.insert(0, namespace.unwrap_or_default());
        }
        cells
    });
    Table { rows: rows.collect(), columns }
}

fn grouped(path: &FieldPath, objects: impl Iterator<Item = Arc<Value>>) -> Table {
    let mut groups: BTreeMap<String, usize> = BTreeMap::new();
    let mut total = 0;
    for object in objects {
        let value = path.find(&object).first().map_or_else(|| "<none>".to_owned(), |value| plain(value));
        *groups.entry(value).or_default() += 1;
        total += 1;
    }
    let mut rows: Vec<Vec<String>> = groups.into_iter().map(|(value, n)| vec![value, n.to_string()]).collect();
    rows.push(vec!["(total)".into(), total.to_string()]);
    Table { columns: vec![path.to_string(), "COUNT".into()], rows }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) if text.is_empty() => String::new(),
        other => plain(other),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_table_is_printed_as_kubectl_prints_it() {
        let answer = json!({
            "columnDefinitions": [
                {"name": "Name", "priority": 0}, {"name": "Cohort", "priority": 0}, {"name": "Extra", "priority": 1},
            ],
            "rows": [
                {"cells": ["cq-team-a-lp", "team-a-b", "x"], "object": {"metadata": {"namespace": ""}}},
                {"cells": ["cq", "", "y"], "object": {"metadata": {}}},
            ],
        });
        let answer: Answer = serde_json::from_value(answer).unwrap();
        let table = from_answer(&answer, false, false);
        assert_eq!(table.render(), "NAME           COHORT\ncq-team-a-lp   team-a-b\ncq\n");
        assert_eq!(table.column("cohort"), Some(1));
    }
}
