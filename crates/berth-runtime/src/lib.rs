//! The runtime of Berth's controllers.
//!
//! A [`Manager`] owns one [`Cache`] per watched kind and any number of controllers. A controller is
//! a [`Reconciler`] with watches. Reconcilers are level-triggered: they get the key of an object,
//! and no description of the change. A watch maps a [`Delta`] of a cached object to the keys that
//! it may affect. Keys wait in an ordered work queue. They are deduplicated, retried with
//! exponential back-off, and never reconciled twice at once.
//!
//! Unlike kube-runtime's `Controller`, everything is ordered. With a paused tokio clock, the same
//! input gives the same history, byte for byte (kube-runtime's scheduler iterates a std `HashSet`).
//!
//! The runtime reads no clock but the [`Clock`] that it is given, and draws no random numbers.

mod brief;
mod cache;
mod clock;
mod conditions;
mod events;
mod follow;
mod index;
mod inform;
mod kinds;
mod leader;
mod manager;
mod objects;
mod packing;
pub mod process;
mod projection;
mod queue;
mod selection;
mod takeover;
mod turns;
mod view;
mod wire;
mod work;
pub mod write;
mod writer;

pub use brief::brief;
pub use cache::{Cache, Delta};
pub use clock::{Clock, later, stamp};
pub use conditions::{condition, set_condition};
pub use events::{EventType, PlannedEvent, Recorder};
pub use follow::{Followed, Following, Sight};
pub use index::Index;
pub use kinds::{Kinds, Serving};
pub use leader::{Elector, LeaderElection};
pub use manager::{CacheState, ControllerBuilder, Manager, ManagerError, Packers};
pub use queue::Queue;
pub use selection::{InvalidItem, Selection};
pub use view::{Rows, View};
pub use wire::decode;
pub use work::Work;
pub use writer::{Writer, Written, is_controlled_by, owned_by, owned_by_named, shared_by};

use std::fmt;
use std::future::Future;
use std::time::Duration;

use kube::Resource;
use kube::api::ObjectMeta;

/// Namespace and name of an object. Displays as `namespace/name`, or as `name` without a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ObjectKey {
    /// Returns the key of a namespaced object.
    pub fn namespaced(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// Returns the key of a cluster-scoped object, or of the only task of a controller.
    pub fn cluster(name: impl Into<String>) -> Self {
        Self { namespace: String::new(), name: name.into() }
    }

    /// Returns the key of an object from its metadata.
    pub fn of<K: Resource>(object: &K) -> Self {
        Self::of_meta(object.meta())
    }

    pub(crate) fn of_meta(meta: &ObjectMeta) -> Self {
        Self { namespace: meta.namespace.clone().unwrap_or_default(), name: meta.name.clone().unwrap_or_default() }
    }

    /// Returns the key of the object's controlling owner (`ownerReferences[].controller`) if that
    /// owner is of kind `K`. Owner and object are in the same namespace.
    pub fn of_controller_owner<K>(object: &impl Resource) -> Option<Self>
    where
        K: Resource<DynamicType = ()>,
    {
        Self::of_owner(object.meta(), &K::group(&()), &K::kind(&()))
    }

    /// Like [`ObjectKey::of_controller_owner`], of an owner of this group and kind.
    pub(crate) fn of_owner(meta: &ObjectMeta, group: &str, kind: &str) -> Option<Self> {
        meta.owner_references.iter().flatten().find_map(|owner| {
            let owner_group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
            (owner.controller == Some(true) && owner.kind == kind && owner_group == group)
                .then(|| Self { namespace: meta.namespace.clone().unwrap_or_default(), name: owner.name.clone() })
        })
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() { f.write_str(&self.name) } else { write!(f, "{}/{}", self.namespace, self.name) }
    }
}

/// When to reconcile an object again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Only after the next change.
    Wait,
    /// After this much cluster time, or after the next change if that is earlier.
    After(Duration),
}

/// Error of a reconcile. It is logged with the key, and the key is retried with back-off. A
/// conflict (409) is normal with optimistic concurrency and is logged at debug level.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Reconciles one kind of object, or one concern of the whole cluster. A reconcile must be
/// idempotent: it may be stopped at any await point and run again.
pub trait Reconciler: Send + Sync + 'static {
    /// Makes the missing changes for the object with this key. The object may no longer exist.
    fn reconcile(&self, key: ObjectKey) -> impl Future<Output = Result<Action, Error>> + Send;
}

/// Returns true if the API server rejects the request itself, so that a retry cannot succeed.
pub fn is_rejected(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status)
        if (400..500).contains(&status.code) && ![404, 409, 429].contains(&status.code))
}

/// True if the API rejected a write because the object has changed (409, reason Conflict).
pub fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason == "Conflict")
}

/// True if the object does not exist (404).
pub fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// Returns the text of an error for events and conditions: the message of the API's status if there
/// is one. Logs use [`brief()`] instead.
pub fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

/// True if an object of that name already exists (409, reason AlreadyExists).
pub fn is_already_exists(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason == "AlreadyExists")
}
