//! The Job controller (batch/v1) of kube-controller-manager: creates a Job's pods, counts their
//! successes and failures, and completes or fails the Job. It also deletes finished Jobs after
//! `ttlSecondsAfterFinished`, and removes the tracking finalizer from pods whose Job no longer
//! exists.
//!
//! Each reconcile reads the Job and its pods from the caches and applies the result of
//! [`plan::plan`]. The order of the writes makes a crash between any two of them harmless. Jobs
//! whose `spec.managedBy` names another controller are ignored.

mod adoption;
pub mod backoff;
pub mod facts;
mod indexes;
pub mod plan;
mod pods;
mod policy;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_runtime::{Action, Cache, Clock, Error, EventType, Index, Manager, ObjectKey, Reconciler, Recorder};
use jiff::SignedDuration;
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::json;

pub use indexes::IndexSet;
pub use plan::{Plan, Removal, plan};
pub use pods::build_pod;
pub use policy::{PodFailure, match_pod_failure_policy};

use adoption::Adoption;
use backoff::Backoff;
use facts::{TRACKING_FINALIZER, finished_condition, is_managed_elsewhere, is_tracked, job_spec, name, uid};

/// Delay, per pod of the Job, from a pod event to the reconcile. It batches the events of large
/// Jobs, up to [`BATCH_DELAY_MAX`].
const BATCH_DELAY_PER_POD: Duration = Duration::from_millis(1);
/// Maximum delay from a pod event to the reconcile: kube-controller-manager's delay for every Job.
const BATCH_DELAY_MAX: Duration = Duration::from_secs(1);
/// Jobs of at most this many pods are reconciled without delay.
const UNBATCHED_PODS_MAX: usize = 32;

/// Adds the controller to the manager.
pub fn install(manager: &mut Manager) {
    let jobs = manager.cache::<Job>();
    let pods = manager.cache::<Pod>();
    let by_owner = pods
        .index(|pod: &Pod| ObjectKey::of_controller_owner::<Job>(pod).map(|key| key.to_string()).into_iter().collect());
    let controller = JobController {
        client: manager.client(),
        clock: manager.clock(),
        recorder: manager.recorder("job-controller"),
        jobs: jobs.clone(),
        pods: pods.clone(),
        by_owner: by_owner.clone(),
        adoption: Adoption::new(manager.client(), &pods),
        records: Mutex::default(),
    };
    let orphans = Orphans { client: manager.client(), jobs: jobs.clone(), pods: pods.clone() };
    let builder = manager.controller("job");
    let queue = builder.queue();
    builder
        .watch_self(&jobs)
        .watch(&pods, move |delta| {
            let sides = [delta.old.as_ref(), delta.new.as_ref()];
            let owners: BTreeSet<_> = sides
                .into_iter()
                .flatten()
                .filter_map(|pod| ObjectKey::of_controller_owner::<Job>(pod.as_ref()))
                .collect();
            for key in owners {
                let delay = batch_delay(by_owner.count(&key.to_string()));
                queue.add_after(key, delay);
            }
            adoption::adopter(delta)
        })
        .run(controller);
    let left = adoption::left_pods(&pods);
    manager
        .controller("job-orphans")
        .watch(&pods, |delta| {
            let pod = delta.new.as_ref()?;
            is_left(pod).then(|| ObjectKey::of(pod.as_ref()))
        })
        // A Job that adopts no more.
        .watch(&jobs, move |delta| {
            let job = delta.new.as_ref().or(delta.old.as_ref());
            let pods = job.map(|job| left.get(&ObjectKey::of(job.as_ref()).to_string())).unwrap_or_default();
            pods.iter().map(|pod| ObjectKey::of(pod.as_ref())).collect::<Vec<_>>()
        })
        .run(orphans);
}

/// Delay from an event of an owner's objects to the owner's reconcile. `count` is the number of
/// its objects.
pub(crate) fn batch_delay(count: usize) -> Duration {
    match count {
        0..=UNBATCHED_PODS_MAX => Duration::ZERO,
        _ => BATCH_DELAY_PER_POD.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX)).min(BATCH_DELAY_MAX),
    }
}

/// True if the pod is tracked and no Job controls it.
fn is_left(pod: &Pod) -> bool {
    is_tracked(pod) && ObjectKey::of_controller_owner::<Job>(pod).is_none()
}

/// True if the Job with this UID controls the pod.
fn is_controlled_by(pod: &Pod, job_uid: &str) -> bool {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.controller == Some(true) && owner.uid == job_uid)
}

struct JobController {
    client: Client,
    clock: Clock,
    recorder: Recorder,
    jobs: Cache<Job>,
    pods: Cache<Pod>,
    by_owner: Index<Pod>,
    adoption: Adoption,
    /// Back-off records by Job, with the Job's UID; see [`Backoff`].
    records: Mutex<BTreeMap<ObjectKey, (String, Backoff)>>,
}

