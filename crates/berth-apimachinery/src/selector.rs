//! Label and field selectors: parsing, matching, writing.
//!
//! A label selector is text (`a=b,c in (d,e)`) in a query, and an object (`matchLabels`,
//! `matchExpressions`) in a manifest. Both become the same sorted list of requirements. Field
//! selectors support only equality.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

use crate::field::{self, Path};
use crate::names;

/// Access to the labels to match: a JSON map, or an ordered map of strings.
pub trait Labels {
    /// The label's value, if the label exists.
    fn label(&self, key: &str) -> Option<&str>;
}

impl Labels for Map<String, Value> {
    fn label(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }
}

impl Labels for BTreeMap<String, String> {
    fn label(&self, key: &str) -> Option<&str> {
        self.get(key).map(String::as_str)
    }
}

impl<L: Labels + ?Sized> Labels for &L {
    fn label(&self, key: &str) -> Option<&str> {
        (**self).label(key)
    }
}

impl<L: Labels> Labels for Option<L> {
    fn label(&self, key: &str) -> Option<&str> {
        self.as_ref()?.label(key)
    }
}

/// The operator of a requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operator {
    /// `key`
    Exists,
    /// `!key`
    DoesNotExist,
    /// `key=value`
    Equals,
    /// `key==value`; means the same
    DoubleEquals,
    /// `key!=value`; also matches without the key
    NotEquals,
    /// `key in (a,b)`
    In,
    /// `key notin (a,b)`; also matches without the key
    NotIn,
    /// `key>1`
    GreaterThan,
    /// `key<1`
    LessThan,
}

impl Operator {
    /// The operator's name, e.g. `notin` or `gt`.
    pub const fn name(self) -> &'static str {
        match self {
            Operator::Exists => "exists",
            Operator::DoesNotExist => "!",
            Operator::Equals => "=",
            Operator::DoubleEquals => "==",
            Operator::NotEquals => "!=",
            Operator::In => "in",
            Operator::NotIn => "notin",
            Operator::GreaterThan => "gt",
            Operator::LessThan => "lt",
        }
    }

    /// The operator with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        use Operator::*;
        [Exists, DoesNotExist, Equals, DoubleEquals, NotEquals, In, NotIn, GreaterThan, LessThan]
            .into_iter()
            .find(|operator| operator.name() == name)
    }
}

/// One condition on one label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    key: String,
    operator: Operator,
    /// Sorted, without duplicates.
    values: Vec<String>,
}

impl Requirement {
    /// Validates and builds a requirement. Errors are relative to `path`: `key`, `values` or
    /// `values[i]`.
    pub fn new(key: &str, operator: Operator, values: Vec<String>, path: &Path<'_>) -> Result<Self, Vec<field::Error>> {
        let mut errors = Vec::new();
        let key_messages = names::is_qualified_name(key);
        if !key_messages.is_empty() {
            errors.push(field::Error::invalid(&path.child("key"), key, key_messages.join("; ")));
        }
        let values_path = path.child("values");
        let shown = || if values.is_empty() { Value::Null } else { Value::from(values.clone()) };
        let mut wrong = |detail: &str| errors.push(field::Error::invalid(&values_path, shown(), detail));
        match operator {
            Operator::In | Operator::NotIn if values.is_empty() => {
                wrong("for 'in', 'notin' operators, values set can't be empty");
            }
            Operator::Equals | Operator::DoubleEquals | Operator::NotEquals if values.len() != 1 => {
                wrong("exact-match compatibility requires one single value");
            }
            Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
                wrong("values set must be empty for exists and does not exist");
            }
            Operator::GreaterThan | Operator::LessThan => {
                if values.len() != 1 {
                    wrong("for 'Gt', 'Lt' operators, exactly one value is required");
                }
                for (i, value) in values.iter().enumerate() {
                    if value.parse::<i64>().is_err() {
                        let detail = "for 'Gt', 'Lt' operators, the value must be an integer";
                        errors.push(field::Error::invalid(&values_path.index(i), value.as_str(), detail));
                    }
                }
            }
            _ => {}
        }
        for (i, value) in values.iter().enumerate() {
            let messages = names::is_label_value(value);
            if !messages.is_empty() {
                let at = values_path.index(i);
                errors.push(field::Error::invalid(&at.key(key), value.as_str(), messages.join("; ")));
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let mut values = values;
        values.sort();
        values.dedup();
        Ok(Requirement { key: key.to_owned(), operator, values })
    }

    /// The label's key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The operator.
    pub fn operator(&self) -> Operator {
        self.operator
    }

    /// The values to compare with; sorted.
    pub fn values(&self) -> &[String] {
        &self.values
    }

    /// True if labels satisfy this requirement.
    pub fn matches(&self, labels: &(impl Labels + ?Sized)) -> bool {
        let value = labels.label(&self.key);
        let contained = |value: &str| self.values.iter().any(|v| v == value);
        match self.operator {
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::In | Operator::Equals | Operator::DoubleEquals => value.is_some_and(contained),
            Operator::NotIn | Operator::NotEquals => !value.is_some_and(contained),
            Operator::GreaterThan | Operator::LessThan => {
                let number = |text: &str| text.parse::<i64>().ok();
                match (value.and_then(number), self.values.first().and_then(|v| number(v))) {
                    (Some(actual), Some(bound)) if self.operator == Operator::GreaterThan => actual > bound,
                    (Some(actual), Some(bound)) => actual < bound,
                    _ => false,
                }
            }
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.values.join(",");
        match self.operator {
            Operator::Exists => f.write_str(&self.key),
            Operator::DoesNotExist => write!(f, "!{}", self.key),
            Operator::Equals | Operator::DoubleEquals | Operator::NotEquals => {
                write!(f, "{}{}{values}", self.key, self.operator.name())
            }
            Operator::In | Operator::NotIn => write!(f, "{} {} ({values})", self.key, self.operator.name()),
            Operator::GreaterThan => write!(f, "{}>{values}", self.key),
            Operator::LessThan => write!(f, "{}<{values}", self.key),
        }
    }
}

/// Why a selector cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(String);

/// A conjunction of requirements on labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
    nothing: bool,
}

impl LabelSelector {
    /// Selects every object.
    pub fn everything() -> Self {
        LabelSelector::default()
    }

