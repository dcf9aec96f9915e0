//! Deletes one object or a selection: at once, or in steps (finalizers, grace period, dependents
//! first).

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::meta::{self, GroupKind};
use berth_apimachinery::status::Status;
use berth_apimachinery::{decode, validation};
use berth_store::{CommitError, Record, Write};
use futures::stream::{self, StreamExt};
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::call::Call;
use super::create::commit_status;
use super::list::{self, Selection, read};
use super::negotiate;
use super::update::is_finished_deletion;
use crate::admission::Operation;
use crate::{Body, strategy};

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";
const ATTEMPTS: usize = 16;
/// Number of objects of a collection that are deleted concurrently. They share commits, so that a
/// collection does not cost a sync of the disk for each object. With more of them, watches fall
/// behind, which delays the events of other users' objects.
const COLLECTION_AT_ONCE: usize = 4;

/// Options of a deletion: the body and query of a DELETE.
#[derive(Clone, Debug, Default)]
pub(super) struct DeleteOptions {
    grace_period_seconds: Option<i64>,
    propagation: Option<String>,
    orphan: Option<bool>,
    uid: Option<String>,
    resource_version: Option<String>,
    /// Admission already reviewed the request that causes this deletion.
    is_admitted: bool,
}

impl DeleteOptions {
    /// These options, for a deletion that admission does not review again.
    pub(super) fn admitted(self) -> DeleteOptions {
        DeleteOptions { is_admitted: true, ..self }
    }

    /// Whether the client gave a resource version as a precondition.
    pub(super) fn has_revision(&self) -> bool {
        self.resource_version.is_some()
    }

    /// These options with a resource version as a precondition.
    pub(super) fn at_revision(&self, revision: u64) -> DeleteOptions {
        DeleteOptions { resource_version: Some(revision.to_string()), ..self.clone() }
    }

    pub(super) fn read(call: &mut Call) -> Result<DeleteOptions, Status> {
        if call.body.is_empty() {
            let options = DeleteOptions {
                grace_period_seconds: call.options.grace_period_seconds,
                propagation: call.options.propagation_policy.clone(),
                orphan: call.options.orphan_dependents,
                ..DeleteOptions::default()
            };
            let given = json!({"propagationPolicy": options.propagation, "orphanDependents": options.orphan});
            return check_options(&given).map(|()| options);
        }
        negotiate::content_type(&call.content_type)?;
        let body = decode::json_or_yaml(&call.body)
            .map_err(|error| Status::bad_request(format!("error decoding DeleteOptions: {error}")))?
            .value;
        check_types(&body)?;
        check_options(&body)?;
        // A body replaces all options of the query, including `dryRun`.
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let options = DeleteOptions {
            grace_period_seconds: body["gracePeriodSeconds"].as_i64(),
            propagation: text(&body["propagationPolicy"]).filter(|policy| !policy.is_empty()),
            orphan: body["orphanDependents"].as_bool(),
            uid: text(&body["preconditions"]["uid"]),
            resource_version: text(&body["preconditions"]["resourceVersion"]),
            is_admitted: false,
        };
        // Webhooks get the same options.
        call.options.grace_period_seconds = options.grace_period_seconds;
        call.options.propagation_policy = options.propagation.clone();
        call.options.orphan_dependents = options.orphan;
        call.options.preconditions = body.get("preconditions").filter(|it| it.is_object()).cloned();
        call.options.dry_run = body["dryRun"].as_array().is_some_and(|list| list.iter().any(|item| item == "All"));
        Ok(options)
    }

    /// Returns a conflict if the object, or its resource version, is not the expected one.
    pub(super) fn check_preconditions(&self, call: &Call, object: &Value) -> Result<(), Status> {
        let conflict = |what: &str, wanted: &str, found: &str| {
            let why = format!("Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}");
            Err(Status::conflict(&call.group_resource(), meta::name(object), &why))
        };
        match (&self.uid, &self.resource_version) {
            (Some(uid), _) if uid != meta::uid(object) => conflict("UID", uid, meta::uid(object)),
            (_, Some(version)) if version != meta::resource_version(object) => {
                conflict("ResourceVersion", version, meta::resource_version(object))
            }
            _ => Ok(()),
        }
    }
}

