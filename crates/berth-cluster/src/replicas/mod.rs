//! The controllers of kube-controller-manager that keep pods of a template running: ReplicaSets,
//! ReplicationControllers, Deployments, StatefulSets and DaemonSets.
//!
//! Each module has a pure function that plans the next writes, and a controller that applies them.
//! Written objects go into the caches at once, so that no pod is created twice. Not implemented:
//! adopting ControllerRevisions by selector.

pub mod claims;
pub mod daemon_set;
pub mod deployment;
mod proportional;
pub mod replica_set;
pub mod retention;
pub mod revisions;
pub mod stateful_set;

use berth_runtime::{Cache, Error, Manager};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec, ReplicationController};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};

use crate::job::facts::{is_deleted, is_terminated};
use crate::random;

/// Adds the controllers to the manager.
pub fn install(manager: &mut Manager) {
    replica_set::install::<ReplicaSet>(manager);
    replica_set::install::<ReplicationController>(manager);
    deployment::install(manager);
    stateful_set::install(manager);
    daemon_set::install(manager);
}

/// The owner reference that makes `owner` an object's controller.
pub(crate) fn owned_by<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: owner.name_any(),
        uid: owner.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// True if the object's controller has this UID.
pub(crate) fn is_controlled_by(object: &impl Resource, uid: &str) -> bool {
    let mut owners = object.owner_references().iter();
    owners.any(|owner| owner.controller == Some(true) && owner.uid == uid)
}

/// Hash of a pod template, as a name suffix.
fn template_hash(template: &PodTemplateSpec) -> String {
    random::suffix(0, &[&json!(template).to_string()], 10)
}

/// The pod of a template, controlled by `owner`. It has no name yet.
fn pod_of<K: Resource<DynamicType = ()>>(owner: &K, template: &PodTemplateSpec) -> Pod {
    let metadata = template.metadata.clone().unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            namespace: owner.namespace(),
            labels: metadata.labels,
            annotations: metadata.annotations,
            finalizers: metadata.finalizers,
            owner_references: Some(vec![owned_by(owner)]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// True if the pod has neither terminated nor been deleted.
fn is_active(pod: &Pod) -> bool {
    !is_terminated(pod) && !is_deleted(pod)
}

/// When the pod last became ready; `None` if it is not ready.
fn ready_since(pod: &Pod) -> Option<jiff::Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|it| it.type_ == "Ready" && it.status == "True")?;
    Some(ready.last_transition_time.as_ref().map_or(jiff::Timestamp::UNIX_EPOCH, |time| time.0))
}

/// Time until a pod that became ready at `ready` counts as available; zero if it already does.
fn time_until_available(ready: jiff::Timestamp, min_ready_seconds: i32, now: jiff::Timestamp) -> std::time::Duration {
    let at = ready.checked_add(jiff::SignedDuration::from_secs(i64::from(min_ready_seconds))).unwrap_or(ready);
    std::time::Duration::try_from(at.duration_since(now)).unwrap_or_default()
}

/// Writes objects of one kind, and puts the written object into the cache at once.
pub(crate) struct Writer<K> {
    client: Client,
    cache: Cache<K>,
}

impl<K> Writer<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::Serialize
        + serde::de::DeserializeOwned
        + 'static,
{
    pub(crate) fn new(manager: &Manager, cache: &Cache<K>) -> Self {
        Writer { client: manager.client(), cache: cache.clone() }
    }

    pub(crate) fn api(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub(crate) async fn create(&self, namespace: &str, object: &K) -> Result<K, kube::Error> {
        let made = berth_runtime::write::create(&self.api(namespace), &PostParams::default(), object).await?;
        self.cache.observe(made.clone());
        Ok(made)
    }

    /// Replaces an object; its `resourceVersion` must be current.
    pub(crate) async fn replace(&self, object: &K) -> Result<(), Error> {
        let api = self.api(&object.namespace().unwrap_or_default());
        let params = PostParams::default();
        self.cache.observe(berth_runtime::write::replace(&api, &object.name_any(), &params, object).await?);
        Ok(())
    }

    pub(crate) async fn replace_status(&self, object: &K) -> Result<(), Error> {
        let api = self.api(&object.namespace().unwrap_or_default());
        let params = PostParams::default();
        self.cache.observe(berth_runtime::write::replace_status(&api, &object.name_any(), &params, object).await?);
        Ok(())
    }

    /// Applies a strategic merge patch. Returns `None` if the object does not exist any more.
    pub(crate) async fn patch(&self, object: &K, patch: &Value) -> Result<Option<K>, Error> {
        let api = self.api(&object.namespace().unwrap_or_default());
        let patch = Patch::Strategic(patch);
        match berth_runtime::write::patch(&api, &object.name_any(), &PatchParams::default(), &patch).await {
            Ok(patched) => {
                self.cache.observe(patched.clone());
                Ok(Some(patched))
            }
            Err(error) if berth_runtime::is_not_found(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes the object, unless another one with the same name has replaced it.
    pub(crate) async fn delete(&self, object: &K) -> Result<(), Error> {
        let preconditions = Preconditions { uid: object.uid(), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        match self.api(&object.namespace().unwrap_or_default()).delete(&object.name_any(), &params).await {
            Ok(answer) => {
                // The API server returns the object while it terminates, or a Status once it is
                // deleted.
                match answer.left() {
                    Some(left) => self.cache.observe(left),
                    None => self.cache.observe_deleted(object),
                }
                Ok(())
            }
            Err(error) if berth_runtime::is_not_found(&error) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
