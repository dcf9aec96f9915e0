//! What the definitions of Kubeflow Trainer's kinds say beyond their names: the schemas of TrainJob
//! and of its runtimes with defaults and rules, and the columns of `kubectl get`.

use serde_json::{Map, Value, json};

use crate::published::Published;

const CORE: &str = "io.k8s.api.core.v1";
const IMMUTABLE: &str = "field is immutable";

/// Completes the definition of a kind of Trainer; leaves other definitions alone.
pub(crate) fn complete(kind: &str, definition: &mut Value) {
    let mut published = Published::default();
    let version = &mut definition["spec"]["versions"][0];
    match kind {
        "TrainJob" => {
            version["additionalPrinterColumns"] = json!([
                {"name": "State", "type": "string", "jsonPath": ".status.conditions[-1:].type"},
                {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
            ]);
            let root = &mut version["schema"]["openAPIV3Schema"];
            root["x-kubernetes-validations"] = json!([
                rule(
                    "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
                    "metadata.name must match RFC 1035 DNS label format"
                ),
                rule("size(self.metadata.name) <= 63", "metadata.name must be no more than 63 characters"),
            ]);
            root["properties"]["spec"] = job_spec(&mut published);
            root["properties"]["status"] = job_status(&mut published);
        }
        "TrainingRuntime" | "ClusterTrainingRuntime" => {
            let root = &mut version["schema"]["openAPIV3Schema"];
            if let Some(properties) = root["properties"].as_object_mut() {
                properties.insert("spec".to_owned(), runtime_spec());
                // Runtimes have no status.
                properties.remove("status");
            }
            if let Some(version) = version.as_object_mut() {
                version.remove("subresources");
            }
        }
        _ => {}
    }
}

fn rule(rule: &str, message: &str) -> Value {
    json!({"rule": rule, "message": message})
}

/// Adds the rule that a field does not change.
fn immutable(mut schema: Value) -> Value {
    schema["x-kubernetes-validations"] = json!([rule("self == oldSelf", IMMUTABLE)]);
    schema
}

fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let fields: Map<String, Value> = fields.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect();
    json!({"type": "object", "properties": fields})
}

fn required(mut schema: Value, fields: &[&str]) -> Value {
    schema["required"] = json!(fields);
    schema
}

fn string(length_max: u32) -> Value {
    json!({"type": "string", "maxLength": length_max})
}

/// A string of at least one character.
fn name(length_max: u32) -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": length_max})
}

fn integer() -> Value {
    json!({"type": "integer", "format": "int32"})
}

/// A list whose items are identified by a field.
fn list_by(key: &str, items: Value, length_max: Option<u32>) -> Value {
    let mut list = json!({"type": "array", "items": items, "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": [key]});
    if let Some(length_max) = length_max {
        list["maxItems"] = json!(length_max);
    }
    list
}

fn atomic(items: Value) -> Value {
    json!({"type": "array", "items": items, "x-kubernetes-list-type": "atomic"})
}

fn strings() -> Value {
    let mut list = atomic(string(1_048_576));
    list["maxItems"] = json!(128);
    list
}

fn texts() -> Value {
    json!({"type": "object", "additionalProperties": {"type": "string"}})
}

/// The metadata that patches set.
fn metadata() -> Value {
    object([("labels", texts()), ("annotations", texts())])
}

fn env(published: &mut Published) -> Value {
    list_by("name", published.schema(&format!("{CORE}.EnvVar")), Some(128))
}

