//! Queueing of pods: single pods, and groups that are admitted together (`docs/semantics/jobs.md`,
//! KEP-976).
//!
//! A pod cannot be suspended. It is created with a scheduling gate ([`crate::webhooks`]), which is
//! removed when its Workload is admitted, and it is stopped by deleting it. A finalizer keeps the
//! pod until its end has been counted. Deployments, StatefulSets and LeaderWorkerSets are queued
//! through their pods, which inherit the labels and annotations of the template.

pub mod controller;
pub mod group;
pub mod import;
pub(crate) mod owned;
mod prebuilt;
pub mod reconcile;
pub(crate) mod replica;
pub mod shape;
pub(crate) mod stateful_set;
#[cfg(test)]
mod tests;

use berth_api::kueue::{annotations, labels};
use berth_runtime::ObjectKey;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::naming::{self, OwnerKind};
use crate::gates::Gates;

/// Names of the integrations that queue pods.
pub const FRAMEWORKS: [&str; 4] = ["pod", "deployment", "statefulset", "leaderworkerset.x-k8s.io/leaderworkerset"];

/// Key prefix of single pods.
const ALONE: &str = "pod/";
/// Key prefix of pod groups.
const GROUP: &str = "group/";

/// The unit of admission: a single pod or a pod group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A single pod.
    Pod {
        /// Its name.
        name: String,
    },
    /// All pods that name the same group.
    Group {
        /// Name of the group and of its Workload.
        name: String,
    },
}

impl Unit {
    /// The unit that a pod belongs to; `None` for pods that are not queued.
    pub fn of(pod: &Pod, gates: &Gates) -> Option<Self> {
        if pod.labels().get(labels::MANAGED).is_none_or(|value| value != "true") {
            return None;
        }
        Some(match group_name(pod, gates) {
            Some(name) => Unit::Group { name: name.to_owned() },
            None => Unit::Pod { name: pod.name_any() },
        })
    }

    /// The unit of a reconciler key.
    pub fn from_key(key: &ObjectKey) -> Option<Self> {
        match (key.name.strip_prefix(ALONE), key.name.strip_prefix(GROUP)) {
            (Some(name), _) => Some(Unit::Pod { name: name.to_owned() }),
            (_, Some(name)) => Some(Unit::Group { name: name.to_owned() }),
            _ => None,
        }
    }

    /// The reconciler key of the unit.
    pub fn key(&self, namespace: &str) -> ObjectKey {
        let name = match self {
            Unit::Pod { name } => format!("{ALONE}{name}"),
            Unit::Group { name } => format!("{GROUP}{name}"),
        };
        ObjectKey::namespaced(namespace, name)
    }
}

/// The pod group that a pod names.
pub fn group_name<'a>(pod: &'a Pod, gates: &Gates) -> Option<&'a str> {
    naming::identifier(pod, annotations::POD_GROUP_NAME, labels::POD_GROUP_NAME, gates)
}

/// Group and kind of pods.
pub(crate) fn kind() -> OwnerKind {
    OwnerKind { group: String::new(), kind: "Pod".to_owned() }
}
