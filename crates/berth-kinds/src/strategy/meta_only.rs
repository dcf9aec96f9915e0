//! Kinds with few rules or none.

use std::collections::HashSet;

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::validation::{self, NameCheck};
use berth_apimachinery::{names, selector};
use serde_json::{Value, json};

use super::rules::{items, named, required, supported, text};
use super::{Strategy, immutable, pod_placement, same};

/// Custom resources. Their schema has all rules.
pub(crate) struct Custom;

impl Strategy for Custom {
    fn has_generation(&self) -> bool {
        true
    }
}

/// Built-in kinds without a generation.
pub(crate) struct Plain;

impl Strategy for Plain {
    fn creates_on_update(&self) -> bool {
        true
    }
}

/// Built-in kinds with a generation.
pub(crate) struct WithGeneration;

impl Strategy for WithGeneration {
    fn has_generation(&self) -> bool {
        true
    }
}

/// RuntimeClasses.
pub(crate) struct RuntimeClasses;

impl Strategy for RuntimeClasses {
    fn creates_on_update(&self) -> bool {
        true
    }

    fn validate(&self, class: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        if required(class, "handler", &Path::root(), &mut errors) {
            named(text(class, "handler"), names::is_dns1123_label, &Path::new("handler"), &mut errors);
        }
        let (scheduling, path) = (&class["scheduling"], Path::new("scheduling"));
        errors.extend(validation::validate_labels(&scheduling["nodeSelector"], &path.child("nodeSelector")));
        pod_placement::tolerations(&scheduling["tolerations"], &path.child("tolerations"), &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = self.validate(new);
        immutable(new, old, &["handler"], &mut errors);
        errors
    }
}

/// Nodes. Their status is kept on create, because the client that registers a node sets its
/// resources.
pub(crate) struct Nodes;

impl Strategy for Nodes {
    fn clears_status_on_create(&self) -> bool {
        false
    }

    fn validate(&self, node: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        check_taints(&node["spec"]["taints"], &mut errors);
        if let Some(range) = node["spec"]["podCIDR"].as_str().filter(|range| !range.is_empty()) {
            let at = Path::new("spec.podCIDRs[0]");
            // Ranges in a non-canonical form are valid, as upstream.
            let messages = names::is_cidr(range).into_iter().filter(|message| message.starts_with("must be a valid"));
            errors.extend(messages.map(|message| Error::invalid(&at, range, message)));
        }
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = self.validate(new);
        if old["spec"]["providerID"].as_str().is_some_and(|id| !id.is_empty()) {
            immutable(new, old, &["spec", "providerID"], &mut errors);
        }
        errors
    }
}

/// Validates taints. Upstream's error paths have them below `metadata`.
fn check_taints(taints: &Value, errors: &mut Vec<Error>) {
    let list = Path::new("metadata.taints");
    let mut seen: HashSet<(&str, &str)> = HashSet::new();
    for (index, taint) in items(taints).iter().enumerate() {
        let at = list.index(index);
        let (key, effect) = (text(taint, "key"), text(taint, "effect"));
        named(key, names::is_qualified_name, &at.child("key"), errors);
        named(text(taint, "value"), names::is_label_value, &at.child("value"), errors);
        if effect.is_empty() {
            errors.push(Error::required(&at.child("effect"), ""));
        } else {
            supported(taint, "effect", &["NoSchedule", "PreferNoSchedule", "NoExecute"], &at, errors);
        }
        if !seen.insert((key, effect)) {
            let mut duplicate = Error::duplicate(&at, taint.clone());
            duplicate.detail = "taints must be unique by key and effect pair".to_owned();
            errors.push(duplicate);
        }
    }
}

/// Leases.
pub(crate) struct Leases;

impl Strategy for Leases {
    fn creates_on_update(&self) -> bool {
        true
    }

    fn validate(&self, lease: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        let spec = Path::new("spec");
        if let Some(seconds) = lease["spec"]["leaseDurationSeconds"].as_i64().filter(|seconds| *seconds <= 0) {
            errors.push(Error::invalid(&spec.child("leaseDurationSeconds"), seconds, "must be greater than 0"));
        }
        if let Some(count) = lease["spec"]["leaseTransitions"].as_i64().filter(|count| *count < 0) {
            let detail = "must be greater than or equal to 0";
            errors.push(Error::invalid(&spec.child("leaseTransitions"), count, detail));
        }
        errors
    }
}

/// Roles and ClusterRoles. Their names may be any valid path segment.
pub(crate) struct Roles;

impl Strategy for Roles {
    fn name_check(&self) -> NameCheck {
        names::is_path_segment_name
    }

    fn default(&self, role: &mut Value) {
        let map = berth_apimachinery::meta::map_mut(role);
        if map.get("rules").is_none() {
            map.insert("rules".to_owned(), Value::Null);
        }
    }

