//! The RayJob controller: runs a program on a Ray cluster of its own, or on an existing cluster.
//!
//! Each reconcile reads the job and its objects from the caches, asks the dashboard if
//! [`plan::plan`] needs its answer, and applies the plan. The status is written last, so that an
//! interrupted step is planned again. Jobs whose `spec.managedBy` names another controller are
//! ignored.
//!
//! A job that is not valid stays `ValidationFailed`, even after its spec is corrected. It must be
//! deleted and created again.

mod cluster;
pub mod command;
pub mod deletion;
pub mod plan;
pub mod submitter;
#[cfg(test)]
mod tests;
pub mod types;
pub mod validate;

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_api::frameworks::{RayCluster, RayJob};
use berth_runtime::{Action, Cache, Clock, Error, EventType, Index, Manager, ObjectKey, Reconciler, Recorder};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{Client, ResourceExt};
use serde_json::json;

use crate::ray::constants::CONTROLLER_NAME;
use crate::ray::dashboard::http::{self, Http};
use crate::ray::dashboard::simulated::{Facts, SimulatedJobs};
use crate::ray::dashboard::{Answer, Jobs, POLL, Submission};
use crate::ray::names;
use crate::ray::objects::{heads_by_cluster, of_cluster};
use crate::ray::simulation::{Runs, runs};
use crate::ray::types::RayClusterSpec;
use berth_runtime::{Writer, is_controlled_by};
use plan::{FINALIZER, Plan, World, Write, plan, unreachable};
use types::{RayJobSpec, RayJobStatus, deployment};

/// Maximum number of concurrent reconciles; each may wait for a dashboard.
const CONCURRENCY: usize = 16;

/// Adds the controller to the manager.
pub fn install(manager: &mut Manager) {
    let jobs = manager.cache_if_served::<RayJob>();
    let clusters = manager.cache_if_served::<RayCluster>();
    let submitters = manager.cache::<Job>();
    let services = manager.cache::<Service>();
    let pods = manager.cache::<Pod>();
    let by_cluster = jobs.index(|job: &RayJob| {
        let cluster = RayJobStatus::read(job.status.as_ref()).ray_cluster_name;
        let key = ObjectKey::namespaced(job.namespace().unwrap_or_default(), cluster);
        if key.name.is_empty() { Vec::new() } else { vec![key.to_string()] }
    });
    let controller = Controller {
        client: manager.client(),
        clock: manager.clock(),
        recorder: manager.recorder("rayjob-controller"),
        heads: heads_by_cluster(&pods),
        write_job: Writer::new(manager, &jobs),
        write_cluster: Writer::new(manager, &clusters),
        write_submitter: Writer::new(manager, &submitters),
        write_service: Writer::new(manager, &services),
        jobs: jobs.clone(),
        clusters: clusters.clone(),
        submitters: submitters.clone(),
        services: services.clone(),
    };
    let (of_service, of_head) = (by_cluster.clone(), by_cluster.clone());
    manager
        .controller("rayjob")
        .watch_self(&jobs)
        .watch(&clusters, move |delta| by_cluster.keys(&ObjectKey::of(delta.latest().as_ref()).to_string()))
        .watch_owned::<RayJob, _>(&submitters)
        .watch_owned::<RayJob, _>(&services)
        .watch(&services, move |delta| jobs_of(&of_service, of_cluster(delta.latest().as_ref())))
        .watch(&pods, move |delta| jobs_of(&of_head, of_cluster(delta.latest().as_ref())))
        .concurrency(CONCURRENCY)
        .run(controller);
}

/// The RayJobs on a cluster.
fn jobs_of(by_cluster: &Index<RayJob>, cluster: Option<ObjectKey>) -> BTreeSet<ObjectKey> {
    cluster.map(|cluster| by_cluster.keys(&cluster.to_string())).into_iter().flatten().collect()
}

struct Controller {
    client: Client,
    clock: Clock,
    recorder: Recorder,
    jobs: Cache<RayJob>,
    clusters: Cache<RayCluster>,
    submitters: Cache<Job>,
    services: Cache<Service>,
    heads: Index<Pod>,
    write_job: Writer<RayJob>,
    write_cluster: Writer<RayCluster>,
    write_submitter: Writer<Job>,
    write_service: Writer<Service>,
}

/// The objects of a job, from the caches.
struct Found {
    cluster: Option<Arc<RayCluster>>,
    head_service: Option<Arc<Service>>,
    head: Option<Arc<Pod>>,
    service: Option<Arc<Service>>,
    submitter: Option<Arc<Job>>,
}

impl Found {
    fn world(&self) -> World<'_> {
        World {
            cluster: self.cluster.as_deref(),
            head_service: self.head_service.as_deref(),
            head: self.head.as_deref(),
            service: self.service.as_deref(),
            submitter: self.submitter.as_deref(),
            answer: None,
        }
    }
}

