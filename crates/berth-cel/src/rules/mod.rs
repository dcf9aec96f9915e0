//! `x-kubernetes-validations`: compiles the rules of a schema on first use and evaluates them on
//! every write.
//!
//! Only branches of a schema that have rules are walked. Objects are borrowed: a rule sees a view
//! of the JSON.

mod correlate;
mod definition;
mod field_path;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use berth_apimachinery::field::{Error, ErrorKind, Path};
use berth_apimachinery::schema::{AdditionalProperties, Rule, Schema, Type as SchemaType};
use serde_json::Value as Json;

pub use correlate::{Correlated, MapList};
pub use definition::{NothingStored, Options, StoredExpressions, check_defaults, check_definition};
pub use field_path::{ArrayNotation, valid_field_path};

use crate::decl::{Decl, REQUEST_BYTES_MAX};
use crate::env::Env;
use crate::error::EvalError;
use crate::estimate::Sizes;
use crate::program::{Program, Run};
use crate::types::Type;
use crate::value::{Value, view};

/// Maximum cost of one evaluation of a rule.
pub const CALL_COST_MAX: u64 = 1_000_000;
/// Maximum total cost of the rules of one object.
pub const OBJECT_COST_MAX: u64 = 10_000_000;
/// Maximum length of a message from an expression, in bytes.
const MESSAGE_BYTES_MAX: usize = 5 * 1024;

const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";
const MESSAGE_OUT_OF_BUDGET: &str =
    "messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run";

/// A compiled rule.
#[derive(Debug)]
pub struct Compiled {
    /// The rule as written.
    pub rule: Rule,
    /// The compiled expression or its error. `None` for a blank rule.
    pub program: Option<Result<Program, String>>,
    /// The compiled message expression or its error.
    pub message: Option<Result<Program, String>>,
    /// True for a transition rule, which uses the old value.
    pub uses_old_self: bool,
    /// Maximum estimated cost of one evaluation.
    pub max_cost: u64,
    /// Maximum estimated cost of one evaluation of the message expression.
    pub message_max_cost: u64,
    /// Maximum number of evaluations per object, estimated from the size of the value alone.
    pub max_cardinality: u64,
    /// Path of the reported field, relative to the value.
    field_path: String,
}

/// Looks up stored expressions, which may use all functions that this server supports.
pub trait Stored {
    /// True if a rule with this expression is stored.
    fn has_rule(&self, rule: &str) -> bool;
    /// True if this message expression is stored.
    fn has_message(&self, expression: &str) -> bool;
}

/// Compiles the rules of a schema node: stored expressions in `env_stored`, new ones in `env`.
pub fn compile(schema: &Schema, resource: bool, env: &Env, env_stored: &Env, stored: &dyn Stored) -> Vec<Compiled> {
    let decl = Decl::of_schema(schema, resource, "selfType");
    let choose = |is_stored: bool| if is_stored { env_stored } else { env };
    let compile = |rule: &Rule| {
        let message = rule.message_expression.as_deref().unwrap_or_default();
        let (env, message_env) = (choose(stored.has_rule(&rule.rule)), choose(stored.has_message(message)));
        compile_rule(rule, schema, decl.as_ref(), env, message_env)
    };
    schema.rules.iter().map(compile).collect()
}

