//! Plans one step of a RayCronJob: the RayJob to create and when the next one is due. Pure.
//!
//! If several start times were missed, a RayJob is started for the latest one only, as with a
//! CronJob of batch/v1. KubeRay itself starts a RayJob for each of them.
//!
//! Source: the documentation and behaviour of KubeRay 1.7.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::frameworks::{RayCronJob, RayJob};
use berth_apimachinery::cron::Schedule;
use berth_apimachinery::times::time_zone;
use berth_runtime::{PlannedEvent, stamp};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::ResourceExt;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ray::job::types::RayJobSpec;
use crate::ray::job::validate::{self, NAME_MAX};
use crate::ray::types::lenient;
use berth_runtime::owned_by;

/// Label of a RayJob: name of its RayCronJob.
pub const NAME_LABEL: &str = "ray.io/cronjob-name";
/// Annotation of a RayJob: the time at which it was due.
pub const SCHEDULED_AT: &str = "ray.io/cronjob-scheduled-timestamp";
/// Maximum length of a RayCronJob's name. The names of its RayJobs are longer by at most a dash and
/// ten digits.
const CRON_NAME_MAX: usize = NAME_MAX - 11;

/// Desired state of a RayCronJob.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RayCronJobSpec {
    /// Spec of the RayJobs, as written.
    pub job_template: Value,
    /// Schedule of the start times, a cron expression.
    #[serde(deserialize_with = "lenient")]
    pub schedule: String,
    /// Time zone of the schedule. Absent: UTC.
    pub time_zone: Option<String>,
    /// True: no RayJob starts.
    pub suspend: Option<bool>,
}

/// Observed state of a RayCronJob.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RayCronJobStatus {
    /// Latest start time of the schedule for which a RayJob was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_schedule_time: Option<Time>,
}

/// The next step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The RayJob that is due.
    pub create: Option<Box<RayJob>>,
    /// The new status.
    pub status: RayCronJobStatus,
    /// What keeps RayJobs from starting.
    pub event: Option<PlannedEvent>,
    /// Time until the next RayJob is due.
    pub after: Option<Duration>,
}

/// Plans the next step.
pub fn plan(cron_job: &RayCronJob, now: Timestamp) -> Plan {
    let known = cron_job.status.as_ref().and_then(|status| RayCronJobStatus::deserialize(status).ok());
    let mut plan = Plan { status: known.unwrap_or_default(), ..Plan::default() };
    if cron_job.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    let (spec, schedule, zone) = match read(cron_job) {
        Ok(read) => read,
        Err(problem) => {
            let key = format!("{}/{}", cron_job.namespace().unwrap_or_default(), cron_job.name_any());
            let (reason, message) = ("InvalidRayCronJobSpec", format!("{key}: {problem}"));
            plan.event = Some(PlannedEvent::warning(reason, message));
            return plan;
        }
    };
    if spec.suspend == Some(true) {
        let (reason, message) = ("SuspendedRayCronJob", "RayCronJob suspended, no new RayJobs will be created");
        plan.event = Some(PlannedEvent::normal(reason, message));
        return plan;
    }
    let created = cron_job.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let earliest = plan.status.last_schedule_time.as_ref().map(|time| time.0).or(created).unwrap_or(now);
    if let Some(due) = schedule.latest(earliest, now, &zone) {
        plan.create = Some(Box::new(ray_job(cron_job, &spec, due)));
        plan.status.last_schedule_time = Some(stamp(due));
    }
    let next = schedule.next(now, &zone);
    plan.after = next.map(|next| Duration::try_from(next.duration_since(now)).unwrap_or_default());
    plan
}

/// Reads and checks the spec.
fn read(cron_job: &RayCronJob) -> Result<(RayCronJobSpec, Schedule, TimeZone), String> {
    let spec: RayCronJobSpec = lenient(&cron_job.spec).map_err(|error: serde_json::Error| error.to_string())?;
    if cron_job.name_any().len() > CRON_NAME_MAX {
        return Err(format!("RayCronJob name should be no more than {CRON_NAME_MAX} characters"));
    }
    if spec.schedule.contains("TZ") {
        return Err("cannot use TZ or CRON_TZ in schedule, use timeZone field instead".to_owned());
    }
    let schedule = Schedule::parse(&spec.schedule).map_err(|error| format!("invalid cron schedule: {error}"))?;
    let zone = match spec.time_zone.as_deref() {
        None => TimeZone::UTC,
        Some("") => {
            return Err("timeZone must not be empty string, omit the field to use UTC".to_owned());
        }
        Some(name) => time_zone(name).ok_or_else(|| format!("invalid time zone: unknown time zone {name}"))?,
    };
    let job = RayJobSpec::read(&spec.job_template).map_err(|error| format!("invalid RayJob template: {error}"))?;
    validate::spec(&job, &BTreeMap::new()).map_err(|problem| format!("invalid RayJob template: {problem}"))?;
    Ok((spec, schedule, zone))
}

