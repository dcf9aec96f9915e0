//! The operators of projects whose manifests Berth takes.
//!
//! A cluster that runs such a project has its operator, and ours stays off. In an embedded cluster
//! ours runs, so that manifests of the project run unchanged. An operator is an ordinary client: it
//! knows the API and the clock, and no kubelet and no API server.

pub mod appwrapper;
pub mod health;
pub mod ray;
mod unattended;

use berth_api::berth::OperatorConfiguration;
use berth_runtime::Manager;

/// The operators that run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// RayCluster, RayJob, RayService and RayCronJob, as KubeRay runs them.
    pub ray: bool,
}

impl From<&OperatorConfiguration> for Options {
    fn from(configuration: &OperatorConfiguration) -> Self {
        Self { ray: configuration.ray }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self { ray: true }
    }
}

/// Adds the operators to the manager. Objects of an operator that is off get an event about it.
pub fn install(manager: &mut Manager, options: Options) {
    if options.ray {
        ray::install(manager);
    }
    unattended::install(manager, options);
}