impl Reconciler for JobController {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(job) = self.jobs.get(&key) else {
            self.forget(&key);
            // The Job no longer exists, so its pods will not be counted.
            self.release(&key, &self.by_owner.get(&key.to_string())).await?;
            return Ok(Action::Wait);
        };
        let job_uid = job.metadata.uid.as_deref().unwrap_or_default();
        let (pods, orphans): (Vec<_>, Vec<_>) =
            self.by_owner.get(&key.to_string()).into_iter().partition(|pod| is_controlled_by(pod, job_uid));
        // Pods of an earlier Job with this name.
        self.release(&key, &orphans).await?;
        if finished_condition(&job).is_some() {
            self.forget(&key);
            if !is_managed_elsewhere(&job) {
                self.release(&key, &pods).await?;
            }
            return self.expire(&key, &job).await;
        }
        if is_managed_elsewhere(&job) {
            return Ok(Action::Wait);
        }
        let pods = self.adoption.settle(&key, &job, pods).await?;
        let step = plan::plan(&job, &pods, self.record(&key, job_uid), self.clock.now());
        self.apply(&key, &job, step).await
    }
}

impl JobController {
    /// Applies the plan, in the order that the module `plan` describes.
    async fn apply(&self, key: &ObjectKey, job: &Job, mut plan: Plan) -> Result<Action, Error> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        for removal in &plan.remove {
            self.remove(&pods, job, removal).await?;
        }
        let mut failed_create = None;
        for pod in &plan.create {
            match berth_runtime::write::create(&pods, &PostParams::default(), pod).await {
                Ok(created) => {
                    let message = format!("Created pod: {}", name(&created));
                    self.recorder.event(job, EventType::Normal, "SuccessfulCreate", &message);
                    self.pods.observe(created);
                }
                Err(error) => {
                    let message = format!("Error creating: {}", berth_runtime::message(&error));
                    self.recorder.event(job, EventType::Warning, "FailedCreate", &message);
                    // The other pods would be rejected for the same reason; the retry creates them.
                    failed_create = Some(error);
                    break;
                }
            }
        }
        if failed_create.is_some() {
            let job_uid = job.metadata.uid.as_deref().unwrap_or_default();
            let owned = self.by_owner.get(&key.to_string());
            let active = owned.iter().filter(|pod| is_controlled_by(pod, job_uid) && facts::is_active(pod)).count();
            plan.status.active = i32::try_from(active).ok().filter(|active| *active > 0);
        }
        // The last step of a finished Job: one status write, then the finalizers.
        if let Some(final_status) = plan.final_status(self.clock.now()) {
            self.write_status(key, job, final_status).await?;
            self.forget(key);
            self.record_events(job, &plan);
            self.release(key, &plan.release).await?;
            return Ok(Action::Wait);
        }
        // Any other step: list the uncounted UIDs, remove their finalizers, then move them to the
        // counters.
        let mut written = plan.status.clone();
        if !plan.release.is_empty() {
            written = self.write_status(key, job, written).await?;
        }
        self.records_insert(key, job, plan.backoff);
        self.release(key, &plan.release).await?;
        let mut tracked = plan.tracked().clone();
        for pod in plan.release.iter().chain(plan.remove.iter().filter(|r| r.forget).map(|r| &r.pod)) {
            tracked.remove(uid(pod));
        }
        let counted = plan.counted_status(written, &tracked, self.clock.now());
        self.write_status(key, job, counted).await?;
        self.record_events(job, &plan);
        match failed_create {
            Some(error) => Err(error.into()),
            None => Ok(plan.requeue_after.map_or(Action::Wait, Action::After)),
        }
    }

    fn record_events(&self, job: &Job, plan: &Plan) {
        plan.events.iter().for_each(|event| event.record(&self.recorder, job));
    }

    /// Writes the status if it differs from the cached one. Returns the status as stored. A
    /// conflict is an error, so that the next reconcile plans with the changed Job.
    async fn write_status(&self, key: &ObjectKey, job: &Job, status: JobStatus) -> Result<JobStatus, Error> {
        // The cache includes this controller's writes, so a second write has the version of the
        // first.
        let current = self.jobs.get(key).filter(|current| current.metadata.uid == job.metadata.uid);
        let Some(current) = current else { return Ok(status) };
        if current.status.as_ref() == Some(&status) {
            return Ok(status);
        }
        let jobs: Api<Job> = Api::namespaced(self.client.clone(), &key.namespace);
        let changed = Job { status: Some(status), ..current.as_ref().clone() };
        let stored = berth_runtime::write::replace_status(&jobs, &key.name, &PostParams::default(), &changed).await?;
        let status = stored.status.clone().unwrap_or_default();
        self.jobs.observe(stored);
        Ok(status)
    }

    async fn remove(&self, pods: &Api<Pod>, job: &Job, removal: &Removal) -> Result<(), Error> {
        if removal.forget && is_tracked(&removal.pod) {
            // With the resourceVersion of the plan: if the pod has terminated since then, it must
            // be counted.
            remove_tracking_finalizer(pods, &removal.pod, removal.pod.metadata.resource_version.as_deref(), &self.pods)
                .await?;
        }
        let mut params = DeleteParams::background();
        params.preconditions = Some(Preconditions { uid: removal.pod.metadata.uid.clone(), resource_version: None });
        match berth_runtime::write::delete(pods, name(&removal.pod), &params).await {
            Ok(answer) => {
                let message = format!("Deleted pod: {}", name(&removal.pod));
                self.recorder.event(job, EventType::Normal, "SuccessfulDelete", &message);
                // The API server returns the pod while it terminates, or a Status once it is
                // deleted.
                if let Some(pod) = answer {
                    self.pods.observe(pod);
                }
                Ok(())
            }
            Err(error) if berth_runtime::is_not_found(&error) => Ok(()),
            Err(error) => {
                let message = format!("Error deleting: {}", berth_runtime::message(&error));
                self.recorder.event(job, EventType::Warning, "FailedDelete", &message);
                Err(error.into())
            }
        }
    }

    /// Removes the tracking finalizer from those pods that have it.
    async fn release(&self, key: &ObjectKey, pods: &[Arc<Pod>]) -> Result<(), Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        for pod in pods.iter().filter(|pod| is_tracked(pod)) {
            remove_tracking_finalizer(&api, pod, None, &self.pods).await?;
        }
        Ok(())
    }

    /// Deletes a finished Job after `ttlSecondsAfterFinished`, or requeues it for that time.
    async fn expire(&self, key: &ObjectKey, job: &Job) -> Result<Action, Error> {
        let (Some(seconds), None) = (job_spec(job).ttl_seconds_after_finished, &job.metadata.deletion_timestamp) else {
            return Ok(Action::Wait);
        };
        let finished = finished_condition(job).and_then(|condition| condition.last_transition_time.as_ref());
        let Some(finished) = finished else { return Ok(Action::Wait) };
        let expiry = finished.0.checked_add(SignedDuration::from_secs(i64::from(seconds)))?;
        let left = self.clock.until(expiry);
        if !left.is_zero() {
            return Ok(Action::After(left));
        }
        let jobs: Api<Job> = Api::namespaced(self.client.clone(), &key.namespace);
        let mut params = DeleteParams::foreground();
        params.preconditions = Some(Preconditions { uid: job.metadata.uid.clone(), resource_version: None });
        match berth_runtime::write::delete(&jobs, &key.name, &params).await {
            Err(error) if !berth_runtime::is_not_found(&error) => Err(error.into()),
            _ => Ok(Action::Wait),
        }
    }

    fn record(&self, key: &ObjectKey, job_uid: &str) -> Backoff {
        let records = self.records.lock();
        records.get(key).filter(|(uid, _)| uid == job_uid).map(|(_, record)| *record).unwrap_or_default()
    }

    fn records_insert(&self, key: &ObjectKey, job: &Job, record: Backoff) {
        let mut records = self.records.lock();
        if record == Backoff::default() {
            records.remove(key);
        } else {
            records.insert(key.clone(), (job.metadata.uid.clone().unwrap_or_default(), record));
        }
    }

    fn forget(&self, key: &ObjectKey) {
        self.records.lock().remove(key);
    }
}

