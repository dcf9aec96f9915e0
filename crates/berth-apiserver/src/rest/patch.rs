//! PATCH: JSON patch, merge patch, strategic merge patch and server-side apply, on objects and
//! their status.

use std::sync::Arc;

use berth_apimachinery::patch::{apply_json, apply_merge, apply_strategic};
use berth_apimachinery::status::Status;
use berth_apimachinery::{decode, meta, packed, validation};
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::call::Call;
use super::create::{Tracking, store_new};
use super::decode::{Complaints, take_unchanged};
use super::encode::Stored;
use super::update;
use crate::Body;

/// Maximum number of unknown members of a JSON patch to report.
const UNKNOWN_MAX: usize = 1000;

/// A patch, decoded from the body.
#[derive(Clone, Debug)]
pub(crate) enum Patch {
    Json(Value),
    Merge(Value),
    Strategic(Value),
    /// An applied configuration, and the duplicate keys in its text.
    Apply(Value, Vec<String>),
}

/// PATCH on an object or its status.
pub(crate) async fn patch(call: &mut Call) -> Result<Response<Body>, Status> {
    let patch = read(call)?;
    let target = call.target();
    if let Patch::Apply(applied, lines) = &patch
        && call.server.store().get(&call.key()).is_none()
        && call.info.subresource.is_empty()
    {
        match create_by_apply(call, applied.clone(), lines.clone()).await {
            // Another client created the object first: apply to that object.
            Err(status) if status.reason == "AlreadyExists" => {}
            Err(status) => return Err(status),
            Ok(stored) => return call.stored_response(StatusCode::CREATED, &stored),
        }
    }
    let updated = update::update(call, target, |call, old| patched(call, &patch, old)).await?;
    call.stored_response(StatusCode::OK, &updated)
}

/// Reads the patch in the body by its media type, and checks its options. Duplicate keys in its
/// text are [recorded](Call::of_patch) in the call.
pub(crate) fn read(call: &mut Call) -> Result<Patch, Status> {
    let media = call.content_type.split(';').next().unwrap_or_default().trim();
    let apply = media == "application/apply-patch+yaml";
    let dry_run: Vec<String> = call.options.dry_run.then(|| "All".to_owned()).into_iter().collect();
    let errors = validation::validate_patch_options(apply, call.options.force, &call.options.field_manager, &dry_run);
    if !errors.is_empty() {
        let kind = berth_apimachinery::meta::GroupKind::new("meta.k8s.io", "PatchOptions");
        return Err(Status::invalid(&kind, "", &errors));
    }
    let document = || {
        let decoded = decode::json(&call.body);
        decoded.map_err(|error| Status::bad_request(format!("error decoding patch: {error}")))
    };
    let object = |value: Value| {
        if value.is_object() { Ok(value) } else { Err(Status::bad_request("the patch must be a JSON object")) }
    };
    match media {
        "application/json-patch+json" => {
            let decoded = document()?;
            call.of_patch = of_json_patch(decoded.duplicates, &decoded.value);
            Ok(Patch::Json(decoded.value))
        }
        "application/merge-patch+json" => {
            let decoded = document()?;
            call.of_patch = Complaints::of_repeated(decoded.duplicates, Vec::new(), "");
            object(decoded.value).map(Patch::Merge)
        }
        "application/strategic-merge-patch+json" if call.custom.is_none() => {
            let decoded = document()?;
            call.of_patch = Complaints::of_repeated(decoded.duplicates, Vec::new(), "");
            object(decoded.value).map(Patch::Strategic)
        }
        "application/apply-patch+yaml" => {
            let decoded = decode::json_or_yaml(&call.body)
                .map_err(|error| Status::bad_request(format!("error decoding YAML: {error}")))?;
            let lines = if decoded.duplicates.is_empty() { decoded.lines } else { lines_of(&call.body) };
            Ok(Patch::Apply(object(decoded.value)?, lines))
        }
        _ => {
            let mut understood = vec!["application/json-patch+json", "application/merge-patch+json"];
            if call.custom.is_none() {
                understood.push("application/strategic-merge-patch+json");
            }
            understood.push("application/apply-patch+yaml");
            Err(Status::unsupported_media_type(&understood))
        }
    }
}

