//! The controllers of kube-controller-manager that keep pods of a template running: ReplicaSets,
//! ReplicationControllers, Deployments, StatefulSets and DaemonSets.
//!
//! Each module has a pure function that plans the next writes, and a controller that applies them.
//! Written objects go into the caches at once, so that no pod is created twice.

pub mod claims;
pub mod daemon_set;
pub mod deployment;
mod proportional;
pub mod replica_set;
pub mod retention;
pub mod revisions;
pub mod stateful_set;

use berth_runtime::{Manager, owned_by};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec, ReplicationController};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde_json::json;

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
