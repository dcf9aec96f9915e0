//! Validation of the scheduling fields of pods: affinity, tolerations, topology spread constraints
//! and gates.

use std::collections::{HashMap, HashSet};

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::{names, selector, validation};
use serde_json::Value;

use super::rules::{items, named, number, supported, text};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const NO_SELECTOR: &str = "must not be specified when labelSelector is not set";

/// Validates a pod's affinity.
pub(super) fn affinity(affinity: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let (nodes, at) = (&affinity["nodeAffinity"], path.child("nodeAffinity"));
    if !nodes[REQUIRED].is_null() {
        node_selector(&nodes[REQUIRED], &at.child(REQUIRED), errors);
    }
    let preferred = at.child(PREFERRED);
    for (index, term) in items(&nodes[PREFERRED]).iter().enumerate() {
        let at = preferred.index(index);
        weight(term, &at, errors);
        node_term(&term["preference"], &at.child("preference"), errors);
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let at = path.child(kind);
        let required = at.child(REQUIRED);
        for (index, term) in items(&affinity[kind][REQUIRED]).iter().enumerate() {
            pod_term(term, &required.index(index), errors);
        }
        let preferred = at.child(PREFERRED);
        for (index, term) in items(&affinity[kind][PREFERRED]).iter().enumerate() {
            let at = preferred.index(index);
            weight(term, &at, errors);
            pod_term(&term["podAffinityTerm"], &at.child("podAffinityTerm"), errors);
        }
    }
}

fn weight(term: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let weight = number(term, "weight");
    if !(1..=100).contains(&weight) {
        errors.push(Error::invalid(&path.child("weight"), weight, "must be in the range 1-100"));
    }
}

/// Validates a node selector, which needs at least one term.
pub(super) fn node_selector(selector: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let at = path.child("nodeSelectorTerms");
    let terms = items(&selector["nodeSelectorTerms"]);
    if terms.is_empty() {
        errors.push(Error::required(&at, "must have at least one node selector term"));
    }
    for (index, term) in terms.iter().enumerate() {
        node_term(term, &at.index(index), errors);
    }
}

fn node_term(term: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let at = path.child("matchExpressions");
    for (index, requirement) in items(&term["matchExpressions"]).iter().enumerate() {
        label_requirement(requirement, &at.index(index), errors);
    }
    let at = path.child("matchFields");
    for (index, requirement) in items(&term["matchFields"]).iter().enumerate() {
        field_requirement(requirement, &at.index(index), errors);
    }
}

