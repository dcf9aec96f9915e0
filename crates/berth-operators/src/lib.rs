//! The operators of projects whose manifests Berth takes.
//!
//! A cluster that runs such a project has its operator, and ours stays off. In an embedded cluster
//! ours runs, so that manifests of the project run unchanged. An operator is an ordinary client: it
//! knows the API and the clock, and no kubelet and no API server.

pub mod mpi;
pub mod ray;
pub mod training;
mod unattended;

use berth_api::berth::OperatorConfiguration;
use berth_runtime::Manager;

/// The operators that run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// RayCluster, RayJob, RayService and RayCronJob, as KubeRay runs them.
    pub ray: bool,
    /// PyTorchJob, TFJob, XGBoostJob, PaddleJob and JAXJob, as Kubeflow's training operator runs
    /// them.
    pub training: bool,
    /// MPIJob, as Kubeflow's MPI operator runs it.
    pub mpi: bool,
    /// Scheduler that starts all pods of a training or MPI job together.
    pub gang_scheduler: Option<String>,
}

impl From<&OperatorConfiguration> for Options {
    fn from(configuration: &OperatorConfiguration) -> Self {
        let gang_scheduler = Some(configuration.gang_scheduler_name.clone()).filter(|name| !name.is_empty());
        Self { ray: configuration.ray, training: configuration.training, mpi: configuration.mpi, gang_scheduler }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::from(&OperatorConfiguration::default())
    }
}

/// Adds the operators to the manager. Objects of an operator that is off get an event about it.
pub fn install(manager: &mut Manager, options: Options) {
    if options.ray {
        ray::install(manager);
    }
    if options.training {
        training::install(manager, options.gang_scheduler.as_deref());
    }
    if options.mpi {
        mpi::install(manager, options.gang_scheduler.as_deref());
    }
    unattended::install(manager, &options);
}
