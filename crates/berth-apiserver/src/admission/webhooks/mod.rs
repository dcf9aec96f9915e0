//! Admission webhooks: external servers that change or reject objects, as configured by
//! MutatingWebhookConfiguration and ValidatingWebhookConfiguration objects.
//!
//! Mutating webhooks are called one after the other, in the order of their configurations' names;
//! validating webhooks concurrently. If a webhook changed the object, the mutating plugins of the
//! server run again. So do, once, the webhooks with `reinvocationPolicy: IfNeeded`. Without
//! configurations, a write pays for one lock.

pub mod matching;
pub mod review;

use std::sync::Arc;
use std::time::Duration;

use berth_apimachinery::field::quote;
use berth_apimachinery::meta::{self, GroupResource, GroupVersionKind, GroupVersionResource};
use berth_apimachinery::patch::apply_json;
use berth_apimachinery::status::Status;
use parking_lot::RwLock;
use serde_json::{Map, Value};

use berth_cel::Env;
use berth_cel::admission::conditions::{MatchConditions, Matched};
use berth_cel::admission::policy::FailurePolicy;

use super::{AdmissionRequest, Operation, policies};
use crate::registry::{Origin, builtin_schema};
use crate::rest::take_unchanged;
use crate::state::State;
use crate::webhook::client::Endpoint;
use crate::{Objects, strategy};
use berth_kinds::ReviewVersion;
use matching::{Lookup, MatchError, RequestAttributes, Target};
use review::ReviewRequest;

/// Group of the configurations.
pub(crate) const GROUP: &str = "admissionregistration.k8s.io";
const MUTATING: &str = "mutatingwebhookconfigurations";
const VALIDATING: &str = "validatingwebhookconfigurations";
/// Default timeout of a webhook in seconds.
const TIMEOUT_SECONDS: u64 = 10;

/// One webhook, with its client.
struct Hook {
    name: String,
    /// The webhook as written.
    webhook: Value,
    endpoint: Result<Endpoint, String>,
    version: Option<ReviewVersion>,
    timeout: Duration,
    ignores_failure: bool,
    conditions: MatchConditions,
}

impl Hook {
    fn new(webhook: &Value) -> Hook {
        let versions = webhook["admissionReviewVersions"].as_array().into_iter().flatten();
        Hook {
            name: webhook["name"].as_str().unwrap_or_default().to_owned(),
            endpoint: Endpoint::new(&webhook["clientConfig"]),
            version: ReviewVersion::pick(versions.filter_map(Value::as_str)),
            timeout: Duration::from_secs(webhook["timeoutSeconds"].as_u64().unwrap_or(TIMEOUT_SECONDS)),
            ignores_failure: webhook["failurePolicy"] == "Ignore",
            conditions: MatchConditions::compile(
                &webhook["matchConditions"],
                FailurePolicy::parse(webhook["failurePolicy"].as_str()),
                Env::default(),
            ),
            webhook: webhook.clone(),
        }
    }

    fn may_run_dry(&self) -> bool {
        matches!(self.webhook["sideEffects"].as_str(), Some("None" | "NoneOnDryRun"))
    }
}

/// The webhooks of all stored configurations.
#[derive(Default)]
struct Hooks {
    mutating: Vec<Hook>,
    validating: Vec<Hook>,
}

impl Hooks {
    fn load(objects: &Objects) -> Hooks {
        let hooks = |resource: &str| {
            let configurations = objects.list(GROUP, resource, None);
            let webhooks = configurations.iter().flat_map(|it| it["webhooks"].as_array().into_iter().flatten());
            webhooks.map(Hook::new).collect()
        };
        Hooks { mutating: hooks(MUTATING), validating: hooks(VALIDATING) }
    }
}

/// The cached webhooks.
#[derive(Default)]
pub(crate) struct Cache(RwLock<Option<Arc<Hooks>>>);

impl Cache {
    /// Clears the cache after a configuration was written.
    pub(crate) fn forget(&self) {
        *self.0.write() = None;
    }

    fn get(&self, objects: &Objects) -> Arc<Hooks> {
        if let Some(hooks) = self.0.read().as_ref() {
            return hooks.clone();
        }
        let mut slot = self.0.write();
        slot.get_or_insert_with(|| Arc::new(Hooks::load(objects))).clone()
    }
}

/// The attributes of a request that webhooks match.
pub(crate) struct Request {
    pub(crate) target: Target,
    pub(crate) operation: &'static str,
    pub(crate) namespace: String,
}

