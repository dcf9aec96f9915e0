//! MutatingWebhookConfiguration and ValidatingWebhookConfiguration: defaults and validation.

use std::collections::{HashMap, HashSet};

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::{names, selector};
use berth_cel::Env;
use berth_cel::admission::check;
use serde_json::{Value, json};

use super::admission_policy::{CONDITIONS_MAX, unique_names};
use super::{Strategy, set_default, set_default_text};
use crate::client_config;

pub(crate) struct WebhookConfigurations;

const SIDE_EFFECTS: [&str; 2] = ["None", "NoneOnDryRun"];
const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];

impl Strategy for WebhookConfigurations {
    fn has_generation(&self) -> bool {
        true
    }

    fn default(&self, configuration: &mut Value) {
        let mutating = configuration["kind"] == "MutatingWebhookConfiguration";
        for webhook in configuration.get_mut("webhooks").and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(webhook) = webhook.as_object_mut() else { continue };
            set_default_text(webhook, "failurePolicy", "Fail");
            set_default_text(webhook, "matchPolicy", "Equivalent");
            set_default(webhook, "namespaceSelector", json!({}));
            set_default(webhook, "objectSelector", json!({}));
            set_default(webhook, "timeoutSeconds", 10);
            if mutating {
                set_default_text(webhook, "reinvocationPolicy", "Never");
            }
            for rule in webhook.get_mut("rules").and_then(Value::as_array_mut).into_iter().flatten() {
                if let Some(rule) = rule.as_object_mut() {
                    set_default_text(rule, "scope", "*");
                }
            }
            let service = webhook.get_mut("clientConfig").and_then(|config| config.get_mut("service"));
            if let Some(service) = service.and_then(Value::as_object_mut) {
                set_default(service, "port", 443);
            }
        }
    }

    fn validate(&self, configuration: &Value) -> Vec<Error> {
        validate(configuration, None)
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        validate(new, Some(old))
    }
}

fn validate(configuration: &Value, old: Option<&Value>) -> Vec<Error> {
    let mut errors = Vec::new();
    let path = Path::new("webhooks");
    let webhooks = configuration["webhooks"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut seen: HashSet<&str> = HashSet::new();
    let mut bundles: HashMap<&str, Vec<&Value>> = HashMap::new();
    for webhook in old.and_then(|old| old["webhooks"].as_array()).into_iter().flatten() {
        let name = webhook["name"].as_str().unwrap_or_default();
        bundles.entry(name).or_default().push(&webhook["clientConfig"]["caBundle"]);
    }
    for (index, webhook) in webhooks.iter().enumerate() {
        let at = path.index(index);
        let name = webhook["name"].as_str().unwrap_or_default();
        errors.extend(check_name(name, &at.child("name")));
        if !seen.insert(name) {
            errors.push(Error::duplicate(&at.child("name"), name));
        }
        // An unchanged bundle is not validated: it may have been stored before this check existed.
        let before = bundles.get(name).map(Vec::as_slice).unwrap_or_default();
        let unchanged = before.contains(&&webhook["clientConfig"]["caBundle"]);
        let config_path = at.child("clientConfig");
        errors.extend(client_config::validate(&webhook["clientConfig"], !unchanged, &config_path));
        check_webhook(webhook, &at, &mut errors);
    }
    errors
}

fn check_name(name: &str, path: &Path<'_>) -> Vec<Error> {
    if name.is_empty() {
        return vec![Error::required(path, "")];
    }
    names::is_fully_qualified_name(name).into_iter().map(|problem| Error::invalid(path, name, problem)).collect()
}

fn check_webhook(webhook: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let mut one_of = |field: &str, allowed: &[&str]| {
        if let Some(text) = webhook[field].as_str().filter(|text| !allowed.contains(text)) {
            errors.push(Error::not_supported(&path.child(field), text, allowed));
        }
    };
    one_of("failurePolicy", &["Fail", "Ignore"]);
    one_of("matchPolicy", &["Equivalent", "Exact"]);
    one_of("reinvocationPolicy", &["IfNeeded", "Never"]);
    one_of("sideEffects", &SIDE_EFFECTS);
    if !webhook["sideEffects"].is_string() {
        let detail = format!("must specify one of {}", SIDE_EFFECTS.join(", "));
        errors.push(Error::required(&path.child("sideEffects"), detail));
    }
    if let Some(seconds) = webhook["timeoutSeconds"].as_i64().filter(|seconds| !(1..=30).contains(seconds)) {
        let detail = "the timeout value must be between 1 and 30 seconds";
        errors.push(Error::invalid(&path.child("timeoutSeconds"), seconds, detail));
    }
    for field in ["namespaceSelector", "objectSelector"] {
        if webhook[field].is_object() {
            errors.extend(selector::validate_object(&webhook[field], &path.child(field)));
        }
    }
    check_review_versions(&webhook["admissionReviewVersions"], &path.child("admissionReviewVersions"), errors);
    check_conditions(&webhook["matchConditions"], &path.child("matchConditions"), errors);
    let rules_path = path.child("rules");
    for (index, rule) in webhook["rules"].as_array().into_iter().flatten().enumerate() {
        check_rule(rule, &rules_path.index(index), errors);
    }
}

/// Validates match conditions: names are set and unique, and expressions compile.
fn check_conditions(conditions: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let given = conditions.as_array().map_or(0, Vec::len);
    if given > CONDITIONS_MAX {
        errors.push(Error::too_many(path, given as i64, CONDITIONS_MAX as i64));
    }
    unique_names(conditions, path, names::is_qualified_name, errors);
    for problem in check::problems(&json!({"matchConditions": conditions}), &Env::new(berth_cel::NEWEST)) {
        // The field of the problem is a path in an admission policy, such as
        // `spec.matchConditions[0].expression`; only the index is used.
        let index = problem.field.split(['[', ']']).nth(1).and_then(|index| index.parse().ok()).unwrap_or_default();
        let item = path.index(index);
        errors.push(Error::invalid(&item.child("expression"), problem.expression, problem.error));
    }
}

fn check_review_versions(versions: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    const KNOWN: [&str; 2] = ["v1", "v1beta1"];
    let versions: Vec<&str> = versions.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if versions.is_empty() {
        errors.push(Error::required(path, format!("must specify one of {}", KNOWN.join(", "))));
        return;
    }
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, version) in versions.iter().enumerate() {
        if !seen.insert(version) {
            errors.push(Error::invalid(&path.index(index), *version, "duplicate version"));
        }
        for problem in names::is_dns1035_label(version) {
            errors.push(Error::invalid(&path.index(index), *version, problem));
        }
    }
    if !versions.iter().any(|version| KNOWN.contains(version)) {
        let detail = format!("must include at least one of {}", KNOWN.join(", "));
        errors.push(Error::invalid(path, versions, detail));
    }
}

