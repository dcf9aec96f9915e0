//! Updates objects: PUT, and the update loop that all other changes use (patch, status, scale,
//! finalize, binding).

use std::sync::Arc;

use berth_apimachinery::field::{self, Path};
use berth_apimachinery::meta::GroupKind;
use berth_apimachinery::status::Status;
use berth_apimachinery::{meta, packed, validation};
use berth_store::{CommitError, Record, Write};
use http::{Response, StatusCode};
use serde_json::Value;

use super::call::Call;
use super::check::Target;
use super::create::{Tracking, commit_status, keep_owners, store_new};
use super::decode::drop_empty_metadata;
use super::encode::Stored;
use super::subresource;
use crate::admission::{Operation, quota};
use crate::kind_hooks::Around;
use crate::strategy::SecretTokens;
use crate::{Body, strategy};

/// Attempts of a change without a `resourceVersion` while other clients write the object.
const ATTEMPTS: usize = 16;

/// PUT on an object or its status.
pub(crate) async fn replace(call: &mut Call) -> Result<Response<Body>, Status> {
    let target = call.target();
    let decoded = call.decode_body()?;
    let object = call.complete(decoded, false)?;
    if call.server.store().get(&call.key()).is_none()
        && call.info.subresource.is_empty()
        && call.strategy().creates_on_update()
        && meta::resource_version(&object).is_empty()
    {
        call.authorize_create()?;
        check_name(call, &object)?;
        let manager = call.manager_name();
        let stored = store_new(call, object, Tracking::Update(manager)).await?;
        return call.stored_response(StatusCode::CREATED, &stored);
    }
    let manager = call.manager_name();
    let updated = update(call, target, |_, _| Ok((object.clone(), Tracking::Update(manager.clone())))).await?;
    call.stored_response(StatusCode::OK, &updated)
}

impl Call {
    /// The part of the object that this request writes.
    pub(crate) fn target(&self) -> Target {
        match self.info.subresource.as_str() {
            "status" => Target::Status,
            "approval" => Target::Approval,
            "resize" => Target::Resize,
            "ephemeralcontainers" => Target::Ephemeral,
            _ => Target::Main,
        }
    }
}

/// Checks that the name in the object is that in the path.
pub(super) fn check_name(call: &Call, object: &Value) -> Result<(), Status> {
    let name = meta::name(object);
    if name.is_empty() {
        return Err(Status::bad_request("name must be provided"));
    }
    if name != call.info.name {
        return Err(Status::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            call.info.name
        )));
    }
    Ok(())
}

/// Replaces the named object by the result of `change` (both in the request's version), after
/// admission and validation. Retries on conflicting writes unless the new object sets a
/// `resourceVersion`. Returns the stored object, or its last state when the write completed its
/// deletion.
pub(crate) async fn update(
    call: &mut Call,
    target: Target,
    mut change: impl FnMut(&mut Call, &Arc<Value>) -> Result<(Value, Tracking), Status>,
) -> Result<Stored, Status> {
    for _ in 0..ATTEMPTS {
        let record = call.stored()?;
        let old = call.view().show(&record)?;
        let warnings = call.warnings.len();
        let (new, tracking) = change(call, &old)?;
        if let Some(updated) = try_update(call, target, &record, &old, new, &tracking).await? {
            return Ok(updated);
        }
        call.warnings.truncate(warnings);
    }
    Err(Status::modified(&call.group_resource(), &call.info.name))
}

