//! The training operator's kinds (kubeflow.org/v1): PyTorchJob, TFJob, XGBoostJob, PaddleJob and
//! JAXJob. A job is pods of a few replica types that find each other and train together.
//!
//! One engine serves all kinds: [`framework`] has a row per kind, [`environment`] what its library
//! needs, and [`outcome`] how its pods' ends become the job's. [`plan::plan`] decides each step;
//! [`controller`] carries it out. [`validate`] has the rules of the operator's webhook. The MPI
//! operator shares the status, the run policy and the PodGroups.

mod abnormal;
pub mod conditions;
mod controller;
pub mod environment;
pub mod framework;
pub mod gang;
pub mod objects;
pub mod outcome;
pub mod plan;
pub mod pod_groups;
pub mod types;
pub mod validate;

#[cfg(test)]
mod tests;

use berth_api::frameworks::{JAXJob, PaddleJob, PyTorchJob, TFJob, XGBoostJob};
use berth_runtime::Manager;

/// Adds the controllers of all kinds to the manager. `gang_scheduler` starts all pods of a job
/// together, by a PodGroup.
pub fn install(manager: &mut Manager, gang_scheduler: Option<&str>) {
    let shared = controller::Shared::new(manager, gang_scheduler);
    controller::install::<PyTorchJob>(manager, &shared);
    controller::install::<TFJob>(manager, &shared);
    controller::install::<XGBoostJob>(manager, &shared);
    controller::install::<PaddleJob>(manager, &shared);
    controller::install::<JAXJob>(manager, &shared);
}
