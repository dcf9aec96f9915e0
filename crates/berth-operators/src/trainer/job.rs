//! The controller of TrainJobs: the JobSet of a job and the objects that it needs, and the status.

use std::sync::Arc;

use berth_api::frameworks::{ClusterTrainingRuntime, TrainJob, TrainingRuntime};
use berth_api::jobset::v1alpha2::JobSet;
use berth_runtime::{
    Action, Cache, Clock, Error, EventType, Manager, ObjectKey, Reconciler, Recorder, Writer, is_controlled_by,
    is_not_found, message,
};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt};
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::{Value, json};

use super::build::{Built, build};
use super::constants::FIELD_MANAGER;
use super::policy::{secret_name, ssh_secret_keys};
use super::snapshot;
use super::status::{self, Deadline};
use super::types::{RuntimeKind, TrainJobSpec, TrainJobStatus};
use crate::mpi::keys;

/// Reason of the event of a job whose objects cannot be made.
const FAILED_CREATE: &str = "TrainJobResourcesCreationFailed";

/// Adds the controller to the manager.
pub fn install(manager: &mut Manager) {
    let jobs = manager.cache_if_served::<TrainJob>();
    let jobsets = manager.cache_if_served::<JobSet>();
    let runtimes = manager.cache_if_served::<TrainingRuntime>();
    let cluster_runtimes = manager.cache_if_served::<ClusterTrainingRuntime>();
    let controller = JobController {
        client: manager.client(),
        clock: manager.clock(),
        recorder: manager.recorder("trainjob-controller"),
        write: Writer::new(manager, &jobs),
        write_jobset: Writer::new(manager, &jobsets),
        runtimes: runtimes.clone(),
        cluster_runtimes: cluster_runtimes.clone(),
    };
    let by_runtime = jobs.index(|job: &TrainJob| runtime_key(job).map(|key| key.to_string()).into_iter().collect());
    let of_cluster = by_runtime.clone();
    manager
        .controller("trainjob")
        .watch_self(&jobs)
        .watch_owned::<TrainJob, _>(&jobsets)
        .watch(&runtimes, move |delta| by_runtime.keys(&ObjectKey::of(delta.latest().as_ref()).to_string()))
        .watch(&cluster_runtimes, move |delta| of_cluster.keys(&ObjectKey::of(delta.latest().as_ref()).to_string()))
        .run(controller);
}

/// Key of the runtime that a job refers to.
fn runtime_key(job: &TrainJob) -> Option<ObjectKey> {
    let reference = TrainJobSpec::read(&job.spec).ok()?.runtime_ref;
    Some(match reference.kind().ok()? {
        RuntimeKind::Cluster => ObjectKey::cluster(reference.name),
        RuntimeKind::Namespaced => {
            ObjectKey::namespaced(job.metadata.namespace.clone().unwrap_or_default(), reference.name)
        }
    })
}

struct JobController {
    client: Client,
    clock: Clock,
    recorder: Recorder,
    runtimes: Cache<TrainingRuntime>,
    cluster_runtimes: Cache<ClusterTrainingRuntime>,
    write: Writer<TrainJob>,
    write_jobset: Writer<JobSet>,
}

impl Reconciler for JobController {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(job) = self.write.cache().get(&key) else { return Ok(Action::Wait) };
        if job.metadata.deletion_timestamp.is_some() {
            return Ok(Action::Wait);
        }
        let spec = match TrainJobSpec::read(&job.spec) {
            Ok(spec) if spec.is_managed_elsewhere() => return Ok(Action::Wait),
            Ok(spec) => spec,
            Err(error) => {
                self.warn(&job, &format!("the spec of TrainJob {key} is invalid: {error}"));
                return Ok(Action::Wait);
            }
        };
        self.advance(&job, &spec).await
    }
}

impl JobController {
    fn warn(&self, job: &TrainJob, why: &str) {
        let message = format!("TrainJob resources reconciliation failed: {why}");
        self.recorder.event(job, EventType::Warning, FAILED_CREATE, &message);
    }

    async fn advance(&self, job: &TrainJob, spec: &TrainJobSpec) -> Result<Action, Error> {
        let old = TrainJobStatus::read(job.status.as_ref());
        let now = self.clock.now();
        let mut status = old.clone();
        let mut failure = None;
        match spec.runtime_ref.kind() {
            Err(why) => status = status::failed(&status, "TrainingRuntimeNotSupported", &why, now),
            Ok(kind) if !status.is_finished() => failure = self.make(job, spec, kind).await.err(),
            Ok(_) => {}
        }
        if let Some(error) = &failure {
            let api = error.downcast_ref::<kube::Error>();
            self.warn(job, &api.map_or_else(|| error.to_string(), message));
        }
        status = status::next(spec, self.jobset(job).as_deref(), &status, now);
        let created = job.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let deadline = status::deadline(spec, &status, created, self.clock.now());
        if deadline == Deadline::Passed {
            status = status::expired(&status, now);
        }
        if status != old {
            let mut changed = job.clone();
            changed.status = Some(json!(status));
            self.write.replace_status(&changed).await?;
        }
        // The status is written first: a JobSet of a job that has failed is not made again.
        if deadline == Deadline::Passed
            && let Some(jobset) = self.jobset(job)
        {
            self.write_jobset.delete(&jobset).await?;
        }
        match (failure, deadline) {
            (Some(error), _) => Err(error),
            (None, Deadline::In(left)) => Ok(Action::After(left)),
            (None, _) => Ok(Action::Wait),
        }
    }

