//! Pods that are queued themselves: each alone, or in groups that are admitted together (`docs/semantics/jobs.md`,
//! KEP-976).
//!
//! A pod cannot be suspended: it is made with a scheduling gate ([`crate::webhooks`]) that is taken off when its Workload is
//! admitted, and it is stopped by deleting it. A finalizer keeps it until it was counted. Deployments, StatefulSets and
//! LeaderWorkerSets are queued through their pods: what a template says reaches every pod made of it.

pub mod controller;
pub mod group;
pub mod reconcile;
pub mod shape;
#[cfg(test)]
mod tests;

use berth_api::kueue::{annotations, labels};
use berth_runtime::ObjectKey;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::naming::OwnerKind;

/// Names of the integrations made of pods.
pub const FRAMEWORKS: [&str; 4] = ["pod", "deployment", "statefulset", "leaderworkerset.x-k8s.io/leaderworkerset"];

/// Prefix of the key of pods that stand alone.
const ALONE: &str = "pod/";
/// Prefix of the key of groups.
const GROUP: &str = "group/";

/// What is admitted as one: a pod or a group of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unit {
    /// One pod.
    Pod {
        /// Its name.
        name: String,
    },
    /// All pods that name this group.
    Group {
        /// Its name, which is that of its Workload.
        name: String,
    },
}

impl Unit {
    /// The unit a managed pod belongs to; nothing for a pod nobody queues.
    pub fn of(pod: &Pod) -> Option<Self> {
        if pod.labels().get(labels::MANAGED).is_none_or(|value| value != "true") {
            return None;
        }
        Some(match group_name(pod) {
            Some(name) => Unit::Group { name: name.to_owned() },
            None => Unit::Pod { name: pod.name_any() },
        })
    }

    /// The unit a key stands for.
    pub fn from_key(key: &ObjectKey) -> Option<Self> {
        match (key.name.strip_prefix(ALONE), key.name.strip_prefix(GROUP)) {
            (Some(name), _) => Some(Unit::Pod { name: name.to_owned() }),
            (_, Some(name)) => Some(Unit::Group { name: name.to_owned() }),
            _ => None,
        }
    }

    /// The key it is reconciled under.
    pub fn key(&self, namespace: &str) -> ObjectKey {
        let name = match self {
            Unit::Pod { name } => format!("{ALONE}{name}"),
            Unit::Group { name } => format!("{GROUP}{name}"),
        };
        ObjectKey::namespaced(namespace, name)
    }
}

/// The group a pod is in.
pub fn group_name(pod: &Pod) -> Option<&str> {
    let of_label = pod.labels().get(labels::POD_GROUP_NAME);
    let name = of_label.or_else(|| pod.annotations().get(annotations::POD_GROUP_NAME))?;
    (!name.is_empty()).then_some(name.as_str())
}

/// Group and kind of pods.
pub(crate) fn kind() -> OwnerKind {
    OwnerKind { group: String::new(), kind: "Pod".to_owned() }
}
