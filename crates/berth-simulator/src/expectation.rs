//! Expectations of a scenario: about the fields of an object, the number of objects, the cells of a
//! table, or an explanation.
//!
//! An expectation without `within` is checked once. With `within`, it may become true at any time
//! until the deadline. A failed expectation names every field or cell that differs, with its
//! expected and its actual value.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use crate::explained;
use crate::history::HistoryExpectation;
use crate::manifest::substitute;
use crate::path::{FieldPath, plain};
use crate::resource::{Reference, ResourceError, Resources};
use crate::scenario::{Show, duration};
use crate::table;

/// One expectation. Exactly one of `object`, `count`, `table`, `explanation` and `history` is set.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Expectation {
    /// Title in the report. Default: derived from the expectation.
    #[serde(default)]
    pub that: Option<String>,
    /// Cluster time in which the expectation must become true. Absent: it must be true now.
    #[serde(default, deserialize_with = "duration::option::deserialize")]
    pub within: Option<Duration>,
    /// Fields of one object.
    #[serde(default)]
    pub object: Option<ObjectExpectation>,
    /// A number of objects, or numbers of objects by group.
    #[serde(default)]
    pub count: Option<CountExpectation>,
    /// Cells of a table.
    #[serde(default)]
    pub table: Option<TableExpectation>,
    /// Fields of the explanation of a workload.
    #[serde(default)]
    pub explanation: Option<ExplanationExpectation>,
    /// Values that a field has had since the start of the step.
    #[serde(default)]
    pub history: Option<HistoryExpectation>,
}

/// Fields of one object.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ObjectExpectation {
    /// The object.
    pub is: Reference,
    /// Expected values of its fields.
    #[serde(default)]
    pub fields: BTreeMap<FieldPath, Matcher>,
    /// True if the object must not exist.
    #[serde(default)]
    pub absent: bool,
}

/// Fields of the object that `berth explain -o json` prints.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ExplanationExpectation {
    /// Job or Workload.
    pub of: String,
    /// Its namespace. Default: `default`.
    #[serde(default)]
    pub namespace: Option<String>,
    /// Expected values of its fields.
    pub fields: BTreeMap<FieldPath, Matcher>,
}

/// Numbers of objects.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct CountExpectation {
    /// Kind or resource.
    pub of: String,
    /// Namespace of the objects. Default: all namespaces.
    #[serde(default)]
    pub namespace: Option<String>,
    /// Label selector of the objects.
    #[serde(default)]
    pub selector: Option<String>,
    /// Counts only objects whose fields match.
    #[serde(default, rename = "where")]
    pub filter: BTreeMap<FieldPath, Matcher>,
    /// Expected number.
    #[serde(default)]
    pub is: Option<Matcher>,
    /// Counts the objects per value of this field.
    #[serde(default)]
    pub group_by: Option<FieldPath>,
    /// Expected number per value of the `groupBy` field. An unlisted value must not occur.
    #[serde(default)]
    pub groups: BTreeMap<String, Matcher>,
    /// Expected number of different values of the `groupBy` field, if `groups` is empty.
    #[serde(default)]
    pub distinct: Option<Matcher>,
}

/// Cells of a table, as kubectl prints them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct TableExpectation {
    /// Resource, as in `kubectl get RESOURCE`.
    pub of: String,
    /// Namespace of the objects. Default: all namespaces.
    #[serde(default)]
    pub namespace: Option<String>,
    /// True if the output includes the columns of `-o wide`.
    #[serde(default)]
    pub wide: bool,
    /// Label selector of the objects.
    #[serde(default)]
    pub selector: Option<String>,
    /// Column that identifies a row. Default: `NAME`.
    #[serde(default = "key_default")]
    pub key: String,
    /// Expected cells, by row and then by column.
    #[serde(default)]
    pub rows: BTreeMap<String, BTreeMap<String, Matcher>>,
    /// Expected cells, by column, of every row that `rows` does not list.
    #[serde(default)]
    pub others: BTreeMap<String, Matcher>,
    /// The exact column headers, in order. Absent: headers are not checked.
    #[serde(default)]
    pub columns: Option<Vec<String>>,
}

