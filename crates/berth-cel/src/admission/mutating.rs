//! Mutating policies, compiled: whom they concern, and their mutations one by one, because each sees what the one before it
//! has made of the object.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::conditions::{MatchConditions, Matched};
use super::mutation::{Mutation, Mutator, PatchType};
use super::policy::FailurePolicy;
use super::{Declared, Inputs, environment};
use crate::env::Env;
use crate::program::Program;
use crate::variables::Variables;

/// A policy, compiled.
#[derive(Debug)]
pub struct MutatingPolicy {
    failure_policy: FailurePolicy,
    conditions: MatchConditions,
    variables: BTreeMap<String, Program>,
    mutations: Vec<Result<Mutator, String>>,
    reinvoked: bool,
}

impl MutatingPolicy {
    /// Compiles the `spec` of a MutatingAdmissionPolicy.
    pub fn compile(spec: &Json, base: &Env) -> MutatingPolicy {
        let text = |value: &Json, field: &str| value.get(field).and_then(Json::as_str).unwrap_or_default().to_owned();
        let list = |field: &str| spec.get(field).and_then(Json::as_array).into_iter().flatten();
        let mut declared = Declared {
            params: spec.get("paramKind").is_some_and(|kind| !kind.is_null()),
            authorizer: true,
            ..Declared::default()
        };
        let failure_policy = FailurePolicy::parse(spec.get("failurePolicy").and_then(Json::as_str));
        let conditions = MatchConditions::compile_with(
            spec.get("matchConditions").unwrap_or(&Json::Null),
            failure_policy,
            &environment(base.clone(), &declared),
        );
        let mut variables: BTreeMap<String, Program> = BTreeMap::new();
        for variable in list("variables") {
            declared.variables = Some(Variables::type_of(&variables));
            // One that does not compile is not there for those that use it.
            if let Ok(program) = environment(base.clone(), &declared).compile(&text(variable, "expression")) {
                variables.insert(text(variable, "name"), program);
            }
        }
        declared.variables = Some(Variables::type_of(&variables));
        let mutations = list("mutations")
            .map(|mutation| {
                let kind = PatchType::of(mutation);
                let (patch_type, field) = kind.ok_or("patchType: must be ApplyConfiguration or JSONPatch")?;
                Mutator::compile(&text(&mutation[field], "expression"), patch_type, base.clone(), &declared)
            })
            .collect();
        let reinvoked = spec.get("reinvocationPolicy").and_then(Json::as_str) == Some("IfNeeded");
        MutatingPolicy { failure_policy, conditions, variables, mutations, reinvoked }
    }

    /// What errors mean to this policy.
    pub fn failure_policy(&self) -> FailurePolicy {
        self.failure_policy
    }

    /// Whether it is asked again when others changed the object after it.
    pub fn is_reinvoked(&self) -> bool {
        self.reinvoked
    }

    /// Whether the policy concerns a request.
    pub fn matches(&self, inputs: &Inputs<'_>) -> Matched {
        self.conditions.evaluate(inputs)
    }

    /// How many mutations there are.
    pub fn len(&self) -> usize {
        self.mutations.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.mutations.is_empty()
    }

    /// What the mutation at `index` says to do. `budget` is what all of them together may still cost.
    ///
    /// # Errors
    /// It did not compile, could not be evaluated, or costs too much.
    pub fn mutation(&self, index: usize, inputs: &Inputs<'_>, budget: &mut u64) -> Result<Mutation, String> {
        let mutator = self.mutations.get(index).ok_or("no such mutation")?.as_ref().map_err(String::clone)?;
        let variables = Variables::new(&self.variables, inputs.values());
        mutator.evaluate_with(inputs, Some(&variables), budget)
    }
}
