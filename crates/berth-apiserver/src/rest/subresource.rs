//! Subresources: status and scale of every kind that has them; binding, eviction and log of pods;
//! finalize of namespaces; tokens of service accounts; reviews, which are not stored.

use berth_apimachinery::field::{self, Path, quote};
use berth_apimachinery::meta::{self, GroupResource};
use berth_apimachinery::selector::LabelSelector;
use berth_apimachinery::status::Status;
use berth_apimachinery::validation;
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::call::Call;
use super::check::Target;
use super::create::Tracking;
use super::decode::Decoded;
use super::delete::DeleteOptions;
use super::disruption::Allowed;
use super::patch::{self, set_at};
use super::{delete, disruption, list, log, update};
use crate::admission::Operation;
use crate::registry::ScalePaths;
use crate::{Body, auth};

/// Responds to a request for a subresource.
pub(crate) async fn handle(call: &mut Call, verb: &str) -> Result<Response<Body>, Status> {
    let subresource = call.info.subresource.clone();
    match (subresource.as_str(), verb) {
        ("scale", _) => scale(call, verb).await,
        ("binding", _) => {
            let binding = call.typed_body()?;
            let binding = admit(call, binding, |call, binding| check_same_name(call, binding)).await?;
            bind(call, &binding).await
        }
        ("eviction", _) => evict(call).await,
        ("log", _) => log::read(call).await,
        ("token", _) => token(call).await,
        ("finalize", "update") => finalize(call).await,
        (_, "get") => list::get(call),
        // `status`, `approval`, `resize`, `ephemeralcontainers`: parts of the object itself.
        (_, "update") => update::replace(call).await,
        (_, "patch") => patch::patch(call).await,
        _ => Err(Status::method_not_supported(&call.group_resource(), verb)),
    }
}

/// POST of a kind that is not stored.
pub(crate) async fn review(call: &mut Call) -> Result<Response<Body>, Status> {
    if call.row.group.is_empty() && call.row.plural == "bindings" {
        // The deprecated way to bind: the body names the pod.
        let binding = call.typed_body()?;
        if meta::name(&binding).is_empty() {
            return Err(Status::bad_request("name must be provided"));
        }
        call.info.name = meta::name(&binding).to_owned();
        let binding = admit(call, binding, |call, binding| check_same_name(call, binding)).await?;
        call.row = call.server.registry().get("", "pods").cloned().ok_or_else(Status::no_such_path)?;
        call.info.resource = "pods".to_owned();
        call.info.subresource = "binding".to_owned();
        return bind(call, &binding).await;
    }
    let decoded = call.decode_body()?;
    let body = call.complete(decoded, false)?;
    let tokens = call.server.tokens();
    let mut answer =
        auth::review(&call.server.inner.objects, tokens.as_deref(), &call.row, &call.info, &call.user, body)?;
    if call.row.plural == "selfsubjectreviews" {
        // As in Kubernetes, this is the only review with a time. Clients can read the server's
        // clock from it.
        answer["metadata"]["creationTimestamp"] = call.server.timestamp();
    }
    call.object_response(StatusCode::CREATED, &answer)
}

/// Runs admission for an object that is posted to a subresource, as a create of its own kind.
/// Plugins, policies and webhooks may change or reject it. `check` gets the object after the
/// mutating phase.
async fn admit(
    call: &mut Call,
    mut object: Value,
    check: impl FnOnce(&Call, &mut Value) -> Result<(), Status>,
) -> Result<Value, Status> {
    validation::match_namespace(&mut object, call.namespace()).map_err(Status::bad_request)?;
    let name = call.info.name.clone();
    let mut request = call.admission(Operation::Create, &name, Some(object), None);
    call.server.inner.admission.mutate(&mut request).await?;
    if let Some(object) = &mut request.object {
        check(call, object)?;
    }
    call.server.inner.admission.validate(&mut request).await?;
    let (object, warnings) = (request.object.take(), std::mem::take(&mut request.warnings));
    drop(request);
    call.warnings.extend(warnings);
    object.ok_or_else(|| Status::internal("an admission plugin removed the object"))
}

/// Checks that the body has the name of the pod in the path. A body without a name is rejected.
fn check_same_name(call: &Call, object: &Value) -> Result<(), Status> {
    let (name, kind) = (meta::name(object), meta::kind(object));
    if name == call.info.name {
        return Ok(());
    }
    Err(Status::bad_request(format!(
        "name in URL does not match name in {kind} object: {} and {}",
        quote(&call.info.name),
        quote(name)
    )))
}

/// Replaces a namespace's finalizers. Removing the last finalizer deletes an empty namespace.
async fn finalize(call: &mut Call) -> Result<Response<Body>, Status> {
    let decoded = call.decode_body()?;
    let object = call.complete(decoded, false)?;
    let manager = call.manager_name();
    let updated = update::update(call, Target::Whole, |_, old| {
        let mut new = old.as_ref().clone();
        let finalizers = object["spec"]["finalizers"].as_array().cloned().unwrap_or_default();
        meta::map_mut(&mut new)["spec"] = json!({"finalizers": finalizers});
        meta::set(&mut new, "resourceVersion", meta::resource_version(&object));
        Ok((new, Tracking::Update(manager.clone())))
    })
    .await?;
    call.stored_response(StatusCode::OK, &updated)
}

