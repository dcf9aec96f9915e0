//! The loop of scheduling cycles. It runs cycles until the engine has nothing more to decide, and
//! then sleeps until the engine's next wake-up time or a change. In a cycle over many cohort trees,
//! the first decisions are written while the last are still being computed.

use std::sync::Arc;
use std::time::Duration;

use berth_engine::model::WorkloadKey;
use berth_engine::{CycleOutcome, Effects, Event, HEADS_PER_PART, Verdict};
use berth_runtime::{Action, Error, Manager, ObjectKey, Reconciler};
use tokio::time::Instant;

use super::carry_out::{Change, changes};
use super::feed::{self, Environment, Extra, object_key};
use super::writer::{Writes, is_reported};
use super::{RegisteredScheduler, SchedulerState, StatusQueues, cycle_key};
use crate::configuration::Config;
use crate::decisions::Decisions;
use crate::gates::{Gate, Gates};
use crate::metrics::Metrics;
use crate::stores::Stores;

/// Maximum number of cycle parts in one reconcile, after which other tasks run.
const PARTS_PER_TURN_MAX: usize = 256;

/// A reconcile that took longer than this is followed by a pause of [`REST_FACTOR`] times its
/// duration, at most [`REST_MAX`]. If cycles are expensive (many queues whose heads search for
/// victims), a cycle after each workload that ends would leave no processor time for the writes.
/// The next cycle considers all workloads that ended during the pause.
const TURN_SHORT: Duration = Duration::from_millis(2);
const REST_FACTOR: u32 = 3;
const REST_MAX: Duration = Duration::from_millis(200);

/// Adds the scheduler and its writer to the manager.
pub(crate) fn install(
    manager: &mut Manager,
    config: &Arc<Config>,
    stores: &Stores,
    state: SchedulerState,
    statuses: StatusQueues,
    metrics: &Metrics,
    decisions: &Decisions,
) -> RegisteredScheduler {
    let gates = config.gates();
    let topology = gates.on(Gate::TopologyAwareScheduling);
    let extra = Extra {
        cohorts: manager.cache(),
        topologies: manager.cache(),
        limit_ranges: manager.cache(),
        runtime_classes: manager.cache(),
        nodes: topology.then(|| (manager.nodes(), manager.cache())),
    };
    let environment = Environment::new(config.resources.clone(), &extra, &stores.devices);
    let writes = super::writer::install(manager, config, stores, &environment, &state, metrics, decisions);
    let builder = manager.controller("scheduler").concurrency(1);
    state.listen(builder.queue(), statuses);
    builder.queue().add(cycle_key());
    feed::watch(builder, &state, stores, &extra, &environment, metrics, decisions).run(Scheduler {
        scheduler: state.clone(),
        stores: stores.clone(),
        gates: gates.clone(),
        environment,
        writes: writes.clone(),
        metrics: metrics.clone(),
    });
    RegisteredScheduler { state, writes }
}

struct Scheduler {
    scheduler: SchedulerState,
    stores: Stores,
    gates: Gates,
    environment: Environment,
    writes: Writes,
    metrics: Metrics,
}

impl Reconciler for Scheduler {
    async fn reconcile(&self, _key: ObjectKey) -> Result<Action, Error> {
        let started = Instant::now();
        self.reconsider_refused();
        let action = self.turn();
        // In virtual time a cycle takes no time, so there is no pause.
        let took = started.elapsed();
        if took > TURN_SHORT {
            tokio::time::sleep((took * REST_FACTOR).min(REST_MAX)).await;
        }
        action
    }
}

impl Scheduler {
    fn turn(&self) -> Result<Action, Error> {
        for _ in 0..PARTS_PER_TURN_MAX {
            if !self.writes.accept_decisions() {
                return Ok(Action::Wait);
            }
            let (now, clock) = (self.scheduler.now(), self.scheduler.clock_now());
            let begun = Instant::now();
            let outcome = self.scheduler.engine().cycle_part(HEADS_PER_PART, now);
            let more = outcome.more;
            let next = outcome.next_wakeup;
            self.metrics.cycle(&outcome, begun.elapsed());
            let effects = self.effects(&outcome);
            let mut withdrawn = Vec::new();
            let changes = changes(outcome);
            let priorities = self.priorities(&changes);
            for ((workload, change), priority) in changes.into_iter().zip(priorities) {
                let (key, shown) = (object_key(&workload), self.scheduler.shown_reason(&workload));
                if is_reported(&self.stores, &self.gates, shown, &key, &change, clock)
                    && self.writes.withdraw_report(&key)
                {
                    continue;
                }
                if !self.writes.add(key, priority, change, shown) {
                    withdrawn.push(workload);
                }
            }
            self.scheduler.announce(&effects);
            let more = more || !withdrawn.is_empty();
            for workload in withdrawn {
                // The workload was evicted before its admission was written, so the API shows
                // neither.
                self.scheduler.apply(Event::PreemptionFailed(workload.clone()));
                self.scheduler.apply(Event::AdmissionFailed(workload));
            }
            if !more {
                return Ok(match next {
                    Some(at) => Action::After(now.until(at).max(Duration::from_millis(1))),
                    None => Action::Wait,
                });
            }
        }
        // There is more to decide, after other tasks have run.
        Ok(Action::After(Duration::ZERO))
    }

    /// Feeds workloads to the engine again whose delay after a rejected admission has ended.
    fn reconsider_refused(&self) {
        let now = self.scheduler.now();
        let (ended, next) = self.scheduler.refusals().ended(now);
        for key in ended {
            self.scheduler.feed_again(&self.environment, &self.stores.workloads, &object_key(&key));
        }
        if let Some(next) = next {
            self.scheduler.wake_after(now.until(next));
        }
    }

    fn priorities(&self, changes: &[(WorkloadKey, Change)]) -> Vec<i64> {
        let engine = self.scheduler.engine();
        changes.iter().map(|(workload, _)| engine.priority(workload).unwrap_or(0)).collect()
    }

    /// The queues whose usage or counts a cycle changed.
    fn effects(&self, outcome: &CycleOutcome) -> Effects {
        let mut effects = Effects::default();
        let engine = self.scheduler.engine();
        for decision in &outcome.decisions {
            effects.cluster_queues.insert(decision.cluster_queue.clone());
            if let Verdict::Preempt { victims, .. } = &decision.verdict {
                effects.cluster_queues.extend(victims.iter().map(|victim| victim.cluster_queue.clone()));
            }
            let key = &decision.workload;
            effects.local_queues.extend(engine.local_queue(key).map(|queue| (key.namespace.clone(), queue)));
        }
        effects
    }
}
