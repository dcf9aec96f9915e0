//! Plans one step of a CronJob: from the CronJob, its Jobs and the time, the Jobs to create and to
//! delete, the status to write, the events to record, and when the next Job is due. Pure.
//!
//! Source: Kubernetes documentation, "CronJob", and the behaviour of kube-controller-manager 1.35.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use berth_apimachinery::cron::Schedule;
use berth_apimachinery::times::time_zone;
use berth_runtime::{PlannedEvent, owned_by, stamp};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use crate::job::facts::finished_condition;

/// Annotation of a Job with the time at which it was due, in the CronJob's time zone.
const SCHEDULED_AT: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";
/// Number of missed start times beyond which they are reported.
const MISSED_MAX: i64 = 100;

/// The next writes for a CronJob.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Running Jobs that the new one replaces. They are deleted before it is created.
    pub replace: Vec<Arc<Job>>,
    /// A Job to create.
    pub create: Option<Job>,
    /// Finished Jobs beyond the history limits.
    pub delete: Vec<Arc<Job>>,
    /// The new status, without the created Job.
    pub status: CronJobStatus,
    /// Events that describe a change, each to be recorded once.
    pub events: Vec<PlannedEvent>,
    /// Events that describe a state, with the start time that they are about. They are recorded if
    /// they differ from those of the previous step.
    pub state_events: BTreeSet<StateEvent>,
    /// Time until the next start.
    pub requeue_after: Option<Duration>,
}

/// An event about a state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StateEvent {
    /// Start time that the event is about.
    pub due: Option<Timestamp>,
    /// The event.
    pub event: PlannedEvent,
}

impl StateEvent {
    fn warning(reason: &str, message: impl Into<String>) -> Self {
        Self { due: None, event: PlannedEvent::warning(reason, message) }
    }
}

impl Plan {
    /// The status once `job` was created for the planned start.
    pub fn status_with(&self, job: &Job) -> CronJobStatus {
        let mut status = self.status.clone();
        let active = status.active.get_or_insert_default();
        let replaced = |it: &ObjectReference| self.replace.iter().any(|job| job.metadata.uid == it.uid);
        active.retain(|it| !replaced(it) && it.uid != job.metadata.uid);
        active.push(reference(job));
        status.last_schedule_time = scheduled_time(job).map(stamp).or(status.last_schedule_time);
        status
    }
}

/// Plans the next writes. `jobs` are the Jobs that the CronJob controls.
pub fn plan(cron_job: &CronJob, jobs: &[Arc<Job>], now: Timestamp) -> Plan {
    let mut plan = Plan { status: cron_job.status.clone().unwrap_or_default(), ..Plan::default() };
    let spec = cron_job.spec.clone().unwrap_or_default();
    observe_jobs(jobs, &mut plan);
    if cron_job.metadata.deletion_timestamp.is_none() {
        delete_history(&spec, jobs, &mut plan);
        match Timetable::of(&spec) {
            _ if spec.suspend == Some(true) => {}
            Ok(timetable) => start(cron_job, &spec, jobs, &timetable, now, &mut plan),
            Err(event) => _ = plan.state_events.insert(event),
        }
    }
    let adopted = plan.status.active.clone().unwrap_or_default();
    for job in jobs.iter().filter(|job| finished_condition(job).is_none()) {
        if !adopted.iter().any(|it| it.uid == job.metadata.uid) {
            let message = format!("Saw a job that the controller did not create or forgot: {}", job.name_any());
            plan.state_events.insert(StateEvent::warning("UnexpectedJob", message));
        }
    }
    // An empty list is stored as an absent one, so that the status equals that of the next plan.
    plan.status.active = plan.status.active.filter(|active| !active.is_empty());
    plan
}

