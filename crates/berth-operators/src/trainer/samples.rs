//! Objects for the tests of this module.

use serde_json::{Value, json};

use super::constants::{NODE, STEP, TRAINER};
use super::types::TrainJobSpec;

/// A replicated job.
pub fn replicated(name: &str, step: Option<&str>, container: Value) -> Value {
    let mut job = json!({"name": name, "replicas": 1,
        "template": {"spec": {"template": {"spec": {"containers": [container]}}}}});
    if let Some(step) = step {
        job["template"]["metadata"]["labels"][STEP] = json!(step);
    }
    job
}

fn runtime(policy: Value, jobs: Vec<Value>) -> Value {
    json!({"mlPolicy": policy, "template": {"spec": {"replicatedJobs": jobs}}})
}

/// A runtime of PyTorch, with 4 CPUs per node.
pub fn torch() -> Value {
    framework("torch", json!({}))
}

/// A runtime of a framework, with 4 CPUs per node.
pub fn framework(name: &str, options: Value) -> Value {
    let container = json!({"name": NODE, "image": format!("{name}:1"), "resources": {"requests": {"cpu": "4"}}});
    runtime(json!({"numNodes": 1, name: options}), vec![replicated(NODE, Some(TRAINER), container)])
}

/// A runtime of MPI.
pub fn mpi(launcher_is_node: bool) -> Value {
    let policy = json!({"numNodes": 1, "mpi": {"numProcPerNode": 1, "mpiImplementation": "OpenMPI",
        "sshAuthMountPath": "/root/.ssh", "runLauncherAsNode": launcher_is_node}});
    let container = json!({"name": NODE, "image": "mpi:1"});
    runtime(policy, vec![replicated(NODE, None, container.clone()), replicated("launcher", Some(TRAINER), container)])
}

/// A runtime with a step that loads the data set.
pub fn with_initializer() -> Value {
    let mut runtime = torch();
    let container = json!({"name": "dataset-initializer", "image": "loader:1",
        "volumeMounts": [{"name": "initializer", "mountPath": "/workspace/dataset"}]});
    let step = replicated("dataset-initializer", Some("dataset-initializer"), container);
    if let Some(jobs) = runtime["template"]["spec"]["replicatedJobs"].as_array_mut() {
        jobs.insert(0, step);
    }
    runtime
}

/// The spec of a TrainJob.
pub fn job(spec: Value) -> TrainJobSpec {
    TrainJobSpec::read(&spec).expect("a spec")
}