/// Warnings about a JSON patch: duplicate members and unknown members of its operations.
fn of_json_patch(duplicates: Vec<String>, operations: &Value) -> Complaints {
    const KNOWN: [&str; 4] = ["op", "path", "from", "value"];
    let operations = operations.as_array().map(Vec::as_slice).unwrap_or_default();
    let unknown = operations.iter().enumerate().flat_map(|(index, operation)| {
        let members = operation.as_object().into_iter().flat_map(|members| members.keys());
        members.filter(|name| !KNOWN.contains(&name.as_str())).map(move |name| format!("[{index}].{name}"))
    });
    let unknown = unknown.take(UNKNOWN_MAX).collect();
    let mut complaints = Complaints::of_repeated(duplicates, Vec::new(), "json patch ");
    complaints.extend(Complaints::of_unknown(unknown, "json patch "));
    complaints
}

/// The duplicate keys of a JSON document, by line.
fn lines_of(body: &[u8]) -> Vec<String> {
    let decoded = std::str::from_utf8(body).ok().and_then(|text| decode::yaml_watched(text).ok());
    decoded.map(|decoded| decoded.lines).unwrap_or_default()
}

/// The result of applying `patch` to `old`, decoded and defaulted.
fn patched(call: &mut Call, patch: &Patch, old: &Arc<Value>) -> Result<(Value, Tracking), Status> {
    if let Patch::Apply(applied, lines) = patch {
        let applied = check_applied(call, applied.clone())?;
        let mut object = call.apply(Some(old), &applied)?;
        call.complain_of_applied(lines.clone())?;
        complete_applied(call, &mut object, Some(old))?;
        if differs_in_times_alone(&object, old) {
            object.clone_from(old);
        }
        return Ok((object, Tracking::Done));
    }
    let touches = patch.may_touch_managed_fields(&call.body);
    let mut object = if touches { merge(call, patch, &packed::expanded(old))? } else { merge(call, patch, old)? };
    let api_version = call.api_version();
    let kind = call.row.kind.clone();
    call.check_kind(&mut object, &api_version, &kind)?;
    // A patched `managedFields` is checked like everything else.
    let managed = if touches { None } else { packed::take(&mut object) };
    let mut object = call.complete_changed(object, old)?;
    packed::put_back(&mut object, managed);
    Ok((object, Tracking::Update(call.manager_name())))
}

impl Patch {
    /// True if this patch may read or write `metadata.managedFields`. Searches its text.
    fn may_touch_managed_fields(&self, text: &[u8]) -> bool {
        let of_all = |step: &Value| matches!(step.as_str(), Some("" | "/metadata"));
        // An escape may encode the name differently.
        memmem(text, b"managedFields")
            || text.contains(&b'\\')
            || matches!(self, Patch::Json(Value::Array(steps)) if steps.iter().any(|step| of_all(&step["path"]) || of_all(&step["from"])))
    }
}

fn memmem(text: &[u8], needle: &[u8]) -> bool {
    text.windows(needle.len()).any(|window| window == needle)
}

/// Applies a patch other than a server-side apply to a plain value.
pub(crate) fn merge(call: &Call, patch: &Patch, old: &Value) -> Result<Value, Status> {
    let mut object = match patch {
        Patch::Json(operations) => apply_json(old, operations)?,
        Patch::Merge(changes) => {
            let mut object = old.clone();
            apply_merge(&mut object, changes);
            object
        }
        Patch::Strategic(changes) => match call.row.schema(&call.version().name) {
            Some(schema) => apply_strategic(old, changes, &schema)?,
            None => {
                let mut object = old.clone();
                apply_merge(&mut object, changes);
                object
            }
        },
        Patch::Apply(..) => return Err(Status::bad_request("this subresource cannot be applied")),
    };
    if !object.is_object() {
        return Err(Status::unprocessable("the patched object is not a JSON object"));
    }
    // The object gets the name in the path; update() compares the two.
    if meta::name(&object).is_empty() {
        meta::set(&mut object, "name", &call.info.name);
    }
    Ok(object)
}

