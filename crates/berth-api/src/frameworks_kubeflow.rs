//! Completes the CustomResourceDefinitions of Kubeflow's training kinds: types, defaults and rules
//! of the fields that operators and queues read, the subresource `scale`, and the columns of
//! `kubectl get`. Pod templates and all other fields accept any value.

use serde_json::{Value, json};

/// The kinds of the training operator except MPIJob: name, field with the replica specs, and true
/// if `scale` sets the number of workers.
const TRAINING: &[(&str, &str, bool)] = &[
    ("PyTorchJob", "pytorchReplicaSpecs", true),
    ("TFJob", "tfReplicaSpecs", false),
    ("XGBoostJob", "xgbReplicaSpecs", false),
    ("PaddleJob", "paddleReplicaSpecs", true),
    ("JAXJob", "jaxReplicaSpecs", true),
];

/// Completes the definition of a training kind; leaves other definitions alone.
pub(crate) fn complete(kind: &str, definition: &mut Value) {
    if kind == "MPIJob" {
        return complete_mpi(definition);
    }
    let Some((_, specs, has_scale)) = TRAINING.iter().find(|(name, ..)| *name == kind) else { return };
    let mut fields = vec![("runPolicy", run_policy()), (*specs, replica_specs())];
    match kind {
        "PyTorchJob" => {
            fields.push(("nprocPerNode", json!({"type": "string"})));
            fields.push(("elasticPolicy", open([bounds(), rendezvous()].concat())));
        }
        "PaddleJob" => fields.push(("elasticPolicy", open(bounds()))),
        "TFJob" => {
            fields.push(("successPolicy", json!({"type": "string"})));
            fields.push(("enableDynamicWorker", json!({"type": "boolean"})));
        }
        _ => {}
    }
    let version = &mut definition["spec"]["versions"][0];
    version["schema"]["openAPIV3Schema"]["properties"]["spec"] = required(specs, open(fields));
    version["schema"]["openAPIV3Schema"]["properties"]["status"] = status();
    version["additionalPrinterColumns"] = json!([state_column(), age_column()]);
    if *has_scale {
        version["subresources"]["scale"] = json!({
            "specReplicasPath": format!(".spec.{specs}.Worker.replicas"),
            "statusReplicasPath": ".status.replicaStatuses.Worker.active",
            "labelSelectorPath": ".status.replicaStatuses.Worker.selector",
        });
    }
}

/// Completes the definition of MPIJob. It has two versions with replica specs of the same shape:
/// `v2beta1` of the MPI operator, which is stored, and `v1` of the training operator.
fn complete_mpi(definition: &mut Value) {
    let version = &mut definition["spec"]["versions"][0];
    let mut fields = vec![("runPolicy", run_policy()), ("mpiReplicaSpecs", replica_specs())];
    let older = fields.clone();
    fields.extend([
        ("slotsPerWorker", json!({"type": "integer", "format": "int32", "default": 1})),
        ("runLauncherAsWorker", json!({"type": "boolean", "default": false})),
        ("sshAuthMountPath", json!({"type": "string", "default": "/root/.ssh"})),
        (
            "launcherCreationPolicy",
            json!({"type": "string", "default": "AtStartup",
            "enum": ["AtStartup", "WaitForWorkersReady"]}),
        ),
        ("mpiImplementation", json!({"type": "string", "default": "OpenMPI", "enum": ["OpenMPI", "Intel", "MPICH"]})),
    ]);
    version["schema"]["openAPIV3Schema"]["properties"]["spec"] = required("mpiReplicaSpecs", open(fields));
    version["schema"]["openAPIV3Schema"]["properties"]["status"] = status();
    version["additionalPrinterColumns"] = json!([age_column(), state_column()]);
    let mut second = version.clone();
    second["name"] = json!("v1");
    second["storage"] = json!(false);
    let mut older = older;
    older.extend([
        ("slotsPerWorker", json!({"type": "integer", "format": "int32"})),
        ("cleanPodPolicy", json!({"type": "string"})),
        ("mainContainer", json!({"type": "string"})),
    ]);
    second["schema"]["openAPIV3Schema"]["properties"]["spec"] = required("mpiReplicaSpecs", open(older));
    if let Some(versions) = definition["spec"]["versions"].as_array_mut() {
        versions.push(second);
    }
}

fn state_column() -> Value {
    json!({"name": "State", "type": "string", "jsonPath": ".status.conditions[-1:].type"})
}

