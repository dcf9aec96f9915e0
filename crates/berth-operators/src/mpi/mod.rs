//! The MPI operator (kubeflow.org/v2beta1): MPIJob, a launcher that runs `mpirun`, and workers that
//! it reaches by SSH.
//!
//! Objects of version v1, of the training operator, have the same shape and run in the same way.
//! [`plan::plan`] decides each step, [`objects`] has the objects, [`keys`] the key pairs.

pub mod keys;
pub mod objects;
pub mod plan;
#[cfg(test)]
mod tests;
pub mod types;
pub mod validate;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::frameworks::MPIJob;
use berth_apimachinery::field;
use berth_runtime::{
    Action, Cache, Clock, Error, Index, Manager, ObjectKey, PlannedEvent, Reconciler, Recorder, Writer, Written,
    is_already_exists, is_controlled_by, message, owned_by,
};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::{Client, Resource, ResourceExt};
use parking_lot::Mutex;
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::json;

use self::objects::{Facts, OPERATOR};
use self::plan::{Ensure, LauncherChange, Plan, World, plan};
use self::types::{CONTROLLER_NAMES, Spec};
use crate::training::conditions::JobStatus;
use crate::training::metrics::JobMetrics;
use crate::training::objects::labels;
use crate::training::pod_groups::{PodGroups, Wanted};

/// Adds the controller to the manager. `gang_scheduler` starts all pods of a job together, by a
/// PodGroup. `metrics` counts the jobs.
pub fn install(manager: &mut Manager, gang_scheduler: Option<&str>, metrics: &JobMetrics) {
    let jobs = manager.cache_if_served::<MPIJob>();
    let (pods, services) = (manager.cache::<Pod>(), manager.cache::<Service>());
    let (configs, secrets, launchers) =
        (manager.cache::<ConfigMap>(), manager.cache::<Secret>(), manager.cache::<Job>());
    let controller = Controller {
        client: manager.client(),
        clock: manager.clock(),
        recorder: manager.recorder("mpi-job-controller"),
        jobs: jobs.clone(),
        classes: manager.cache(),
        pods_of_job: pods.index(|pod| job_of(pod).map(|key| key.to_string()).into_iter().collect()),
        gang_scheduler: gang_scheduler.map(str::to_owned),
        metrics: metrics.clone(),
        write: Writer::new(manager, &jobs),
        write_pod: Writer::new(manager, &pods),
        write_service: Writer::new(manager, &services),
        write_config: Writer::new(manager, &configs),
        write_secret: Writer::new(manager, &secrets),
        write_launcher: Writer::new(manager, &launchers),
        heard: Mutex::default(),
    };
    manager
        .controller("MPIJob")
        .watch_self(&jobs)
        .watch(&pods, |delta| {
            let pods = [delta.old.as_ref(), delta.new.as_ref()].into_iter().flatten();
            pods.filter_map(|pod| job_of(pod)).collect::<BTreeSet<_>>()
        })
        .watch_owned::<MPIJob, _>(&services)
        .watch_owned::<MPIJob, _>(&configs)
        .watch_owned::<MPIJob, _>(&secrets)
        .watch_owned::<MPIJob, _>(&launchers)
        .run(controller);
}

/// Key of the job that the labels of a worker or launcher pod name.
fn job_of(pod: &Pod) -> Option<ObjectKey> {
    let labels = pod.metadata.labels.as_ref()?;
    let name = labels.get(labels::JOB).filter(|_| labels.get(labels::OPERATOR).is_some_and(|it| it == OPERATOR))?;
    Some(ObjectKey::namespaced(pod.metadata.namespace.clone().unwrap_or_default(), name))
}

struct Controller {
    client: Client,
    clock: Clock,
    recorder: Recorder,
    jobs: Cache<MPIJob>,
    classes: Cache<PriorityClass>,
    pods_of_job: Index<Pod>,
    gang_scheduler: Option<String>,
    metrics: JobMetrics,
    write: Writer<MPIJob>,
    write_pod: Writer<Pod>,
    write_service: Writer<Service>,
    write_config: Writer<ConfigMap>,
    write_secret: Writer<Secret>,
    write_launcher: Writer<Job>,
    /// The last event about each job itself.
    heard: Mutex<BTreeMap<ObjectKey, PlannedEvent>>,
}

