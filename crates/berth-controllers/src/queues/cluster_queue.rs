//! The controller of ClusterQueues: condition Active, counts and usage, and the finalizer while
//! workloads hold quota.

use berth_api::kueue::constants;
use berth_api::kueue::reasons::active;
use berth_api::kueue::v1beta2::{ClusterQueue, ClusterQueueStatus, FairSharingStatus, FlavorUsage, ResourceUsage};
use berth_engine as engine;
use berth_runtime::{Action, Cache, Clock, Error, Manager, ObjectKey, Queue, Reconciler};
use jiff::Timestamp;
use kube::{Api, Client, ResourceExt};
use std::collections::BTreeMap;

use super::pace::Pace;
use crate::conditions::{self, NewCondition};
use crate::devices::Devices;
use crate::execute::{Part, patch};
use crate::jobs::reconcile::remove_finalizer;
use crate::metrics::Metrics;
use crate::scheduler::SchedulerState;
use crate::stores::Stores;
use crate::translate::amounts;

/// The queue with its current status.
pub fn refreshed(
    queue: &ClusterQueue,
    figures: &engine::ClusterQueueStatus,
    fair_sharing: bool,
    now: Timestamp,
) -> ClusterQueue {
    let mut queue = queue.clone();
    let generation = queue.metadata.generation;
    let terminating = queue.metadata.deletion_timestamp.is_some();
    let status = queue.status.get_or_insert_with(ClusterQueueStatus::default);
    status.pending_workloads = count(figures.pending);
    status.reserving_workloads = count(figures.reserving);
    status.admitted_workloads = count(figures.admitted);
    status.flavors_reservation = usage(&figures.flavors_reservation);
    status.flavors_usage = usage(&figures.flavors_usage);
    status.fair_sharing = fair_sharing.then_some(FairSharingStatus { weighted_share: figures.weighted_share.value });
    let readiness = &figures.readiness;
    let message = readiness.message();
    let (active, reason, message) = match terminating {
        true => (false, active::TERMINATING, "Can't admit new workloads; clusterQueue is terminating"),
        false => (readiness.is_active(), readiness.reason(), message.as_str()),
    };
    let new = NewCondition { type_: conditions::ACTIVE, status: active, reason, message, generation };
    conditions::set(&mut status.conditions, new, now);
    queue
}

/// True if a queue under deletion can lose its finalizer: no workload holds its quota.
pub fn can_be_deleted(queue: &ClusterQueue, figures: &engine::ClusterQueueStatus) -> bool {
    queue.metadata.deletion_timestamp.is_some() && figures.reserving == 0
}

pub(super) fn count(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn usage(flavors: &[(engine::Name, BTreeMap<engine::Name, engine::FlavorUsage>)]) -> Vec<FlavorUsage> {
    let one = |(flavor, resources): &(engine::Name, BTreeMap<engine::Name, engine::FlavorUsage>)| FlavorUsage {
        name: flavor.to_string(),
        resources: resources
            .iter()
            .map(|(resource, amount)| ResourceUsage {
                name: resource.to_string(),
                total: amounts::to_quantity(resource, amount.total),
                borrowed: amounts::to_quantity(resource, amount.borrowed),
            })
            .collect(),
    };
    flavors.iter().map(one).collect()
}

/// Writes amounts of devices with the suffixes of their resources.
fn restate(devices: &Devices, queue: &mut ClusterQueue) {
    let Some(status) = &mut queue.status else { return };
    let flavors = status.flavors_reservation.iter_mut().chain(&mut status.flavors_usage);
    for usage in flavors.flat_map(|flavor| &mut flavor.resources) {
        devices.restate(&usage.name, &mut usage.total);
        devices.restate(&usage.name, &mut usage.borrowed);
    }
}

/// Adds the controller to the manager; returns its work queue, for the scheduler.
pub fn install(
    manager: &mut Manager,
    stores: &Stores,
    scheduler: &SchedulerState,
    metrics: &Metrics,
    fair_sharing: bool,
) -> Queue {
    let (client, clock) = (manager.client(), manager.clock());
    let builder = manager.controller("cluster-queue").concurrency(16).watch_self(&stores.cluster_queues);
    let due = builder.queue();
    builder.run(Controller {
        client,
        clock,
        queues: stores.cluster_queues.clone(),
        scheduler: scheduler.clone(),
        metrics: metrics.clone(),
        fair_sharing,
        devices: stores.devices.clone(),
        pace: Pace::default(),
    });
    due
}

struct Controller {
    client: Client,
    clock: Clock,
    queues: Cache<ClusterQueue>,
    scheduler: SchedulerState,
    metrics: Metrics,
    fair_sharing: bool,
    devices: Devices,
    pace: Pace,
}

impl Reconciler for Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(queue) = self.queues.get(&key) else {
            self.metrics.cluster_queue_deleted(&key.name);
            self.pace.forget(&key);
            return Ok(Action::Wait);
        };
        let api: Api<ClusterQueue> = Api::all(self.client.clone());
        let figures = self.scheduler.engine().cluster_queue_status(&key.name).unwrap_or_default();
        let terminating = queue.metadata.deletion_timestamp.is_some();
        let mut wanted = (*queue).clone();
        if terminating {
            if can_be_deleted(&queue, &figures) && remove_finalizer(&mut wanted) {
                patch(&api, queue.as_ref(), &wanted, Part::Main, queue.resource_version().as_deref()).await?;
                return Ok(Action::Wait);
            }
        } else if !queue.finalizers().iter().any(|finalizer| finalizer == constants::RESOURCE_IN_USE_FINALIZER) {
            wanted.finalizers_mut().push(constants::RESOURCE_IN_USE_FINALIZER.to_owned());
            let answer = patch(&api, queue.as_ref(), &wanted, Part::Main, queue.resource_version().as_deref()).await?;
            if let Some(answer) = answer {
                // The cache update triggers another reconcile with the new version.
                self.queues.observe(answer);
                return Ok(Action::Wait);
            }
        }
        let mut wanted = refreshed(&queue, &figures, self.fair_sharing, self.clock.now());
        restate(&self.devices, &mut wanted);
        let conditions = |queue: &ClusterQueue| queue.status.as_ref().map(|status| status.conditions.clone());
        if conditions(&wanted) == conditions(&queue)
            && let Some(left) = self.pace.remaining(&key, self.queues.len())
        {
            return Ok(Action::After(left));
        }
        // No other writer changes this status, so the write needs no resourceVersion.
        if let Some(answer) = patch(&api, queue.as_ref(), &wanted, Part::Status, None).await? {
            self.queues.observe(answer);
            self.pace.written(&key);
        }
        Ok(Action::Wait)
    }
}
