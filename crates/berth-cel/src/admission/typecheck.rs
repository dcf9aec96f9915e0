//! Type checking of policies: warnings about expressions that fail for a matched kind.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value as Json;

use super::{Declared, environment};
use crate::decl::Decl;
use crate::env::Env;
use crate::program::Program;
use crate::types::{ObjectType, Type};

/// A matched kind, with the declaration of its objects if known.
pub struct Kind {
    /// Name of the kind in messages: `apps/v1, Kind=Deployment`.
    pub name: String,
    /// The declaration of its objects.
    pub decl: Option<Arc<Decl>>,
}

/// One warning, in the format of `status.typeChecking.expressionWarnings`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Path of the expression.
    pub field_ref: String,
    /// The type errors, kind by kind.
    pub warning: String,
}

/// Type-checks the expressions of a ValidatingAdmissionPolicy's `spec` against the matched kinds.
pub fn check(spec: &Json, kinds: &[Kind], base: &Env) -> Vec<Warning> {
    let list = |field: &str| spec.get(field).and_then(Json::as_array).into_iter().flatten();
    let text = |value: &Json, field: &str| value.get(field).and_then(Json::as_str).unwrap_or_default().to_owned();
    let environments: Vec<(&Kind, Env)> = kinds.iter().map(|kind| (kind, environment_for(spec, kind, base))).collect();
    let mut warnings = Vec::new();
    let mut check = |expression: String, field_ref: String| {
        let mut warning = String::new();
        for (kind, env) in &environments {
            if let Err(issues) = env.compile(&expression) {
                warning.push_str(&format!("{}: {issues}\n", kind.name));
            }
        }
        if !warning.is_empty() {
            warnings.push(Warning { field_ref, warning });
        }
    };
    for (index, validation) in list("validations").enumerate() {
        check(text(validation, "expression"), format!("spec.validations[{index}].expression"));
        let message = text(validation, "messageExpression");
        if !message.is_empty() {
            check(message, format!("spec.validations[{index}].messageExpression"));
        }
    }
    warnings
}

fn environment_for(spec: &Json, kind: &Kind, base: &Env) -> Env {
    let text = |value: &Json, field: &str| value.get(field).and_then(Json::as_str).unwrap_or_default().to_owned();
    let mut declared = Declared {
        params: spec.get("paramKind").is_some_and(|kind| !kind.is_null()),
        authorizer: true,
        object: kind.decl.as_ref().map(|decl| decl.type_().clone()),
        variables: None,
    };
    let mut types: BTreeMap<String, Type> = BTreeMap::new();
    for variable in spec.get("variables").and_then(Json::as_array).into_iter().flatten() {
        declared.variables = Some(variables_type(&types));
        let env = environment(base.clone(), &declared);
        // Errors in variables are not reported here; an expression that uses a broken variable is
        // not checked further.
        let type_ = env
            .compile(&text(variable, "expression"))
            .as_ref()
            .map_or(Type::Dyn, |p: &Program| p.result_type().clone());
        types.insert(text(variable, "name"), type_);
    }
    declared.variables = Some(variables_type(&types));
    environment(base.clone(), &declared)
}

fn variables_type(types: &BTreeMap<String, Type>) -> Type {
    Type::Object(ObjectType::new("kubernetes.variables", types.clone()))
}
