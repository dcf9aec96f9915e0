//! Creates objects.

use std::sync::Arc;

use berth_apimachinery::status::Status;
use berth_apimachinery::{meta, packed, validation};
use berth_store::{CommitError, Write};
use http::{Response, StatusCode};
use serde_json::Value;

use super::call::Call;
use super::encode::Stored;
use crate::admission::{Operation, quota};
use crate::kind_hooks::Around;
use crate::state::unwritten;
use crate::strategy::SecretTokens;
use crate::{Body, strategy};

/// Number of names tried for one `generateName`, as upstream.
const GENERATE_ATTEMPTS: usize = 8;
/// Maximum length of `generateName` that is used; with five random characters, a name has at most
/// 63.
const GENERATED_BASE_MAX: usize = 58;

/// POST on a collection.
pub(crate) async fn create(call: &mut Call) -> Result<Response<Body>, Status> {
    let decoded = call.decode_body()?;
    let object = call.complete(decoded, false)?;
    let manager = call.manager_name();
    let stored = store_new(call, object, Tracking::Update(manager)).await?;
    call.stored_response(StatusCode::CREATED, &stored)
}

/// How the `managedFields` of the new object are set.
pub(crate) enum Tracking {
    /// As for a write by this manager.
    Update(String),
    /// They are set already (server-side apply).
    Done,
}

/// Replaces the packed `managedFields` of an object with `list`. A list that is not packed was set
/// by a webhook, and stays.
pub(crate) fn keep_owners(object: &mut Value, list: Option<Value>) {
    if packed::take(object).is_some() {
        packed::put_back(object, list);
    }
}

/// Runs admission and validation for a decoded and defaulted object, and stores it. Returns the
/// stored object in the request's version.
pub(crate) async fn store_new(call: &mut Call, object: Value, tracking: Tracking) -> Result<Stored, Status> {
    // Only a generated name needs a retry, and a copy of the object for it.
    let is_generated = meta::name(&object).is_empty();
    for _ in 1..if is_generated { GENERATE_ATTEMPTS } else { 1 } {
        match try_store_new(call, object.clone(), &tracking).await {
            Err(TryError::NameTaken(_)) => {}
            Err(TryError::Status(status)) => return Err(status),
            Ok(stored) => return Ok(stored),
        }
    }
    match try_store_new(call, object, &tracking).await {
        Err(TryError::NameTaken(name)) => Err(Status::generate_name_conflict(&call.group_resource(), &name, 1)),
        Err(TryError::Status(status)) => Err(status),
        Ok(stored) => Ok(stored),
    }
}

enum TryError {
    /// The generated name is taken.
    NameTaken(String),
    Status(Status),
}

impl From<Status> for TryError {
    fn from(status: Status) -> TryError {
        TryError::Status(status)
    }
}

async fn try_store_new(call: &mut Call, mut object: Value, tracking: &Tracking) -> Result<Stored, TryError> {
    if call.custom.as_ref().is_some_and(|custom| custom.terminating) {
        let mut status = Status::method_not_supported(&call.group_resource(), "create");
        status.message = "create not allowed while custom resource definition is terminating".to_owned();
        return Err(status.into());
    }
    validation::match_namespace(&mut object, call.namespace()).map_err(Status::bad_request)?;
    if !meta::resource_version(&object).is_empty() {
        return Err(Status::bad_request("resourceVersion should not be set on objects to be created").into());
    }
    let generated = meta::name(&object).is_empty() && !meta::generate_name(&object).is_empty();
    if generated {
        let base: String = meta::generate_name(&object).chars().take(GENERATED_BASE_MAX).collect();
        let name = format!("{base}{}", call.server.name_suffix());
        meta::set(&mut object, "name", &name);
    }
    let name = meta::name(&object).to_owned();

    // A duplicate is found before admission, so that plugins do not count it. The store has the
    // final check.
    if !name.is_empty()
        && let Some(existing) = call.server.store().get(&call.key_of(&name))
    {
        return Err(taken(call, generated, name, &existing.value()));
    }

    // The client owns the fields that it sent and their defaults, but not what admission and the
    // kind's preparation add, as upstream.
    meta::dedup_owner_references(&mut object);
    call.strategy().default(&mut object);
    let managed = call.track(&mut object, None, tracking);
    packed::put_back(&mut object, managed.clone());
    let mut request = call.admission(Operation::Create, &name, Some(object), None);
    call.server.inner.admission.mutate(&mut request).await?;
    let (object, warnings) = (request.object.take(), std::mem::take(&mut request.warnings));
    drop(request);
    call.warnings.extend(warnings);
    let mut object = object.ok_or_else(|| Status::internal("an admission plugin removed the object"))?;
    keep_owners(&mut object, managed);
    // Admission may have changed all metadata. The object must have the namespace of the request;
    // its name may have changed.
    validation::match_namespace(&mut object, call.namespace()).map_err(Status::bad_request)?;
    let generated = generated && meta::name(&object) == name;
    let name = meta::name(&object).to_owned();

    let mut around = call.server.inner.hooks.begin(&call.row, &object);
    prepare(call, &mut object);
    around.assign(&mut object, None)?;
    if call.has_status_subresource() && call.strategy().clears_status_on_create() {
        call.view().keep_stored(&mut object, "status", None)?;
    }
    let managed = packed::take(&mut object);
    call.check_create(&object)?;
    packed::put_back(&mut object, managed);
    call.warnings.extend(call.strategy().warnings(&object, None));
    let mut request = call.admission(Operation::Create, &name, Some(object), None);
    call.server.inner.admission.validate(&mut request).await?;
    let converted = match &request.object {
        Some(object) => call.converted(object)?,
        None => None,
    };
    let mut charge = call.server.inner.quotas.charge(&request).await?;
    let (mut object, warnings) = (request.object.take().unwrap_or_default(), std::mem::take(&mut request.warnings));
    drop(request);
    call.warnings.extend(warnings);
    packed::pack(&mut object);

    if call.options.dry_run {
        return Ok(Arc::new(object).into());
    }
    let charged = charge.is_charged.then(|| object.clone());
    let stored = commit_new(call, object, name, Making { generated, converted }, &mut around, &mut charge).await;
    if let (Err(_), Some(object)) = (&stored, charged) {
        call.server.inner.quotas.released(around.queue(), &call.row, &object, None).await;
    }
    stored
}

