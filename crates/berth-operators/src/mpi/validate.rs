//! The rules of the MPI operator, in its words. It checks jobs when it reconciles them, and reports
//! errors as an event.
//!
//! Source: `pkg/apis/kubeflow/validation` of the MPI operator 0.8.

use berth_api::kueue::constants::MULTIKUEUE_CONTROLLER;
use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::names;
use serde_json::Value;

use super::types::CONTROLLER_NAMES;
use crate::training::types::CleanPodPolicy;

/// Accepted restart policies.
const POLICIES: [&str; 2] = ["Never", "OnFailure"];
/// Accepted MPI libraries.
const IMPLEMENTATIONS: [&str; 3] = ["Intel", "MPICH", "OpenMPI"];
/// Accepted values of `runPolicy.managedBy`.
const MANAGERS: [&str; 2] = [CONTROLLER_NAMES[0], MULTIKUEUE_CONTROLLER];
/// Maximum number of workers; the host file lists all of them.
const WORKERS_MAX: i64 = 10_000;

/// The errors about a job.
pub fn validate(name: &str, spec: &Value) -> Vec<Error> {
    let root = Path::new("spec");
    let mut errors = Vec::new();
    let workers = spec["mpiReplicaSpecs"]["Worker"]["replicas"].as_i64().filter(|count| *count > 0).unwrap_or(1);
    let longest = format!("{name}-worker-{}", workers - 1);
    let problems = names::is_dns1035_label(&longest);
    if !problems.is_empty() {
        let metadata = Path::new("metadata");
        let why = format!(
            "will not able to create pod and service with invalid DNS label {longest:?}: {}",
            problems.join(", ")
        );
        errors.push(Error::invalid(&metadata.child("name"), name, why));
    }
    let specs = root.child("mpiReplicaSpecs");
    if spec["mpiReplicaSpecs"].is_object() {
        let (launcher, worker) = (&spec["mpiReplicaSpecs"]["Launcher"], &spec["mpiReplicaSpecs"]["Worker"]);
        errors.extend(validate_launcher(&specs.key("Launcher"), launcher));
        if worker.is_object() {
            errors.extend(validate_worker(&specs.key("Worker"), worker));
        }
    } else {
        errors.push(Error::required(&specs, "must have replica specs"));
    }
    errors.extend(not_negative(&root, spec, "slotsPerWorker"));
    errors.extend(validate_run_policy(&root.child("runPolicy"), &spec["runPolicy"]));
    let implementation = &spec["mpiImplementation"];
    if implementation.as_str().is_some_and(|it| !it.is_empty() && !IMPLEMENTATIONS.contains(&it)) {
        let path = root.child("mpiImplementation");
        errors.push(Error::not_supported(&path, implementation.clone(), &IMPLEMENTATIONS));
    }
    errors
}

fn not_negative(parent: &Path<'_>, object: &Value, field: &str) -> Option<Error> {
    let value = object[field].as_i64().filter(|value| *value < 0)?;
    Some(Error::invalid(&parent.child(field), value, "must be greater than or equal to 0"))
}

fn validate_run_policy(path: &Path<'_>, policy: &Value) -> Vec<Error> {
    let mut errors = Vec::new();
    let cleaning = &policy["cleanPodPolicy"];
    if cleaning.as_str().is_some_and(|it| !CleanPodPolicy::VALUES.contains(&it)) {
        let path = path.child("cleanPodPolicy");
        errors.push(Error::not_supported(&path, cleaning.clone(), &CleanPodPolicy::VALUES));
    }
    for field in ["ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit"] {
        errors.extend(not_negative(path, policy, field));
    }
    let manager = &policy["managedBy"];
    if manager.as_str().is_some_and(|it| !MANAGERS.contains(&it) && !CONTROLLER_NAMES.contains(&it)) {
        errors.push(Error::not_supported(&path.child("managedBy"), manager.clone(), &MANAGERS));
    }
    errors
}

fn validate_launcher(path: &Path<'_>, launcher: &Value) -> Vec<Error> {
    if !launcher.is_object() {
        return vec![Error::required(path, "must have Launcher replica spec")];
    }
    let mut errors = validate_replica(path, launcher);
    if let Some(count) = launcher["replicas"].as_i64().filter(|count| *count != 1) {
        errors.push(Error::invalid(&path.child("replicas"), count, "must be 1"));
    }
    errors
}

fn validate_worker(path: &Path<'_>, worker: &Value) -> Vec<Error> {
    let mut errors = validate_replica(path, worker);
    let count = worker["replicas"].as_i64().unwrap_or(0);
    if count <= 0 {
        errors.push(Error::invalid(&path.child("replicas"), count, "must be greater than or equal to 1"));
    } else if count > WORKERS_MAX {
        let why = format!("must be less than or equal to {WORKERS_MAX}");
        errors.push(Error::invalid(&path.child("replicas"), count, why));
    }
    errors
}

fn validate_replica(path: &Path<'_>, replica: &Value) -> Vec<Error> {
    let mut errors = Vec::new();
    let policy = &replica["restartPolicy"];
    if policy.as_str().is_some_and(|it| !it.is_empty() && !POLICIES.contains(&it)) {
        errors.push(Error::not_supported(&path.child("restartPolicy"), policy.clone(), &POLICIES));
    }
    if replica["template"]["spec"]["containers"].as_array().is_none_or(Vec::is_empty) {
        let template = path.child("template");
        let spec = template.child("spec");
        errors.push(Error::required(&spec.child("containers"), "must define at least one container"));
    }
    errors
}
