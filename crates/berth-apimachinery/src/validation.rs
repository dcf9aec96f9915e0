//! Validation common to all objects and requests: metadata, labels, owner references, conditions,
//! and the options of list, patch and delete requests.
//!
//! Schemas validate the fields of a kind. The caller passes the name rule of a kind.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::field::{Error, Path};
use crate::meta::{self, GroupVersion};
use crate::names;

/// Maximum size of all annotations of an object, keys included, in bytes.
pub const ANNOTATIONS_BYTES_MAX: usize = 256 * 1024;
/// Maximum length of a field manager's name, in bytes.
pub const FIELD_MANAGER_BYTES_MAX: usize = 128;
const SUBRESOURCE_BYTES_MAX: usize = 256;

const IMMUTABLE: &str = "field is immutable";

/// Validates a complete name, or the prefix of one. Returns error messages.
pub type NameCheck = fn(&str) -> Vec<String>;

/// Checks a label key.
pub fn validate_label_key(key: &str, path: &Path<'_>) -> Vec<Error> {
    names::is_qualified_name(key).into_iter().map(|message| Error::invalid(path, key, message)).collect()
}

/// Checks a map of labels.
pub fn validate_labels(labels: &Value, path: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    for (key, value) in labels.as_object().into_iter().flatten() {
        errors.extend(validate_label_key(key, path));
        let value = value.as_str().unwrap_or_default();
        errors.extend(names::is_label_value(value).into_iter().map(|message| Error::invalid(path, value, message)));
    }
    errors
}

/// Checks a map of annotations: its keys and total size.
pub fn validate_annotations(annotations: &Value, path: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    let mut bytes = 0;
    for (key, value) in annotations.as_object().into_iter().flatten() {
        // The case of an annotation's key does not matter, so the key is checked in lower case.
        let lower = key.to_lowercase();
        errors.extend(
            names::is_qualified_name(&lower).into_iter().map(|message| Error::invalid(path, key.as_str(), message)),
        );
        bytes += key.len() + value.as_str().map_or(0, str::len);
    }
    if bytes > ANNOTATIONS_BYTES_MAX {
        errors.push(Error::too_long(path, ANNOTATIONS_BYTES_MAX as i64));
    }
    errors
}

/// Checks one owner reference list.
pub fn validate_owner_references(references: &Value, path: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    let mut controller: Option<String> = None;
    for reference in references.as_array().into_iter().flatten() {
        // As upstream, errors have the path of the list, not of its items.
        let text = |field: &str| reference.get(field).and_then(Value::as_str).unwrap_or_default();
        match GroupVersion::parse(text("apiVersion")) {
            Err(_) => {
                errors.push(Error::invalid(&path.child("apiVersion"), text("apiVersion"), "version must not be empty"))
            }
            Ok(version) => {
                if version.version.is_empty() {
                    errors.push(Error::invalid(
                        &path.child("apiVersion"),
                        text("apiVersion"),
                        "version must not be empty",
                    ));
                }
                // An Event expires; objects that it owns would be deleted with it.
                if version.group.is_empty() && version.version == "v1" && text("kind") == "Event" {
                    let detail = format!("{} is disallowed from being an owner", version.with_kind("Event"));
                    errors.push(Error::invalid(path, reference.clone(), detail));
                }
            }
        }
        for field in ["kind", "name", "uid"] {
            if text(field).is_empty() {
                errors.push(Error::invalid(&path.child(field), text(field), "must not be empty"));
            }
        }
        if reference.get("controller").and_then(Value::as_bool).unwrap_or_default() {
            let this = format!("{}/{}", text("kind"), text("name"));
            match &controller {
                Some(first) => {
                    let detail = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"
                    );
                    errors.push(Error::invalid(path, references.clone(), detail));
                }
                None => controller = Some(this),
            }
        }
    }
    errors
}

/// Checks finalizers: they are qualified names and do not include both contradicting deletion
/// policies.
pub fn validate_finalizers(finalizers: &Value, path: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    let (mut orphan, mut foreground) = (false, false);
    for (i, finalizer) in finalizers.as_array().into_iter().flatten().enumerate() {
        let finalizer = finalizer.as_str().unwrap_or_default();
        for message in names::is_qualified_name(finalizer) {
            errors.push(Error::invalid(&path.index(i), finalizer, message));
        }
        orphan |= finalizer == "orphan";
        foreground |= finalizer == "foregroundDeletion";
    }
    if orphan && foreground {
        let detail = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.push(Error::invalid(path, finalizers.clone(), detail));
    }
    errors
}

