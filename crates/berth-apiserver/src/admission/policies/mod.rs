//! ValidatingAdmissionPolicies: expressions that refuse requests, or warn about them, where a binding says so.
//!
//! A policy is compiled once and kept until one is written again; with no policy stored, a write pays one lock. What the
//! expressions mean is [`berth_cel::admission`]'s business, which requests they are about that of [`matching`].

pub mod matching;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use berth_apimachinery::meta::{self, GroupResource};
use berth_apimachinery::selector::LabelSelector;
use berth_apimachinery::status::{Cause, Status};
use berth_cel::Env;
use berth_cel::admission::policy::{Decision, FailurePolicy, Policy};
use berth_cel::admission::{CachingAuthorizer, Inputs};
use berth_cel::library::{self, Authorizer};
use serde_json::{Map, Value, json};

use super::AdmissionRequest;
use super::webhooks::matching::{Asked, MatchError};
use super::webhooks::review::{self, Question};
use super::webhooks::{self, GROUP, Request, ServerLookup};
use crate::auth::Attributes;
use crate::{ApiServer, Objects, UserInfo, auth};

const POLICIES: &str = "validatingadmissionpolicies";
const BINDINGS: &str = "validatingadmissionpolicybindings";

/// A policy with its bindings.
struct Bound {
    name: String,
    spec: Value,
    policy: Policy,
    bindings: Vec<Arc<Value>>,
}

/// The policies as last looked at.
#[derive(Default)]
pub(crate) struct Cache(RwLock<Option<Arc<Vec<Bound>>>>);

impl Cache {
    /// To be called when a policy or binding was written.
    pub(crate) fn forget(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn get(&self, objects: &Objects) -> Arc<Vec<Bound>> {
        if let Some(policies) = self.0.read().unwrap_or_else(PoisonError::into_inner).as_ref() {
            return policies.clone();
        }
        let mut slot = self.0.write().unwrap_or_else(PoisonError::into_inner);
        slot.get_or_insert_with(|| Arc::new(load(objects))).clone()
    }
}

/// Policies somebody has bound; the others decide nothing.
fn load(objects: &Objects) -> Vec<Bound> {
    let mut bindings: BTreeMap<String, Vec<Arc<Value>>> = BTreeMap::new();
    for binding in objects.list(GROUP, BINDINGS, None) {
        let policy = binding["spec"]["policyName"].as_str().unwrap_or_default().to_owned();
        bindings.entry(policy).or_default().push(binding);
    }
    let policies = objects.list(GROUP, POLICIES, None);
    let bound = policies.iter().filter_map(|policy| {
        let name = meta::name(policy).to_owned();
        let bindings = bindings.remove(&name)?;
        let mut spec = policy["spec"].clone();
        stored_defaults(&mut spec["matchConstraints"]);
        Some(Bound { policy: Policy::compile(&spec, &Env::default()), name, spec, bindings })
    });
    bound.collect()
}

/// Match criteria with what may be left out.
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

/// Answers authorization questions of expressions from the stored roles.
struct Roles<'a> {
    objects: &'a Objects,
    user: &'a UserInfo,
}

impl Authorizer for Roles<'_> {
    fn authorize(&self, asked: &library::Attributes) -> library::Verdict {
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
        library::Verdict { allowed: decision.allowed, reason: decision.reason, error: None }
    }
}