fn compile_rule(rule: &Rule, schema: &Schema, decl: Option<&Arc<Decl>>, env: &Env, message_env: &Env) -> Compiled {
    let field_path = rule
        .field_path
        .as_deref()
        .filter(|path| !path.is_empty())
        .and_then(|path| field_path::steps(path, schema).ok())
        .unwrap_or_default();
    let mut compiled = Compiled {
        rule: rule.clone(),
        program: None,
        message: None,
        uses_old_self: false,
        max_cost: 0,
        message_max_cost: 0,
        max_cardinality: 0,
        field_path,
    };
    if rule.rule.trim().is_empty() {
        return compiled;
    }
    let Some(decl) = decl else {
        compiled.program = Some(Err("failed to convert to declType for CEL validation rules".to_owned()));
        return compiled;
    };
    let old = match rule.optional_old_self {
        Some(true) => Type::optional(decl.type_().clone()),
        _ => decl.type_().clone(),
    };
    let declare = |env: &Env| env.clone().variable("self", decl.type_().clone()).variable("oldSelf", old.clone());
    let (env, message_env) = (declare(env), declare(message_env));
    let program = compile_expression(&env, &rule.rule, &Type::Bool, "", "cel expression must evaluate to a bool");
    if let Ok(program) = &program {
        compiled.uses_old_self = program.uses(OLD_SELF);
        compiled.max_cost = program.estimate(&SelfSizes(decl)).max;
        compiled.max_cardinality = REQUEST_BYTES_MAX / (decl.min_size + 1);
        compiled.message = rule.message_expression.as_ref().filter(|text| !text.trim().is_empty()).map(|text| {
            let wrong = "messageExpression must evaluate to a string";
            compile_expression(&message_env, text, &Type::String, "messageExpression ", wrong)
        });
        if let Some(Ok(message)) = &compiled.message {
            compiled.message_max_cost = message.estimate(&SelfSizes(decl)).max;
        }
    }
    compiled.program = Some(program);
    compiled
}

/// Slots of the variables.
const OLD_SELF: usize = 1;

fn compile_expression(env: &Env, text: &str, wanted: &Type, what: &str, wrong: &str) -> Result<Program, String> {
    let program = env.compile(text).map_err(|issues| format!("{what}compilation failed: {issues}"))?;
    if program.result_type() != wanted {
        return Err(wrong.to_owned());
    }
    match program.failure() {
        Some(failure) => Err(format!("{what}program instantiation failed: {failure}")),
        None => Ok(program),
    }
}

/// Maximum sizes of `self` and `oldSelf`, from the schema.
struct SelfSizes<'a>(&'a Decl);

impl Sizes for SelfSizes<'_> {
    fn max_size(&self, path: &[&str], _: &Type) -> Option<u64> {
        let [_, rest @ ..] = path else { return None };
        // A value without a length has size zero, as upstream.
        self.0.at(rest).map(|decl| decl.max_elements().unwrap_or(0))
    }
}

/// The rules of a schema and of all schemas below it.
#[derive(Debug)]
pub struct Rules {
    root: Node,
    env: Env,
}

/// A schema node that has rules, or has nodes with rules below it.
#[derive(Debug)]
struct Node {
    schema: Arc<Schema>,
    /// The structure that rules refer to: the node itself or, inside an `allOf`, the node that has
    /// the `allOf`.
    structure: Arc<Schema>,
    resource: bool,
    ready: OnceLock<Ready>,
    properties: BTreeMap<String, Node>,
    items: Option<Box<Node>>,
    additional: Option<Box<Node>>,
    all_of: Vec<Node>,
}

#[derive(Debug)]
struct Ready {
    decl: Option<Arc<Decl>>,
    rules: Vec<Compiled>,
}

/// Options for validating one object.
#[derive(Clone, Copy, Default)]
pub struct Request<'a> {
    /// The old object; `None` on create.
    pub old: Option<&'a Json>,
    /// Maximum total cost of the rules; `None` for no limit.
    pub budget: Option<u64>,
    /// Maximum cost of one evaluation; `None` for no limit.
    pub call_limit: Option<u64>,
    /// True if errors about unchanged values become warnings.
    pub ratcheting: bool,
    /// Set to true to cancel the validation.
    pub interrupt: Option<&'a AtomicBool>,
}

/// The result of the rules.
#[derive(Debug, Default)]
pub struct Findings {
    /// Violations that reject the object.
    pub errors: Vec<Error>,
    /// Violations that the old object had too.
    pub warnings: Vec<Error>,
    /// The actual cost.
    pub cost: u64,
    /// True if a limit ended the validation early.
    pub exhausted: bool,
}

impl Rules {
    /// The rules of a schema, to be compiled in `env`; `None` if there are none. `resource` is true
    /// for the schema of a whole object.
    pub fn of_schema(schema: &Arc<Schema>, resource: bool, env: Env) -> Option<Rules> {
        let root = Node::new(schema, schema, resource)?;
        Some(Rules { root, env })
    }

