//! Compiled mutating policies. Mutations run one by one, because each sees the object as the
//! previous one left it.

use serde_json::Value as Json;

use super::Inputs;
use super::common::{Common, list, text};
use super::conditions::Matched;
use super::mutation::{Mutation, Mutator, PatchType};
use super::policy::FailurePolicy;
use crate::env::Env;
use crate::variables::Variables;

/// A compiled policy.
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

    /// The policy's handling of errors.
    pub fn failure_policy(&self) -> FailurePolicy {
        self.common.failure_policy
    }

    /// True if the policy runs again after other plugins changed the object.
    pub fn is_reinvoked(&self) -> bool {
        self.reinvoked
    }

    /// Whether the policy applies to a request.
    pub fn matches(&self, inputs: &Inputs<'_>) -> Matched {
        self.common.conditions.evaluate(inputs)
    }

    /// The number of mutations.
    pub fn len(&self) -> usize {
        self.mutations.len()
    }

    /// True if there are no mutations.
    pub fn is_empty(&self) -> bool {
        self.mutations.is_empty()
    }

    /// Evaluates the mutation at `index`. `budget` is the remaining cost budget of all mutations.
    ///
    /// # Errors
    /// The mutation does not compile, fails to evaluate, or exceeds its cost limit.
    pub fn mutation(&self, index: usize, inputs: &Inputs<'_>, budget: &mut u64) -> Result<Mutation, String> {
        let mutator = self.mutations.get(index).ok_or("no such mutation")?.as_ref().map_err(String::clone)?;
        let variables = Variables::new(&self.common.variables, inputs.values());
        mutator.evaluate_with(inputs, Some(&variables), budget)
    }
}
