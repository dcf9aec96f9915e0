//! JAX: the coordinator, the number of processes and the pod's index, as
//! `jax.distributed.initialize` needs them.

use k8s_openapi::api::core::v1::PodSpec;

use super::{add, port, unbuffered};
use crate::training::types::Job;

pub(super) fn complete(job: &Job<'_>, index: i32, pod: &mut PodSpec) -> Result<(), String> {
    let port = port(job, "Worker")?;
    for container in &mut pod.containers {
        let variables = [
            unbuffered(),
            ("COORDINATOR_PORT", port.to_string()),
            ("COORDINATOR_ADDRESS", job.replica_name("Worker", 0)),
            ("NUM_PROCESSES", job.spec.total().to_string()),
            ("PROCESS_ID", index.to_string()),
        ];
        add(container, variables);
    }
    Ok(())
}