    fn validate(&self, role: &Value) -> Vec<Error> {
        let is_namespaced = role["kind"] == "Role";
        let mut errors = Vec::new();
        let rules = Path::new("rules");
        for (index, rule) in role["rules"].as_array().into_iter().flatten().enumerate() {
            check_rule(rule, is_namespaced, &rules.index(index), &mut errors);
        }
        let aggregation = &role["aggregationRule"];
        if !aggregation.is_null() {
            let (selectors, path) = (items(&aggregation["clusterRoleSelectors"]), Path::new("aggregationRule"));
            let list = path.child("clusterRoleSelectors");
            if selectors.is_empty() {
                let detail = "at least one clusterRoleSelector required if aggregationRule is non-nil";
                errors.push(Error::required(&list, detail));
            }
            for (index, selector) in selectors.iter().enumerate() {
                errors.extend(selector::validate_object(selector, &list.index(index)));
            }
        }
        errors
    }
}

/// Validates a rule: it needs verbs, and either non-resource URLs, or API groups and resources.
fn check_rule(rule: &Value, is_namespaced: bool, path: &Path<'_>, errors: &mut Vec<Error>) {
    let is_empty = |field: &str| rule[field].as_array().is_none_or(Vec::is_empty);
    if is_empty("verbs") {
        errors.push(Error::required(&path.child("verbs"), "verbs must contain at least one value"));
    }
    if !is_empty("nonResourceURLs") {
        let mut reject = |detail: &str| {
            let paths = rule["nonResourceURLs"].clone();
            errors.push(Error::invalid(&path.child("nonResourceURLs"), paths, detail));
        };
        if is_namespaced {
            reject("namespaced rules cannot apply to non-resource URLs");
        }
        if ["apiGroups", "resources", "resourceNames"].iter().any(|field| !is_empty(field)) {
            reject("rules cannot apply to both regular resources and non-resource URLs");
        }
        return;
    }
    for (field, detail) in [
        ("apiGroups", "resource rules must supply at least one api group"),
        ("resources", "resource rules must supply at least one resource"),
    ] {
        if is_empty(field) {
            errors.push(Error::required(&path.child(field), detail));
        }
    }
}

/// API group of roles, and of the subjects `User` and `Group`.
const GROUP: &str = "rbac.authorization.k8s.io";
/// Kinds of subjects that a role can be bound to.
const SUBJECTS: [&str; 3] = ["ServiceAccount", "User", "Group"];

/// RoleBindings and ClusterRoleBindings.
pub(crate) struct Bindings;

impl Strategy for Bindings {
    fn name_check(&self) -> NameCheck {
        names::is_path_segment_name
    }

    fn default(&self, binding: &mut Value) {
        if let Some(role) = binding.get_mut("roleRef").and_then(Value::as_object_mut) {
            super::set_default_text(role, "apiGroup", GROUP);
        }
        for subject in binding.get_mut("subjects").and_then(Value::as_array_mut).into_iter().flatten() {
            let is_account = subject["kind"] == "ServiceAccount";
            if let Some(subject) = subject.as_object_mut()
                && !is_account
            {
                super::set_default_text(subject, "apiGroup", GROUP);
            }
        }
    }

    fn validate(&self, binding: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        let role = Path::new("roleRef");
        let kind = text(&binding["roleRef"], "kind");
        supported(&binding["roleRef"], "apiGroup", &[GROUP], &role, &mut errors);
        let kinds: &[&str] = match binding["kind"].as_str() {
            Some("ClusterRoleBinding") => &["ClusterRole"],
            _ => &["Role", "ClusterRole"],
        };
        if !kinds.contains(&kind) {
            errors.push(Error::not_supported(&role.child("kind"), kind, kinds));
        }
        required(&binding["roleRef"], "name", &role, &mut errors);
        let list = Path::new("subjects");
        for (index, subject) in items(&binding["subjects"]).iter().enumerate() {
            let at = list.index(index);
            required(subject, "name", &at, &mut errors);
            let kind = text(subject, "kind");
            match kind {
                "ServiceAccount" => {
                    if !text(subject, "name").is_empty() {
                        named(text(subject, "name"), names::is_dns1123_subdomain, &at.child("name"), &mut errors);
                    }
                    if !text(subject, "apiGroup").is_empty() {
                        errors.push(Error::not_supported(&at.child("apiGroup"), text(subject, "apiGroup"), &[""]));
                    }
                    if binding["kind"] == "ClusterRoleBinding" {
                        required(subject, "namespace", &at, &mut errors);
                    }
                }
                "User" | "Group" => supported(subject, "apiGroup", &[GROUP], &at, &mut errors),
                _ => errors.push(Error::not_supported(&at.child("kind"), kind, &SUBJECTS)),
            }
        }
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = self.validate(new);
        if !same(&new["roleRef"], &old["roleRef"]) {
            let empty = json!({});
            let value = new.get("roleRef").unwrap_or(&empty).clone();
            errors.push(Error::invalid(&Path::new("roleRef"), value, "cannot change roleRef"));
        }
        errors
    }
}
