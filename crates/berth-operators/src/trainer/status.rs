//! The status of a TrainJob: its conditions, and the child Jobs of each replicated job.

use std::time::Duration;

use berth_api::jobset::v1alpha2::JobSet;
use berth_runtime::{condition, set_condition};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::types::{JobStatus, TrainJobSpec, TrainJobStatus};

/// The status of a job that cannot run.
pub fn failed(old: &TrainJobStatus, reason: &str, message: &str, now: Timestamp) -> TrainJobStatus {
    let mut status = old.clone();
    set_condition(&mut status.conditions, condition("Failed", true, reason, message, now));
    status
}

/// The status that follows from the spec and the JobSet, if it exists.
pub fn next(spec: &TrainJobSpec, jobset: Option<&JobSet>, old: &TrainJobStatus, now: Timestamp) -> TrainJobStatus {
    let mut status = old.clone();
    if spec.suspend {
        set_condition(&mut status.conditions, condition("Suspended", true, "Suspended", "TrainJob is suspended", now));
    } else if status.is_true("Suspended") {
        set_condition(&mut status.conditions, condition("Suspended", false, "Resumed", "TrainJob is resumed", now));
    }
    let Some(observed) = jobset.map(|jobset| jobset.status.clone().unwrap_or_default()) else { return status };
    // A failure by the deadline is not undone by the JobSet that is being deleted.
    if !status.is_finished() {
        for (of_jobset, kind) in [("Completed", "Complete"), ("Failed", "Failed")] {
            let mut conditions = observed.conditions.iter();
            if let Some(ended) = conditions.find(|it| it.type_ == of_jobset && it.status == "True") {
                set_condition(&mut status.conditions, Condition { type_: kind.to_owned(), ..ended.clone() });
            }
        }
    }
    let jobs = observed.replicated_jobs_status.iter().map(|job| JobStatus {
        name: job.name.clone(),
        ready: job.ready,
        succeeded: job.succeeded,
        failed: job.failed,
        active: job.active,
        suspended: job.suspended,
    });
    status.jobs_status = jobs.collect();
    status
}

/// The deadline of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadline {
    /// There is none, or it does not count at present.
    None,
    /// It passes after this time.
    In(Duration),
    /// It has passed.
    Passed,
}

/// The state of the deadline, which counts from the job's creation or its last resumption.
pub fn deadline(spec: &TrainJobSpec, status: &TrainJobStatus, created: Option<Timestamp>, now: Timestamp) -> Deadline {
    let Some(seconds) = spec.active_deadline_seconds.filter(|_| !spec.suspend && !status.is_finished()) else {
        return Deadline::None;
    };
    let resumed = status.conditions.iter().find(|it| it.type_ == "Suspended" && it.status == "False");
    let Some(start) = resumed.map(|it| it.last_transition_time.0).or(created) else { return Deadline::None };
    let end = jiff::SignedDuration::from_secs(seconds);
    // A deadline beyond the end of time never passes.
    let Ok(end) = start.checked_add(end) else { return Deadline::None };
    match now.duration_until(end) {
        left if left > jiff::SignedDuration::ZERO => Deadline::In(left.unsigned_abs()),
        _ => Deadline::Passed,
    }
}

/// The status of a job whose deadline has passed.
pub fn expired(old: &TrainJobStatus, now: Timestamp) -> TrainJobStatus {
    failed(old, "DeadlineExceeded", "TrainJob exceeded its active deadline", now)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::trainer::samples::job;

    fn time(text: &str) -> Timestamp {
        format!("2026-01-05T{text}Z").parse().expect("a time")
    }

    fn jobset(conditions: Value) -> JobSet {
        serde_json::from_value(json!({"metadata": {"name": "train"}, "spec": {}, "status": {"conditions": conditions,
            "replicatedJobsStatus": [{"name": "node", "ready": 1, "active": 1}]}}))
        .expect("a JobSet")
    }

    fn text(status: &TrainJobStatus) -> Vec<String> {
        let all = status.conditions.iter();
        all.map(|it| format!("{}={} {}", it.type_, it.status, it.reason)).collect()
    }

    #[test]
    fn a_job_is_suspended_resumed_and_completes() {
        let none = TrainJobStatus::default();
        assert!(text(&next(&job(json!({})), None, &none, time("09:00:00"))).is_empty());
        let suspended = next(&job(json!({"suspend": true})), None, &none, time("09:00:00"));
        assert_eq!(text(&suspended), ["Suspended=True Suspended"]);
        let resumed = next(&job(json!({})), Some(&jobset(json!([]))), &suspended, time("09:01:00"));
        assert_eq!(text(&resumed), ["Suspended=False Resumed"]);
        assert_eq!(resumed.conditions[0].last_transition_time.0, time("09:01:00"));
        assert_eq!(
            resumed.jobs_status[0],
            JobStatus { name: "node".into(), ready: 1, active: 1, ..JobStatus::default() }
        );
        let ended = jobset(json!([{"type": "Completed", "status": "True", "reason": "AllJobsCompleted",
            "message": "jobset completed successfully", "lastTransitionTime": "2026-01-05T09:02:00Z"}]));
        let complete = next(&job(json!({})), Some(&ended), &resumed, time("09:03:00"));
        assert_eq!(text(&complete)[1], "Complete=True AllJobsCompleted");
        assert!(complete.is_finished());
        let gone = next(&job(json!({})), None, &complete, time("09:04:00"));
        assert_eq!(gone, complete, "a JobSet that was deleted after its time to live changes nothing");
    }

    #[test]
    fn the_deadline_counts_from_the_last_resumption() {
        let spec = job(json!({"activeDeadlineSeconds": 60}));
        let created = Some(time("09:00:00"));
        let at = |status: &TrainJobStatus, now: &str| deadline(&spec, status, created, time(now));
        let none = TrainJobStatus::default();
        assert_eq!(at(&none, "09:00:30"), Deadline::In(Duration::from_secs(30)));
        assert_eq!(at(&none, "09:01:00"), Deadline::Passed);
        let suspended = next(&job(json!({"suspend": true})), None, &none, time("09:00:40"));
        let resumed = next(&job(json!({})), None, &suspended, time("09:05:00"));
        assert_eq!(at(&resumed, "09:05:10"), Deadline::In(Duration::from_secs(50)));
        let paused = job(json!({"activeDeadlineSeconds": 60, "suspend": true}));
        assert_eq!(deadline(&paused, &none, created, time("10:00:00")), Deadline::None);
        let expired = expired(&resumed, time("09:06:00"));
        assert_eq!(text(&expired)[1], "Failed=True DeadlineExceeded");
        assert_eq!(at(&expired, "09:07:00"), Deadline::None);
    }
}