/// Rejects a body with a field of another type.
fn check_types(body: &Value) -> Result<(), Status> {
    type Is = fn(&Value) -> bool;
    let fields: [(&str, Is, &str); 10] = [
        ("", Value::is_object, "an object"),
        ("/apiVersion", Value::is_string, "a string"),
        ("/kind", Value::is_string, "a string"),
        ("/gracePeriodSeconds", Value::is_i64, "an integer"),
        ("/propagationPolicy", Value::is_string, "a string"),
        ("/orphanDependents", Value::is_boolean, "a boolean"),
        ("/dryRun", |list| list.as_array().is_some_and(|list| list.iter().all(Value::is_string)), "a list of strings"),
        ("/preconditions", Value::is_object, "an object"),
        ("/preconditions/uid", Value::is_string, "a string"),
        ("/preconditions/resourceVersion", Value::is_string, "a string"),
    ];
    // The options may have any group, but no other kind.
    let kind = body["kind"].as_str().unwrap_or_default();
    if !matches!(kind, "" | "DeleteOptions") {
        return Err(Status::bad_request(format!(
            "the kind in the data ({kind}) does not match the expected kind (DeleteOptions)"
        )));
    }
    let given = |path: &str| body.pointer(path).filter(|value| path.is_empty() || !value.is_null());
    let wrong = fields.iter().find(|(path, is, _)| given(path).is_some_and(|value| !is(value)));
    let Some((path, _, what)) = wrong else { return Ok(()) };
    let (path, value) = (path.trim_start_matches('/').replace('/', "."), given(path).cloned().unwrap_or_default());
    let error = Error::type_invalid(&Path::new(&path), value, format!("must be {what}"));
    Err(Status::bad_request(format!("DeleteOptions in version \"v1\" cannot be handled as a DeleteOptions: {error}")))
}

fn check_options(options: &Value) -> Result<(), Status> {
    let errors = validation::validate_delete_options(options);
    if errors.is_empty() {
        return Ok(());
    }
    Err(Status::invalid(&GroupKind::new("meta.k8s.io", "DeleteOptions"), "", &errors))
}

/// DELETE of one object.
pub(crate) async fn delete(call: &mut Call) -> Result<Response<Body>, Status> {
    let options = DeleteOptions::read(call)?;
    delete_with(call, &options).await
}

/// As [`delete`], with options that have been decoded.
pub(super) async fn delete_with(call: &mut Call, options: &DeleteOptions) -> Result<Response<Body>, Status> {
    let name = call.info.name.clone();
    let (outcome, warnings) = delete_one(call, &name, options).await?;
    call.warnings.extend(warnings);
    respond(call, &name, outcome)
}

fn respond(call: &Call, name: &str, outcome: Outcome) -> Result<Response<Body>, Status> {
    match outcome {
        // An object that still exists is returned, so that clients see its deletionTimestamp.
        Outcome::Going(object) => call.object_response(StatusCode::OK, &object),
        Outcome::Gone(object) if strategy::returns_deleted_object(&call.row) => {
            call.object_response(StatusCode::OK, &object)
        }
        Outcome::Gone(object) => {
            let status = Status::deleted(&call.group_resource(), name, meta::uid(&object));
            call.value_response(StatusCode::OK, &status.to_value())
        }
    }
}

enum Outcome {
    /// Marked for deletion, but not removed yet.
    Going(Arc<Value>),
    /// Removed; its last state.
    Gone(Arc<Value>),
}

