//! Defaults and validation of TrainJobs, in upstream's words. A job is validated against the
//! runtime that it refers to.

use std::collections::{BTreeMap, BTreeSet};

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::meaning;
use berth_apimachinery::names::is_domain_prefixed_path;
use serde_json::{Value, json};

use super::{Lookup, torchtune};
use crate::trainer::constants::{
    DATASET_INITIALIZER, GROUP, INITIALIZER_VOLUME, LAUNCHER, MODEL_INITIALIZER, NODE, SUPPORT,
};
use crate::trainer::json::{containers, jobs, pod};
use crate::trainer::policy::{reserved, torchtune as tuning};
use crate::trainer::resolve::{Resolved, resolve};
use crate::trainer::types::{RuntimeKind, TrainJobSpec};

const PATCHES: Path<'static> = Path::new("spec.runtimePatches");
const SPEC: Path<'static> = Path::new("spec");

/// Sets the time of each patch that is new or changed.
pub fn default_job(job: &mut Value, old: Option<&Value>, now: &str) {
    let Some(patches) = job.pointer_mut("/spec/runtimePatches").and_then(Value::as_array_mut) else { return };
    let before = old.and_then(|old| old["spec"]["runtimePatches"].as_array());
    for patch in patches.iter_mut().filter(|patch| patch.is_object()) {
        let known = before.into_iter().flatten().find(|it| it["manager"] == patch["manager"]);
        match known {
            Some(known) if is_same_patch(known, patch) => {
                if known["time"].is_null() {
                    patch.as_object_mut().map(|patch| patch.remove("time"));
                } else {
                    patch["time"] = known["time"].clone();
                }
            }
            Some(_) => patch["time"] = json!(now),
            None if patch["time"].is_null() => patch["time"] = json!(now),
            None => {}
        }
    }
}

/// True if two patches differ in their time at most.
fn is_same_patch(a: &Value, b: &Value) -> bool {
    a["manager"] == b["manager"] && meaning::same(&a["trainingRuntimeSpec"], &b["trainingRuntimeSpec"])
}

/// The judgement of a job.
#[derive(Debug, Default)]
pub struct Judged {
    /// Messages for the user.
    pub warnings: Vec<String>,
    /// Why the job is rejected.
    pub errors: Vec<Error>,
}

/// Validates a new or changed TrainJob.
///
/// # Errors
/// The kind of runtime is not supported; returns the message.
pub fn validate_job(new: &Value, old: Option<&Value>, lookup: Lookup<'_>) -> Result<Judged, String> {
    let spec = TrainJobSpec::read(&new["spec"]).map_err(|error| format!("spec: {error}"))?;
    let kind = spec.runtime_ref.kind()?;
    let namespace = new["metadata"]["namespace"].as_str().unwrap_or_default();
    let name = spec.runtime_ref.name.as_str();
    let (resource, field, of, at) = match kind {
        RuntimeKind::Namespaced => ("trainingruntimes", "runtimeRef", namespace, "trainingRuntime"),
        RuntimeKind::Cluster => ("clustertrainingruntimes", "RuntimeRef", "", "clusterTrainingRuntime"),
    };
    let Some(runtime) = lookup(GROUP, resource, of, name) else {
        let detail = format!(
            "{resource}.{GROUP} {name:?} not found: specified {at} must be created before the TrainJob is created"
        );
        let error = Error::invalid(&SPEC.child(field), new["spec"]["runtimeRef"].clone(), detail);
        return Ok(Judged { errors: vec![error], ..Judged::default() });
    };
    let mut judged = Judged::default();
    if kind == RuntimeKind::Cluster && runtime["metadata"]["labels"][SUPPORT] == "deprecated" {
        judged.warnings.push(format!(
            "Referenced ClusterTrainingRuntime {name:?} is deprecated and will be removed in a future release of \
             Kubeflow Trainer."
        ));
    }
    judged.errors.extend(initializers(new, &spec, &runtime["spec"]));
    judged.errors.extend(changed_patches(new, old, lookup));
    judged.errors.extend(patches(new, &spec, &runtime["spec"]));
    // A patch that does not fit the runtime has been reported.
    let resolved = resolve(&spec, &runtime["spec"]).or_else(|_| resolve(&without_patches(&spec), &runtime["spec"]));
    match resolved {
        Ok(resolved) => judged.errors.extend(policy(new, &spec, &resolved)),
        Err(error) => judged.errors.push(Error::invalid(&SPEC.child(field), name, error)),
    }
    Ok(judged)
}

