//! The whole embedded cluster, in process and in virtual time.

mod app_wrappers;
mod bad_input;
mod election;
mod jobsets;
mod leader_worker_sets;
mod local_queues;
mod metrics;
mod node_health;
mod operator_admission;
mod ray_clusters;
mod ray_samples;
mod takeover;
mod tenants;
mod train_jobs;
mod training_jobs;
mod usage;
mod visibility;
mod written_forecasts;

use berth_embedded::{Embedded, Options};
use berth_runtime::Clock;
use serde_json::json;

/// A cluster without nodes, which quotas and admission do not need.
pub async fn cluster() -> (Embedded, Clock) {
    let clock = Clock::scaled("2026-01-05T09:00:00Z".parse().expect("a timestamp"), 1.0);
    let options = Options::in_memory(clock.clone(), 1, Some(json!({"nodePools": []})), None);
    (Embedded::start(options).await.expect("the cluster starts"), clock)
}
