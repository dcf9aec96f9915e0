//! Validates the rules of a CustomResourceDefinition: they compile, their estimated cost is within
//! limits, and transition rules are only used where old values exist.
//!
//! The estimated cost of a rule is the maximum cost of one evaluation times the number of
//! evaluations, which the limits of the enclosing lists and maps bound.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::schema::{AdditionalProperties, Schema};
use serde_json::Value as Json;

use super::{CALL_COST_MAX, Request, Rules, Stored, compile, field_path};
use crate::env::Env;

/// Maximum estimated cost of one expression over all its evaluations.
const EXPRESSION_COST_MAX: u64 = 10_000_000;
/// Maximum estimated cost of all expressions of a schema.
const SCHEMA_COST_MAX: u64 = 100_000_000;
/// Maximum number of expensive expressions to report.
const CULPRITS_MAX: usize = 4;
/// Minimum cost of an expression to be reported as expensive.
const CULPRIT_COST_MIN: u64 = SCHEMA_COST_MAX / 100;

const REASONS: [&str; 4] = ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// Options of the validation.
pub struct Options<'a> {
    /// Environment of new expressions.
    pub env: Env,
    /// Environment of stored expressions.
    pub env_stored: Env,
    /// The expressions that are already stored.
    pub stored: &'a dyn Stored,
    /// True to skip the cost limit of single expressions, because the schema is already stored.
    pub suppress_expression_cost: bool,
}

/// The expressions of stored schemas.
#[derive(Debug, Default)]
pub struct StoredExpressions {
    rules: BTreeSet<String>,
    messages: BTreeSet<String>,
}

impl StoredExpressions {
    /// Adds the expressions of a schema as written.
    pub fn add(&mut self, schema: &Json) {
        match schema {
            Json::Object(map) => {
                for rule in map.get("x-kubernetes-validations").and_then(Json::as_array).into_iter().flatten() {
                    let text = |field: &str| rule.get(field).and_then(Json::as_str).map(str::to_owned);
                    self.rules.extend(text("rule"));
                    self.messages.extend(text("messageExpression"));
                }
                map.values().for_each(|below| self.add(below));
            }
            Json::Array(items) => items.iter().for_each(|below| self.add(below)),
            _ => {}
        }
    }
}

impl Stored for StoredExpressions {
    fn has_rule(&self, rule: &str) -> bool {
        self.rules.contains(rule)
    }

    fn has_message(&self, expression: &str) -> bool {
        self.messages.contains(expression)
    }
}

/// No expressions are stored.
pub struct NothingStored;

impl Stored for NothingStored {
    fn has_rule(&self, _: &str) -> bool {
        false
    }

    fn has_message(&self, _: &str) -> bool {
        false
    }
}

/// Validates the rules of a schema as written (the `openAPIV3Schema` of a version). `parsed` is the
/// result of [`Schema::parse_crd`], or `None` if it failed; in that case only rules whose own
/// subtree can be parsed are validated.
pub fn check_definition(
    schema: &Json,
    parsed: Option<&Arc<Schema>>,
    options: &Options<'_>,
    path: &Path<'_>,
) -> Vec<Error> {
    let mut checker = Checker { options, errors: Vec::new(), total: 0, culprits: Vec::new() };
    checker.node(schema, parsed, path, &Place { is_root: true, cardinality: Some(1), uncorrelatable: None });
    if checker.total > SCHEMA_COST_MAX {
        checker.culprits.sort_by_key(|(_, cost)| std::cmp::Reverse(*cost));
        for (field, _) in checker.culprits.iter().take(CULPRITS_MAX) {
            let why = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            checker.errors.push(Error::forbidden(&Path::new(field), why));
        }
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        checker.errors.push(Error::forbidden(path, too_expensive(what, checker.total, SCHEMA_COST_MAX)));
    }
    checker.errors
}

/// Position of a node in the schema.
#[derive(Clone)]
struct Place {
    is_root: bool,
    /// Maximum number of values of the node in an object; `None` if unbounded.
    cardinality: Option<u64>,
    /// The enclosing list or map whose values have no corresponding old values.
    uncorrelatable: Option<String>,
}

struct Checker<'a> {
    options: &'a Options<'a>,
    errors: Vec<Error>,
    total: u64,
    culprits: Vec<(String, u64)>,
}

