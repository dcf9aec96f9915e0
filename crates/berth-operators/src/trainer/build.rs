//! The objects of a TrainJob, as JSON to be applied: the JobSet, and what its policies need beside
//! it.

use berth_api::frameworks::TrainJob;
use berth_api::scheduling::POD_GROUP_LABEL;
use berth_runtime::owned_by;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::constants::{DATASET_INITIALIZER, MODEL_INITIALIZER, NODE, STORAGE_URI, TRAINER};
use super::json::{container_mut, job_mut, pod, pod_mut, set_env, variable};
use super::policy::{self, Extras, HOSTFILE, hostfile_name, trains};
use super::resolve::{Resolved, resolve};
use super::resources::Total;
use super::types::{Initializer, TrainJobSpec};

/// Seconds that pods wait for their group, unless the runtime sets them.
const GROUP_TIMEOUT_DEFAULT: i32 = 60;

/// The objects of a TrainJob.
#[derive(Clone, Debug, PartialEq)]
pub struct Built {
    /// The JobSet.
    pub jobset: Value,
    /// The ConfigMap with the hosts of an MPI job, which also needs a Secret with SSH keys.
    pub hostfile: Option<Value>,
    /// The PodGroup of coscheduled pods.
    pub pod_group: Option<Value>,
}

/// Builds the objects from the runtime's spec.
///
/// # Errors
/// The runtime does not fit the job, or needs something that is not supported.
pub fn build(job: &TrainJob, spec: &TrainJobSpec, runtime: &Value) -> Result<Built, String> {
    let name = job.name_any();
    let mut resolved = resolve(spec, runtime)?;
    let extras = policy::enforce(&name, spec, &mut resolved)?;
    for part in resolved.parts.clone() {
        let Some(replicated) = job_mut(&mut resolved.spec, &part.name) else { continue };
        for field in ["parallelism", "completions"] {
            replicated["template"]["spec"][field] = json!(part.count);
        }
        if part.step.is_some() {
            replicated["replicas"] = json!(part.replicas);
        }
    }
    let initializers = [(DATASET_INITIALIZER, &spec.initializer.dataset), (MODEL_INITIALIZER, &spec.initializer.model)];
    for (step, initializer) in initializers {
        if let Some(initializer) = initializer {
            initialize(&mut resolved, step, initializer);
        }
    }
    set_trainer(&mut resolved, spec, &extras);
    let pod_group = resolved.group.coscheduling.is_some().then(|| pod_group(job, &mut resolved));
    resolved.spec["suspend"] = json!(spec.suspend);
    let mut jobset = owned(job, "jobset.x-k8s.io/v1alpha2", "JobSet", &name);
    for (field, map) in [("labels", &resolved.labels), ("annotations", &resolved.annotations)] {
        if !map.is_empty() {
            jobset["metadata"][field] = json!(map);
        }
    }
    jobset["spec"] = resolved.spec;
    let hostfile = extras.hostfile.map(|hosts| {
        let mut map = owned(job, "v1", "ConfigMap", &hostfile_name(&name));
        map["data"] = json!({HOSTFILE: hosts});
        map
    });
    Ok(Built { jobset, hostfile, pod_group })
}

/// An object that the job owns, without a spec.
pub fn owned(job: &TrainJob, api_version: &str, kind: &str, name: &str) -> Value {
    json!({
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": name, "namespace": job.namespace(), "ownerReferences": [owned_by(job)]},
    })
}

fn initialize(resolved: &mut Resolved, step: &str, initializer: &Initializer) {
    let parts = resolved.parts.iter().filter(|part| part.is_step(step)).map(|part| part.name.clone());
    for name in parts.collect::<Vec<_>>() {
        let replicated = job_mut(&mut resolved.spec, &name);
        let Some(container) = replicated.and_then(|it| container_mut(pod_mut(it), step)) else { continue };
        set_env(container, initializer.storage_uri.iter().map(|uri| variable(STORAGE_URI, uri)));
        set_env(container, initializer.env.iter().cloned());
        if let Some(secret) = &initializer.secret_ref {
            let source = json!({"secretRef": {"name": secret["name"]}});
            match container["envFrom"].as_array_mut() {
                Some(sources) => sources.push(source),
                None => container["envFrom"] = json!([source]),
            }
        }
    }
}

/// Applies the job's own settings to the containers that train.
fn set_trainer(resolved: &mut Resolved, spec: &TrainJobSpec, extras: &Extras) {
    let Some(own) = &spec.trainer else { return };
    let training: Vec<_> = resolved.parts.iter().filter(|part| trains(part, resolved)).cloned().collect();
    for part in training {
        let replicated = job_mut(&mut resolved.spec, &part.name);
        let Some(container) = replicated.and_then(|it| container_mut(pod_mut(it), NODE)) else { continue };
        set_env(container, own.env.iter().cloned());
        if !part.is_step(TRAINER) {
            continue;
        }
        if let Some(image) = &own.image {
            container["image"] = json!(image);
        }
        if let Some(command) = extras.command.as_ref().or(own.command.as_ref()) {
            container["command"] = json!(command);
        }
        if let Some(args) = &own.args {
            container["args"] = json!(args);
        }
    }
}

