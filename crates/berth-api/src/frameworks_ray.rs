//! Parts of the CustomResourceDefinitions of Ray's kinds: defaults of the fields that other
//! controllers read, rules about `managedBy`, and the columns of `kubectl get`. The schemas accept
//! any other fields.

use serde_json::{Map, Value, json};

/// Adds these parts to the definition of a kind of Ray; does not change other definitions.
pub(crate) fn complete(kind: &str, definition: &mut Value) {
    let (spec, columns) = match kind {
        "RayCluster" => (cluster(), CLUSTER_COLUMNS),
        "RayJob" => (job(), JOB_COLUMNS),
        "RayService" => (service(), SERVICE_COLUMNS),
        "RayCronJob" => (open([("jobTemplate", job())]), CRON_JOB_COLUMNS),
        _ => return,
    };
    definition["spec"]["names"]["categories"] = json!(["all"]);
    let version = &mut definition["spec"]["versions"][0];
    version["schema"]["openAPIV3Schema"]["properties"]["spec"] = spec;
    version["additionalPrinterColumns"] = columns.iter().map(column).collect();
}

/// A column of `kubectl get`: name, type, JSON path, and priority (1: only with `-o wide`).
type Column = (&'static str, &'static str, &'static str, u8);

const CLUSTER_COLUMNS: &[Column] = &[
    ("desired workers", "integer", ".status.desiredWorkerReplicas", 0),
    ("available workers", "integer", ".status.availableWorkerReplicas", 0),
    ("cpus", "string", ".status.desiredCPU", 0),
    ("memory", "string", ".status.desiredMemory", 0),
    ("gpus", "string", ".status.desiredGPU", 0),
    ("tpus", "string", ".status.desiredTPU", 1),
    ("status", "string", ".status.state", 0),
    ("age", "date", ".metadata.creationTimestamp", 0),
    ("head pod IP", "string", ".status.head.podIP", 1),
    ("head service IP", "string", ".status.head.serviceIP", 1),
];
const JOB_COLUMNS: &[Column] = &[
    ("job status", "string", ".status.jobStatus", 0),
    ("deployment status", "string", ".status.jobDeploymentStatus", 0),
    ("ray cluster name", "string", ".status.rayClusterName", 0),
    ("start time", "string", ".status.startTime", 0),
    ("end time", "string", ".status.endTime", 0),
    ("age", "date", ".metadata.creationTimestamp", 0),
];
const SERVICE_COLUMNS: &[Column] = &[
    ("service status", "string", ".status.serviceStatus", 0),
    ("num serve endpoints", "string", ".status.numServeEndpoints", 0),
];
const CRON_JOB_COLUMNS: &[Column] = &[
    ("schedule", "string", ".spec.schedule", 0),
    ("timezone", "string", ".spec.timeZone", 0),
    ("last schedule", "date", ".status.lastScheduleTime", 0),
    ("age", "date", ".metadata.creationTimestamp", 0),
    ("suspend", "boolean", ".spec.suspend", 0),
];

fn column((name, kind, path, priority): &Column) -> Value {
    let mut column = json!({"name": name, "type": kind, "jsonPath": path});
    if *priority != 0 {
        column["priority"] = json!(priority);
    }
    column
}

/// Schema of an object that has these fields and accepts any others.
fn open<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let fields: Map<String, Value> = fields.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect();
    json!({"type": "object", "properties": fields, "x-kubernetes-preserve-unknown-fields": true})
}

fn number(default: i64) -> Value {
    json!({"type": "integer", "format": "int32", "default": default})
}

fn managed_by() -> Value {
    json!({"type": "string", "x-kubernetes-validations": [
        {"rule": "self == oldSelf", "message": "the managedBy field is immutable"},
        {"rule": "self in ['ray.io/kuberay-operator', 'kueue.x-k8s.io/multikueue']",
         "message": "the managedBy field value must be either 'ray.io/kuberay-operator' or 'kueue.x-k8s.io/multikueue'"},
    ]})
}

fn cluster() -> Value {
    let mut group = open([
        ("groupName", json!({"type": "string"})),
        ("replicas", number(0)),
        ("minReplicas", number(0)),
        ("maxReplicas", number(i64::from(i32::MAX))),
        ("numOfHosts", number(1)),
    ]);
    group["required"] = json!(["groupName"]);
    open([("managedBy", managed_by()), ("workerGroupSpecs", json!({"type": "array", "items": group}))])
}

fn job() -> Value {
    open([
        ("managedBy", managed_by()),
        ("backoffLimit", number(0)),
        ("submissionMode", json!({"type": "string", "default": "K8sJobMode"})),
        ("ttlSecondsAfterFinished", number(0)),
        ("rayClusterSpec", cluster()),
    ])
}

fn service() -> Value {
    open([("managedBy", managed_by()), ("rayClusterConfig", cluster())])
}
