//! The workloads that hold quota of a cluster queue, as the engine counts it: part of the list, and
//! the total number.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::berth::explanation::{
    ClusterQueueHolders, GROUP, Held, QuotaHolder, VERSION, Withheld, WithheldQuotaHolders,
};
use berth_engine as engine;
use berth_runtime::ObjectKey;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{Explain, Reader};
use crate::translate::amounts::to_quantity;
use crate::visibility::Page;

/// Kind of the response.
const KIND: &str = "ClusterQueueHolders";

fn held(flavor: &str, resource: &str, amount: i64) -> Held {
    Held { flavor: flavor.to_owned(), resource: resource.to_owned(), amount: to_quantity(resource, amount) }
}

/// Summary of the holders that are not named.
fn together(holders: &[engine::QuotaHolder], why: Withheld) -> WithheldQuotaHolders {
    let mut sums: BTreeMap<(&str, &str), i64> = BTreeMap::new();
    for (flavor, resource, amount) in holders.iter().flat_map(|holder| &holder.holds) {
        let sum = sums.entry((flavor, resource)).or_default();
        *sum = sum.saturating_add(*amount);
    }
    let holds = sums.into_iter().map(|((flavor, resource), amount)| held(flavor, resource, amount)).collect();
    WithheldQuotaHolders { why, workloads: holders.len(), holds }
}

impl Explain {
    /// The workloads that hold quota of a cluster queue, the longest-holding first; `None` if there
    /// is no queue with this name. Workloads of namespaces in which the reader may not list
    /// workloads are counted, not named.
    pub async fn holders(&self, reader: &Reader, cluster_queue: &str, page: Page) -> Option<Value> {
        let (mut holders, total) = self.scheduler.engine().holders_part(cluster_queue, page.part())?;
        let mut known = BTreeSet::new();
        let namespaces = holders.iter().map(|holder| &holder.workload.namespace);
        let namespaces: Vec<String> =
            namespaces.filter(|it| known.insert((*it).clone())).map(ToString::to_string).collect();
        let listable = self.readers.listable(reader, &namespaces).await;
        let unnamed: Vec<engine::QuotaHolder> =
            holders.extract_if(.., |holder| !listable.has(&holder.workload.namespace)).collect();
        let withheld = (!unnamed.is_empty()).then(|| together(&unnamed, listable.why()));
        let items = holders.into_iter().map(|holder| self.holder(holder)).collect();
        let (api_version, kind) = (format!("{GROUP}/{VERSION}"), KIND.to_owned());
        Some(json!(ClusterQueueHolders { api_version, kind, metadata: ObjectMeta::default(), total, items, withheld }))
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
        let holds = holder.holds.iter().map(|(flavor, resource, amount)| held(flavor, resource, *amount));
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
