//! What the definition of AppWrapper says beyond its names: the schema of spec and status, the
//! short name and the columns of `kubectl get`.

use serde_json::{Value, json};

/// Completes the definition of AppWrapper; leaves other definitions alone.
pub(crate) fn complete(kind: &str, definition: &mut Value) {
    if kind != "AppWrapper" {
        return;
    }
    definition["spec"]["names"]["shortNames"] = json!(["aw"]);
    let version = &mut definition["spec"]["versions"][0];
    let schema = &mut version["schema"]["openAPIV3Schema"]["properties"];
    schema["spec"] = spec();
    schema["status"] = status();
    version["additionalPrinterColumns"] = columns();
}

fn columns() -> Value {
    let condition = |name: &str, type_: &str| {
        let path = format!(".status.conditions[?(@.type==\"{type_}\")].status");
        json!({"name": name, "type": "string", "jsonPath": path})
    };
    json!([
        {"name": "Status", "type": "string", "jsonPath": ".status.phase"},
        condition("Quota Reserved", "QuotaReserved"),
        condition("Resources Deployed", "ResourcesDeployed"),
        condition("Unhealthy", "Unhealthy"),
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ])
}

fn text() -> Value {
    json!({"type": "string"})
}

fn map() -> Value {
    json!({"type": "object", "additionalProperties": {"type": "string"}})
}

fn list(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

fn pod_set() -> Value {
    json!({
        "type": "object", "required": ["path"],
        "properties": {"annotations": map(), "path": text(), "replicas": {"type": "integer", "format": "int32"}},
    })
}

fn pod_set_info() -> Value {
    let toleration = json!({
        "type": "object",
        "properties": {
            "effect": text(), "key": text(), "operator": text(), "value": text(),
            "tolerationSeconds": {"type": "integer", "format": "int64"},
        },
    });
    let gate = json!({"type": "object", "required": ["name"], "properties": {"name": text()}});
    json!({
        "type": "object",
        "properties": {
            "annotations": map(), "labels": map(), "nodeSelector": map(),
            "tolerations": list(toleration), "schedulingGates": list(gate),
        },
    })
}

fn spec() -> Value {
    let template = json!({
        "type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true,
        "description": "The object of the component.",
    });
    let component = json!({
        "type": "object", "required": ["template"],
        "properties": {
            "annotations": map(), "template": template,
            "podSets": list(pod_set()), "podSetInfos": list(pod_set_info()),
        },
    });
    json!({
        "type": "object", "required": ["components"],
        "properties": {
            "components": list(component),
            "managedBy": text(),
            "suspend": {"type": "boolean"},
        },
    })
}

fn conditions() -> Value {
    let condition = json!({
        "type": "object", "required": ["lastTransitionTime", "message", "reason", "status", "type"],
        "properties": {
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "message": {"type": "string", "maxLength": 32768},
            "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
            "reason": {
                "type": "string", "maxLength": 1024, "minLength": 1,
                "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
            },
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "type": {"type": "string", "maxLength": 316},
        },
    });
    let mut list = list(condition);
    list["x-kubernetes-list-type"] = json!("map");
    list["x-kubernetes-list-map-keys"] = json!(["type"]);
    list
}

fn status() -> Value {
    let component = json!({
        "type": "object", "required": ["apiVersion", "kind", "name", "podSets"],
        "properties": {
            "apiVersion": text(), "kind": text(), "name": text(),
            "podSets": list(pod_set()), "conditions": conditions(),
        },
    });
    json!({
        "type": "object",
        "properties": {
            "phase": text(),
            "resettingCount": {"type": "integer", "format": "int32"},
            "conditions": conditions(),
            "componentStatus": list(component),
        },
    })
}
