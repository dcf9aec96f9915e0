//! MutatingAdmissionPolicies: expressions that change the objects that a binding selects.
//!
//! Policies run in the order of their names, each mutation on the result of the previous one. A
//! policy with `reinvocationPolicy: IfNeeded` runs once more if later policies changed its object.

use berth_apimachinery::meta;
use berth_apimachinery::status::Status;
use berth_cel::admission::conditions::Matched;
use berth_cel::admission::mutating::MutatingPolicy;
use berth_cel::admission::mutation;
use berth_cel::admission::policy::{FailurePolicy, POLICY_COST_MAX};
use serde_json::Value;

use super::{Bound, Cache, broken, concerned, misconfigured, parameters, with_inputs};
use crate::admission::webhooks::matching::Target;
use crate::admission::webhooks::{self, Request};
use crate::admission::{AdmissionRequest, forbidden};
use crate::state::State;

const POLICIES: &str = "mutatingadmissionpolicies";
const BINDINGS: &str = "mutatingadmissionpolicybindings";

/// Runs the bound policies on the object. Returns true if they changed it.
pub(crate) fn mutate(
    state: &State,
    policies: &Cache<MutatingPolicy>,
    request: &mut AdmissionRequest<'_>,
) -> Result<bool, Status> {
    let policies = policies.get(&state.objects, [POLICIES, BINDINGS], MutatingPolicy::compile);
    if policies.is_empty() || request.object.is_none() {
        return Ok(false);
    }
    let Some(asked) = Request::new(request) else { return Ok(false) };
    request.expand();
    let before = request.object.clone();
    let mut left: Vec<Option<Value>> = Vec::with_capacity(policies.len());
    for bound in policies.iter() {
        let ran = run(state, request, &asked, bound)?;
        left.push(request.object.clone().filter(|_| ran));
    }
    for (bound, left) in policies.iter().zip(left) {
        // Rerun only policies that ran before and whose object has changed since.
        if bound.policy.is_reinvoked() && left.is_some() && left != request.object {
            run(state, request, &asked, bound)?;
        }
    }
    Ok(request.object != before)
}

/// Runs one policy under all its bindings. Returns whether it matched the request.
fn run(
    state: &State,
    request: &mut AdmissionRequest<'_>,
    asked: &Request,
    bound: &Bound<MutatingPolicy>,
) -> Result<bool, Status> {
    let failed = |request: &AdmissionRequest<'_>, binding: &str, why: String| {
        if bound.policy.failure_policy() == FailurePolicy::Ignore {
            tracing::warn!(policy = bound.name, binding, why, "a mutating policy failed, failing open");
            return Ok(());
        }
        Err(forbidden(request, &why))
    };
    let target = match concerned(state, request, asked, &bound.spec["matchConstraints"]) {
        Ok(Some(target)) => target,
        Ok(None) => return Ok(false),
        Err(error) => {
            failed(request, "", misconfigured(&bound.name, "", &broken(error)))?;
            return Ok(false);
        }
    };
    let mut ran = false;
    for binding in &bound.bindings {
        let name = meta::name(binding);
        match concerned(state, request, asked, &binding["spec"]["matchResources"]) {
            Ok(None) => continue,
            Ok(Some(_)) => {}
            Err(error) => {
                failed(request, name, misconfigured(&bound.name, name, &broken(error)))?;
                continue;
            }
        }
        let reference = &binding["spec"]["paramRef"];
        let params = match parameters(state, &bound.spec["paramKind"], reference, &asked.namespace) {
            Ok(params) => params,
            Err(why) => {
                failed(request, name, misconfigured(&bound.name, name, &why))?;
                continue;
            }
        };
        for params in params {
            match mutated(state, request, asked, &target, bound, &params) {
                Ok(Some(object)) => {
                    request.object = Some(object);
                    ran = true;
                }
                Ok(None) => {}
                Err(why) => failed(
                    request,
                    name,
                    format!("policy '{}' with binding '{name}' denied request: {why}", bound.name),
                )?,
            }
        }
    }
    Ok(ran)
}

/// The object after all mutations of a policy, in the request's version; `None` if the policy's
/// conditions are false.
fn mutated(
    state: &State,
    request: &AdmissionRequest<'_>,
    asked: &Request,
    target: &Target,
    bound: &Bound<MutatingPolicy>,
    params: &Value,
) -> Result<Option<Value>, String> {
    let message = |status: Status| status.message;
    let matched = with_inputs(state, request, asked, target, params, |inputs| bound.policy.matches(inputs));
    match matched.map_err(message)? {
        Matched::Yes => {}
        Matched::No(_) => return Ok(None),
        Matched::Failed(why) => return Err(why),
    }
    let registry = state.registry();
    let row = registry.get(&target.resource.group, &target.resource.resource).filter(|_| target.subresource.is_empty());
    let known = row.and_then(|row| {
        let version = &target.resource.version;
        Some((row.schema(version)?, state.types(row, version)))
    });
    let known = known.as_ref().map(|(schema, types)| (schema.as_ref(), types.as_ref()));
    let object = request.object.clone().unwrap_or_default();
    let mut object = webhooks::converted(state, object, target, asked).map_err(message)?;
    let mut budget = POLICY_COST_MAX;
    for index in 0..bound.policy.len() {
        let mutation = with_inputs(state, request, asked, target, params, |inputs| {
            bound.policy.mutation(index, &berth_cel::admission::Inputs { object: &object, ..*inputs }, &mut budget)
        });
        let mut changed = mutation::apply(&mutation.map_err(message)??, &object, known)?;
        webhooks::read(state, &mut changed, &object, target)?;
        object = changed;
    }
    webhooks::completed(state, object, target, asked).map(Some).map_err(message)
}