/// Checks `metadata` of an object to be stored. `name_check` is the name rule of the kind.
pub fn validate_object_meta(metadata: &Value, namespaced: bool, name_check: NameCheck, path: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    let text = |field: &str| metadata.get(field).and_then(Value::as_str).unwrap_or_default();
    let generate_name = text("generateName");
    if !generate_name.is_empty() {
        // The generated suffix is alphanumeric, so a prefix may end in a dash.
        let prefix = generate_name.strip_suffix('-').map_or(generate_name.to_owned(), |stem| format!("{stem}a"));
        for message in name_check(&prefix) {
            errors.push(Error::invalid(&path.child("generateName"), generate_name, message));
        }
    }
    let name = text("name");
    if name.is_empty() {
        errors.push(Error::required(&path.child("name"), "name or generateName is required"));
    } else {
        for message in name_check(name) {
            errors.push(Error::invalid(&path.child("name"), name, message));
        }
    }
    let namespace = text("namespace");
    if namespaced {
        if namespace.is_empty() {
            errors.push(Error::required(&path.child("namespace"), ""));
        } else {
            for message in names::is_dns1123_label(namespace) {
                errors.push(Error::invalid(&path.child("namespace"), namespace, message));
            }
        }
    } else if !namespace.is_empty() {
        errors.push(Error::forbidden(&path.child("namespace"), "not allowed on this type"));
    }
    errors.extend(validate_changeable_meta(metadata, path));
    errors
}

/// Checks finalizers of built-in kinds for which kube-apiserver requires a standard finalizer or
/// one with a domain.
pub fn validate_finalizer_domains(finalizers: &Value, path: &Path<'_>) -> Vec<Error> {
    let list = finalizers.as_array().into_iter().flatten().filter_map(Value::as_str).enumerate();
    let unknown = list.filter(|(_, name)| {
        let is_own = matches!(*name, "kubernetes" | "orphan" | "foregroundDeletion");
        !is_own && !name.contains('/') && names::is_qualified_name(name).is_empty()
    });
    let detail = "name is neither a standard finalizer name nor is it fully qualified";
    unknown.map(|(i, name)| Error::invalid(&path.index(i), name, detail)).collect()
}

/// Checks the metadata fields that clients may change, on create and update alike.
fn validate_changeable_meta(metadata: &Value, path: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    let part = |field: &str| metadata.get(field).unwrap_or(&Value::Null);
    if let Some(generation) = part("generation").as_i64().filter(|generation| *generation < 0) {
        errors.push(Error::invalid(&path.child("generation"), generation, "must be greater than or equal to 0"));
    }
    errors.extend(validate_labels(part("labels"), &path.child("labels")));
    errors.extend(validate_annotations(part("annotations"), &path.child("annotations")));
    errors.extend(validate_owner_references(part("ownerReferences"), &path.child("ownerReferences")));
    errors.extend(validate_finalizers(part("finalizers"), &path.child("finalizers")));
    errors.extend(validate_managed_fields(part("managedFields"), &path.child("managedFields")));
    errors
}

/// Checks that an update of `metadata` from `old` to `new` changes no immutable field, and that the
/// other fields are valid.
pub fn validate_object_meta_update(new: &Value, old: &Value, path: &Path<'_>) -> Vec<Error> {
    let mut errors = validate_object_meta_kept(new, old, path);
    errors.extend(validate_changeable_meta(new, path));
    errors
}

