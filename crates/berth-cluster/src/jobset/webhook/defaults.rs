//! Defaults of a set that its CRD's schema cannot express.

use serde_json::{Map, Value, json};

/// Fills in missing fields. A value of the wrong type is not changed, and validation rejects it.
pub fn default_jobset(set: &mut Value) {
    let Some(spec) = set.get_mut("spec").and_then(Value::as_object_mut) else { return };
    put(object(spec, "successPolicy"), "operator", json!("All"));
    put(object(spec, "startupPolicy"), "startupPolicyOrder", json!("AnyOrder"));
    if let Some(network) = object(spec, "network") {
        put(Some(&mut *network), "enableDNSHostnames", json!(true));
        put(Some(network), "publishNotReadyAddresses", json!(true));
    }
    for entry in items(spec.get_mut("replicatedJobs")) {
        let job = entry.get_mut("template").and_then(Value::as_object_mut).and_then(|job| object(job, "spec"));
        let Some(job) = job else { continue };
        put(Some(&mut *job), "completionMode", json!("Indexed"));
        let pod = object(job, "template").and_then(|template| object(template, "spec"));
        put(pod, "restartPolicy", json!("OnFailure"));
    }
    let rules = spec.get_mut("failurePolicy").and_then(|policy| policy.get_mut("rules"));
    for (position, rule) in items(rules).enumerate() {
        put(rule.as_object_mut(), "name", json!(format!("failurePolicyRule{position}")));
    }
    for policy in items(spec.get_mut("volumeClaimPolicies")).filter_map(Value::as_object_mut) {
        put(object(policy, "retentionPolicy"), "whenDeleted", json!("Delete"));
    }
}

fn items(list: Option<&mut Value>) -> impl Iterator<Item = &mut Value> {
    list.and_then(Value::as_array_mut).into_iter().flatten()
}

/// The object under a key, created if it is missing.
fn object<'a>(parent: &'a mut Map<String, Value>, key: &str) -> Option<&'a mut Map<String, Value>> {
    let slot = parent.entry(key).or_insert(Value::Null);
    if slot.is_null() {
        *slot = json!({});
    }
    slot.as_object_mut()
}

/// Sets a field that is absent, null or empty.
fn put(object: Option<&mut Map<String, Value>>, key: &str, value: Value) {
    let Some(object) = object else { return };
    let slot = object.entry(key).or_insert(Value::Null);
    if slot.is_null() || slot.as_str() == Some("") {
        *slot = value;
    }
}
