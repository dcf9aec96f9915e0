//! The runtime of a TrainJob with the job's patches: the template of its JobSet, and the number of
//! pods of each replicated job.

use std::collections::BTreeMap;

use berth_apimachinery::builtin;
use berth_apimachinery::patch::apply_strategic;
use serde_json::{Value, json};

use super::constants::{LAUNCHER, NODE, STEP, TRAINER};
use super::json::{container_mut, job_mut, jobs, jobs_mut, pod_mut};
use super::resources;
use super::types::{MlPolicy, PatchedJob, PodGroupPolicy, RuntimeSpec, TrainJobSpec};

const POD_TEMPLATE: &str = "io.k8s.api.core.v1.PodTemplateSpec";

/// A replicated job of the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Name.
    pub name: String,
    /// The step of the TrainJob that it runs.
    pub step: Option<String>,
    /// Pods of each child Job.
    pub count: i32,
    /// Child Jobs.
    pub replicas: i32,
}

impl Part {
    /// True if the part runs this step.
    pub fn is_step(&self, step: &str) -> bool {
        self.step.as_deref() == Some(step)
    }
}

/// A runtime with the patches of a TrainJob.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// How the nodes find each other.
    pub policy: Option<MlPolicy>,
    /// How they are scheduled together.
    pub group: PodGroupPolicy,
    /// Labels of the JobSet.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the JobSet.
    pub annotations: BTreeMap<String, String>,
    /// Spec of the JobSet.
    pub spec: Value,
    /// Its replicated jobs.
    pub parts: Vec<Part>,
}

impl Resolved {
    /// The part that trains.
    pub fn trainer(&self) -> Option<&Part> {
        self.parts.iter().find(|part| part.is_step(TRAINER))
    }

    /// The part of this name.
    pub fn part(&self, name: &str) -> Option<&Part> {
        self.parts.iter().find(|part| part.name == name)
    }

    /// Number of training nodes.
    pub fn nodes(&self) -> i32 {
        self.trainer().map_or(1, |trainer| trainer.count)
    }

    /// Resources of the training container: those of the job, or else those of the runtime.
    pub fn resources(&self, job: &TrainJobSpec) -> Value {
        if let Some(own) = job.trainer.as_ref().and_then(|trainer| trainer.resources_per_node.clone()) {
            return own;
        }
        let trains = |it: &&Value| it["name"] == NODE || it["template"]["metadata"]["labels"][STEP] == TRAINER;
        let pods = jobs(&self.spec).iter().filter(trains).map(super::json::pod);
        let mut containers = pods.flat_map(|pod| pod["containers"].as_array().into_iter().flatten());
        let found = containers.find(|container| container["name"] == NODE && container["resources"].is_object());
        found.map(|container| container["resources"].clone()).unwrap_or_default()
    }

    /// DNS name of a pod's Service: the subdomain of the JobSet.
    pub fn subdomain<'a>(&'a self, job: &'a str) -> &'a str {
        self.spec["network"]["subdomain"].as_str().filter(|name| !name.is_empty()).unwrap_or(job)
    }

    /// DNS name of the first training node.
    pub fn first_node(&self, job: &str) -> String {
        format!("{job}-{NODE}-0-0.{}", self.subdomain(job))
    }
}

/// Applies the job's patches, resources and numbers to a runtime.
///
/// # Errors
/// The runtime cannot be read, or a patch does not fit it.
pub fn resolve(job: &TrainJobSpec, runtime: &Value) -> Result<Resolved, String> {
    let runtime: RuntimeSpec = serde_json::from_value(runtime.clone())
        .map_err(|error| format!("{} {}: {error}", job.runtime_ref.group_kind(), job.runtime_ref.name))?;
    let mut resolved = Resolved {
        policy: runtime.ml_policy,
        group: runtime.pod_group_policy,
        labels: runtime.template.metadata.labels,
        annotations: runtime.template.metadata.annotations,
        spec: runtime.template.spec,
        parts: Vec::new(),
    };
    for overriding in &job.pod_template_overrides {
        let mut patch = json!({});
        for (field, value) in [("metadata", &overriding.metadata), ("spec", &overriding.spec)] {
            if let Some(value) = value {
                patch[field] = value.clone();
            }
        }
        for target in &overriding.target_jobs {
            let template = json!({"spec": {"template": patch}});
            patch_job(&mut resolved.spec, &PatchedJob { name: target.name.clone(), template })?;
        }
    }
    for patch in &job.runtime_patches {
        let template = &patch.training_runtime_spec.template;
        resolved.labels.extend(template.metadata.labels.clone());
        resolved.annotations.extend(template.metadata.annotations.clone());
        for patched in &template.spec.replicated_jobs {
            patch_job(&mut resolved.spec, patched)?;
        }
    }
    set_resources(&mut resolved, job);
    resolved.parts = jobs(&resolved.spec).iter().map(|it| part(it, job, resolved.policy.as_ref())).collect();
    Ok(resolved)
}

