//! The controller of a training kind: reads a job and its objects from the caches, and carries out
//! the plan.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_runtime::{
    Action, Cache, Clock, Error, Index, Manager, ObjectKey, PlannedEvent, Reconciler, Recorder, Writer, Written,
    is_controlled_by, message,
};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::ObjectMeta;
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;

use super::conditions::JobStatus;
use super::framework::{API_VERSION, Kind};
use super::metrics::JobMetrics;
use super::objects;
use super::plan::{Plan, World, plan};
use super::pod_groups::{PodGroups, Wanted};
use super::types::{Job, Spec};

/// Value of `runPolicy.managedBy` of jobs that this operator reconciles.
pub const CONTROLLER_NAME: &str = "kubeflow.org/training-operator";

/// Caches that the controllers of all kinds share.
pub struct Shared {
    pods: Cache<Pod>,
    services: Cache<Service>,
    autoscalers: Cache<HorizontalPodAutoscaler>,
    classes: Cache<PriorityClass>,
    pods_of_job: Index<Pod>,
    services_of_job: Index<Service>,
    gang_scheduler: Option<String>,
    metrics: JobMetrics,
}

impl Shared {
    /// The caches of this manager.
    pub fn new(manager: &mut Manager, gang_scheduler: Option<&str>, metrics: &JobMetrics) -> Self {
        let (pods, services) = (manager.cache::<Pod>(), manager.cache::<Service>());
        Self {
            pods_of_job: pods.index(|pod| owner_value(&pod.metadata)),
            services_of_job: services.index(|service| owner_value(&service.metadata)),
            pods,
            services,
            autoscalers: manager.cache(),
            classes: manager.cache(),
            gang_scheduler: gang_scheduler.map(str::to_owned),
            metrics: metrics.clone(),
        }
    }
}

/// Index value of an object that a training job controls: kind, namespace and name of the job.
fn owner_value(metadata: &ObjectMeta) -> Vec<String> {
    let owners = metadata.owner_references.iter().flatten();
    let owner = owners.into_iter().find(|owner| owner.controller == Some(true) && owner.api_version == API_VERSION);
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    owner.map(|owner| job_value(&owner.kind, namespace, &owner.name)).into_iter().collect()
}

fn job_value(kind: &str, namespace: &str, name: &str) -> String {
    format!("{kind}/{namespace}/{name}")
}

/// Adds the controller of a kind to the manager.
pub fn install<K: Kind>(manager: &mut Manager, shared: &Shared) {
    let jobs = manager.cache_if_served::<K>();
    let controller = Controller {
        client: manager.client(),
        clock: manager.clock(),
        recorder: manager.recorder(K::FRAMEWORK.controller),
        jobs: jobs.clone(),
        classes: shared.classes.clone(),
        pods_of_job: shared.pods_of_job.clone(),
        services_of_job: shared.services_of_job.clone(),
        gang_scheduler: shared.gang_scheduler.clone(),
        metrics: shared.metrics.clone(),
        write: Writer::new(manager, &jobs),
        write_pod: Writer::new(manager, &shared.pods),
        write_service: Writer::new(manager, &shared.services),
        write_autoscaler: Writer::new(manager, &shared.autoscalers),
        heard: Mutex::default(),
    };
    manager
        .controller(K::FRAMEWORK.kind)
        .watch_self(&jobs)
        .watch_owned::<K, _>(&shared.pods)
        .watch_owned::<K, _>(&shared.services)
        .watch_owned::<K, _>(&shared.autoscalers)
        .run(controller);
}

struct Controller<K> {
    client: Client,
    clock: Clock,
    recorder: Recorder,
    jobs: Cache<K>,
    classes: Cache<PriorityClass>,
    pods_of_job: Index<Pod>,
    services_of_job: Index<Service>,
    gang_scheduler: Option<String>,
    metrics: JobMetrics,
    write: Writer<K>,
    write_pod: Writer<Pod>,
    write_service: Writer<Service>,
    write_autoscaler: Writer<HorizontalPodAutoscaler>,
    /// Events about the state of each job's pods that are recorded already. A restarted operator
    /// records them again.
    heard: Mutex<BTreeMap<ObjectKey, BTreeSet<PlannedEvent>>>,
}