fn job_spec(published: &mut Published) -> Value {
    let manager = "trainer.kubeflow.org/trainjob-controller";
    let managed_by = json!({"type": "string", "maxLength": 253, "default": manager, "x-kubernetes-validations": [
        rule("self in ['trainer.kubeflow.org/trainjob-controller', 'kueue.x-k8s.io/multikueue']",
            "ManagedBy must be trainer.kubeflow.org/trainjob-controller or kueue.x-k8s.io/multikueue if set"),
        rule("self == oldSelf", IMMUTABLE),
    ]});
    let mut group = string(253);
    group["default"] = json!("trainer.kubeflow.org");
    let mut kind = string(253);
    kind["default"] = json!("ClusterTrainingRuntime");
    let runtime_ref = object([("apiGroup", group), ("kind", kind), ("name", name(253))]);
    let initializer = object([("dataset", initializer(published)), ("model", initializer(published))]);
    let deadline = json!({"type": "integer", "format": "int64", "minimum": 1});
    let fields = object([
        ("runtimeRef", immutable(required(runtime_ref, &["name"]))),
        ("initializer", immutable(initializer)),
        ("trainer", immutable(trainer(published))),
        ("runtimePatches", list_by("manager", patch(published), Some(16))),
        ("podTemplateOverrides", atomic(override_of(published))),
        ("suspend", json!({"type": "boolean", "default": false})),
        ("activeDeadlineSeconds", immutable(deadline)),
        ("managedBy", managed_by),
    ]);
    required(fields, &["runtimeRef"])
}

fn initializer(published: &mut Published) -> Value {
    let mut uri = string(2048);
    uri["x-kubernetes-validations"] = json!([rule(
        "self == '' || self.matches('^[A-Za-z][A-Za-z0-9+.-]*://.+$')",
        "storageUri may be empty, or it must be a valid URI (scheme://...)"
    )]);
    let secret = published.schema(&format!("{CORE}.LocalObjectReference"));
    object([("storageUri", uri), ("env", env(published)), ("secretRef", secret)])
}

fn trainer(published: &mut Published) -> Value {
    let mut nodes = integer();
    nodes["minimum"] = json!(0);
    let mut processes = integer();
    processes["x-kubernetes-validations"] =
        json!([rule("self >= 1", "numProcPerNode must be greater than or equal to 1")]);
    object([
        ("image", string(500)),
        ("command", strings()),
        ("args", strings()),
        ("env", env(published)),
        ("numNodes", nodes),
        ("resourcesPerNode", published.schema(&format!("{CORE}.ResourceRequirements"))),
        ("numProcPerNode", processes),
    ])
}

fn container_patch(published: &mut Published) -> Value {
    let mounts = list_by("mountPath", published.schema(&format!("{CORE}.VolumeMount")), None);
    let security = published.schema(&format!("{CORE}.SecurityContext"));
    let fields = object([
        ("name", json!({"type": "string"})),
        ("env", env(published)),
        ("volumeMounts", mounts),
        ("securityContext", security),
    ]);
    required(fields, &["name"])
}

/// The fields of pods that patches set.
fn pod_spec_patch(published: &mut Published) -> Value {
    let containers = list_by("name", container_patch(published), None);
    let mut of = |name: &str| published.schema(&format!("{CORE}.{name}"));
    object([
        ("serviceAccountName", json!({"type": "string"})),
        ("volumes", list_by("name", of("Volume"), None)),
        ("initContainers", containers.clone()),
        ("containers", containers),
        ("imagePullSecrets", list_by("name", of("LocalObjectReference"), None)),
        ("securityContext", of("PodSecurityContext")),
        ("nodeSelector", texts()),
        ("affinity", of("Affinity")),
        ("tolerations", atomic(of("Toleration"))),
        ("schedulingGates", list_by("name", of("PodSchedulingGate"), None)),
        ("terminationGracePeriodSeconds", json!({"type": "integer", "format": "int64", "minimum": 0})),
    ])
}

fn patch(published: &mut Published) -> Value {
    let pod = object([("metadata", metadata()), ("spec", pod_spec_patch(published))]);
    let job = object([("metadata", metadata()), ("spec", object([("template", pod)]))]);
    let replicated = required(object([("name", name(253)), ("template", job)]), &["name"]);
    let set = object([("replicatedJobs", list_by("name", replicated, Some(100)))]);
    let template = object([("metadata", metadata()), ("spec", set)]);
    let fields = object([
        ("manager", immutable(name(253))),
        ("time", json!({"type": "string", "format": "date-time"})),
        ("trainingRuntimeSpec", object([("template", template)])),
    ]);
    required(fields, &["manager"])
}