impl Request {
    /// The attributes of a request; `None` for webhook and policy configurations, which no webhook
    /// may block.
    pub(crate) fn new(request: &AdmissionRequest<'_>) -> Option<Request> {
        if request.group == GROUP {
            return None;
        }
        let operation = match request.operation {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
            Operation::Connect => "CONNECT",
        };
        let of_object = request.object.as_ref().or(request.old_object.as_deref());
        let kind = of_object.and_then(|object| GroupVersionKind::of(object).ok());
        let is_namespace = request.group.is_empty() && request.resource == "namespaces";
        Some(Request {
            target: Target {
                resource: GroupVersionResource::new(request.group, request.version, request.resource),
                subresource: request.subresource.to_owned(),
                kind: kind.unwrap_or_else(|| GroupVersionKind::new(request.group, request.version, request.kind)),
            },
            operation,
            namespace: if is_namespace { request.name } else { request.namespace }.to_owned(),
        })
    }
}

impl Request {
    /// The attributes for matching, with the objects as changed so far.
    pub(crate) fn about<'a>(&'a self, request: &'a AdmissionRequest<'_>) -> RequestAttributes<'a> {
        RequestAttributes {
            target: &self.target,
            operation: self.operation,
            namespace: &self.namespace,
            object: request.object.as_ref(),
            old_object: request.old_object.as_deref(),
        }
    }
}

pub(crate) struct ServerLookup<'a>(pub(crate) &'a State);

impl Lookup for ServerLookup<'_> {
    fn equivalents(&self, target: &Target) -> Vec<(GroupVersionResource, Option<GroupVersionKind>)> {
        let registry = self.0.registry();
        let resource = &target.resource;
        let Some(row) = registry.get(&resource.group, &resource.resource) else { return Vec::new() };
        let served = row.versions.iter().filter(|version| version.served);
        served
            .map(|version| {
                let kind = match version.subresource(&target.subresource) {
                    Some(sub) => Some(GroupVersionKind::new(&sub.group, &sub.version, &sub.kind)),
                    None if target.subresource.is_empty() => {
                        Some(GroupVersionKind::new(&row.group, &version.name, &row.kind))
                    }
                    None => None,
                };
                (GroupVersionResource::new(&row.group, &version.name, &row.plural), kind)
            })
            .collect()
    }

    fn namespace_labels(&self, name: &str) -> Option<Map<String, Value>> {
        let namespace = self.0.objects.get("", "namespaces", "", name)?;
        Some(meta::labels(&namespace).cloned().unwrap_or_default())
    }
}

fn match_status(error: MatchError) -> Status {
    match error {
        MatchError::NoNamespace(name) => Status::not_found(&GroupResource::new("", "namespaces"), &name),
        MatchError::Broken(why) => Status::internal(why),
    }
}

/// The reason why a call returned no response.
enum CallError {
    /// The webhook's failure policy applies.
    Failed(String),
    /// The request is rejected regardless of the failure policy.
    Rejected(Status),
}

