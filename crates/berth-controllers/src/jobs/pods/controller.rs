//! The reconciler of single pods and pod groups.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_api::kueue::v1beta2::Workload;
use berth_api::kueue::{constants, labels};
use berth_runtime::{Action, Cache, Clock, Error, Index, Manager, ObjectKey, Reconciler};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::Unit;
use super::reconcile::{reconcile, set_of};
use crate::configuration::Config;
use crate::execute::Executor;
use crate::gates::Gates;
use crate::jobs::reconcile::Context;
use crate::metrics::Metrics;
use crate::plan::Step;
use crate::podset;
use crate::stores::{Stores, controller_of};
use crate::workload::status;

/// Adds the controller to the manager.
pub fn install(manager: &mut Manager, config: &Arc<Config>, stores: &Stores, metrics: &Metrics) {
    let pods: Cache<Pod> = manager.cache();
    let recorder = manager.recorder("berth-job-controller");
    let reconciler = PodReconciler {
        config: config.clone(),
        gates: config.gates(),
        stores: stores.clone(),
        by_unit: {
            let gates = config.gates();
            pods.index(move |pod: &Pod| key_of_pod(pod, &gates).map(|key| key.to_string()).into_iter().collect())
        },
        executor: Executor::new(manager, recorder, pods.clone(), stores.workloads.clone(), metrics),
        clock: manager.clock(),
        metrics: metrics.clone(),
    };
    // A StatefulSet's queue may change while its pods wait.
    let sets: Option<Cache<StatefulSet>> = config.integrations.enabled("statefulset").then(|| manager.cache());
    let by_set = pods.index(|pod: &Pod| set_of(pod).map(|set| set.uid.clone()).into_iter().collect());
    let mut builder = manager.controller("job-pod");
    if let Some(sets) = &sets {
        let gates = config.gates();
        builder = builder.watch(sets, move |delta| {
            let queue = |set: &StatefulSet| set.labels().get(labels::QUEUE_NAME).cloned();
            let moved = delta.old.as_ref().zip(delta.new.as_ref()).filter(|(old, new)| queue(old) != queue(new));
            let uid = moved.and_then(|(_, new)| new.uid()).unwrap_or_default();
            by_set.get(&uid).iter().filter_map(|pod| key_of_pod(pod, &gates)).collect::<BTreeSet<_>>()
        });
    }
    let gates = config.gates();
    builder
        .concurrency(16)
        .watch(&pods, move |delta| {
            let seen = [delta.old.as_ref(), delta.new.as_ref()].into_iter().flatten();
            seen.filter_map(|pod| key_of_pod(pod, &gates)).collect::<BTreeSet<_>>()
        })
        .watch(&stores.workloads, |delta| {
            let seen = [delta.old.as_ref(), delta.new.as_ref()].into_iter().flatten();
            let mut keys: BTreeSet<_> = seen.filter_map(|workload| key_of_workload(workload)).collect();
            // A group may wait for the name of a Workload that is deleted.
            keys.extend(delta.old.as_ref().filter(|_| delta.new.is_none()).map(|gone| {
                let unit = Unit::Group { name: gone.name_any() };
                unit.key(&gone.namespace().unwrap_or_default())
            }));
            keys
        })
        .run(reconciler);
}

fn key_of_pod(pod: &Pod, gates: &Gates) -> Option<ObjectKey> {
    Some(Unit::of(pod, gates)?.key(&pod.namespace().unwrap_or_default()))
}

fn key_of_workload(workload: &Workload) -> Option<ObjectKey> {
    let unit = if status::is_pod_group(workload) {
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
    metrics: Metrics,
}

impl Reconciler for PodReconciler {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(unit) = Unit::from_key(&key) else { return Ok(Action::Wait) };
        let pods = self.by_unit.get(&key.to_string());
        let context = Context { stores: &self.stores, config: &self.config, gates: &self.gates, now: self.clock.now() };
        let plan = reconcile(context, &key.namespace, &unit, &pods);
        let releases = |step: &Step<Pod>| {
            let Step::Patch(after) = step else { return false };
            let before = pods.iter().find(|pod| pod.metadata.uid == after.metadata.uid);
            before.is_some_and(|before| podset::is_gated(before, constants::ADMISSION_GATE))
                && !podset::is_gated(after, constants::ADMISSION_GATE)
        };
        let released = plan.steps.iter().filter(|step| releases(step)).count();
        let answer = self.executor.carry_out(pods.first(), plan).await;
        if answer.is_ok() && released > 0 {
            let workload = match &unit {
                Unit::Group { name } => {
                    let key = ObjectKey::namespaced(key.namespace.as_str(), name.as_str());
                    self.stores.workloads.get(&key)
                }
                Unit::Pod { .. } => {
                    let uid = pods.first().and_then(|pod| pod.uid()).unwrap_or_default();
                    self.stores.workloads_by_owner.get(&uid).into_iter().next()
                }
            };
            if let Some(workload) = workload {
                for _ in 0..released {
                    self.metrics.gate_removed(constants::ADMISSION_GATE, &workload, self.clock.now());
                }
            }
        }
        answer
    }
}