impl Checker<'_> {
    fn node(&mut self, schema: &Json, parsed: Option<&Arc<Schema>>, path: &Path<'_>, place: &Place) {
        if parsed.is_some_and(|parsed| !parsed.has_rules) {
            return;
        }
        let text = |key: &str| schema.get(key).and_then(Json::as_str).unwrap_or_default();
        self.rules(schema, parsed, path, place);
        let count = |key: &str| schema.get(key).and_then(Json::as_u64);
        let times = |elements: Option<u64>| Some(place.cardinality?.saturating_mul(elements?));
        let mut below = Place { is_root: false, ..place.clone() };
        if !matches!(text("x-kubernetes-map-type"), "" | "granular" | "atomic") && below.uncorrelatable.is_none() {
            below.uncorrelatable = Some(path.to_string());
        }
        for (name, property) in schema.get("properties").and_then(Json::as_object).into_iter().flatten() {
            let parsed = parsed.and_then(|parsed| parsed.properties.get(name));
            self.node(property, parsed, &path.child("properties").key(name), &below);
        }
        if let Some(values) = schema.get("additionalProperties").filter(|values| values.is_object()) {
            let below = Place { cardinality: times(count("maxProperties")), ..below.clone() };
            let parsed = parsed.and_then(|parsed| match &parsed.additional_properties {
                Some(AdditionalProperties::Schema(values)) => Some(values),
                _ => None,
            });
            self.node(values, parsed, &path.child("additionalProperties"), &below);
        }
        if let Some(items) = schema.get("items").filter(|items| items.is_object()) {
            let mut below = Place { cardinality: times(count("maxItems")), ..below };
            if text("x-kubernetes-list-type") != "map" && below.uncorrelatable.is_none() {
                below.uncorrelatable = Some(path.to_string());
            }
            let parsed = parsed.and_then(|parsed| parsed.items.as_ref());
            self.node(items, parsed, &path.child("items"), &below);
        }
    }

    fn rules(&mut self, schema: &Json, parsed: Option<&Arc<Schema>>, path: &Path<'_>, place: &Place) {
        let empty = Vec::new();
        let written = schema.get("x-kubernetes-validations").and_then(Json::as_array).unwrap_or(&empty);
        if written.is_empty() {
            return;
        }
        let rules = path.child("x-kubernetes-validations");
        // A schema that is not structural has no types to check against; the structural check
        // reports it.
        let parsed = parsed.cloned().or_else(|| Schema::parse_crd(schema).ok()).filter(|_| is_structured(schema));
        for (index, rule) in written.iter().enumerate() {
            self.as_written(rule, parsed.as_deref(), &rules.index(index));
        }
        let Some(parsed) = parsed else { return };
        let Options { env, env_stored, stored, .. } = self.options;
        let compiled = compile(&parsed, place.is_root, env, env_stored, *stored);
        for (index, (compiled, written)) in compiled.iter().zip(written).enumerate() {
            let at = rules.index(index);
            let rule_path = at.child("rule");
            let Some(program) = &compiled.program else { continue };
            let times = place.cardinality.unwrap_or(compiled.max_cardinality);
            self.cost("estimated rule cost", compiled.max_cost.saturating_mul(times), &rule_path);
            if let Err(problem) = program {
                self.errors.push(Error::invalid(&rule_path, written.clone(), problem.as_str()));
            }
            let message_path = at.child("messageExpression");
            match &compiled.message {
                Some(Err(problem)) => {
                    self.errors.push(Error::invalid(&message_path, written.clone(), problem.as_str()));
                }
                Some(Ok(_)) => self.cost("estimated messageExpression cost", compiled.message_max_cost, &message_path),
                None => {}
            }
            if compiled.uses_old_self {
                if let Some(around) = &place.uncorrelatable {
                    let why =
                        format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {around}");
                    self.errors.push(Error::invalid(&rule_path, compiled.rule.rule.as_str(), why));
                }
            } else if let Some(optional) = compiled.rule.optional_old_self
                && program.is_ok()
            {
                let why = "may not be set if oldSelf is not used in rule";
                self.errors.push(Error::invalid(&at.child("optionalOldSelf"), optional, why));
            }
        }
    }

    fn cost(&mut self, what: &str, cost: u64, path: &Path<'_>) {
        if cost > EXPRESSION_COST_MAX && !self.options.suppress_expression_cost {
            self.errors.push(Error::forbidden(path, too_expensive(what, cost, EXPRESSION_COST_MAX)));
        }
        self.total = self.total.saturating_add(cost);
        if cost >= CULPRIT_COST_MIN {
            self.culprits.push((path.to_string(), cost));
        }
    }

    /// Checks of a rule that need no compilation.
    fn as_written(&mut self, rule: &Json, schema: Option<&Schema>, at: &Path<'_>) {
        let text = |key: &str| rule.get(key).and_then(Json::as_str).unwrap_or_default();
        let has_line_break = |text: &str| text.contains(['\n', '\r']);
        let (expression, message) = (text("rule").trim(), text("message").trim());
        if expression.is_empty() {
            self.errors.push(Error::required(&at.child("rule"), "rule is not specified"));
        }
        let message_path = at.child("message");
        if !text("message").is_empty() && message.is_empty() {
            let why = "message must be non-empty if specified";
            self.errors.push(Error::invalid(&message_path, text("message"), why));
        } else if has_line_break(message) {
            self.errors.push(Error::invalid(&message_path, text("message"), "message must not contain line breaks"));
        } else if has_line_break(expression) && message.is_empty() {
            let why = "message must be specified if rule contains line breaks";
            self.errors.push(Error::required(&message_path, why));
        }
        if !text("messageExpression").is_empty() && text("messageExpression").trim().is_empty() {
            let why = "messageExpression must be non-empty if specified";
            self.errors.push(Error::required(&at.child("messageExpression"), why));
        }
        if let Some(reason) = rule.get("reason").and_then(Json::as_str)
            && !REASONS.contains(&reason)
        {
            self.errors.push(Error::not_supported(&at.child("reason"), reason, &REASONS));
        }
        let given = text("fieldPath");
        if given.is_empty() {
            return;
        }
        let place = at.child("fieldPath");
        if given.trim().is_empty() {
            self.errors.push(Error::invalid(&place, given, "must be non-empty if specified"));
        }
        if has_line_break(given) {
            self.errors.push(Error::invalid(&place, given, "must not contain line breaks"));
        }
        if schema.is_some_and(|schema| field_path::steps(given, schema).is_err()) {
            self.errors.push(Error::invalid(&place, given, "must be a valid path"));
        }
    }
}