fn key_default() -> String {
    "NAME".into()
}

/// Condition on a value. In a scenario, a plain value means equality of the printed values, so `4`
/// equals `"4"`. A map with one entry names another operator.
#[derive(Clone, Debug)]
pub enum Matcher {
    /// Equal when printed.
    Equals(Value),
    /// `{contains: text}`.
    Contains(String),
    /// `{matches: regex}`.
    Matches(Regex),
    /// `{oneOf: [a, b]}`.
    OneOf(Vec<Value>),
    /// `{atLeast: n}`.
    AtLeast(f64),
    /// `{atMost: n}`.
    AtMost(f64),
    /// `{present: true|false}`.
    Present(bool),
    /// `{containsField: {of, path}}`: contains the printed value of another object's field.
    ContainsField(FieldReference),
}

/// A field of another object.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct FieldReference {
    /// The object.
    pub of: Reference,
    /// The field.
    pub path: FieldPath,
}

impl<'de> Deserialize<'de> for Matcher {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        const OPERATORS: &str = "contains, matches, oneOf, atLeast, atMost, present or containsField";
        let value = Value::deserialize(deserializer)?;
        let Value::Object(map) = &value else { return Ok(Self::Equals(value)) };
        let mut entries = map.iter();
        let (Some((operator, operand)), None) = (entries.next(), entries.next()) else {
            return Err(D::Error::custom(format!("expected a plain value or one of {OPERATORS}, found {value}")));
        };
        let text = || operand.as_str().map(str::to_owned).ok_or_else(|| D::Error::custom("expected a string"));
        let number = || operand.as_f64().ok_or_else(|| D::Error::custom("expected a number"));
        match operator.as_str() {
            "contains" => text().map(Self::Contains),
            "matches" => Regex::new(&text()?).map(Self::Matches).map_err(D::Error::custom),
            "oneOf" => match operand {
                Value::Array(list) => Ok(Self::OneOf(list.clone())),
                _ => Err(D::Error::custom("oneOf: expected a list")),
            },
            "atLeast" => number().map(Self::AtLeast),
            "atMost" => number().map(Self::AtMost),
            "present" => operand.as_bool().map(Self::Present).ok_or_else(|| D::Error::custom("expected true or false")),
            "containsField" => {
                serde_json::from_value(operand.clone()).map(Self::ContainsField).map_err(D::Error::custom)
            }
            other => Err(D::Error::custom(format!("unknown operator {other:?}; expected {OPERATORS}"))),
        }
    }
}

impl std::fmt::Display for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Equals(value) => f.write_str(&plain(value)),
            Self::Contains(text) => write!(f, "a string containing {text:?}"),
            Self::Matches(regex) => write!(f, "a string matching /{regex}/"),
            Self::OneOf(values) => write!(f, "one of {}", values.iter().map(plain).collect::<Vec<_>>().join(", ")),
            Self::AtLeast(n) => write!(f, "at least {n}"),
            Self::AtMost(n) => write!(f, "at most {n}"),
            Self::Present(true) => f.write_str("a value"),
            Self::Present(false) => f.write_str("no value"),
            Self::ContainsField(reference) => write!(f, "a string containing {} of {}", reference.path, reference.of),
        }
    }
}

/// Matchers with the values of variables.
fn with_variables<K: Clone + Ord>(
    matchers: &BTreeMap<K, Matcher>,
    variables: &BTreeMap<String, String>,
) -> BTreeMap<K, Matcher> {
    matchers.iter().map(|(key, matcher)| (key.clone(), matcher.with(variables))).collect()
}