impl<K: Kind> Reconciler for Controller<K> {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(object) = self.jobs.get(&key) else {
            self.heard.lock().remove(&key);
            return Ok(Action::Wait);
        };
        if object.meta().deletion_timestamp.is_some() {
            return Ok(Action::Wait);
        }
        let framework = K::FRAMEWORK;
        let manager = object.spec()["runPolicy"]["managedBy"].as_str();
        if manager.is_some_and(|manager| manager != CONTROLLER_NAME) {
            return Ok(Action::Wait);
        }
        let spec = match Spec::read(framework, object.spec()) {
            Ok(spec) => spec,
            Err(why) => {
                self.hear(&key, object.as_ref(), vec![self.invalid(&key, &why)]);
                return Ok(Action::Wait);
            }
        };
        let job = Job { framework, metadata: object.meta(), spec: &spec };
        let uid = object.uid().unwrap_or_default();
        let value = job_value(framework.kind, &key.namespace, &key.name);
        let (pods, services) = (owned(&self.pods_of_job, &value, &uid), owned(&self.services_of_job, &value, &uid));
        let stored = JobStatus::read(object.status());
        let world = World {
            pods: &pods,
            services: &services,
            gang_scheduler: self.gang_scheduler.as_deref(),
            priorities: &self.priorities(&spec),
            now: self.clock.now(),
        };
        let step = plan(&job, &stored, &world);
        self.apply(&object, &job, &stored, step).await
    }
}

/// The objects with this index value that the object with this UID controls.
fn owned<T: Written + Send + Sync>(index: &Index<T>, value: &str, uid: &str) -> Vec<Arc<T>> {
    let mut objects = index.get(value);
    // A deleted job of the same name may have left objects behind.
    objects.retain(|object| is_controlled_by(object.as_ref(), uid));
    objects
}

impl<K: Kind> Controller<K> {
    fn invalid(&self, key: &ObjectKey, why: &str) -> PlannedEvent {
        let kind = K::FRAMEWORK.kind;
        PlannedEvent::warning(K::FRAMEWORK.reason("FailedValidation"), format!("{kind} {key} cannot run: {why}"))
    }

    /// Records the events that the last step did not record.
    fn hear(&self, key: &ObjectKey, object: &K, events: Vec<PlannedEvent>) {
        let events: BTreeSet<PlannedEvent> = events.into_iter().collect();
        let before = self.heard.lock().insert(key.clone(), events.clone()).unwrap_or_default();
        events.difference(&before).for_each(|event| event.record(&self.recorder, object));
    }

    /// Values of the priority classes that the templates name.
    fn priorities(&self, spec: &Spec) -> BTreeMap<String, i32> {
        if self.gang_scheduler.is_none() {
            return BTreeMap::new();
        }
        let pods = spec.replicas.iter().filter_map(|replica| replica.template.spec.as_ref());
        let names = pods.filter_map(|pod| pod.priority_class_name.clone());
        names
            .filter_map(|name| {
                let class = self.classes.get(&ObjectKey::cluster(&name))?;
                Some((name, class.value))
            })
            .collect()
    }

    /// Carries out the plan. The status is written even if an object cannot be.
    async fn apply(&self, object: &K, job: &Job<'_>, stored: &JobStatus, step: Plan) -> Result<Action, Error> {
        let key = ObjectKey::of(object);
        let mut state = step.abnormal.clone();
        state.extend(step.broken.as_ref().map(|why| self.invalid(&key, why)));
        self.hear(&key, object, state);
        let written = self.write_objects(object, job, &step).await;
        if step.status != *stored {
            self.write.replace_status(&object.with_status(json!(step.status))).await?;
            self.metrics.changed(job.namespace(), job.framework.name, stored, &step.status);
        }
        step.events.iter().for_each(|event| event.record(&self.recorder, object));
        written?;
        if step.delete_job {
            self.write.delete(object).await?;
            self.metrics.deleted(job.namespace(), job.framework.name);
            self.record(object, PlannedEvent::normal("SuccessfulDeleteJob", format!("Deleted job: {}", job.name())));
        }
        Ok(step.after.map_or(Action::Wait, Action::After))
    }

