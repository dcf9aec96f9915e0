//! Kinds of the Prometheus operator, group `monitoring.coreos.com/v1`, that manifests often
//! include. Berth stores and shows them but does not use them.
//!
//! Their spec may be any object. A cluster that runs the operator has the full definitions and does
//! not need these.

use serde_json::{Value, json};

/// Definitions of ServiceMonitor, PodMonitor and PrometheusRule.
pub fn crds() -> Vec<Value> {
    [("ServiceMonitor", "smon"), ("PodMonitor", "pmon"), ("PrometheusRule", "promrule")]
        .into_iter()
        .map(|(kind, short)| {
            let singular = kind.to_lowercase();
            let plural = format!("{singular}s");
            json!({
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": { "name": format!("{plural}.monitoring.coreos.com") },
                "spec": {
                    "group": "monitoring.coreos.com",
                    "names": {
                        "categories": ["prometheus-operator"],
                        "kind": kind,
                        "listKind": format!("{kind}List"),
                        "plural": plural,
                        "shortNames": [short],
                        "singular": singular,
                    },
                    "scope": "Namespaced",
                    "versions": [{
                        "name": "v1",
                        "served": true,
                        "storage": true,
                        "schema": { "openAPIV3Schema": {
                            "type": "object",
                            "description": "Stored so that manifests can be applied. No controller of this cluster processes it.",
                            "required": ["spec"],
                            "properties": {
                                "apiVersion": { "type": "string" },
                                "kind": { "type": "string" },
                                "metadata": { "type": "object" },
                                "spec": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
                                "status": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
                            },
                        } },
                        "subresources": { "status": {} },
                    }],
                },
            })
        })
        .collect()
}
