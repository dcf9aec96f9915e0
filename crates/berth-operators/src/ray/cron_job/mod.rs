//! The RayCronJob controller: creates a RayJob at each start time of a schedule.
//!
//! The kind has neither a concurrency policy nor history limits: RayJobs may run concurrently, and
//! stay until a user or their own deletion rules delete them.

pub mod plan;

use std::collections::BTreeMap;

use berth_api::frameworks::{RayCronJob, RayJob};
use berth_runtime::{Action, Cache, Clock, Error, EventType, Manager, ObjectKey, PlannedEvent, Reconciler, Recorder};
use kube::ResourceExt;
use parking_lot::Mutex;
use serde_json::json;

use berth_runtime::Writer;
use plan::plan;

/// Adds the controller to the manager.
pub fn install(manager: &mut Manager) {
    let cron_jobs = manager.cache_if_served::<RayCronJob>();
    let jobs = manager.cache_if_served::<RayJob>();
    let controller = Controller {
        clock: manager.clock(),
        recorder: manager.recorder("raycronjob-controller"),
        write: Writer::new(manager, &cron_jobs),
        write_job: Writer::new(manager, &jobs),
        cron_jobs: cron_jobs.clone(),
        events: Mutex::default(),
    };
    manager.controller("raycronjob").watch_self(&cron_jobs).run(controller);
}

struct Controller {
    clock: Clock,
    recorder: Recorder,
    cron_jobs: Cache<RayCronJob>,
    write: Writer<RayCronJob>,
    write_job: Writer<RayJob>,
    /// The event of each RayCronJob's last step. After a restart of the operator, the event of an
    /// unchanged event is recorded again.
    events: Mutex<BTreeMap<ObjectKey, Option<PlannedEvent>>>,
}

impl Reconciler for Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(cron_job) = self.cron_jobs.get(&key) else {
            self.events.lock().remove(&key);
            return Ok(Action::Wait);
        };
        let step = plan(&cron_job, self.clock.now());
        let before = self.events.lock().insert(key, step.event.clone()).flatten();
        if let Some(event) = step.event.filter(|event| Some(event) != before.as_ref()) {
            event.record(&self.recorder, cron_job.as_ref());
        }
        if let Some(job) = &step.create {
            let name = format!("{}/{}", job.namespace().unwrap_or_default(), job.name_any());
            match self.write_job.create_owned(job, cron_job.as_ref()).await {
                Ok(()) => {
                    let message = format!("Created RayJob {name}");
                    self.recorder.event(cron_job.as_ref(), EventType::Normal, "CreatedRayJob", &message);
                }
                Err(error) => {
                    let why = berth_runtime::message(&error);
                    let message = format!("Failed to create RayJob {name}: {why}");
                    self.recorder.event(cron_job.as_ref(), EventType::Warning, "FailedToCreateRayJob", &message);
                    // If a RayJob of another owner has this name, this start is skipped, because a
                    // retry cannot succeed. The next start uses another name.
                    if !berth_runtime::is_already_exists(&error) {
                        return Err(error.into());
                    }
                }
            }
            let changed = RayCronJob { status: Some(json!(step.status)), ..cron_job.as_ref().clone() };
            self.write.replace_status(&changed).await?;
        }
        Ok(step.after.map_or(Action::Wait, Action::After))
    }
}
