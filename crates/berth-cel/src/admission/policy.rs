//! Validating policies: evaluates their expressions for a request and derives the decisions.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value as Json;

use super::common::{Common, list, text};
use super::conditions::Matched;
use super::{Inputs, environment};
use crate::authorization::Authorizer;
use crate::env::Env;
use crate::program::{Program, Run};
use crate::rules::CALL_COST_MAX;
use crate::types::Type;
use crate::value::Value;
use crate::variables::Variables;

/// Maximum total cost of all expressions of a policy, for one request and one parameter object.
pub const POLICY_COST_MAX: u64 = 10_000_000;
/// Maximum length of a message from an expression, in bytes.
const MESSAGE_BYTES_MAX: usize = 5 * 1024;

/// Handling of errors (`failurePolicy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailurePolicy {
    /// An error rejects the request.
    #[default]
    Fail,
    /// An error is ignored.
    Ignore,
}

impl FailurePolicy {
    /// Reads `failurePolicy`.
    pub fn parse(text: Option<&str>) -> FailurePolicy {
        if text == Some("Ignore") { FailurePolicy::Ignore } else { FailurePolicy::Fail }
    }
}

/// The expressions exceed the total cost limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBudget;

impl fmt::Display for OutOfBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("validation failed due to running out of cost budget, no further validation rules will be run")
    }
}

/// An expression, compiled or with its compile error.
#[derive(Clone, Debug)]
pub struct Expression {
    text: String,
    program: Result<Program, String>,
}

impl Expression {
    /// Compiles an expression whose result must have one of these types (any type, if none is
    /// given).
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

    /// The compile error, if any.
    pub fn error(&self) -> Option<&str> {
        self.program.as_ref().err().map(String::as_str)
    }

    /// The type of the result, if the expression compiled.
    pub fn result_type(&self) -> Option<&Type> {
        self.program.as_ref().ok().map(Program::result_type)
    }

    /// Evaluates the expression for a request. `call_limit` is its cost limit ([`CALL_COST_MAX`] if
    /// absent), and `budget` is the remaining cost budget of all expressions.
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

/// Evaluates an expression that uses variables. The result is converted to JSON if possible.
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
    /// The message if the expression is false.
    pub message: String,
    /// The status reason of a rejection.
    pub reason: Option<String>,
}

/// A compiled policy.
#[derive(Debug)]
pub struct Policy {
    common: Common,
    validations: Vec<(Validation, Expression, Option<Expression>)>,
    annotations: Vec<(String, Expression)>,
}

/// The decision of one validation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// True if the request is admitted.
    pub admitted: bool,
    /// True if an error led to the decision.
    pub is_error: bool,
    /// Message of a rejection.
    pub message: String,
    /// Reason in the response's status; empty if the request is admitted.
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

/// The result of an audit annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Annotation {
    /// The annotation is recorded with this value.
    Publish(String),
    /// The annotation is omitted.
    Exclude,
    /// The annotation failed to evaluate.
    Error(String),
}

/// The outcome of a policy for a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// One decision per validation, or a single decision if the evaluation failed as a whole.
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

    /// The policy's handling of errors.
    pub fn failure_policy(&self) -> FailurePolicy {
        self.common.failure_policy
    }

    /// Evaluates the policy for a request.
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
            // The message expression is evaluated only if the validation fails.
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

/// The decision of one validation; `message` is the result of its message expression, if it has
/// one.
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

/// The audit annotation that results from its expression.
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
