//! The dashboard of a Ray cluster: its programs (the job API) and its applications (Ray Serve).
//!
//! [`http`] asks a real dashboard through the API server. [`simulated`] replaces the dashboard of a
//! simulated head pod, in which no program runs. It derives its answers from the objects of the
//! cluster.

pub mod http;
pub mod simulated;

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::ray::job::command::runtime_env;
use crate::ray::job::types::{RayJobSpec, RayJobStatus};

/// Time after which a real dashboard is asked again.
pub const POLL: Duration = Duration::from_secs(3);

/// What a dashboard says about a program.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The program.
    Known(JobInfo),
    /// There is no such program.
    Unknown,
    /// There was no answer, for this reason.
    Unreachable(String),
}

/// A program on Ray.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobInfo {
    /// State; see [`crate::ray::job::types::program`].
    pub status: String,
    /// What Ray says about the state.
    pub message: String,
    /// Start time.
    pub start: Option<Timestamp>,
    /// End time.
    pub end: Option<Timestamp>,
}

/// The programs of a cluster.
pub trait Jobs: Send + Sync {
    /// The program with this submission ID.
    fn job<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Answer>;

    /// Submits a program.
    fn submit<'a>(&'a self, submission: &'a Submission) -> BoxFuture<'a, Result<(), String>>;

    /// Stops a program. It is no error if the program has already ended.
    fn stop<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), String>>;

    /// Time after which to ask again; `None` if every new answer follows a change of an object.
    fn again(&self) -> Option<Duration>;
}

/// The applications of a cluster.
pub trait Serve: Send + Sync {
    /// The applications, by name.
    fn applications(&self) -> BoxFuture<'_, Result<BTreeMap<String, Application>, String>>;

    /// Deploys the applications of a configuration.
    fn deploy<'a>(&'a self, configuration: &'a Value) -> BoxFuture<'a, Result<(), String>>;

    /// True if the head pod answers requests to applications.
    fn is_head_serving(&self) -> BoxFuture<'_, bool>;
}

/// A program to submit.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Submission {
    /// Shell command.
    pub entrypoint: String,
    /// Submission ID.
    pub submission_id: String,
    /// Runtime environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_env: Option<Value>,
    /// Metadata.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// CPUs to reserve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entrypoint_num_cpus: Option<f64>,
    /// GPUs to reserve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entrypoint_num_gpus: Option<f64>,
    /// Custom resources to reserve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entrypoint_resources: Option<Value>,
}

impl Submission {
    /// The submission of a RayJob's program.
    ///
    /// # Errors
    /// `runtimeEnvYAML` or `entrypointResources` of the spec cannot be parsed.
    pub fn of(spec: &RayJobSpec, status: &RayJobStatus) -> Result<Self, String> {
        let positive = |amount: f64| Some(amount).filter(|amount| *amount > 0.0);
        let resources = match spec.entrypoint_resources.as_str() {
            "" => None,
            text => Some(serde_json::from_str(text).map_err(|error| format!("spec.entrypointResources: {error}"))?),
        };
        Ok(Self {
            entrypoint: spec.entrypoint.clone(),
            submission_id: status.job_id.clone(),
            runtime_env: runtime_env(spec).map_err(|error| error.to_string())?,
            metadata: spec.metadata.clone(),
            entrypoint_num_cpus: positive(spec.entrypoint_num_cpus),
            entrypoint_num_gpus: positive(spec.entrypoint_num_gpus),
            entrypoint_resources: resources,
        })
    }

    fn body(&self) -> Value {
        json!(self)
    }
}

/// An application of Ray Serve.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Application {
    /// State, such as `RUNNING`.
    pub status: String,
    /// What Ray says about the state.
    pub message: String,
    /// Its deployments, by name.
    pub deployments: BTreeMap<String, Deployment>,
}

/// A deployment of an application.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Deployment {
    /// State, such as `HEALTHY`.
    pub status: String,
    /// What Ray says about the state.
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_submission_has_the_fields_of_the_job_api() {
        let spec = json!({
            "entrypoint": "python train.py", "runtimeEnvYAML": "pip: [jax]", "metadata": {"team": "blue"},
            "entrypointNumCpus": 2, "entrypointResources": "{\"TPU\": 4}",
        });
        let status = RayJobStatus { job_id: "demo-11111".into(), ..Default::default() };
        let submission = Submission::of(&RayJobSpec::read(&spec).unwrap(), &status).unwrap();
        let expected = json!({
            "entrypoint": "python train.py", "submission_id": "demo-11111", "runtime_env": {"pip": ["jax"]},
            "metadata": {"team": "blue"}, "entrypoint_num_cpus": 2.0, "entrypoint_resources": {"TPU": 4},
        });
        assert_eq!(submission.body(), expected);
        let spec = json!({"entrypointResources": "TPU"});
        let error = Submission::of(&RayJobSpec::read(&spec).unwrap(), &status).unwrap_err();
        assert!(error.starts_with("spec.entrypointResources: "), "{error}");
    }
}
