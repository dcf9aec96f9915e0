//! `spec.conversion` of a definition. Error paths are those of Kubernetes' internal version, which
//! users see: `webhookClientConfig` and `conversionReviewVersions` are directly below `conversion`.

use std::collections::HashSet;

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::names;
use serde_json::Value;

use crate::client_config;

/// Versions of ConversionReview that the server supports, the preferred one first.
pub const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];

pub(super) struct Checks {
    /// True if one of the review versions must be known.
    pub(super) recognized_review: bool,
    /// True if the CA bundle must hold certificates.
    pub(super) ca_bundle: bool,
}

impl Checks {
    /// The checks for an update: those that the stored definition passes.
    pub(super) fn after(old: &Value) -> Checks {
        let conversion = &old["spec"]["conversion"];
        let versions: Vec<&str> = review_versions(conversion).collect();
        let bundle = conversion["webhook"]["clientConfig"].get("caBundle");
        Checks {
            recognized_review: versions.is_empty() || versions.iter().any(|version| REVIEW_VERSIONS.contains(version)),
            ca_bundle: client_config::validate_ca_bundle(bundle, &Path::root()).is_empty(),
        }
    }
}

pub(super) fn review_versions(conversion: &Value) -> impl Iterator<Item = &str> {
    let versions = conversion["webhook"]["conversionReviewVersions"].as_array();
    versions.into_iter().flatten().filter_map(Value::as_str)
}

pub(super) fn validate(conversion: &Value, checks: &Checks, path: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    if conversion.is_null() {
        return errors;
    }
    let strategy = conversion["strategy"].as_str().unwrap_or_default();
    match strategy {
        "" => errors.push(Error::required(&path.child("strategy"), "")),
        "None" | "Webhook" => {}
        _ => errors.push(Error::not_supported(&path.child("strategy"), strategy, &["None", "Webhook"])),
    }
    let (config_path, versions_path) = (path.child("webhookClientConfig"), path.child("conversionReviewVersions"));
    let config = conversion["webhook"].get("clientConfig").filter(|config| config.is_object());
    if strategy != "Webhook" {
        let why = "should not be set when strategy is not set to Webhook";
        if config.is_some() {
            errors.push(Error::forbidden(&config_path, why));
        }
        if review_versions(conversion).next().is_some() {
            errors.push(Error::forbidden(&versions_path, why));
        }
        return errors;
    }
    match config {
        None => errors.push(Error::required(&config_path, "required when strategy is set to Webhook")),
        Some(config) => errors.extend(client_config::validate(config, checks.ca_bundle, &config_path)),
    }
    validate_review_versions(conversion, checks.recognized_review, &versions_path, &mut errors);
    errors
}

fn validate_review_versions(conversion: &Value, recognized: bool, path: &Path<'_>, errors: &mut Vec<Error>) {
    let versions: Vec<&str> = review_versions(conversion).collect();
    if versions.is_empty() {
        errors.push(Error::required(path, ""));
        return;
    }
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, version) in versions.iter().enumerate() {
        if !seen.insert(version) {
            errors.push(Error::invalid(&path.index(index), *version, "duplicate version"));
            continue;
        }
        for problem in names::is_dns1035_label(version) {
            errors.push(Error::invalid(&path.index(index), *version, problem));
        }
    }
    if recognized && !versions.iter().any(|version| REVIEW_VERSIONS.contains(version)) {
        let detail = format!("must include at least one of {}", REVIEW_VERSIONS.join(", "));
        errors.push(Error::invalid(path, versions, detail));
    }
}