fn without_patches(spec: &TrainJobSpec) -> TrainJobSpec {
    TrainJobSpec { runtime_patches: Vec::new(), pod_template_overrides: Vec::new(), ..spec.clone() }
}

/// Names of the containers of each replicated job.
fn container_names(runtime: &Value) -> BTreeMap<&str, BTreeSet<&str>> {
    let names = |job| containers(pod(job)).filter_map(|it| it["name"].as_str()).collect();
    let all = jobs(&runtime["template"]["spec"]).iter();
    all.map(|job| (job["name"].as_str().unwrap_or_default(), names(job))).collect()
}

/// A step before the training needs its job, container and volume in the runtime.
fn initializers(new: &Value, spec: &TrainJobSpec, runtime: &Value) -> Vec<Error> {
    let steps = [
        (DATASET_INITIALIZER, spec.initializer.dataset.is_some(), "dataset"),
        (MODEL_INITIALIZER, spec.initializer.model.is_some(), "model"),
    ];
    let mut errors = Vec::new();
    for (step, _, what) in steps.into_iter().filter(|(_, is_wanted, _)| *is_wanted) {
        let mut error = |detail: String| {
            errors.push(Error::invalid(&SPEC.child("runtimeRef"), new["spec"]["runtimeRef"].clone(), detail));
        };
        let Some(job) = jobs(&runtime["template"]["spec"]).iter().find(|job| job["name"] == step) else {
            error(format!("must have {step} job when trainJob is configured with input {what}Config"));
            continue;
        };
        let Some(container) = containers(pod(job)).find(|container| container["name"] == step) else {
            error(format!("must have container with name - {step} in the {step} job"));
            continue;
        };
        let mounts = container["volumeMounts"].as_array();
        if !mounts.into_iter().flatten().any(|mount| mount["name"] == INITIALIZER_VOLUME) {
            error(format!(
                "must have volumeMount with name - {INITIALIZER_VOLUME} in container {step} of the {step} job"
            ));
        }
    }
    errors
}

/// Patches change only while no pod of the job runs.
fn changed_patches(new: &Value, old: Option<&Value>, lookup: Lookup<'_>) -> Vec<Error> {
    let Some(old) = old else { return Vec::new() };
    if meaning::same(&new["spec"]["runtimePatches"], &old["spec"]["runtimePatches"]) {
        return Vec::new();
    }
    if new["spec"]["suspend"] != true && old["spec"]["suspend"] != true {
        let detail = "RuntimePatches can only be modified when the TrainJob is suspended before or after the update";
        return vec![Error::forbidden(&PATCHES, detail)];
    }
    let text = |field: &str| new["metadata"][field].as_str().unwrap_or_default();
    let Some(jobset) = lookup("jobset.x-k8s.io", "jobsets", text("namespace"), text("name")) else { return Vec::new() };
    let jobs = jobset["status"]["replicatedJobsStatus"].as_array().into_iter().flatten();
    let active = jobs.filter(|job| job["active"].as_i64().unwrap_or(0) > 0);
    let detail = |job: &Value| {
        let name = job["name"].as_str().unwrap_or_default();
        format!("RuntimePatches cannot be modified when the JobSet's ReplicatedJob {name} is still active")
    };
    active.map(|job| Error::forbidden(&PATCHES, detail(job))).collect()
}

