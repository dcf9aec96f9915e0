//! Validation of label maps, selectors, and annotations shared by several kinds.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::kueue::annotations;
use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::names;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// Maximum length of an admission gate's name, in bytes.
const GATE_NAME_MAX: i64 = 63;

/// Validates keys and values of labels.
pub(super) fn labels(map: &BTreeMap<String, String>, path: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    for (key, value) in map {
        errors.extend(names::is_qualified_name(key).into_iter().map(|m| Error::invalid(path, key.as_str(), m)));
        errors.extend(names::is_label_value(value).into_iter().map(|m| Error::invalid(path, value.as_str(), m)));
    }
    errors
}

/// Validates keys of annotations.
pub(super) fn annotations(map: &BTreeMap<String, String>, path: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    for key in map.keys() {
        let lower = key.to_lowercase();
        errors.extend(names::is_qualified_name(&lower).into_iter().map(|m| Error::invalid(path, key.as_str(), m)));
    }
    errors
}

/// Validates a label selector.
pub(crate) fn selector(selector: &LabelSelector, path: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    if let Some(map) = &selector.match_labels {
        errors.extend(labels(map, &path.child("matchLabels")));
    }
    let expressions = path.child("matchExpressions");
    for (index, requirement) in selector.match_expressions.iter().flatten().enumerate() {
        let path = expressions.index(index);
        let values = requirement.values.as_deref().unwrap_or_default();
        match requirement.operator.as_str() {
            "In" | "NotIn" if values.is_empty() => {
                let detail = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.push(Error::required(&path.child("values"), detail));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(Error::forbidden(&path.child("values"), detail));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.push(Error::invalid(&path.child("operator"), other, "not a valid selector operator")),
        }
        let key = path.child("key");
        let wrong = names::is_qualified_name(&requirement.key).into_iter();
        errors.extend(wrong.map(|m| Error::invalid(&key, requirement.key.as_str(), m)));
        let at = path.child("values");
        for (index, value) in values.iter().enumerate() {
            let wrong = names::is_label_value(value).into_iter();
            errors.extend(wrong.map(|m| Error::invalid(&at.index(index), value.as_str(), m)));
        }
    }
    errors
}

fn gate_list(text: &str) -> Vec<&str> {
    text.split(',').map(str::trim).collect()
}

/// Validates the annotation `admission-gated-by`: a list of unique names like `domain/path`.
pub(super) fn gated_by(annotations: Option<&BTreeMap<String, String>>, path: &Path<'_>) -> Vec<Error> {
    let Some(text) = annotations.and_then(|map| map.get(annotations::ADMISSION_GATED_BY)) else {
        return Vec::new();
    };
    if text.is_empty() {
        return Vec::new();
    }
    let path = path.key(annotations::ADMISSION_GATED_BY);
    let mut errors = Vec::new();
    let mut seen = BTreeSet::new();
    for gate in gate_list(text) {
        if !seen.insert(gate) {
            errors.push(Error::invalid(&path, text.as_str(), format!("duplicate gate name: {gate}")));
            continue;
        }
        if gate.len() as i64 > GATE_NAME_MAX {
            errors.push(Error::too_long(&path, GATE_NAME_MAX));
            continue;
        }
        errors.extend(domain_path(gate, &path));
    }
    errors
}

/// Validates a name like `domain/path`: a DNS subdomain, a slash, and the path of a URL.
fn domain_path(text: &str, path: &Path<'_>) -> Vec<Error> {
    let Some((domain, rest)) = text.split_once('/').filter(|(domain, rest)| !domain.is_empty() && !rest.is_empty())
    else {
        let detail = "must be a domain-prefixed path (such as \"acme.io/foo\")";
        return vec![Error::invalid(path, text, detail)];
    };
    let mut errors: Vec<Error> =
        names::is_dns1123_subdomain(domain).into_iter().map(|m| Error::invalid(path, domain, m)).collect();
    let allowed = |c: char| c.is_ascii_alphanumeric() || "/-._~%!$&'()*+,;=:".contains(c);
    if !rest.chars().all(allowed) {
        let detail = "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')";
        errors.push(Error::invalid(path, rest, detail));
    }
    errors
}

/// Validates a change to admission gates: gates can be removed, not added.
pub(super) fn gated_by_update(
    new: Option<&BTreeMap<String, String>>,
    old: Option<&BTreeMap<String, String>>,
    path: &Path<'_>,
) -> Vec<Error> {
    let get = |map: Option<&BTreeMap<String, String>>| {
        map.and_then(|map| map.get(annotations::ADMISSION_GATED_BY)).cloned().unwrap_or_default()
    };
    let (new, old) = (get(new), get(old));
    if new.is_empty() || new == old {
        return Vec::new();
    }
    let path = path.key(annotations::ADMISSION_GATED_BY);
    if old.is_empty() {
        return vec![Error::forbidden(&path, "cannot add admission gate after creation")];
    }
    let known: BTreeSet<&str> = gate_list(&old).into_iter().collect();
    if gate_list(&new).iter().any(|gate| !known.contains(gate)) {
        return vec![Error::forbidden(&path, "can only remove gates, not add new ones")];
    }
    Vec::new()
}
