//! The reconciler of parents and their variants.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_api::kueue::v1beta2::{ClusterQueue, ConcurrentAdmissionPolicy, Workload};
use berth_runtime::{Action, Clock, Error, Manager, ObjectKey, Reconciler};
use kube::ResourceExt;

use super::reconcile::reconcile;
use super::{flavors_of, is_parent, parent_of};
use crate::configuration::Config;
use crate::execute::Executor;
use crate::gates::Gates;
use crate::jobs::reconcile::Context;
use crate::metrics::Metrics;
use crate::stores::Stores;

/// Adds the controller to the manager.
pub(crate) fn install(manager: &mut Manager, config: &Arc<Config>, stores: &Stores, metrics: &Metrics) {
    let recorder = manager.recorder("berth-concurrent-admission");
    let executor = Executor::new(manager, recorder, stores.workloads.clone(), stores.workloads.clone(), metrics);
    let family = Families {
        config: config.clone(),
        gates: config.gates(),
        stores: stores.clone(),
        executor,
        clock: manager.clock(),
    };
    let parents = stores.workloads.index(|workload: &Workload| {
        let namespace = workload.metadata.namespace.as_deref().unwrap_or_default();
        if is_parent(workload) { vec![format!("{namespace}/{}", workload.spec.queue_name)] } else { Vec::new() }
    });
    let queues = stores.local_queues.index(|queue| vec![queue.spec.cluster_queue.clone()]);
    manager
        .controller("concurrent-admission")
        .concurrency(16)
        .watch(&stores.workloads, |delta| {
            let seen = [&delta.old, &delta.new].into_iter().flatten();
            seen.filter_map(|workload| family_of(workload)).collect::<BTreeSet<_>>()
        })
        .watch(&stores.cluster_queues, move |delta| {
            if let (Some(old), Some(new)) = (&delta.old, &delta.new)
                && facts(old) == facts(new)
            {
                return Vec::new();
            }
            let of_queue = queues.keys(&delta.latest().name_any());
            of_queue.iter().flat_map(|queue| parents.keys(&queue.to_string())).collect()
        })
        .run(family);
}

/// Key of this workload if it is a parent, or of its parent if it is a variant.
fn family_of(workload: &Workload) -> Option<ObjectKey> {
    if is_parent(workload) {
        return Some(ObjectKey::of(workload));
    }
    let owner = parent_of(workload)?;
    Some(ObjectKey::namespaced(workload.metadata.namespace.clone().unwrap_or_default(), owner.name.clone()))
}

/// The fields of a queue that affect variants.
fn facts(queue: &ClusterQueue) -> (Vec<String>, Option<ConcurrentAdmissionPolicy>) {
    (flavors_of(queue), queue.spec.concurrent_admission_policy.clone())
}

struct Families {
    config: Arc<Config>,
    gates: Gates,
    stores: Stores,
    executor: Executor<Workload>,
    clock: Clock,
}

impl Reconciler for Families {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(parent) = self.stores.workloads.get(&key) else { return Ok(Action::Wait) };
        let context = Context { stores: &self.stores, config: &self.config, gates: &self.gates, now: self.clock.now() };
        let plan = reconcile(context, &parent);
        self.executor.carry_out(Some(&parent), plan).await
    }
}