impl Reconciler for Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(job) = self.jobs.get(&key) else {
            self.heard.lock().remove(&key);
            self.metrics.launcher(&key.namespace, &objects::launcher_name(&key.name), false);
            return Ok(Action::Wait);
        };
        let manager = job.spec["runPolicy"]["managedBy"].as_str();
        let is_foreign = manager.is_some_and(|manager| !CONTROLLER_NAMES.contains(&manager));
        if is_foreign || job.metadata.deletion_timestamp.is_some() {
            return Ok(Action::Wait);
        }
        let errors = validate::validate(&key.name, &job.spec);
        let spec = if errors.is_empty() { Spec::read(&job.spec) } else { Err(field::aggregate(&errors)) };
        let spec = match spec {
            Ok(spec) => spec,
            Err(why) => {
                self.hear(&job, PlannedEvent::warning("ValidationError", format!("Found validation errors: {why}")));
                return Ok(Action::Wait);
            }
        };
        let facts = Facts { job: &job, spec: &spec, gang_scheduler: self.gang_scheduler.as_deref() };
        let stored = JobStatus::read(job.status.as_ref());
        let step = self.plan(&facts, &stored);
        self.apply(&facts, &stored, step).await
    }
}

impl Controller {
    fn plan(&self, facts: &Facts<'_>, stored: &JobStatus) -> Plan {
        let key = ObjectKey::of(facts.job);
        let uid = facts.job.uid().unwrap_or_default();
        let launcher = owned(self.write_launcher.cache(), facts, &facts.launcher_name());
        self.metrics.launcher(facts.namespace(), &facts.launcher_name(), launcher.is_some());
        let pods = self.pods_of_job.get(&key.to_string());
        let controlled = |by: &str, is_worker: bool| -> Vec<Arc<Pod>> {
            let pods = pods.iter().filter(|pod| plan::is_worker(pod) == is_worker);
            pods.filter(|pod| is_controlled_by(pod.as_ref(), by)).cloned().collect()
        };
        let launcher_uid = launcher.as_ref().and_then(|launcher| launcher.uid());
        let service = owned(self.write_service.cache(), facts, facts.name());
        let config = owned(self.write_config.cache(), facts, &facts.config_name());
        let secret = owned(self.write_secret.cache(), facts, &facts.secret_name());
        let world = World {
            launcher_pods: &launcher_uid.map(|uid| controlled(&uid, false)).unwrap_or_default(),
            workers: &controlled(&uid, true),
            launcher: launcher.as_deref(),
            service: service.as_deref(),
            config: config.as_deref(),
            secret: secret.as_deref(),
            priorities: &self.priorities(facts),
            now: self.clock.now(),
        };
        plan(facts, stored, &world)
    }

    /// Values of the priority classes that the templates name.
    fn priorities(&self, facts: &Facts<'_>) -> BTreeMap<String, i32> {
        if facts.gang_scheduler.is_none() {
            return BTreeMap::new();
        }
        let replicas = [Some(&facts.spec.launcher), facts.spec.worker.as_ref()];
        let pods = replicas.into_iter().flatten().filter_map(|replica| replica.template.spec.as_ref());
        let names = pods.filter_map(|pod| pod.priority_class_name.clone());
        names.filter_map(|name| Some((name.clone(), self.classes.get(&ObjectKey::cluster(name))?.value))).collect()
    }

    /// Records an event unless it was the last one about the job.
    fn hear(&self, job: &MPIJob, event: PlannedEvent) {
        if self.heard.lock().insert(ObjectKey::of(job), event.clone()).as_ref() != Some(&event) {
            event.record(&self.recorder, job);
        }
    }

    /// Carries out the plan. The status is written even if an object cannot be.
    async fn apply(&self, facts: &Facts<'_>, stored: &JobStatus, step: Plan) -> Result<Action, Error> {
        let written = self.write_objects(facts, &step).await;
        if step.status != *stored {
            let changed = MPIJob { status: Some(json!(step.status)), ..facts.job.clone() };
            self.write.replace_status(&changed).await?;
            self.metrics.mpi_changed(stored, &step.status);
        }
        step.events.iter().for_each(|event| event.record(&self.recorder, facts.job));
        written.map(|()| Action::Wait)
    }

