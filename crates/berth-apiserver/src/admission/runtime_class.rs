//! RuntimeClass: a pod gets the overhead, node selector and tolerations of its class. A pod is
//! rejected if its class does not exist, or if its fields contradict the class.
//!
//! Source: Kubernetes documentation, "Runtime Class" and "Pod Overhead".

use std::sync::Arc;

use berth_apimachinery::quantity::Quantity;
use berth_apimachinery::status::Status;
use serde_json::{Map, Value};

use super::{AdmissionPlugin, AdmissionRequest, forbidden, is_pod_create};
use crate::strategy;

/// Message for a pod whose overhead differs from that of its class.
const MISMATCH: &str = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";

pub(crate) struct RuntimeClass;

impl AdmissionPlugin for RuntimeClass {
    fn name(&self) -> &str {
        "RuntimeClass"
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        if !is_pod_create(request) {
            return Ok(());
        }
        let Some(class) = find(request)? else { return Ok(()) };
        let Some(pod) = &mut request.object else { return Ok(()) };
        let taken = take_over(strategy::spec_mut(pod), &class);
        taken.map_err(|why| forbidden(request, &why))
    }

    fn validate(&self, request: &AdmissionRequest<'_>) -> Result<(), Status> {
        if !is_pod_create(request) {
            return Ok(());
        }
        let class = find(request)?;
        let overhead = request.object.as_ref().map(|pod| &pod["spec"]["overhead"]).unwrap_or(&Value::Null);
        let of_class = class.as_ref().map(|class| &class["overhead"]["podFixed"]).unwrap_or(&Value::Null);
        if are_equal(overhead, of_class) {
            return Ok(());
        }
        let why = if is_set(of_class) {
            MISMATCH
        } else {
            "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
        };
        Err(forbidden(request, why))
    }
}

/// The RuntimeClass of the pod, if the pod names one.
fn find(request: &AdmissionRequest<'_>) -> Result<Option<Arc<Value>>, Status> {
    let name = request.object.as_ref().and_then(|pod| pod["spec"]["runtimeClassName"].as_str()).unwrap_or_default();
    if name.is_empty() {
        return Ok(None);
    }
    match request.objects.get("node.k8s.io", "runtimeclasses", "", name) {
        Some(class) => Ok(Some(class)),
        None => Err(forbidden(request, &format!("pod rejected: RuntimeClass \"{name}\" not found"))),
    }
}

fn is_set(map: &Value) -> bool {
    map.as_object().is_some_and(|map| !map.is_empty())
}

/// Compares amounts by value.
fn are_equal(a: &Value, b: &Value) -> bool {
    let none = Map::new();
    let (a, b) = (a.as_object().unwrap_or(&none), b.as_object().unwrap_or(&none));
    let is_same = |a: &Value, b: &Value| match (Quantity::from_json(a), Quantity::from_json(b)) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    };
    a.len() == b.len() && a.iter().all(|(name, amount)| b.get(name).is_some_and(|other| is_same(amount, other)))
}

/// Sets the overhead, node selector and tolerations of the class. The error is the reason why that
/// is impossible.
fn take_over(spec: &mut Map<String, Value>, class: &Value) -> Result<(), String> {
    let overhead = &class["overhead"]["podFixed"];
    if is_set(overhead) {
        let own = spec.get("overhead").unwrap_or(&Value::Null);
        if is_set(own) && !are_equal(own, overhead) {
            return Err(MISMATCH.to_owned());
        }
        spec.insert("overhead".to_owned(), overhead.clone());
    }
    let scheduling = &class["scheduling"];
    if let Some(wanted) = scheduling["nodeSelector"].as_object() {
        let selector = spec.entry("nodeSelector").or_insert_with(|| Value::Object(Map::new()));
        if selector.is_null() {
            *selector = Value::Object(Map::new());
        }
        let Value::Object(selector) = selector else { return Ok(()) };
        for (key, value) in wanted {
            match selector.get(key) {
                Some(own) if own != value => {
                    let (own, value) = (own.as_str().unwrap_or_default(), value.as_str().unwrap_or_default());
                    return Err(format!(
                        "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; \
                         pod.spec.nodeSelector[{key}] = {own}"
                    ));
                }
                _ => {
                    selector.insert(key.clone(), value.clone());
                }
            }
        }
    }
    let wanted = scheduling["tolerations"].as_array().map(Vec::as_slice).unwrap_or_default();
    if !wanted.is_empty() {
        let tolerations = spec.entry("tolerations").or_insert_with(|| Value::Array(Vec::new()));
        if tolerations.is_null() {
            *tolerations = Value::Array(Vec::new());
        }
        if let Value::Array(tolerations) = tolerations {
            tolerations.extend(wanted.iter().cloned());
            *tolerations = without_covered(tolerations);
        }
    }
    Ok(())
}