fn label_requirement(requirement: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let (values, at) = (items(&requirement["values"]), path.child("values"));
    match text(requirement, "operator") {
        "In" | "NotIn" if values.is_empty() => {
            errors.push(Error::required(&at, "must be specified when `operator` is 'In' or 'NotIn'"));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            errors.push(Error::forbidden(&at, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"));
        }
        "Gt" | "Lt" if values.len() != 1 => {
            errors.push(Error::required(&at, "must be specified single value when `operator` is 'Lt' or 'Gt'"));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => errors.push(Error::invalid(&path.child("operator"), other, "not a valid selector operator")),
    }
    errors.extend(validation::validate_label_key(text(requirement, "key"), &path.child("key")));
    for (index, value) in values.iter().enumerate() {
        named(value.as_str().unwrap_or_default(), names::is_label_value, &at.index(index), errors);
    }
}

/// Validates a requirement on a field. The only supported field of nodes is the name.
fn field_requirement(requirement: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let (values, at) = (items(&requirement["values"]), path.child("values"));
    match text(requirement, "operator") {
        "In" | "NotIn" if values.len() != 1 => {
            let detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
            errors.push(Error::required(&at, detail));
        }
        "In" | "NotIn" => {}
        other => errors.push(Error::invalid(&path.child("operator"), other, "not a valid selector operator")),
    }
    let key = text(requirement, "key");
    if key != "metadata.name" {
        errors.push(Error::invalid(&path.child("key"), key, "not a valid field selector key"));
        return;
    }
    for (index, value) in values.iter().enumerate() {
        named(value.as_str().unwrap_or_default(), names::is_dns1123_subdomain, &at.index(index), errors);
    }
}

fn pod_term(term: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    for field in ["matchLabelKeys", "mismatchLabelKeys"] {
        let at = path.child(field);
        let keys = items(&term[field]);
        if !keys.is_empty() && term["labelSelector"].is_null() {
            errors.push(Error::forbidden(&at, NO_SELECTOR));
            continue;
        }
        for (index, key) in keys.iter().enumerate() {
            errors.extend(validation::validate_label_key(key.as_str().unwrap_or_default(), &at.index(index)));
        }
    }
    for field in ["labelSelector", "namespaceSelector"] {
        errors.extend(selector::validate_object(&term[field], &path.child(field)));
    }
    for namespace in items(&term["namespaces"]) {
        named(namespace.as_str().unwrap_or_default(), names::is_dns1123_label, &path.child("namespace"), errors);
    }
    let (key, at) = (text(term, "topologyKey"), path.child("topologyKey"));
    if key.is_empty() {
        errors.push(Error::required(&at, "can not be empty"));
    }
    errors.extend(validation::validate_label_key(key, &at));
}

/// Validates a pod's tolerations.
pub(super) fn tolerations(tolerations: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    for (index, toleration) in items(tolerations).iter().enumerate() {
        let at = path.index(index);
        let text = |field: &str| text(toleration, field);
        let operator = at.child("operator");
        if !text("key").is_empty() {
            errors.extend(validation::validate_label_key(text("key"), &at.child("key")));
        } else if text("operator") != "Exists" {
            let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.push(Error::invalid(&operator, text("operator"), detail));
        }
        if !toleration["tolerationSeconds"].is_null() && text("effect") != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.push(Error::invalid(&at.child("effect"), text("effect"), detail));
        }
        match text("operator") {
            "" | "Equal" => named(text("value"), names::is_label_value, &operator, errors),
            "Exists" if text("value").is_empty() => {}
            "Exists" => {
                let detail = "value must be empty when `operator` is 'Exists'";
                errors.push(Error::invalid(&operator, text("value"), detail));
            }
            other => errors.push(Error::not_supported(&operator, other, &["Equal", "Exists"])),
        }
        if !text("effect").is_empty() {
            supported(toleration, "effect", &["NoSchedule", "PreferNoSchedule", "NoExecute"], &at, errors);
        }
    }
}

/// Validates readiness gates and scheduling gates.
pub(super) fn gates(spec: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let readiness = path.child("readinessGates");
    for (index, gate) in items(&spec["readinessGates"]).iter().enumerate() {
        let at = readiness.index(index);
        named(text(gate, "conditionType"), names::is_qualified_name, &at.child("conditionType"), errors);
    }
    let scheduling = path.child("schedulingGates");
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, gate) in items(&spec["schedulingGates"]).iter().enumerate() {
        let (at, name) = (scheduling.index(index), text(gate, "name"));
        named(name, names::is_qualified_name, &at, errors);
        if !seen.insert(name) {
            errors.push(Error::duplicate(&at, name));
        }
    }
}

/// Validates topology spread constraints.
pub(super) fn spread(constraints: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let constraints = items(constraints);
    fn pair(constraint: &Value) -> (&str, &str) {
        (text(constraint, "topologyKey"), text(constraint, "whenUnsatisfiable"))
    }
    let last: HashMap<(&str, &str), usize> = constraints.iter().map(pair).zip(0..).collect();
    for (index, constraint) in constraints.iter().enumerate() {
        let at = path.index(index);
        let positive = |field: &str, errors: &mut Vec<Error>| {
            if number(constraint, field) <= 0 {
                errors.push(Error::invalid(&at.child(field), number(constraint, field), "must be greater than zero"));
            }
        };
        positive("maxSkew", errors);
        if text(constraint, "topologyKey").is_empty() {
            errors.push(Error::required(&at.child("topologyKey"), "can not be empty"));
        }
        let action = text(constraint, "whenUnsatisfiable");
        if !matches!(action, "DoNotSchedule" | "ScheduleAnyway") {
            let known = ["DoNotSchedule", "ScheduleAnyway"];
            errors.push(Error::not_supported(&at.child("whenUnsatisfiable"), action, &known));
        }
        if last.get(&pair(constraint)).is_some_and(|last| *last > index) {
            let pair = format!("{{{}, {action}}}", text(constraint, "topologyKey"));
            errors.push(Error::duplicate(&at.child("{topologyKey, whenUnsatisfiable}"), pair));
        }
        if !constraint["minDomains"].is_null() {
            positive("minDomains", errors);
            if action != "DoNotSchedule" {
                let detail = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
                errors.push(Error::invalid(&at.child("minDomains"), number(constraint, "minDomains"), detail));
            }
        }
        for field in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            supported(constraint, field, &["Honor", "Ignore"], &at, errors);
        }
        label_keys(constraint, &at.child("matchLabelKeys"), errors);
        errors.extend(selector::validate_object(&constraint["labelSelector"], &at.child("labelSelector")));
    }
}

/// Validates `matchLabelKeys`, which extend the label selector with values of the pod's own labels.
fn label_keys(constraint: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let keys = items(&constraint["matchLabelKeys"]);
    if !keys.is_empty() && constraint["labelSelector"].is_null() {
        errors.push(Error::forbidden(path, NO_SELECTOR));
        return;
    }
    for (index, key) in keys.iter().enumerate() {
        errors.extend(validation::validate_label_key(key.as_str().unwrap_or_default(), &path.index(index)));
    }
}