impl Matcher {
    /// The matcher with the values of variables. A regular expression has none: `$` is its own.
    fn with(&self, variables: &BTreeMap<String, String>) -> Self {
        match self {
            Self::Equals(Value::String(text)) => Self::Equals(Value::String(substitute(text, variables))),
            Self::Contains(text) => Self::Contains(substitute(text, variables)),
            Self::ContainsField(field) => {
                Self::ContainsField(FieldReference { of: field.of.with(variables), path: field.path.clone() })
            }
            other => other.clone(),
        }
    }

    /// True if the printed values that a path selects match. With several values, one match is
    /// enough.
    async fn accepts(&self, seen: &[String], resources: &Resources) -> Result<bool, ResourceError> {
        let number = |text: &String| text.parse::<f64>().ok();
        Ok(match self {
            Self::Equals(Value::Null) => seen.is_empty() || seen.iter().any(|s| s == "null"),
            Self::Equals(value) => seen.contains(&plain(value)),
            Self::Contains(text) => seen.iter().any(|s| s.contains(text.as_str())),
            Self::Matches(regex) => seen.iter().any(|s| regex.is_match(s)),
            Self::OneOf(values) => values.iter().any(|value| seen.contains(&plain(value))),
            Self::AtLeast(n) => seen.iter().filter_map(number).any(|s| s >= *n),
            Self::AtMost(n) => seen.iter().filter_map(number).any(|s| s <= *n),
            Self::Present(wanted) => seen.is_empty() != *wanted,
            Self::ContainsField(reference) => {
                let Some(object) = resources.get(&reference.of).await? else { return Ok(false) };
                let values: Vec<String> = reference.path.find(&object).into_iter().map(plain).collect();
                values.iter().any(|value| !value.is_empty() && seen.iter().any(|s| s.contains(value.as_str())))
            }
        })
    }
}

/// Differences from the expected values; empty if the expectation holds.
pub type Differences = Vec<String>;

impl Expectation {
    /// Title for the report.
    pub fn title(&self) -> String {
        if let Some(that) = &self.that {
            return that.clone();
        }
        if let Some(object) = &self.object {
            let verb = if object.absent { " is absent" } else { "" };
            return format!("{}{verb}", object.is);
        }
        if let Some(count) = &self.count {
            return format!("number of {}", count.of);
        }
        if let Some(explanation) = &self.explanation {
            return format!("explanation of {}", explanation.of);
        }
        if let Some(history) = &self.history {
            return format!("{} of {}", history.path, history.of);
        }
        self.table.as_ref().map_or_else(|| "nothing".into(), |table| format!("table of {}", table.of))
    }

    /// The expectation with the values of variables.
    #[must_use]
    pub(crate) fn with(&self, variables: &BTreeMap<String, String>) -> Self {
        let mut made = self.clone();
        let text = |text: &mut Option<String>| {
            if let Some(text) = text {
                *text = substitute(text, variables);
            }
        };
        if let Some(object) = &mut made.object {
            object.is = object.is.with(variables);
            object.fields = with_variables(&object.fields, variables);
        }
        if let Some(count) = &mut made.count {
            text(&mut count.namespace);
            text(&mut count.selector);
            count.filter = with_variables(&count.filter, variables);
            let groups = std::mem::take(&mut count.groups);
            count.groups = groups.into_iter().map(|(group, number)| (substitute(&group, variables), number)).collect();
        }
        if let Some(table) = &mut made.table {
            text(&mut table.namespace);
            text(&mut table.selector);
            let rows = std::mem::take(&mut table.rows).into_iter();
            table.rows =
                rows.map(|(row, cells)| (substitute(&row, variables), with_variables(&cells, variables))).collect();
        }
        if let Some(explanation) = &mut made.explanation {
            explanation.of = substitute(&explanation.of, variables);
            explanation.fields = with_variables(&explanation.fields, variables);
        }
        if let Some(history) = &mut made.history {
            history.of = history.of.with(variables);
        }
        made
    }