fn patch_job(spec: &mut Value, patch: &PatchedJob) -> Result<(), String> {
    let Some(job) = job_mut(spec, &patch.name) else {
        return Err(format!("replicated job {:?} of a patch does not exist in the runtime", patch.name));
    };
    for field in ["labels", "annotations"] {
        for (key, value) in patch.template["metadata"][field].as_object().into_iter().flatten() {
            job["template"]["metadata"][field][key] = value.clone();
        }
    }
    let wanted = &patch.template["spec"]["template"];
    if wanted.is_object() {
        let schema = builtin::document().definition(POD_TEMPLATE).expect("pod templates are a published type");
        let template = &mut job["template"]["spec"]["template"];
        if template.is_null() {
            *template = json!({});
        }
        *template = apply_strategic(template, wanted, &schema)
            .map_err(|error| format!("patch of replicated job {:?}: {error}", patch.name))?;
    }
    Ok(())
}

/// Sets the job's resources on the containers that train.
fn set_resources(resolved: &mut Resolved, job: &TrainJobSpec) {
    let Some(own) = job.trainer.as_ref().and_then(|trainer| trainer.resources_per_node.as_ref()) else { return };
    let mpi = resolved.policy.as_ref().and_then(|policy| policy.mpi.as_ref());
    let nodes_train = mpi.is_some_and(|mpi| mpi.run_launcher_as_node);
    for part in jobs_mut(&mut resolved.spec) {
        let is_trainer = part["template"]["metadata"]["labels"][STEP] == TRAINER;
        let trains = is_trainer || (nodes_train && part["name"] == NODE);
        if trains && let Some(container) = container_mut(pod_mut(part), NODE) {
            resources::merge(container, own);
        }
    }
}