/// True if the node and all nodes below it are structural enough to derive their types.
fn is_structured(schema: &Json) -> bool {
    let properties = schema.get("properties").and_then(Json::as_object);
    let additional = schema.get("additionalProperties").filter(|values| !values.is_null());
    if properties.is_some_and(|properties| !properties.is_empty()) && additional.is_some() {
        return false;
    }
    let below = properties.into_iter().flat_map(|properties| properties.values());
    below.chain(additional).chain(schema.get("items")).all(is_structured)
}

fn too_expensive(what: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and \
         maxLength where arrays, maps, and strings are declared)"
    )
}

/// Checks that the defaults of a schema satisfy its rules, both as new and as unchanged values.
/// `budget` is the cost budget; it is reduced by the actual cost.
pub fn check_defaults(schema: &Arc<Schema>, path: &Path<'_>, budget: &mut Option<u64>, env: &Env) -> Vec<Error> {
    let mut errors = Vec::new();
    default_of(schema, path, budget, env, &mut errors);
    errors
}

fn default_of(schema: &Arc<Schema>, path: &Path<'_>, budget: &mut Option<u64>, env: &Env, errors: &mut Vec<Error>) {
    if !schema.has_rules {
        return;
    }
    let resource = schema.embedded_resource;
    if let Some(default) = schema.default.as_ref().filter(|default| !default.is_null())
        && let Some(rules) = Rules::of_schema(schema, resource, env.clone())
    {
        let at = path.child("default");
        // A default is either new or unchanged. Both evaluations may use the whole remaining
        // budget, and the more expensive one is charged. The evaluation as a new value runs only if
        // the default is valid as an unchanged one.
        let mut cost = 0;
        for old in [Some(default), None] {
            let request = Request { old, budget: *budget, call_limit: Some(CALL_COST_MAX), ..Request::default() };
            let findings = rules.validate(default, &at, request);
            cost = cost.max(findings.cost);
            let is_kept = findings.errors.is_empty();
            errors.extend(findings.errors);
            if !is_kept {
                break;
            }
        }
        *budget = budget.map(|budget| budget.saturating_sub(cost));
    }
    let properties = path.child("properties");
    for (name, property) in &schema.properties {
        default_of(property, &properties.key(name), budget, env, errors);
    }
    if let Some(items) = &schema.items {
        default_of(items, &path.child("items"), budget, env, errors);
    }
    if let Some(AdditionalProperties::Schema(values)) = &schema.additional_properties {
        default_of(values, &path.child("additionalProperties"), budget, env, errors);
    }
}
