//! Pending workloads in their order: `pendingworkloads` of `visibility.kueue.x-k8s.io`, which Kueue
//! serves on demand.
//!
//! The order is the engine's: candidates in the order of evaluation, then inadmissible workloads.

use berth_engine::QueuePosition;
use berth_runtime::{Cache, ObjectKey};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use serde_json::{Value, json};

use berth_api::kueue::v1beta2::Workload;

use crate::scheduler::SchedulerState;

/// The API group.
pub const GROUP: &str = "visibility.kueue.x-k8s.io";
/// Its versions, newest first; they differ only in their names.
pub const VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];
/// Default maximum number of items in a response.
const LIMIT_DEFAULT: usize = 1000;
/// Highest accepted maximum number of items in a response.
const LIMIT_MAX: usize = 100_000;

/// Lists pending workloads; clones share the engine.
#[derive(Clone)]
pub struct Visibility {
    scheduler: SchedulerState,
    workloads: Cache<Workload>,
}

/// The requested part of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Number of items to skip.
    pub offset: usize,
    /// Maximum number of items.
    pub limit: usize,
}

impl Page {
    /// Parses `limit` and `offset` of a query string. The error names the parameter.
    pub fn parse(query: &str) -> Result<Self, String> {
        let number = |name: &str| -> Result<Option<usize>, String> {
            let given = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
            given
                .map(|text| {
                    text.parse()
                        .map_err(|_| format!("{name}: invalid value {text:?}, expected an integer of at least 0"))
                })
                .transpose()
        };
        let limit = number("limit")?.unwrap_or(LIMIT_DEFAULT).min(LIMIT_MAX);
        Ok(Self { offset: number("offset")?.unwrap_or(0), limit })
    }

    /// The range of items.
    pub(crate) fn part(self) -> std::ops::Range<usize> {
        self.offset..self.offset.saturating_add(self.limit)
    }
}

impl Visibility {
    pub(crate) fn new(scheduler: SchedulerState, workloads: Cache<Workload>) -> Self {
        Self { scheduler, workloads }
    }

    /// The pending workloads of a cluster queue; `None` if the queue does not exist.
    pub fn of_cluster_queue(&self, name: &str, version: &str, page: Page) -> Option<Value> {
        let waiting = {
            let engine = self.scheduler.engine();
            engine.cluster_queue_status(name)?;
            engine.pending_part(name, None, page.part())
        };
        Some(self.summary(waiting, version))
    }

    /// The pending workloads of a local queue; `None` if the queue does not exist.
    pub fn of_local_queue(
        &self,
        namespace: &str,
        name: &str,
        cluster_queue: &str,
        version: &str,
        page: Page,
    ) -> Option<Value> {
        let waiting = {
            let engine = self.scheduler.engine();
            engine.local_queue_status(namespace, name)?;
            engine.pending_part(cluster_queue, Some((namespace, name)), page.part())
        };
        Some(self.summary(waiting, version))
    }

    fn summary(&self, waiting: Vec<QueuePosition>, version: &str) -> Value {
        let items: Vec<Value> = waiting
            .into_iter()
            .map(|position| {
                let key = ObjectKey::namespaced(position.workload.namespace.as_ref(), position.workload.name.as_ref());
                let workload = self.workloads.get(&key);
                let mut metadata = json!({"name": key.name, "namespace": key.namespace});
                if let Some(workload) = workload {
                    metadata["creationTimestamp"] = json!(workload.creation_timestamp());
                    let owners = workload.owner_references().iter();
                    let owner = |it: &OwnerReference| json!({"apiVersion": it.api_version, "kind": it.kind, "name": it.name, "uid": it.uid});
                    metadata["ownerReferences"] = owners.map(owner).collect();
                }
                json!({
                    "metadata": metadata,
                    "priority": position.priority,
                    "localQueueName": position.local_queue.as_ref(),
                    "positionInClusterQueue": position.in_cluster_queue,
                    "positionInLocalQueue": position.in_local_queue,
                })
            })
            .collect();
        json!({
            "apiVersion": format!("{GROUP}/{version}"), "kind": "PendingWorkloadsSummary", "metadata": {}, "items": items,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_limited_and_malformed_numbers_are_rejected() {
        assert_eq!(Page::parse(""), Ok(Page { offset: 0, limit: 1000 }));
        assert_eq!(Page::parse("offset=5&limit=999999"), Ok(Page { offset: 5, limit: 100_000 }));
        assert!(Page::parse("limit=-1").unwrap_err().contains("limit: invalid value \"-1\""));
    }
}
