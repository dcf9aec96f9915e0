//! The reconciler of Workloads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_api::kueue::reasons::{eviction, pods_ready};
use berth_api::kueue::v1beta2::Workload;
use berth_runtime::{Action, Clock, Error, Manager, ObjectKey, Reconciler};
use jiff::Timestamp;
use parking_lot::Mutex;

use super::reconcile::{only_reports_admissible, reconcile};
use super::status;
use crate::conditions;
use crate::configuration::Config;
use crate::cool_down::controller::CoolDowns;
use crate::cool_down::{Failure, not_started};
use crate::execute::Executor;
use crate::gates::Gates;
use crate::jobs::reconcile::Context;
use crate::metrics::Metrics;
use crate::plan::{Plan, Step};
use crate::scheduler::{RegisteredScheduler, Writes};
use crate::stores::Stores;

/// Delay before a workload is reported as admissible again. When a stopped queue is resumed, the
/// scheduler evaluates most of its workloads within this time and reports the result. Without the
/// delay there would be two writers, and twice as many writes.
const ADMISSIBLE_DELAY: Duration = Duration::from_secs(1);

/// Adds the workload controller to the manager. `scheduler` has the decisions that are not written
/// yet.
pub(crate) fn install(
    manager: &mut Manager,
    config: &Arc<Config>,
    stores: &Stores,
    metrics: &Metrics,
    scheduler: &RegisteredScheduler,
) {
    let recorder = manager.recorder("berth-workload-controller");
    let executor = Executor::new(manager, recorder, stores.workloads.clone(), stores.workloads.clone(), metrics);
    let reconciler = WorkloadReconciler {
        config: config.clone(),
        gates: config.gates(),
        stores: stores.clone(),
        executor,
        cool_downs: CoolDowns::new(manager, config, stores),
        clock: manager.clock(),
        decided: scheduler.writes.clone(),
        admissible_since: Mutex::default(),
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
    let devices = &stores.devices;
    let (of_templates, of_classes, of_slices) = (devices.clone(), devices.clone(), devices.clone());
    manager
        .controller("workload")
        .concurrency(16)
        .watch_self(&stores.workloads)
        .watch(devices.template_cache(), move |delta| of_templates.users_of_template(delta.latest()))
        .watch(devices.class_cache(), move |delta| {
            of_classes.users_of_class(delta.old.as_deref(), delta.new.as_deref())
        })
        .watch(devices.slice_cache(), move |_| of_slices.users_of_slices())
        .watch(&stores.local_queues, move |delta| {
            // Status updates of a queue do not affect its workloads.
            let unchanged = match (&delta.old, &delta.new) {
                (Some(old), Some(new)) => {
                    old.spec == new.spec && old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
                }
                _ => false,
            };
            if unchanged {
                return Vec::new();
            }
            by_queue.keys(&ObjectKey::of(delta.latest().as_ref()).to_string())
        })
        .watch(&stores.cluster_queues, move |delta| {
            let active = |queue: &berth_api::kueue::v1beta2::ClusterQueue| {
                let conditions = queue.status.as_ref().map_or(&[][..], |status| &status.conditions);
                crate::conditions::is_true(conditions, conditions::ACTIVE)
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
            let mut affected: BTreeSet<ObjectKey> = by_cluster_queue.keys(&name).into_iter().collect();
            for queue in queues_of.keys(&name) {
                affected.extend(of_local.keys(&queue.to_string()));
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
    cool_downs: CoolDowns,
    clock: Clock,
    decided: Writes,
    /// Workloads that are admissible again but not yet reported as such, with the time since which
    /// they are.
    admissible_since: Mutex<BTreeMap<ObjectKey, Timestamp>>,
}

impl WorkloadReconciler {
    /// Remaining delay before the plan is executed; see [`ADMISSIBLE_DELAY`]. `None` for plans
    /// without delay.
    fn reporting_delay(&self, key: &ObjectKey, workload: &Workload, plan: &Plan<Workload>) -> Option<Duration> {
        let mut admissible_since = self.admissible_since.lock();
        if !only_reports_admissible(workload, plan) {
            admissible_since.remove(key);
            return None;
        }
        if self.decided.concern(key) {
            return Some(ADMISSIBLE_DELAY);
        }
        let now = self.clock.now();
        let since = *admissible_since.entry(key.clone()).or_insert(now);
        let waited = Duration::try_from(now.duration_since(since)).unwrap_or_default();
        let left = ADMISSIBLE_DELAY.saturating_sub(waited);
        if left.is_zero() {
            admissible_since.remove(key);
            return None;
        }
        Some(left)
    }
}

/// The failure of the workload's flavors, if the plan evicts the workload because its pods did not
/// start in time. `None` if they had started before and are recovering.
fn timed_out(workload: &Workload, plan: &Plan<Workload>) -> Option<Failure> {
    let evicted = |workload: &Workload| {
        let evicted = status::true_condition(workload, conditions::EVICTED).cloned();
        evicted.filter(|evicted| evicted.reason == eviction::PODS_READY_TIMEOUT)
    };
    let recovers = status::condition(workload, conditions::PODS_READY)
        .is_some_and(|condition| condition.reason == pods_ready::WAIT_FOR_RECOVERY);
    if recovers || evicted(workload).is_some() {
        return None;
    }
    let after = plan.steps.iter().find_map(|step| match step {
        Step::PatchStatus(after) => evicted(after),
        _ => None,
    })?;
    Some(not_started(workload, &after.message))
}

impl Reconciler for WorkloadReconciler {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(workload) = self.stores.workloads.get(&key) else {
            self.admissible_since.lock().remove(&key);
            return Ok(Action::Wait);
        };
        let context = Context { stores: &self.stores, config: &self.config, gates: &self.gates, now: self.clock.now() };
        let plan = reconcile(context, &workload);
        if let Some(pause) = self.reporting_delay(&key, &workload, &plan) {
            return Ok(Action::After(pause));
        }
        if self.cool_downs.is_on()
            && let Some(failure) = timed_out(&workload, &plan)
        {
            self.cool_downs.record(&failure).await?;
        }
        self.executor.carry_out(Some(&workload), plan).await
    }
}
