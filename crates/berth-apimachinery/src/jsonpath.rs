//! The JSONPath dialect of printer columns, scale subresources and selectable fields.
//!
//! Supported: `.spec.replicas`, `{.items[0].name}`,
//! `.status.conditions[?(@.type=="Ready")].status`, `['a.b']`, `[*]`, `[-1:]`, `..name`. Functions,
//! `range` loops and templates are not supported.

use serde_json::Value;

/// A path, parsed once and applied to many objects.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPath {
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    Wildcard,
    Descend,
    Slice { start: Option<i64>, end: Option<i64> },
    Index(i64),
    Filter(Filter),
}

#[derive(Clone, Debug, PartialEq)]
struct Filter {
    left: Operand,
    comparison: Option<(Comparison, Operand)>,
}

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    Path(JsonPath),
    Literal(Value),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// The reason why a path cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("JSON path {path}: {problem}")]
pub struct JsonPathError {
    path: String,
    problem: &'static str,
}

impl JsonPath {
    /// Parses a path, with or without braces around it.
    pub fn parse(text: &str) -> Result<Self, JsonPathError> {
        let trimmed = text.trim();
        let inner = trimmed.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or(trimmed);
        let inner = inner.strip_prefix(['$', '@']).unwrap_or(inner);
        parse_steps(inner)
            .map(|steps| JsonPath { steps })
            .map_err(|problem| JsonPathError { path: text.to_owned(), problem })
    }

    /// All values that the path selects, in document order.
    pub fn find<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        let mut found = vec![value];
        for step in &self.steps {
            let mut next = Vec::new();
            for value in found {
                step.apply(value, &mut next);
            }
            found = next;
        }
        found
    }

    /// The first value that the path selects.
    pub fn first<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        self.find(value).into_iter().next()
    }

    /// The field names of a path that has only plain fields, as for a scale subresource; `None` for
    /// other paths.
    pub fn fields(&self) -> Option<Vec<&str>> {
        self.steps.iter().map(|step| if let Step::Field(name) = step { Some(name.as_str()) } else { None }).collect()
    }
}

impl Step {
    fn apply<'a>(&self, value: &'a Value, found: &mut Vec<&'a Value>) {
        match self {
            Step::Field(name) => {
                if let Value::Object(map) = value {
                    found.extend(map.get(name));
                }
            }
            Step::Wildcard => found.extend(children(value)),
            Step::Descend => {
                found.push(value);
                for child in children(value) {
                    self.apply(child, found);
                }
            }
            Step::Index(index) => {
                if let Value::Array(list) = value {
                    let at = if *index < 0 { list.len() as i64 + index } else { *index };
                    found.extend(usize::try_from(at).ok().and_then(|at| list.get(at)));
                }
            }
            Step::Slice { start, end } => {
                if let Value::Array(list) = value {
                    let clamp = |at: i64| {
                        let at = if at < 0 { list.len() as i64 + at } else { at };
                        usize::try_from(at.max(0)).unwrap_or(0).min(list.len())
                    };
                    let (start, end) = (start.map_or(0, clamp), end.map_or(list.len(), clamp));
                    found.extend(list.get(start..end).into_iter().flatten());
                }
            }
            Step::Filter(filter) => found.extend(children(value).into_iter().filter(|child| filter.holds(child))),
        }
    }
}

fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(list) => list.iter().collect(),
        Value::Object(map) => map.values().collect(),
        _ => Vec::new(),
    }
}

impl Filter {
    fn holds(&self, value: &Value) -> bool {
        fn resolve<'a>(operand: &'a Operand, value: &'a Value) -> Option<&'a Value> {
            match operand {
                Operand::Path(path) => path.first(value),
                Operand::Literal(literal) => Some(literal),
            }
        }
        let left = resolve(&self.left, value);
        let Some((comparison, right)) = &self.comparison else { return left.is_some() };
        let (Some(left), Some(right)) = (left, resolve(right, value)) else { return false };
        let order = match (left, right) {
            (Value::Number(a), Value::Number(b)) => {
                a.as_f64().unwrap_or_default().partial_cmp(&b.as_f64().unwrap_or_default())
            }
            (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
            (a, b) if a == b => Some(std::cmp::Ordering::Equal),
            _ => None,
        };
        match comparison {
            Comparison::Equal => order.is_some_and(|o| o.is_eq()),
            Comparison::NotEqual => !order.is_some_and(|o| o.is_eq()),
            Comparison::Less => order.is_some_and(|o| o.is_lt()),
            Comparison::LessOrEqual => order.is_some_and(|o| o.is_le()),
            Comparison::Greater => order.is_some_and(|o| o.is_gt()),
            Comparison::GreaterOrEqual => order.is_some_and(|o| o.is_ge()),
        }
    }
}

fn parse_steps(text: &str) -> Result<Vec<Step>, &'static str> {
    let mut steps = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix("..") {
            steps.push(Step::Descend);
            rest = after;
            if rest.starts_with('[') {
                continue;
            }
            rest = field(rest, &mut steps)?;
        } else if let Some(after) = rest.strip_prefix('.') {
            // A single dot selects the value itself, and `.['x']` is `['x']`.
            rest = if after.is_empty() || after.starts_with('[') { after } else { field(after, &mut steps)? };
        } else if let Some(after) = rest.strip_prefix('[') {
            let end = closing(after)?;
            steps.push(bracket(after[..end].trim())?);
            rest = &after[end + 1..];
        } else {
            rest = field(rest, &mut steps)?;
        }
    }
    Ok(steps)
}