    /// Selects no object.
    pub fn nothing() -> Self {
        LabelSelector { requirements: Vec::new(), nothing: true }
    }

    /// A selector of these requirements.
    pub fn new(mut requirements: Vec<Requirement>) -> Self {
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        LabelSelector { requirements, nothing: false }
    }

    /// Parses the text form; the empty text selects every object.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        Parser { tokens: tokens(text), at: 0 }.selector().map(LabelSelector::new)
    }

    /// Parses the object form: null selects nothing, `{}` every object.
    pub fn from_object(selector: &Value) -> Result<Self, ParseError> {
        if selector.is_null() {
            return Ok(LabelSelector::nothing());
        }
        let mut requirements = Vec::new();
        let refused = |errors: Vec<field::Error>| ParseError(field::aggregate(&errors));
        for (key, value) in selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
            let values = vec![value.as_str().unwrap_or_default().to_owned()];
            requirements.push(Requirement::new(key, Operator::Equals, values, &Path::root()).map_err(refused)?);
        }
        for expression in selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
            let text = |field: &str| expression.get(field).and_then(Value::as_str).unwrap_or_default();
            let operator = match text("operator") {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => {
                    return Err(ParseError(format!("{} is not a valid label selector operator", field::quote(other))));
                }
            };
            let values = expression.get("values").and_then(Value::as_array);
            let values = values.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
            requirements.push(Requirement::new(text("key"), operator, values, &Path::root()).map_err(refused)?);
        }
        Ok(LabelSelector::new(requirements))
    }

    /// True if labels satisfy every requirement.
    pub fn matches(&self, labels: &(impl Labels + ?Sized)) -> bool {
        !self.nothing && self.requirements.iter().all(|requirement| requirement.matches(labels))
    }

    /// True if the selector matches every object.
    pub fn is_empty(&self) -> bool {
        !self.nothing && self.requirements.is_empty()
    }

    /// True if the selector matches no object.
    pub fn is_nothing(&self) -> bool {
        self.nothing
    }

    /// The requirements, sorted by key.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// The single value that the selector requires of the label, if there is one.
    pub fn exact(&self, key: &str) -> Option<&str> {
        self.requirements.iter().find_map(|requirement| match requirement.operator {
            Operator::Equals | Operator::DoubleEquals | Operator::In
                if requirement.key == key && requirement.values.len() == 1 =>
            {
                requirement.values.first().map(String::as_str)
            }
            _ => None,
        })
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        join(f, &self.requirements)
    }
}

