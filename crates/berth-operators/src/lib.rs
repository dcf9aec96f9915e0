//! Operators for the custom resources of other projects, such as KubeRay.
//!
//! Berth's operators run in embedded clusters, so that manifests of such a project work there
//! unchanged. A cluster in which the project's own operator is installed uses that operator. An
//! operator is an ordinary client: it uses the API and the clock, and depends on neither the
//! kubelet nor the API server.

pub mod appwrapper;
pub mod autopilot;
pub mod health;
pub mod leader_worker_set;
pub mod mpi;
pub mod ray;
pub mod slack_queue;
pub mod trainer;
pub mod training;
mod unattended;

use std::sync::Arc;

use berth_api::berth::{NodeHealthConfiguration, OperatorConfiguration};
use berth_apimachinery::exposition::Exposition;
use berth_runtime::Manager;

/// The operators that run.
#[derive(Clone, Debug)]
pub struct Options {
    /// RayCluster, RayJob, RayService and RayCronJob, as KubeRay runs them.
    pub ray: bool,
    /// LeaderWorkerSet, as kubernetes-sigs/lws runs it.
    pub leader_worker_sets: bool,
    /// TrainJob and its runtimes, as Kubeflow Trainer runs them.
    pub trainer: bool,
    /// AppWrapper, as its own controller runs it.
    pub app_wrappers: Option<appwrapper::Options>,
    /// Reaction to unhealthy nodes.
    pub node_health: Arc<NodeHealthConfiguration>,
    /// Name of the slack queue; empty if there is none.
    pub slack_queue: String,
    /// Autopilot, the health agent of nodes with GPUs.
    pub autopilot: autopilot::Options,
    /// PyTorchJob, TFJob, XGBoostJob, PaddleJob and JAXJob, as Kubeflow's training operator runs
    /// them.
    pub training: bool,
    /// MPIJob, as Kubeflow's MPI operator runs it.
    pub mpi: bool,
    /// Scheduler that starts all pods of a training or MPI job together.
    pub gang_scheduler: Option<String>,
    /// Counts the jobs of all training and MPI operators with these options.
    pub job_metrics: training::metrics::JobMetrics,
}

impl From<&OperatorConfiguration> for Options {
    fn from(configuration: &OperatorConfiguration) -> Self {
        let app_wrappers = || appwrapper::Options::new(configuration.app_wrapper_configuration.clone());
        Self {
            ray: configuration.ray,
            leader_worker_sets: configuration.leader_worker_sets,
            trainer: configuration.trainer,
            app_wrappers: configuration.app_wrappers.then(app_wrappers),
            training: configuration.training,
            mpi: configuration.mpi,
            gang_scheduler: Some(configuration.gang_scheduler_name.clone()).filter(|name| !name.is_empty()),
            job_metrics: training::metrics::JobMetrics::default(),
            node_health: Arc::new(configuration.node_health().clone()),
            slack_queue: configuration.slack_queue_name().to_owned(),
            autopilot: autopilot::Options {
                configuration: Arc::new(configuration.autopilot.clone()),
                ..autopilot::Options::default()
            },
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::from(&OperatorConfiguration::default())
    }
}

impl Options {
    /// Writes the metrics of the operators that are installed with these options or a clone of
    /// them.
    pub fn write_metrics(&self, exposition: &mut Exposition) {
        if let Some(options) = &self.app_wrappers {
            options.transitions.write(exposition);
        }
        self.job_metrics.write(exposition);
        self.autopilot.api.write_metrics(exposition);
    }
}

/// Adds the operators to the manager. Objects of an operator that is off get an event about it.
pub fn install(manager: &mut Manager, options: Options) {
    if options.ray {
        ray::install(manager);
    }
    if options.leader_worker_sets {
        leader_worker_set::install(manager);
    }
    if options.trainer {
        trainer::install(manager);
    }
    if let Some(options) = &options.app_wrappers {
        appwrapper::install(manager, options);
    }
    autopilot::install(manager, options.autopilot.clone());
    health::monitor::install(manager, options.node_health.clone());
    slack_queue::install(manager, options.node_health.clone(), &options.slack_queue);
    if options.training {
        training::install(manager, options.gang_scheduler.as_deref(), &options.job_metrics);
    }
    if options.mpi {
        mpi::install(manager, options.gang_scheduler.as_deref(), &options.job_metrics);
    }
    unattended::install(manager, &options);
}