    /// Evaluates the rules for an object.
    pub fn validate(&self, object: &Json, path: &Path<'_>, request: Request<'_>) -> Findings {
        let mut run = Validation { env: &self.env, request, findings: Findings::default() };
        let ratchet = match request.old {
            Some(old) if request.ratcheting => Ratchet::of(Correlated::new(object, old, &self.root.schema)),
            _ => Ratchet::never(),
        };
        run.node(&self.root, object, request.old, path, &ratchet, true);
        run.findings
    }
}

impl Node {
    fn new(schema: &Arc<Schema>, structure: &Arc<Schema>, resource: bool) -> Option<Node> {
        let mut properties = BTreeMap::new();
        for (name, property) in &schema.properties {
            let declared = structure.properties.get(name).unwrap_or(property);
            if let Some(node) = Node::new(property, declared, declared.embedded_resource) {
                properties.insert(name.clone(), node);
            }
        }
        let below =
            |schema: &Arc<Schema>, declared: &Arc<Schema>| Node::new(schema, declared, declared.embedded_resource);
        let items = schema.items.as_ref().and_then(|items| below(items, structure.items.as_ref().unwrap_or(items)));
        let additional = match (&schema.additional_properties, &structure.additional_properties) {
            (Some(AdditionalProperties::Schema(values)), Some(AdditionalProperties::Schema(declared))) => {
                below(values, declared)
            }
            (Some(AdditionalProperties::Schema(values)), _) => below(values, values),
            _ => None,
        };
        let all_of: Vec<Node> =
            schema.all_of.iter().filter_map(|branch| Node::new(branch, structure, resource)).collect();
        let is_bare = schema.rules.is_empty()
            && properties.is_empty()
            && items.is_none()
            && additional.is_none()
            && all_of.is_empty();
        if is_bare {
            return None;
        }
        Some(Node {
            schema: schema.clone(),
            structure: structure.clone(),
            resource,
            ready: OnceLock::new(),
            properties,
            items: items.map(Box::new),
            additional: additional.map(Box::new),
            all_of,
        })
    }

    fn ready(&self, env: &Env) -> &Ready {
        self.ready.get_or_init(|| {
            let decl = Decl::of_schema(&self.structure, self.resource, "selfType");
            let rules = self
                .schema
                .rules
                .iter()
                .map(|rule| compile_rule(rule, &self.structure, decl.as_ref(), env, env))
                .collect();
            Ready { decl, rules }
        })
    }
}

/// State of ratcheting: whether an error is tolerated because its value has not changed.
#[derive(Clone, Default)]
struct Ratchet<'a> {
    /// The value with its old value, or the nearest ancestor that has an old value.
    nearest: Option<Correlated<'a>>,
    /// True if the value itself has an old value.
    is_current: bool,
}

impl<'a> Ratchet<'a> {
    fn never() -> Self {
        Ratchet::default()
    }

    fn of(correlated: Correlated<'a>) -> Self {
        Ratchet { nearest: Some(correlated), is_current: true }
    }

    fn forgives(&self) -> bool {
        self.nearest.as_ref().is_some_and(Correlated::is_unchanged)
    }

    fn below(&self, step: impl FnOnce(&Correlated<'a>) -> Option<Correlated<'a>>) -> Self {
        let Some(nearest) = &self.nearest else { return Ratchet::never() };
        match self.is_current.then(|| step(nearest)).flatten() {
            Some(below) => Ratchet::of(below),
            None => Ratchet { nearest: Some(nearest.clone()), is_current: false },
        }
    }
}

struct Validation<'a> {
    env: &'a Env,
    request: Request<'a>,
    findings: Findings,
}

