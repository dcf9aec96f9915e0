//! Plans of CronJobs.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::plan::{Plan, plan};

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// A CronJob created at noon that runs every ten minutes, with these additional fields of the spec.
fn cron_job(spec: Value) -> CronJob {
    let labels = json!({"kueue.x-k8s.io/queue-name": "main"});
    let pod = json!({"spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}});
    let mut full = json!({"schedule": "*/10 * * * *",
        "jobTemplate": {"metadata": {"labels": labels}, "spec": {"template": pod}}});
    full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let metadata =
        json!({"name": "report", "namespace": "ns", "uid": "u", "creationTimestamp": "2026-01-01T12:00:00Z"});
    serde_json::from_value(json!({"metadata": metadata, "spec": full})).unwrap()
}

/// A stored Job; `end` is the type of its terminal condition, if it has finished.
fn stored(job: &Job, end: Option<&str>) -> Arc<Job> {
    let mut job = job.clone();
    job.metadata.uid = Some(format!("uid-{}", job.name_any()));
    let conditions: Vec<Value> =
        end.iter().map(|end| json!({"type": end, "status": "True", "lastProbeTime": null})).collect();
    let end_time = (end == Some("Complete")).then_some("2026-01-01T12:13:00Z");
    let status = json!({"conditions": conditions, "completionTime": end_time});
    job.status = serde_json::from_value(status).unwrap();
    Arc::new(job)
}

/// The CronJob and its Job after the plan of this time was applied.
fn started(cron_job: &CronJob, jobs: &[Arc<Job>], now: &str) -> (CronJob, Arc<Job>) {
    let step = plan(cron_job, jobs, at(now));
    let job = stored(step.create.as_ref().expect("a Job is due"), None);
    (CronJob { status: Some(step.status_with(&job)), ..cron_job.clone() }, job)
}

fn created(plan: &Plan) -> Option<String> {
    plan.create.as_ref().map(|job| job.name_any())
}

fn reasons(plan: &Plan) -> Vec<&str> {
    let events = plan.events.iter().map(|event| event.reason.as_str());
    events.chain(plan.state_events.iter().map(|event| event.event.reason.as_str())).collect()
}

#[test]
fn a_job_is_created_at_each_start_time_with_the_templates_labels() {
    let hourly = cron_job(json!({"schedule": "@hourly", "timeZone": "Asia/Kolkata"}));
    let early = plan(&hourly, &[], at("2026-01-01T12:00:01Z"));
    assert_eq!((created(&early), early.requeue_after.unwrap().as_secs()), (None, 29 * 60 + 59));
    let due = plan(&hourly, &[], at("2026-01-01T12:30:00Z"));
    let job = due.create.as_ref().unwrap();
    assert_eq!(job.name_any(), "report-29454510");
    assert_eq!(job.labels()["kueue.x-k8s.io/queue-name"], "main");
    assert_eq!(job.annotations()["batch.kubernetes.io/cronjob-scheduled-timestamp"], "2026-01-01T18:00:00+05:30");
    assert_eq!(job.owner_references()[0].kind, "CronJob");
    assert_eq!(due.requeue_after.unwrap().as_secs(), 3600);
    let (after, job) = started(&hourly, &[], "2026-01-01T12:30:00Z");
    let status = after.status.clone().unwrap();
    assert_eq!(status.last_schedule_time.unwrap().0, at("2026-01-01T12:30:00Z"));
    assert_eq!(status.active.unwrap()[0].uid, job.metadata.uid);
    let again = plan(&after, &[job], at("2026-01-01T12:30:05Z"));
    assert_eq!((created(&again), reasons(&again)), (None, vec![]));
}

#[test]
fn concurrency_policies_allow_forbid_and_replace_a_running_job() {
    for (policy, names, replaced) in
        [("Allow", Some("report-29454500"), 0), ("Forbid", None, 0), ("Replace", Some("report-29454500"), 1)]
    {
        let (cron_job, job) = started(&cron_job(json!({"concurrencyPolicy": policy})), &[], "2026-01-01T12:10:00Z");
        let next = plan(&cron_job, &[job], at("2026-01-01T12:20:00Z"));
        assert_eq!((created(&next).as_deref(), next.replace.len()), (names, replaced), "{policy}");
        let active = next.create.as_ref().map(|job| next.status_with(&stored(job, None)).active.unwrap().len());
        assert_eq!(active, names.map(|_| 2 - replaced), "{policy}");
        assert_eq!(reasons(&next), if policy == "Forbid" { vec!["JobAlreadyActive"] } else { vec![] });
    }
}

#[test]
fn a_forbidden_start_happens_after_the_running_job_has_ended() {
    let (cron_job, job) = started(&cron_job(json!({"concurrencyPolicy": "Forbid"})), &[], "2026-01-01T12:10:00Z");
    let done = stored(&job, Some("Complete"));
    let late = plan(&cron_job, &[done], at("2026-01-01T12:24:00Z"));
    assert_eq!((created(&late).as_deref(), reasons(&late)), (Some("report-29454500"), vec!["SawCompletedJob"]));
    assert_eq!(late.events[0].message, "Saw completed job: report-29454490, condition: Complete");
    assert_eq!(late.status.last_successful_time.unwrap().0, at("2026-01-01T12:13:00Z"));
}

#[test]
fn starts_beyond_the_deadline_are_missed_and_only_the_latest_missed_start_happens() {
    let without = plan(&cron_job(json!({})), &[], at("2026-01-01T14:05:00Z"));
    assert_eq!((created(&without).as_deref(), reasons(&without)), (Some("report-29454600"), vec![]));
    let with = plan(&cron_job(json!({"startingDeadlineSeconds": 60})), &[], at("2026-01-01T14:05:00Z"));
    assert_eq!((created(&with), reasons(&with)), (None, vec!["MissSchedule"]));
    let message = &with.state_events.first().unwrap().event.message;
    assert_eq!(message, "Missed scheduled time to start a job: Thu, 01 Jan 2026 14:00:00 +0000");
    assert_eq!(with.requeue_after.unwrap().as_secs(), 300);
}

#[test]
fn more_than_a_hundred_missed_starts_are_reported_and_the_latest_happens() {
    let days_later = plan(&cron_job(json!({})), &[], at("2026-01-03T12:05:00Z"));
    assert_eq!(
        (created(&days_later).as_deref(), reasons(&days_later)),
        (Some("report-29457360"), vec!["TooManyMissedTimes"])
    );
    // The deadline limits the starts that count as missed.
    let with = plan(&cron_job(json!({"startingDeadlineSeconds": 600})), &[], at("2026-01-03T12:05:00Z"));
    assert_eq!((created(&with).as_deref(), reasons(&with)), (Some("report-29457360"), vec![]));
}

#[test]
fn a_suspended_cron_job_and_an_impossible_schedule_start_nothing() {
    let now = at("2026-01-01T14:05:00Z");
    let suspended = plan(&cron_job(json!({"suspend": true})), &[], now);
    assert_eq!((created(&suspended), reasons(&suspended), suspended.requeue_after), (None, vec![], None));
    for (spec, reason) in [
        (json!({"schedule": "0 0 31 2 *"}), "InvalidSchedule"),
        (json!({"schedule": "61 * * * *"}), "UnparseableSchedule"),
        (json!({"timeZone": "Mars/Base"}), "UnknownTimeZone"),
    ] {
        let step = plan(&cron_job(spec), &[], now);
        assert_eq!((created(&step), reasons(&step), step.requeue_after), (None, vec![reason], None));
    }
}

#[test]
fn history_limits_delete_the_oldest_finished_jobs() {
    let limits = json!({"successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 0, "suspend": true});
    let cron_job = cron_job(limits);
    let job = |name: &str, start: &str, end: &str| {
        let mut job = Job::default();
        job.metadata.name = Some(name.to_owned());
        let mut job = stored(&job, Some(end));
        let started: Timestamp = at(&format!("2026-01-01T{start}:00Z"));
        Arc::get_mut(&mut job).unwrap().status.as_mut().unwrap().start_time = Some(started.into());
        job
    };
    let jobs = [
        job("c", "10:00", "Complete"),
        job("a", "11:00", "Complete"),
        job("b", "09:00", "Complete"),
        job("f", "12:00", "Failed"),
    ];
    let step = plan(&cron_job, &jobs, at("2026-01-01T14:00:00Z"));
    let deleted: Vec<String> = step.delete.iter().map(|job| job.name_any()).collect();
    assert_eq!(deleted, ["b", "c", "f"]);
}

#[test]
fn missing_and_unlisted_jobs_are_reported() {
    let (cron_job, job) = started(&cron_job(json!({})), &[], "2026-01-01T12:10:00Z");
    let mut other = (*job).clone();
    other.metadata.name = Some("by-hand".to_owned());
    other.metadata.uid = Some("o".to_owned());
    let step = plan(&cron_job, &[Arc::new(other)], at("2026-01-01T12:11:00Z"));
    assert_eq!(reasons(&step), ["MissingJob", "UnexpectedJob"]);
    assert_eq!(step.status.active, None);
}

#[test]
fn a_job_whose_creation_was_not_recorded_is_adopted_and_not_created_again() {
    let before = cron_job(json!({}));
    let (_, job) = started(&before, &[], "2026-01-01T12:10:00Z");
    let step = plan(&before, std::slice::from_ref(&job), at("2026-01-01T12:10:01Z"));
    assert_eq!((created(&step), reasons(&step)), (None, vec![]));
    assert_eq!(step.status.active.unwrap()[0].uid, job.metadata.uid);
    assert_eq!(step.status.last_schedule_time.unwrap().0, at("2026-01-01T12:10:00Z"));
}
