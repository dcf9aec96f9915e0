//! The CronJob controller (batch/v1) of kube-controller-manager: creates a Job at each start time
//! of a schedule, follows the Jobs until they finish, and deletes old ones.
//!
//! Each reconcile reads the CronJob and its Jobs from the caches and applies [`plan::plan`]. The
//! Jobs get the queue labels of the Job template, so a queueing system queues them like other Jobs.

pub mod plan;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use berth_runtime::{
    Action, Cache, Clock, Error, EventType, Index, Manager, ObjectKey, Reconciler, Recorder, Writer, is_controlled_by,
};
use k8s_openapi::api::batch::v1::{CronJob, CronJobStatus, Job};
use kube::ResourceExt;
use parking_lot::Mutex;

use plan::{Plan, StateEvent, plan};

/// Adds the controller to the manager.
pub fn install(manager: &mut Manager) {
    let cron_jobs = manager.cache::<CronJob>();
    let jobs = manager.cache::<Job>();
    let controller = Controller {
        clock: manager.clock(),
        recorder: manager.recorder("cronjob-controller"),
        of_cron_job: jobs.index(|job: &Job| {
            ObjectKey::of_controller_owner::<CronJob>(job).map(|key| key.to_string()).into_iter().collect()
        }),
        jobs: Writer::new(manager, &jobs),
        writer: Writer::new(manager, &cron_jobs),
        cron_jobs: cron_jobs.clone(),
        state_events: Mutex::default(),
    };
    manager.controller("cronjob").watch_self(&cron_jobs).watch_owned::<CronJob, _>(&jobs).run(controller);
}

struct Controller {
    clock: Clock,
    recorder: Recorder,
    cron_jobs: Cache<CronJob>,
    of_cron_job: Index<Job>,
    jobs: Writer<Job>,
    writer: Writer<CronJob>,
    /// State events of each CronJob's last reconcile. An event is recorded once while its state
    /// lasts, and once more after a restart of the controller.
    state_events: Mutex<BTreeMap<ObjectKey, BTreeSet<StateEvent>>>,
}

impl Reconciler for Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(cron_job) = self.cron_jobs.get(&key) else {
            self.state_events.lock().remove(&key);
            return Ok(Action::Wait);
        };
        let uid = cron_job.uid().unwrap_or_default();
        let mut jobs = self.of_cron_job.get(&key.to_string());
        jobs.retain(|job| is_controlled_by(job.as_ref(), &uid));
        let plan = plan(&cron_job, &jobs, self.clock.now());
        self.record(&cron_job, &key, &plan);
        let mut status = plan.status.clone();
        if let Some(job) = &plan.create {
            for replaced in &plan.replace {
                self.delete(&cron_job, replaced).await?;
            }
            match self.create(&cron_job, job).await? {
                Some(created) => status = plan.status_with(&created),
                // Another owner's Job has this name. This start is skipped (an event reports it);
                // the Job of the next start has another name.
                None => status.last_schedule_time = plan.status_with(job).last_schedule_time,
            }
        }
        // The status is written before finished Jobs are deleted, so that a deleted Job does not
        // look like an active Job that went missing.
        self.write_status(&cron_job, status).await?;
        for job in &plan.delete {
            self.delete(&cron_job, job).await?;
        }
        Ok(plan.requeue_after.map_or(Action::Wait, Action::After))
    }
}

impl Controller {
    fn record(&self, cron_job: &CronJob, key: &ObjectKey, plan: &Plan) {
        plan.events.iter().for_each(|event| event.record(&self.recorder, cron_job));
        let before = self.state_events.lock().insert(key.clone(), plan.state_events.clone()).unwrap_or_default();
        for event in plan.state_events.difference(&before) {
            event.event.record(&self.recorder, cron_job);
        }
    }

    /// Creates a Job. Returns `None` if another owner's Job has its name.
    async fn create(&self, cron_job: &CronJob, job: &Job) -> Result<Option<Job>, Error> {
        let failed = |error: &kube::Error| {
            let message = format!("Error creating job: {}", berth_runtime::message(error));
            self.recorder.event(cron_job, EventType::Warning, "FailedCreate", &message);
        };
        match self.jobs.create(job).await {
            Ok(created) => {
                let message = format!("Created job {}", created.name_any());
                self.recorder.event(cron_job, EventType::Normal, "SuccessfulCreate", &message);
                Ok(Some(created))
            }
            Err(error) if berth_runtime::is_already_exists(&error) => {
                // An earlier reconcile may have created the Job and failed to write the status.
                let known = berth_runtime::write::get(&self.jobs.api(job), &job.name_any()).await?;
                if is_controlled_by(&known, &cron_job.uid().unwrap_or_default()) {
                    return Ok(Some(known));
                }
                failed(&error);
                Ok(None)
            }
            Err(error) => {
                failed(&error);
                Err(error.into())
            }
        }
    }

    async fn delete(&self, cron_job: &CronJob, job: &Job) -> Result<(), Error> {
        match self.jobs.delete(job).await {
            Ok(()) => {
                let message = format!("Deleted job {}", job.name_any());
                self.recorder.event(cron_job, EventType::Normal, "SuccessfulDelete", &message);
                Ok(())
            }
            Err(error) => {
                let message = format!("Deleted job: {error}");
                self.recorder.event(cron_job, EventType::Warning, "FailedDelete", &message);
                Err(error.into())
            }
        }
    }

    async fn write_status(&self, cron_job: &CronJob, status: CronJobStatus) -> Result<(), Error> {
        if cron_job.status.as_ref() == Some(&status)
            || (cron_job.status.is_none() && status == CronJobStatus::default())
        {
            return Ok(());
        }
        self.writer.replace_status(&CronJob { status: Some(status), ..cron_job.clone() }).await?;
        Ok(())
    }
}