/// An override of Trainer 2.0 and 2.1, in place of which later versions have patches.
fn override_of(published: &mut Published) -> Value {
    let target = required(object([("name", json!({"type": "string"}))]), &["name"]);
    let fields = object([
        ("targetJobs", list_by("name", target, None)),
        ("metadata", metadata()),
        ("spec", pod_spec_patch(published)),
    ]);
    required(fields, &["targetJobs"])
}

fn job_status(published: &mut Published) -> Value {
    let counts = ["ready", "succeeded", "failed", "active", "suspended"];
    let mut job = object([("name", name(253))]);
    for count in counts {
        let mut schema = integer();
        schema["minimum"] = json!(0);
        job["properties"][count] = schema;
    }
    let job = required(job, &["active", "failed", "name", "ready", "succeeded", "suspended"]);
    let condition = published.schema("io.k8s.apimachinery.pkg.apis.meta.v1.Condition");
    object([
        ("conditions", list_by("type", condition, Some(8))),
        ("jobsStatus", list_by("name", job, Some(100))),
        ("trainerStatus", json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})),
    ])
}

fn runtime_spec() -> Value {
    let mut processes = integer();
    processes["default"] = json!(1);
    processes["x-kubernetes-validations"] = json!([rule("self >= 1", "NumProcPerNode in mpiPolicy must be >= 1")]);
    let mpi = object([
        ("numProcPerNode", processes),
        ("mpiImplementation", json!({"type": "string", "enum": ["OpenMPI", ""], "default": "OpenMPI"})),
        ("sshAuthMountPath", json!({"type": "string", "maxLength": 4096, "default": "/root/.ssh"})),
        ("runLauncherAsNode", json!({"type": "boolean", "default": false})),
    ]);
    let mut flux = integer();
    flux["default"] = json!(1);
    let mut policy = object([
        ("numNodes", integer()),
        ("torch", object([("envInjection", env_injection())])),
        ("mpi", mpi),
        ("jax", json!({"type": "object"})),
        ("xgboost", json!({"type": "object"})),
        ("flux", object([("numProcPerNode", flux)])),
    ]);
    policy["x-kubernetes-validations"] = json!([rule(
        "[has(self.torch), has(self.mpi), has(self.jax), has(self.xgboost),has(self.flux)].filter(x, x).size() <= 1",
        "Only one of the policy can be configured"
    )]);
    object([("mlPolicy", policy), ("podGroupPolicy", pod_group_policy()), ("template", jobset_template())])
}

fn env_injection() -> Value {
    let mut containers = json!({"type": "array", "items": string(63), "minItems": 1, "maxItems": 8,
        "x-kubernetes-list-type": "set"});
    containers["x-kubernetes-validations"] = json!([rule(
        "!self.exists(c, c == 'node')",
        "containerNames must not include the main node container because PET_* envs are always injected into it"
    )]);
    let target = object([("jobName", name(253)), ("containerNames", containers)]);
    object([("targets", list_by("jobName", required(target, &["containerNames", "jobName"]), Some(16)))])
}

fn pod_group_policy() -> Value {
    let mut timeout = integer();
    timeout["default"] = json!(60);
    let mut tier = integer();
    tier["default"] = json!(1);
    let mode = json!({"type": "string", "enum": ["hard", "soft"], "default": "hard"});
    let topology = object([("mode", mode), ("highestTierAllowed", tier)]);
    object([
        ("coscheduling", object([("scheduleTimeoutSeconds", timeout)])),
        ("volcano", object([("networkTopology", topology)])),
    ])
}

/// The template of a JobSet: metadata, and the spec as JobSet's definition has it.
fn jobset_template() -> Value {
    let of_jobset = |definition: &&Value| definition["metadata"]["name"] == "jobsets.jobset.x-k8s.io";
    let definition = crate::crds().iter().find(of_jobset).expect("JobSet is one of the kinds of this crate");
    let spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone();
    object([("metadata", metadata()), ("spec", spec)])
}
