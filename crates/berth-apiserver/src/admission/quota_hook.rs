//! The hook of ResourceQuotas: recounts a new or changed quota.

use std::future::ready;
use std::sync::Arc;

use berth_apimachinery::meta;
use futures::FutureExt;
use futures::future::BoxFuture;

use super::quota::{Quotas, is_about};
use crate::kind_hooks::{Commit, KindHook};
use crate::own_requests::OwnRequests;
use crate::registry::ResourceInfo;

/// The hook of ResourceQuotas.
pub(crate) struct QuotaHook(pub(crate) Arc<Quotas>);

impl KindHook for QuotaHook {
    fn is_about(&self, row: &ResourceInfo) -> bool {
        is_about(row)
    }

    fn after_commit<'a>(&'a self, _requests: &'a dyn OwnRequests, commit: Commit<'a>) -> BoxFuture<'a, ()> {
        self.0.refresh();
        let object = commit.object;
        if commit.gone || object["status"]["hard"] == object["spec"]["hard"] {
            return ready(()).boxed();
        }
        self.0.recount(meta::namespace(object), meta::name(object)).boxed()
    }

    /// Recounts all quotas: after a crash between a deletion and the release of its quota, the used
    /// amounts are too high.
    fn repair<'a>(&'a self, _requests: &'a dyn OwnRequests) -> BoxFuture<'a, ()> {
        self.0.recount_all().boxed()
    }
}
