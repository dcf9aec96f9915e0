//! Kubeflow Trainer (trainer.kubeflow.org/v1alpha1): TrainJobs, and the runtimes that they refer
//! to.
//!
//! A TrainJob becomes one JobSet of its name: the runtime's template with the patches of the job
//! ([`resolve`]), the environment by which the nodes find each other ([`policy`]), and the job's
//! own settings ([`build`]). A JobSet that runs is not changed. [`webhook`] has the rules of
//! admission.
//!
//! Not implemented: `mlPolicy.flux`, PodGroups of Volcano, and reports of progress from pods.

pub mod build;
pub mod constants;
pub mod job;
mod json;
pub mod policy;
pub mod resolve;
mod resources;
pub mod runtimes;
#[cfg(test)]
mod samples;
pub mod snapshot;
pub mod status;
pub mod types;
pub mod webhook;

use berth_runtime::Manager;

/// Adds the controllers of Trainer's kinds to the manager.
pub fn install(manager: &mut Manager) {
    job::install(manager);
    runtimes::install(manager);
}
