//! The reconciler of Workloads.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_api::kueue::v1beta2::Workload;
use berth_runtime::{Action, Clock, Error, Manager, ObjectKey, Reconciler};

use super::reconcile::reconcile;
use crate::config::Config;
use crate::execute::Executor;
use crate::gates::Gates;
use crate::jobs::reconcile::Context;
use crate::stores::Stores;

/// Adds the workload controller to the manager.
pub fn install(manager: &mut Manager, config: &Arc<Config>, stores: &Stores) {
    let recorder = manager.recorder("berth-workload-controller");
    let executor = Executor::new(manager.client(), recorder, stores.workloads.clone(), stores.workloads.clone());
    let reconciler = WorkloadReconciler {
        config: config.clone(),
        gates: config.gates(),
        stores: stores.clone(),
        executor,
        clock: manager.clock(),
    };
    let by_queue = stores.workloads.index(|workload: &Workload| {
        let namespace = workload.metadata.namespace.as_deref().unwrap_or_default();
        vec![format!("{namespace}/{}", workload.spec.queue_name)]
    });
    let by_cluster_queue = stores.workloads.index(|workload: &Workload| {
        workload.status.iter().filter_map(|s| s.admission.as_ref()).map(|a| a.cluster_queue.clone()).collect()
    });
    let (local_queues, of_local) = (stores.local_queues.clone(), by_queue.clone());
    let queues_of = local_queues.index(|queue| vec![queue.spec.cluster_queue.clone()]);
    let keys = |workloads: Vec<Arc<Workload>>| workloads.iter().map(|w| ObjectKey::of(w.as_ref())).collect::<Vec<_>>();
    manager
        .controller("workload")
        .concurrency(16)
        .watch_self(&stores.workloads)
        .watch(&stores.local_queues, move |delta| {
            // Status updates of a queue change nothing for its workloads.
            let unchanged = match (&delta.old, &delta.new) {
                (Some(old), Some(new)) => {
                    old.spec == new.spec && old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
                }
                _ => false,
            };
            if unchanged {
                return Vec::new();
            }
            keys(by_queue.get(&ObjectKey::of(delta.latest().as_ref()).to_string()))
        })
        .watch(&stores.cluster_queues, move |delta| {
            let active = |queue: &berth_api::kueue::v1beta2::ClusterQueue| {
                let conditions = queue.status.as_ref().map_or(&[][..], |status| &status.conditions);
                crate::conditions::is_true(conditions, crate::keys::ACTIVE)
            };
            let unchanged = match (&delta.old, &delta.new) {
                (Some(old), Some(new)) => {
                    old.spec.stop_policy == new.spec.stop_policy
                        && old.spec.admission_checks_strategy == new.spec.admission_checks_strategy
                        && old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
                        && active(old) == active(new)
                }
                _ => false,
            };
            if unchanged {
                return BTreeSet::new();
            }
            let name = delta.latest().metadata.name.clone().unwrap_or_default();
            let mut affected: BTreeSet<ObjectKey> = keys(by_cluster_queue.get(&name)).into_iter().collect();
            for queue in queues_of.get(&name) {
                affected.extend(keys(of_local.get(&ObjectKey::of(queue.as_ref()).to_string())));
            }
            affected
        })
        .run(reconciler);
}

struct WorkloadReconciler {
    config: Arc<Config>,
    gates: Gates,
    stores: Stores,
    executor: Executor<Workload>,
    clock: Clock,
}

impl Reconciler for WorkloadReconciler {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(workload) = self.stores.workloads.get(&key) else { return Ok(Action::Wait) };
        let context = Context { stores: &self.stores, config: &self.config, gates: &self.gates, now: self.clock.now() };
        let plan = reconcile(context, &workload);
        self.executor.carry_out(Some(&workload), plan).await
    }
}
