//! The two encodings of a topology assignment: v1beta1 lists the domains, v1beta2 has slices of
//! domains with common prefixes.

use serde_json::{Map, Value, json};

use super::ConversionError;

/// Maximum number of domains of a slice, from the schema of v1beta2.
const SLICE_DOMAINS_MAX: usize = 100_000;
/// Maximum number of domains of a flattened assignment: ten times the nodes of the largest
/// clusters. A slice of universal values can declare two billion domains in a few bytes.
const DOMAINS_MAX: usize = 1_000_000;
/// Maximum length of a prefix or suffix in characters, from the schema of v1beta2.
const AFFIX_MAX: usize = 63;

/// Converts `{levels, domains}` to `{levels, slices}`.
pub(super) fn compress(assignment: &Value, field: &str) -> Result<Value, ConversionError> {
    let levels = list(assignment, "levels", field)?;
    let mut columns: Vec<Vec<&str>> = vec![Vec::new(); levels.len()];
    let mut counts: Vec<i64> = Vec::new();
    for (index, domain) in list(assignment, "domains", field)?.iter().enumerate() {
        let field = format!("{field}.domains[{index}]");
        let values = list(domain, "values", &field)?;
        if values.len() != levels.len() {
            let detail = format!("expected {} values, one per level, got {}", levels.len(), values.len());
            return Err(ConversionError::field(format!("{field}.values"), detail));
        }
        for (column, value) in columns.iter_mut().zip(values) {
            column.push(text(value, &format!("{field}.values"))?);
        }
        counts.push(integer(domain.get("count"), &format!("{field}.count"))?);
    }
    let slices: Vec<Value> = (0..counts.len())
        .step_by(SLICE_DOMAINS_MAX)
        .map(|start| {
            let end = counts.len().min(start + SLICE_DOMAINS_MAX);
            let values: Vec<Value> = columns.iter().map(|column| level_values(&column[start..end])).collect();
            json!({ "domainCount": end - start, "valuesPerLevel": values, "podCounts": pod_counts(&counts[start..end]) })
        })
        .collect();
    Ok(json!({ "levels": levels, "slices": slices }))
}

/// Encodes the values of one level: one value for all domains, or the longest common prefix and
/// suffix with the parts between them.
fn level_values(values: &[&str]) -> Value {
    let first = values.first().copied().unwrap_or_default();
    if values.iter().all(|value| *value == first) {
        return json!({ "universal": first });
    }
    let prefix = common(values.iter().map(|value| value.chars()));
    let rest = |value: &str| value.chars().skip(prefix.chars().count()).collect::<Vec<char>>();
    let rests: Vec<Vec<char>> = values.iter().map(|value| rest(value)).collect();
    let suffix: String = common(rests.iter().map(|rest| rest.iter().rev().copied())).chars().rev().collect();
    let suffix_length = suffix.chars().count();
    let roots: Vec<String> = rests.iter().map(|rest| rest[..rest.len() - suffix_length].iter().collect()).collect();
    let mut individual = Map::new();
    for (key, affix) in [("prefix", prefix), ("suffix", suffix)] {
        if !affix.is_empty() {
            individual.insert(key.into(), affix.into());
        }
    }
    individual.insert("roots".into(), roots.into());
    json!({ "individual": individual })
}

/// Longest common prefix of several strings, at most [`AFFIX_MAX`] characters.
fn common<I: Iterator<Item = char>>(mut texts: impl Iterator<Item = I>) -> String {
    let Some(first) = texts.next() else { return String::new() };
    let mut common: Vec<char> = first.take(AFFIX_MAX).collect();
    for text in texts {
        let length = common.iter().zip(text).take_while(|(a, b)| *a == b).count();
        common.truncate(length);
    }
    common.into_iter().collect()
}

fn pod_counts(counts: &[i64]) -> Value {
    match counts {
        [first, rest @ ..] if rest.iter().all(|count| count == first) => json!({ "universal": first }),
        _ => json!({ "individual": counts }),
    }
}

