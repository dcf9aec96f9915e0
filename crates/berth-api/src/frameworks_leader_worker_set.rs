//! What the definition of LeaderWorkerSet says beyond its names: the schema of spec and status with
//! its defaults, the scale subresource, and the columns of `kubectl get`.

use serde_json::{Value, json};

use crate::published::Published;

/// Completes the definition of LeaderWorkerSet; leaves other definitions alone.
pub(crate) fn complete(kind: &str, definition: &mut Value) {
    if kind != "LeaderWorkerSet" {
        return;
    }
    let mut published = Published::default();
    definition["spec"]["names"]["shortNames"] = json!(["lws"]);
    let version = &mut definition["spec"]["versions"][0];
    let properties = &mut version["schema"]["openAPIV3Schema"]["properties"];
    properties["spec"] = spec(&mut published);
    properties["status"] = status(&mut published);
    version["subresources"]["scale"] = json!({
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.hpaPodSelector",
    });
    let column = |name: &str, kind: &str, path: &str| json!({"name": name, "type": kind, "jsonPath": path});
    version["additionalPrinterColumns"] = json!([
        column("Ready", "integer", ".status.readyReplicas"),
        column("Desired", "integer", ".spec.replicas"),
        column("Up-to-date", "integer", ".status.updatedReplicas"),
        column("Age", "date", ".metadata.creationTimestamp"),
    ]);
}

fn number() -> Value {
    json!({"type": "integer", "format": "int32"})
}

fn number_or(default: i32) -> Value {
    json!({"type": "integer", "format": "int32", "default": default})
}

/// One of these values; the first is the default.
fn choice(values: &[&str]) -> Value {
    json!({"type": "string", "enum": values, "default": values[0]})
}

fn amount(default: i32) -> Value {
    json!({"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": true, "default": default})
}

fn spec(published: &mut Published) -> Value {
    let mut replicas = number_or(1);
    replicas["minimum"] = json!(0);
    replicas["maximum"] = json!(1_000_000);
    json!({
        "type": "object",
        "required": ["leaderWorkerTemplate"],
        "properties": {
            "replicas": replicas,
            "leaderWorkerTemplate": template(published),
            "rolloutStrategy": {
                "type": "object",
                "required": ["type"],
                "properties": {
                    "type": choice(&["RollingUpdate"]),
                    "rollingUpdateConfiguration": {
                        "type": "object",
                        "properties": {
                            "partition": number_or(0),
                            "maxUnavailable": amount(1),
                            "maxSurge": amount(0),
                        },
                    },
                },
            },
            "startupPolicy": choice(&["LeaderCreated", "LeaderReady"]),
            "networkConfig": {
                "type": "object",
                "required": ["subdomainPolicy"],
                "properties": {"subdomainPolicy": {"type": "string", "enum": ["Shared", "UniquePerReplica"]}},
            },
        },
    })
}

fn template(published: &mut Published) -> Value {
    let pod = published.schema("io.k8s.api.core.v1.PodTemplateSpec");
    json!({
        "type": "object",
        "required": ["workerTemplate"],
        "properties": {
            "leaderTemplate": pod,
            "workerTemplate": pod,
            "size": number_or(1),
            "restartPolicy": choice(&["RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None", "Default"]),
            "subGroupPolicy": {
                "type": "object",
                "properties": {
                    "subGroupPolicyType": choice(&["LeaderWorker", "LeaderExcluded"]),
                    "subGroupSize": number(),
                },
            },
            "volumeClaimTemplates": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "apiVersion": {"type": "string"},
                        "kind": {"type": "string"},
                        "metadata": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                        "spec": published.schema("io.k8s.api.core.v1.PersistentVolumeClaimSpec"),
                        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                    },
                },
            },
            "persistentVolumeClaimRetentionPolicy": {
                "type": "object",
                "properties": {"whenDeleted": {"type": "string"}, "whenScaled": {"type": "string"}},
            },
        },
    })
}

fn status(published: &mut Published) -> Value {
    json!({
        "type": "object",
        "properties": {
            "conditions": {
                "type": "array",
                "items": published.schema("io.k8s.apimachinery.pkg.apis.meta.v1.Condition"),
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
            "replicas": number(),
            "readyReplicas": number(),
            "updatedReplicas": number(),
            "hpaPodSelector": {"type": "string"},
            "observedGeneration": {"type": "integer", "format": "int64"},
        },
    })
}
