//! TensorFlow: the variable `TF_CONFIG` with the addresses of all pods, or, with dynamic workers,
//! of the parameter servers and the pod itself.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodSpec;
use serde::Serialize;

use super::add;
use crate::training::types::{Job, Replica};

#[derive(Serialize)]
struct Task {
    r#type: String,
    index: i32,
}

#[derive(Serialize)]
struct Config {
    cluster: BTreeMap<String, Vec<String>>,
    task: Task,
    environment: &'static str,
}

#[derive(Serialize)]
struct SparseCluster {
    worker: BTreeMap<i32, String>,
    ps: Vec<String>,
}

#[derive(Serialize)]
struct SparseConfig {
    cluster: SparseCluster,
    task: Task,
}

pub(super) fn complete(job: &Job<'_>, replica: &Replica, index: i32, pod: &mut PodSpec) -> Result<(), String> {
    if job.spec.total() == 1 {
        return Ok(());
    }
    let config = config(job, replica, index).map_err(|error| format!("TF_CONFIG: {error}"))?;
    if let Some(container) = pod.containers.iter_mut().find(|it| it.name == job.framework.container) {
        add(container, [("TF_CONFIG", config)]);
    }
    Ok(())
}

fn config(job: &Job<'_>, replica: &Replica, index: i32) -> Result<String, serde_json::Error> {
    let task = Task { r#type: replica.lower(), index };
    if !job.spec.has_dynamic_workers {
        let cluster = job.spec.replicas.iter().map(|replica| (replica.lower(), addresses(job, replica))).collect();
        return serde_json::to_string(&Config { cluster, task, environment: "cloud" });
    }
    let mut cluster = SparseCluster { worker: BTreeMap::new(), ps: Vec::new() };
    match replica.type_ {
        "PS" => cluster.ps.push(address(job, replica, index)),
        "Worker" => {
            cluster.ps = job.spec.replica("PS").map(|servers| addresses(job, servers)).unwrap_or_default();
            cluster.worker.insert(index, address(job, replica, index));
        }
        _ => {}
    }
    serde_json::to_string(&SparseConfig { cluster, task })
}

fn addresses(job: &Job<'_>, replica: &Replica) -> Vec<String> {
    (0..replica.count).map(|index| address(job, replica, index)).collect()
}

fn address(job: &Job<'_>, replica: &Replica, index: i32) -> String {
    let framework = job.framework;
    let port = replica.port(framework.container, framework.port_name).unwrap_or(framework.port);
    format!("{}.{}.svc:{port}", job.replica_name(replica.type_, index), job.namespace())
}