/// Patches name jobs and containers of the runtime.
fn patches(new: &Value, spec: &TrainJobSpec, runtime: &Value) -> Vec<Error> {
    let known = container_names(runtime);
    let all = &new["spec"]["runtimePatches"];
    let mut errors = Vec::new();
    for patch in &spec.runtime_patches {
        let manager = patch.manager.as_str();
        let at = PATCHES.child("manager");
        errors.extend(is_domain_prefixed_path(manager).into_iter().map(|it| Error::invalid(&at, manager, it)));
        for job in &patch.training_runtime_spec.template.spec.replicated_jobs {
            let mut error = |detail: String| errors.push(Error::invalid(&PATCHES, all.clone(), detail));
            let Some(names) = known.get(job.name.as_str()) else {
                error("must not have replicated job that doesn't exist in the runtime job template".to_owned());
                continue;
            };
            let patched = &job.template["spec"]["template"]["spec"];
            for (list, what) in [("initContainers", "initContainer"), ("containers", "container")] {
                for container in patched[list].as_array().into_iter().flatten() {
                    let name = container["name"].as_str().unwrap_or_default();
                    let has_env = container["env"].as_array().is_some_and(|env| !env.is_empty());
                    if !names.contains(name) {
                        error(format!("must not have {what} that doesn't exist in the runtime job {}", job.name));
                    } else if has_env && what == "container" && OWN_ENV.contains(&name) {
                        error(format!("must not have envs for the {} containers", OWN_ENV.join(", ")));
                    }
                }
            }
        }
    }
    errors
}

/// Containers whose environment belongs to fields of the TrainJob.
const OWN_ENV: [&str; 3] = [DATASET_INITIALIZER, MODEL_INITIALIZER, NODE];

/// The rules of the runtime's policy.
fn policy(new: &Value, spec: &TrainJobSpec, resolved: &Resolved) -> Vec<Error> {
    let Some(policy) = &resolved.policy else { return Vec::new() };
    let mut errors = Vec::new();
    let trainer = SPEC.child("trainer");
    let env = trainer.child("env");
    let taken = reserved(policy);
    let name = |variable: &Value| variable["name"].as_str().unwrap_or_default().to_owned();
    if policy.xgboost.is_some() {
        for (index, variable) in spec.env().iter().enumerate().filter(|(_, it)| taken.contains(&name(it).as_str())) {
            let detail = format!("{} is reserved for the XGBoost runtime", name(variable));
            errors.push(Error::forbidden(&env.index(index), detail));
        }
    } else {
        let wrong: BTreeSet<String> = spec.env().iter().map(name).filter(|it| taken.contains(&it.as_str())).collect();
        if !wrong.is_empty() {
            let list = wrong.into_iter().collect::<Vec<_>>().join(" ");
            let detail = format!("must not have reserved envs, invalid envs configured: [{list}]");
            errors.push(Error::invalid(&env, new["spec"]["trainer"]["env"].clone(), detail));
        }
    }
    if let Some(torch) = &policy.torch {
        errors.extend(injected(torch, resolved));
        if tuning::is_fine_tuning(spec) {
            errors.extend(torchtune::validate(spec, resolved));
        }
    }
    let as_node = policy.mpi.as_ref().is_some_and(|mpi| mpi.run_launcher_as_node);
    let lacks_part = [LAUNCHER, NODE].into_iter().any(|name| resolved.part(name).is_none());
    if let Some(nodes) = spec.nodes().filter(|nodes| *nodes >= 2 && as_node && lacks_part) {
        let detail = "must have 1 when MPI trainingRuntime with enabled runLauncherAsNode does not have either launcher and node";
        errors.push(Error::invalid(&trainer.child("numNodes"), nodes, detail));
    }
    errors
}