/// A name up to the next dot or bracket; `\.` is a dot in the name.
fn field<'a>(text: &'a str, steps: &mut Vec<Step>) -> Result<&'a str, &'static str> {
    let mut name = String::new();
    let mut chars = text.char_indices();
    let mut end = text.len();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => name.extend(chars.next().map(|(_, c)| c)),
            '.' | '[' => {
                end = at;
                break;
            }
            c => name.push(c),
        }
    }
    if name.is_empty() {
        return Err("expected a field name");
    }
    steps.push(if name == "*" { Step::Wildcard } else { Step::Field(name) });
    Ok(&text[end..])
}

/// The position of the closing bracket; quoted parts and inner brackets are skipped.
fn closing(text: &str) -> Result<usize, &'static str> {
    let mut quote = None;
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Ok(at),
            (None, ']') => depth -= 1,
            _ => {}
        }
    }
    Err("a bracket is not closed")
}

fn bracket(inner: &str) -> Result<Step, &'static str> {
    if inner == "*" {
        return Ok(Step::Wildcard);
    }
    if let Some(filter) = inner.strip_prefix("?(").and_then(|rest| rest.strip_suffix(')')) {
        return parse_filter(filter).map(Step::Filter);
    }
    if let Some(Value::String(name)) = literal(inner) {
        return Ok(Step::Field(name));
    }
    let number = |text: &str| -> Result<Option<i64>, &'static str> {
        if text.is_empty() { Ok(None) } else { text.trim().parse().map(Some).map_err(|_| "expected a number") }
    };
    if let Some((start, end)) = inner.split_once(':') {
        return Ok(Step::Slice { start: number(start)?, end: number(end)? });
    }
    Ok(Step::Index(number(inner)?.ok_or("expected an index")?))
}

fn parse_filter(text: &str) -> Result<Filter, &'static str> {
    const SIGNS: [(&str, Comparison); 6] = [
        ("==", Comparison::Equal),
        ("!=", Comparison::NotEqual),
        ("<=", Comparison::LessOrEqual),
        (">=", Comparison::GreaterOrEqual),
        ("<", Comparison::Less),
        (">", Comparison::Greater),
    ];
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, _) => {
                if let Some((sign, comparison)) = SIGNS.iter().find(|(sign, _)| text[at..].starts_with(sign)) {
                    let (left, right) = (operand(&text[..at])?, operand(&text[at + sign.len()..])?);
                    return Ok(Filter { left, comparison: Some((*comparison, right)) });
                }
            }
        }
    }
    Ok(Filter { left: operand(text)?, comparison: None })
}

fn operand(text: &str) -> Result<Operand, &'static str> {
    let text = text.trim();
    if let Some(path) = text.strip_prefix(['@', '$']) {
        return Ok(Operand::Path(JsonPath { steps: parse_steps(path)? }));
    }
    literal(text).map(Operand::Literal).ok_or("expected a path, a string or a number")
}

fn literal(text: &str) -> Option<Value> {
    for quote in ['\'', '"'] {
        if let Some(inner) = text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            return Some(Value::String(inner.replace("\\'", "'").replace("\\\"", "\"")));
        }
    }
    match text {
        "true" => Some(Value::Bool(true)),
        "false" => Some(Value::Bool(false)),
        _ if text.contains(['.', 'e', 'E']) || !text.contains(|c: char| c.is_ascii_digit()) => {
            text.parse::<f64>().ok().filter(|_| text.contains(|c: char| c.is_ascii_digit())).map(Value::from)
        }
        _ => None,
    }
    .or_else(|| text.parse::<i64>().ok().map(Value::from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(path: &str, value: Value) -> Vec<Value> {
        JsonPath::parse(path).expect("parses").find(&value).into_iter().cloned().collect()
    }

    #[test]
    fn paths_of_real_columns_are_followed() {
        let object = json!({"metadata": {"labels": {"a.b/c": "x"}}, "spec": {"n": 3},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Admitted", "status": "False"}]}});
        assert_eq!(check(".spec.n", object.clone()), [json!(3)]);
        assert_eq!(check(".status.conditions[?(@.type==\"Admitted\")].status", object.clone()), [json!("False")]);
        assert_eq!(check(".metadata.labels['a.b/c']", object.clone()), [json!("x")]);
        assert_eq!(check(".metadata.labels.a\\.b/c", object.clone()), [json!("x")]);
        assert_eq!(check("{.status.conditions[*].type}", object.clone()), [json!("Ready"), json!("Admitted")]);
        assert_eq!(check(".status.conditions[-1:].type", object.clone()), [json!("Admitted")]);
        assert!(check(".status.none[0].x", object).is_empty());
    }

    #[test]
    fn an_unclosed_bracket_is_rejected() {
        assert!(JsonPath::parse(".a[0").is_err());
    }
}