/// Checks a LabelSelector object field by field.
pub fn validate_object(selector: &Value, path: &Path<'_>) -> Vec<field::Error> {
    let mut errors = Vec::new();
    let labels_path = path.child("matchLabels");
    if let Some(labels) = selector.get("matchLabels") {
        errors.extend(crate::validation::validate_labels(labels, &labels_path));
    }
    let list_path = path.child("matchExpressions");
    for (i, expression) in selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten().enumerate()
    {
        let at = list_path.index(i);
        let text = |field: &str| expression.get(field).and_then(Value::as_str).unwrap_or_default();
        let values = expression.get("values").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        match text("operator") {
            "In" | "NotIn" if values.is_empty() => {
                errors.push(field::Error::required(
                    &at.child("values"),
                    "must be specified when `operator` is 'In' or 'NotIn'",
                ));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                errors.push(field::Error::forbidden(
                    &at.child("values"),
                    "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                ));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.push(field::Error::invalid(&at.child("operator"), other, "not a valid selector operator")),
        }
        errors.extend(crate::validation::validate_label_key(text("key"), &at.child("key")));
        let values_path = at.child("values");
        for (j, value) in values.iter().enumerate() {
            let value = value.as_str().unwrap_or_default();
            for message in names::is_label_value(value) {
                errors.push(field::Error::invalid(&values_path.index(j), value, message));
            }
        }
    }
    errors
}

/// Converts a selector object to plain equality, for old APIs that support only a map.
pub fn object_as_map(selector: &Value) -> Result<Option<BTreeMap<String, String>>, ParseError> {
    if selector.is_null() {
        return Ok(None);
    }
    let mut map = BTreeMap::new();
    for (key, value) in selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
        map.insert(key.clone(), value.as_str().unwrap_or_default().to_owned());
    }
    for expression in selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
        let text = |field: &str| expression.get(field).and_then(Value::as_str).unwrap_or_default();
        let values = expression.get("values").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        match (text("operator"), values) {
            ("In", [value]) => {
                map.insert(text("key").to_owned(), value.as_str().unwrap_or_default().to_owned());
            }
            ("In", _) => {
                return Err(ParseError(
                    "operator \"In\" without a single value cannot be converted into the old label selector format"
                        .to_owned(),
                ));
            }
            (operator @ ("NotIn" | "Exists" | "DoesNotExist"), _) => {
                return Err(ParseError(format!(
                    "operator \"{operator}\" cannot be converted into the old label selector format"
                )));
            }
            (operator, _) => {
                return Err(ParseError(format!("{} is not a valid selector operator", field::quote(operator))));
            }
        }
    }
    Ok(Some(map))
}

/// Parses `a=b,c=d` to a map; only plain equality is supported.
pub fn parse_equalities(text: &str) -> Result<BTreeMap<String, String>, ParseError> {
    let mut map = BTreeMap::new();
    if text.is_empty() {
        return Ok(map);
    }
    for term in text.split(',') {
        let [key, value] = term.split('=').collect::<Vec<_>>()[..] else {
            return Err(ParseError(format!("invalid selector: {term}")));
        };
        let (key, value) = (key.trim(), value.trim());
        for (messages, bad) in [(names::is_qualified_name(key), key), (names::is_label_value(value), value)] {
            if !messages.is_empty() {
                return Err(ParseError(format!(
                    "[{key}]: Invalid value: {}: {}",
                    field::quote(bad),
                    messages.join("; ")
                )));
            }
        }
        map.insert(key.to_owned(), value.to_owned());
    }
    Ok(map)
}

fn join<T: fmt::Display>(f: &mut fmt::Formatter<'_>, items: &[T]) -> fmt::Result {
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            f.write_str(",")?;
        }
        write!(f, "{item}")?;
    }
    Ok(())
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Sign(&'a str),
    End,
}

impl Token<'_> {
    fn text(&self) -> &str {
        match self {
            Token::Word(text) | Token::Sign(text) => text,
            Token::End => "",
        }
    }
}

fn tokens(text: &str) -> Vec<Token<'_>> {
    let special = |b: u8| b"=!(),<>".contains(&b);
    // A form feed is not a separator: it becomes part of a word, which is then rejected.
    let space = |b: u8| b" \t\r\n".contains(&b);
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        match bytes[at] {
            b if space(b) => at += 1,
            b if special(b) => {
                at += match bytes.get(at + 1) {
                    Some(b'=') if matches!(b, b'=' | b'!') => 2,
                    _ => 1,
                };
                tokens.push(Token::Sign(&text[start..at]));
            }
            _ => {
                while at < bytes.len() && !special(bytes[at]) && !space(bytes[at]) {
                    at += 1;
                }
                tokens.push(Token::Word(&text[start..at]));
            }
        }
    }
    tokens.push(Token::End);
    tokens
}