    fn record(&self, object: &K, event: PlannedEvent) {
        event.record(&self.recorder, object);
    }

    async fn write_objects(&self, object: &K, job: &Job<'_>, step: &Plan) -> Result<(), Error> {
        for pod in &step.delete_pods {
            let deleted = self.write_pod.delete(pod).await;
            self.report(object, ("Delete", "Pod"), &pod.name_any(), &deleted);
            deleted?;
        }
        for service in &step.delete_services {
            let deleted = self.write_service.delete(service).await;
            self.report(object, ("Delete", "Service"), &service.name_any(), &deleted);
            deleted?;
        }
        self.write_pod_group(object, job, step).await?;
        for service in &step.create_services {
            let made = self.write_service.create_owned(service, object).await;
            self.report(object, ("Create", "Service"), &service.name_any(), &made);
            made?;
        }
        for pod in &step.create_pods {
            let made = self.write_pod.create_owned(pod, object).await;
            self.report(object, ("Create", "Pod"), &pod.name_any(), &made);
            made?;
        }
        self.write_autoscaler(object, step).await
    }

    /// Records what became of a write, in the words of Kubernetes' own controllers.
    fn report(&self, object: &K, (verb, kind): (&str, &str), name: &str, outcome: &kube::Result<()>) {
        let stem = verb.trim_end_matches('e');
        let event = match outcome {
            Ok(()) => PlannedEvent::normal(
                format!("Successful{verb}{kind}"),
                format!("{stem}ed {}: {name}", kind.to_lowercase()),
            ),
            Err(error) => PlannedEvent::warning(
                format!("Failed{verb}{kind}"),
                format!("Error {}ing: {}", stem.to_lowercase(), message(error)),
            ),
        };
        self.record(object, event);
    }

    async fn write_pod_group(&self, object: &K, job: &Job<'_>, step: &Plan) -> Result<(), Error> {
        if self.gang_scheduler.is_none() {
            return Ok(());
        }
        let groups = PodGroups::new(self.client.clone(), job.namespace());
        if let Some(spec) = &step.pod_group {
            let (owner, annotations) = (objects::owner(job), objects::group_annotations(job));
            let wanted = Wanted { spec, annotations: annotations.as_ref(), owner: &owner };
            let made = groups.ensure(job.name(), wanted).await;
            if made.is_err() {
                self.report(object, ("Create", "PodGroup"), job.name(), &made);
            }
            made?;
        } else if groups.delete(job.name(), &object.uid().unwrap_or_default()).await? {
            let message = format!("Deleted PodGroup: {}", job.name());
            self.record(object, PlannedEvent::normal("SuccessfulDeletePodGroup", message));
        }
        Ok(())
    }

    async fn write_autoscaler(&self, object: &K, step: &Plan) -> Result<(), Error> {
        let known = self.write_autoscaler.cache().get(&ObjectKey::of(object));
        let known = known.filter(|it| is_controlled_by(it.as_ref(), &object.uid().unwrap_or_default()));
        match (&step.autoscaler, known) {
            (Some(wanted), None) => self.write_autoscaler.create_owned(wanted, object).await?,
            (Some(wanted), Some(known)) => {
                let same = |a: &HorizontalPodAutoscaler, b: &HorizontalPodAutoscaler| {
                    let parts = |it: &HorizontalPodAutoscaler| {
                        it.spec.clone().map(|spec| (spec.min_replicas, spec.max_replicas, spec.metrics))
                    };
                    parts(a) == parts(b)
                };
                if !same(wanted, &known) {
                    let changed = HorizontalPodAutoscaler { spec: wanted.spec.clone(), ..known.as_ref().clone() };
                    self.write_autoscaler.replace(&changed).await?;
                }
            }
            (None, Some(known)) if known.metadata.deletion_timestamp.is_none() => {
                self.write_autoscaler.delete(&known).await?;
            }
            (None, _) => {}
        }
        Ok(())
    }
}
