//! Who holds the quota of a cluster queue, as the engine counts it: part of the list, and how many there are.

use berth_api::berth::explanation::{ClusterQueueHolders, GROUP, Held, QuotaHolder, VERSION};
use berth_engine as engine;
use berth_runtime::ObjectKey;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::Explain;
use crate::translate::amounts::to_quantity;
use crate::visibility::Page;

/// Kind of the answer.
const KIND: &str = "ClusterQueueHolders";

impl Explain {
    /// The workloads that hold quota of a cluster queue, whoever holds it longest first; `None` when there is no such queue.
    pub fn holders(&self, cluster_queue: &str, page: Page) -> Option<Value> {
        let (holders, total) = self.brain.engine().holders_part(cluster_queue, page.part())?;
        let items = holders.into_iter().map(|holder| self.holder(holder)).collect();
        let (api_version, kind) = (format!("{GROUP}/{VERSION}"), KIND.to_owned());
        Some(json!(ClusterQueueHolders { api_version, kind, metadata: ObjectMeta::default(), total, items }))
    }

    fn holder(&self, holder: engine::QuotaHolder) -> QuotaHolder {
        let key = ObjectKey::namespaced(holder.workload.namespace.as_ref(), holder.workload.name.as_ref());
        let mut metadata = ObjectMeta {
            name: Some(key.name.clone()),
            namespace: Some(key.namespace.clone()),
            ..ObjectMeta::default()
        };
        if let Some(workload) = self.stores.workloads.get(&key) {
            metadata.creation_timestamp = workload.creation_timestamp();
            metadata.owner_references = workload.metadata.owner_references.clone();
        }
        let since = holder.since.and_then(|at| Timestamp::from_second(at.seconds()).ok());
        let holds = holder.holds.iter().map(|(flavor, resource, amount)| Held {
            flavor: flavor.to_string(),
            resource: resource.to_string(),
            amount: to_quantity(resource, *amount),
        });
        QuotaHolder {
            metadata,
            priority: holder.priority,
            local_queue_name: holder.local_queue.to_string(),
            since: since.map(Time),
            admitted: holder.admitted,
            evicted: holder.evicted.as_deref().map(str::to_owned),
            holds: holds.collect(),
        }
    }
}