/// Deletes an object. Returns the outcome and the warnings of admission.
async fn delete_one(call: &Call, name: &str, options: &DeleteOptions) -> Result<(Outcome, Vec<String>), Status> {
    for _ in 0..ATTEMPTS {
        let key = call.key_of(name);
        let not_found = Status::not_found(&call.group_resource(), name);
        let record = call.server.store().get(&key).ok_or(not_found)?;
        let old = call.view().show(&record)?;
        options.check_preconditions(call, &old)?;
        let mut request = call.admission(Operation::Delete, name, None, Some(old.clone()));
        if !options.is_admitted {
            call.server.inner.admission.mutate(&mut request).await?;
            call.server.inner.admission.validate(&mut request).await?;
        }
        let warnings = std::mem::take(&mut request.warnings);
        drop(request);
        if let Some(outcome) = try_delete(call, &record, &old, options).await? {
            return Ok((outcome, warnings));
        }
    }
    Err(Status::modified(&call.group_resource(), name))
}

async fn try_delete(
    call: &Call,
    record: &Arc<Record>,
    old: &Arc<Value>,
    options: &DeleteOptions,
) -> Result<Option<Outcome>, Status> {
    let strategy = call.strategy();
    let mut object = old.as_ref().clone();
    let grace = strategy.grace_period(&object, options.grace_period_seconds);
    set_dependents_finalizers(&mut object, options, strategy.orphans_dependents());
    strategy.prepare_delete(&mut object);
    let pending = strategy.is_deletion_pending(&object);
    let already = meta::deletion_timestamp(&object).is_some();
    let metadata = meta::metadata_mut(&mut object);
    if already {
        // A second deletion can only shorten the grace period.
        let current = metadata.get("deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
        if grace < current {
            let deadline = call.server.now().saturating_add(jiff::SignedDuration::from_secs(grace));
            let deadline = deadline.unwrap_or_else(|_| call.server.now());
            metadata.insert("deletionTimestamp".to_owned(), rfc3339(deadline));
            metadata.insert("deletionGracePeriodSeconds".to_owned(), grace.into());
        }
    } else if grace > 0
        || pending
        || strategy.is_graceful()
        || metadata.get("finalizers").and_then(Value::as_array).is_some_and(|f| !f.is_empty())
    {
        let now = call.server.now();
        let deadline = now.saturating_add(jiff::SignedDuration::from_secs(grace)).unwrap_or(now);
        metadata.insert("deletionTimestamp".to_owned(), rfc3339(deadline));
        if !pending {
            metadata.insert("deletionGracePeriodSeconds".to_owned(), grace.into());
        }
        if let Some(generation) = metadata.get("generation").and_then(Value::as_i64) {
            metadata.insert("generation".to_owned(), (generation + 1).into());
        }
    }
    let going = meta::deletion_timestamp(&object).is_some() && !is_finished_deletion(&object);
    if call.options.dry_run {
        let object = Arc::new(object);
        return Ok(Some(if going { Outcome::Going(object) } else { Outcome::Gone(object) }));
    }
    if going && object == **old {
        return Ok(Some(Outcome::Going(old.clone())));
    }
    let view = call.view();
    let mut value = view.to_storage(object)?;
    let mut charge = call.server.inner.quotas.nothing(call.namespace()).await;
    let mut around = call.server.inner.hooks.begin(&call.row, old);
    around.before_commit(&mut value, Some(old), !going).await?;
    let (key, expected) = (record.key.to_string(), record.revision);
    let write =
        if going { Write::Update { key, expected, value } } else { Write::Delete { key, expected, last: Some(value) } };
    match call.server.commit(around.queue(), write).await {
        Ok(committed) => {
            if going {
                charge.end_for_count(&call.row);
            }
            call.server.after_commit(&call.row, &committed.value, !going, around.queue()).await;
            let shown = view.convert_if_needed(&committed.value).map_or(committed.value, Arc::new);
            Ok(Some(if going { Outcome::Going(shown) } else { Outcome::Gone(shown) }))
        }
        Err(CommitError::Conflict { .. }) => Ok(None),
        Err(error) => Err(commit_status(call, error)),
    }
}

/// Sets the finalizers that instruct the garbage collector what to do with dependents.
fn set_dependents_finalizers(object: &mut Value, options: &DeleteOptions, orphans: bool) {
    let (foreground, orphan) = match (options.propagation.as_deref(), options.orphan) {
        (Some("Foreground"), _) => (Some(true), Some(false)),
        (Some("Orphan"), _) => (Some(false), Some(true)),
        (Some(_), _) => (Some(false), Some(false)),
        (None, Some(orphan)) => (Some(false), Some(orphan)),
        // Without an option, existing finalizers stay and override the kind's default.
        (None, None) => {
            let is_said = meta::finalizers(object).iter().any(|finalizer| [FOREGROUND, ORPHAN].contains(finalizer));
            (None, (orphans && !is_said).then_some(true))
        }
    };
    let mut finalizers: Vec<String> = meta::finalizers(object).into_iter().map(str::to_owned).collect();
    let before = finalizers.clone();
    for (name, wanted) in [(FOREGROUND, foreground), (ORPHAN, orphan)] {
        let has = finalizers.iter().any(|finalizer| finalizer == name);
        match wanted {
            Some(true) if !has => finalizers.push(name.to_owned()),
            Some(false) => finalizers.retain(|finalizer| finalizer != name),
            _ => {}
        }
    }
    if finalizers != before {
        let metadata = meta::metadata_mut(object);
        if finalizers.is_empty() {
            metadata.remove("finalizers");
        } else {
            metadata.insert("finalizers".to_owned(), json!(finalizers));
        }
    }
}

fn rfc3339(time: jiff::Timestamp) -> Value {
    Value::String(time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

/// DELETE of all objects that a selector matches, started in the order of the list. Returns the
/// objects in their state before.
pub(crate) async fn delete_collection(call: &mut Call) -> Result<Response<Body>, Status> {
    let options = DeleteOptions::read(call)?;
    let prefix = call.prefix();
    let selection = Selection::new(call)?;
    let page = read(call, &prefix, &selection)?;
    let names = page.records.iter().filter_map(|record| record.key.rsplit('/').next().map(str::to_owned)).collect();
    // Before any deletion, so that a request that cannot be responded to deletes nothing.
    let metadata = page.metadata(&prefix, &selection);
    let answer = list::respond(call, page.records, metadata)?;
    let (warnings, failure) = delete_each(call, names, &options).await;
    call.warnings.extend(warnings);
    match failure {
        Some(status) => Err(status),
        None => Ok(answer),
    }
}

/// Deletes the objects with these names, until a deletion fails. Returns the warnings of admission
/// and the error.
async fn delete_each(call: &Call, names: Vec<String>, options: &DeleteOptions) -> (Vec<String>, Option<Status>) {
    // A deletion that is in progress when another one fails, or when the client disconnects, is
    // completed: it may have been stored already.
    let failed = AtomicBool::new(false);
    let goes_on = |_: &String| {
        let goes_on = !call.client.is_known() && !failed.load(Ordering::Relaxed);
        std::future::ready(goes_on)
    };
    let delete = |name: String| async move { delete_one(call, &name, options).await };
    let mut deletions = pin!(stream::iter(names).take_while(goes_on).map(delete).buffer_unordered(COLLECTION_AT_ONCE));
    let (mut warnings, mut failure) = (Vec::new(), None);
    while let Some(deleted) = deletions.next().await {
        match deleted {
            Ok((_, of_one)) => warnings.extend(of_one),
            // Another request deleted it first.
            Err(status) if status.reason == "NotFound" => {}
            Err(status) => {
                failed.store(true, Ordering::Relaxed);
                failure.get_or_insert(status);
            }
        }
    }
    (warnings, failure)
}
