//! Validation of an object that will be stored: metadata, schema, the kind's own rules, CEL.

use std::collections::HashSet;

use berth_apimachinery::field::{self, ErrorKind, Path};
use berth_apimachinery::schema::Root;
use berth_apimachinery::status::Status;
use berth_apimachinery::{meta, packed, validation};
use serde_json::Value;

use super::call::Call;
use crate::strategy::{ERRORS_MAX, pod_ephemeral, pod_resize, signing_request};

/// The part of an object that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Everything but status (if that has its own subresource).
    Main,
    /// Status only.
    Status,
    /// The approval of a certificate signing request.
    Approval,
    /// Resources of a pod's containers only.
    Resize,
    /// Containers added to a running pod.
    Ephemeral,
    /// The whole object, by the server itself (binding, finalizing).
    Whole,
}

/// Metadata that a client may change.
const CHANGEABLE: [&str; 4] = ["labels", "annotations", "ownerReferences", "finalizers"];

impl Call {
    /// Checks a new object.
    pub(crate) fn check_create(&self, object: &Value) -> Result<(), Status> {
        let path = Path::new("metadata");
        let name_check = self.strategy().name_check();
        let mut errors = validation::validate_object_meta(&object["metadata"], self.row.namespaced, name_check, &path);
        if self.wants_finalizer_domains() {
            let (finalizers, path) = (&object["metadata"]["finalizers"], path.child("finalizers"));
            errors.extend(validation::validate_finalizer_domains(finalizers, &path));
        }
        errors.extend(self.strategy().validate(object));
        self.check_schema(object, None, &mut errors);
        self.reject(object, errors)
    }

    /// Checks an object that replaces `old`. Adds warnings for errors that `old` has too and that
    /// are therefore allowed.
    pub(crate) fn check_update(&mut self, target: Target, object: &Value, old: &Value) -> Result<(), Status> {
        let path = Path::new("metadata");
        let (new_meta, old_meta) = (&object["metadata"], &old["metadata"]);
        // Unchanged metadata was checked when it was stored.
        let is_same = |field: &&str| new_meta.get(*field) == old_meta.get(*field);
        let mut errors = if new_meta.get("managedFields").is_none() && CHANGEABLE.iter().all(is_same) {
            validation::validate_object_meta_kept(new_meta, old_meta, &path)
        } else {
            validation::validate_object_meta_update(new_meta, old_meta, &path)
        };
        if self.wants_finalizer_domains() && !is_same(&"finalizers") {
            // Finalizers that were stored before this rule existed remain valid.
            let before: Vec<Value> = meta::finalizers(old).into_iter().map(Value::from).collect();
            let (finalizers, path) = (&new_meta["finalizers"], path.child("finalizers"));
            let mut unknown = validation::validate_finalizer_domains(finalizers, &path);
            unknown.retain(|error| error.bad_value.as_ref().is_none_or(|finalizer| !before.contains(finalizer)));
            errors.extend(unknown);
        }
        errors.extend(self.changed_for_worse(target, object, old));
        let forgiven = self.check_schema(object, Some(old), &mut errors);
        self.warnings.extend(forgiven);
        self.reject(object, errors)
    }

    /// True if finalizers of this kind must be qualified with a domain, as for most built-in kinds.
    fn wants_finalizer_domains(&self) -> bool {
        let generic = matches!(
            (self.row.group.as_str(), self.row.kind.as_str()),
            (
                "admissionregistration.k8s.io"
                    | "apiextensions.k8s.io"
                    | "apiregistration.k8s.io"
                    | "coordination.k8s.io"
                    | "node.k8s.io"
                    | "policy",
                _
            ) | ("", "Event")
        );
        self.custom.is_none() && !generic
    }

    /// The errors of an update by the rules of the kind, without the errors that the stored object
    /// has too. Otherwise an object that was stored before a rule existed could not even lose its
    /// finalizers. An update without changes never violates the rule that a field is immutable, so
    /// changes to immutable fields are reported.
    fn changed_for_worse(&self, target: Target, object: &Value, old: &Value) -> Vec<field::Error> {
        let rules = |object: &Value, old: &Value| match target {
            Target::Main => self.strategy().validate_update(object, old),
            Target::Status => self.strategy().validate_status_update(object, old),
            Target::Approval => signing_request::validate_approval(object, old),
            Target::Resize => pod_resize::validate(object, old),
            Target::Ephemeral => pod_ephemeral::validate(object, old),
            Target::Whole => Vec::new(),
        };
        let mut errors = rules(object, old);
        if !errors.is_empty() {
            // Zeros in the stored object that are no longer stored are not a change.
            let mut old = old.clone();
            packed::take(&mut old);
            if self.custom.is_none()
                && let Some(schema) = self.row.schema(&self.version().name)
            {
                // If a field cannot be decoded, the remaining fields are unchanged.
                let _ = schema.read_typed(&self.row.kind, &mut old);
            }
            errors = rules(object, &old);
            let before: HashSet<String> = rules(&old, &old).iter().map(ToString::to_string).collect();
            errors.retain(|error| !before.contains(&error.to_string()));
        }
        errors
    }

    fn reject(&self, object: &Value, mut errors: Vec<field::Error>) -> Result<(), Status> {
        if errors.is_empty() {
            return Ok(());
        }
        errors.truncate(ERRORS_MAX);
        Err(Status::invalid(&self.group_kind(), meta::name(object), &errors))
    }

    /// Checks the structural schema and the rules of a custom resource. Returns warnings about
    /// errors that are allowed.
    fn check_schema(&self, object: &Value, old: Option<&Value>, errors: &mut Vec<field::Error>) -> Vec<String> {
        let Some(custom) = &self.custom else { return Vec::new() };
        let version = &self.version().name;
        let root = Path::root();
        if let Some(schema) = self.row.schema(version) {
            errors.extend(match old {
                Some(old) => schema.validate_update(object, old, &root),
                None => schema.validate(object, &root),
            });
            errors.extend(schema.validate_embedded(object, Root::Resource, &root));
            // An update may have duplicate items if the old object has some.
            let duplicates = schema.validate_lists(object, &root);
            if !duplicates.is_empty() && old.is_none_or(|old| schema.validate_lists(old, &root).is_empty()) {
                errors.extend(duplicates);
            }
        }
        let blocks_rules = |error: &field::Error| {
            matches!(
                error.kind,
                ErrorKind::NotSupported
                    | ErrorKind::Required
                    | ErrorKind::TooLong
                    | ErrorKind::TooMany
                    | ErrorKind::TypeInvalid
            )
        };
        let Some(rules) = custom.rules(version) else { return Vec::new() };
        if errors.iter().any(blocks_rules) {
            errors.push(field::Error::invalid(
                &root,
                Value::Null,
                "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation",
            ));
            return Vec::new();
        }
        let findings = rules.check(object, old);
        errors.extend(findings.errors);
        findings.warnings.iter().map(ToString::to_string).collect()
    }
}
