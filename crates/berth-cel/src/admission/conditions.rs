//! Match conditions: whether a webhook or policy applies to a request.

use serde_json::Value as Json;

use super::policy::{Expression, FailurePolicy, OutOfBudget};
use super::{Declared, Inputs, environment};
use crate::env::Env;
use crate::types::Type;
use crate::value::Value;

/// Maximum total cost of all conditions of a webhook or policy.
pub const CONDITIONS_COST_MAX: u64 = 2_500_000;

/// The conditions of a webhook or policy, compiled.
#[derive(Debug)]
pub struct MatchConditions {
    conditions: Vec<(String, Expression)>,
    failure_policy: FailurePolicy,
}

/// The result of the conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Matched {
    /// All conditions are true.
    Yes,
    /// The named condition is false, or an error was ignored (then without a name).
    No(Option<String>),
    /// No condition is false, some failed to evaluate, and the failure policy is `Fail`.
    Failed(String),
}

impl MatchConditions {
    /// Compiles `matchConditions` (a list of `name` and `expression`) of a webhook.
    pub fn compile(conditions: &Json, failure_policy: FailurePolicy, base: Env) -> MatchConditions {
        let declared = Declared { authorizer: true, ..Declared::default() };
        MatchConditions::compile_with(conditions, failure_policy, &environment(base, &declared))
    }

    /// Compiles the conditions in the given environment.
    pub fn compile_with(conditions: &Json, failure_policy: FailurePolicy, env: &Env) -> MatchConditions {
        let compile = |condition: &Json| {
            let text = |field: &str| condition.get(field).and_then(Json::as_str).unwrap_or_default();
            (text("name").to_owned(), Expression::compile(env, text("expression"), &[Type::Bool]))
        };
        let conditions = conditions.as_array().into_iter().flatten().map(compile).collect();
        MatchConditions { conditions, failure_policy }
    }

    /// True if there are no conditions.
    pub fn is_empty(&self) -> bool {
        self.conditions.is_empty()
    }

    /// Evaluates the conditions on a request.
    pub fn evaluate(&self, inputs: &Inputs<'_>) -> Matched {
        let values = inputs.values();
        let mut budget = CONDITIONS_COST_MAX;
        let mut results = Vec::with_capacity(self.conditions.len());
        for (name, condition) in &self.conditions {
            match condition.evaluate(&values, inputs.authorizer, None, None, &mut budget) {
                Err(OutOfBudget) => return decide(&results, Some(OutOfBudget.to_string()), self.failure_policy),
                Ok(result) => {
                    let result = result.map(|value| matches!(value, Value::Bool(true)));
                    let is_false = result == Ok(false);
                    results.push((name.clone(), result));
                    if is_false {
                        break;
                    }
                }
            }
        }
        decide(&results, None, self.failure_policy)
    }
}

/// Combines the results of the single conditions; `broken` is an error of the evaluation as a
/// whole.
pub fn decide(
    results: &[(String, Result<bool, String>)],
    broken: Option<String>,
    failure_policy: FailurePolicy,
) -> Matched {
    let failed = |error: String| match failure_policy {
        FailurePolicy::Fail => Matched::Failed(error),
        FailurePolicy::Ignore => Matched::No(None),
    };
    if let Some(error) = broken {
        return failed(error);
    }
    if let Some((name, _)) = results.iter().find(|(_, result)| *result == Ok(false)) {
        return Matched::No(Some(name.clone()));
    }
    let errors: Vec<&str> =
        results.iter().filter_map(|(_, result)| result.as_ref().err().map(String::as_str)).collect();
    match errors.as_slice() {
        [] => Matched::Yes,
        [error] => failed((*error).to_owned()),
        several => failed(format!("[{}]", several.join(", "))),
    }
}
