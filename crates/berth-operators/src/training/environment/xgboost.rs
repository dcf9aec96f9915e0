//! XGBoost's tracker, and the addresses of all workers for LightGBM.

use k8s_openapi::api::core::v1::PodSpec;

use super::{add, port, unbuffered};
use crate::training::types::{Job, Replica};

pub(super) fn complete(job: &Job<'_>, replica: &Replica, index: i32, pod: &mut PodSpec) -> Result<(), String> {
    let master_port = port(job, "Master")?;
    let masters = job.spec.replica("Master").map_or(0, |master| master.count);
    let rank = if replica.type_ == "Worker" { index + masters } else { index };
    let total = job.spec.total();
    let workers = if total > 1 {
        let addresses: Vec<String> = (0..total - 1).map(|index| job.replica_name("Worker", index)).collect();
        Some((port(job, "Worker")?, addresses.join(",")))
    } else {
        None
    };
    for container in &mut pod.containers {
        let variables = [
            ("MASTER_PORT", master_port.to_string()),
            ("MASTER_ADDR", job.replica_name("Master", 0)),
            ("WORLD_SIZE", total.to_string()),
            ("RANK", rank.to_string()),
            unbuffered(),
        ];
        add(container, variables);
        if let Some((port, addresses)) = &workers {
            add(container, [("WORKER_PORT", port.to_string()), ("WORKER_ADDRS", addresses.clone())]);
        }
    }
    Ok(())
}