/// Converts `{levels, slices}` to `{levels, domains}`.
pub(super) fn flatten(assignment: &Value, field: &str) -> Result<Value, ConversionError> {
    let levels = list(assignment, "levels", field)?;
    let mut domains = Vec::new();
    for (index, slice) in list(assignment, "slices", field)?.iter().enumerate() {
        let field = format!("{field}.slices[{index}]");
        let count_field = format!("{field}.domainCount");
        let count = integer(slice.get("domainCount"), &count_field)?;
        let count = usize::try_from(count)
            .map_err(|_| ConversionError::field(&count_field, format!("expected at least 0, got {count}")))?;
        if domains.len() + count > DOMAINS_MAX {
            return Err(ConversionError::field(
                count_field,
                format!("expected at most {DOMAINS_MAX} domains in all, got more"),
            ));
        }
        let columns = list(slice, "valuesPerLevel", &field)?;
        if columns.len() != levels.len() {
            let detail = format!("expected {} entries, one per level, got {}", levels.len(), columns.len());
            return Err(ConversionError::field(format!("{field}.valuesPerLevel"), detail));
        }
        let columns = columns
            .iter()
            .enumerate()
            .map(|(level, column)| Column::read(column, count, &format!("{field}.valuesPerLevel[{level}]")))
            .collect::<Result<Vec<_>, _>>()?;
        let counts = slice.get("podCounts").unwrap_or(&Value::Null);
        let individual = counts.get("individual").and_then(Value::as_array);
        if let Some(individual) = individual
            && individual.len() != count
        {
            let detail = format!("expected {count} counts, one per domain, got {}", individual.len());
            return Err(ConversionError::field(format!("{field}.podCounts.individual"), detail));
        }
        for domain in 0..count {
            let values: Vec<String> = columns.iter().map(|column| column.value(domain)).collect();
            let pods = match individual {
                Some(individual) => {
                    integer(individual.get(domain), &format!("{field}.podCounts.individual[{domain}]"))?
                }
                None => integer(counts.get("universal"), &format!("{field}.podCounts.universal"))?,
            };
            domains.push(json!({ "values": values, "count": pods }));
        }
    }
    Ok(json!({ "levels": levels, "domains": domains }))
}

/// Values of one level in a slice.
enum Column<'a> {
    Universal(&'a str),
    Individual { prefix: &'a str, suffix: &'a str, roots: Vec<&'a str> },
}

impl<'a> Column<'a> {
    fn read(column: &'a Value, count: usize, field: &str) -> Result<Self, ConversionError> {
        if let Some(universal) = column.get("universal") {
            return Ok(Column::Universal(text(universal, &format!("{field}.universal"))?));
        }
        let field = format!("{field}.individual");
        let Some(individual) = column.get("individual") else {
            return Err(ConversionError::field(field, "expected individual or universal, got neither"));
        };
        let roots = list(individual, "roots", &field)?;
        if roots.len() != count {
            let detail = format!("expected {count} roots, one per domain, got {}", roots.len());
            return Err(ConversionError::field(format!("{field}.roots"), detail));
        }
        let roots = roots.iter().map(|root| text(root, &format!("{field}.roots"))).collect::<Result<_, _>>()?;
        let affix = |key: &str| individual.get(key).and_then(Value::as_str).unwrap_or_default();
        Ok(Column::Individual { prefix: affix("prefix"), suffix: affix("suffix"), roots })
    }

    fn value(&self, domain: usize) -> String {
        match self {
            Column::Universal(value) => (*value).to_owned(),
            Column::Individual { prefix, suffix, roots } => format!("{prefix}{}{suffix}", roots[domain]),
        }
    }
}

fn list<'a>(object: &'a Value, key: &str, field: &str) -> Result<&'a [Value], ConversionError> {
    match object.get(key) {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(list)) => Ok(list),
        Some(_) => Err(ConversionError::field(format!("{field}.{key}"), "expected a list")),
    }
}

fn text<'a>(value: &'a Value, field: &str) -> Result<&'a str, ConversionError> {
    value.as_str().ok_or_else(|| ConversionError::field(field, "expected a string"))
}

fn integer(value: Option<&Value>, field: &str) -> Result<i64, ConversionError> {
    value.and_then(Value::as_i64).ok_or_else(|| ConversionError::field(field, "expected an integer"))
}