/// Containers that get the environment of torchrun exist.
fn injected(torch: &crate::trainer::types::TorchPolicy, resolved: &Resolved) -> Vec<Error> {
    let mut errors = Vec::new();
    for target in &torch.env_injection.targets {
        let job = jobs(&resolved.spec).iter().find(|job| job["name"] == target.job_name.as_str());
        for name in &target.container_names {
            let is_there = job.is_some_and(|job| containers(pod(job)).any(|it| it["name"] == name.as_str()));
            if !is_there {
                let job = &target.job_name;
                let detail =
                    format!("envInjection target podSet {job:?} container {name:?} not found in runtime template");
                errors.push(Error::invalid(&SPEC.child("runtimeRef"), json!(target), detail));
            }
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::trainer::samples::{mpi, torch, with_initializer};

    fn job(spec: Value) -> Value {
        let mut spec = spec;
        spec["runtimeRef"] = json!({"apiGroup": GROUP, "kind": "ClusterTrainingRuntime", "name": "r"});
        json!({"metadata": {"name": "train", "namespace": "ns"}, "spec": spec})
    }

    fn judge(new: &Value, old: Option<&Value>, runtime: Value, jobset: Option<Value>) -> Vec<String> {
        let found = |_: &str, resource: &str, _: &str, name: &str| match (resource, name) {
            ("clustertrainingruntimes", "r") => Some(Arc::new(json!({"metadata": {"name": "r"}, "spec": runtime}))),
            ("jobsets", "train") => jobset.clone().map(Arc::new),
            _ => None,
        };
        let judged = validate_job(new, old, &found).expect("a judgement");
        judged.errors.iter().map(|error| format!("{}: {}", error.field, error.detail)).collect()
    }

    fn check(spec: Value, runtime: Value) -> Vec<String> {
        judge(&job(spec), None, runtime, None)
    }

    #[test]
    fn the_runtime_exists_and_has_a_known_kind() {
        assert_eq!(check(json!({}), torch()), Vec::<String>::new());
        let mut lost = job(json!({}));
        lost["spec"]["runtimeRef"]["name"] = json!("lost");
        assert_eq!(
            judge(&lost, None, torch(), None),
            ["spec.RuntimeRef: clustertrainingruntimes.trainer.kubeflow.org \"lost\" not found: specified \
              clusterTrainingRuntime must be created before the TrainJob is created"]
        );
        lost["spec"]["runtimeRef"]["kind"] = json!("Other");
        let error = validate_job(&lost, None, &|_, _, _, _| None).expect_err("not supported");
        assert_eq!(error, "unsupported runtime: Other.trainer.kubeflow.org");
    }

    #[test]
    fn an_initializer_needs_its_job_its_container_and_its_volume() {
        let spec = json!({"initializer": {"dataset": {"storageUri": "hf://x"}}});
        let at = "spec.runtimeRef: must have";
        assert_eq!(
            check(spec.clone(), torch()),
            [format!("{at} dataset-initializer job when trainJob is configured with input datasetConfig")]
        );
        assert_eq!(check(spec.clone(), with_initializer()), Vec::<String>::new());
        let mut runtime = with_initializer();
        let container = "/template/spec/replicatedJobs/0/template/spec/template/spec/containers/0";
        runtime.pointer_mut(container).expect("a container")["volumeMounts"] = json!([]);
        assert!(
            check(spec.clone(), runtime.clone())[0].starts_with(&format!("{at} volumeMount with name - initializer"))
        );
        runtime.pointer_mut(container).expect("a container")["name"] = json!("other");
        assert!(check(spec, runtime)[0].starts_with(&format!("{at} container with name - dataset-initializer")));
    }

    #[test]
    fn variables_of_the_policy_are_reserved() {
        let spec = |name: &str| json!({"trainer": {"env": [{"name": name, "value": "1"}, {"name": "PET_NNODES"}]}});
        assert_eq!(
            check(spec("PET_MASTER_ADDR"), torch()),
            ["spec.trainer.env: must not have reserved envs, invalid envs configured: [PET_MASTER_ADDR PET_NNODES]"]
        );
        let xgboost = crate::trainer::samples::framework("xgboost", json!({}));
        assert_eq!(
            check(spec("DMLC_TASK_ID"), xgboost),
            ["spec.trainer.env[0]: DMLC_TASK_ID is reserved for the XGBoost runtime"]
        );
        let mut alone = mpi(true);
        alone["template"]["spec"]["replicatedJobs"].as_array_mut().expect("jobs").remove(0);
        assert!(check(json!({"trainer": {"numNodes": 2}}), alone)[0].starts_with("spec.trainer.numNodes: must have 1"));
    }

    fn patched(name: &str, spec: Value) -> Value {
        json!([{"manager": "example.com/me", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [
            {"name": name, "template": {"spec": {"template": {"spec": spec}}}}]}}}}])
    }

    #[test]
    fn patches_fit_the_runtime() {
        let errors = |patches: Value| check(json!({"runtimePatches": patches}), torch());
        assert_eq!(errors(patched("node", json!({"nodeSelector": {"a": "b"}}))), Vec::<String>::new());
        assert!(errors(patched("lost", json!({})))[0].contains("replicated job that doesn't exist"));
        let container = json!({"containers": [{"name": "lost"}]});
        assert!(errors(patched("node", container))[0].ends_with("doesn't exist in the runtime job node"));
        let env = json!({"containers": [{"name": "node", "env": [{"name": "A"}]}]});
        assert!(errors(patched("node", env))[0].contains("must not have envs for the dataset-initializer"));
        let mut named = patched("node", json!({}));
        named[0]["manager"] = json!("another-manager");
        assert!(errors(named)[0].starts_with("spec.runtimePatches.manager:"));
    }

    #[test]
    fn patches_change_only_while_the_job_does_not_run() {
        let with = |suspend: bool, patches: Value| job(json!({"suspend": suspend, "runtimePatches": patches}));
        let (before, after) = (json!([]), patched("node", json!({"nodeSelector": {"a": "b"}})));
        let change = |old: bool, new: bool, active: i64| {
            let jobset = json!({"status": {"replicatedJobsStatus": [{"name": "node", "active": active}]}});
            judge(&with(new, after.clone()), Some(&with(old, before.clone())), torch(), Some(jobset))
        };
        assert_eq!(change(true, false, 0), Vec::<String>::new());
        assert!(change(false, false, 0)[0].contains("suspended before or after the update"));
        assert!(change(true, true, 1)[0].ends_with("ReplicatedJob node is still active"));
    }

    #[test]
    fn a_patch_has_the_time_of_its_last_change() {
        let mut first = job(json!({"runtimePatches": patched("node", json!({}))}));
        default_job(&mut first, None, "t1");
        assert_eq!(first["spec"]["runtimePatches"][0]["time"], "t1");
        let mut same = first.clone();
        same["spec"]["runtimePatches"][0]["time"] = Value::Null;
        default_job(&mut same, Some(&first), "t2");
        assert_eq!(same, first);
        let mut changed = first.clone();
        changed["spec"]["runtimePatches"] = patched("node", json!({"nodeSelector": {"a": "b"}}));
        default_job(&mut changed, Some(&first), "t2");
        assert_eq!(changed["spec"]["runtimePatches"][0]["time"], "t2");
    }

    #[test]
    fn a_deprecated_runtime_makes_a_warning() {
        let found = |_: &str, _: &str, _: &str, _: &str| {
            Some(Arc::new(json!({"metadata": {"labels": {SUPPORT: "deprecated"}}, "spec": torch()})))
        };
        let judged = validate_job(&job(json!({})), None, &found).expect("a judgement");
        assert!(judged.warnings[0].starts_with("Referenced ClusterTrainingRuntime \"r\" is deprecated"));
    }
}