impl<'a> Validation<'a> {
    fn node(
        &mut self,
        node: &'a Node,
        value: &Json,
        old: Option<&Json>,
        path: &Path<'_>,
        ratchet: &Ratchet<'_>,
        is_root: bool,
    ) {
        // Rules are not evaluated for null: rules of the parent can check null and absent values.
        if value.is_null() {
            return;
        }
        let old = old.filter(|old| !old.is_null());
        if !node.schema.rules.is_empty() {
            self.rules(node, value, old, path, ratchet);
        }
        for branch in &node.all_of {
            if self.findings.exhausted {
                return;
            }
            self.node(branch, value, old, path, &Ratchet::never(), is_root);
        }
        match value {
            Json::Object(map) => {
                let old = old.and_then(Json::as_object);
                for (key, value) in map {
                    let is_declared = node.structure.properties.contains_key(key);
                    let old = old.and_then(|old| old.get(key));
                    if let Some(property) = node.properties.get(key) {
                        if self.findings.exhausted {
                            return;
                        }
                        let is_type_meta = is_root && matches!(key.as_str(), "apiVersion" | "kind");
                        let below =
                            if is_type_meta { Ratchet::never() } else { ratchet.below(|current| current.key(key)) };
                        self.node(property, value, old, &path.child(key), &below, false);
                    } else if let Some(additional) = &node.additional
                        && !is_declared
                    {
                        if self.findings.exhausted {
                            return;
                        }
                        let below = ratchet.below(|current| current.key(key));
                        self.node(additional, value, old, &path.key(key), &below, false);
                    }
                }
            }
            Json::Array(items) => {
                let Some(node_items) = &node.items else { return };
                let old_items = old.and_then(Json::as_array);
                let old_items = old_items.and_then(|items| MapList::new(&node.structure, items));
                for (index, item) in items.iter().enumerate() {
                    if self.findings.exhausted {
                        return;
                    }
                    let old = old_items.as_ref().and_then(|old| old.get(item));
                    let below = ratchet.below(|current| current.index(index));
                    self.node(node_items, item, old, &path.index(index), &below, false);
                }
            }
            _ => {}
        }
    }

    fn remaining(&self) -> u64 {
        self.request.budget.map_or(u64::MAX, |budget| budget.saturating_sub(self.findings.cost))
    }

    /// An error that shows the type instead of the value.
    fn typed(&self, node: &Node, path: &Path<'_>, detail: impl Into<String>) -> Error {
        let name = node.structure.schema_type.map_or("", SchemaType::name);
        let name = if node.resource && name.is_empty() { "object" } else { name };
        Error::invalid(path, name, detail)
    }

    fn stop(&mut self, error: Error) {
        self.findings.errors.push(error);
        self.findings.exhausted = true;
    }

    fn rules(&mut self, node: &'a Node, value: &Json, old: Option<&Json>, path: &Path<'_>, ratchet: &Ratchet<'_>) {
        if self.remaining() == 0 {
            let error = self.typed(node, path, OUT_OF_BUDGET);
            return self.stop(error);
        }
        let ready = node.ready(self.env);
        let decl = ready.decl.as_deref();
        for compiled in &ready.rules {
            let program = match &compiled.program {
                None => continue,
                Some(Err(problem)) => {
                    let error = self.typed(node, path, format!("rule compile error: {problem}"));
                    self.findings.errors.push(error);
                    continue;
                }
                Some(Ok(program)) => program,
            };
            let optional = compiled.rule.optional_old_self == Some(true);
            if compiled.uses_old_self && old.is_none() && !optional {
                continue;
            }
            let variables = match bind(value, old, decl, optional, compiled.uses_old_self) {
                Ok(variables) => variables,
                Err(error) => {
                    let error = self.evaluation_error(node, path, &error, &compiled.rule);
                    self.findings.errors.push(error);
                    continue;
                }
            };
            let run = Run {
                limit: Some(self.request.call_limit.unwrap_or(u64::MAX)),
                interrupt: self.request.interrupt,
                ..Run::default()
            };
            let ran = program.run(&variables, run);
            if ran.cost > self.remaining() {
                let error = self.typed(node, path, OUT_OF_BUDGET);
                return self.stop(error);
            }
            self.findings.cost = self.findings.cost.saturating_add(ran.cost);
            match ran.result {
                Ok(Value::Bool(true)) => {}
                Ok(_) => self.refuse(node, compiled, value, &variables, path, ratchet),
                Err(error) => {
                    let field_error = self.evaluation_error(node, path, &error, &compiled.rule);
                    self.findings.errors.push(field_error);
                    if error == EvalError::CostLimit {
                        self.findings.exhausted = true;
                    }
                }
            }
            if self.findings.exhausted {
                return;
            }
        }
    }