fn part(replicated: &Value, job: &TrainJobSpec, policy: Option<&MlPolicy>) -> Part {
    let number = |value: &Value| value.as_i64().and_then(|number| i32::try_from(number).ok());
    let name = replicated["name"].as_str().unwrap_or_default();
    let step = replicated["template"]["metadata"]["labels"][STEP].as_str();
    let own = number(&replicated["template"]["spec"]["parallelism"]).unwrap_or(1).max(1);
    let of_runtime = policy.map(|policy| policy.num_nodes.unwrap_or(1).max(1));
    let mpi = policy.and_then(|policy| policy.mpi.as_ref());
    let count = match mpi {
        // One launcher starts the processes on all nodes.
        Some(_) if name == LAUNCHER => own,
        Some(mpi) if name == NODE => {
            let nodes = job.nodes().or(of_runtime.filter(|nodes| *nodes > 1));
            let others = |nodes: i32| if mpi.run_launcher_as_node { (nodes - 1).max(1) } else { nodes };
            nodes.map_or(own, others)
        }
        _ if step == Some(TRAINER) => job.nodes().or(of_runtime).unwrap_or(own),
        _ => own,
    };
    // The steps of a TrainJob have one child Job each.
    let replicas = if step.is_some() { 1 } else { number(&replicated["replicas"]).unwrap_or(1) };
    Part { name: name.to_owned(), step: step.map(str::to_owned), count, replicas }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trainer::samples::{job, mpi, torch};

    fn counts(spec: Value, runtime: &Value) -> Vec<(String, i32)> {
        let resolved = resolve(&job(spec), runtime).expect("a resolved runtime");
        resolved.parts.into_iter().map(|part| (part.name, part.count)).collect()
    }

    #[test]
    fn nodes_are_those_of_the_job_or_of_the_runtime() {
        let mut runtime = torch();
        runtime["mlPolicy"]["numNodes"] = json!(3);
        assert_eq!(counts(json!({}), &runtime), [("node".to_owned(), 3)]);
        assert_eq!(counts(json!({"trainer": {"numNodes": 5}}), &runtime), [("node".to_owned(), 5)]);
    }

    #[test]
    fn under_mpi_one_launcher_starts_the_nodes() {
        let with = |as_node: bool, nodes: Value| counts(json!({"trainer": {"numNodes": nodes}}), &mpi(as_node));
        let sizes = |node: i32| [("node".to_owned(), node), ("launcher".to_owned(), 1)];
        assert_eq!(with(false, json!(4)), sizes(4));
        assert_eq!(with(true, json!(4)), sizes(3));
        assert_eq!(with(true, json!(1)), sizes(1));
        assert_eq!(with(false, Value::Null), sizes(1));
    }

    #[test]
    fn patches_merge_into_the_pods_of_their_job() {
        let pod = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"nodeSelector": {"zone": "z"},
            "volumes": [{"name": "extra", "emptyDir": {}}],
            "containers": [{"name": "node", "volumeMounts": [{"name": "extra", "mountPath": "/x"}]}]}});
        let patched =
            json!({"name": "node", "template": {"metadata": {"labels": {"of": "job"}}, "spec": {"template": pod}}});
        let resolved = resolve(
            &job(json!({
                "podTemplateOverrides": [{"targetJobs": [{"name": "node"}], "spec": {"serviceAccountName": "old",
                    "nodeSelector": {"pool": "p"}}}],
                "runtimePatches": [{"manager": "me", "trainingRuntimeSpec": {"template": {
                    "metadata": {"labels": {"team": "t"}, "annotations": {"n": "1"}},
                    "spec": {"replicatedJobs": [patched]}}}}]})),
            &torch(),
        )
        .expect("a resolved runtime");
        assert_eq!((resolved.labels["team"].as_str(), resolved.annotations["n"].as_str()), ("t", "1"));
        let replicated = &resolved.spec["replicatedJobs"][0];
        assert_eq!(replicated["template"]["metadata"]["labels"], json!({STEP: TRAINER, "of": "job"}));
        let spec = crate::trainer::json::pod(replicated);
        assert_eq!(spec["nodeSelector"], json!({"zone": "z", "pool": "p"}));
        assert_eq!(spec["serviceAccountName"], "old");
        assert_eq!(spec["containers"][0]["image"], "torch:1", "fields that a patch lacks stay");
        assert_eq!(spec["containers"][0]["volumeMounts"][0]["mountPath"], "/x");
        let lost = json!({"runtimePatches": [{"manager": "me", "trainingRuntimeSpec": {"template": {"spec":
            {"replicatedJobs": [{"name": "lost", "template": {}}]}}}}]});
        assert!(resolve(&job(lost), &torch()).is_err_and(|error| error.contains("\"lost\"")));
    }

    #[test]
    fn resources_are_merged_into_the_containers_that_train() {
        let own = json!({"trainer": {"resourcesPerNode": {"limits": {"nvidia.com/gpu": "2"}}}});
        let resolved = resolve(&job(own.clone()), &torch()).expect("a resolved runtime");
        let container = |resolved: &Resolved, at: usize| {
            crate::trainer::json::pod(&resolved.spec["replicatedJobs"][at])["containers"][0]["resources"].clone()
        };
        assert_eq!(container(&resolved, 0), json!({"requests": {"cpu": "4"}, "limits": {"nvidia.com/gpu": "2"}}));
        assert_eq!(resolved.resources(&job(own.clone())), json!({"limits": {"nvidia.com/gpu": "2"}}));
        let resolved = resolve(&job(own.clone()), &mpi(true)).expect("a resolved runtime");
        assert_eq!(container(&resolved, 0), container(&resolved, 1));
        let resolved = resolve(&job(own), &mpi(false)).expect("a resolved runtime");
        assert!(container(&resolved, 0).is_null(), "only the launcher is a training node");
    }
}
