//! Metrics of Jobs.

use berth_apimachinery::exposition::{Exposition, Family, FamilyId, Labels};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus};
use kube::ResourceExt;

use super::{condition, flag, is_shown, object_labels, owners, time};

/// The families of Jobs in one response.
pub(super) struct Families {
    info: FamilyId,
    owner: FamilyId,
    labels: FamilyId,
    created: FamilyId,
    parallelism: FamilyId,
    completions: FamilyId,
    suspended: FamilyId,
    active: FamilyId,
    ready: FamilyId,
    succeeded: FamilyId,
    failed_pods: FamilyId,
    started: FamilyId,
    completed: FamilyId,
    complete: FamilyId,
    failed: FamilyId,
}

/// The time at which a Job ended, if it has.
pub(super) fn ended(job: &Job) -> Option<Timestamp> {
    let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut ends = conditions.filter(|it| matches!(it.type_.as_str(), "Complete" | "Failed") && it.status == "True");
    ends.next().map(|it| it.last_transition_time.as_ref().map_or(Timestamp::MIN, |at| at.0))
}

impl Families {
    pub fn new(exposition: &mut Exposition) -> Self {
        let mut gauge = |name, help| exposition.family(&Family::gauge(name, help));
        Self {
            info: gauge("kube_job_info", "Always 1 per Job"),
            owner: gauge("kube_job_owner", "Always 1; the owners of a Job"),
            labels: gauge("kube_job_labels", "Always 1; labels that name a Job's queue or set"),
            created: gauge("kube_job_created", "Time of a Job's creation, in seconds since 1970"),
            parallelism: gauge("kube_job_spec_parallelism", "Maximum number of pods of a Job that run at once"),
            completions: gauge("kube_job_spec_completions", "Number of pods of a Job that must succeed"),
            suspended: gauge("kube_job_status_suspended", "1 if a Job is suspended"),
            active: gauge("kube_job_status_active", "Pods of a Job that have not ended"),
            ready: gauge("kube_job_status_ready", "Ready pods of a Job"),
            succeeded: gauge("kube_job_status_succeeded", "Pods of a Job that succeeded"),
            failed_pods: gauge(
                "kube_job_status_failed",
                "Failed pods of a Job; label reason states why the Job failed",
            ),
            started: gauge("kube_job_status_start_time", "Start of a Job, in seconds since 1970"),
            completed: gauge("kube_job_status_completion_time", "Completion of a Job, in seconds since 1970"),
            complete: gauge("kube_job_complete", "1 for the status of condition Complete of a Job"),
            failed: gauge("kube_job_failed", "1 for the status of condition Failed of a Job"),
        }
    }

    pub fn write(&self, exposition: &mut Exposition, job: &Job) {
        let (namespace, name) = (job.namespace().unwrap_or_default(), job.name_any());
        let of = Labels::of(&[("namespace", &namespace), ("job_name", &name)]);
        exposition.sample(self.info, &of, &[], 1.0);
        owners(exposition, self.owner, &of, job.metadata.owner_references.as_ref());
        let mut shown = job.labels().iter().filter(|(key, _)| is_shown(key)).peekable();
        if shown.peek().is_some() {
            let mut labels = of.clone();
            labels.append(&object_labels(shown));
            exposition.sample(self.labels, &labels, &[], 1.0);
        }
        time(exposition, self.created, &of, job.metadata.creation_timestamp.as_ref().map(|at| at.0));
        let spec = job.spec.as_ref();
        for (family, value) in [
            (self.parallelism, spec.and_then(|spec| spec.parallelism)),
            (self.completions, spec.and_then(|spec| spec.completions)),
        ] {
            if let Some(value) = value {
                exposition.sample(family, &of, &[], f64::from(value));
            }
        }
        let empty = JobStatus::default();
        let status = job.status.as_ref().unwrap_or(&empty);
        let find = |type_: &str| status.conditions.iter().flatten().find(|it| it.type_ == type_);
        let suspended = find("Suspended").is_some_and(|it| it.status == "True");
        exposition.sample(self.suspended, &of, &[], flag(suspended));
        for (family, count) in
            [(self.active, status.active), (self.ready, status.ready), (self.succeeded, status.succeeded)]
        {
            exposition.sample(family, &of, &[], f64::from(count.unwrap_or(0)));
        }
        self.end(exposition, status, find("Complete"), find("Failed"), &of);
    }

    fn end(
        &self,
        exposition: &mut Exposition,
        status: &JobStatus,
        complete: Option<&JobCondition>,
        failed: Option<&JobCondition>,
        of: &Labels,
    ) {
        let reason = failed.and_then(|it| it.reason.as_deref()).unwrap_or_default();
        let why = [("reason", reason)];
        let why = if reason.is_empty() { &[][..] } else { &why[..] };
        exposition.sample(self.failed_pods, of, why, f64::from(status.failed.unwrap_or(0)));
        time(exposition, self.started, of, status.start_time.as_ref().map(|at| at.0));
        time(exposition, self.completed, of, status.completion_time.as_ref().map(|at| at.0));
        for (family, known) in [(self.complete, complete), (self.failed, failed)] {
            if let Some(known) = known {
                condition(exposition, family, of, &[], &known.status, "condition");
            }
        }
    }
}