/// Removes finished and missing Jobs from the list of active ones, and notes the last success.
fn observe_jobs(jobs: &[Arc<Job>], plan: &mut Plan) {
    for active in plan.status.active.take().unwrap_or_default() {
        let name = active.name.clone().unwrap_or_default();
        let known = jobs.iter().find(|job| job.metadata.uid == active.uid);
        match (known, known.and_then(|job| finished_condition(job))) {
            (Some(_), None) => plan.status.active.get_or_insert_default().push(active),
            (Some(_), Some(condition)) => {
                let message = format!("Saw completed job: {name}, condition: {}", condition.type_);
                plan.events.push(PlannedEvent::normal("SawCompletedJob", message));
            }
            (None, _) => {
                plan.events.push(PlannedEvent::normal("MissingJob", format!("Active job went missing: {name}")))
            }
        }
    }
    let succeeded = jobs.iter().filter(|job| finished_condition(job).is_some_and(|it| it.type_ == "Complete"));
    let ends = succeeded.filter_map(|job| job.status.as_ref()?.completion_time.clone());
    let known = plan.status.last_successful_time.take();
    plan.status.last_successful_time = ends.chain(known).max_by_key(|time| time.0);
}

/// Deletes the oldest finished Jobs beyond the limits.
fn delete_history(spec: &CronJobSpec, jobs: &[Arc<Job>], plan: &mut Plan) {
    let limits = [("Complete", spec.successful_jobs_history_limit), ("Failed", spec.failed_jobs_history_limit)];
    for (condition, limit) in limits {
        let Some(limit) = limit.and_then(|limit| usize::try_from(limit).ok()) else { continue };
        let ended = |job: &&Arc<Job>| finished_condition(job).is_some_and(|it| it.type_ == condition);
        let mut finished: Vec<_> =
            jobs.iter().filter(ended).filter(|job| job.metadata.deletion_timestamp.is_none()).collect();
        let started = |job: &Job| job.status.as_ref().and_then(|status| status.start_time.clone()).map(|time| time.0);
        // A Job that never started counts as the youngest.
        finished.sort_by_key(|job| (started(job).is_none(), started(job), job.name_any()));
        finished.truncate(finished.len().saturating_sub(limit));
        plan.delete.extend(finished.into_iter().cloned());
    }
}

/// A schedule and its time zone.
struct Timetable {
    schedule: Schedule,
    zone: TimeZone,
}

impl Timetable {
    fn of(spec: &CronJobSpec) -> Result<Self, StateEvent> {
        let text = spec.schedule.as_str();
        // Kubernetes still accepts a time zone in `schedule` for CronJobs that have had it since
        // before version 1.27.
        let in_text = ["TZ=", "CRON_TZ="].iter().find_map(|prefix| text.strip_prefix(prefix));
        let in_text = in_text.map(|rest| rest.split_once(' ').unwrap_or((rest, "")));
        let (zone_name, text) = match (in_text, spec.time_zone.as_deref()) {
            (Some((zone, rest)), _) => (Some(zone), rest.trim()),
            (None, zone) => (zone, text),
        };
        let zone = match zone_name {
            None => TimeZone::UTC,
            Some(name) => time_zone(name).ok_or_else(|| {
                let message = format!("invalid timeZone: {name:?}: unknown time zone {name}");
                StateEvent::warning("UnknownTimeZone", message)
            })?,
        };
        let schedule = Schedule::parse(text).map_err(|error| {
            let message = format!("unparseable schedule: {:?} : {error}", spec.schedule);
            StateEvent::warning("UnparseableSchedule", message)
        })?;
        Ok(Self { schedule, zone })
    }

    fn next(&self, after: Timestamp) -> Option<Timestamp> {
        self.schedule.next(after, &self.zone)
    }
}