/// Data of a new object for its commit.
struct Making {
    /// True if the name was generated.
    generated: bool,
    /// The storage-version object, if a conversion webhook produced it.
    converted: Option<Value>,
}

impl Call {
    /// The storage-version object, if a conversion webhook produces it. The call may take long, so
    /// it is made before any lock is held.
    pub(crate) fn converted(&self, object: &Value) -> Result<Option<Value>, Status> {
        let view = self.view();
        if !view.calls_webhook() {
            return Ok(None);
        }
        let mut object = object.clone();
        packed::pack(&mut object);
        view.to_storage(object).map(Some)
    }
}

/// Stores a validated object.
async fn commit_new(
    call: &Call,
    mut object: Value,
    name: String,
    making: Making,
    around: &mut Around,
    charge: &mut quota::Charge,
) -> Result<Stored, TryError> {
    let Making { generated, converted } = making;
    around.before_commit(&mut object, None, false).await?;
    let view = call.view();
    let key = call.key_of(&name);
    let value = match converted {
        Some(converted) => converted,
        None => view.to_storage(object)?,
    };
    let committed = match call.server.commit(around.queue(), Write::Create { key, value }).await {
        Ok(committed) => committed,
        Err(CommitError::Exists { key, .. }) => {
            let existing = call.server.store().get(&key).map(|record| record.value()).unwrap_or_default();
            around.failed().await;
            return Err(taken(call, generated, name, &existing));
        }
        Err(error) => {
            around.failed().await;
            return Err(commit_status(call, error).into());
        }
    };
    charge.end_for_count(&call.row);
    call.server.after_commit(&call.row, &committed.value, false, around.queue()).await;
    Ok(Stored::new(&view, committed))
}

fn taken(call: &Call, generated: bool, name: String, existing: &Value) -> TryError {
    if generated {
        return TryError::NameTaken(name);
    }
    let mut status = Status::already_exists(&call.group_resource(), &name);
    if meta::deletion_timestamp(existing).is_some() {
        status.message = format!("object is being deleted: {}", status.message);
    }
    TryError::Status(status)
}

/// Sets the system fields, and prepares the object by the rules of its kind.
fn prepare(call: &Call, object: &mut Value) {
    let server = &call.server;
    meta::dedup_owner_references(object);
    let metadata = meta::metadata_mut(object);
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation"] {
        metadata.remove(field);
    }
    metadata.insert("uid".to_owned(), Value::String(server.new_uid()));
    metadata.insert("creationTimestamp".to_owned(), server.timestamp());
    let own = call.strategy();
    if call.has_status_subresource() && own.clears_status_on_create() {
        meta::map_mut(object).remove("status");
    }
    if own.has_generation() {
        meta::set_generation(object, 1);
    }
    let registry = server.registry();
    let tokens = server.tokens();
    let (objects, now) = (&server.inner.objects, server.now());
    let tokens = tokens.as_deref().map(|tokens| tokens as &dyn SecretTokens);
    let context = strategy::Context { objects, registry: &registry, now, tokens, user: &call.user };
    own.prepare_create(object, &context);
    own.default(object);
}

/// The status for an error of the store.
pub(crate) fn commit_status(call: &Call, error: CommitError) -> Status {
    match error {
        CommitError::NotFound { .. } => call.not_found(),
        CommitError::Exists { .. } => Status::already_exists(&call.group_resource(), &call.info.name),
        CommitError::Conflict { .. } => Status::modified(&call.group_resource(), &call.info.name),
        error => unwritten(error),
    }
}