/// Tries to replace the object once. Returns `None` after a conflicting write that is worth a
/// retry.
async fn try_update(
    call: &mut Call,
    target: Target,
    record: &Arc<Record>,
    old: &Arc<Value>,
    mut new: Value,
    tracking: &Tracking,
) -> Result<Option<Stored>, Status> {
    // The new state as the client means it.
    check_preconditions(call, record, old, &mut new)?;
    let name = call.info.name.clone();
    // For a scale, admission reviews the scale.
    let scale = call.scale_paths();
    meta::dedup_owner_references(&mut new);
    drop_empty_metadata(&mut new);
    let completed = complete_old(call, &mut new, old);
    let compared = completed.as_ref().unwrap_or(old);
    // The field manager owns the fields it sent and their defaults, but not what admission and the
    // kind's preparation add, as upstream.
    let managed = call.track(&mut new, Some(compared), tracking);
    packed::put_back(&mut new, managed.clone());
    let scaled = |object: &Value, paths| Arc::new(subresource::scale_of(object, paths));
    let old_seen = scale.as_ref().map_or_else(|| compared.clone(), |paths| scaled(compared, paths));
    let mut unscaled = None;
    let seen = match &scale {
        Some(paths) => subresource::scale_of(unscaled.insert(new), paths),
        None => new,
    };
    // Mutating admission. It already reviewed the binding itself, and does not review the pod as
    // well, as upstream.
    let is_reviewed = call.info.subresource != "binding";
    let mut request = call.admission(Operation::Update, &name, Some(seen), Some(old_seen.clone()));
    if is_reviewed {
        call.server.inner.admission.mutate(&mut request).await?;
    }
    let (new, warnings) = (request.object.take(), std::mem::take(&mut request.warnings));
    drop(request);
    call.warnings.extend(warnings);
    let mut new = new.ok_or_else(|| Status::internal("an admission plugin removed the object"))?;
    if let (Some(mut object), Some(paths)) = (unscaled, &scale) {
        subresource::set_replicas(&mut object, paths, &new);
        new = object;
    }
    keep_owners(&mut new, managed);

    // The kind's own additions, and its validation.
    let mut around = call.server.inner.hooks.begin(&call.row, &new);
    prepare(call, target, &mut new, compared);
    if target == Target::Main {
        around.assign(&mut new, Some(old))?;
    }
    match target {
        Target::Main if call.has_status_subresource() => {
            call.view().keep_stored(&mut new, "status", Some(&record.value()))?;
        }
        Target::Status => call.view().keep_stored(&mut new, "spec", Some(&record.value()))?,
        _ => {}
    }
    let managed = packed::take(&mut new);
    call.check_update(target, &new, compared)?;
    packed::put_back(&mut new, managed);
    if target == Target::Main {
        call.warnings.extend(call.strategy().warnings(&new, Some(compared)));
    }

    // Validating admission, and the quota.
    let mut unscaled = None;
    let seen = match &scale {
        Some(paths) => subresource::scale_of(unscaled.insert(new), paths),
        None => new,
    };
    let mut request = call.admission(Operation::Update, &name, Some(seen), Some(old_seen));
    if is_reviewed {
        call.server.inner.admission.validate(&mut request).await?;
    }
    let converted = match unscaled.as_ref().or(request.object.as_ref()) {
        Some(object) => call.converted(object)?,
        None => None,
    };
    let mut charge = call.server.inner.quotas.charge(&request).await?;
    let seen = request.object.take().unwrap_or_default();
    let (mut new, warnings) = (unscaled.unwrap_or(seen), std::mem::take(&mut request.warnings));
    drop(request);
    call.warnings.extend(warnings);
    packed::pack(&mut new);

    // The write. An update without a change is how clients move objects to a new storage version.
    if new == **old && !is_finished_deletion(&new) && call.view().is_in_storage_version(record) {
        return Ok(Some(old.clone().into()));
    }
    if call.options.dry_run {
        return Ok(Some(Arc::new(new).into()));
    }
    let charged = charge.is_charged.then(|| new.clone());
    let stored = commit_change(call, record, old, new, converted, &mut around, &mut charge).await;
    if let (Ok(None) | Err(_), Some(new)) = (&stored, charged) {
        call.server.inner.quotas.released(around.queue(), &call.row, &new, Some(old)).await;
    }
    stored
}

/// Checks name, namespace, resourceVersion and UID of the new state, and completes them from the
/// stored one.
fn check_preconditions(call: &Call, record: &Record, old: &Value, new: &mut Value) -> Result<(), Status> {
    check_name(call, new)?;
    validation::match_namespace(new, call.namespace()).map_err(Status::bad_request)?;
    if meta::resource_version(new).is_empty() && strategy::insists_on_revision(&call.row, call.custom.is_some()) {
        let path = Path::new("metadata");
        let error = field::Error::invalid(&path.child("resourceVersion"), 0, "must be specified for an update");
        // This error names the resource where other errors name the kind, as upstream.
        let resource = GroupKind::new(&call.row.group, &call.row.plural);
        return Err(Status::invalid(&resource, &call.info.name, &[error]));
    }
    if !meta::resource_version(new).is_empty() && meta::resource_version(new) != record.revision.to_string() {
        return Err(Status::modified(&call.group_resource(), &call.info.name));
    }
    meta::set(new, "resourceVersion", &record.revision.to_string());
    if !meta::uid(new).is_empty() && meta::uid(new) != meta::uid(old) {
        let why = format!(
            "Precondition failed: UID in precondition: {}, UID in object meta: {}",
            meta::uid(new),
            meta::uid(old)
        );
        return Err(Status::conflict(&call.group_resource(), &call.info.name, &why));
    }
    Ok(())
}

/// Commits the validated update; `None` on a conflicting write. `converted` is the storage-version
/// object, if a conversion webhook produced it.
async fn commit_change(
    call: &Call,
    record: &Arc<Record>,
    old: &Arc<Value>,
    mut new: Value,
    converted: Option<Value>,
    around: &mut Around,
    charge: &mut quota::Charge,
) -> Result<Option<Stored>, Status> {
    let gone = is_finished_deletion(&new);
    around.before_commit(&mut new, Some(old), gone).await?;
    let view = call.view();
    let value = match converted {
        Some(converted) => converted,
        None => view.to_storage(new)?,
    };
    let (key, expected) = (call.key(), record.revision);
    let write =
        if gone { Write::Delete { key, expected, last: Some(value) } } else { Write::Update { key, expected, value } };
    let committed = match call.server.commit(around.queue(), write).await {
        Ok(committed) => committed,
        Err(error) => {
            around.failed().await;
            return match error {
                // A conflict with a required revision is reported by the retry. A patch requires
                // none, although its result carries one.
                CommitError::Conflict { .. } => Ok(None),
                error => Err(commit_status(call, error)),
            };
        }
    };
    if !gone {
        charge.end_for_count(&call.row);
    }
    call.server.after_commit(&call.row, &committed.value, gone, around.queue()).await;
    if !gone {
        call.server.inner.quotas.released(around.queue(), &call.row, old, Some(&committed.value)).await;
    }
    Ok(Some(Stored::new(&view, committed)))
}