    /// The JobSet that the job controls.
    fn jobset(&self, job: &TrainJob) -> Option<Arc<JobSet>> {
        let jobset = self.write_jobset.cache().get(&ObjectKey::of(job))?;
        is_controlled_by(jobset.as_ref(), job.metadata.uid.as_deref().unwrap_or_default()).then_some(jobset)
    }

    /// Makes what the job lacks. A JobSet that runs is left alone.
    async fn make(&self, job: &TrainJob, spec: &TrainJobSpec, kind: RuntimeKind) -> Result<(), Error> {
        let jobset = self.jobset(job);
        let runs = jobset.as_ref().is_some_and(|jobset| jobset.spec.suspend != Some(true));
        if runs && !spec.suspend {
            return Ok(());
        }
        let runtime = self.runtime(job, spec, kind).await?;
        let built = build(job, spec, &runtime)?;
        self.apply(job, spec, built).await
    }

    async fn apply(&self, job: &TrainJob, spec: &TrainJobSpec, built: Built) -> Result<(), Error> {
        if let Some(hosts) = &built.hostfile {
            self.make_keys(job).await?;
            self.apply_map(job, hosts).await?;
        }
        if let Some(group) = &built.pod_group {
            self.apply_group(job, spec, group).await?;
        }
        self.write_jobset.apply(&built.jobset, FIELD_MANAGER).await?;
        Ok(())
    }

    fn maps(&self, job: &TrainJob) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &job.namespace().unwrap_or_default())
    }

    async fn apply_map(&self, job: &TrainJob, map: &Value) -> Result<(), Error> {
        let name = map["metadata"]["name"].as_str().unwrap_or_default();
        let params = PatchParams::apply(FIELD_MANAGER).force();
        berth_runtime::write::patch(&self.maps(job), name, &params, &Patch::Apply(map)).await?;
        Ok(())
    }

    /// The spec of the runtime: that of the snapshot, which the first call makes.
    async fn runtime(&self, job: &TrainJob, spec: &TrainJobSpec, kind: RuntimeKind) -> Result<Value, Error> {
        if let Some(map) = self.maps(job).get_opt(&snapshot::name(job)).await? {
            return Ok(snapshot::read(job, &spec.runtime_ref, &map)?);
        }
        let name = &spec.runtime_ref.name;
        let namespace = job.namespace().unwrap_or_default();
        let found = match kind {
            RuntimeKind::Namespaced => {
                self.runtimes.get(&ObjectKey::namespaced(namespace, name)).map(|runtime| runtime.spec.clone())
            }
            RuntimeKind::Cluster => {
                self.cluster_runtimes.get(&ObjectKey::cluster(name)).map(|runtime| runtime.spec.clone())
            }
        };
        let Some(runtime) = found else {
            let kind = kind.as_str();
            return Err(format!("spec.runtimeRef: {kind} {name:?} not found; create it to run the job").into());
        };
        self.apply_map(job, &snapshot::write(job, kind, name, &runtime)?).await?;
        Ok(runtime)
    }

    /// Creates the Secret with the SSH keys, which never change.
    async fn make_keys(&self, job: &TrainJob) -> Result<(), Error> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &job.namespace().unwrap_or_default());
        let name = secret_name(&job.name_any());
        if secrets.get_metadata_opt(&name).await?.is_some() {
            return Ok(());
        }
        let mut seed = [0; keys::SEED_BYTES];
        SystemRandom::new()
            .fill(&mut seed)
            .map_err(|_| "cannot create the SSH key: the system provides no random numbers")?;
        let pair = keys::from_seed(&seed)?;
        let names = ssh_secret_keys().map(str::to_owned);
        let values = [pair.private, pair.public].map(|text| ByteString(text.into_bytes()));
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: job.namespace(),
                owner_references: Some(vec![berth_runtime::owned_by(job)]),
                ..ObjectMeta::default()
            },
            type_: Some("kubernetes.io/ssh-auth".to_owned()),
            data: Some(names.into_iter().zip(values).collect()),
            immutable: Some(true),
            ..Secret::default()
        };
        berth_runtime::write::create_unread(&secrets, &PostParams::default(), &secret).await?;
        Ok(())
    }

    /// Applies the PodGroup of a new or suspended job.
    async fn apply_group(&self, job: &TrainJob, spec: &TrainJobSpec, group: &Value) -> Result<(), Error> {
        let kind = GroupVersionKind::gvk("scheduling.x-k8s.io", "v1alpha1", "PodGroup");
        let resource = ApiResource::from_gvk(&kind);
        let groups: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &job.namespace().unwrap_or_default(), &resource);
        let name = job.name_any();
        if !spec.suspend && groups.get_metadata_opt(&name).await?.is_some() {
            return Ok(());
        }
        let params = PatchParams::apply(FIELD_MANAGER).force();
        match berth_runtime::write::patch(&groups, &name, &params, &Patch::Apply(group)).await {
            Ok(_) => Ok(()),
            Err(error) if is_not_found(&error) => {
                let why = "podGroupPolicy.coscheduling needs the kind PodGroup of scheduling.x-k8s.io/v1alpha1, which \
                           the cluster does not have";
                Err(why.into())
            }
            Err(error) => Err(error.into()),
        }
    }
}
