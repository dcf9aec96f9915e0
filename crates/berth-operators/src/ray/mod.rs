//! Ray (ray.io/v1), as KubeRay runs it: clusters of a head and groups of workers, and the programs
//! on them.
//!
//! [`cluster`] creates the pods and Services of a RayCluster. The controllers of RayJobs and
//! RayServices create RayClusters, and that of RayCronJobs creates RayJobs. They all use the same
//! type for the spec of a cluster ([`types`]).

pub mod cluster;
pub mod constants;
pub mod cron_job;
pub mod dashboard;
pub mod job;
pub mod names;
mod objects;
mod random;
pub mod service;
pub mod services;
pub mod simulation;
pub mod types;
mod version;
mod yaml;

use berth_runtime::Manager;

/// Adds the controllers of all kinds of Ray to the manager.
pub fn install(manager: &mut Manager) {
    cluster::install(manager);
    job::install(manager);
    service::install(manager);
    cron_job::install(manager);
}
