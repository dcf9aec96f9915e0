//! Devices and claims on them: defaults (resource.k8s.io/v1).

use berth_apimachinery::meta::map_mut;
use serde_json::{Map, Value};

use super::{Strategy, set_default, set_default_text, spec_mut};

/// What a claim says when nothing is said, also inside templates.
fn claim_spec(spec: &mut Map<String, Value>) {
    let requests = spec.get_mut("devices").and_then(|devices| devices.get_mut("requests"));
    for request in requests.and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(Value::Object(exactly)) = request.get_mut("exactly") {
            wanted(exactly);
        }
        let alternatives = request.get_mut("firstAvailable").and_then(Value::as_array_mut);
        for alternative in alternatives.into_iter().flatten() {
            wanted(map_mut(alternative));
        }
    }
}

/// How many: one, unless all are wanted.
fn wanted(request: &mut Map<String, Value>) {
    set_default_text(request, "allocationMode", "ExactCount");
    if request["allocationMode"] == "ExactCount" {
        set_default(request, "count", 1);
        if request["count"] == 0 {
            request.insert("count".to_owned(), 1.into());
        }
    }
    for toleration in request.get_mut("tolerations").and_then(Value::as_array_mut).into_iter().flatten() {
        set_default_text(map_mut(toleration), "operator", "Equal");
    }
}

pub(crate) struct Claims;

impl Strategy for Claims {
    fn default(&self, claim: &mut Value) {
        claim_spec(spec_mut(claim));
    }
}

pub(crate) struct Templates;

impl Strategy for Templates {
    fn default(&self, template: &mut Value) {
        if let Some(Value::Object(spec)) = spec_mut(template).get_mut("spec") {
            claim_spec(spec);
        }
    }
}