    /// Kinds of the objects that the outcome depends on.
    pub fn kinds(&self) -> BTreeSet<&str> {
        let (own, matchers): (Option<&str>, Vec<&Matcher>) = match (&self.object, &self.count, &self.table) {
            (Some(object), ..) => (Some(&object.is.kind), object.fields.values().collect()),
            (_, Some(count), _) => {
                (Some(&count.of), count.filter.values().chain(&count.is).chain(count.groups.values()).collect())
            }
            (.., Some(table)) => {
                (Some(&table.of), table.rows.values().flat_map(BTreeMap::values).chain(table.others.values()).collect())
            }
            _ if self.history.is_some() => (self.history.as_ref().map(|history| &*history.of.kind), Vec::new()),
            _ => {
                let explanation = self.explanation.as_ref();
                let matchers = explanation.into_iter().flat_map(|explanation| explanation.fields.values());
                (explanation.map(|_| "workloads"), matchers.collect())
            }
        };
        let others = matchers.into_iter().filter_map(|matcher| match matcher {
            Matcher::ContainsField(reference) => Some(reference.of.kind.as_str()),
            _ => None,
        });
        own.into_iter().chain(others).collect()
    }

    /// Compares the expected values with the API's current state. `since` is the API's revision at
    /// the start of the step.
    pub async fn check(&self, resources: &Resources, since: Option<&str>) -> Result<Differences, ResourceError> {
        match (&self.object, &self.count, &self.table, &self.explanation, &self.history) {
            (Some(object), None, None, None, None) => object.check(resources).await,
            (None, Some(count), None, None, None) => count.check(resources).await,
            (None, None, Some(table), None, None) => table.check(resources).await,
            (None, None, None, Some(explanation), None) => explanation.check(resources).await,
            (None, None, None, None, Some(history)) => history.check(resources, since).await,
            _ => Ok(vec![
                "expected exactly one of object, count, table, explanation and history in this expectation".into(),
            ]),
        }
    }
}

impl ObjectExpectation {
    async fn check(&self, resources: &Resources) -> Result<Differences, ResourceError> {
        let found = resources.get(&self.is).await?;
        match (found, self.absent) {
            (None, true) => Ok(Vec::new()),
            (None, false) => Ok(vec![format!("{} does not exist", self.is)]),
            (Some(_), true) => Ok(vec![format!("{} exists", self.is)]),
            (Some(object), false) => compare(&self.is.to_string(), &self.fields, &object, resources).await,
        }
    }
}

impl ExplanationExpectation {
    async fn check(&self, resources: &Resources) -> Result<Differences, ResourceError> {
        match explained::fetch(resources.client(), self.namespace.as_deref(), &self.of).await? {
            Some(explanation) => compare(&self.of, &self.fields, &explanation, resources).await,
            None => Ok(vec![format!("{} has no Workload to explain", self.of)]),
        }
    }
}

async fn compare(
    what: &str,
    fields: &BTreeMap<FieldPath, Matcher>,
    object: &Value,
    resources: &Resources,
) -> Result<Differences, ResourceError> {
    let mut differences = Vec::new();
    for (path, matcher) in fields {
        let seen: Vec<String> = path.find(object).into_iter().map(plain).collect();
        if !matcher.accepts(&seen, resources).await? {
            let seen = if seen.is_empty() { "nothing".to_owned() } else { seen.join(" | ") };
            differences.push(format!("{what}: {path}: expected {matcher}, found {seen}"));
        }
    }
    Ok(differences)
}