/// Reads or sets the desired number of replicas of an object, as a `Scale`.
async fn scale(call: &mut Call, verb: &str) -> Result<Response<Body>, Status> {
    let paths = call.scale_paths().ok_or_else(Status::no_such_path)?;
    if verb == "get" {
        let record = call.stored()?;
        let object = call.view().show(&record)?;
        return call.value_response(StatusCode::OK, &scale_of(&object, &paths));
    }
    let change = if verb == "patch" { Change::Patch(patch::read(call)?) } else { Change::Put(call.typed_body()?) };
    let manager = call.manager_name();
    let updated = update::update(call, Target::Main, |call, old| {
        let wanted = match &change {
            Change::Put(scale) => scale.clone(),
            Change::Patch(patch) => {
                let object = patch::merge(call, patch, &scale_of(old, &paths))?;
                call.read_as_body(Decoded { object, complaints: call.of_patch.clone() }, true)?
            }
        };
        update::check_name(call, &wanted)?;
        let replicas = wanted["spec"]["replicas"].as_i64().unwrap_or(0);
        if replicas < 0 {
            let detail = "must be greater than or equal to 0";
            let error = field::Error::invalid(&Path::new("spec.replicas"), replicas, detail);
            let kind = meta::GroupKind::new("autoscaling", "Scale");
            return Err(Status::invalid(&kind, meta::name(old), &[error]));
        }
        let mut new = old.as_ref().clone();
        set_replicas(&mut new, &paths, &wanted);
        // A scale without these fields replaces any stored state, even for kinds whose own updates
        // require a `resourceVersion`.
        for field in ["namespace", "uid", "resourceVersion"] {
            if let Some(text) = wanted["metadata"][field].as_str().filter(|text| !text.is_empty()) {
                meta::set(&mut new, field, text);
            }
        }
        Ok((new, Tracking::Update(manager.clone())))
    })
    .await?;
    call.value_response(StatusCode::OK, &scale_of(&updated, &paths))
}

impl Call {
    /// The paths of the counts for a request of a scale; `None` for other requests.
    pub(crate) fn scale_paths(&self) -> Option<ScalePaths> {
        self.version().subresource("scale").filter(|sub| sub.name == self.info.subresource)?.scale.clone()
    }
}

/// Sets the desired number of replicas of an object to that of a scale.
pub(crate) fn set_replicas(object: &mut Value, paths: &ScalePaths, scale: &Value) {
    let path: Vec<&str> = paths.spec_replicas.trim_start_matches('.').split('.').collect();
    set_at(object, &path, scale["spec"]["replicas"].as_i64().unwrap_or(0).into());
}

enum Change {
    Put(Value),
    Patch(patch::Patch),
}

/// Converts an object to its scale.
pub(crate) fn scale_of(object: &Value, paths: &ScalePaths) -> Value {
    let at = |path: &str| path.trim_start_matches('.').split('.').try_fold(object, |value, step| value.get(step));
    let number = |path: &str| at(path).and_then(Value::as_i64).unwrap_or(0);
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object["metadata"].get(field) {
            metadata[field] = value.clone();
        }
    }
    let mut scale = json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
        "spec": {"replicas": number(&paths.spec_replicas)},
        "status": {"replicas": number(&paths.status_replicas)},
    });
    match paths.selector.as_deref().and_then(at) {
        Some(Value::String(selector)) => scale["status"]["selector"] = selector.as_str().into(),
        Some(selector @ Value::Object(_)) => {
            if let Ok(selector) = LabelSelector::from_object(selector) {
                scale["status"]["selector"] = selector.to_string().into();
            }
        }
        _ => {}
    }
    scale
}

