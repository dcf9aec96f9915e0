//! Mandatory objects of flow control (two FlowSchemas, two PriorityLevelConfigurations), and the
//! ServiceCIDR from which Services get their addresses.

use serde_json::{Value, json};

use crate::strategy::SERVICE_RANGE;

/// The FlowSchemas and PriorityLevelConfigurations `exempt` and `catch-all`, which every cluster
/// has. Their fields are those that Kubernetes documents.
pub(super) fn flow_control() -> Vec<Value> {
    const VERSION: &str = "flowcontrol.apiserver.k8s.io/v1";
    let level = |name: &str, spec: Value| {
        json!({"apiVersion": VERSION, "kind": "PriorityLevelConfiguration",
        "metadata": metadata(name), "spec": spec})
    };
    let schema = |name: &str, precedence: u32, groups: &[&str], method: Value| {
        let subjects: Vec<Value> =
            groups.iter().map(|group| json!({"kind": "Group", "group": {"name": group}})).collect();
        let rule = json!({
            "subjects": subjects,
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true,
                "namespaces": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
        });
        let mut spec = json!({"priorityLevelConfiguration": {"name": name}, "matchingPrecedence": precedence,
            "rules": [rule]});
        if !method.is_null() {
            spec["distinguisherMethod"] = method;
        }
        json!({"apiVersion": VERSION, "kind": "FlowSchema", "metadata": metadata(name), "spec": spec,
            "status": {"conditions": [{"type": "Dangling", "status": "False", "reason": "Found",
                "message": format!("This FlowSchema references the PriorityLevelConfiguration object named \"{name}\" and it exists")}]}})
    };
    vec![
        level("exempt", json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}})),
        level(
            "catch-all",
            json!({"type": "Limited", "limited": {"nominalConcurrencyShares": 5, "lendablePercent": 0,
            "limitResponse": {"type": "Reject"}}}),
        ),
        schema("exempt", 1, &["system:masters"], Value::Null),
        schema("catch-all", 10_000, &["system:unauthenticated", "system:authenticated"], json!({"type": "ByUser"})),
    ]
}

fn metadata(name: &str) -> Value {
    json!({"name": name, "generation": 1, "annotations": {"apf.kubernetes.io/autoupdate-spec": "true"}})
}

/// The ServiceCIDR `kubernetes`: the address range of Services.
pub(super) fn service_range(now: &Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes", "finalizers": ["networking.k8s.io/service-cidr-finalizer"]},
        "spec": {"cidrs": [SERVICE_RANGE]},
        "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "",
            "message": "Kubernetes default Service CIDR is ready", "lastTransitionTime": now}]},
    })
}