fn age_column() -> Value {
    json!({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"})
}

/// Schema of an object with these fields, which accepts any other field.
fn open(fields: Vec<(&str, Value)>) -> Value {
    let fields: serde_json::Map<String, Value> =
        fields.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect();
    json!({"type": "object", "properties": fields, "x-kubernetes-preserve-unknown-fields": true})
}

fn required(field: &str, mut schema: Value) -> Value {
    schema["required"] = json!([field]);
    schema
}

fn integer() -> Value {
    json!({"type": "integer", "format": "int32"})
}

fn string() -> Value {
    json!({"type": "string"})
}

fn replica_specs() -> Value {
    let template = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({"type": "object", "additionalProperties": {"type": "object", "properties": {
        "replicas": integer(),
        "restartPolicy": string(),
        "template": template,
    }}})
}

fn run_policy() -> Value {
    let queue = json!({"type": "string", "x-kubernetes-validations": [
        {"rule": "self == oldSelf", "message": "spec.runPolicy.schedulingPolicy.queue is immutable"}]});
    let amount = json!({
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": "^(\\+|-)?(([0-9]+(\\.[0-9]*)?)|(\\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\\+|-)?(([0-9]+(\\.[0-9]*)?)|(\\.[0-9]+))))?$",
        "x-kubernetes-int-or-string": true,
    });
    json!({"type": "object", "properties": {
        "activeDeadlineSeconds": {"type": "integer", "format": "int64"},
        "backoffLimit": integer(),
        "cleanPodPolicy": string(),
        "managedBy": string(),
        "schedulingPolicy": {"type": "object", "properties": {
            "minAvailable": integer(),
            "minResources": {"type": "object", "additionalProperties": amount},
            "priorityClass": string(),
            "queue": queue,
            "scheduleTimeoutSeconds": integer(),
        }},
        "suspend": {"type": "boolean", "default": false},
        "ttlSecondsAfterFinished": integer(),
    }})
}

/// Fields of an elastic policy that bound the number of workers and of restarts.
fn bounds() -> Vec<(&'static str, Value)> {
    vec![("minReplicas", integer()), ("maxReplicas", integer()), ("maxRestarts", integer())]
}

/// Fields of an elastic policy by which the workers of PyTorch find each other.
fn rendezvous() -> Vec<(&'static str, Value)> {
    vec![
        ("rdzvBackend", string()),
        ("rdzvPort", integer()),
        ("rdzvHost", string()),
        ("rdzvId", string()),
        ("nProcPerNode", integer()),
        ("standalone", json!({"type": "boolean"})),
    ]
}

fn status() -> Value {
    let time = json!({"type": "string", "format": "date-time"});
    let condition = json!({"type": "object", "required": ["status", "type"], "properties": {
        "type": string(),
        "status": string(),
        "reason": string(),
        "message": string(),
        "lastUpdateTime": time,
        "lastTransitionTime": time,
    }});
    let replicas = open(vec![("active", integer()), ("succeeded", integer()), ("failed", integer())]);
    open(vec![
        ("conditions", json!({"type": "array", "items": condition})),
        ("replicaStatuses", json!({"type": "object", "additionalProperties": replicas})),
        ("startTime", time.clone()),
        ("completionTime", time.clone()),
        ("lastReconcileTime", time),
    ])
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    fn definition(kind: &str) -> Value {
        let all = crate::frameworks::crds();
        all.into_iter().find(|it| it["spec"]["names"]["kind"] == kind).expect("a definition")
    }

    /// Asserts that a schema agrees with that of the kind's project in every field that it lists.
    fn compare(ours: &Value, theirs: &Value, path: &str) {
        for (field, schema) in ours["properties"].as_object().into_iter().flatten() {
            let (path, theirs) = (format!("{path}.{field}"), &theirs["properties"][field]);
            assert!(theirs.is_object(), "{path} is not a field of the project's definition");
            for key in ["type", "format", "default", "x-kubernetes-validations", "anyOf", "pattern", "required"] {
                assert_eq!(schema[key], theirs[key], "{path}: {key}");
            }
            compare(schema, theirs, &path);
            compare(&schema["additionalProperties"], &theirs["additionalProperties"], &format!("{path}.*"));
            compare(&schema["items"], &theirs["items"], &format!("{path}[]"));
        }
    }

    #[test]
    fn definitions_agree_with_those_of_the_training_operator() {
        let Some(folder) = berth_testing::shared("kubernetes/crds/training-operator") else { return };
        for kind in ["PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob", "MPIJob"] {
            let ours = definition(kind);
            let file = folder.join(format!("kubeflow.org_{}s.yaml", kind.to_lowercase()));
            let text = std::fs::read_to_string(file).expect("a file");
            let theirs = berth_apimachinery::decode::documents(&text).expect("YAML").remove(0);
            let version = |definition: &Value| {
                let versions = definition["spec"]["versions"].as_array().expect("versions").clone();
                versions.into_iter().find(|version| version["name"] == "v1").expect("v1")
            };
            let (ours, theirs) = (version(&ours), version(&theirs));
            assert_eq!(ours["additionalPrinterColumns"], theirs["additionalPrinterColumns"], "{kind}");
            assert_eq!(ours["subresources"], theirs["subresources"], "{kind}");
            let schema = |version: &Value| version["schema"]["openAPIV3Schema"].clone();
            compare(&schema(&ours), &schema(&theirs), kind);
        }
    }

    #[test]
    fn mpi_jobs_have_the_versions_of_both_operators() {
        let definition = definition("MPIJob");
        let versions = definition["spec"]["versions"].as_array().expect("versions");
        let stored: Vec<_> = versions.iter().map(|it| (it["name"].clone(), it["storage"].clone())).collect();
        assert_eq!(stored, [(json!("v2beta1"), json!(true)), (json!("v1"), json!(false))]);
    }
}
