//! The RayCluster controller: the pods, Services and status of a Ray cluster.
//!
//! Each reconcile reads the cluster and its pods from the caches, creates the missing objects
//! ([`objects`]), carries out the plan for the pods ([`plan::plan`]), and writes the status
//! ([`status::next`]). Clusters whose `spec.managedBy` names another controller are ignored. A
//! cluster that breaks a rule ([`validate`]) gets an event, and its objects are not changed.

pub mod access;
pub mod facts;
pub mod groups;
pub mod ingress;
mod objects;
pub mod plan;
pub mod pod;
pub mod redis;
pub mod resources;
pub mod services;
pub mod status;
pub mod validate;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_api::frameworks::RayCluster;
use berth_runtime::{
    Action, Cache, Clock, Error, EventType, Index, Manager, ObjectKey, PlannedEvent, Reconciler, Recorder,
};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client};
use serde_json::json;

use self::facts::Facts;
use self::plan::{Failure, Plan};
use self::pod::NodeType;
use self::status::Observed;
use super::constants::{CLUSTER, CONTROLLER_NAME, NODE_TYPE, REDIS_FINALIZER, STORAGE_NAMESPACE};
use super::types::{RayClusterSpec, RayClusterStatus};

/// Adds the controller to the manager.
pub fn install(manager: &mut Manager) {
    let clusters = manager.cache_if_served::<RayCluster>();
    let pods = manager.cache::<Pod>();
    let services = manager.cache::<Service>();
    let jobs = manager.cache::<Job>();
    let controller = ClusterController {
        client: manager.client(),
        clock: manager.clock(),
        recorder: manager.recorder("raycluster-controller"),
        clusters: clusters.clone(),
        pods: pods.clone(),
        services: services.clone(),
        jobs: jobs.clone(),
        pods_of_cluster: pods.index(|pod: &Pod| cluster_of(pod).map(|key| key.to_string()).into_iter().collect()),
    };
    manager
        .controller("raycluster")
        .watch_self(&clusters)
        .watch(&pods, |delta| {
            let pods = [delta.old.as_ref(), delta.new.as_ref()].into_iter().flatten();
            pods.filter_map(|pod| cluster_of(pod)).collect::<BTreeSet<_>>()
        })
        .watch_owned::<RayCluster, _>(&services)
        .watch_owned::<RayCluster, _>(&jobs)
        .run(controller);
}

/// Key of the cluster that a Ray pod's labels name.
fn cluster_of(pod: &Pod) -> Option<ObjectKey> {
    let name = pod.metadata.labels.as_ref()?.get(CLUSTER)?;
    Some(ObjectKey::namespaced(pod.metadata.namespace.clone().unwrap_or_default(), name))
}

struct ClusterController {
    client: Client,
    clock: Clock,
    recorder: Recorder,
    clusters: Cache<RayCluster>,
    pods: Cache<Pod>,
    services: Cache<Service>,
    jobs: Cache<Job>,
    pods_of_cluster: Index<Pod>,
}

impl Reconciler for ClusterController {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(cluster) = self.clusters.get(&key) else { return Ok(Action::Wait) };
        let spec = match RayClusterSpec::read(&cluster.spec) {
            Ok(spec) => spec,
            Err(error) => {
                let message = format!("The RayCluster spec is invalid {key}: {error}");
                self.recorder.event(cluster.as_ref(), EventType::Warning, validate::INVALID_SPEC, &message);
                return Ok(Action::Wait);
            }
        };
        if spec.managed_by.as_deref().is_some_and(|manager| manager != CONTROLLER_NAME) {
            return Ok(Action::Wait);
        }
        let facts = Facts::new(&cluster, &spec);
        if cluster.metadata.deletion_timestamp.is_some() {
            return self.end(&cluster, &facts).await;
        }
        if let Err(invalid) = validate::validate(&facts) {
            self.recorder.event(cluster.as_ref(), EventType::Warning, invalid.reason, &invalid.message);
            return Ok(Action::Wait);
        }
        if needs_finalizer(&facts) && !has_finalizer(&cluster) {
            self.set_finalizer(&cluster, true).await?;
            return Ok(Action::Wait);
        }
        self.make(&cluster, &facts).await
    }
}

/// True if data outside of the cluster must be deleted with it.
fn needs_finalizer(facts: &Facts<'_>) -> bool {
    facts.is_fault_tolerant() && facts.embedded_store().is_none()
}

fn has_finalizer(cluster: &RayCluster) -> bool {
    cluster.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == REDIS_FINALIZER)
}

impl ClusterController {
    fn record(&self, cluster: &RayCluster, event: &PlannedEvent) {
        event.record(&self.recorder, cluster);
    }