impl CountExpectation {
    async fn check(&self, resources: &Resources) -> Result<Differences, ResourceError> {
        let found = resources.by_name(&self.of).await?;
        let mut objects = Vec::new();
        for object in resources.list(&found, self.namespace.as_deref(), self.selector.as_deref()).await? {
            if compare("", &self.filter, &object, resources).await?.is_empty() {
                objects.push(object);
            }
        }
        let mut differences = Vec::new();
        let filter: String = self.filter.iter().map(|(path, matcher)| format!(" with {path} = {matcher}")).collect();
        if let Some(matcher) = &self.is {
            let seen = objects.len().to_string();
            if !matcher.accepts(std::slice::from_ref(&seen), resources).await? {
                differences.push(format!("number of {}{filter}: expected {matcher}, found {seen}", self.of));
            }
        }
        if let (Some(path), Some(matcher)) = (&self.group_by, &self.distinct) {
            let values: BTreeSet<String> = objects.iter().flat_map(|object| path.find(object)).map(plain).collect();
            let seen = values.len().to_string();
            if !matcher.accepts(std::slice::from_ref(&seen), resources).await? {
                let values: Vec<String> = values.into_iter().collect();
                differences.push(format!(
                    "different {path} of {}{filter}: expected {matcher}, found {seen} ({})",
                    self.of,
                    values.join(", ")
                ));
            }
        } else if let Some(path) = &self.group_by {
            let mut groups: BTreeMap<String, usize> = self.groups.keys().map(|key| (key.clone(), 0)).collect();
            for object in &objects {
                let value = path.find(object).first().map_or_else(|| "<none>".to_owned(), |value| plain(value));
                *groups.entry(value).or_default() += 1;
            }
            for (group, n) in groups {
                let seen = n.to_string();
                match self.groups.get(&group) {
                    Some(matcher) if matcher.accepts(std::slice::from_ref(&seen), resources).await? => {}
                    Some(matcher) => differences
                        .push(format!("number of {}{filter} in {group}: expected {matcher}, found {seen}", self.of)),
                    None => differences
                        .push(format!("number of {}{filter} in {group}: expected none, found {seen}", self.of)),
                }
            }
        }
        Ok(differences)
    }
}

impl TableExpectation {
    async fn check(&self, resources: &Resources) -> Result<Differences, ResourceError> {
        let show = Show {
            resource: self.of.clone(),
            namespace: self.namespace.clone(),
            wide: self.wide,
            selector: self.selector.clone(),
            ..Show::default()
        };
        let table = table::fetch(resources, &show).await?;
        let mut differences = Vec::new();
        if let Some(columns) = &self.columns
            && *columns != table.columns
        {
            differences.push(format!(
                "columns of {}: expected {}, found {}",
                self.of,
                columns.join(" | "),
                table.columns.join(" | ")
            ));
        }
        let Some(key) = table.column(&self.key) else {
            differences.push(format!(
                "table of {}: no column {:?}; the columns are {}",
                self.of,
                self.key,
                table.columns.join(", ")
            ));
            return Ok(differences);
        };
        let names: Vec<&String> = table.rows.iter().map(|row| &row[key]).collect();
        for missing in self.rows.keys().filter(|name| !names.contains(name)) {
            differences.push(format!("table of {}: no row {missing}", self.of));
        }
        for row in &table.rows {
            for (column, matcher) in self.rows.get(&row[key]).unwrap_or(&self.others) {
                let Some(position) = table.column(column) else {
                    differences.push(format!(
                        "table of {}: no column {column:?}; the columns are {}",
                        self.of,
                        table.columns.join(", ")
                    ));
                    continue;
                };
                let seen = &row[position];
                if !matcher.accepts(std::slice::from_ref(seen), resources).await? {
                    differences.push(format!("{} {}: {column}: expected {matcher}, found {seen}", self.of, row[key]));
                }
            }
        }
        differences.dedup();
        Ok(differences)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_operator_is_rejected_with_a_list_of_the_known_ones() {
        let error = serde_json::from_str::<Matcher>(r#"{"like": "x"}"#).unwrap_err().to_string();
        assert!(error.contains("unknown operator \"like\"; expected contains, matches"), "{error}");
    }
}
