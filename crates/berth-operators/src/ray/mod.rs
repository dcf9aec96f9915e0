//! Ray (ray.io/v1), as KubeRay runs it: clusters of a head and groups of workers, and the programs
//! on them.
//!
//! [`cluster`] makes the pods and Services of a RayCluster. The other kinds make RayClusters. All
//! read the same part of the spec, [`types`].

pub mod cluster;
pub mod constants;
pub mod names;
pub mod types;
mod version;

use berth_runtime::Manager;

/// Adds the controllers of all kinds of Ray to the manager.
pub fn install(manager: &mut Manager) {
    cluster::install(manager);
}
