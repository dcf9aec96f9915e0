//! Mutating policies, compiled: whom they concern, and their mutations one by one, because each sees what the one before it
//! has made of the object.

use serde_json::Value as Json;

use super::Inputs;
use super::common::{Common, list, text};
use super::conditions::Matched;
use super::mutation::{Mutation, Mutator, PatchType};
use super::policy::FailurePolicy;
use crate::env::Env;
use crate::variables::Variables;

/// A policy, compiled.
#[derive(Debug)]
pub struct MutatingPolicy {
    common: Common,
    mutations: Vec<Result<Mutator, String>>,
    reinvoked: bool,
}

impl MutatingPolicy {
    /// Compiles the `spec` of a MutatingAdmissionPolicy.
    pub fn compile(spec: &Json, base: &Env) -> MutatingPolicy {
        let (common, declared) = Common::compile(spec, base);
        let mutations = list(spec, "mutations")
            .map(|mutation| {
                let kind = PatchType::of(mutation);
                let (patch_type, field) = kind.ok_or("patchType: must be ApplyConfiguration or JSONPatch")?;
                Mutator::compile(text(&mutation[field], "expression"), patch_type, base.clone(), &declared)
            })
            .collect();
        MutatingPolicy { common, mutations, reinvoked: text(spec, "reinvocationPolicy") == "IfNeeded" }
    }

    /// What errors mean to this policy.
    pub fn failure_policy(&self) -> FailurePolicy {
        self.common.failure_policy
    }

    /// Whether it is asked again when others changed the object after it.
    pub fn is_reinvoked(&self) -> bool {
        self.reinvoked
    }

    /// Whether the policy concerns a request.
    pub fn matches(&self, inputs: &Inputs<'_>) -> Matched {
        self.common.conditions.evaluate(inputs)
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
        let variables = Variables::new(&self.common.variables, inputs.values());
        mutator.evaluate_with(inputs, Some(&variables), budget)
    }
}