/// Like [`validate_object_meta_update`], for metadata whose labels, annotations, owners and
/// finalizers are known to be valid.
pub fn validate_object_meta_kept(new: &Value, old: &Value, path: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    let part = |meta: &Value, field: &str| meta.get(field).cloned().unwrap_or(Value::Null);
    let immutable = |field: &str, errors: &mut Vec<Error>, empty: Value| {
        let given = |meta: &'_ Value| meta.get(field).filter(|value| !value.is_null() && **value != empty).cloned();
        if new.get(field) != old.get(field) && given(new) != given(old) {
            errors.push(Error::invalid(&path.child(field), given(new).unwrap_or(empty), IMMUTABLE));
        }
    };
    let finalizers = |meta: &Value| -> Vec<String> {
        let list = meta.get("finalizers").and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    if old.get("deletionTimestamp").is_some_and(|time| !time.is_null()) {
        let before = finalizers(old);
        let added: Vec<String> = finalizers(new).into_iter().filter(|f| !before.contains(f)).collect();
        if !added.is_empty() {
            let quoted: Vec<String> = added.iter().map(|f| crate::field::quote(f)).collect();
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                quoted.join(", ")
            );
            errors.push(Error::forbidden(&path.child("finalizers"), detail));
        }
    }
    let resource_version = part(new, "resourceVersion");
    if resource_version.as_str().unwrap_or_default().is_empty() {
        let detail = "must be specified for an update";
        errors.push(Error::invalid(
            &path.child("resourceVersion"),
            resource_version.as_str().unwrap_or_default(),
            detail,
        ));
    }
    let generation = |meta: &Value| meta.get("generation").and_then(Value::as_i64).unwrap_or_default();
    if generation(new) < generation(old) {
        errors.push(Error::invalid(&path.child("generation"), generation(new), "must not be decremented"));
    }
    immutable("name", &mut errors, Value::from(""));
    immutable("namespace", &mut errors, Value::from(""));
    immutable("uid", &mut errors, Value::from(""));
    immutable("creationTimestamp", &mut errors, Value::Null);
    immutable("deletionTimestamp", &mut errors, Value::Null);
    immutable("deletionGracePeriodSeconds", &mut errors, Value::Null);
    errors
}

/// Checks `managedFields` sent by a client.
pub fn validate_managed_fields(entries: &Value, path: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    for (i, entry) in entries.as_array().into_iter().flatten().enumerate() {
        let at = path.index(i);
        let text = |field: &str| entry.get(field).and_then(Value::as_str).unwrap_or_default();
        if !matches!(text("operation"), "Apply" | "Update") {
            errors.push(Error::invalid(&at.child("operation"), text("operation"), "must be `Apply` or `Update`"));
        }
        if !matches!(text("fieldsType"), "" | "FieldsV1") {
            errors.push(Error::invalid(&at.child("fieldsType"), text("fieldsType"), "must be `FieldsV1`"));
        }
        errors.extend(validate_field_manager(text("manager"), &at.child("manager")));
        if text("subresource").len() > SUBRESOURCE_BYTES_MAX {
            errors.push(Error::too_long(&at.child("subresource"), SUBRESOURCE_BYTES_MAX as i64));
        }
    }
    errors
}

/// Checks the name of a field manager: its length and characters.
pub fn validate_field_manager(manager: &str, path: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    if manager.len() > FIELD_MANAGER_BYTES_MAX {
        errors.push(Error::too_long(path, FIELD_MANAGER_BYTES_MAX as i64));
    }
    for (i, c) in manager.char_indices() {
        if c.is_control() || (c.is_whitespace() && c != ' ') {
            let detail = format!("invalid character U+{:04X} (at position {i})", c as u32);
            errors.push(Error::invalid(path, manager, detail));
        }
    }
    errors
}

/// Checks the `dryRun` values of a request.
pub fn validate_dry_run(values: &[String], path: &Path<'_>) -> Vec<Error> {
    if values.iter().all(|value| value == "All") {
        return Vec::new();
    }
    vec![Error::not_supported(path, Value::from(values.to_vec()), &["All"])]
}

/// Checks the options of a patch request. `apply` is true for a server-side apply; `force` is its
/// option.
pub fn validate_patch_options(apply: bool, force: Option<bool>, field_manager: &str, dry_run: &[String]) -> Vec<Error> {
    let mut errors = Vec::new();
    if !apply {
        if force.is_some() {
            errors.push(Error::forbidden(&Path::new("force"), "may not be specified for non-apply patch"));
        }
    } else if field_manager.is_empty() {
        // An apply needs an explicit field manager, because the manager will own the fields.
        errors.push(Error::required(&Path::new("fieldManager"), "is required for apply patch"));
    }
    errors.extend(validate_field_manager(field_manager, &Path::new("fieldManager")));
    errors.extend(validate_dry_run(dry_run, &Path::new("dryRun")));
    errors
}

