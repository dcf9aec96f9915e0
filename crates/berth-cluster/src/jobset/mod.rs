//! The JobSet controller (jobset.x-k8s.io/v1alpha2): a set of Jobs that start, fail, restart and
//! finish together.
//!
//! Each reconcile reads the set and its jobs from the caches and applies the result of
//! [`plan::plan`]. The status is written last, so that an interrupted reconcile is planned again
//! after a crash. A second, small controller enforces exclusive placement. Sets whose
//! `spec.managedBy` names another controller are ignored. The rules of JobSet's webhooks are in
//! [`webhook`] and [`placement`], as pure functions for an API server.

pub mod children;
pub mod conditions;
pub mod construct;
pub mod failure;
mod followers;
pub mod gates;
pub mod in_place;
pub mod names;
pub mod placement;
pub mod plan;
pub mod policies;
pub mod webhook;

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_api::jobset::constants::{CONTROLLER_NAME, JOBSET_NAME};
use berth_api::jobset::v1alpha2::{JobSet, JobSetStatus};
use berth_runtime::{
    Action, Cache, Clock, Error, EventType, Index, Manager, ObjectKey, Reconciler, Recorder, owned_by,
};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Client};

use crate::job::batch_delay;

pub use gates::Gates;
pub use plan::{Plan, plan};

/// Adds the controllers to the manager, with all optional features off.
pub fn install(manager: &mut Manager) {
    install_with(manager, Gates::default());
}

/// Adds the controllers to the manager.
pub fn install_with(manager: &mut Manager, gates: Gates) {
    let sets = manager.cache_if_served::<JobSet>();
    let jobs = manager.cache::<Job>();
    let pods = manager.cache::<Pod>();
    let jobs_of_set = jobs.index(|job: &Job| {
        ObjectKey::of_controller_owner::<JobSet>(job).map(|key| key.to_string()).into_iter().collect()
    });
    let controller = JobSetController {
        client: manager.client(),
        clock: manager.clock(),
        recorder: manager.recorder("jobset-controller"),
        sets: sets.clone(),
        jobs: jobs.clone(),
        services: manager.cache::<Service>(),
        claims: manager.cache::<PersistentVolumeClaim>(),
        jobs_of_set: jobs_of_set.clone(),
        pods_of_set: pods.index(pod_set),
        gates,
    };
    let builder = manager.controller("jobset");
    let queue = builder.queue();
    let builder = builder.watch_self(&sets).watch(&jobs, move |delta| {
        let owners = [delta.old.as_ref(), delta.new.as_ref()].into_iter().flatten();
        let owners: BTreeSet<_> =
            owners.filter_map(|job| ObjectKey::of_controller_owner::<JobSet>(job.as_ref())).collect();
        for key in owners {
            let delay = batch_delay(jobs_of_set.count(&key.to_string()));
            queue.add_after(key, delay);
        }
        None
    });
    let builder = if gates.in_place_restart {
        builder.watch(&pods, |delta| {
            let pod = delta.latest();
            let namespace = pod.metadata.namespace.clone().unwrap_or_default();
            set_of(pod).map(|set| ObjectKey::namespaced(namespace, set))
        })
    } else {
        builder
    };
    builder.run(controller);
    followers::install(manager);
}

/// Name of the set that a pod belongs to.
fn set_of(pod: &Pod) -> Option<&str> {
    pod.metadata.labels.as_ref()?.get(JOBSET_NAME).map(String::as_str)
}

/// Index value of a pod: `namespace/set`.
fn pod_set(pod: &Pod) -> Vec<String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    set_of(pod).map(|set| format!("{namespace}/{set}")).into_iter().collect()
}

struct JobSetController {
    client: Client,
    clock: Clock,
    recorder: Recorder,
    sets: Cache<JobSet>,
    jobs: Cache<Job>,
    services: Cache<Service>,
    claims: Cache<PersistentVolumeClaim>,
    jobs_of_set: Index<Job>,
    pods_of_set: Index<Pod>,
    gates: Gates,
}

impl Reconciler for JobSetController {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(set) = self.sets.get(&key) else { return Ok(Action::Wait) };
        let is_foreign = set.spec.managed_by.as_deref().is_some_and(|manager| manager != CONTROLLER_NAME);
        if is_foreign || set.metadata.deletion_timestamp.is_some() {
            return Ok(Action::Wait);
        }
        let uid = set.metadata.uid.as_deref().unwrap_or_default();
        let mut jobs = self.jobs_of_set.get(&key.to_string());
        // A deleted set of the same name may have left jobs behind.
        jobs.retain(|job| job.metadata.owner_references.iter().flatten().any(|owner| owner.uid == uid));
        let pods = if self.gates.in_place_restart && in_place::is_in_place(&set) {
            self.pods_of_set.get(&key.to_string())
        } else {
            Vec::new()
        };
        let plan = plan::plan(&set, &jobs, &pods, self.gates, self.clock.now());
        self.apply(&key, &set, plan).await
    }
}

