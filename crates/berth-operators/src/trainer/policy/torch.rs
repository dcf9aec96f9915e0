//! PyTorch: the environment of torchrun, which reads its options from variables named `PET_*`.

use serde_json::Value;

use super::{add_to_trainer, torchtune, trainer_container};
use crate::trainer::constants::{INDEX_FIELD, PORT};
use crate::trainer::json::{any_container_mut, field_variable, job_mut, pod_mut, set_env, variable};
use crate::trainer::resolve::Resolved;
use crate::trainer::resources;
use crate::trainer::types::{TorchPolicy, TrainJobSpec};

const NODES: &str = "PET_NNODES";
const PROCESSES: &str = "PET_NPROC_PER_NODE";
const RANK: &str = "PET_NODE_RANK";
const MASTER: &str = "PET_MASTER_ADDR";
const MASTER_PORT: &str = "PET_MASTER_PORT";

/// Variables that a job must not set.
pub(super) const RESERVED: [&str; 5] = [MASTER, MASTER_PORT, NODES, RANK, PROCESSES];

/// Processes per node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processes {
    /// As many as torchrun finds GPUs.
    Auto,
    /// This many.
    Count(i64),
}

impl Processes {
    /// The processes of a node: those of the job, or one per GPU or CPU.
    pub fn of(job: &TrainJobSpec, resolved: &Resolved) -> Self {
        let resources = resolved.resources(job);
        match job.processes() {
            Some(count) => Processes::Count(count.into()),
            None if resources::gpus(&resources) > 0 => Processes::Auto,
            None => Processes::Count(resources::cpus(&resources).max(1)),
        }
    }
}

impl std::fmt::Display for Processes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Processes::Auto => f.write_str("auto"),
            Processes::Count(count) => count.fmt(f),
        }
    }
}

/// Adds the environment. Returns the command of a fine-tuning by torchtune.
pub(super) fn enforce(
    name: &str,
    job: &TrainJobSpec,
    policy: &TorchPolicy,
    resolved: &mut Resolved,
) -> Result<Option<Vec<String>>, String> {
    let processes = Processes::of(job, resolved);
    let own = [variable(NODES, resolved.nodes()), variable(PROCESSES, processes), field_variable(RANK, INDEX_FIELD)];
    let master = [variable(MASTER, resolved.first_node(name)), variable(MASTER_PORT, PORT)];
    let command = torchtune::is_fine_tuning(job).then(|| torchtune::command(name, job, processes, resolved));
    add_to_trainer(resolved, job, own.iter().cloned());
    // torchtune gets the address as an option.
    if command.is_none()
        && let Some(container) = trainer_container(resolved)
    {
        set_env(container, master.iter().cloned());
    }
    for target in &policy.env_injection.targets {
        for container in &target.container_names {
            let pod = job_mut(&mut resolved.spec, &target.job_name).map(pod_mut);
            let found: Option<&mut Value> = pod.and_then(|pod| any_container_mut(pod, container));
            let found = found.ok_or_else(|| {
                format!(
                    "envInjection target podSet {:?} container {container:?} not found in runtime template",
                    target.job_name
                )
            })?;
            set_env(found, own.iter().chain(&master).cloned());
        }
    }
    Ok(command)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::trainer::policy::enforce as enforce_policy;
    use crate::trainer::resolve::resolve;
    use crate::trainer::samples::{job, torch};

    fn env(runtime: &Value, spec: Value) -> Vec<String> {
        let job = job(spec);
        let mut resolved = resolve(&job, runtime).expect("a resolved runtime");
        enforce_policy("train", &job, &mut resolved).expect("a policy");
        let container = trainer_container(&mut resolved).expect("a container").clone();
        let all = container["env"].as_array().cloned().unwrap_or_default();
        let text =
            |it: &Value| format!("{}={}", it["name"].as_str().unwrap_or(""), it["value"].as_str().unwrap_or("@"));
        all.iter().map(text).collect()
    }

    #[test]
    fn torchrun_gets_its_options_from_the_environment() {
        assert_eq!(
            env(&torch(), json!({"trainer": {"numNodes": 3, "env": [{"name": "A", "value": "1"}]}})),
            [
                "A=1",
                "PET_NNODES=3",
                "PET_NPROC_PER_NODE=4",
                "PET_NODE_RANK=@",
                "PET_MASTER_ADDR=train-node-0-0.train",
                "PET_MASTER_PORT=29500"
            ]
        );
        assert_eq!(env(&torch(), json!({}))[0], "PET_NNODES=1", "a job without settings trains too");
    }

    #[test]
    fn processes_follow_the_job_the_gpus_or_the_cpus() {
        let processes = |trainer: Value| env(&torch(), json!({"trainer": trainer}))[1].clone();
        assert_eq!(processes(json!({"numProcPerNode": 2})), "PET_NPROC_PER_NODE=2");
        let gpus = json!({"resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}});
        assert_eq!(processes(gpus), "PET_NPROC_PER_NODE=auto");
        assert_eq!(processes(json!({"resourcesPerNode": {"requests": {"cpu": "500m"}}})), "PET_NPROC_PER_NODE=1");
    }

    #[test]
    fn further_containers_get_the_environment() {
        let mut runtime = torch();
        runtime["mlPolicy"]["torch"]["envInjection"] =
            json!({"targets": [{"jobName": "node", "containerNames": ["check"]}]});
        let pod = "/template/spec/replicatedJobs/0/template/spec/template/spec";
        runtime.pointer_mut(pod).expect("a pod")["initContainers"] = json!([{"name": "check"}]);
        let job = job(json!({}));
        let mut resolved = resolve(&job, &runtime).expect("a resolved runtime");
        enforce_policy("train", &job, &mut resolved).expect("a policy");
        let check = crate::trainer::json::pod(&resolved.spec["replicatedJobs"][0])["initContainers"][0].clone();
        assert_eq!(check["env"].as_array().map(Vec::len), Some(5));
        runtime.pointer_mut(pod).expect("a pod")["initContainers"] = json!([]);
        let mut resolved = resolve(&job, &runtime).expect("a resolved runtime");
        assert_eq!(
            enforce_policy("train", &job, &mut resolved).expect_err("no container"),
            "envInjection target podSet \"node\" container \"check\" not found in runtime template"
        );
    }
}
