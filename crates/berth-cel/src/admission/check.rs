//! Finds the expressions of a policy that do not compile, for its status and warnings.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::mutation::{Mutator, PatchType};
use super::policy::Expression;
use super::{Declared, environment};
use crate::env::Env;
use crate::program::Program;
use crate::types::Type;
use crate::variables::Variables;

/// An expression that does not compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Path of the expression: `spec.validations[0].expression`.
    pub field: String,
    /// The expression.
    pub expression: String,
    /// The compile error.
    pub error: String,
}

/// The expressions in the `spec` of a ValidatingAdmissionPolicy or MutatingAdmissionPolicy that do
/// not compile. Missing expressions are skipped.
pub fn problems(spec: &Json, base: &Env) -> Vec<Problem> {
    let list = |field: &str| spec.get(field).and_then(Json::as_array).into_iter().flatten().enumerate();
    let text = |value: &Json, field: &str| value.get(field).and_then(Json::as_str).unwrap_or_default().to_owned();
    let mut problems = Vec::new();
    let mut note = |field: String, expression: &str, error: Option<String>| {
        if let Some(error) = error.filter(|_| !expression.trim().is_empty()) {
            problems.push(Problem { field, expression: expression.to_owned(), error });
        }
    };
    let mut declared = Declared {
        params: spec.get("paramKind").is_some_and(|kind| !kind.is_null()),
        authorizer: true,
        ..Declared::default()
    };
    let compiled =
        |env: &Env, text: &str, wanted: &[Type]| Expression::compile(env, text, wanted).error().map(str::to_owned);
    let env = environment(base.clone(), &declared);
    for (index, condition) in list("matchConditions") {
        let expression = text(condition, "expression");
        let error = compiled(&env, &expression, &[Type::Bool]);
        note(format!("spec.matchConditions[{index}].expression"), &expression, error);
    }
    let mut variables: BTreeMap<String, Program> = BTreeMap::new();
    for (index, variable) in list("variables") {
        declared.variables = Some(Variables::type_of(&variables));
        let expression = text(variable, "expression");
        match environment(base.clone(), &declared).compile(&expression) {
            Ok(program) => drop(variables.insert(text(variable, "name"), program)),
            Err(issues) => {
                let error = Some(format!("compilation failed: {issues}"));
                note(format!("spec.variables[{index}].expression"), &expression, error);
            }
        }
    }
    declared.variables = Some(Variables::type_of(&variables));
    let env = environment(base.clone(), &declared);
    for (index, validation) in list("validations") {
        for (field, wanted) in [("expression", Type::Bool), ("messageExpression", Type::String)] {
            let expression = text(validation, field);
            let error = compiled(&env, &expression, &[wanted]);
            note(format!("spec.validations[{index}].{field}"), &expression, error);
        }
    }
    for (index, annotation) in list("auditAnnotations") {
        let expression = text(annotation, "valueExpression");
        let error = compiled(&env, &expression, &[Type::String, Type::Null]);
        note(format!("spec.auditAnnotations[{index}].valueExpression"), &expression, error);
    }
    for (index, mutation) in list("mutations") {
        let Some((patch_type, field)) = PatchType::of(mutation) else { continue };
        let expression = text(&mutation[field], "expression");
        let error = Mutator::compile(&expression, patch_type, base.clone(), &declared).err();
        note(format!("spec.mutations[{index}].{field}.expression"), &expression, error);
    }
    problems
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn exactly_the_expressions_that_do_not_compile_are_reported() {
        let spec = json!({
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "matchConditions": [{"name": "a", "expression": "object.metadata.name == 'x'"}, {"name": "b", "expression": "1"}],
            "variables": [{"name": "v", "expression": "params.data"}, {"name": "w", "expression": "nothing"}],
            "validations": [{"expression": "variables.v != null", "messageExpression": "'text'"},
                {"expression": "1 + ", "messageExpression": "1"}],
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'add', path: '/a', value: 1}]"}},
                {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "'no object'"}}],
        });
        let fields: Vec<String> = problems(&spec, &Env::default()).into_iter().map(|problem| problem.field).collect();
        assert_eq!(
            fields,
            [
                "spec.matchConditions[1].expression",
                "spec.variables[1].expression",
                "spec.validations[1].expression",
                "spec.validations[1].messageExpression",
                "spec.mutations[1].applyConfiguration.expression",
            ]
        );
    }
}