/// Labels the pods with their PodGroup, and returns the group: all pods of the job.
fn pod_group(job: &TrainJob, resolved: &mut Resolved) -> Value {
    let name = job.name_any();
    let mut total = Total::default();
    let mut members = 0_i32;
    for part in resolved.parts.clone() {
        let Some(replicated) = job_mut(&mut resolved.spec, &part.name) else { continue };
        replicated["template"]["spec"]["template"]["metadata"]["labels"][POD_GROUP_LABEL] = json!(name);
        let pods = part.count.saturating_mul(part.replicas);
        total.add_pods(pod(replicated), pods);
        members = members.saturating_add(pods);
    }
    let timeout = resolved.group.coscheduling.as_ref().and_then(|options| options.schedule_timeout_seconds);
    let mut group = owned(job, "scheduling.x-k8s.io/v1alpha1", "PodGroup", &name);
    group["spec"] = json!({
        "minMember": members,
        "minResources": total.to_json(),
        "scheduleTimeoutSeconds": timeout.unwrap_or(GROUP_TIMEOUT_DEFAULT),
    });
    group
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trainer::samples::{mpi, torch, with_initializer};

    fn built(spec: Value, runtime: &Value) -> Built {
        let job: TrainJob =
            serde_json::from_value(json!({"metadata": {"name": "train", "namespace": "ns", "uid": "u"}, "spec": spec}))
                .expect("a TrainJob");
        let spec = TrainJobSpec::read(&job.spec).expect("a spec");
        build(&job, &spec, runtime).expect("objects")
    }

    fn container(built: &Built, at: usize) -> Value {
        pod(&built.jobset["spec"]["replicatedJobs"][at])["containers"][0].clone()
    }

    #[test]
    fn the_jobset_has_the_name_and_the_settings_of_the_job() {
        let built = built(
            json!({"suspend": true, "trainer": {"numNodes": 2, "image": "own:1", "command": ["torchrun"],
                "args": ["train.py"]}}),
            &torch(),
        );
        let set = &built.jobset;
        assert_eq!((&set["metadata"]["name"], &set["metadata"]["namespace"]), (&json!("train"), &json!("ns")));
        assert_eq!(set["metadata"]["ownerReferences"][0]["kind"], "TrainJob");
        assert_eq!(set["spec"]["suspend"], true);
        let replicated = &set["spec"]["replicatedJobs"][0];
        assert_eq!(
            (&replicated["template"]["spec"]["parallelism"], &replicated["template"]["spec"]["completions"]),
            (&json!(2), &json!(2))
        );
        let node = container(&built, 0);
        assert_eq!(
            (&node["image"], &node["command"], &node["args"]),
            (&json!("own:1"), &json!(["torchrun"]), &json!(["train.py"]))
        );
        assert!(built.hostfile.is_none() && built.pod_group.is_none());
    }

    #[test]
    fn an_initializer_gets_its_address_and_its_secret() {
        let dataset =
            json!({"storageUri": "hf://data", "env": [{"name": "A", "value": "1"}], "secretRef": {"name": "s"}});
        let built = built(json!({"initializer": {"dataset": dataset}}), &with_initializer());
        let loader = container(&built, 0);
        assert_eq!(loader["env"], json!([{"name": STORAGE_URI, "value": "hf://data"}, {"name": "A", "value": "1"}]));
        assert_eq!(loader["envFrom"], json!([{"secretRef": {"name": "s"}}]));
    }

    #[test]
    fn an_mpi_job_has_a_list_of_hosts_and_one_command() {
        let spec = json!({"trainer": {"numNodes": 3, "command": ["mpirun"], "env": [{"name": "A", "value": "1"}]}});
        let launched = built(spec.clone(), &mpi(true));
        let hosts = launched.hostfile.as_ref().expect("hosts")["data"]["hostfile"].as_str().expect("text").to_owned();
        assert_eq!(hosts.lines().count(), 3);
        assert_eq!(container(&launched, 1)["command"], json!(["mpirun"]));
        assert!(container(&launched, 0)["command"].is_null(), "nodes run their SSH server");
        assert_eq!(container(&launched, 0)["env"], json!([{"name": "A", "value": "1"}]));
        assert!(container(&built(spec, &mpi(false)), 0)["env"].is_null());
    }

    #[test]
    fn coscheduled_pods_are_one_group() {
        let mut runtime = with_initializer();
        runtime["podGroupPolicy"] = json!({"coscheduling": {"scheduleTimeoutSeconds": 120}});
        let built = built(json!({"trainer": {"numNodes": 2}}), &runtime);
        let group = built.pod_group.clone().expect("a group");
        assert_eq!(group["spec"], json!({"minMember": 3, "minResources": {"cpu": "8"}, "scheduleTimeoutSeconds": 120}));
        let labels = &built.jobset["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["metadata"]["labels"];
        assert_eq!(labels[POD_GROUP_LABEL], "train");
    }
}
