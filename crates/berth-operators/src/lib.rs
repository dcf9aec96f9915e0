//! Operators for the custom resources of other projects, such as KubeRay.
//!
//! Berth's operators run in embedded clusters, so that manifests of such a project work there
//! unchanged. A cluster in which the project's own operator is installed uses that operator. An
//! operator is an ordinary client: it uses the API and the clock, and depends on neither the
//! kubelet nor the API server.

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
