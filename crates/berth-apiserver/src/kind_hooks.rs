//! Behaviour of single kinds around a commit: values that the cluster assigns, such as addresses
//! of Services, and follow-ups of a committed write. The request path calls each step in one
//! place, for every kind; most kinds have no hook.

use std::future::ready;
use std::sync::Arc;

use berth_apimachinery::status::Status;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;

use crate::admission::quota::Quotas;
use crate::own_requests::OwnRequests;
use crate::registry::ResourceInfo;

/// A committed write.
#[derive(Clone, Copy)]
pub(crate) struct Commit<'a> {
    /// Row of the object.
    pub(crate) row: &'a ResourceInfo,
    /// The object as stored, or its last state.
    pub(crate) object: &'a Arc<Value>,
    /// True if the write removed the object.
    pub(crate) gone: bool,
}

/// The hook of one or several kinds.
pub(crate) trait KindHook: Send + Sync {
    /// True if the hook belongs to a row.
    fn is_about(&self, row: &ResourceInfo) -> bool;

    /// Starts the part of a write that belongs to the kind. `requested` is the object before the
    /// server prepares it. `None` for kinds that assign nothing.
    fn begin(&self, _requested: &Value) -> Option<Box<dyn KindWrite>> {
        None
    }

    /// Follows up a committed write.
    fn after_commit<'a>(&'a self, requests: &'a dyn OwnRequests, commit: Commit<'a>) -> BoxFuture<'a, ()>;

    /// Repairs, when the server starts, objects whose follow-up was lost in a crash.
    fn repair<'a>(&'a self, _requests: &'a dyn OwnRequests) -> BoxFuture<'a, ()> {
        ready(()).boxed()
    }
}

/// The part of one write that depends on the kind of the object. Its locks are released when it is
/// dropped, after the follow-up of the commit.
pub(crate) trait KindWrite: Send {
    /// Assigns values that the cluster chooses, before the object is validated. `old` is the
    /// stored object of an update.
    fn assign(&mut self, object: &mut Value, old: Option<&Value>) -> Result<(), Status>;

    /// Reserves the assigned values just before the commit, and replaces those that another write
    /// has taken since. With `gone`, the write removes the object.
    fn before_commit<'a>(
        &'a mut self,
        object: &'a mut Value,
        old: Option<&'a Value>,
        gone: bool,
    ) -> BoxFuture<'a, Result<(), Status>>;

    /// The store's write queue for the commit; `None` for that of the user.
    fn queue(&self) -> Option<&'static str>;

    /// Releases the reservations of a write that failed.
    fn failed(&mut self) -> BoxFuture<'_, ()>;
}

/// The part of one write that depends on the kind of the object, for any kind.
pub(crate) struct Around(Option<Box<dyn KindWrite>>);

impl Around {
    /// See [`KindWrite::assign`].
    pub(crate) fn assign(&mut self, object: &mut Value, old: Option<&Value>) -> Result<(), Status> {
        self.0.as_mut().map_or(Ok(()), |write| write.assign(object, old))
    }

    /// See [`KindWrite::before_commit`].
    pub(crate) async fn before_commit(
        &mut self,
        object: &mut Value,
        old: Option<&Value>,
        gone: bool,
    ) -> Result<(), Status> {
        match &mut self.0 {
            Some(write) => write.before_commit(object, old, gone).await,
            None => Ok(()),
        }
    }

    /// See [`KindWrite::queue`].
    pub(crate) fn queue(&self) -> Option<&'static str> {
        self.0.as_ref().and_then(|write| write.queue())
    }

    /// See [`KindWrite::failed`].
    pub(crate) async fn failed(&mut self) {
        if let Some(write) = &mut self.0 {
            write.failed().await;
        }
    }
}

/// The hooks of all kinds.
pub(crate) struct KindHooks {
    hooks: Vec<Arc<dyn KindHook>>,
    quotas: Arc<Quotas>,
}

impl KindHooks {
    pub(crate) fn new(hooks: Vec<Arc<dyn KindHook>>, quotas: Arc<Quotas>) -> KindHooks {
        KindHooks { hooks, quotas }
    }

    fn of(&self, row: &ResourceInfo) -> Option<&dyn KindHook> {
        self.hooks.iter().find(|hook| hook.is_about(row)).map(AsRef::as_ref)
    }

    /// Starts a write. See [`KindHook::begin`].
    pub(crate) fn begin(&self, row: &ResourceInfo, requested: &Value) -> Around {
        Around(self.of(row).and_then(|hook| hook.begin(requested)))
    }

    /// Follows up a committed write: a removed object releases its quota, then the kind's hook
    /// runs. `queue` is that of the write's [`Around`].
    pub(crate) async fn after_commit(
        &self,
        requests: &dyn OwnRequests,
        commit: Commit<'_>,
        queue: Option<&'static str>,
    ) {
        if commit.gone {
            self.quotas.released(queue, commit.row, commit.object, None).await;
        }
        if let Some(hook) = self.of(commit.row) {
            hook.after_commit(requests, commit).await;
        }
    }

    /// Runs [`KindHook::repair`] of all hooks.
    pub(crate) async fn repair(&self, requests: &dyn OwnRequests) {
        for hook in &self.hooks {
            hook.repair(requests).await;
        }
    }
}