/// Checks the configuration of a server-side apply, and adds the fields that applying needs.
fn check_applied(call: &mut Call, mut applied: Value) -> Result<Value, Status> {
    let api_version = call.api_version();
    let kind = call.row.kind.clone();
    if meta::kind(&applied).is_empty() || meta::api_version(&applied).is_empty() {
        return Err(Status::bad_request("apply needs apiVersion and kind in the configuration"));
    }
    call.check_kind(&mut applied, &api_version, &kind)?;
    if !applied["metadata"]["managedFields"].is_null() {
        return Err(Status::bad_request("metadata.managedFields must be nil"));
    }
    if meta::name(&applied).is_empty() {
        meta::set(&mut applied, "name", &call.info.name);
    }
    if meta::name(&applied) != call.info.name {
        return Err(Status::bad_request(format!(
            "the name of the object ({}) does not match the name on the URL ({})",
            meta::name(&applied),
            call.info.name
        )));
    }
    validation::match_namespace(&mut applied, call.namespace()).map_err(Status::bad_request)?;
    // No warning for unknown fields here: no field manager can own them.
    call.check_applied_type(&applied)?;
    if let Some(schema) = call.row.schema(&call.version().name) {
        schema.prune(&mut applied, berth_apimachinery::schema::Root::Resource);
    }
    Ok(applied)
}

/// True if only the times in `managedFields` differ. Repeating an apply changes nothing, even if
/// the stored object and the configuration have different representations (an omitted zero, an
/// amount in canonical form).
fn differs_in_times_alone(new: &Value, old: &Value) -> bool {
    fn timeless(object: &Value) -> Value {
        let mut object = packed::expanded(object).into_owned();
        let owners = object.pointer_mut("/metadata/managedFields").and_then(Value::as_array_mut);
        for owner in owners.into_iter().flatten().filter_map(Value::as_object_mut) {
            owner.remove("time");
        }
        object
    }
    let rest = |object: &Value| object.as_object().map(|it| it.iter().filter(|(name, _)| *name != "metadata").count());
    let alike = |name: &str| new.get(name) == old.get(name);
    // Most applies change more than metadata, so compare the rest first and avoid parsing
    // `managedFields`.
    rest(new) == rest(old)
        && new.as_object().is_some_and(|it| it.keys().filter(|name| *name != "metadata").all(|name| alike(name)))
        && timeless(new) == timeless(old)
}

/// Normalises and defaults the result of an apply. Parts of `old` that the apply did not change are
/// normalised already.
fn complete_applied(call: &Call, object: &mut Value, old: Option<&Value>) -> Result<(), Status> {
    if let Some(schema) = call.row.schema(&call.version().name) {
        if call.custom.is_none() {
            // Unknown fields have been removed.
            let managed = packed::take(object);
            let kept = old.map_or_else(Vec::new, |old| take_unchanged(object, old));
            schema.read_typed(&call.row.kind, object).map_err(Status::bad_request)?;
            meta::map_mut(object).extend(kept);
            packed::put_back(object, managed);
        } else {
            schema.drop_nulls(object);
            schema.apply_defaults(object);
        }
    }
    call.strategy().default(object);
    Ok(())
}

/// Server-side apply of an object that does not exist.
async fn create_by_apply(call: &mut Call, applied: Value, lines: Vec<String>) -> Result<Stored, Status> {
    call.authorize_create()?;
    if !meta::uid(&applied).is_empty() {
        let why = format!(
            "uid mismatch: the provided object specified uid {}, and no existing object was found",
            meta::uid(&applied)
        );
        return Err(Status::conflict(&call.group_resource(), &call.info.name, &why));
    }
    let mut applied = check_applied(call, applied)?;
    meta::metadata_mut(&mut applied).remove("resourceVersion");
    let mut object = call.apply(None, &applied)?;
    call.complain_of_applied(lines)?;
    complete_applied(call, &mut object, None)?;
    store_new(call, object, Tracking::Done).await
}

/// A merge patch that sets one field at a path of names.
pub(crate) fn set_at(object: &mut Value, path: &[&str], value: Value) {
    let patch = path.iter().rev().fold(value, |inner, name| json!({ *name: inner }));
    apply_merge(object, &patch);
}