/// Plans the Job that is due, if one is.
fn start(
    cron_job: &CronJob,
    spec: &CronJobSpec,
    jobs: &[Arc<Job>],
    timetable: &Timetable,
    now: Timestamp,
    plan: &mut Plan,
) {
    let last = plan.status.last_schedule_time.as_ref().map(|time| time.0);
    let created = cron_job.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let Some(earliest) = last.or(created) else { return };
    let next = timetable.next(now).map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default());
    plan.requeue_after = next;
    if next.is_none() {
        let message = format!("invalid schedule: {} : it is not due within five years", spec.schedule);
        plan.state_events.insert(StateEvent::warning("InvalidSchedule", message));
    }
    let Some(due) = timetable.schedule.latest(earliest, now, &timetable.zone) else { return };
    let deadline = spec.starting_deadline_seconds.map(SignedDuration::from_secs);
    if deadline.is_some_and(|deadline| now.duration_since(due) > deadline) {
        let at = due.strftime("%a, %d %b %Y %H:%M:%S +0000");
        let message = format!("Missed scheduled time to start a job: {at}");
        plan.state_events.insert(StateEvent { due: Some(due), ..StateEvent::warning("MissSchedule", message) });
        return;
    }
    let considered =
        deadline.and_then(|deadline| now.checked_sub(deadline).ok()).map_or(earliest, |it| it.max(earliest));
    if missed(timetable, considered, now) > MISSED_MAX {
        let message = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
        plan.state_events.insert(StateEvent { due: Some(due), ..StateEvent::warning("TooManyMissedTimes", message) });
    }
    let job = job_at(cron_job, spec, due, &timetable.zone);
    // An earlier step created the Job, but could not write the status.
    if let Some(known) = jobs.iter().find(|known| known.metadata.name == job.metadata.name) {
        plan.status.last_schedule_time = Some(stamp(due));
        let active = plan.status.active.get_or_insert_default();
        if finished_condition(known).is_none() && !active.iter().any(|it| it.uid == known.metadata.uid) {
            active.push(reference(known));
        }
        return;
    }
    let active = plan.status.active.clone().unwrap_or_default();
    match spec.concurrency_policy.as_deref() {
        Some("Forbid") if !active.is_empty() => {
            let message = "Not starting job because prior execution is running and concurrency policy is Forbid";
            let event = PlannedEvent::normal("JobAlreadyActive", message);
            plan.state_events.insert(StateEvent { due: Some(due), event });
            return;
        }
        Some("Replace") => {
            let is_active = |job: &&Arc<Job>| active.iter().any(|it| it.uid == job.metadata.uid);
            plan.replace = jobs.iter().filter(is_active).cloned().collect();
        }
        _ => {}
    }
    plan.create = Some(job);
}

/// Number of start times after `earliest` up to `now`, estimated from the interval between the
/// first two.
fn missed(timetable: &Timetable, earliest: Timestamp, now: Timestamp) -> i64 {
    let Some(first) = timetable.next(earliest).filter(|first| *first <= now) else { return 0 };
    let Some(second) = timetable.next(first) else { return 1 };
    now.duration_since(first).as_secs() / second.duration_since(first).as_secs().max(1) + 1
}

/// The Job for a start time. Its name depends on nothing else, so that each start happens only
/// once.
fn job_at(cron_job: &CronJob, spec: &CronJobSpec, due: Timestamp, zone: &TimeZone) -> Job {
    let template = spec.job_template.metadata.clone().unwrap_or_default();
    let mut annotations = template.annotations.unwrap_or_default();
    let local = due.to_zoned(zone.clone());
    let offset = if local.offset().is_zero() { "%Y-%m-%dT%H:%M:%SZ" } else { "%Y-%m-%dT%H:%M:%S%:z" };
    annotations.insert(SCHEDULED_AT.to_owned(), local.strftime(offset).to_string());
    Job {
        metadata: ObjectMeta {
            name: Some(format!("{}-{}", cron_job.name_any(), due.as_second().div_euclid(60))),
            namespace: cron_job.namespace(),
            labels: template.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![owned_by(cron_job)]),
            ..ObjectMeta::default()
        },
        spec: spec.job_template.spec.clone(),
        status: None,
    }
}

/// Time at which a Job of a CronJob was due.
fn scheduled_time(job: &Job) -> Option<Timestamp> {
    job.annotations().get(SCHEDULED_AT)?.parse().ok()
}

fn reference(job: &Job) -> ObjectReference {
    ObjectReference {
        api_version: Some("batch/v1".to_owned()),
        kind: Some("Job".to_owned()),
        name: job.metadata.name.clone(),
        namespace: job.metadata.namespace.clone(),
        uid: job.metadata.uid.clone(),
        resource_version: job.metadata.resource_version.clone(),
        field_path: None,
    }
}