/// True if a deletion has nothing left to wait for, such as finalizers.
pub(crate) fn is_finished_deletion(object: &Value) -> bool {
    meta::deletion_timestamp(object).is_some()
        && meta::finalizers(object).is_empty()
        && object["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
        && (meta::kind(object) != "Namespace" || object["spec"]["finalizers"].as_array().is_none_or(Vec::is_empty))
}

/// `old` with the defaults that were introduced after it was stored, for comparison with `new`,
/// which gets them too: a new default is not a change by the client. `None` for custom resources,
/// and if the specification did not change.
fn complete_old(call: &Call, new: &mut Value, old: &Value) -> Option<Arc<Value>> {
    // Without a difference in the specification `old` lacks no default, so only changes to the
    // specification pay for defaulting.
    if call.custom.is_some() || !spec_changed(call, new, old) {
        return None;
    }
    let own = call.strategy();
    let mut completed = old.clone();
    own.default(&mut completed);
    // A `new` that the server derived from `old` lacks the same defaults.
    own.default(new);
    Some(Arc::new(completed))
}

/// Restores the fields that this write may not change, and maintains the generation. `old` has the
/// same defaults as `new`.
fn prepare(call: &Call, target: Target, new: &mut Value, old: &Value) {
    meta::dedup_owner_references(new);
    drop_empty_metadata(new);
    let is_custom = call.custom.is_some();
    let own = call.strategy();
    let mut kept: Vec<&str> =
        vec!["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink"];
    if target == Target::Status && is_custom {
        let version = new["metadata"]["resourceVersion"].clone();
        berth_kinds::crd::update::prepare_status(new, old);
        meta::metadata_mut(new).insert("resourceVersion".to_owned(), version);
        kept.clear();
    }
    let metadata = meta::metadata_mut(new);
    for field in kept {
        put(metadata, field, old["metadata"].get(field).cloned());
    }
    match target {
        Target::Main if is_custom => berth_kinds::crd::update::prepare(new, old, call.has_status_subresource()),
        Target::Main if call.has_status_subresource() && new.get("status") != old.get("status") => {
            put(meta::map_mut(new), "status", old.get("status").cloned());
        }
        Target::Status if !is_custom => {
            let fields: Vec<String> = new.as_object().map(|map| map.keys().cloned().collect()).unwrap_or_default();
            let of_old = old.as_object().into_iter().flat_map(|map| map.keys().cloned());
            let map = meta::map_mut(new);
            for field in fields.into_iter().chain(of_old) {
                if !matches!(field.as_str(), "status" | "metadata" | "apiVersion" | "kind")
                    && map.get(&field) != old.get(&field)
                {
                    put(map, &field, old.get(&field).cloned());
                }
            }
            put(meta::metadata_mut(new), "ownerReferences", old["metadata"].get("ownerReferences").cloned());
        }
        Target::Approval => strategy::signing_request::keep(new, old, call.server.now()),
        Target::Resize => strategy::pod_resize::keep(new, old),
        Target::Ephemeral => strategy::pod_ephemeral::keep(new, old),
        _ => {}
    }
    if target == Target::Main {
        let registry = call.server.registry();
        let tokens = call.server.tokens();
        let tokens = tokens.as_deref().map(|tokens| tokens as &dyn SecretTokens);
        let (objects, now) = (&call.server.inner.objects, call.server.now());
        let context = strategy::Context { objects, registry: &registry, now, tokens, user: &call.user };
        own.prepare_update(new, old, &context);
    }
    if target == Target::Status {
        own.prepare_status_update(new, old, call.server.now());
    }
    own.default(new);
    // A field that the server sets itself (a pod's node) is not a change to the desired state.
    let is_wish = !matches!(target, Target::Status | Target::Whole);
    if !is_custom && is_wish && own.has_generation() && spec_changed(call, new, old) {
        meta::set_generation(new, meta::generation(old) + 1);
    }
}

/// True if the specification changed: everything except metadata, and except status if it has a
/// subresource.
fn spec_changed(call: &Call, new: &Value, old: &Value) -> bool {
    let counts = |key: &str| !(key == "metadata" || key == "status" && call.has_status_subresource());
    let (Some(new), Some(old)) = (new.as_object(), old.as_object()) else { return false };
    let differs = |(key, value): (&String, &Value)| counts(key) && old.get(key) != Some(value);
    new.iter().any(differs) || old.keys().any(|key| counts(key) && !new.contains_key(key))
}

fn put(map: &mut serde_json::Map<String, Value>, field: &str, value: Option<Value>) {
    match value {
        Some(value) => {
            map.insert(field.to_owned(), value);
        }
        None => {
            map.remove(field);
        }
    }
}