struct Parser<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> &Token<'a> {
        &self.tokens[self.at.min(self.tokens.len() - 1)]
    }

    fn next(&mut self) -> Token<'a> {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    fn selector(&mut self) -> Result<Vec<Requirement>, ParseError> {
        let mut requirements = Vec::new();
        if *self.peek() == Token::End {
            return Ok(requirements);
        }
        loop {
            match self.peek() {
                Token::Word(_) | Token::Sign("!") => requirements.push(self.requirement()?),
                other => return Err(unexpected(other, "!, identifier, or 'end of string'")),
            }
            match self.next() {
                Token::End => return Ok(requirements),
                Token::Sign(",") => match self.peek() {
                    Token::Word(_) | Token::Sign("!") => {}
                    other => return Err(unexpected(other, "identifier after ','")),
                },
                other => return Err(unexpected(&other, "',' or 'end of string'")),
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, ParseError> {
        let unable = |why: &dyn fmt::Display| ParseError(format!("unable to parse requirement: {why}"));
        let negated = *self.peek() == Token::Sign("!");
        if negated {
            self.at += 1;
        }
        let key = match self.next() {
            Token::Word(key) => key,
            other => return Err(unable(&unexpected(&other, "identifier"))),
        };
        let (operator, values) = match self.peek().clone() {
            _ if negated => (Operator::DoesNotExist, Vec::new()),
            Token::End | Token::Sign(",") => (Operator::Exists, Vec::new()),
            Token::Sign(sign @ ("=" | "==" | "!=" | ">" | "<")) => {
                self.at += 1;
                let operator = match sign {
                    "=" => Operator::Equals,
                    "==" => Operator::DoubleEquals,
                    "!=" => Operator::NotEquals,
                    ">" => Operator::GreaterThan,
                    _ => Operator::LessThan,
                };
                (operator, vec![self.exact_value().map_err(|e| unable(&e))?])
            }
            Token::Word(word @ ("in" | "notin")) => {
                self.at += 1;
                let operator = if word == "in" { Operator::In } else { Operator::NotIn };
                (operator, self.values().map_err(|e| unable(&e))?)
            }
            other => return Err(unable(&unexpected(&other, "in, notin, =, ==, !=, gt, lt"))),
        };
        Requirement::new(key, operator, values, &Path::root()).map_err(|errors| unable(&field::aggregate(&errors)))
    }

    /// The value after `=`; a missing value is empty.
    fn exact_value(&mut self) -> Result<String, ParseError> {
        match self.peek().clone() {
            Token::End | Token::Sign(",") => Ok(String::new()),
            Token::Word(value) => {
                self.at += 1;
                Ok(value.to_owned())
            }
            other => Err(unexpected(&other, "identifier")),
        }
    }

    /// `(a,b)`; an empty position is the empty value.
    fn values(&mut self) -> Result<Vec<String>, ParseError> {
        match self.next() {
            Token::Sign("(") => {}
            other => return Err(unexpected(&other, "'('")),
        }
        let mut values = Vec::new();
        let mut empty_place = true;
        loop {
            match self.next() {
                Token::Word(value) if empty_place => {
                    values.push(value.to_owned());
                    empty_place = false;
                }
                Token::Sign(mark @ ("," | ")")) => {
                    if empty_place {
                        values.push(String::new());
                    }
                    if mark == ")" {
                        return Ok(values);
                    }
                    empty_place = true;
                }
                other => {
                    let expected = if empty_place { "',', ')' or identifier" } else { "',' or ')'" };
                    return Err(unexpected(&other, expected));
                }
            }
        }
    }
}

fn unexpected(token: &Token<'_>, expected: &str) -> ParseError {
    ParseError(format!("found '{}', expected: {expected}", token.text()))
}

/// One condition on one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldRequirement {
    /// The field, e.g. `metadata.name` or `spec.nodeName`.
    pub field: String,
    /// True if the value must differ.
    pub negated: bool,
    /// The value, unescaped.
    pub value: String,
}

impl fmt::Display for FieldRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.negated { "!=" } else { "=" };
        write!(f, "{}{sign}{}", self.field, escape_value(&self.value))
    }
}