    fn evaluation_error(&self, node: &Node, path: &Path<'_>, error: &EvalError, rule: &Rule) -> Error {
        let shown = match rule.message.as_deref().map(str::trim) {
            Some(message) if !message.is_empty() => message,
            _ => rule.rule.trim(),
        };
        let detail = match error {
            EvalError::NoOverload => format!(
                "'{error}': call arguments did not match a supported operator, function or macro signature for rule: {shown}"
            ),
            EvalError::CostLimit => format!(
                "'{error}': no further validation rules will be run due to call cost exceeds limit for rule: {shown}"
            ),
            _ => format!("{error} evaluating rule: {shown}"),
        };
        self.typed(node, path, detail)
    }

    /// Reports a violated rule.
    fn refuse(
        &mut self,
        node: &Node,
        compiled: &Compiled,
        value: &Json,
        variables: &[Value<'_>],
        path: &Path<'_>,
        ratchet: &Ratchet<'_>,
    ) {
        let mut detail = match compiled.rule.message.as_deref().map(str::trim) {
            Some(message) if !message.is_empty() => message.to_owned(),
            _ => format!("failed rule: {}", compiled.rule.rule.trim()),
        };
        let forgiven = !compiled.uses_old_self && ratchet.forgives();
        if let Some(Ok(program)) = &compiled.message {
            let run = Run { limit: self.request.call_limit, interrupt: self.request.interrupt, ..Run::default() };
            let ran = program.run(variables, run);
            if ran.cost > self.remaining() {
                let error = self.typed(node, path, MESSAGE_OUT_OF_BUDGET);
                return self.stop(error);
            }
            self.findings.cost = self.findings.cost.saturating_add(ran.cost);
            match ran.result {
                Ok(Value::String(text)) => {
                    let text = text.trim();
                    if !text.is_empty() && text.len() <= MESSAGE_BYTES_MAX && !text.contains('\n') {
                        detail = text.to_owned();
                    }
                }
                Err(EvalError::CostLimit) => {
                    let shown = berth_apimachinery::field::quote(program.text());
                    let why = format!(
                        "no further validation rules will be run due to call cost exceeds limit for messageExpression: {shown}"
                    );
                    let error = self.typed(node, path, why);
                    return self.stop(error);
                }
                _ => {}
            }
        }
        let below;
        let at = if compiled.field_path.is_empty() {
            path
        } else {
            below = path.child(&compiled.field_path);
            &below
        };
        let error = failed_rule(at, value, detail, compiled.rule.reason.as_deref());
        if forgiven { self.findings.warnings.push(error) } else { self.findings.errors.push(error) }
    }
}

fn bind<'v>(
    value: &'v Json,
    old: Option<&'v Json>,
    decl: Option<&'v Decl>,
    optional: bool,
    uses_old: bool,
) -> Result<[Value<'v>; 2], EvalError> {
    let new = view(value, decl)?;
    let old = match old {
        // The old value is converted only if the rule uses it.
        Some(old) if uses_old => Some(view(old, decl)?),
        _ => None,
    };
    let old = match (old, optional) {
        (old, true) => Value::Optional(old.map(Arc::new)),
        (Some(old), false) => old,
        (None, false) => Value::Null,
    };
    Ok([new, old])
}

/// The error of a violated rule. Objects and lists are not shown.
fn failed_rule(path: &Path<'_>, value: &Json, detail: String, reason: Option<&str>) -> Error {
    let kind = match reason {
        Some("FieldValueForbidden") => ErrorKind::Forbidden,
        Some("FieldValueRequired") => ErrorKind::Required,
        Some("FieldValueDuplicate") => ErrorKind::Duplicate,
        _ => ErrorKind::Invalid,
    };
    let shown = !(value.is_object() || value.is_array());
    let mut error = Error::invalid(path, Json::Null, detail);
    error.bad_value = (shown && !matches!(kind, ErrorKind::Forbidden | ErrorKind::Required)).then(|| value.clone());
    error.kind = kind;
    if kind == ErrorKind::Duplicate {
        error.detail.clear();
    }
    error
}
