//! The reconcile loop Berth's controllers run in.
//!
//! A [`Manager`] owns one [`Cache`] per watched kind and any number of controllers. A controller is a
//! [`Reconciler`] (level-triggered: it is told *which* object to look at, never *what happened*) fed by watches that
//! map a [`Delta`] of a cached object to the keys that may be affected. Keys wait in an ordered due-queue, are
//! deduplicated, retried with exponential backoff, and never run twice at once.
//!
//! What is different from kube-runtime's `Controller`: everything is ordered, so that a paused tokio clock and the
//! same input give the same history, byte for byte (kube-runtime's scheduler iterates a std `HashSet`).
//!
//! What is deliberately absent: any clock but the [`Clock`] that is handed in, and any random draw.

mod brief;
mod cache;
mod clock;
mod events;
mod inform;
mod kinds;
mod leader;
mod manager;
mod packing;
mod projection;
mod queue;
mod takeover;
mod turns;
mod wire;
pub mod write;

pub use brief::brief;
pub use cache::{Cache, Delta, Index};
pub use clock::Clock;
pub use events::{EventType, Recorder};
pub use kinds::{Kinds, Serving};
pub use leader::{Elector, LeaderElection};
pub use manager::{CacheState, ControllerBuilder, Manager, ManagerError};
pub use queue::Queue;
pub use wire::decode;

use std::fmt;
use std::future::Future;
use std::time::Duration;

use kube::Resource;

/// Namespace and name of an object; the namespace is empty for cluster-scoped kinds. Displays as `namespace/name`,
/// or `name` when there is no namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ObjectKey {
    /// The key of a namespaced object.
    pub fn namespaced(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// The key of a cluster-scoped object, or of a controller's single global task.
    pub fn cluster(name: impl Into<String>) -> Self {
        Self { namespace: String::new(), name: name.into() }
    }

    /// The key of an object as its metadata has it.
    pub fn of<K: Resource>(object: &K) -> Self {
        let meta = object.meta();
        Self { namespace: meta.namespace.clone().unwrap_or_default(), name: meta.name.clone().unwrap_or_default() }
    }

    /// The key of the object's controlling owner (`ownerReferences[].controller`), when that owner is of kind `K`.
    /// Owners live in the namespace of what they own.
    pub fn of_controller_owner<K>(object: &impl Resource) -> Option<Self>
    where
        K: Resource<DynamicType = ()>,
    {
        let meta = object.meta();
        let group = K::group(&());
        meta.owner_references.iter().flatten().find_map(|owner| {
            let owner_group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
            (owner.controller == Some(true) && owner.kind == K::kind(&()) && owner_group == group)
                .then(|| Self { namespace: meta.namespace.clone().unwrap_or_default(), name: owner.name.clone() })
        })
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() { f.write_str(&self.name) } else { write!(f, "{}/{}", self.namespace, self.name) }
    }
}

/// What a reconcile asks for next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing until something changes.
    Wait,
    /// Look again after this much cluster time, or when something changes.
    After(Duration),
}

/// Why a reconcile failed. It is logged with the key and retried with backoff; a 409 conflict is an ordinary
/// outcome of optimistic concurrency and logged quietly.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Brings one object (or one global concern) to where it should be. Must be idempotent: it can be stopped at any
/// await point and run again.
pub trait Reconciler: Send + Sync + 'static {
    /// Looks at the object with this key, present or gone, and does what is missing.
    fn reconcile(&self, key: ObjectKey) -> impl Future<Output = Result<Action, Error>> + Send;
}

/// True when the API refused a write because the object changed meanwhile (HTTP 409, reason Conflict).
pub fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason == "Conflict")
}

/// True when the object does not exist (HTTP 404).
pub fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// What an error says to people, in events and conditions: the API's message alone when the API refused, as clients of
/// Kubernetes show it. Logs contain [`brief()`] instead.
pub fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

/// True when an object of that name exists already (HTTP 409, reason AlreadyExists).
pub fn is_already_exists(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason == "AlreadyExists")
}
