//! The controller of LocalQueues: condition Active, counts and usage.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::kueue::reasons::active;
use berth_api::kueue::v1beta2::{
    AdmissionFairSharingStatus, ClusterQueue, LocalQueue, LocalQueueFairSharingStatus, LocalQueueFlavorUsage,
    LocalQueueResourceUsage, LocalQueueStatus, StopPolicy,
};
use berth_engine as engine;
use berth_runtime::{Action, Cache, Clock, Error, Manager, ObjectKey, Queue, Reconciler};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, Client};

use super::cluster_queue::count;
use super::pace::Pace;
use crate::conditions::{self, NewCondition};
use crate::devices::Devices;
use crate::execute::{Part, patch};
use crate::metrics::Metrics;
use crate::scheduler::SchedulerState;
use crate::stores::Stores;
use crate::translate::amounts;

/// The queue with its current status. `recorded`: a usage sample was just recorded, and is written
/// too.
pub fn refreshed(
    queue: &LocalQueue,
    cluster_queue: Option<&ClusterQueue>,
    figures: Option<&engine::LocalQueueStatus>,
    recorded: bool,
    now: Timestamp,
) -> LocalQueue {
    let mut queue = queue.clone();
    let generation = queue.metadata.generation;
    let stopped = queue.spec.stop_policy.unwrap_or(StopPolicy::None) != StopPolicy::None;
    let (active, reason, message) = match cluster_queue {
        _ if stopped => (false, active::STOPPED, "LocalQueue is stopped"),
        None => (false, active::CLUSTER_QUEUE_DOES_NOT_EXIST, "Can't submit new workloads to clusterQueue"),
        Some(cluster) => {
            let conditions = cluster.status.as_ref().map_or(&[][..], |status| &status.conditions);
            match conditions::is_true(conditions, conditions::ACTIVE) {
                true => (true, active::READY, "Can submit new workloads to localQueue"),
                false => (false, active::CLUSTER_QUEUE_IS_INACTIVE, "Can't submit new workloads to clusterQueue"),
            }
        }
    };
    let status = queue.status.get_or_insert_with(LocalQueueStatus::default);
    let none = engine::LocalQueueStatus::default();
    // Counts are zero while the ClusterQueue does not exist.
    let figures = figures.filter(|_| cluster_queue.is_some()).unwrap_or(&none);
    status.pending_workloads = count(figures.pending);
    status.reserving_workloads = count(figures.reserving);
    status.admitted_workloads = count(figures.admitted);
    status.flavors_reservation = usage(&figures.flavors_reservation);
    status.flavors_usage = usage(&figures.flavors_usage);
    if let Some((consumed, at)) = figures.consumed.as_ref().filter(|_| recorded) {
        let at = Timestamp::from_second(at.seconds()).unwrap_or(now);
        status.fair_sharing = Some(LocalQueueFairSharingStatus {
            weighted_share: 0,
            admission_fair_sharing_status: Some(AdmissionFairSharingStatus {
                consumed_resources: consumed
                    .iter()
                    .map(|(name, amount)| (name.to_string(), amounts::to_exact_quantity(name, *amount)))
                    .collect(),
                last_update: Time(at),
            }),
        });
    }
    let new = NewCondition { type_: conditions::ACTIVE, status: active, reason, message, generation };
    conditions::set(&mut status.conditions, new, now);
    queue
}

fn usage(flavors: &[(engine::Name, BTreeMap<engine::Name, engine::FlavorUsage>)]) -> Vec<LocalQueueFlavorUsage> {
    let one =
        |(flavor, resources): &(engine::Name, BTreeMap<engine::Name, engine::FlavorUsage>)| LocalQueueFlavorUsage {
            name: flavor.to_string(),
            resources: resources
                .iter()
                .map(|(resource, amount)| LocalQueueResourceUsage {
                    name: resource.to_string(),
                    total: amounts::to_quantity(resource, amount.total),
                })
                .collect(),
        };
    flavors.iter().map(one).collect()
}

/// Writes amounts of devices with the suffixes of their resources.
fn restate(devices: &Devices, queue: &mut LocalQueue) {
    let Some(status) = &mut queue.status else { return };
    let flavors = status.flavors_reservation.iter_mut().chain(&mut status.flavors_usage);
    for usage in flavors.flat_map(|flavor| &mut flavor.resources) {
        devices.restate(&usage.name, &mut usage.total);
    }
}

/// Adds the controller to the manager. Returns its work queue, to which the scheduler adds the
/// LocalQueues that it changed.
pub fn install(manager: &mut Manager, stores: &Stores, scheduler: &SchedulerState, metrics: &Metrics) -> Queue {
    let (client, clock) = (manager.client(), manager.clock());
    let by_cluster_queue = stores.local_queues.index(|queue: &LocalQueue| vec![queue.spec.cluster_queue.clone()]);
    let builder = manager.controller("local-queue").concurrency(16).watch_self(&stores.local_queues).watch(
        &stores.cluster_queues,
        move |delta| {
            let active = |queue: &ClusterQueue| {
                let conditions = queue.status.as_ref().map_or(&[][..], |status| &status.conditions);
                conditions::is_true(conditions, conditions::ACTIVE)
            };
            let unchanged = matches!((&delta.old, &delta.new), (Some(old), Some(new)) if active(old) == active(new));
            let name = delta.latest().metadata.name.clone().unwrap_or_default();
            if unchanged { Vec::new() } else { by_cluster_queue.keys(&name) }
        },
    );
    let due = builder.queue();
    builder.run(Controller {
        client,
        clock,
        queues: stores.local_queues.clone(),
        stores: stores.clone(),
        scheduler: scheduler.clone(),
        metrics: metrics.clone(),
        pace: Pace::default(),
    });
    due
}

struct Controller {
    client: Client,
    clock: Clock,
    queues: Cache<LocalQueue>,
    stores: Stores,
    scheduler: SchedulerState,
    metrics: Metrics,
    pace: Pace,
}

impl Reconciler for Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(queue) = self.queues.get(&key) else {
            self.metrics.local_queue_deleted(&key.namespace, &key.name);
            self.pace.forget(&key);
            return Ok(Action::Wait);
        };
        let cluster = self.stores.cluster_queue(&queue.spec.cluster_queue);
        let (figures, sample) = {
            let now = self.scheduler.now();
            let mut engine = self.scheduler.engine();
            let sample = engine.sample_usage(&key.namespace, &key.name, now);
            (engine.local_queue_status(&key.namespace, &key.name), sample)
        };
        let recorded = sample.is_some_and(|sample| sample.recorded);
        if sample.is_some_and(|sample| sample.wake) {
            self.scheduler.wake_after(Duration::ZERO);
        }
        let mut wanted = refreshed(&queue, cluster.as_deref(), figures.as_ref(), recorded, self.clock.now());
        restate(&self.stores.devices, &mut wanted);
        let conditions = |queue: &LocalQueue| queue.status.as_ref().map(|status| status.conditions.clone());
        if !recorded
            && conditions(&wanted) == conditions(&queue)
            && let Some(left) = self.pace.remaining(&key, self.queues.len())
        {
            let next = sample.and_then(|sample| sample.next);
            return Ok(Action::After(next.map_or(left, |next| next.min(left))));
        }
        let api: Api<LocalQueue> = Api::namespaced(self.client.clone(), &key.namespace);
        if let Some(answer) = patch(&api, queue.as_ref(), &wanted, Part::Status, None).await? {
            self.queues.observe(answer);
            self.pace.written(&key);
        }
        Ok(sample.and_then(|sample| sample.next).map_or(Action::Wait, Action::After))
    }
}