/// Removes the tracking finalizer from orphaned pods (`kubectl delete job --cascade=orphan`): no
/// Job will count them.
struct Orphans {
    client: Client,
    jobs: Cache<Job>,
    pods: Cache<Pod>,
}

impl Reconciler for Orphans {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(pod) = self.pods.get(&key) else { return Ok(Action::Wait) };
        if is_left(&pod) && !adoption::will_be_adopted(&self.jobs, &pod) {
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
            remove_tracking_finalizer(&pods, &pod, None, &self.pods).await?;
        }
        Ok(Action::Wait)
    }
}

/// Removes the tracking finalizer from a pod. With `at`, fails if the pod's resourceVersion has
/// changed.
async fn remove_tracking_finalizer(
    pods: &Api<Pod>,
    pod: &Pod,
    at: Option<&str>,
    cache: &Cache<Pod>,
) -> Result<(), Error> {
    // The UID makes the patch fail on another pod of the same name.
    let mut patch = json!({"metadata": {
        "uid": pod.metadata.uid,
        "$deleteFromPrimitiveList/finalizers": [TRACKING_FINALIZER],
    }});
    if let Some(version) = at {
        patch["metadata"]["resourceVersion"] = version.into();
    }
    match berth_runtime::write::patch(pods, name(pod), &PatchParams::default(), &Patch::Strategic(&patch)).await {
        Ok(stored) => {
            cache.observe(stored);
            Ok(())
        }
        Err(error) if berth_runtime::is_not_found(&error) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests;