/// The tolerations without those that another toleration covers.
fn without_covered(tolerations: &[Value]) -> Vec<Value> {
    let mut kept: Vec<Value> = Vec::new();
    for (index, toleration) in tolerations.iter().enumerate() {
        let mut others = kept.iter().chain(&tolerations[index + 1..]);
        if !others.any(|other| covers(other, toleration)) {
            kept.push(toleration.clone());
        }
    }
    kept
}

/// True if `wide` tolerates all taints that `narrow` does, for at least as long.
fn covers(wide: &Value, narrow: &Value) -> bool {
    let text = |toleration: &Value, field: &str| toleration[field].as_str().unwrap_or_default().to_owned();
    if wide == narrow {
        return true;
    }
    let is_wildcard = text(wide, "key").is_empty() && text(wide, "operator") == "Exists";
    if !is_wildcard && text(wide, "key") != text(narrow, "key") {
        return false;
    }
    let effect = text(wide, "effect");
    if !effect.is_empty() && effect != text(narrow, "effect") {
        return false;
    }
    if effect == "NoExecute" {
        let seconds = |toleration: &Value| toleration["tolerationSeconds"].as_i64();
        match (seconds(wide), seconds(narrow)) {
            (Some(wide), Some(narrow)) if wide >= narrow => {}
            (None, _) => {}
            _ => return false,
        }
    }
    match text(wide, "operator").as_str() {
        "Exists" => true,
        _ => text(narrow, "operator") != "Exists" && text(wide, "value") == text(narrow, "value"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_gets_the_fields_of_its_class() {
        let class = json!({"metadata": {"name": "gvisor"}, "overhead": {"podFixed": {"cpu": "250m"}},
            "scheduling": {"nodeSelector": {"runtime": "gvisor"}, "tolerations": [{"key": "gvisor", "operator": "Exists"}]}});
        let take = |mut spec: Value| take_over(spec.as_object_mut().expect("an object"), &class).map(|()| spec);
        let taken = take(json!({"nodeSelector": {"zone": "a"}, "overhead": {"cpu": "0.25"}, "tolerations": [
            {"key": "gvisor", "operator": "Equal", "value": "x"}]}));
        assert_eq!(
            taken,
            Ok(json!({"nodeSelector": {"zone": "a", "runtime": "gvisor"}, "overhead": {"cpu": "250m"},
                "tolerations": [{"key": "gvisor", "operator": "Exists"}]}))
        );
        assert_eq!(take(json!({"overhead": {"cpu": "1"}})), Err(MISMATCH.to_owned()));
        assert_eq!(
            take(json!({"nodeSelector": {"runtime": "runc"}})),
            Err("conflict: runtimeClass.scheduling.nodeSelector[runtime] = gvisor; \
                 pod.spec.nodeSelector[runtime] = runc"
                .to_owned())
        );
    }

    #[test]
    fn a_toleration_covers_another_with_the_same_key_or_any_key() {
        for (wide, narrow, is_covered) in [
            (json!({"operator": "Exists"}), json!({"key": "a", "value": "b"}), true),
            (json!({"key": "a", "value": "b"}), json!({"operator": "Exists"}), false),
            (json!({"key": "a", "operator": "Exists", "effect": "NoSchedule"}), json!({"key": "a"}), false),
            (
                json!({"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 9}),
                json!({"key": "a", "effect": "NoExecute"}),
                false,
            ),
            (
                json!({"key": "a", "operator": "Exists", "effect": "NoExecute"}),
                json!({"key": "a", "effect": "NoExecute", "tolerationSeconds": 9}),
                true,
            ),
        ] {
            assert_eq!(covers(&wide, &narrow), is_covered, "{wide} {narrow}");
        }
    }
}
