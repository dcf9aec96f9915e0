//! The jobs that exist now: `CurrentJobs` of `explain.berth.dev/v1alpha1`, a page of a filtered,
//! sorted and grouped list. It is read-only and not stored as an object.
//!
//! Every field is optional for readers, as in [`super::explanation`].

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Serialize};

use super::usage::{Stay, WithheldUsage};

/// A page of the jobs that match.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CurrentJobs {
    /// API group and version.
    pub api_version: String,
    /// `CurrentJobs`.
    pub kind: String,
    /// Empty.
    pub metadata: ObjectMeta,
    /// Time of the response.
    pub now: Option<Time>,
    /// Number of jobs that match.
    pub total: usize,
    /// Number of jobs that match by state, regardless of the parameter `state`.
    pub states: BTreeMap<String, usize>,
    /// The jobs of this page.
    pub items: Vec<CurrentJob>,
    /// The groups, the largest first; empty without the parameter `group`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<JobGroup>,
    /// Number of further groups.
    #[serde(skip_serializing_if = "is_zero")]
    pub unlisted_groups: usize,
    /// Jobs of namespaces that the reader may not read; absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withheld: Option<WithheldUsage>,
}

/// A job and its current stay in its queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CurrentJob {
    /// Its current stay, or its last one.
    #[serde(flatten)]
    pub stay: Stay,
    /// Message of the condition that shows why the job waits.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Jobs with the same value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobGroup {
    /// The value; empty for jobs without one.
    pub value: String,
    /// Number of jobs.
    pub jobs: usize,
    /// Number of these jobs that wait.
    pub waiting: usize,
    /// Number of these jobs that run.
    pub running: usize,
    /// Number of pods of these jobs.
    pub pods: i64,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}
