//! The common parts of validating and mutating policies: failure policy, match conditions,
//! variables.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::conditions::MatchConditions;
use super::policy::FailurePolicy;
use super::{Declared, environment};
use crate::env::Env;
use crate::program::Program;
use crate::variables::Variables;

/// The common part of a policy, compiled.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) failure_policy: FailurePolicy,
    pub(super) conditions: MatchConditions,
    pub(super) variables: BTreeMap<String, Program>,
}

impl Common {
    /// Compiles the common part of a policy's `spec`. Also returns the declarations for the
    /// policy's other expressions.
    pub(super) fn compile(spec: &Json, base: &Env) -> (Common, Declared) {
        let mut declared = Declared {
            params: spec.get("paramKind").is_some_and(|kind| !kind.is_null()),
            authorizer: true,
            ..Declared::default()
        };
        let failure_policy = FailurePolicy::parse(spec.get("failurePolicy").and_then(Json::as_str));
        // Match conditions are evaluated first and see no variables.
        let conditions = spec.get("matchConditions").unwrap_or(&Json::Null);
        let env = environment(base.clone(), &declared);
        let conditions = MatchConditions::compile_with(conditions, failure_policy, &env);
        let mut variables: BTreeMap<String, Program> = BTreeMap::new();
        for variable in list(spec, "variables") {
            declared.variables = Some(Variables::type_of(&variables));
            // A variable that does not compile is undefined for the expressions that use it.
            if let Ok(program) = environment(base.clone(), &declared).compile(text(variable, "expression")) {
                variables.insert(text(variable, "name").to_owned(), program);
            }
        }
        declared.variables = Some(Variables::type_of(&variables));
        (Common { failure_policy, conditions, variables }, declared)
    }
}

/// A string field; empty if absent.
pub(super) fn text<'a>(value: &'a Json, field: &str) -> &'a str {
    value.get(field).and_then(Json::as_str).unwrap_or_default()
}

/// The items of a list; none if absent.
pub(super) fn list<'a>(value: &'a Json, field: &str) -> impl Iterator<Item = &'a Json> + use<'a> {
    value.get(field).and_then(Json::as_array).into_iter().flatten()
}
