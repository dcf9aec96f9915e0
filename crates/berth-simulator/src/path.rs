//! Paths to fields of an object, as scenarios write them.
//!
//! `status.conditions[type=Admitted].status`, `metadata.labels["cloud.google.com/gke-nodepool"]`,
//! `spec.podSets[0].count`, `status.admission.podSetAssignments[*].flavors`. A leading dot is
//! allowed. `[key=value]` selects the list elements whose field has that value, and `[*]` selects
//! all elements. With either, a path may select several values.

use std::fmt;

use serde_json::Value;

/// A parsed path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldPath {
    text: String,
    segments: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Field(String),
    Index(usize),
    Every,
    Where { field: String, value: String },
}

/// Why a path cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("path {text:?}: {problem}")]
pub struct PathError {
    text: String,
    problem: String,
}

impl FieldPath {
    /// Parses a path.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        let fail = |problem: String| PathError { text: text.to_owned(), problem };
        let mut segments = Vec::new();
        let mut rest = text.strip_prefix('.').unwrap_or(text);
        while !rest.is_empty() {
            if let Some(inner) = rest.strip_prefix('[') {
                let (segment, after) = bracket(inner).map_err(fail)?;
                segments.push(segment);
                rest = after;
            } else {
                let end = rest.find(['.', '[']).unwrap_or(rest.len());
                if end == 0 {
                    return Err(fail(format!("expected a field name before {rest:?}")));
                }
                segments.push(Segment::Field(rest[..end].to_owned()));
                rest = &rest[end..];
            }
            if let Some(after) = rest.strip_prefix('.') {
                if after.is_empty() {
                    return Err(fail("it ends in a dot".into()));
                }
                rest = after;
            } else if !rest.is_empty() && !rest.starts_with('[') {
                return Err(fail(format!("expected '.' or '[' before {rest:?}")));
            }
        }
        if segments.is_empty() {
            return Err(fail("it is empty".into()));
        }
        Ok(Self { text: text.to_owned(), segments })
    }

    /// Every value that the path selects, in document order. Empty if a field of the path is
    /// absent.
    pub fn find<'a>(&self, object: &'a Value) -> Vec<&'a Value> {
        let mut found = vec![object];
        for segment in &self.segments {
            found = found
                .into_iter()
                .flat_map(|value| -> Vec<&'a Value> {
                    match segment {
                        Segment::Field(name) => value.get(name).into_iter().collect(),
                        Segment::Index(index) => value.get(*index).into_iter().collect(),
                        Segment::Every => match value {
                            Value::Array(list) => list.iter().collect(),
                            Value::Object(map) => map.values().collect(),
                            _ => Vec::new(),
                        },
                        Segment::Where { field, value: wanted } => value
                            .as_array()
                            .into_iter()
                            .flatten()
                            .filter(|element| element.get(field).is_some_and(|v| plain(v) == *wanted))
                            .collect(),
                    }
                })
                .collect();
        }
        found
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<'de> serde::Deserialize<'de> for FieldPath {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

impl PartialOrd for FieldPath {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for FieldPath {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.text.cmp(&other.text)
    }
}

/// A value as printed: strings without quotes, other values as JSON.
pub fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Parses the part after an opening bracket. Returns the segment and the part after the closing
/// bracket.
fn bracket(inner: &str) -> Result<(Segment, &str), String> {
    if let Some(quote) = inner.chars().next().filter(|c| matches!(c, '"' | '\'')) {
        let body = &inner[1..];
        let end = body.find(quote).ok_or_else(|| format!("no closing {quote} after {body:?}"))?;
        let after = body[end + 1..].strip_prefix(']').ok_or("expected ']' after the quoted key")?;
        return Ok((Segment::Field(body[..end].to_owned()), after));
    }
    let end = inner.find(']').ok_or_else(|| format!("no closing ']' after {inner:?}"))?;
    let (body, after) = (&inner[..end], &inner[end + 1..]);
    let segment = match body.split_once('=') {
        Some((field, value)) if !field.is_empty() => {
            let value = value.trim_matches(['"', '\'']);
            Segment::Where { field: field.to_owned(), value: value.to_owned() }
        }
        _ if body == "*" => Segment::Every,
        _ => Segment::Index(
            body.parse().map_err(|_| format!("expected [N], [*], [\"key\"] or [field=value], found [{body}]"))?,
        ),
    };
    Ok((segment, after))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(path: &str, expected: &[Value]) {
        let object = json!({
            "metadata": {"labels": {"a.b/c": "x"}},
            "status": {"conditions": [{"type": "A", "status": "True"}, {"type": "B", "status": "False"}]},
        });
        let found: Vec<Value> = FieldPath::parse(path).unwrap().find(&object).into_iter().cloned().collect();
        assert_eq!(found, expected, "{path}");
    }

    #[test]
    fn paths_select_by_field_key_filter_and_index() {
        check("metadata.labels[\"a.b/c\"]", &[json!("x")]);
        check(".status.conditions[type=B].status", &[json!("False")]);
        check("status.conditions[0].type", &[json!("A")]);
        check("status.conditions[*].type", &[json!("A"), json!("B")]);
        check("status.missing.deeper", &[]);
    }

    #[test]
    fn the_error_of_a_malformed_path_names_what_was_expected() {
        for (path, problem) in [
            ("", "it is empty"),
            ("a.", "it ends in a dot"),
            ("a[x]", "expected [N], [*], [\"key\"] or [field=value], found [x]"),
            ("a[0", "no closing ']' after \"0\""),
            ("a[0]b", "expected '.' or '[' before \"b\""),
        ] {
            assert_eq!(FieldPath::parse(path).unwrap_err().problem, problem, "{path}");
        }
    }
}