fn check_rule(rule: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let list =
        |field: &str| -> Vec<&str> { rule[field].as_array().into_iter().flatten().filter_map(Value::as_str).collect() };
    for (field, what) in [("apiGroups", "API groups"), ("apiVersions", "API versions"), ("operations", "operations")] {
        let (given, at) = (list(field), path.child(field));
        if given.is_empty() {
            errors.push(Error::required(&at, ""));
        }
        if given.len() > 1 && given.contains(&"*") {
            let detail = format!("if '*' is present, must not specify other {what}");
            errors.push(Error::invalid(&at, given.clone(), detail));
        }
        for (index, item) in given.iter().enumerate() {
            if field == "operations" && !OPERATIONS.contains(item) {
                errors.push(Error::not_supported(&at.index(index), *item, &OPERATIONS));
            }
            if field == "apiVersions" && item.is_empty() {
                errors.push(Error::required(&at.index(index), ""));
            }
        }
    }
    check_resources(&list("resources"), &path.child("resources"), errors);
    if let Some(scope) = rule["scope"].as_str().filter(|scope| !matches!(*scope, "*" | "Cluster" | "Namespaced")) {
        errors.push(Error::not_supported(&path.child("scope"), scope, &["*", "Cluster", "Namespaced"]));
    }
}

fn check_resources(resources: &[&str], path: &Path<'_>, errors: &mut Vec<Error>) {
    if resources.is_empty() {
        errors.push(Error::required(path, ""));
    }
    for (index, resource) in resources.iter().enumerate() {
        if resource.is_empty() {
            errors.push(Error::required(&path.index(index), ""));
        }
        if resource.starts_with('/') {
            errors.push(Error::invalid(&path.index(index), *resource, "resource name must not be empty"));
        }
    }
    if resources.len() > 1 && resources.contains(&"*/*") {
        let detail = "if '*/*' is present, must not specify other resources";
        errors.push(Error::invalid(path, resources.to_vec(), detail));
    }
    let has_all = resources.contains(&"*");
    if has_all && resources.iter().any(|resource| *resource != "*" && !resource.contains('/')) {
        let detail = "if '*' is present, must not specify other resources without subresources";
        errors.push(Error::invalid(path, resources.to_vec(), detail));
    }
}