/// Checks a DeleteOptions object.
pub fn validate_delete_options(options: &Value) -> Vec<Error> {
    let mut errors = Vec::new();
    let has = |field: &str| options.get(field).is_some_and(|value| !value.is_null());
    if has("orphanDependents") && has("propagationPolicy") {
        let value = options["propagationPolicy"].clone();
        errors.push(Error::invalid(
            &Path::new("propagationPolicy"),
            value,
            "orphanDependents and deletionPropagation cannot be both set",
        ));
    }
    if let Some(policy) = options.get("propagationPolicy").and_then(Value::as_str)
        && !matches!(policy, "Foreground" | "Background" | "Orphan")
    {
        let supported = ["Foreground", "Background", "Orphan", "nil"];
        errors.push(Error::not_supported(&Path::new("propagationPolicy"), policy, &supported));
    }
    let dry_run: Vec<String> = options
        .get("dryRun")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    errors.extend(validate_dry_run(&dry_run, &Path::new("dryRun")));
    let ignore = "ignoreStoreReadErrorWithClusterBreakingPotential";
    if options.get(ignore).and_then(Value::as_bool).unwrap_or_default() {
        let conflicting = [
            ("dryRun", !dry_run.is_empty()),
            ("propagationPolicy", has("propagationPolicy")),
            ("orphanDependents", has("orphanDependents")),
            ("gracePeriodSeconds", has("gracePeriodSeconds")),
            ("preconditions", has("preconditions")),
        ];
        for (field, _) in conflicting.into_iter().filter(|(_, set)| *set) {
            errors.push(Error::invalid(&Path::new(ignore), true, format!("cannot be set together with .{field}")));
        }
    }
    errors
}

/// The interdependent options of a list or watch request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// True if this is a watch.
    pub watch: bool,
    /// The requested revision; empty for the newest.
    pub resource_version: String,
    /// `Exact`, `NotOlderThan` or empty.
    pub resource_version_match: String,
    /// Continue token of the previous page.
    pub continue_token: String,
    /// True if a watch starts with the existing objects.
    pub send_initial_events: Option<bool>,
}

/// Checks the options of a list or watch. `watch_list` is true if this server can send initial
/// events.
pub fn validate_list_options(options: &ListOptions, watch_list: bool) -> Vec<Error> {
    let match_path = Path::new("resourceVersionMatch");
    let forbidden = |detail: &str| Error::forbidden(&match_path, detail);
    let mut errors = Vec::new();
    let version_match = options.resource_version_match.as_str();
    if options.watch {
        if !version_match.is_empty() && options.send_initial_events.is_none() {
            errors.push(forbidden("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"));
        }
        if options.send_initial_events.is_some() {
            if version_match != "NotOlderThan" {
                errors.push(forbidden("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"));
            }
            if !watch_list {
                let detail = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
                errors.push(Error::forbidden(&Path::new("sendInitialEvents"), detail));
            }
            if !matches!(version_match, "" | "NotOlderThan") {
                errors.push(Error::not_supported(&match_path, version_match, &["NotOlderThan"]));
            }
            if !options.continue_token.is_empty() {
                errors.push(forbidden("resourceVersionMatch is forbidden when continue is provided"));
            }
        }
        return errors;
    }
    if options.send_initial_events.is_some() {
        errors.push(Error::forbidden(&Path::new("sendInitialEvents"), "sendInitialEvents is forbidden for list"));
    }
    if !version_match.is_empty() {
        if options.resource_version.is_empty() {
            errors.push(forbidden("resourceVersionMatch is forbidden unless resourceVersion is provided"));
        }
        if !options.continue_token.is_empty() {
            errors.push(forbidden("resourceVersionMatch is forbidden when continue is provided"));
        }
        if !matches!(version_match, "Exact" | "NotOlderThan") {
            errors.push(Error::not_supported(&match_path, version_match, &["Exact", "NotOlderThan", ""]));
        }
        if version_match == "Exact" && options.resource_version == "0" {
            errors.push(forbidden("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""));
        }
    }
    errors
}

/// Checks a list of metav1 conditions.
pub fn validate_conditions(conditions: &Value, path: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    let mut seen: HashSet<&str> = HashSet::new();
    for (i, condition) in conditions.as_array().into_iter().flatten().enumerate() {
        let at = path.index(i);
        let text = |field: &str| condition.get(field).and_then(Value::as_str).unwrap_or_default();
        let kind = text("type");
        if !seen.insert(kind) {
            errors.push(Error::duplicate(&at.child("type"), kind));
        } else if kind.is_empty() {
            errors.push(Error::required(&at.child("type"), "must be set"));
        } else {
            errors.extend(validate_label_key(kind, &at.child("type")));
        }
        if !matches!(text("status"), "True" | "False" | "Unknown") {
            errors.push(Error::not_supported(&at.child("status"), text("status"), &["False", "True", "Unknown"]));
        }
        if let Some(generation) = condition.get("observedGeneration").and_then(Value::as_i64).filter(|g| *g < 0) {
            let detail = "must be greater than or equal to zero";
            errors.push(Error::invalid(&at.child("observedGeneration"), generation, detail));
        }
        if text("lastTransitionTime").is_empty() {
            errors.push(Error::required(&at.child("lastTransitionTime"), "must be set"));
        }
        let reason = text("reason");
        if reason.is_empty() {
            errors.push(Error::required(&at.child("reason"), "must be set"));
        } else if !is_condition_reason(reason) {
            errors.push(Error::invalid(&at.child("reason"), reason, CONDITION_REASON));
        } else if reason.len() > 1024 {
            errors.push(Error::too_long(&at.child("reason"), 1024));
        }
        if text("message").len() > 32 * 1024 {
            errors.push(Error::too_long(&at.child("message"), 32 * 1024));
        }
    }
    errors
}

const CONDITION_REASON: &str = "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')";

fn is_condition_reason(reason: &str) -> bool {
    let bytes = reason.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
    first.is_ascii_alphabetic()
        && (last.is_ascii_alphanumeric() || *last == b'_')
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b',' | b':'))
}

