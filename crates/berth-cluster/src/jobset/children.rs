//! The jobs of a set by their state, and the counts of them that the status shows.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::jobset::constants::{JOB_INDEX, JOB_RESTARTS, REPLICATED_JOB_NAME, RESTARTS};
use berth_api::jobset::v1alpha2::{JobSet, JobSetStatus, ReplicatedJobStatus};
use k8s_openapi::api::batch::v1::{Job, JobCondition};

use super::gates::Gates;
use super::names::replicas;
use crate::job::facts;

/// A set's jobs.
#[derive(Clone, Debug, Default)]
pub struct Children {
    /// Jobs of this attempt that have not finished.
    pub active: Vec<Arc<Job>>,
    /// Jobs of this attempt that have completed.
    pub successful: Vec<Arc<Job>>,
    /// Jobs of this attempt that have failed.
    pub failed: Vec<Arc<Job>>,
    /// Jobs of earlier attempts, which are to be deleted.
    pub previous: Vec<Arc<Job>>,
}

impl Children {
    /// Sorts the jobs that a set owns.
    pub fn of(set: &JobSet, jobs: impl IntoIterator<Item = Arc<Job>>, gates: Gates) -> Self {
        let none = JobSetStatus::default();
        let status = set.status.as_ref().unwrap_or(&none);
        let mut children = Children::default();
        for job in jobs {
            // If the label is not a number, another client has changed it. The job then counts as
            // one of the first attempt.
            let attempt = number_label(&job, RESTARTS).unwrap_or(0);
            let is_previous = attempt < status.restarts
                || gates.restart_job && number_label(&job, JOB_RESTARTS).unwrap_or(0) < job_restarts(status, &job);
            let list = if is_previous {
                &mut children.previous
            } else {
                match finished(&job) {
                    None => &mut children.active,
                    Some("Failed") => &mut children.failed,
                    Some(_) => &mut children.successful,
                }
            };
            list.push(job);
        }
        children
    }

    /// All jobs.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Job>> {
        self.active.iter().chain(&self.successful).chain(&self.failed).chain(&self.previous)
    }
}

/// How a job finished: `Complete` or `Failed`; `None` if it has not finished.
pub fn finished(job: &Job) -> Option<&str> {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
    finished_by(conditions.map_or(&[], Vec::as_slice))
}

/// The type of the terminal condition, if there is one.
pub fn finished_by(conditions: &[JobCondition]) -> Option<&str> {
    let mut terminal = conditions.iter().filter(|condition| matches!(condition.type_.as_str(), "Complete" | "Failed"));
    terminal.find(|condition| condition.status == "True").map(|condition| condition.type_.as_str())
}

/// Counts of the set's jobs per replicated job, in the order of the spec. Jobs without the label of
/// their replicated job are not counted.
pub fn replicated_job_statuses(set: &JobSet, children: &Children, gates: Gates) -> Vec<ReplicatedJobStatus> {
    let mut positions: BTreeMap<&str, usize> = BTreeMap::new();
    let mut statuses: Vec<ReplicatedJobStatus> = Vec::new();
    for (position, entry) in set.spec.replicated_jobs.iter().enumerate() {
        positions.insert(&entry.name, position);
        let known = set.status.iter().flat_map(|status| &status.replicated_jobs_status);
        let known = known.filter(|_| gates.restart_job).find(|known| known.name == entry.name);
        let mut status = ReplicatedJobStatus { name: entry.name.clone(), ..Default::default() };
        if gates.restart_job {
            let length = usize::try_from(replicas(entry)).unwrap_or(0);
            status.job_restarts = known.map(|known| known.job_restarts.clone()).unwrap_or_default();
            status.job_restarts.resize(length, 0);
            status.job_restarts_count_towards_max =
                known.map(|known| known.job_restarts_count_towards_max.clone()).unwrap_or_default();
            status.job_restarts_count_towards_max.resize(length, 0);
        }
        statuses.push(status);
    }
    let mut count = |job: &Job, add: &dyn Fn(&mut ReplicatedJobStatus)| {
        if let Some(position) = label(job, REPLICATED_JOB_NAME).and_then(|name| positions.get(name)) {
            add(&mut statuses[*position]);
        }
    };
    for job in &children.active {
        let running = job.status.clone().unwrap_or_default();
        let spec = facts::job_spec(job);
        let parallelism = spec.parallelism.unwrap_or(1);
        let pods = spec.completions.map_or(parallelism, |completions| completions.min(parallelism));
        let is_ready = running.succeeded.unwrap_or(0).saturating_add(running.ready.unwrap_or(0)) >= pods;
        let is_active = running.active.unwrap_or(0) > 0;
        let is_suspended = facts::is_suspended(job);
        count(job, &|status| {
            status.ready += i32::from(is_ready);
            status.active += i32::from(is_active);
            status.suspended += i32::from(is_suspended);
        });
    }
    for job in &children.successful {
        count(job, &|status| status.succeeded += 1);
    }
    for job in &children.failed {
        count(job, &|status| status.failed += 1);
    }
    statuses
}

/// Number of restarts of this job alone.
fn job_restarts(status: &JobSetStatus, job: &Job) -> i32 {
    let entry = label(job, REPLICATED_JOB_NAME);
    let known = status.replicated_jobs_status.iter().find(|known| Some(known.name.as_str()) == entry);
    let index = number_label(job, JOB_INDEX).and_then(|index| usize::try_from(index).ok());
    known.zip(index).and_then(|(known, index)| known.job_restarts.get(index).copied()).unwrap_or(0)
}

/// A label of the job.
pub fn label<'a>(job: &'a Job, key: &str) -> Option<&'a str> {
    job.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// A label of the job as a number.
pub fn number_label(job: &Job, key: &str) -> Option<i32> {
    label(job, key)?.parse().ok()
}