/// Runs `judge` with what expressions see of a request in the form that `target` asks for.
pub(crate) fn with_inputs<T>(
    server: &ApiServer,
    request: &AdmissionRequest<'_>,
    asked: &Request,
    target: &webhooks::matching::Target,
    params: &Value,
    judge: impl FnOnce(&Inputs<'_>) -> T,
) -> Result<T, Status> {
    let form = |object: Option<&Value>| match object {
        Some(object) => webhooks::converted(server, object.clone(), target, asked),
        None => Ok(Value::Null),
    };
    let (object, old_object) = (form(request.object.as_ref())?, form(request.old_object.as_deref())?);
    let question = Question {
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
pub(crate) fn validate(server: &ApiServer, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
    let policies = server.inner.policies.get(&server.inner.objects);
    if policies.is_empty() {
        return Ok(());
    }
    let Some(asked) = Request::new(request) else { return Ok(()) };
    let mut refused = None;
    let mut warnings = Vec::new();
    for bound in policies.iter() {
        let target = {
            let question = Asked {
                target: &asked.target,
                operation: asked.operation,
                namespace: &asked.namespace,
                object: request.object.as_ref(),
                old_object: request.old_object.as_deref(),
            };
            let lookup = ServerLookup(server);
            match matching::matches(&bound.spec["matchConstraints"], &question, request.name, &lookup) {
                Ok(Some(target)) => target,
                Ok(None) => continue,
                Err(error) => {
                    let why = misconfigured(&bound.name, "", &broken(error));
                    note(request, bound, why, &mut refused);
                    continue;
                }
            }
        };
        for binding in &bound.bindings {
            let outcome = judge(server, request, &asked, &target, bound, binding);
            let decisions = match outcome {
                Ok(decisions) => decisions,
                Err(problem) => {
                    let why = misconfigured(&bound.name, meta::name(binding), &problem);
                    note(request, bound, why, &mut refused);
                    continue;
                }
            };
            for decision in decisions.iter().filter(|decision| !decision.admitted) {
                let (policy, binding_name) = (&bound.name, meta::name(binding));
                let actions = binding["spec"]["validationActions"].as_array().into_iter().flatten();
                for action in actions.filter_map(Value::as_str) {
                    match action {
                        "Deny" => {
                            let why = format!(
                                "ValidatingAdmissionPolicy '{policy}' with binding '{binding_name}' denied request: {}",
                                decision.message
                            );
                            refused.get_or_insert_with(|| refusal(request, decision, &why));
                        }
                        "Warn" => warnings.push(format!(
                            "Validation failed for ValidatingAdmissionPolicy '{policy}' with binding '{binding_name}': {}",
                            decision.message
                        )),
                        _ => {}
                    }
                }
            }
        }
    }
    request.warnings.extend(warnings);
    refused.map_or(Ok(()), Err)
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

/// What cannot be judged is refused, unless the policy says otherwise.
fn note(request: &AdmissionRequest<'_>, bound: &Bound, why: String, refused: &mut Option<Status>) {
    if bound.policy.failure_policy() == FailurePolicy::Fail {
        refused.get_or_insert_with(|| super::forbidden(request, &why));
    }
}

/// The status of a refusal, with the reason the validation gives.
fn refusal(request: &AdmissionRequest<'_>, decision: &Decision, why: &str) -> Status {
    let mut status = super::forbidden(request, why);
    (status.code, status.reason) = match decision.reason.as_str() {
        "Forbidden" => (403, "Forbidden"),
        "Unauthorized" => (401, "Unauthorized"),
        "RequestEntityTooLarge" => (413, "RequestEntityTooLarge"),
        _ => (422, "Invalid"),
    };
    status.with_causes([Cause { reason: String::new(), message: why.to_owned(), field: String::new() }])
}

/// What a policy says about a request under one binding, for each of its parameters.
fn judge(
    server: &ApiServer,
    request: &AdmissionRequest<'_>,
    asked: &Request,
    target: &webhooks::matching::Target,
    bound: &Bound,
    binding: &Value,
) -> Result<Vec<Decision>, String> {
    let mut criteria = binding["spec"]["matchResources"].clone();
    if criteria.is_object() {
        stored_defaults(&mut criteria);
        let question = Asked {
            target: &asked.target,
            operation: asked.operation,
            namespace: &asked.namespace,
            object: request.object.as_ref(),
            old_object: request.old_object.as_deref(),
        };
        if matching::matches(&criteria, &question, request.name, &ServerLookup(server)).map_err(broken)?.is_none() {
            return Ok(Vec::new());
        }
    }
    let mut decisions = Vec::new();
    for params in parameters(server, &bound.spec["paramKind"], &binding["spec"]["paramRef"], &asked.namespace)? {
        let outcome = with_inputs(server, request, asked, target, &params, |inputs| bound.policy.evaluate(inputs));
        decisions.extend(outcome.map_err(|status| status.message)?.decisions);
    }
    Ok(decisions)
}

/// The objects a binding parametrises its policy with; a single null for a policy without parameters.
fn parameters(
    server: &ApiServer,
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
    let registry = server.registry();
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
    let objects = &server.inner.objects;
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
    Ok(found)
}

/// The name a refusal of match conditions gives the request.
pub(crate) fn condition_failed(request: &AdmissionRequest<'_>, why: &str) -> Status {
    let resource = GroupResource::new(request.group, request.resource);
    Status::forbidden(&resource, request.name, why)
}
