//! The integrations of Kubeflow's training jobs: one pod set per replica type, in each kind's fixed
//! order.

use berth_apimachinery::field::{Error, Path};
use serde_json::Value;

use super::{Description, Group, Injection, integer, true_condition};
use crate::jobs::Finished;

/// Label that holds a pod's index in its replica type.
pub(super) const REPLICA_INDEX: &str = "training.kubeflow.org/replica-index";

macro_rules! training_job {
    ($(#[$meta:meta])* $name:ident, $framework:literal, $specs:literal, [$($type:literal),*]) => {
        $(#[$meta])*
        pub const $name: Description = Description {
            framework: $framework,
            elastic: false,
            suspend: &["spec", "runPolicy", "suspend"],
            managed_by: Some(&["spec", "runPolicy", "managedBy"]),
            priority_class: Some("/runPolicy/schedulingPolicy/priorityClass"),
            pod_index_label: Some(REPLICA_INDEX),
            injection: Injection::Templates,
            groups: |spec| groups(spec, $specs, &[$($type),*]),
            finished,
            ready: |_, status| true_condition(status, "Running").is_some(),
            active,
            queued: |_| true,
            resized: |_, _| None,
            cleans_up: |_, _| false,
            validate: |spec, _, path| validate(spec, $specs, &[$($type),*], path),
        };
    };
}

training_job!(
    /// Description of PyTorchJob.
    PYTORCH, "kubeflow.org/pytorchjob", "pytorchReplicaSpecs", ["Master", "Worker"]
);
training_job!(
    /// Description of TFJob.
    TENSORFLOW, "kubeflow.org/tfjob", "tfReplicaSpecs", ["Chief", "Master", "PS", "Worker", "Evaluator"]
);
training_job!(
    /// Description of XGBoostJob.
    XGBOOST, "kubeflow.org/xgboostjob", "xgbReplicaSpecs", ["Master", "Worker"]
);
training_job!(
    /// Description of PaddleJob.
    PADDLE, "kubeflow.org/paddlejob", "paddleReplicaSpecs", ["Master", "Worker"]
);
training_job!(
    /// Description of JAXJob.
    JAX, "kubeflow.org/jaxjob", "jaxReplicaSpecs", ["Worker"]
);
training_job!(
    /// Description of MXJob.
    MXNET, "kubeflow.org/mxjob", "mxReplicaSpecs",
    ["Scheduler", "Server", "Worker", "TunerTracker", "TunerServer", "Tuner"]
);
training_job!(
    /// Description of MPIJob.
    MPI, "kubeflow.org/mpijob", "mpiReplicaSpecs", ["Launcher", "Worker"]
);

fn groups(spec: &Value, specs: &str, types: &[&str]) -> Result<Vec<Group>, String> {
    let present = types.iter().filter(|type_| spec[specs][**type_].is_object());
    let group = |type_: &&str| {
        let count = integer(&spec[specs][*type_]["replicas"], 1);
        Group::new(type_.to_lowercase(), count, format!("/{specs}/{type_}/template"))
    };
    Ok(present.map(group).collect())
}

fn finished(status: &Value) -> Option<Finished> {
    [("Succeeded", true), ("Failed", false)].into_iter().find_map(|(type_, success)| {
        let message = true_condition(status, type_)?;
        Some(Finished { success, message: message.to_owned() })
    })
}

fn active(status: &Value) -> bool {
    let of_types = status["replicaStatuses"].as_object().into_iter().flatten();
    of_types.into_iter().any(|(_, replicas)| replicas["active"].as_i64().unwrap_or(0) > 0)
}

fn validate(spec: &Value, specs: &str, types: &[&str], path: &Path<'_>) -> Vec<Error> {
    let path = path.child(specs);
    match spec[specs].as_object() {
        Some(map) if types.iter().any(|type_| map.contains_key(*type_)) => Vec::new(),
        _ => vec![Error::required(&path, format!("must have one of {}", types.join(", ")))],
    }
}
