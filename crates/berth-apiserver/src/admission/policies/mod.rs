//! ValidatingAdmissionPolicies: expressions that reject requests, return warnings or add audit
//! annotations. A binding selects the objects and the actions. Policies that change objects are in
//! [`mutating`].
//!
//! A policy is compiled once and cached until a policy or binding is written. Without policies, a
//! write pays for one lock. [`berth_cel::admission`] evaluates the expressions; [`matching`]
//! selects the requests.

pub mod matching;
pub(crate) mod mutating;

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_apimachinery::meta::{self, GroupResource};
use berth_apimachinery::packed;
use berth_apimachinery::selector::LabelSelector;
use berth_apimachinery::status::{Cause, Status};
use berth_cel::Env;
use berth_cel::admission::policy::{Annotation, Decision, FailurePolicy, Outcome, Policy};
use berth_cel::admission::{CachingAuthorizer, Inputs};
use berth_cel::authorization::{self, Authorizer};
use parking_lot::RwLock;
use serde_json::{Map, Value, json};

use super::AdmissionRequest;
use super::webhooks::matching::MatchError;
use super::webhooks::review::{self, ReviewRequest};
use super::webhooks::{self, GROUP, Request, ServerLookup};
use crate::auth::Attributes;
use crate::state::State;
use crate::{Objects, UserInfo, auth};

const POLICIES: &str = "validatingadmissionpolicies";
const BINDINGS: &str = "validatingadmissionpolicybindings";
/// Annotation of audit events with the failures of policies whose action is `Audit`.
const VALIDATION_FAILURE: &str = "validation.policy.admission.k8s.io/validation_failure";

/// A policy with its bindings.
struct Bound<P> {
    name: String,
    spec: Value,
    policy: P,
    bindings: Vec<Arc<Value>>,
}

/// The cached policies of one kind.
pub(crate) struct Cache<P>(RwLock<Option<Arc<Vec<Bound<P>>>>>);

impl<P> Default for Cache<P> {
    fn default() -> Self {
        Cache(RwLock::default())
    }
}

impl<P> Cache<P> {
    /// Clears the cache after a policy or binding was written.
    pub(crate) fn forget(&self) {
        *self.0.write() = None;
    }

    /// The compiled policies among `policies` that have bindings.
    fn get(
        &self,
        objects: &Objects,
        [policies, bindings]: [&str; 2],
        compile: impl Fn(&Value, &Env) -> P,
    ) -> Arc<Vec<Bound<P>>> {
        if let Some(bound) = self.0.read().as_ref() {
            return bound.clone();
        }
        let mut slot = self.0.write();
        let load = || {
            let bound = bound_policies(objects, policies, bindings).into_iter();
            let compiled = bound.map(|(name, spec, bindings)| {
                let policy = compile(&spec, &Env::default());
                Bound { name, spec, policy, bindings }
            });
            Arc::new(compiled.collect())
        };
        slot.get_or_insert_with(load).clone()
    }
}

/// The policies that have bindings, by name, with their specs and bindings. Policies without
/// bindings have no effect.
fn bound_policies(objects: &Objects, policies: &str, bindings: &str) -> Vec<(String, Value, Vec<Arc<Value>>)> {
    let mut bound: BTreeMap<String, Vec<Arc<Value>>> = BTreeMap::new();
    for binding in objects.list(GROUP, bindings, None) {
        let policy = binding["spec"]["policyName"].as_str().unwrap_or_default().to_owned();
        bound.entry(policy).or_default().push(binding);
    }
    let policies = objects.list(GROUP, policies, None);
    let policies = policies.iter().filter_map(|policy| {
        let name = meta::name(policy).to_owned();
        let bindings = bound.remove(&name)?;
        let mut spec = policy["spec"].clone();
        stored_defaults(&mut spec["matchConstraints"]);
        Some((name, spec, bindings))
    });
    policies.collect()
}

/// The resource in whose form a policy gets the objects of a request; `None` if the match criteria
/// do not match the request. Absent criteria match every request.
fn concerned(
    state: &State,
    request: &AdmissionRequest<'_>,
    asked: &Request,
    criteria: &Value,
) -> Result<Option<webhooks::matching::Target>, MatchError> {
    if !criteria.is_object() {
        return Ok(Some(asked.target.clone()));
    }
    let mut criteria = criteria.clone();
    stored_defaults(&mut criteria);
    matching::matches(&criteria, &asked.about(request), request.name, &ServerLookup(state))
}

/// Adds the defaults of absent fields to match criteria.
fn stored_defaults(criteria: &mut Value) {
    if let Some(criteria) = criteria.as_object_mut() {
        for (field, default) in
            [("matchPolicy", json!("Equivalent")), ("namespaceSelector", json!({})), ("objectSelector", json!({}))]
        {
            let slot = criteria.entry(field).or_insert(Value::Null);
            if slot.is_null() {
                *slot = default;
            }
        }
    }
}

