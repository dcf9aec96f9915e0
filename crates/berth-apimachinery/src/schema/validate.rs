//! Validates a value against its schema.
//!
//! The messages and their split into errors are those of kube-apiserver, because users search for
//! them and clients show them. Combinations (`anyOf` and the like) are reported for the whole
//! object, with the errors of the branch that came closest.

use std::fmt::Display;

use serde_json::{Number, Value};

use super::{AdditionalProperties, Schema, Type, formats};
use crate::field::{Error, Path, quote, show_float};
use crate::trail::Trail;

impl Schema {
    /// The errors of a value, in no particular order.
    pub fn validate(&self, value: &Value, path: &Path<'_>) -> Vec<Error> {
        Validation { base: path }.node(self, value, None, &Trail::start()).errors
    }

    /// The errors of a value that replaces an older one. An unchanged part is not an error: a rule
    /// that was added later must not block an unrelated update.
    pub fn validate_update(&self, value: &Value, old: &Value, path: &Path<'_>) -> Vec<Error> {
        Validation { base: path }.node(self, value, Some(old), &Trail::start()).errors
    }
}

struct Validation<'a> {
    base: &'a Path<'a>,
}

/// Errors and the number of checks run, which measures how close a branch of a combination came.
#[derive(Default)]
struct Outcome {
    errors: Vec<Error>,
    checks: usize,
}

impl Outcome {
    fn merge(&mut self, other: Outcome) {
        self.errors.extend(other.errors);
        self.checks += other.checks;
    }
}