    async fn write_objects(&self, facts: &Facts<'_>, step: &Plan) -> Result<(), Error> {
        self.ensure(facts, &self.write_service, &step.service).await?;
        self.ensure(facts, &self.write_config, &step.config).await?;
        if step.needs_keys {
            self.make_keys(facts).await?;
        }
        self.write_pod_group(facts, step).await?;
        for pod in &step.delete_workers {
            self.write_pod.delete(pod).await?;
        }
        for pod in &step.create_workers {
            let made = self.write_pod.create_owned(pod, facts.job).await;
            self.check(facts, pod, made, "worker pod created failed")?;
        }
        if let Some(launcher) = &step.create_launcher {
            let made = self.write_launcher.create_owned(launcher.as_ref(), facts.job).await;
            self.check(facts, launcher.as_ref(), made, "launcher pod created failed")?;
        }
        match &step.change_launcher {
            Some(change) => self.change_launcher(change).await,
            None => Ok(()),
        }
    }

    async fn change_launcher(&self, change: &LauncherChange) -> Result<(), Error> {
        let mut job = change.job.clone();
        if change.resets_start {
            // The template of a Job that has started cannot be changed.
            job.status.get_or_insert_default().start_time = None;
            self.write_launcher.replace_status(&job).await?;
            let key = ObjectKey::of(&job);
            let stored = self.write_launcher.cache().get(&key).and_then(|stored| stored.resource_version());
            job.metadata.resource_version = stored;
        }
        self.write_launcher.replace(&job).await?;
        Ok(())
    }

    async fn ensure<K: Written + Send + Sync>(
        &self,
        facts: &Facts<'_>,
        writer: &Writer<K>,
        wanted: &Ensure<K>,
    ) -> Result<(), Error> {
        match wanted {
            Ensure::Nothing => Ok(()),
            Ensure::Create(object) => {
                let made = writer.create_owned(object.as_ref(), facts.job).await;
                self.check(facts, object.as_ref(), made, "object created failed")
            }
            Ensure::Replace(object) => writer.replace(object).await.map(drop).map_err(Error::from),
        }
    }

    /// Records why an object could not be created.
    fn check<K: Resource<DynamicType = ()>>(
        &self,
        facts: &Facts<'_>,
        object: &K,
        made: kube::Result<()>,
        what: &str,
    ) -> Result<(), Error> {
        let Err(error) = made else { return Ok(()) };
        let event = if is_already_exists(&error) {
            let (name, kind) = (object.name_any(), K::kind(&()));
            let message = format!("Resource {name:?} of Kind {kind:?} already exists and is not managed by MPIJob");
            PlannedEvent::warning("ErrResourceExists", message)
        } else {
            PlannedEvent::warning("MPIJobFailed", format!("{what}: {}", message(&error)))
        };
        self.hear(facts.job, event);
        Err(error.into())
    }

    /// Creates the Secret with a new key pair, or completes one without keys.
    async fn make_keys(&self, facts: &Facts<'_>) -> Result<(), Error> {
        let mut seed = [0; keys::SEED_BYTES];
        SystemRandom::new()
            .fill(&mut seed)
            .map_err(|_| "cannot create the SSH key: the system provides no random numbers")?;
        let secret = objects::secret(facts, keys::from_seed(&seed)?);
        let known = owned(self.write_secret.cache(), facts, &facts.secret_name());
        let wanted = match known {
            Some(known) => Ensure::Replace(Box::new(Secret { data: secret.data, ..known.as_ref().clone() })),
            None => Ensure::Create(Box::new(secret)),
        };
        self.ensure(facts, &self.write_secret, &wanted).await
    }

    async fn write_pod_group(&self, facts: &Facts<'_>, step: &Plan) -> Result<(), Error> {
        if facts.gang_scheduler.is_none() || step.keeps_pod_group {
            return Ok(());
        }
        let groups = PodGroups::new(self.client.clone(), facts.namespace());
        let Some(spec) = &step.pod_group else {
            groups.delete(facts.name(), &facts.job.uid().unwrap_or_default()).await?;
            return Ok(());
        };
        let owner = owned_by(facts.job);
        let made = groups.ensure(facts.name(), Wanted { spec, annotations: None, owner: &owner }).await;
        if let Err(error) = &made {
            self.hear(
                facts.job,
                PlannedEvent::warning("FailedCreatePodGroup", format!("Error creating: {}", message(error))),
            );
        }
        made.map_err(Error::from)
    }
}

/// The object of this name, if the job controls it.
fn owned<K: Written + Send + Sync>(cache: &Cache<K>, facts: &Facts<'_>, name: &str) -> Option<Arc<K>> {
    let object = cache.get(&ObjectKey::namespaced(facts.namespace(), name))?;
    Some(object).filter(|object| is_controlled_by(object.as_ref(), &facts.job.uid().unwrap_or_default()))
}