/// Evaluates authorization checks of expressions with the stored roles.
struct Roles<'a> {
    objects: &'a Objects,
    user: &'a UserInfo,
}

impl Authorizer for Roles<'_> {
    fn authorize(&self, asked: &authorization::Attributes) -> authorization::Verdict {
        let user = asked.user.as_ref().map(|user| {
            let groups: Vec<&str> = user.groups.iter().map(String::as_str).collect();
            UserInfo::new(user.name.as_str(), &groups)
        });
        let attributes = Attributes {
            verb: &asked.verb,
            is_resource_request: asked.path.is_none(),
            path: asked.path.as_deref().unwrap_or_default(),
            group: &asked.group,
            resource: &asked.resource,
            subresource: &asked.subresource,
            namespace: &asked.namespace,
            name: &asked.name,
        };
        let decision = auth::decide(self.objects, &attributes, user.as_ref().unwrap_or(self.user));
        authorization::Verdict { allowed: decision.allowed, reason: decision.reason, error: None }
    }
}

/// Runs `judge` with the variables that expressions can use, in the version of `target`.
pub(crate) fn with_inputs<T>(
    state: &State,
    request: &AdmissionRequest<'_>,
    asked: &Request,
    target: &webhooks::matching::Target,
    params: &Value,
    judge: impl FnOnce(&Inputs<'_>) -> T,
) -> Result<T, Status> {
    let form = |object: Option<&Value>| match object {
        Some(object) => webhooks::converted(state, object.clone(), target, asked),
        None => Ok(Value::Null),
    };
    let (object, old_object) = (form(request.object.as_ref())?, form(request.old_object.as_deref())?);
    let question = ReviewRequest {
        uid: "",
        target,
        requested: &asked.target,
        name: request.name,
        namespace: &asked.namespace,
        operation: asked.operation,
        user: request.user,
        object: &Value::Null,
        old_object: &Value::Null,
        dry_run: request.dry_run,
        options: request.options,
    };
    let review = review::request(&question);
    let namespace = match asked.namespace.as_str() {
        "" => None,
        name => request.objects.get("", "namespaces", "", name),
    };
    let roles = Roles { objects: request.objects, user: request.user };
    let authorizer = CachingAuthorizer::new(&roles);
    let none = Value::Null;
    Ok(judge(&Inputs {
        object: &object,
        old_object: &old_object,
        request: &review,
        params,
        namespace: namespace.as_deref().unwrap_or(&none),
        authorizer: Some(&authorizer),
    }))
}

/// Runs the bound policies on the final object.
pub(crate) fn validate(
    state: &State,
    policies: &Cache<Policy>,
    request: &mut AdmissionRequest<'_>,
) -> Result<(), Status> {
    let policies = policies.get(&state.objects, [POLICIES, BINDINGS], Policy::compile);
    if policies.is_empty() {
        return Ok(());
    }
    let Some(asked) = Request::new(request) else { return Ok(()) };
    request.expand();
    let mut rejected = None;
    let (mut warnings, mut failures, mut published) = (Vec::new(), Vec::new(), Vec::new());
    for bound in policies.iter() {
        let target = match concerned(state, request, &asked, &bound.spec["matchConstraints"]) {
            Ok(Some(target)) => target,
            Ok(None) => continue,
            Err(error) => {
                let why = misconfigured(&bound.name, "", &broken(error));
                note(request, bound, why, &mut rejected);
                continue;
            }
        };
        for binding in &bound.bindings {
            let Outcome { decisions, annotations } = match judge(state, request, &asked, &target, bound, binding) {
                Ok(outcome) => outcome,
                Err(problem) => {
                    let why = misconfigured(&bound.name, meta::name(binding), &problem);
                    note(request, bound, why, &mut rejected);
                    continue;
                }
            };
            for (key, annotation) in annotations {
                match annotation {
                    Annotation::Publish(value) => published.push((format!("{}/{key}", bound.name), value)),
                    Annotation::Exclude => {}
                    Annotation::Error(why) => note(request, bound, why, &mut rejected),
                }
            }
            for (index, decision) in decisions.iter().enumerate().filter(|(_, decision)| !decision.admitted) {
                let (policy, binding_name) = (&bound.name, meta::name(binding));
                let actions = &binding["spec"]["validationActions"];
                for action in actions.as_array().into_iter().flatten().filter_map(Value::as_str) {
                    match action {
                        "Deny" => {
                            let why = format!(
                                "ValidatingAdmissionPolicy '{policy}' with binding '{binding_name}' denied request: {}",
                                decision.message
                            );
                            rejected.get_or_insert_with(|| rejection(request, decision, &why));
                        }
                        "Warn" => warnings.push(format!(
                            "Validation failed for ValidatingAdmissionPolicy '{policy}' with binding '{binding_name}': {}",
                            decision.message
                        )),
                        "Audit" => failures.push(json!({
                            "message": decision.message, "policy": policy, "binding": binding_name,
                            "expressionIndex": index, "validationActions": actions,
                        })),
                        _ => {}
                    }
                }
            }
        }
    }
    if !failures.is_empty() {
        published.push((VALIDATION_FAILURE.to_owned(), Value::from(failures).to_string()));
    }
    for (key, value) in published {
        request.annotate(key, value);
    }
    request.warnings.extend(warnings);
    rejected.map_or(Ok(()), Err)
}

fn broken(error: MatchError) -> String {
    match error {
        MatchError::NoNamespace(name) => format!("namespaces \"{name}\" not found"),
        MatchError::Broken(why) => why,
    }
}

fn misconfigured(policy: &str, binding: &str, why: &str) -> String {
    let binding = if binding.is_empty() { String::new() } else { format!(" with binding '{binding}'") };
    format!("policy '{policy}'{binding} denied request: failed to configure binding: {why}")
}

/// Rejects a request for which the policy fails to evaluate, unless its failure policy is `Ignore`.
fn note(request: &AdmissionRequest<'_>, bound: &Bound<Policy>, why: String, rejected: &mut Option<Status>) {
    if bound.policy.failure_policy() == FailurePolicy::Fail {
        rejected.get_or_insert_with(|| super::forbidden(request, &why));
    }
}

/// The status of a denied request, with the reason that the validation sets.
fn rejection(request: &AdmissionRequest<'_>, decision: &Decision, why: &str) -> Status {
    let mut status = super::forbidden(request, why);
    (status.code, status.reason) = match decision.reason.as_str() {
        "Forbidden" => (403, "Forbidden".into()),
        "Unauthorized" => (401, "Unauthorized".into()),
        "RequestEntityTooLarge" => (413, "RequestEntityTooLarge".into()),
        _ => (422, "Invalid".into()),
    };
    status.with_causes([Cause { reason: String::new(), message: why.to_owned(), field: String::new() }])
}

/// Evaluates a policy for a request under one binding, once for each of its parameters.
fn judge(
    state: &State,
    request: &AdmissionRequest<'_>,
    asked: &Request,
    target: &webhooks::matching::Target,
    bound: &Bound<Policy>,
    binding: &Value,
) -> Result<Outcome, String> {
    if concerned(state, request, asked, &binding["spec"]["matchResources"]).map_err(broken)?.is_none() {
        return Ok(Outcome::default());
    }
    let mut all = Outcome::default();
    for params in parameters(state, &bound.spec["paramKind"], &binding["spec"]["paramRef"], &asked.namespace)? {
        let outcome = with_inputs(state, request, asked, target, &params, |inputs| bound.policy.evaluate(inputs));
        let outcome = outcome.map_err(|status| status.message)?;
        all.decisions.extend(outcome.decisions);
        all.annotations.extend(outcome.annotations);
    }
    Ok(all)
}

/// The parameter objects that a binding selects; a single null for a policy without parameters.
fn parameters(
    state: &State,
    kind: &Value,
    reference: &Value,
    request_namespace: &str,
) -> Result<Vec<Arc<Value>>, String> {
    if !kind.is_object() || !reference.is_object() {
        return Ok(vec![Arc::new(Value::Null)]);
    }
    let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
    let (api_version, kind) = (text(kind, "apiVersion"), text(kind, "kind"));
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    let registry = state.registry();
    let row = registry.rows().find(|row| row.group == group && row.kind == kind);
    let row =
        row.ok_or_else(|| format!("failed to find resource referenced by paramKind: '{api_version}, Kind={kind}'"))?;
    let namespace = match (row.namespaced, text(reference, "namespace")) {
        (false, given) if !given.is_empty() => {
            return Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".to_owned());
        }
        (false, _) => String::new(),
        (true, given) if given.is_empty() && request_namespace.is_empty() => {
            return Err(
                "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources".to_owned()
            );
        }
        (true, given) if given.is_empty() => request_namespace.to_owned(),
        (true, given) => given,
    };
    let objects = &state.objects;
    let name = text(reference, "name");
    let found: Vec<Arc<Value>> = if name.is_empty() {
        let selector = LabelSelector::from_object(&reference["selector"]).map_err(|error| error.to_string())?;
        let empty = Map::new();
        let all = objects.list(&row.group, &row.plural, row.namespaced.then_some(namespace.as_str()));
        all.into_iter().filter(|object| selector.matches(meta::labels(object).unwrap_or(&empty))).collect()
    } else {
        objects.get(&row.group, &row.plural, &namespace, &name).into_iter().collect()
    };
    if found.is_empty() && reference["parameterNotFoundAction"] != "Allow" {
        return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
    }
    Ok(found.into_iter().map(packed::expanded_shared).collect())
}

/// The status of a request whose match conditions fail to evaluate.
pub(crate) fn condition_failed(request: &AdmissionRequest<'_>, why: &str) -> Status {
    let resource = GroupResource::new(request.group, request.resource);
    Status::forbidden(&resource, request.name, why)
}
