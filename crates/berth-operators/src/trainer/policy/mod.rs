//! How the nodes of a training find each other: the environment, ports and volumes of each
//! framework.
//!
//! The environment of the job comes before that of the framework, which wins. Both are added to
//! what the runtime's containers have.

mod mpi;
mod torch;
pub mod torchtune;

pub use mpi::{HOSTFILE, hostfile_name, secret_name, ssh_secret_keys};
pub use torch::Processes;

use serde_json::{Value, json};

use super::constants::{INDEX_FIELD, NODE, PORT, TRAINER};
use super::json::{container_mut, field_variable, job_mut, pod_mut, set_env, upsert, variable};
use super::resolve::Resolved;
use super::resources;
use super::types::TrainJobSpec;

/// Objects that a policy needs beside the JobSet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// Content of the file with the hosts of an MPI job.
    pub hostfile: Option<String>,
    /// The command of the training container, if the framework changes that of the job.
    pub command: Option<Vec<String>>,
}

/// Adds what the runtime's policy prescribes to the JobSet's spec.
///
/// # Errors
/// The policy cannot be carried out.
pub fn enforce(name: &str, job: &TrainJobSpec, resolved: &mut Resolved) -> Result<Extras, String> {
    if resolved.group.volcano.is_some() {
        return Err("podGroupPolicy.volcano is not supported; use podGroupPolicy.coscheduling, or a queue".to_owned());
    }
    let Some(policy) = resolved.policy.clone() else { return Ok(Extras::default()) };
    if policy.flux.is_some() {
        return Err("mlPolicy.flux is not supported; supported policies are torch, mpi, jax and xgboost".to_owned());
    }
    if let Some(torch) = &policy.torch {
        let command = torch::enforce(name, job, torch, resolved)?;
        return Ok(Extras { command, ..Extras::default() });
    }
    if let Some(mpi) = &policy.mpi {
        let hostfile = mpi::enforce(name, job, mpi, resolved);
        return Ok(Extras { hostfile: Some(hostfile), ..Extras::default() });
    }
    if policy.jax.is_some() {
        let variables = [
            variable("JAX_NUM_PROCESSES", resolved.nodes()),
            field_variable("JAX_PROCESS_ID", INDEX_FIELD),
            variable("JAX_COORDINATOR_ADDRESS", format!("{}:{PORT}", resolved.first_node(name))),
        ];
        add_to_trainer(resolved, job, variables);
    }
    if policy.xgboost.is_some() {
        // One worker per GPU, or one per node.
        let workers = i64::from(resolved.nodes()).saturating_mul(resources::gpus(&resolved.resources(job)).max(1));
        let variables = [
            variable("DMLC_TRACKER_URI", resolved.first_node(name)),
            variable("DMLC_TRACKER_PORT", PORT),
            field_variable("DMLC_TASK_ID", INDEX_FIELD),
            variable("DMLC_NUM_WORKER", workers),
        ];
        add_to_trainer(resolved, job, variables);
    }
    Ok(Extras::default())
}

/// The container that trains.
fn trainer_container(resolved: &mut Resolved) -> Option<&mut Value> {
    let name = resolved.trainer()?.name.clone();
    container_mut(pod_mut(job_mut(&mut resolved.spec, &name)?), NODE)
}

/// Adds variables and the port to the container that trains.
fn add_to_trainer(resolved: &mut Resolved, job: &TrainJobSpec, variables: impl IntoIterator<Item = Value>) {
    if let Some(container) = trainer_container(resolved) {
        set_env(container, job.env().iter().cloned());
        set_env(container, variables);
        upsert(container, "ports", "containerPort", json!({"containerPort": PORT, "protocol": "TCP"}));
    }
}

/// Names of variables that a policy sets, which a job must not set.
pub fn reserved(policy: &super::types::MlPolicy) -> &'static [&'static str] {
    match policy {
        policy if policy.torch.is_some() => &torch::RESERVED,
        policy if policy.mpi.is_some() => &mpi::RESERVED,
        policy if policy.xgboost.is_some() => {
            &["DMLC_TRACKER_URI", "DMLC_TRACKER_PORT", "DMLC_TASK_ID", "DMLC_NUM_WORKER"]
        }
        _ => &[],
    }
}

/// True if the part's pods run the training container under this policy.
pub fn trains(part: &super::resolve::Part, resolved: &Resolved) -> bool {
    let mpi = resolved.policy.as_ref().and_then(|policy| policy.mpi.as_ref());
    part.is_step(TRAINER) || (part.name == NODE && mpi.is_some_and(|mpi| mpi.run_launcher_as_node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trainer::resolve::resolve;
    use crate::trainer::samples::{framework, job};

    fn env(runtime: &Value, spec: Value) -> Vec<(String, String)> {
        let job = job(spec);
        let mut resolved = resolve(&job, runtime).expect("a resolved runtime");
        enforce("train", &job, &mut resolved).expect("a policy");
        let container = trainer_container(&mut resolved).expect("a container").clone();
        assert_eq!(container["ports"][0]["containerPort"], 29500);
        let text = |it: &Value| match &it["value"] {
            Value::String(text) => text.clone(),
            _ => it["valueFrom"]["fieldRef"]["fieldPath"].as_str().unwrap_or_default().to_owned(),
        };
        let all = container["env"].as_array().cloned().unwrap_or_default();
        all.iter().map(|it| (it["name"].as_str().unwrap_or_default().to_owned(), text(it))).collect()
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn jax_gets_a_coordinator() {
        let spec = json!({"trainer": {"numNodes": 3, "env": [{"name": "A", "value": "1"}]}});
        assert_eq!(
            env(&framework("jax", json!({})), spec),
            [
                pair("A", "1"),
                pair("JAX_NUM_PROCESSES", "3"),
                pair("JAX_PROCESS_ID", INDEX_FIELD),
                pair("JAX_COORDINATOR_ADDRESS", "train-node-0-0.train:29500")
            ]
        );
    }

    #[test]
    fn xgboost_has_a_worker_per_gpu() {
        let spec = json!({"trainer": {"numNodes": 2, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 4}}}});
        let all = env(&framework("xgboost", json!({})), spec);
        assert!(all.contains(&pair("DMLC_NUM_WORKER", "8")));
        assert!(all.contains(&pair("DMLC_TRACKER_URI", "train-node-0-0.train")));
    }

    #[test]
    fn policies_that_are_not_supported_say_so() {
        let job = job(json!({}));
        let refused = |runtime: &Value| {
            let mut resolved = resolve(&job, runtime).expect("a resolved runtime");
            enforce("train", &job, &mut resolved).expect_err("not supported")
        };
        assert!(refused(&framework("flux", json!({}))).contains("mlPolicy.flux"));
        let mut volcano = framework("torch", json!({}));
        volcano["podGroupPolicy"] = json!({"volcano": {}});
        assert!(refused(&volcano).contains("podGroupPolicy.volcano"));
    }
}