impl JobSetController {
    /// Executes the writes of a plan in order.
    async fn apply(&self, key: &ObjectKey, set: &JobSet, plan: Plan) -> Result<Action, Error> {
        let jobs: Api<Job> = Api::namespaced(self.client.clone(), &key.namespace);
        for job in &plan.delete {
            self.delete_job(&jobs, job).await?;
        }
        if let Some(service) = &plan.service {
            self.make_service(key, set, service).await?;
        }
        for claim in &plan.claims {
            self.make_claim(key, claim).await?;
        }
        let mut refused = None;
        for job in &plan.create {
            let owner = owned_by(set);
            let mut job = job.clone();
            job.metadata.owner_references = Some(vec![owner]);
            match berth_runtime::write::create(&jobs, &PostParams::default(), &job).await {
                Ok(created) => self.jobs.observe(created),
                Err(error) => {
                    let name = job.metadata.name.as_deref().unwrap_or_default();
                    let why = berth_runtime::message(&error);
                    let message = format!("job {name} creation failed with error: {why}");
                    self.recorder.event(set, EventType::Warning, "JobCreationFailed", &message);
                    // The other jobs can still be created; the retry creates this one.
                    refused = Some(error);
                }
            }
        }
        for job in &plan.update {
            self.update_job(&jobs, job).await?;
        }
        for resume in &plan.resume {
            let mut changed = resume.changed.clone();
            if resume.job.status.as_ref().is_some_and(|status| status.start_time.is_some()) {
                let name = resume.job.metadata.name.as_deref().unwrap_or_default();
                let reset = berth_runtime::write::replace_status(&jobs, name, &PostParams::default(), &changed).await?;
                changed.metadata.resource_version = reset.metadata.resource_version.clone();
                self.jobs.observe(reset);
            }
            self.update_job(&jobs, &changed).await?;
        }
        self.write_status(key, set, plan.status).await?;
        plan.events.iter().for_each(|event| event.record(&self.recorder, set));
        if plan.delete_set {
            let sets: Api<JobSet> = Api::namespaced(self.client.clone(), &key.namespace);
            let gone = berth_runtime::write::delete(
                &sets,
                &key.name,
                &exactly(DeleteParams::foreground(), set.metadata.uid.clone()),
            )
            .await;
            match gone {
                Err(error) if !berth_runtime::is_not_found(&error) => return Err(error.into()),
                _ => {}
            }
        }
        match refused {
            Some(error) => Err(error.into()),
            None => Ok(plan.again_after.map_or(Action::Wait, Action::After)),
        }
    }

    async fn delete_job(&self, jobs: &Api<Job>, job: &Job) -> Result<(), Error> {
        let name = job.metadata.name.as_deref().unwrap_or_default();
        // The job remains until its pods are deleted, so that the pods of two attempts never run
        // together.
        let params = exactly(DeleteParams::foreground(), job.metadata.uid.clone());
        match berth_runtime::write::delete(jobs, name, &params).await {
            Ok(answer) => {
                if let Some(going) = answer {
                    self.jobs.observe(going);
                }
                Ok(())
            }
            Err(error) if berth_runtime::is_not_found(&error) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn update_job(&self, jobs: &Api<Job>, job: &Job) -> Result<(), Error> {
        let name = job.metadata.name.as_deref().unwrap_or_default();
        let stored = berth_runtime::write::replace(jobs, name, &PostParams::default(), job).await?;
        self.jobs.observe(stored);
        Ok(())
    }

    async fn make_service(&self, key: &ObjectKey, set: &JobSet, service: &Service) -> Result<(), Error> {
        let name = service.metadata.name.clone().unwrap_or_default();
        if self.services.get(&ObjectKey::namespaced(&key.namespace, name)).is_some() {
            return Ok(());
        }
        let services: Api<Service> = Api::namespaced(self.client.clone(), &key.namespace);
        match berth_runtime::write::create(&services, &PostParams::default(), service).await {
            Ok(created) => {
                self.services.observe(created);
                Ok(())
            }
            Err(error) if berth_runtime::is_already_exists(&error) => Ok(()),
            Err(error) => {
                let why = berth_runtime::message(&error);
                let message = format!("headless service creation failed with error: {why}");
                self.recorder.event(set, EventType::Warning, "HeadlessServiceCreationFailed", &message);
                Err(error.into())
            }
        }
    }

    async fn make_claim(&self, key: &ObjectKey, claim: &PersistentVolumeClaim) -> Result<(), Error> {
        let name = claim.metadata.name.clone().unwrap_or_default();
        if self.claims.get(&ObjectKey::namespaced(&key.namespace, name)).is_some() {
            return Ok(());
        }
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &key.namespace);
        match berth_runtime::write::create(&claims, &PostParams::default(), claim).await {
            Ok(created) => {
                self.claims.observe(created);
                Ok(())
            }
            Err(error) if berth_runtime::is_already_exists(&error) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the status if it differs from the stored one.
    async fn write_status(&self, key: &ObjectKey, set: &JobSet, status: JobSetStatus) -> Result<(), Error> {
        if set.status.as_ref() == Some(&status) || set.status.is_none() && status == JobSetStatus::default() {
            return Ok(());
        }
        let sets: Api<JobSet> = Api::namespaced(self.client.clone(), &key.namespace);
        let changed = JobSet { status: Some(status), ..set.clone() };
        let stored = berth_runtime::write::replace_status(&sets, &key.name, &PostParams::default(), &changed).await?;
        self.sets.observe(stored);
        Ok(())
    }
}

/// Restricts a deletion to the object with this UID, so that a later object of the same name stays.
fn exactly(mut params: DeleteParams, uid: Option<String>) -> DeleteParams {
    params.preconditions = Some(Preconditions { uid, resource_version: None });
    params
}

/// The pods of a set in the cache, for exclusive placement.
pub(crate) fn pods_of(index: &Index<Pod>, namespace: &str, set: &str) -> Vec<Arc<Pod>> {
    index.get(&format!("{namespace}/{set}"))
}

#[cfg(test)]
mod tests;
