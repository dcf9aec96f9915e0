//! Success of a set, the order in which it starts, and the time for which it is kept: success
//! policy, startup policy, dependencies, time to live.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::jobset::constants::REPLICATED_JOB_NAME;
use berth_api::jobset::v1alpha2::{
    DependsOnStatus, JobSet, Operator, ReplicatedJob, ReplicatedJobStatus, StartupPolicy, StartupPolicyOrder,
    SuccessPolicy,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;

use super::children::label;
use super::conditions::finished_condition;
use super::names::{namespace, replicas, set_name};

/// True if jobs of this replicated job count for the set's success.
pub fn counts_for_success(policy: Option<&SuccessPolicy>, replicated_job: &str) -> bool {
    policy.is_none_or(|policy| {
        policy.target_replicated_jobs.is_empty() || policy.target_replicated_jobs.iter().any(|t| t == replicated_job)
    })
}

/// True if this job counts for the set's success.
pub fn job_counts_for_success(policy: Option<&SuccessPolicy>, job: &Job) -> bool {
    counts_for_success(policy, label(job, REPLICATED_JOB_NAME).unwrap_or_default())
}

/// Number of these jobs that count for the set's success.
pub fn successes<'a>(policy: Option<&SuccessPolicy>, jobs: impl IntoIterator<Item = &'a Job>) -> usize {
    jobs.into_iter().filter(|job| job_counts_for_success(policy, job)).count()
}

/// Number of jobs that must succeed.
pub fn successes_needed(set: &JobSet) -> usize {
    let policy = set.spec.success_policy.as_ref();
    if policy.is_some_and(|policy| policy.operator == Operator::Any) {
        return 1;
    }
    let targets = set.spec.replicated_jobs.iter().filter(|entry| counts_for_success(policy, &entry.name));
    targets.map(|entry| usize::try_from(replicas(entry)).unwrap_or(0)).sum()
}

/// True if replicated jobs start in order.
pub fn is_in_order(policy: Option<&StartupPolicy>) -> bool {
    policy.is_some_and(|policy| policy.startup_policy_order == StartupPolicyOrder::InOrder)
}

/// True if all jobs of a replicated job have started: each is ready or finished.
pub fn has_started(replicas: i32, status: Option<&ReplicatedJobStatus>) -> bool {
    status.is_some_and(|status| status.ready + status.failed + status.succeeded == replicas)
}

/// True if all dependencies of the replicated job have reached their required states. `replicas`
/// has the number of jobs of each replicated job by name.
pub fn dependencies_reached(
    entry: &ReplicatedJob,
    replicas: &BTreeMap<String, i32>,
    statuses: &[ReplicatedJobStatus],
) -> bool {
    entry.depends_on.iter().all(|dependency| {
        let status = statuses.iter().find(|status| status.name == dependency.name);
        let (Some(status), Some(replicas)) = (status, replicas.get(&dependency.name)) else { return false };
        match dependency.status {
            DependsOnStatus::Ready => has_started(*replicas, Some(status)),
            DependsOnStatus::Complete => status.succeeded == *replicas,
        }
    })
}

/// Why a set's remaining time cannot be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TtlError {
    /// The set has not finished.
    #[error("unable to find the status of the finished JobSet {namespace}/{name}")]
    NotFinished {
        /// Namespace of the set.
        namespace: String,
        /// Name of the set.
        name: String,
    },
    /// The set's terminal condition has no time.
    #[error("unable to find the time when the JobSet {namespace}/{name} finished")]
    NoTime {
        /// Namespace of the set.
        namespace: String,
        /// Name of the set.
        name: String,
    },
}

/// Remaining time of a finished set until its deletion; zero if it must be deleted now. `None` if
/// it has no time to live or is already being deleted.
pub fn time_left(set: &JobSet, now: Timestamp) -> Result<Option<Duration>, TtlError> {
    match (set.spec.ttl_seconds_after_finished, &set.metadata.deletion_timestamp) {
        (Some(ttl), None) => {
            let ttl = SignedDuration::from_secs(i64::from(ttl));
            let due = finished_at(set)?.checked_add(ttl).unwrap_or(Timestamp::MAX);
            Ok(Some(Duration::try_from(due.duration_since(now)).unwrap_or_default()))
        }
        _ => Ok(None),
    }
}

/// Time at which the set finished.
pub fn finished_at(set: &JobSet) -> Result<Timestamp, TtlError> {
    let (namespace, name) = (namespace(set).to_owned(), set_name(set).to_owned());
    let Some(finished) = finished_condition(set.status.as_ref()) else {
        return Err(TtlError::NotFinished { namespace, name });
    };
    let at = finished.last_transition_time.0;
    if at <= Timestamp::UNIX_EPOCH { Err(TtlError::NoTime { namespace, name }) } else { Ok(at) }
}
