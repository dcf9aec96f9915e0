//! Updates stored default roles and bindings to those of this version. Missing rules and subjects
//! are added; additions by users stay (unless extras are to be removed). Objects that opt out are
//! left alone.
//!
//! Behaviour after Kubernetes' reconciliation of its default roles (conformance suites
//! `rbac-reconcile-*`).

use berth_apimachinery::meta;
use serde_json::{Map, Value, json};

use super::rbac::{Rule, uncovered};

/// Annotation; a default object is updated only if it is `true`.
const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

/// True if a stored object may be updated.
pub fn is_wanted(stored: &Value) -> bool {
    meta::annotation(stored, AUTOUPDATE) == Some("true")
}

/// `actual`, a role or binding, updated to `wanted`; `None` if nothing is missing. Additional
/// entries are kept.
pub fn object(wanted: &Value, actual: &Value) -> Option<Value> {
    match meta::kind(wanted) {
        "ClusterRole" | "Role" => role(wanted, actual, false),
        "ClusterRoleBinding" | "RoleBinding" => binding(wanted, actual, false),
        _ => None,
    }
}

/// A role updated to `wanted`; `None` when it needs no update. The rules of an aggregated role
/// follow from its selectors.
pub fn role(wanted: &Value, actual: &Value, remove_extra: bool) -> Option<Value> {
    let mut updated = actual.clone();
    let mut changed = add_missing_keys(&mut updated, wanted, "labels");
    changed |= add_missing_keys(&mut updated, wanted, "annotations");
    let rules = |role: &Value| -> Vec<Rule> {
        role.get("rules").and_then(Value::as_array).into_iter().flatten().map(Rule::from_value).collect()
    };
    let selectors =
        |role: &Value| role.pointer("/aggregationRule/clusterRoleSelectors").and_then(Value::as_array).cloned();
    let aggregates = |role: &Value| role.get("aggregationRule").is_some_and(Value::is_object);
    if aggregates(wanted) {
        let (wanted, actual) = (selectors(wanted).unwrap_or_default(), selectors(actual).unwrap_or_default());
        let missing: Vec<Value> = wanted.iter().filter(|it| !actual.contains(it)).cloned().collect();
        let extra = actual.iter().any(|it| !wanted.contains(it));
        if !missing.is_empty() || remove_extra && extra {
            let all = if remove_extra { wanted } else { actual.into_iter().chain(missing).collect() };
            updated["aggregationRule"] = json!({"clusterRoleSelectors": all});
            changed = true;
        }
        return changed.then_some(updated);
    }
    if aggregates(actual) {
        meta::map_mut(&mut updated).remove("aggregationRule");
        changed = true;
    }
    let (wanted_rules, actual_rules) = (rules(wanted), rules(actual));
    let missing = uncovered(&actual_rules, &wanted_rules);
    if remove_extra && (!missing.is_empty() || !uncovered(&wanted_rules, &actual_rules).is_empty()) {
        updated["rules"] = wanted.get("rules").cloned().unwrap_or_default();
        changed = true;
    } else if !missing.is_empty() {
        let mut all = actual.get("rules").and_then(Value::as_array).cloned().unwrap_or_default();
        all.extend(missing.iter().map(Rule::to_value));
        updated["rules"] = Value::Array(all);
        changed = true;
    }
    changed.then_some(updated)
}

/// A binding updated to `wanted`; `None` when it needs no update, or when it binds another role,
/// which is immutable.
pub fn binding(wanted: &Value, actual: &Value, remove_extra: bool) -> Option<Value> {
    if wanted.get("roleRef") != actual.get("roleRef") {
        return None;
    }
    let subjects = |binding: &Value| binding.get("subjects").and_then(Value::as_array).cloned().unwrap_or_default();
    let (wanted, stored) = (subjects(wanted), subjects(actual));
    let (extra, missing) = difference(&stored, &wanted);
    if missing.is_empty() && (!remove_extra || extra.is_empty()) {
        return None;
    }
    let mut updated = actual.clone();
    updated["subjects"] = Value::Array(if remove_extra { wanted } else { stored.into_iter().chain(missing).collect() });
    Some(updated)
}

/// The elements only in `a`, and those only in `b`: each once, in order.
pub fn difference(a: &[Value], b: &[Value]) -> (Vec<Value>, Vec<Value>) {
    let only = |own: &[Value], other: &[Value]| {
        own.iter().fold(Vec::new(), |mut only, item| {
            if !other.contains(item) && !only.contains(item) {
                only.push(item.clone());
            }
            only
        })
    };
    (only(a, b), only(b, a))
}

/// Adds missing labels or annotations; existing ones keep their values.
fn add_missing_keys(updated: &mut Value, wanted: &Value, field: &str) -> bool {
    let Some(wanted) = wanted.pointer(&format!("/metadata/{field}")).and_then(Value::as_object) else { return false };
    let own = meta::metadata_mut(updated).entry(field).or_insert_with(|| Value::Object(Map::new()));
    let Value::Object(own) = own else { return false };
    let mut changed = false;
    for (key, value) in wanted {
        if !own.contains_key(key) {
            own.insert(key.clone(), value.clone());
            changed = true;
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_objects_need_no_update_and_missing_rules_are_restored() {
        for wanted in super::super::bootstrap::objects() {
            assert!(is_wanted(&wanted));
            assert_eq!(object(&wanted, &wanted), None, "{}", meta::name(&wanted));
        }
        let wanted = super::super::bootstrap::objects().remove(0);
        let mut lost = wanted.clone();
        lost["rules"] = json!([{"apiGroups": ["x"], "resources": ["y"], "verbs": ["get"]}]);
        let updated = object(&wanted, &lost).expect("something is missing");
        assert_eq!(updated["rules"].as_array().map(Vec::len), Some(3), "{updated}");
    }
}
