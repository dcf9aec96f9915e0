//! The reconciler of single pods and pod groups.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_api::kueue::v1beta2::Workload;
use berth_api::kueue::{constants, events, labels};
use berth_runtime::{Action, Cache, Clock, Error, Index, Manager, ObjectKey, Reconciler, Recorder};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::reconcile::{reconcile, set_of};
use super::{Unit, prebuilt, replica, stateful_set};
use crate::configuration::Config;
use crate::execute::Executor;
use crate::gates::Gates;
use crate::jobs::reconcile::Context;
use crate::metrics::Metrics;
use crate::plan::{Plan, PlanError, PlannedEvent, Step};
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
        executor: Executor::new(manager, recorder.clone(), pods.clone(), stores.workloads.clone(), metrics),
        recorder,
        clock: manager.clock(),
        metrics: metrics.clone(),
    };
    // The Workload of a StatefulSet is created before the pods. The StatefulSet may get another
    // queue while its pods wait.
    let sets = config.integrations.enabled(stateful_set::PARENT).then(|| stores.stateful_sets.clone());
    let by_set = pods.index(|pod: &Pod| set_of(pod).map(|set| set.uid.clone()).into_iter().collect());
    let mut builder = manager.controller("job-pod");
    if let Some(sets) = &sets {
        let gates = config.gates();
        builder =
            builder.watch(sets, move |delta| keys_of_set(delta.old.as_deref(), delta.new.as_deref(), &by_set, &gates));
    }
    // The cache may have the pods of a LeaderWorkerSet's replica before the LeaderWorkerSet.
    let of_sets = pods.index(|pod: &Pod| {
        let set = pod.labels().get(replica::SET_NAME).filter(|_| replica::is_part(pod));
        let namespace = pod.namespace().unwrap_or_default();
        set.map(|set| ObjectKey::namespaced(namespace, set.as_str()).to_string()).into_iter().collect()
    });
    if config.integrations.enabled(replica::PARENT) {
        let gates = config.gates();
        builder = builder.watch(&stores.leader_worker_sets, move |delta| {
            let is_new =
                delta.old.as_ref().is_none_or(|old| delta.new.as_ref().is_some_and(|new| old.spec != new.spec));
            let key = ObjectKey::of(delta.latest().as_ref()).to_string();
            let pods = if is_new { of_sets.get(&key) } else { Vec::new() };
            pods.iter().filter_map(|pod| key_of_pod(pod, &gates)).collect::<BTreeSet<_>>()
        });
    }
    let gates = config.gates();
    let by_prebuilt = pods.index(move |pod: &Pod| {
        let namespace = pod.namespace().unwrap_or_default();
        prebuilt::name(pod, &gates).map(|name| format!("{namespace}/{name}")).into_iter().collect()
    });
    let gates = config.gates();
    let by_unit = reconciler.by_unit.clone();
    builder
        .concurrency(16)
        .watch(&pods, move |delta| {
            let seen = [delta.old.as_ref(), delta.new.as_ref()].into_iter().flatten();
            seen.filter_map(|pod| key_of_pod(pod, &gates)).collect::<BTreeSet<_>>()
        })
        .watch(&stores.workloads, move |delta| {
            let seen = [delta.old.as_ref(), delta.new.as_ref()].into_iter().flatten();
            let mut keys: BTreeSet<_> = seen.filter_map(|workload| key_of_workload(workload)).collect();
            for pod in by_prebuilt.get(&ObjectKey::of(delta.latest().as_ref()).to_string()) {
                keys.insert(Unit::Pod { name: pod.name_any() }.key(&pod.namespace().unwrap_or_default()));
            }
            // A Workload that has the name of a pod group keeps the group from being queued.
            let name = delta.latest().name_any();
            let group = Unit::Group { name }.key(&delta.latest().namespace().unwrap_or_default());
            keys.extend(by_unit.keys(&group.to_string()).first().map(|_| group));
            keys
        })
        .run(reconciler);
}

/// The pods and groups that a change of a StatefulSet concerns.
fn keys_of_set(
    old: Option<&StatefulSet>,
    new: Option<&StatefulSet>,
    by_set: &Index<Pod>,
    gates: &Gates,
) -> BTreeSet<ObjectKey> {
    let mut keys = BTreeSet::new();
    let Some(set) = new.or(old) else { return keys };
    let uid = set.uid().unwrap_or_default();
    let queue = |set: &StatefulSet| set.labels().get(labels::QUEUE_NAME).cloned();
    let both = old.zip(new);
    if both.is_some_and(|(old, new)| queue(old) != queue(new)) {
        keys.extend(by_set.get(&uid).iter().filter_map(|pod| key_of_pod(pod, gates)));
    }
    // Its status does not matter.
    if both.is_none_or(|(old, new)| old.spec != new.spec || old.labels() != new.labels()) {
        let names = stateful_set::group_names(&set.name_any(), &uid, gates);
        let namespace = set.namespace().unwrap_or_default();
        keys.extend(names.map(|name| Unit::Group { name }.key(&namespace)));
    }
    keys
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

/// What to report on a StatefulSet that has no pods yet.
fn reports(plan: &Plan<Pod>) -> Vec<PlannedEvent> {
    let created = plan.steps.iter().filter_map(|step| match step {
        Step::CreateWorkload(workload) => {
            let message = format!("Created Workload: {}", ObjectKey::of(workload.as_ref()));
            Some(PlannedEvent::normal(events::CREATED_WORKLOAD, message))
        }
        _ => None,
    });
    created.chain(plan.error.as_ref().and_then(PlanError::event)).collect()
}

struct PodReconciler {
    config: Arc<Config>,
    gates: Gates,
    stores: Stores,
    by_unit: Index<Pod>,
    executor: Executor<Pod>,
    recorder: Recorder,
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
        let reports = if pods.is_empty() { reports(&plan) } else { Vec::new() };
        let answer = self.executor.carry_out(pods.first(), plan).await;
        if let Unit::Group { name } = &unit
            && !reports.is_empty()
            && let Some(set) = stateful_set::of_group(&self.stores, &key.namespace, name, &self.gates)
        {
            for event in reports.iter().filter(|event| event.is_warning() || answer.is_ok()) {
                self.recorder.event(set.as_ref(), event.event_type, &event.reason, &event.message);
            }
        }
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
