//! The section `operators`: which operators of other projects run in the cluster.

use serde::{Deserialize, Serialize};

use super::super::problem::join;
use super::super::{AutopilotConfiguration, NodeHealthConfiguration, Problem, SchedulerConfiguration};
use crate::appwrapper::AppWrapperConfiguration;

/// The operators of other projects that run in the cluster. A user who installs such a project
/// turns ours off.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OperatorConfiguration {
    /// RayCluster, RayJob, RayService and RayCronJob, in place of KubeRay.
    pub ray: bool,
    /// LeaderWorkerSet, in place of kubernetes-sigs/lws.
    pub leader_worker_sets: bool,
    /// TrainJob and its runtimes, in place of Kubeflow Trainer.
    pub trainer: bool,
    /// AppWrapper, in place of its own controller.
    pub app_wrappers: bool,
    /// The section `appwrapper` of AppWrapper's configuration file.
    pub app_wrapper_configuration: AppWrapperConfiguration,
    /// Name of the ClusterQueue whose lending limits follow the capacity that unhealthy nodes take
    /// away. Empty: `slackQueueName` of AppWrapper's configuration.
    pub slack_queue: String,
    /// Autopilot, the health agent of nodes with GPUs.
    pub autopilot: AutopilotConfiguration,
    /// PyTorchJob, TFJob, XGBoostJob, PaddleJob and JAXJob, in place of Kubeflow's training
    /// operator.
    pub training: bool,
    /// MPIJob, in place of Kubeflow's MPI operator.
    pub mpi: bool,
    /// Scheduler that starts all pods of a training or MPI job together, by a PodGroup
    /// (`scheduling.x-k8s.io/v1alpha1`). Empty: no PodGroups.
    pub gang_scheduler_name: String,
}

impl Default for OperatorConfiguration {
    fn default() -> Self {
        Self {
            ray: true,
            leader_worker_sets: true,
            trainer: true,
            training: true,
            mpi: true,
            gang_scheduler_name: String::new(),
            app_wrappers: true,
            app_wrapper_configuration: AppWrapperConfiguration::default(),
            slack_queue: String::new(),
            autopilot: AutopilotConfiguration::default(),
        }
    }
}

impl OperatorConfiguration {
    /// Reaction to unhealthy nodes, of AppWrappers and of other jobs.
    pub fn node_health(&self) -> &NodeHealthConfiguration {
        &self.app_wrapper_configuration.autopilot
    }

    /// Name of the slack queue; empty if there is none.
    pub fn slack_queue_name(&self) -> &str {
        match self.slack_queue.as_str() {
            "" => &self.app_wrapper_configuration.slack_queue_name,
            name => name,
        }
    }

    pub(super) fn problems(&self, path: &str, scheduler: &SchedulerConfiguration) -> Vec<Problem> {
        let mut problems = self.autopilot.problems(&join(path, "autopilot"));
        problems.extend(self.app_wrapper_configuration.problems(&join(path, "appWrapperConfiguration")));
        let name = &self.gang_scheduler_name;
        let known: Vec<&str> = scheduler.of_pod_groups().collect();
        if !name.is_empty() && !known.contains(&name.as_str()) {
            let known = if known.is_empty() { "none has one".to_owned() } else { known.join(", ") };
            let message = format!(
                "{name:?} is not a scheduler of this cluster that starts PodGroups of scheduling.x-k8s.io: expected a \
                 name from scheduler.profiles with plugin Coscheduling or ClusterTopologyPlacementGroup ({known})"
            );
            problems.push(Problem::new(join(path, "gangSchedulerName"), message));
        }
        problems
    }
}
