//! Validating policies: what their expressions say about a request, and what follows from that.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value as Json;

use super::common::{Common, list, text};
use super::conditions::Matched;
use super::{Inputs, environment};
use crate::env::Env;
use crate::library::Authorizer;
use crate::program::{Program, Run};
use crate::rules::CALL_COST_MAX;
use crate::types::Type;
use crate::value::Value;
use crate::variables::Variables;

/// Most all expressions of one policy may cost for one request and parameter.
pub const POLICY_COST_MAX: u64 = 10_000_000;
/// Longest message an expression may produce, in bytes.
const MESSAGE_BYTES_MAX: usize = 5 * 1024;

/// What an error means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailurePolicy {
    /// The request is refused.
    #[default]
    Fail,
    /// The request is let through.
    Ignore,
}

impl FailurePolicy {
    /// Reads `failurePolicy`.
    pub fn parse(text: Option<&str>) -> FailurePolicy {
        if text == Some("Ignore") { FailurePolicy::Ignore } else { FailurePolicy::Fail }
    }
}

/// The expressions cost more than all of them may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBudget;

impl fmt::Display for OutOfBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("validation failed due to running out of cost budget, no further validation rules will be run")
    }
}

/// An expression, compiled or not.
#[derive(Clone, Debug)]
pub struct Expression {
    text: String,
    program: Result<Program, String>,
}

impl Expression {
    /// Compiles an expression that must have one of these types (any, if none is given).
    pub fn compile(env: &Env, text: &str, wanted: &[Type]) -> Expression {
        let program = env.compile(text).map_err(|issues| format!("compilation failed: {issues}")).and_then(|program| {
            let found = program.result_type();
            if !wanted.is_empty() && *found != Type::Dyn && !wanted.contains(found) {
                let names: Vec<String> = wanted.iter().map(ToString::to_string).collect();
                return Err(match names.as_slice() {
                    [name] => format!("must evaluate to {name}"),
                    names => format!("must evaluate to one of {}", names.join(", ")),
                });
            }
            match program.failure() {
                Some(failure) => Err(format!("program instantiation failed: {failure}")),
                None => Ok(program),
            }
        });
        Expression { text: text.to_owned(), program }
    }

    /// Why it cannot be used.
    pub fn error(&self) -> Option<&str> {
        self.program.as_ref().err().map(String::as_str)
    }

    /// The type of its value, if it compiled.
    pub fn result_type(&self) -> Option<&Type> {
        self.program.as_ref().ok().map(Program::result_type)
    }

    /// Evaluates it on a request. `call_limit` is what it may cost (the usual limit if it is not given), `budget` what all
    /// expressions together may still cost.
    pub fn evaluate_on<'a>(
        &self,
        inputs: &Inputs<'a>,
        call_limit: Option<u64>,
        budget: &mut u64,
    ) -> Result<Result<Value<'a>, String>, OutOfBudget> {
        self.evaluate(&inputs.values(), inputs.authorizer, None, call_limit, budget)
    }

    pub(crate) fn evaluate<'a>(
        &self,
        values: &[Value<'a>],
        authorizer: Option<&'a dyn Authorizer>,
        variables: Option<&'a Variables<'a>>,
        call_limit: Option<u64>,
        budget: &mut u64,
    ) -> Result<Result<Value<'a>, String>, OutOfBudget> {
        let program = match &self.program {
            Err(error) => return Ok(Err(format!("compilation error: {error}"))),
            Ok(program) => program,
        };
        let run = Run { limit: Some(call_limit.unwrap_or(CALL_COST_MAX)), interrupt: None, authorizer, variables };
        let ran = program.run(values, run);
        *budget = budget.checked_sub(ran.cost).ok_or(OutOfBudget)?;
        Ok(ran.result.map_err(|error| format!("expression '{}' resulted in error: {error}", self.text)))
    }
}

/// Evaluates an expression that uses variables. The value is given as JSON, where it has such a form.
pub fn evaluate_composed(
    expression: &Expression,
    variables: &BTreeMap<String, Program>,
    inputs: &Inputs<'_>,
    budget: &mut u64,
) -> Result<Result<Option<Json>, String>, OutOfBudget> {
    let values = inputs.values();
    let variables = Variables::new(variables, values.clone());
    let result = expression.evaluate(&values, inputs.authorizer, Some(&variables), None, budget)?;
    Ok(result.map(|value| value.to_json()))
}

/// One entry of `validations`.
#[derive(Clone, Debug, Default)]
pub struct Validation {
    /// The expression as written.
    pub expression: String,
    /// What to say when it is false.
    pub message: String,
    /// The reason of the refusal.
    pub reason: Option<String>,
}

/// A policy, compiled.
#[derive(Debug)]
pub struct Policy {
    common: Common,
    validations: Vec<(Validation, Expression, Option<Expression>)>,
    annotations: Vec<(String, Expression)>,
}

/// What one validation leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request may go on.
    pub admitted: bool,
    /// Whether it was an error that decided.
    pub is_error: bool,
    /// Why it may not.
    pub message: String,
    /// The reason for the answer's status; empty where nothing was refused.
    pub reason: String,
}

impl Decision {
    fn admit() -> Decision {
        Decision { admitted: true, is_error: false, message: String::new(), reason: String::new() }
    }

    fn error(policy: FailurePolicy, message: String) -> Decision {
        Decision { admitted: policy == FailurePolicy::Ignore, is_error: true, message, reason: String::new() }
    }
}

