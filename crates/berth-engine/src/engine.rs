//! The engine: state, `apply`, `cycle`.

use std::collections::BTreeSet;

use crate::config::EngineConfig;
use crate::decision::CycleOutcome;
use crate::event::Event;
use crate::ids::Name;
use crate::model::{Time, WorkloadKey};
use crate::status::{ClusterQueueStatus, CohortStatus, LocalQueueStatus, QueuePosition};

/// What an event or a cycle may have changed beside its decisions: whose status figures to refresh.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Effects {
    /// Cluster queues.
    pub cluster_queues: BTreeSet<Name>,
    /// Local queues, as (namespace, name).
    pub local_queues: BTreeSet<(Name, Name)>,
    /// True when a cycle could now decide something.
    pub wake: bool,
}

/// State of one platform, and the decisions about it. See the crate's documentation for who calls what.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
}

impl Engine {
    /// An engine that knows nothing yet.
    pub fn new(config: EngineConfig) -> Self {
        Engine { config }
    }

    /// The configuration it was made with.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Takes note of an event. Cheap: costs what changed, not what exists.
    pub fn apply(&mut self, event: Event, now: Time) -> Effects {
        let _ = (event, now);
        Effects::default()
    }

    /// Runs one scheduling cycle: takes the head of every active queue, decides about each, and counts what it decided.
    pub fn cycle(&mut self, now: Time) -> CycleOutcome {
        let _ = now;
        CycleOutcome::default()
    }

    /// When [`Engine::cycle`] should be called even if no event comes; `None` when only an event can change anything.
    pub fn next_wakeup(&self) -> Option<Time> {
        None
    }

    /// Figures of a cluster queue's status; `None` if there is no such queue.
    pub fn cluster_queue_status(&self, name: &str) -> Option<ClusterQueueStatus> {
        let _ = name;
        None
    }

    /// Figures of a local queue's status; `None` if there is no such queue.
    pub fn local_queue_status(&self, namespace: &str, name: &str) -> Option<LocalQueueStatus> {
        let _ = (namespace, name);
        None
    }

    /// Figures of a cohort's status; `None` if neither an object nor a queue names it.
    pub fn cohort_status(&self, name: &str) -> Option<CohortStatus> {
        let _ = name;
        None
    }

    /// The waiting workloads of a cluster queue in the order they would be popped.
    pub fn pending(&self, cluster_queue: &str) -> Vec<QueuePosition> {
        let _ = cluster_queue;
        Vec::new()
    }

    /// The cluster queue a workload holds quota in, if it does (also when that is only assumed).
    pub fn reservation(&self, workload: &WorkloadKey) -> Option<Name> {
        let _ = workload;
        None
    }

    /// Admission checks a workload needs: those for its assigned flavors if it holds quota, else those that cover all
    /// flavors of the queue (§17.2). In name order.
    pub fn required_checks(&self, workload: &WorkloadKey) -> Vec<Name> {
        let _ = workload;
        Vec::new()
    }
}