/// The RayJob for a start time. Its name depends only on the RayCronJob's name and on this time, so
/// that only one RayJob is created for each start time.
fn ray_job(cron_job: &RayCronJob, spec: &RayCronJobSpec, due: Timestamp) -> RayJob {
    let name = cron_job.name_any();
    let mut job = RayJob::named(&format!("{name}-{}", due.as_second().div_euclid(60)));
    job.metadata = ObjectMeta {
        namespace: cron_job.namespace(),
        labels: Some(BTreeMap::from([(NAME_LABEL.to_owned(), name)])),
        annotations: Some(BTreeMap::from([(SCHEDULED_AT.to_owned(), stamp(due).0.to_string())])),
        owner_references: Some(vec![owned_by(cron_job)]),
        ..job.metadata
    };
    job.spec = spec.job_template.clone();
    job
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn cron_job(fields: Value) -> RayCronJob {
        let template = json!({"spec": {"containers": [{"name": "ray-head", "image": "ray"}]}});
        let cluster = json!({"headGroupSpec": {"template": template}});
        let mut spec = json!({"schedule": "*/5 * * * *", "jobTemplate": {"rayClusterSpec": cluster}});
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let mut cron_job = RayCronJob::named("nightly");
        cron_job.metadata.namespace = Some("default".into());
        cron_job.metadata.creation_timestamp = Some(Time(at("2026-01-05T09:02:00Z")));
        cron_job.spec = spec;
        cron_job
    }

    #[test]
    fn a_ray_job_starts_at_each_time_of_the_schedule() {
        let mut nightly = cron_job(json!({}));
        let early = plan(&nightly, at("2026-01-05T09:04:00Z"));
        assert_eq!((early.create, early.after), (None, Some(Duration::from_secs(60))));
        let due = plan(&nightly, at("2026-01-05T09:05:00Z"));
        let job = due.create.unwrap();
        assert_eq!(job.name_any(), format!("nightly-{}", at("2026-01-05T09:05:00Z").as_second() / 60));
        assert_eq!(job.annotations()[SCHEDULED_AT], "2026-01-05T09:05:00Z");
        assert_eq!(job.labels()[NAME_LABEL], "nightly");
        assert_eq!(job.spec, nightly.spec["jobTemplate"]);
        assert_eq!(due.after, Some(Duration::from_secs(300)));
        nightly.status = Some(json!(due.status));
        assert_eq!(plan(&nightly, at("2026-01-05T09:05:01Z")).create, None);
        // After an outage, a RayJob is created for the latest missed start only.
        let late = plan(&nightly, at("2026-01-05T10:01:00Z"));
        assert_eq!(late.create.unwrap().annotations()[SCHEDULED_AT], "2026-01-05T10:00:00Z");
    }

    #[test]
    fn the_schedule_is_in_its_time_zone() {
        let nightly = cron_job(json!({"schedule": "0 3 * * *", "timeZone": "America/New_York"}));
        let due = plan(&nightly, at("2026-01-06T08:00:00Z"));
        assert_eq!(due.create.unwrap().annotations()[SCHEDULED_AT], "2026-01-06T08:00:00Z");
    }

    fn check(fields: Value, expected: &str) {
        let step = plan(&cron_job(fields.clone()), at("2026-01-05T09:05:00Z"));
        let event = step.event.unwrap();
        assert_eq!((step.create, event.message.as_str()), (None, expected), "{fields}");
    }

    #[test]
    fn a_suspended_or_invalid_ray_cron_job_starts_nothing_and_says_why() {
        check(json!({"suspend": true}), "RayCronJob suspended, no new RayJobs will be created");
        check(
            json!({"schedule": "TZ=UTC * * * * *"}),
            "default/nightly: cannot use TZ or CRON_TZ in schedule, use timeZone field instead",
        );
        check(json!({"timeZone": "Mars/Base"}), "default/nightly: invalid time zone: unknown time zone Mars/Base");
        check(
            json!({"jobTemplate": {}}),
            "default/nightly: invalid RayJob template: The RayJob spec is invalid: one of RayClusterSpec or \
             ClusterSelector must be set",
        );
    }
}