/// Runs the mutating webhooks on `request`; `rerun` runs the server's own mutating plugins again
/// after a change.
pub(crate) async fn mutate(
    state: &State,
    webhooks: &Cache,
    request: &mut AdmissionRequest<'_>,
    rerun: impl Fn(&mut AdmissionRequest<'_>) -> Result<(), Status>,
) -> Result<(), Status> {
    let hooks = webhooks.get(&state.objects);
    if hooks.mutating.is_empty() {
        return Ok(());
    }
    let Some(asked) = Request::new(request) else { return Ok(()) };
    request.expand();
    let mut last_seen: Vec<Option<Value>> = vec![None; hooks.mutating.len()];
    let mut changed = false;
    for (at, hook) in hooks.mutating.iter().enumerate() {
        if let Some(did_change) = mutate_by(state, hook, &asked, request).await? {
            changed |= did_change;
            last_seen[at] = Some(request.object.clone().unwrap_or_default());
        }
    }
    if !changed {
        return Ok(());
    }
    rerun(request)?;
    for (at, hook) in hooks.mutating.iter().enumerate() {
        let again = hook.webhook["reinvocationPolicy"] == "IfNeeded";
        // Call again only webhooks that were called before and whose object has changed since.
        if again && last_seen[at].as_ref().is_some_and(|seen| Some(seen) != request.object.as_ref()) {
            mutate_by(state, hook, &asked, request).await?;
        }
    }
    Ok(())
}

/// Calls one webhook if it matches the request. Returns whether it changed the object; `None` if it
/// was not called.
async fn mutate_by(
    state: &State,
    hook: &Hook,
    asked: &Request,
    request: &mut AdmissionRequest<'_>,
) -> Result<Option<bool>, Status> {
    let Some(target) = concerns(state, hook, asked, request)? else { return Ok(None) };
    let answer = match call(state, hook, asked, &target, request, true).await {
        Ok(answer) => answer,
        Err(error) => return failed(hook, error).map(|()| Some(false)),
    };
    annotate(request, hook, &answer);
    request.warnings.extend(answer.warnings);
    if !answer.allowed {
        return Err(review::refusal(&hook.name, &answer.result));
    }
    if answer.patch.is_empty() || request.object.is_none() {
        return Ok(Some(false));
    }
    if answer.patch_type != "JSONPatch" {
        let why = format!("unsupported patch type \"{}\"", answer.patch_type);
        return failed(hook, CallError::Failed(why)).map(|()| Some(false));
    }
    let before = request.object.take().unwrap_or_default();
    let after = patched(state, hook, &answer.patch, &target, asked, &before)?;
    let changed = after != before;
    request.object = Some(after);
    Ok(Some(changed))
}

/// Runs the validating webhooks on the final object.
pub(crate) async fn validate(
    state: &State,
    webhooks: &Cache,
    request: &mut AdmissionRequest<'_>,
) -> Result<(), Status> {
    let hooks = webhooks.get(&state.objects);
    if hooks.validating.is_empty() {
        return Ok(());
    }
    let Some(asked) = Request::new(request) else { return Ok(()) };
    request.expand();
    let mut calls = Vec::new();
    for hook in &hooks.validating {
        if let Some(target) = concerns(state, hook, &asked, request)? {
            calls.push((hook, target));
        }
    }
    let (asked, seen) = (&asked, &*request);
    let answers = calls.iter().map(|(hook, target)| call(state, hook, asked, target, seen, false));
    let answers = futures::future::join_all(answers).await;
    let mut warnings = Vec::new();
    let mut rejected = None;
    for ((hook, _), answer) in calls.iter().zip(answers) {
        let outcome = match answer {
            Ok(answer) => {
                annotate(request, hook, &answer);
                warnings.extend(answer.warnings);
                if answer.allowed { Ok(()) } else { Err(review::refusal(&hook.name, &answer.result)) }
            }
            Err(error) => failed(hook, error),
        };
        if let Err(status) = outcome {
            rejected.get_or_insert(status);
        }
    }
    request.warnings.extend(warnings);
    rejected.map_or(Ok(()), Err)
}

/// Adds a webhook's audit annotations under its name.
fn annotate(request: &AdmissionRequest<'_>, hook: &Hook, answer: &review::Answer) {
    for (key, value) in &answer.audit_annotations {
        request.annotate(format!("{}/{key}", hook.name), value.as_str().unwrap_or_default().to_owned());
    }
}

/// Applies the failure policy to a call without a response.
fn failed(hook: &Hook, error: CallError) -> Result<(), Status> {
    match error {
        CallError::Rejected(status) => Err(status),
        CallError::Failed(why) if hook.ignores_failure => {
            tracing::warn!(webhook = hook.name, error = why, "failed calling webhook, failing open");
            Ok(())
        }
        CallError::Failed(why) => Err(Status::internal(format!("failed calling webhook \"{}\": {why}", hook.name))),
    }
}

fn concerns(
    state: &State,
    hook: &Hook,
    asked: &Request,
    request: &AdmissionRequest<'_>,
) -> Result<Option<Target>, Status> {
    let question = asked.about(request);
    let target = matching::should_call(&hook.webhook, &question, &ServerLookup(state)).map_err(match_status)?;
    let Some(target) = target else { return Ok(None) };
    if hook.conditions.is_empty() {
        return Ok(Some(target));
    }
    let matched =
        policies::with_inputs(state, request, asked, &target, &Value::Null, |inputs| hook.conditions.evaluate(inputs))?;
    match matched {
        Matched::Yes => Ok(Some(target)),
        Matched::No(_) => Ok(None),
        Matched::Failed(why) => Err(policies::condition_failed(request, &why)),
    }
}

async fn call(
    state: &State,
    hook: &Hook,
    asked: &Request,
    target: &Target,
    request: &AdmissionRequest<'_>,
    mutating: bool,
) -> Result<review::Answer, CallError> {
    if request.dry_run && !hook.may_run_dry() {
        let why = format!("admission webhook \"{}\" does not support dry run", hook.name);
        return Err(CallError::Rejected(Status::bad_request(why)));
    }
    let endpoint = hook.endpoint.as_ref().map_err(|why| CallError::Failed(why.clone()))?;
    let versions =
        || CallError::Failed("it accepts no version of AdmissionReview that this server supports".to_owned());
    let version = hook.version.ok_or_else(versions)?;
    let form = |object: Option<&Value>| -> Result<Value, CallError> {
        let Some(object) = object else { return Ok(Value::Null) };
        converted(state, object.clone(), target, asked).map_err(CallError::Rejected)
    };
    let (object, old_object) = (form(request.object.as_ref())?, form(request.old_object.as_deref())?);
    let uid = state.new_request_id();
    let body = review::question(
        version,
        &ReviewRequest {
            uid: &uid,
            target,
            requested: &asked.target,
            name: request.name,
            namespace: &asked.namespace,
            operation: asked.operation,
            user: request.user,
            object: &object,
            old_object: &old_object,
            dry_run: request.dry_run,
            options: request.options,
        },
    );
    let query = format!("?timeout={}s", hook.timeout.as_secs());
    // Boxed: few requests call a webhook, and the call's future would enlarge every request's.
    let answer = Box::pin(endpoint.post(request.objects, &query, &body, hook.timeout)).await;
    let answer = answer.map_err(CallError::Failed)?;
    review::answer(version, &uid, mutating, &answer).map_err(CallError::Failed)
}

/// An object in the version that a webhook's rules request.
pub(crate) fn converted(state: &State, object: Value, target: &Target, asked: &Request) -> Result<Value, Status> {
    if target.kind == asked.target.kind {
        return Ok(object);
    }
    convert(state, object, target)
}

fn convert(state: &State, object: Value, target: &Target) -> Result<Value, Status> {
    let kinds = state.kinds();
    let key = (target.resource.group.clone(), target.resource.resource.clone());
    match kinds.custom.get(&key) {
        Some(custom) => custom.convert(object, &target.kind.api_version()),
        None => Ok(match kinds.registry.get(&target.resource.group, &target.resource.resource) {
            Some(row) => row.convert_builtin(object, &target.kind.api_version()),
            None => object,
        }),
    }
}

/// The object after a patch, in the version of the request and with its defaults.
fn patched(
    state: &State,
    hook: &Hook,
    patch: &[u8],
    target: &Target,
    asked: &Request,
    object: &Value,
) -> Result<Value, Status> {
    let operations: Value = serde_json::from_slice(patch).map_err(|error| Status::internal(error.to_string()))?;
    let seen = converted(state, object.clone(), target, asked)?;
    let mut changed = apply_json(&seen, &operations).map_err(|error| Status::internal(Status::from(error).message))?;
    read(state, &mut changed, &seen, target).map_err(|why| {
        let (kind, name) = (&target.kind.kind, quote(meta::name(object)));
        Status::internal(format!(
            "{kind} {name}, as changed by admission webhook \"{}\", cannot be decoded: {why}",
            hook.name
        ))
    })?;
    completed(state, changed, target, asked)
}

/// Decodes an object that a webhook or policy changed. `seen` is the object before the change, in
/// the same version. Unknown fields of built-in objects are removed. Unchanged parts are not
/// decoded again, so they may have values that would be rejected today. Unknown fields of custom
/// resources are removed [with their defaults](completed).
///
/// # Errors
/// The object is of another kind, or a field has an invalid value.
pub(crate) fn read(state: &State, changed: &mut Value, seen: &Value, target: &Target) -> Result<(), String> {
    let kind = &target.kind;
    for (field, wanted) in [("apiVersion", kind.api_version()), ("kind", kind.kind.clone())] {
        if changed[field] != *wanted {
            return Err(format!("{field} must stay {}, but was changed to {}", quote(&wanted), changed[field]));
        }
    }
    let registry = state.registry();
    let resource = &target.resource;
    let row = registry.get(&resource.group, &resource.resource);
    if row.is_some_and(|row| matches!(row.origin, Origin::Custom(_)) && row.kind == kind.kind) {
        return Ok(());
    }
    let Some(schema) = builtin_schema(&kind.group, &kind.version, &kind.kind) else { return Ok(()) };
    let kept = take_unchanged(changed, seen);
    let outcome = schema.read_typed(&kind.kind, changed);
    meta::map_mut(changed).extend(kept);
    outcome.map(drop)
}

/// Converts an object that a webhook or policy changed back to the version of the request, and adds
/// its defaults.
pub(crate) fn completed(state: &State, mut changed: Value, target: &Target, asked: &Request) -> Result<Value, Status> {
    if target.kind != asked.target.kind {
        changed = convert(state, changed, &asked.target)?;
    }
    let registry = state.registry();
    let resource = &asked.target.resource;
    if let Some(row) = registry.get(&resource.group, &resource.resource).filter(|_| asked.target.subresource.is_empty())
    {
        if let (Origin::Custom(_), Some(schema)) = (&row.origin, row.schema(&resource.version)) {
            schema.prune(&mut changed, berth_apimachinery::schema::Root::Resource);
            schema.drop_nulls(&mut changed);
            schema.apply_defaults(&mut changed);
        }
        strategy::of(row).default(&mut changed);
    }
    Ok(changed)
}