/// Removes the condition of a type from a list. Returns true if the list had one.
pub fn remove_condition(conditions: &mut Vec<Value>, condition_type: &str) -> bool {
    let before = conditions.len();
    conditions.retain(|condition| condition.get("type").and_then(Value::as_str) != Some(condition_type));
    conditions.len() != before
}

/// Checks an object's namespace against that of the request.
///
/// `requested` is the namespace of the request (empty for cluster-scoped resources). An object
/// without a namespace gets it. The namespace of a cluster-scoped object is removed.
pub fn match_namespace(object: &mut Value, requested: &str) -> Result<(), String> {
    let own = meta::namespace(object).to_owned();
    match (requested, own.as_str()) {
        (requested, own) if requested == own => Ok(()),
        ("", _) => {
            meta::metadata_mut(object).remove("namespace");
            Ok(())
        }
        (requested, "") => {
            meta::set(object, "namespace", requested);
            Ok(())
        }
        _ => Err("the namespace of the provided object does not match the namespace sent on the request".to_owned()),
    }
}

/// The total size of annotations, keys and values, in bytes.
pub fn annotations_bytes(annotations: &Map<String, Value>) -> usize {
    annotations.iter().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_object_needs_a_name_that_fits_its_kind() {
        let check =
            |meta: Value| validate_object_meta(&meta, true, names::is_dns1123_subdomain, &Path::new("metadata"));
        assert!(check(json!({"name": "a", "namespace": "b"})).is_empty());
        assert_eq!(
            check(json!({"namespace": "b"}))[0].to_string(),
            "metadata.name: Required value: name or generateName is required"
        );
        assert_eq!(check(json!({"name": "A", "namespace": "b"})).len(), 1);
        assert_eq!(check(json!({"name": "a"}))[0].to_string(), "metadata.namespace: Required value");
    }

    #[test]
    fn a_uid_never_changes() {
        let new = json!({"name": "a", "uid": "2", "resourceVersion": "1"});
        let old = json!({"name": "a", "uid": "1", "resourceVersion": "1"});
        let errors = validate_object_meta_update(&new, &old, &Path::new("metadata"));
        assert_eq!(errors[0].to_string(), "metadata.uid: Invalid value: \"2\": field is immutable");
    }
}