/// A conjunction of equalities on fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    requirements: Vec<FieldRequirement>,
}

impl FieldSelector {
    /// Parses the text form; the empty text selects every object.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut requirements = Vec::new();
        let mut terms = split_terms(text);
        terms.sort_unstable();
        for term in terms.into_iter().filter(|term| !term.is_empty()) {
            let Some((field, sign, value)) = split_term(term) else {
                return Err(ParseError(format!("invalid selector: '{text}'; can't understand '{term}'")));
            };
            requirements.push(FieldRequirement {
                field: field.to_owned(),
                negated: sign == "!=",
                value: unescape_value(value)?,
            });
        }
        Ok(FieldSelector { requirements })
    }

    /// The requirements.
    pub fn requirements(&self) -> &[FieldRequirement] {
        &self.requirements
    }

    /// True if the selector matches every object.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// True if the fields, looked up by name (absent reads as empty), satisfy every requirement.
    pub fn matches<T: AsRef<str>>(&self, lookup: impl Fn(&str) -> Option<T>) -> bool {
        self.requirements.iter().all(|requirement| {
            let value = lookup(&requirement.field);
            let equal = value.as_ref().map_or("", AsRef::as_ref) == requirement.value;
            equal != requirement.negated
        })
    }

    /// The single value that the selector requires of the field, if there is one.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.requirements
            .iter()
            .find(|requirement| requirement.field == field && !requirement.negated)
            .map(|requirement| requirement.value.as_str())
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        join(f, &self.requirements)
    }
}

/// Splits at commas that are not escaped. The empty text has no terms.
pub fn split_terms(text: &str) -> Vec<&str> {
    if text.is_empty() {
        return Vec::new();
    }
    let mut terms = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (i, b) in text.bytes().enumerate() {
        match b {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b',' => {
                terms.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

/// Splits a term into field, operator and (still escaped) value; `None` without an operator.
pub fn split_term(term: &str) -> Option<(&str, &str, &str)> {
    (0..term.len()).filter(|i| term.is_char_boundary(*i)).find_map(|i| {
        let sign = ["!=", "==", "="].into_iter().find(|sign| term[i..].starts_with(sign))?;
        Some((&term[..i], sign, &term[i + sign.len()..]))
    })
}

/// Escapes `\`, `,` and `=`.
pub fn escape_value(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '\\' | ',' | '=') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// The reverse of [`escape_value`]; other escapes and unescaped special characters are errors.
pub fn unescape_value(text: &str) -> Result<String, ParseError> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                other => {
                    let other = other.map(String::from).unwrap_or_default();
                    return Err(ParseError(format!("invalid field selector: invalid escape sequence: \\{other}")));
                }
            },
            ',' | '=' => {
                return Err(ParseError(format!("invalid field selector: unescaped character in value: {}", c as u32)));
            }
            c => out.push(c),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_form_feed_is_rejected_without_an_endless_loop() {
        assert!(LabelSelector::parse("a\u{c}b").is_err());
        assert!(LabelSelector::parse("\u{c}").is_err());
    }

    fn labels(value: Value) -> Map<String, Value> {
        value.as_object().cloned().expect("labels are a map")
    }

    #[test]
    fn requirements_are_a_conjunction() {
        let selector = LabelSelector::parse("a in (x,y),!b,c!=z").expect("parses");
        assert!(selector.matches(&labels(json!({"a": "x"}))));
        assert!(!selector.matches(&labels(json!({"a": "x", "b": ""}))));
        assert!(!selector.matches(&labels(json!({"a": "x", "c": "z"}))));
        assert_eq!(selector.to_string(), "a in (x,y),!b,c!=z");
    }

    #[test]
    fn a_null_selector_selects_nothing_and_an_empty_one_everything() {
        assert!(!LabelSelector::from_object(&Value::Null).expect("parses").matches(&Map::new()));
        assert!(LabelSelector::from_object(&json!({})).expect("parses").matches(&Map::new()));
    }

    #[test]
    fn a_field_selector_names_one_object() {
        let selector = FieldSelector::parse("metadata.name=a,spec.nodeName!=b").expect("parses");
        assert_eq!(selector.exact("metadata.name"), Some("a"));
        assert!(selector.matches(|field| (field == "metadata.name").then_some("a")));
        assert!(!selector.matches(|field| Some(if field == "metadata.name" { "a" } else { "b" })));
    }
}