/// Assigns a pod to a node. Rejected if the pod is already assigned or is being deleted.
pub(crate) async fn bind(call: &mut Call, binding: &Value) -> Result<Response<Body>, Status> {
    let node = binding["target"]["name"].as_str().unwrap_or_default().to_owned();
    let mut errors = Vec::new();
    let kind = binding["target"]["kind"].as_str().unwrap_or_default();
    if !matches!(kind, "" | "Node") {
        errors.push(field::Error::not_supported(&Path::new("target.kind"), kind, &["Node", "<empty>"]));
    }
    if node.is_empty() {
        errors.push(field::Error::required(&Path::new("target.name"), ""));
    }
    if !errors.is_empty() {
        return Err(Status::invalid(&meta::GroupKind::new("", "Binding"), &call.info.name, &errors));
    }
    let pods = GroupResource::new("", "pods");
    let bindings = GroupResource::new("", "pods/binding");
    let (annotations, labels) = (binding["metadata"]["annotations"].clone(), binding["metadata"]["labels"].clone());
    let uid = meta::uid(binding).to_owned();
    let manager = call.manager_name();
    let now = call.server.timestamp();
    update::update(call, Target::Whole, |_, old| {
        let name = meta::name(old);
        let reject = |why: String| Err(Status::conflict(&bindings, name, &why));
        if !uid.is_empty() && uid != meta::uid(old) {
            let why =
                format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {}", meta::uid(old));
            return Err(Status::conflict(&pods, name, &why));
        }
        if meta::deletion_timestamp(old).is_some() {
            return reject(format!("pod {name} is being deleted, cannot be assigned to a host"));
        }
        if let Some(host) = old["spec"]["nodeName"].as_str().filter(|host| !host.is_empty()) {
            return reject(format!("pod {name} is already assigned to node {}", quote(host)));
        }
        if old["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()) {
            return reject(format!("pod {name} has non-empty .spec.schedulingGates"));
        }
        let mut new = old.as_ref().clone();
        new["spec"]["nodeName"] = node.as_str().into();
        for (field, values) in [("annotations", &annotations), ("labels", &labels)] {
            let Some(values) = values.as_object().filter(|values| !values.is_empty()) else { continue };
            let own = meta::map_mut(meta::metadata_mut(&mut new).entry(field).or_insert_with(|| json!({})));
            own.extend(values.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        set_scheduled(&mut new, &now);
        Ok((new, Tracking::Update(manager.clone())))
    })
    .await?;
    let mut status = Status::success().to_value();
    status["code"] = 201.into();
    call.value_response(StatusCode::CREATED, &status)
}

/// Sets the condition `PodScheduled` of a pod that has a node.
fn set_scheduled(pod: &mut Value, now: &Value) {
    let status = meta::map_mut(meta::map_mut(pod).entry("status").or_insert_with(|| json!({})));
    let conditions = status.entry("conditions").or_insert_with(|| json!([]));
    let Some(conditions) = conditions.as_array_mut() else { return };
    let condition = json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now});
    match conditions.iter_mut().find(|condition| condition["type"] == "PodScheduled") {
        Some(existing) => *existing = condition,
        None => conditions.push(condition),
    }
}

/// Maximum number of attempts to evict a pod that other clients write at the same time.
const EVICTION_ATTEMPTS: usize = 16;
/// `Retry-After`, in seconds, if all attempts fail.
const EVICTION_RETRY: u32 = 10;

/// Deletes a pod unless a disruption budget forbids it.
async fn evict(call: &mut Call) -> Result<Response<Body>, Status> {
    let eviction = call.typed_body()?;
    let eviction = admit(call, eviction, |call, eviction| check_same_name(call, eviction)).await?;
    call.body = match &eviction["deleteOptions"] {
        Value::Object(options) => {
            let mut options = options.clone();
            // They are decoded by the type of the field; their own apiVersion and kind are ignored.
            options.retain(|field, _| !matches!(field.as_str(), "apiVersion" | "kind"));
            // A dry run of an eviction is a dry run of the deletion.
            if call.options.dry_run {
                options.insert("dryRun".to_owned(), json!(["All"]));
            }
            super::response::to_bytes(&Value::Object(options))
        }
        _ => Default::default(),
    };
    call.content_type.clear();
    // As upstream, admission reviews only the eviction, and not the deletion that follows.
    let options = DeleteOptions::read(call)?.admitted();
    call.info.subresource.clear();
    for _ in 0..EVICTION_ATTEMPTS {
        let record = call.stored()?;
        let pod = call.view().show(&record)?;
        let phase = pod["status"]["phase"].as_str().unwrap_or_default();
        let allowed = match phase {
            // The pod has terminated, so evicting it disrupts nothing.
            "Succeeded" | "Failed" => Allowed::Counted,
            _ if phase == "Pending" || meta::deletion_timestamp(&pod).is_some() => Allowed::Uncounted,
            _ => disruption::allow(call, &pod).await?,
        };
        options.check_preconditions(call, &pod)?;
        let Some(seen) = disruption::mark(call, record, allowed).await? else { continue };
        // A pod that no budget counts may become a counted pod before it is deleted. So its
        // revision must not have changed. A later pod of the same name has another revision, so
        // it is not deleted either.
        let as_seen = match allowed {
            Allowed::Counted if !options.has_revision() => None,
            Allowed::Counted | Allowed::Uncounted => Some(options.at_revision(seen)),
        };
        match delete::delete_with(call, as_seen.as_ref().unwrap_or(&options)).await {
            Err(status) if status.reason == "Conflict" && as_seen.is_some() => {}
            deleted => {
                deleted?;
                let mut status = Status::success().to_value();
                status["code"] = 201.into();
                return call.value_response(StatusCode::CREATED, &status);
            }
        }
    }
    let why = format!("pod {} is changing too often to be evicted; try again", quote(&call.info.name));
    Err(Status::too_many_requests(why, EVICTION_RETRY))
}

/// Issues a token for a service account.
async fn token(call: &mut Call) -> Result<Response<Body>, Status> {
    let account = call.stored()?.value();
    let wanted = call.typed_body()?;
    let wanted = admit(call, wanted, |_, wanted| auth::review::complete_token_request(&account, wanted)).await?;
    let tokens = call.server.tokens();
    let answer = auth::review::issue_token(&call.server.inner.objects, tokens.as_deref(), &account, wanted)?;
    call.value_response(StatusCode::CREATED, &answer)
}
