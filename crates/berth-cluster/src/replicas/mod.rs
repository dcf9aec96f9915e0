//! Objects that keep a number of pods running, as kube-controller-manager does: ReplicaSets, the Deployments that roll
//! from one to the next, and StatefulSets.
//!
//! Each has a pure plan of the next step and a controller that takes it; the answers of the API go into the caches, so
//! that no pod is made twice. What they leave out: adopting pods by selector, ControllerRevisions (a StatefulSet keeps no
//! template but its newest), deleting claims of pods that are scaled away (`whenScaled: Delete`).

pub mod deployment;
pub mod replica_set;
pub mod stateful_set;

use berth_runtime::{Cache, Error, Manager};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;

use crate::job::facts::{is_deleted, is_terminated};
use crate::random;

/// Adds the controllers to the manager.
pub fn install(manager: &mut Manager) {
    replica_set::install(manager);
    deployment::install(manager);
    stateful_set::install(manager);
}

/// The reference that makes `owner` the controller of what it makes.
fn owned_by<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: owner.name_any(),
        uid: owner.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Is the object controlled by the one with this UID?
fn is_controlled_by(object: &impl Resource, uid: &str) -> bool {
    let mut owners = object.owner_references().iter();
    owners.any(|owner| owner.controller == Some(true) && owner.uid == uid)
}

/// A name for a template: the same for the same template.
fn template_hash(template: &PodTemplateSpec) -> String {
    random::suffix(0, &[&json!(template).to_string()], 10)
}

/// A pod made of a template.
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

/// It runs or may still run.
fn is_alive(pod: &Pod) -> bool {
    !is_terminated(pod) && !is_deleted(pod)
}

/// Since when it has been ready without a break; nothing when it is not.
fn ready_since(pod: &Pod) -> Option<jiff::Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|it| it.type_ == "Ready" && it.status == "True")?;
    Some(ready.last_transition_time.as_ref().map_or(jiff::Timestamp::UNIX_EPOCH, |time| time.0))
}

/// How long until a ready pod counts as available; zero when it does.
fn until_available(ready: jiff::Timestamp, min_ready_seconds: i32, now: jiff::Timestamp) -> std::time::Duration {
    let at = ready.checked_add(jiff::SignedDuration::from_secs(i64::from(min_ready_seconds))).unwrap_or(ready);
    std::time::Duration::try_from(at.duration_since(now)).unwrap_or_default()
}

/// Writes and the caches that see their answers at once.
struct Writer<K> {
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
    fn new(manager: &Manager, cache: &Cache<K>) -> Self {
        Writer { client: manager.client(), cache: cache.clone() }
    }

    fn api(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.client.clone(), namespace)
    }

    async fn create(&self, namespace: &str, object: &K) -> Result<K, kube::Error> {
        let made = berth_runtime::write::create(&self.api(namespace), &PostParams::default(), object).await?;
        self.cache.observe(made.clone());
        Ok(made)
    }

    /// Replaces an object; the version it carries must be current.
    async fn replace(&self, object: &K) -> Result<(), Error> {
        let api = self.api(&object.namespace().unwrap_or_default());
        let params = PostParams::default();
        self.cache.observe(berth_runtime::write::replace(&api, &object.name_any(), &params, object).await?);
        Ok(())
    }

    async fn replace_status(&self, object: &K) -> Result<(), Error> {
        let api = self.api(&object.namespace().unwrap_or_default());
        let params = PostParams::default();
        self.cache.observe(berth_runtime::write::replace_status(&api, &object.name_any(), &params, object).await?);
        Ok(())
    }

    /// Deletes this object and no other of its name.
    async fn delete(&self, object: &K) -> Result<(), Error> {
        let preconditions = Preconditions { uid: object.uid(), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        match self.api(&object.namespace().unwrap_or_default()).delete(&object.name_any(), &params).await {
            Ok(answer) => {
                // The answer is the object while it terminates, a Status once it is gone.
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
