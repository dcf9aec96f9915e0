//! The loop: cycle after cycle until the engine has nothing more to decide, then sleep until it says so or is woken.

use std::sync::Arc;
use std::time::Duration;

use berth_engine::{Effects, Verdict};
use berth_runtime::{Action, Error, Manager, ObjectKey, Reconciler};

use super::feed::{self, Environment, Extra, object_key};
use super::writer::{Pending, Writes};
use super::{Brain, cycle_key};
use crate::config::Config;
use crate::metrics::Metrics;
use crate::stores::Stores;

/// Cycles run in one go before other tasks get a turn.
const CYCLES_PER_TURN_MAX: usize = 256;

/// Adds the scheduler and its writer to the manager. The status controllers must have been added before, so that they
/// hear about everything the scheduler's watches bring.
pub fn install(manager: &mut Manager, config: &Arc<Config>, stores: &Stores, brain: &Brain, metrics: &Metrics) {
    let gates = config.gates();
    let topology = gates.on("TopologyAwareScheduling");
    let extra = Extra {
        cohorts: manager.cache(),
        topologies: manager.cache(),
        limit_ranges: manager.cache(),
        runtime_classes: manager.cache(),
        nodes: topology.then(|| (manager.cache(), manager.cache())),
    };
    let environment = Environment::new(config.resources.clone(), &extra);
    let writes = super::writer::install(manager, config, stores, brain, metrics);
    let builder = manager.controller("scheduler").concurrency(1);
    brain.listen_cycles(builder.queue());
    builder.queue().add(cycle_key());
    feed::watch(builder, brain, stores, &extra, &environment).run(Scheduler {
        brain: brain.clone(),
        writes,
        metrics: metrics.clone(),
    });
}

struct Scheduler {
    brain: Brain,
    writes: Writes,
    metrics: Metrics,
}

impl Reconciler for Scheduler {
    async fn reconcile(&self, _key: ObjectKey) -> Result<Action, Error> {
        for _ in 0..CYCLES_PER_TURN_MAX {
            let now = self.brain.now();
            let outcome = self.brain.engine().cycle(now);
            let more = outcome.more;
            let next = outcome.next_wakeup;
            self.metrics.cycle(&outcome);
            let mut effects = Effects::default();
            for decision in outcome.decisions {
                effects.cluster_queues.insert(decision.cluster_queue.clone());
                if let Verdict::Preempt { victims, .. } = &decision.verdict {
                    effects.cluster_queues.extend(victims.iter().map(|victim| victim.cluster_queue.clone()));
                }
                if let Some(queue) = self.writes.local_queue_of(&decision.workload) {
                    effects.local_queues.insert(queue);
                }
                let queue = decision.cluster_queue.to_string();
                match decision.verdict {
                    Verdict::Admit(admit) => {
                        self.writes.add(object_key(&decision.workload), Pending::Admit(Box::new(admit)));
                    }
                    Verdict::Preempt { victims, wait } => {
                        let preemptor = object_key(&decision.workload);
                        for victim in victims.into_iter().filter(|victim| victim.write) {
                            let key = object_key(&victim.workload);
                            let pending = Pending::Preempt {
                                victim: Box::new(victim),
                                preemptor: preemptor.clone(),
                                queue: queue.clone(),
                            };
                            self.writes.add(key, pending);
                        }
                        self.writes.add(preemptor, Pending::Wait(Box::new(wait)));
                    }
                    Verdict::Wait(wait) => {
                        self.writes.add(object_key(&decision.workload), Pending::Wait(Box::new(wait)));
                    }
                    Verdict::Evict { reason, message, unplaced } => {
                        let pending = Pending::Evict { reason, message, unplaced };
                        self.writes.add(object_key(&decision.workload), pending);
                    }
                }
            }
            for (workload, reason) in outcome.bypassed {
                self.writes.add(object_key(&workload), Pending::Bypassed(reason));
            }
            self.brain.announce(&effects);
            if !more {
                return Ok(match next {
                    Some(at) => Action::After(now.until(at).max(Duration::from_millis(1))),
                    None => Action::Wait,
                });
            }
        }
        // Others get a turn; there is more to decide.
        Ok(Action::After(Duration::ZERO))
    }
}
