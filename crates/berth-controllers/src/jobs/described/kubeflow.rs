//! The integrations of Kubeflow's training jobs: one pod set per replica type, in each kind's fixed
//! order.

use berth_api::kueue::annotations;
use serde_json::{Value, json};

use super::{Description, Group, Injection, integer, set_at, true_condition};
use crate::gates::{Gate, Gates};
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
            on_hold: |_| None,
            set_defaults: |_, _| {},
            queued: |_| true,
            resized: |_, _| None,
            cleans_up: |_, _| false,
            validate: |_, _, _| Vec::new(),
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
    /// Description of MPIJob without its own defaults.
    MPI_COMMON, "kubeflow.org/mpijob", "mpiReplicaSpecs", ["Launcher", "Worker"]);

/// Description of MPIJob.
pub const MPI: Description = Description { set_defaults: offset_workers, ..MPI_COMMON };

/// Records that the launcher of an MPIJob has index 0 if it runs as a worker, so that the indexes
/// of the workers start at 1. The topology of a pod set group counts the launcher itself.
fn offset_workers(spec: &mut Value, gates: &Gates) {
    let specs = &spec["mpiReplicaSpecs"];
    let has = |type_: &str| specs[type_]["template"].is_object();
    let group = &specs["Launcher"]["template"]["metadata"]["annotations"][annotations::PODSET_GROUP_NAME];
    let is_offset = spec["runLauncherAsWorker"] == true && has("Launcher") && has("Worker") && group.is_null();
    if is_offset && gates.on(Gate::TopologyAwareScheduling) {
        const WORKERS: [&str; 5] = ["mpiReplicaSpecs", "Worker", "template", "metadata", "annotations"];
        let steps = [&WORKERS[..], &[annotations::POD_INDEX_OFFSET]].concat();
        set_at(spec, &steps, json!("1"));
    }
}

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
