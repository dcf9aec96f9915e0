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
#[derive(Clone, Debug)]
pub struct Options {
    /// RayCluster, RayJob, RayService and RayCronJob, as KubeRay runs them.
    pub ray: bool,
    /// AppWrapper, as its own controller runs it.
    pub app_wrappers: Option<appwrapper::Options>,
}

impl From<&OperatorConfiguration> for Options {
    fn from(configuration: &OperatorConfiguration) -> Self {
        let app_wrappers = || appwrapper::Options::new(configuration.app_wrapper_configuration.clone());
        Self { ray: configuration.ray, app_wrappers: configuration.app_wrappers.then(app_wrappers) }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::from(&OperatorConfiguration::default())
    }
}

impl Options {
    /// The metrics of the operators that are installed with these options or a clone of them, in the
    /// Prometheus text format.
    pub fn metrics(&self) -> String {
        self.app_wrappers.as_ref().map(|options| options.transitions.text()).unwrap_or_default()
    }
}

/// Adds the operators to the manager. Objects of an operator that is off get an event about it.
pub fn install(manager: &mut Manager, options: &Options) {
    if options.ray {
        ray::install(manager);
    }
    if let Some(options) = &options.app_wrappers {
        appwrapper::install(manager, options);
    }
    unattended::install(manager, options);
}