/// What an audit annotation became.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Annotation {
    /// It is recorded.
    Publish(String),
    /// It is left out.
    Exclude,
    /// It could not be evaluated.
    Error(String),
}

/// What a policy says about a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// One per validation, or a single one when something failed as a whole.
    pub decisions: Vec<Decision>,
    /// Audit annotations by key.
    pub annotations: Vec<(String, Annotation)>,
}

impl Policy {
    /// Compiles the `spec` of a ValidatingAdmissionPolicy.
    pub fn compile(spec: &Json, base: &Env) -> Policy {
        let (common, declared) = Common::compile(spec, base);
        let env = environment(base.clone(), &declared);
        let validations = list(spec, "validations")
            .map(|validation| {
                let (expression, message) = (text(validation, "expression"), text(validation, "messageExpression"));
                let compiled = Expression::compile(&env, expression, &[Type::Bool]);
                let message = (!message.trim().is_empty()).then(|| Expression::compile(&env, message, &[Type::String]));
                let validation = Validation {
                    expression: expression.to_owned(),
                    message: text(validation, "message").to_owned(),
                    reason: validation.get("reason").and_then(Json::as_str).map(str::to_owned),
                };
                (validation, compiled, message)
            })
            .collect();
        let annotations = list(spec, "auditAnnotations")
            .map(|annotation| {
                let wanted = [Type::String, Type::Null];
                let expression = Expression::compile(&env, text(annotation, "valueExpression"), &wanted);
                (text(annotation, "key").to_owned(), expression)
            })
            .collect();
        Policy { common, validations, annotations }
    }

    /// What errors mean to this policy.
    pub fn failure_policy(&self) -> FailurePolicy {
        self.common.failure_policy
    }

    /// Judges a request.
    pub fn evaluate(&self, inputs: &Inputs<'_>) -> Outcome {
        match self.common.conditions.evaluate(inputs) {
            Matched::Yes => {}
            Matched::No(_) => return Outcome::default(),
            Matched::Failed(error) => {
                let decisions = vec![Decision::error(self.common.failure_policy, error)];
                return Outcome { decisions, annotations: Vec::new() };
            }
        }
        let values = inputs.values();
        let variables = Variables::new(&self.common.variables, values.clone());
        let mut budget = POLICY_COST_MAX;
        self.judge(&values, inputs.authorizer, &variables, &mut budget)
    }

    fn judge<'a>(
        &'a self,
        values: &[Value<'a>],
        authorizer: Option<&'a dyn Authorizer>,
        variables: &'a Variables<'a>,
        budget: &mut u64,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let mut run = |expression: &Expression| expression.evaluate(values, authorizer, Some(variables), None, budget);
        let failed = |error: OutOfBudget| Outcome {
            decisions: vec![Decision::error(self.common.failure_policy, error.to_string())],
            annotations: Vec::new(),
        };
        let mut results = Vec::with_capacity(self.validations.len());
        for (_, expression, _) in &self.validations {
            match run(expression) {
                Ok(result) => results.push(result),
                Err(error) => return failed(error),
            }
        }
        for ((validation, _, message), result) in self.validations.iter().zip(results) {
            // A message is only worth its cost when there is something to say.
            let is_refused = matches!(&result, Ok(value) if !matches!(value, Value::Bool(true)));
            let message = match message.as_ref().filter(|_| is_refused).map(&mut run) {
                Some(Err(error)) => {
                    let text = format!("failed messageExpression: {error}");
                    outcome.decisions.push(Decision::error(self.common.failure_policy, text));
                    continue;
                }
                Some(Ok(message)) => Some(message),
                None => None,
            };
            outcome.decisions.push(decide(result, message, validation, self.common.failure_policy));
        }
        for (key, expression) in &self.annotations {
            match run(expression) {
                Ok(result) => outcome.annotations.push((key.clone(), annotate(result, &expression.text))),
                Err(error) => return failed(error),
            }
        }
        outcome
    }
}

/// What the result of one validation leads to; `message` is that of its message expression, if it has one.
pub fn decide(
    result: Result<Value<'_>, String>,
    message: Option<Result<Value<'_>, String>>,
    validation: &Validation,
    failure_policy: FailurePolicy,
) -> Decision {
    match result {
        Err(error) => Decision::error(failure_policy, error),
        Ok(Value::Bool(true)) => Decision::admit(),
        Ok(_) => {
            let computed = match message {
                Some(Ok(Value::String(text))) => text.trim().to_owned(),
                _ => String::new(),
            };
            let usable = computed.len() <= MESSAGE_BYTES_MAX && !computed.contains('\n');
            let message = match (computed, validation.message.trim()) {
                (text, _) if !text.is_empty() && usable => text,
                (_, "") => format!("failed expression: {}", validation.expression.trim()),
                (_, message) => message.to_owned(),
            };
            let reason = validation.reason.clone().unwrap_or_else(|| "Invalid".to_owned());
            Decision { admitted: false, is_error: false, message, reason }
        }
    }
}

/// What the result of an audit annotation's expression leads to.
pub fn annotate(result: Result<Value<'_>, String>, expression: &str) -> Annotation {
    match result {
        Err(error) => Annotation::Error(error),
        Ok(Value::String(text)) if text.trim().is_empty() => Annotation::Exclude,
        Ok(Value::String(text)) => Annotation::Publish(text.trim().to_owned()),
        Ok(Value::Null) => Annotation::Exclude,
        Ok(other) => Annotation::Error(format!(
            "valueExpression '{expression}' resulted in unsupported return type: {}. Return type must be either string \
             or null.",
            other.type_name()
        )),
    }
}