    fn api<K>(&self, cluster: &RayCluster) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), cluster.metadata.namespace.as_deref().unwrap_or_default())
    }

    /// The pods of the cluster, ordered by name. Pods with another controller do not count: a
    /// deleted cluster of the same name may have left pods behind, and the clean-up's pod belongs
    /// to its Job.
    fn pods(&self, cluster: &RayCluster) -> Vec<Arc<Pod>> {
        let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
        let mut pods = self.pods_of_cluster.get(&ObjectKey::of(cluster).to_string());
        pods.retain(|pod| {
            let owners = pod.metadata.owner_references.iter().flatten();
            let controller = owners.into_iter().find(|owner| owner.controller == Some(true));
            controller.is_none_or(|owner| owner.uid == uid)
        });
        pods
    }

    /// Creates the objects that the cluster lacks, carries out the plan for its pods, then writes
    /// the status.
    async fn make(&self, cluster: &RayCluster, facts: &Facts<'_>) -> Result<Action, Error> {
        let old = RayClusterStatus::read(cluster.status.as_ref());
        let made = self.make_objects(cluster, facts).await;
        let mut failure = None;
        let mut is_settled = made.is_ok();
        let mut error = made.err();
        if error.is_none() {
            // Replicas that are created at different times must have different names.
            let nonce = self.clock.now().as_nanosecond().to_string();
            let plan = plan::plan(facts, cluster, &old, &self.pods(cluster), &nonce);
            is_settled = !plan.is_interim;
            if let Err((what, why)) = self.apply(cluster, plan).await {
                is_settled = false;
                failure = Some((what, without_drawn_name(&berth_runtime::message(&why))));
                error = Some(why.into());
            }
        }
        let service = self.services.get(&ObjectKey::namespaced(facts.namespace, facts.head_service()));
        let observed = Observed {
            facts,
            generation: cluster.metadata.generation,
            pods: &self.pods(cluster),
            head_service: service.as_deref(),
            failure,
            is_settled,
            now: self.clock.now(),
        };
        let status = status::next(&observed, &old);
        if status != old {
            self.write_status(cluster, &status).await?;
        }
        error.map_or(Ok(Action::Wait), Err)
    }

    /// Carries out the plan. Stops at the first write that fails.
    async fn apply(&self, cluster: &RayCluster, plan: Plan) -> Result<(), (Failure, kube::Error)> {
        for removal in &plan.delete {
            if let Err(error) = self.delete_pod(cluster, &removal.pod).await {
                let why = berth_runtime::message(&error);
                let message = format!("Failed deleting Pod {}, {why}", ObjectKey::of(removal.pod.as_ref()));
                self.record(cluster, &PlannedEvent::warning(removal.failure.event(), message));
                return Err((removal.failure, error));
            }
            if let Some(event) = &removal.event {
                self.record(cluster, event);
            }
        }
        let pods: Api<Pod> = self.api(cluster);
        for creation in &plan.create {
            let (failure, reason, what) = match creation.node_type {
                NodeType::Head => (Failure::CreateHeadPod, "CreatedHeadPod", "head"),
                NodeType::Worker => (Failure::CreateWorkerPod, "CreatedWorkerPod", "worker"),
            };
            match berth_runtime::write::create(&pods, &PostParams::default(), &creation.pod).await {
                Ok(created) => {
                    let message = format!("Created {what} Pod {}", ObjectKey::of(&created));
                    self.pods.observe(created);
                    self.record(cluster, &PlannedEvent::normal(reason, message));
                }
                Err(error) => {
                    let why = without_drawn_name(&berth_runtime::message(&error));
                    let message =
                        format!("Failed to create {what} Pod for the cluster {}, {why}", ObjectKey::of(cluster));
                    self.record(cluster, &PlannedEvent::warning(failure.event(), message));
                    return Err((failure, error));
                }
            }
        }
        plan.events.iter().for_each(|event| self.record(cluster, event));
        Ok(())
    }

    async fn delete_pod(&self, cluster: &RayCluster, pod: &Pod) -> Result<(), kube::Error> {
        let pods: Api<Pod> = self.api(cluster);
        let preconditions = Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match berth_runtime::write::delete(&pods, plan::name(pod), &params).await {
            Ok(answer) => {
                match answer {
                    Some(going) => self.pods.observe(going),
                    None => self.pods.observe_deleted(pod),
                }
                Ok(())
            }
            Err(error) if berth_runtime::is_not_found(&error) => {
                self.pods.observe_deleted(pod);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    async fn write_status(&self, cluster: &RayCluster, status: &RayClusterStatus) -> Result<(), Error> {
        let changed = RayCluster { status: Some(serde_json::to_value(status)?), ..cluster.clone() };
        let name = cluster.metadata.name.as_deref().unwrap_or_default();
        let clusters: Api<RayCluster> = self.api(cluster);
        let stored = berth_runtime::write::replace_status(&clusters, name, &PostParams::default(), &changed).await?;
        self.clusters.observe(stored);
        Ok(())
    }

    /// Adds or removes the finalizer.
    async fn set_finalizer(&self, cluster: &RayCluster, is_wanted: bool) -> Result<(), Error> {
        let mut finalizers = cluster.metadata.finalizers.clone().unwrap_or_default();
        finalizers.retain(|finalizer| finalizer != REDIS_FINALIZER);
        if is_wanted {
            finalizers.push(REDIS_FINALIZER.to_owned());
        }
        let version = cluster.metadata.resource_version.clone();
        let patch = json!({"metadata": {"finalizers": finalizers, "resourceVersion": version}});
        let name = cluster.metadata.name.as_deref().unwrap_or_default();
        let clusters: Api<RayCluster> = self.api(cluster);
        let stored =
            berth_runtime::write::patch(&clusters, name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        self.clusters.observe(stored);
        Ok(())
    }

    /// Completes the deletion of a cluster. The garbage collector deletes the objects that the
    /// cluster owns. A Job deletes the data in Redis, once there is no head that could write to it.
    async fn end(&self, cluster: &RayCluster, facts: &Facts<'_>) -> Result<Action, Error> {
        if !has_finalizer(cluster) {
            return Ok(Action::Wait);
        }
        if !needs_finalizer(facts) || validate::validate(facts).is_err() {
            self.set_finalizer(cluster, false).await?;
            return Ok(Action::Wait);
        }
        let pods = self.pods(cluster);
        let mut plan = Plan::default();
        plan.delete_all(&pods, Failure::DeleteAllPods);
        self.apply(cluster, plan).await.map_err(|(_, error)| error)?;
        let deleted_at = cluster.metadata.deletion_timestamp.as_ref().map(|time| time.0);
        let now = self.clock.now();
        let left = redis::left(facts, deleted_at.unwrap_or(now), now);
        if left.is_negative() || left.is_zero() {
            self.set_finalizer(cluster, false).await?;
            let message = format!(
                "Force-removed GCS FT finalizer after {}s due to Redis cleanup timeout; Redis storage namespace {:?} \
                 may need manual cleanup",
                redis::timeout(facts).as_secs(),
                facts.annotations.get(STORAGE_NAMESPACE).map_or(facts.uid, String::as_str)
            );
            self.record(cluster, &PlannedEvent::warning("ForceDeletedStuckCluster", message));
            return Ok(Action::Wait);
        }
        let wait = Action::After(left.unsigned_abs());
        if pods.iter().any(|pod| plan::label(pod, NODE_TYPE) == NodeType::Head.as_str()) {
            return Ok(wait);
        }
        let key = ObjectKey::namespaced(facts.namespace, redis::job_name(facts.name));
        match self.jobs.get(&key) {
            Some(job) if redis::has_ended(&job) => self.set_finalizer(cluster, false).await?,
            Some(_) => {}
            None => self.start_clean_up(cluster, facts).await?,
        }
        Ok(wait)
    }

    async fn start_clean_up(&self, cluster: &RayCluster, facts: &Facts<'_>) -> Result<(), Error> {
        let jobs: Api<Job> = self.api(cluster);
        let job = redis::job(facts);
        let key = ObjectKey::of(&job);
        match berth_runtime::write::create(&jobs, &PostParams::default(), &job).await {
            Ok(created) => {
                self.jobs.observe(created);
                let message = format!("Created Redis cleanup Job {key}");
                self.record(cluster, &PlannedEvent::normal("CreatedRedisCleanupJob", message));
                Ok(())
            }
            Err(error) if berth_runtime::is_already_exists(&error) => Ok(()),
            Err(error) => {
                let message = format!("Failed to create Redis cleanup Job {key}, {}", berth_runtime::message(&error));
                self.record(cluster, &PlannedEvent::warning("FailedToCreateRedisCleanupJob", message));
                Err(error.into())
            }
        }
    }
}

/// A message about a rejected pod, without the random end of the pod's name, which the API server
/// draws anew at each attempt. The message is written to the status. If it differed at each
/// attempt, each write of the status would trigger the next attempt.
fn without_drawn_name(message: &str) -> String {
    const BEFORE: &str = "pods \"";
    const DRAWN: usize = 5;
    let Some((before, rest)) = message.split_once(BEFORE) else { return message.to_owned() };
    let Some((name, after)) = rest.split_once('"') else { return message.to_owned() };
    match name.len().checked_sub(DRAWN).filter(|end| name.is_char_boundary(*end)) {
        Some(end) if name[..end].ends_with('-') => format!("{before}{BEFORE}{}\"{after}", &name[..end]),
        _ => message.to_owned(),
    }
}
