//! The reconciler of pods and groups of pods.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_api::kueue::v1beta2::Workload;
use berth_runtime::{Action, Cache, Clock, Error, Index, Manager, ObjectKey, Reconciler};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::Unit;
use super::reconcile::{of_group, reconcile};
use crate::config::Config;
use crate::execute::Executor;
use crate::gates::Gates;
use crate::jobs::reconcile::Context;
use crate::stores::{Stores, controller_of};

/// Adds the controller to the manager.
pub fn install(manager: &mut Manager, config: &Arc<Config>, stores: &Stores) {
    let pods: Cache<Pod> = manager.cache();
    let recorder = manager.recorder("berth-job-controller");
    let reconciler = PodReconciler {
        config: config.clone(),
        gates: config.gates(),
        stores: stores.clone(),
        by_unit: pods.index(|pod: &Pod| key_of_pod(pod).map(|key| key.to_string()).into_iter().collect()),
        executor: Executor::new(manager.client(), recorder, pods.clone(), stores.workloads.clone()),
        clock: manager.clock(),
    };
    manager
        .controller("job-pod")
        .concurrency(16)
        .watch(&pods, |delta| {
            let seen = [delta.old.as_ref(), delta.new.as_ref()].into_iter().flatten();
            seen.filter_map(|pod| key_of_pod(pod)).collect::<BTreeSet<_>>()
        })
        .watch(&stores.workloads, |delta| {
            let seen = [delta.old.as_ref(), delta.new.as_ref()].into_iter().flatten();
            seen.filter_map(|workload| key_of_workload(workload)).collect::<BTreeSet<_>>()
        })
        .run(reconciler);
}

fn key_of_pod(pod: &Pod) -> Option<ObjectKey> {
    Some(Unit::of(pod)?.key(&pod.namespace().unwrap_or_default()))
}

fn key_of_workload(workload: &Workload) -> Option<ObjectKey> {
    let unit = if of_group(workload) {
        Unit::Group { name: workload.name_any() }
    } else {
        let owner = controller_of(&workload.metadata).filter(|owner| owner.kind == "Pod")?;
        Unit::Pod { name: owner.name.clone() }
    };
    Some(unit.key(&workload.namespace().unwrap_or_default()))
}

struct PodReconciler {
    config: Arc<Config>,
    gates: Gates,
    stores: Stores,
    by_unit: Index<Pod>,
    executor: Executor<Pod>,
    clock: Clock,
}

impl Reconciler for PodReconciler {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(unit) = Unit::from_key(&key) else { return Ok(Action::Wait) };
        let pods = self.by_unit.get(&key.to_string());
        let context = Context { stores: &self.stores, config: &self.config, gates: &self.gates, now: self.clock.now() };
        let plan = reconcile(context, &key.namespace, &unit, &pods);
        self.executor.carry_out(pods.first(), plan).await
    }
}