impl Validation<'_> {
    fn at(&self, at: &Trail<'_>, error: impl FnOnce(&Path<'_>) -> Error) -> Error {
        error(&self.base.child(&at.to_string()))
    }

    /// An error that does not concern a single field.
    fn overall(&self, detail: String) -> Error {
        Error::invalid(self.base, "", detail)
    }

    fn node(&self, schema: &Schema, value: &Value, old: Option<&Value>, at: &Trail<'_>) -> Outcome {
        if old == Some(value) {
            return Outcome::default();
        }
        let node = schema.target();
        let mut outcome = Outcome::default();
        if value.is_null() {
            if let Some(wanted) = type_names(node).filter(|_| !(node.nullable || schema.nullable)) {
                outcome.errors.push(self.at(at, |path| Error::type_invalid(path, "null", must_be(at, wanted, "null"))));
            }
            self.enumeration(node, value, at, &mut outcome);
            return outcome;
        }
        self.value_type(node, value, at, &mut outcome);
        self.combinations(node, value, at, &mut outcome);
        match value {
            Value::String(text) => self.text(node, text, at, &mut outcome),
            Value::Number(number) => self.number(node, number, at, &mut outcome),
            Value::Array(list) => self.list(node, list, old.and_then(Value::as_array), at, &mut outcome),
            Value::Object(_) => self.map(node, value, old, at, &mut outcome),
            _ => {}
        }
        self.enumeration(node, value, at, &mut outcome);
        outcome
    }

    fn value_type(&self, node: &Schema, value: &Value, at: &Trail<'_>, outcome: &mut Outcome) {
        let Some(wanted) = type_names(node) else { return };
        outcome.checks += 1;
        let has =
            |t: Type| node.schema_type == Some(t) || (node.int_or_string && matches!(t, Type::Integer | Type::String));
        let (actual, format) = match value {
            Value::Null => ("null", ""),
            Value::Bool(_) => ("boolean", ""),
            Value::String(_) => ("string", ""),
            Value::Array(_) => ("array", ""),
            Value::Object(_) => ("object", ""),
            Value::Number(number) if number.is_f64() => ("number", "float64"),
            Value::Number(_) => ("integer", "int64"),
        };
        let fits = match value {
            Value::Null => false,
            Value::Bool(_) => has(Type::Boolean),
            Value::String(_) => has(Type::String) || node.quantity,
            Value::Array(_) => has(Type::Array),
            Value::Object(_) => has(Type::Object),
            Value::Number(number) => {
                let whole = number.as_f64().is_some_and(|float| {
                    !number.is_f64() || (float.fract() == 0.0 && float.abs() <= 9_007_199_254_740_991.0)
                });
                has(Type::Number) || (has(Type::Integer) && whole) || node.quantity
            }
        };
        if fits {
            return;
        }
        // The message names the declared format in place of the type, unless the format is one of
        // strings.
        let (wanted, actual) = if !node.format.is_empty() && !matches!(value, Value::String(_) | Value::Array(_)) {
            (node.format.as_str(), if format.is_empty() { actual } else { format })
        } else {
            (wanted, actual)
        };
        outcome.errors.push(self.at(at, |path| Error::type_invalid(path, actual, must_be(at, wanted, actual))));
    }

    fn combinations(&self, node: &Schema, value: &Value, at: &Trail<'_>, outcome: &mut Outcome) {
        let closest = |mut failures: Vec<Outcome>| {
            let mut best = 0;
            for i in 1..failures.len() {
                if failures[i].checks > failures[best].checks {
                    best = i;
                }
            }
            (!failures.is_empty()).then(|| failures.swap_remove(best))
        };
        if !node.any_of.is_empty() {
            outcome.checks += 1;
            let branches: Vec<Outcome> = node.any_of.iter().map(|branch| self.node(branch, value, None, at)).collect();
            if branches.iter().all(|branch| !branch.errors.is_empty()) {
                outcome.errors.push(
                    self.overall(format!("{} must validate at least one schema (anyOf)", quote(&at.to_string()))),
                );
                outcome.merge(closest(branches).unwrap_or_default());
            }
        }
        if !node.one_of.is_empty() {
            outcome.checks += 1;
            let branches: Vec<Outcome> = node.one_of.iter().map(|branch| self.node(branch, value, None, at)).collect();
            let valid = branches.iter().filter(|branch| branch.errors.is_empty()).count();
            if valid != 1 {
                let found = if valid == 0 {
                    "Found none valid".to_owned()
                } else {
                    format!("Found {valid} valid alternatives")
                };
                outcome.errors.push(self.overall(format!(
                    "{} must validate one and only one schema (oneOf). {found}",
                    quote(&at.to_string())
                )));
                if valid == 0 {
                    outcome.merge(closest(branches).unwrap_or_default());
                }
            }
        }
        if !node.all_of.is_empty() {
            outcome.checks += 1;
            let mut valid = 0;
            for branch in &node.all_of {
                let branch = self.node(branch, value, None, at);
                valid += usize::from(branch.errors.is_empty());
                outcome.merge(branch);
            }
            if valid != node.all_of.len() {
                let none = if valid == 0 { ". None validated" } else { "" };
                outcome.errors.push(
                    self.overall(format!("{} must validate all the schemas (allOf){none}", quote(&at.to_string()))),
                );
            }
        }
        if let Some(not) = &node.not {
            outcome.checks += 1;
            if self.node(not, value, None, at).errors.is_empty() {
                outcome
                    .errors
                    .push(self.overall(format!("{} must not validate the schema (not)", quote(&at.to_string()))));
            }
        }
    }

    fn text(&self, node: &Schema, text: &str, at: &Trail<'_>, outcome: &mut Outcome) {
        let bounded = node.max_length.is_some() || node.min_length.is_some() || node.pattern.is_some();
        if matches!(node.schema_type, Some(Type::String) | None) || node.int_or_string {
            if bounded {
                outcome.checks += 1;
                let length = text.chars().count() as u64;
                if let Some(max) = node.max_length.filter(|max| length > *max) {
                    outcome.errors.push(self.at(at, |path| Error::too_long(path, max as i64)));
                }
                if let Some(min) = node.min_length.filter(|min| length < *min) {
                    let detail = format!("{at} in body should be at least {min} chars long");
                    outcome.errors.push(self.at(at, |path| Error::invalid(path, text, detail)));
                }
                if let Some(pattern) = &node.pattern {
                    let detail = match pattern.matches(text) {
                        Ok(true) => None,
                        Ok(false) => Some(format!("{at} in body should match '{}'", pattern.text)),
                        Err(why) => {
                            Some(format!("{at} in body should match '{}, but pattern is invalid: {why}'", pattern.text))
                        }
                    };
                    if let Some(detail) = detail {
                        outcome.errors.push(self.at(at, |path| Error::invalid(path, text, detail)));
                    }
                }
            }
            if !node.format.is_empty() {
                outcome.checks += 1;
                if formats::check(&node.format, text) == Some(false) {
                    outcome
                        .errors
                        .push(self.at(at, |path| Error::type_invalid(path, text, must_be(at, &node.format, text))));
                }
            }
        }
    }

    fn number(&self, node: &Schema, number: &Number, at: &Trail<'_>, outcome: &mut Outcome) {
        let named = match node.schema_type {
            Some(t @ (Type::Integer | Type::Number)) => Some(t),
            _ => None,
        };
        let value = number.as_f64().unwrap_or_default();
        if let Some(named) = named {
            outcome.checks += 1;
            if !in_range(number, named, &node.format) {
                let format = match node.format.as_str() {
                    "" => "(default format)".to_owned(),
                    format => format!("with format {format}"),
                };
                let detail = format!("Checked value must be of type {} {format} in {at}", named.name());
                outcome.errors.push(self.overall(detail));
            }
        }
        let shown = || Value::Number(number.clone());
        if let Some(step) = node.multiple_of.filter(|step| *step > 0.0) {
            let ratio = value / step;
            if (ratio - ratio.round()).abs() > 1e-9 {
                let detail = format!("{at} in body should be a multiple of {}", show_float(step));
                outcome.errors.push(self.at(at, |path| Error::invalid(path, shown(), detail)));
            }
        }
        if let Some(bound) = &node.maximum {
            let order = compare(number, &bound.value);
            if order.is_gt() || (bound.exclusive && order.is_eq()) {
                let relation = if bound.exclusive { "less than" } else { "less than or equal to" };
                let detail = format!("{at} in body should be {relation} {}", show_number(&bound.value));
                outcome.errors.push(self.at(at, |path| Error::invalid(path, shown(), detail)));
            }
        }
        if let Some(bound) = &node.minimum {
            let order = compare(number, &bound.value);
            if order.is_lt() || (bound.exclusive && order.is_eq()) {
                let relation = if bound.exclusive { "greater than" } else { "greater than or equal to" };
                let detail = format!("{at} in body should be {relation} {}", show_number(&bound.value));
                outcome.errors.push(self.at(at, |path| Error::invalid(path, shown(), detail)));
            }
        }
    }

    fn list(&self, node: &Schema, list: &[Value], old: Option<&Vec<Value>>, at: &Trail<'_>, outcome: &mut Outcome) {
        outcome.checks += 1;
        if let Some(items) = &node.items {
            for (i, item) in list.iter().enumerate() {
                let old = old.and_then(|old| correlated(node, old, item));
                outcome.merge(self.node(items, item, old, &at.index(i)));
            }
        }
        let count = list.len() as u64;
        if let Some(min) = node.min_items.filter(|min| count < *min) {
            let detail = format!("{at} in body should have at least {min} items");
            outcome.errors.push(self.at(at, |path| Error::invalid(path, count, detail)));
        }
        if let Some(max) = node.max_items.filter(|max| count > *max) {
            outcome.errors.push(self.at(at, |path| Error::too_many(path, count as i64, max as i64)));
        }
        if node.unique_items && list.iter().enumerate().any(|(i, item)| list[..i].contains(item)) {
            let detail = format!("{at} in body shouldn't contain duplicates");
            outcome.errors.push(self.at(at, |path| Error::invalid(path, Value::Array(list.to_vec()), detail)));
        }
    }

    fn map(&self, node: &Schema, value: &Value, old: Option<&Value>, at: &Trail<'_>, outcome: &mut Outcome) {
        let Some(map) = value.as_object() else { return };
        outcome.checks += 1;
        let count = map.len() as u64;
        if let Some(min) = node.min_properties.filter(|min| count < *min) {
            let detail = format!("{at} in body should have at least {min} properties");
            outcome.errors.push(self.at(at, |path| Error::invalid(path, count, detail)));
        }
        if let Some(max) = node.max_properties.filter(|max| count > *max) {
            outcome.errors.push(self.at(at, |path| Error::too_many(path, count as i64, max as i64)));
        }
        for name in node.required.iter().filter(|name| !map.contains_key(*name)) {
            outcome.errors.push(self.at(&at.name(name), |path| Error::required(path, "")));
        }
        for (name, entry) in map {
            let schema = match (node.properties.get(name), &node.additional_properties) {
                (Some(property), _) => property,
                (None, Some(AdditionalProperties::Schema(schema))) => schema,
                (None, Some(AdditionalProperties::Allowed(false))) => {
                    let detail = format!("{} in body is a forbidden property", at.name(name));
                    outcome.errors.push(self.at(&at.name(name), |path| Error::invalid(path, "", detail)));
                    continue;
                }
                _ => continue,
            };
            outcome.merge(self.node(schema, entry, old.and_then(|old| old.get(name)), &at.name(name)));
        }
    }

    fn enumeration(&self, node: &Schema, value: &Value, at: &Trail<'_>, outcome: &mut Outcome) {
        let Some(allowed) = node.enumeration.as_ref().filter(|allowed| !allowed.is_empty()) else { return };
        outcome.checks += 1;
        if !allowed.iter().any(|candidate| equal(candidate, value)) {
            let supported: Vec<String> = allowed
                .iter()
                .map(|value| match value {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                })
                .collect();
            outcome.errors.push(self.at(at, |path| Error::not_supported(path, value.clone(), &supported)));
        }
    }
}