impl Reconciler for Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(job) = self.jobs.get(&key) else { return Ok(Action::Wait) };
        let manager = job.spec["managedBy"].as_str().unwrap_or(CONTROLLER_NAME);
        if manager != CONTROLLER_NAME {
            return Ok(Action::Wait);
        }
        let spec = RayJobSpec::read(&job.spec);
        let status = RayJobStatus::read(job.status.as_ref());
        let found = self.find(&key, &job, &status);
        let mut world = found.world();
        let mut step = plan(&job, spec.as_ref(), &world, self.clock.now());
        let mut again = None;
        if let (true, Ok(spec)) = (step.ask, &spec) {
            let (answer, next) = match self.dashboard(&job, spec, &status, &found).await {
                Ok(dashboard) => (dashboard.job(&status.job_id).await, dashboard.again()),
                Err(problem) => (Answer::Unreachable(problem), Some(POLL)),
            };
            world.answer = Some(answer);
            again = next;
            step = plan(&job, Ok(spec), &world, self.clock.now());
        }
        if step.status.job_deployment_status == deployment::RUNNING {
            step.after = [step.after, again].into_iter().flatten().min();
        }
        self.apply(&job, &found, step).await
    }
}

impl Controller {
    fn find(&self, key: &ObjectKey, job: &RayJob, status: &RayJobStatus) -> Found {
        let named = |name: &str| ObjectKey::namespaced(&key.namespace, name);
        let cluster_key = named(&status.ray_cluster_name);
        let cluster = self.clusters.get(&cluster_key);
        let head_service = cluster.as_ref().and_then(|cluster| {
            let spec = RayClusterSpec::read(&cluster.spec).unwrap_or_default();
            self.services.get(&named(&names::head_service(&cluster_key.name, &spec)))
        });
        let uid = job.uid().unwrap_or_default();
        Found {
            cluster,
            head_service,
            head: self.heads.get(&cluster_key.to_string()).into_iter().next(),
            service: self.services.get(&named(&names::default_head_service(&key.name))),
            submitter: self.submitters.get(key).filter(|submitter| is_controlled_by(submitter.as_ref(), &uid)),
        }
    }

    /// The dashboard of the job's cluster. It is simulated if the head pod is simulated.
    async fn dashboard(
        &self,
        job: &RayJob,
        spec: &RayJobSpec,
        status: &RayJobStatus,
        found: &Found,
    ) -> Result<Box<dyn Jobs>, String> {
        let name = &status.ray_cluster_name;
        let Some(head) = &found.head else { return Err(format!("RayCluster {name} has no head pod")) };
        match runs(head) {
            Runs::NotYet => Err(format!("head pod {} has not started", head.name_any())),
            Runs::Simulated => {
                let facts = Facts {
                    job,
                    mode: spec.submission_mode,
                    submitter: found.submitter.as_deref(),
                    head,
                    started: status.ray_job_info.start_time.as_ref().map(|time| time.0),
                };
                Ok(Box::new(SimulatedJobs::at(&facts, self.clock.now())))
            }
            Runs::Real => {
                let cluster = found.cluster.as_ref().map(|cluster| RayClusterSpec::read(&cluster.spec));
                let cluster = cluster.and_then(Result::ok).unwrap_or_default();
                let namespace = job.namespace().unwrap_or_default();
                let token = match submitter::token_secret(name, &cluster) {
                    Some(secret) => Some(http::token(&self.client, &namespace, &secret).await?),
                    None => None,
                };
                let service = names::head_service(name, &cluster);
                Ok(Box::new(Http { client: self.client.clone(), namespace, service, token, head: None }))
            }
        }
    }

    /// Applies the writes of the plan in their order, and then writes the status.
    async fn apply(&self, job: &Arc<RayJob>, found: &Found, mut plan: Plan) -> Result<Action, Error> {
        for warning in &plan.warnings {
            self.recorder.event(job.as_ref(), EventType::Warning, warning.reason, &warning.message);
        }
        let mut current = job.as_ref().clone();
        for write in std::mem::take(&mut plan.writes) {
            match write {
                Write::AddFinalizer => {
                    current.finalizers_mut().push(FINALIZER.to_owned());
                    current = self.write_job.replace(&current).await?;
                }
                Write::RemoveFinalizer => {
                    current.finalizers_mut().retain(|finalizer| finalizer != FINALIZER);
                    self.write_job.replace(&current).await?;
                    return Ok(Action::Wait);
                }
                Write::Stop | Write::Submit => self.request_dashboard(job, found, &mut plan.status, &write).await,
                Write::DeleteJob => {
                    self.write_job.delete(job).await?;
                    return Ok(Action::Wait);
                }
                other => self.write(job, found, &other).await?,
            }
        }
        if RayJobStatus::read(job.status.as_ref()) != plan.status {
            current.status = Some(json!(plan.status));
            self.write_job.replace_status(&current).await?;
        }
        Ok(plan.after.map_or(Action::Wait, Action::After))
    }