/// The old item that a new one replaces: in a keyed list, the item with the same keys. Items of
/// other lists are not correlated; these lists are compared as a whole.
fn correlated<'a>(node: &Schema, old: &'a [Value], item: &Value) -> Option<&'a Value> {
    if node.list_type != Some(super::ListType::Map) || node.list_map_keys.is_empty() {
        return None;
    }
    old.iter().find(|old| node.list_map_keys.iter().all(|key| old.get(key) == item.get(key)))
}

fn type_names(node: &Schema) -> Option<&'static str> {
    if node.int_or_string { Some("integer,string") } else { node.schema_type.map(Type::name) }
}

fn must_be(at: &Trail<'_>, wanted: impl Display, actual: &str) -> String {
    format!("{at} in body must be of type {wanted}: {}", quote(actual))
}

/// True if a number can be held by the type and format.
fn in_range(number: &Number, named: Type, format: &str) -> bool {
    let float = number.as_f64().unwrap_or_default();
    match (named, format) {
        (Type::Integer, format) => {
            let whole = match (number.as_i64(), number.as_u64()) {
                (Some(value), _) => Some(i128::from(value)),
                (None, Some(value)) => Some(i128::from(value)),
                (None, None) => (float.fract() == 0.0 && float.abs() < 1e30).then_some(float as i128),
            };
            let Some(whole) = whole else { return false };
            match format {
                "int32" => i32::try_from(whole).is_ok(),
                "uint32" => u32::try_from(whole).is_ok(),
                "uint64" => u64::try_from(whole).is_ok(),
                _ => i64::try_from(whole).is_ok(),
            }
        }
        (_, "float" | "float32") => float.abs() <= f64::from(f32::MAX),
        _ => true,
    }
}

fn compare(a: &Number, b: &Number) -> std::cmp::Ordering {
    match (a.as_i64(), b.as_i64()) {
        (Some(a), Some(b)) => a.cmp(&b),
        _ => a.as_f64().unwrap_or_default().total_cmp(&b.as_f64().unwrap_or_default()),
    }
}

fn show_number(number: &Number) -> String {
    show_float(number.as_f64().unwrap_or_default())
}

/// Equality in which `1` and `1.0` are the same.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => compare(a, b).is_eq(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| equal(a, b)))
        }
        (a, b) => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(schema: Value, value: Value) -> Vec<String> {
        let schema = Schema::parse_crd(&schema).expect("parses");
        schema.validate(&value, &Path::root()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_wrong_type_names_both_types() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"n": {"type": "integer"}}}}});
        assert_eq!(
            check(schema, json!({"spec": {"n": "x"}})),
            ["spec.n: Invalid value: \"string\": spec.n in body must be of type integer: \"string\""]
        );
    }

    #[test]
    fn bounds_lists_and_enums_are_checked() {
        let schema = json!({"type": "object", "required": ["x"], "properties": {
            "n": {"type": "integer", "minimum": 1}, "e": {"type": "string", "enum": ["a", "b"]},
            "l": {"type": "array", "maxItems": 1, "items": {"type": "string", "minLength": 1}}}});
        let mut errors = check(schema, json!({"n": 0, "e": "c", "l": ["", "x"]}));
        errors.sort();
        assert_eq!(
            errors,
            [
                "e: Unsupported value: \"c\": supported values: \"a\", \"b\"",
                "l: Too many: 2: must have at most 1 item",
                "l[0]: Invalid value: \"\": l[0] in body should be at least 1 chars long",
                "n: Invalid value: 0: n in body should be greater than or equal to 1",
                "x: Required value",
            ]
        );
    }

    #[test]
    fn unchanged_invalid_fields_do_not_fail_an_update() {
        let schema = Schema::parse_crd(
            &json!({"type": "object", "properties": {"a": {"type": "string", "enum": ["x"]}, "b": {"type": "string"}}}),
        )
        .expect("parses");
        let old = json!({"a": "old", "b": "1"});
        assert!(schema.validate_update(&json!({"a": "old", "b": "2"}), &old, &Path::root()).is_empty());
        assert_eq!(schema.validate_update(&json!({"a": "new", "b": "1"}), &old, &Path::root()).len(), 1);
    }
}