    /// Submits or stops the program. A failed submission is repeated after the next question to the
    /// dashboard.
    async fn request_dashboard(&self, job: &RayJob, found: &Found, status: &mut RayJobStatus, write: &Write) {
        let before = RayJobStatus::read(job.status.as_ref());
        let requested = async {
            let spec = RayJobSpec::read(&job.spec).map_err(|error| error.to_string())?;
            let dashboard = self.dashboard(job, &spec, &before, found).await?;
            match write {
                Write::Submit => dashboard.submit(&Submission::of(&spec, &before)?).await,
                _ => dashboard.stop(&before.job_id).await,
            }
        };
        if let Err(problem) = requested.await {
            tracing::debug!(job = %job.name_any(), %problem, "cannot submit or stop the Ray job");
            if *write == Write::Submit {
                unreachable(status, self.clock.now());
                let message = format!("Failed to submit the Ray job {}: {problem}", before.job_id);
                self.recorder.event(job, EventType::Warning, "FailedToSubmitRayJob", &message);
            }
        }
    }

    /// Applies a write of one of the job's objects, and records an event about it.
    async fn write(&self, job: &RayJob, found: &Found, write: &Write) -> Result<(), Error> {
        let namespace = job.namespace().unwrap_or_default();
        let key = |name: String| format!("{namespace}/{name}");
        let cluster_key = key(found.cluster.as_ref().map(|cluster| cluster.name_any()).unwrap_or_default());
        let (outcome, (made, failed), text, object) = match write {
            Write::CreateCluster(cluster) => (
                self.write_cluster.create_owned(cluster, job).await,
                ("CreatedRayCluster", "FailedToCreateRayCluster"),
                ("Created RayCluster", "Failed to create RayCluster"),
                key(cluster.name_any()),
            ),
            Write::CreateSubmitter(submitter) => (
                self.write_submitter.create_owned(submitter, job).await,
                ("CreatedRayJobSubmitter", "FailedToCreateRayJobSubmitter"),
                ("Created Kubernetes Job", "Failed to create new Kubernetes Job"),
                key(submitter.name_any()),
            ),
            Write::CreateService(service) => (
                self.write_service.create_owned(service, job).await,
                ("CreatedService", "FailedToCreateService"),
                ("Created the service", "Failed to create the service"),
                key(service.name_any()),
            ),
            Write::UpdateService(service) => (
                self.write_service.replace(service).await.map(drop),
                ("UpdatedService", "FailedToUpdateService"),
                ("Updated the service", "Failed to update the service"),
                key(service.name_any()),
            ),
            Write::SuspendWorkers => (
                self.suspend_workers(found).await,
                ("UpdatedRayCluster", "FailedToUpdateRayCluster"),
                (
                    "Set the `suspend` field to true for all worker groups in cluster",
                    "Failed to suspend worker groups in cluster",
                ),
                cluster_key,
            ),
            Write::DeleteCluster => (
                delete(&self.write_cluster, found.cluster.as_deref()).await,
                ("DeletedRayCluster", "FailedToDeleteRayCluster"),
                ("Deleted cluster", "Failed to delete cluster"),
                cluster_key,
            ),
            Write::DeleteSubmitter => (
                delete(&self.write_submitter, found.submitter.as_deref()).await,
                ("DeletedRayJobSubmitter", "FailedToDeleteRayJobSubmitter"),
                ("Deleted submitter K8s Job", "Failed to delete submitter K8s Job"),
                key(job.name_any()),
            ),
            Write::AddFinalizer | Write::RemoveFinalizer | Write::Submit | Write::Stop | Write::DeleteJob => {
                return Ok(());
            }
        };
        match outcome {
            Ok(()) => {
                self.recorder.event(job, EventType::Normal, made, &format!("{} {object}", text.0));
                Ok(())
            }
            Err(error) => {
                let message = format!("{} {object}: {}", text.1, berth_runtime::message(&error));
                self.recorder.event(job, EventType::Warning, failed, &message);
                Err(error.into())
            }
        }
    }

    async fn suspend_workers(&self, found: &Found) -> kube::Result<()> {
        let Some(cluster) = &found.cluster else { return Ok(()) };
        let mut changed = cluster.as_ref().clone();
        for group in changed.spec["workerGroupSpecs"].as_array_mut().into_iter().flatten() {
            group["suspend"] = true.into();
        }
        self.write_cluster.replace(&changed).await.map(drop)
    }
}

/// Deletes the object, if there is one.
async fn delete<K>(writer: &Writer<K>, object: Option<&K>) -> kube::Result<()>
where
    K: berth_runtime::Written,
{
    match object {
        Some(object) => writer.delete(object).await,
        None => Ok(()),
    }
}
