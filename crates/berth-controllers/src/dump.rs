//! What the controllers hold in memory about queues, for the log of a process, on request.

use std::fmt;

use berth_engine::{ClusterQueueStatus, Name};

use crate::scheduler::SchedulerState;
use crate::stores::Stores;

/// Waiting workloads that are named per queue.
const NAMED_MAX: usize = 1000;

/// Describes the state of all queues; clones share it.
#[derive(Clone)]
pub struct Dump {
    scheduler: SchedulerState,
    stores: Stores,
}

/// State of one ClusterQueue in the engine.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueState {
    /// Name of the ClusterQueue.
    pub cluster_queue: String,
    /// Its parent cohort, empty without one.
    pub cohort: String,
    /// Counts and amounts.
    pub status: ClusterQueueStatus,
    /// Waiting workloads as `namespace/name` in the order of the queue: candidates, then those that
    /// are inadmissible until something changes. At most the first 1,000.
    pub waiting: Vec<String>,
    /// Number of the waiting workloads that are inadmissible.
    pub inadmissible: u32,
}

impl Dump {
    pub(crate) fn new(scheduler: SchedulerState, stores: Stores) -> Self {
        Self { scheduler, stores }
    }

    /// The state of every ClusterQueue, by name. The engine is locked for one queue at a time.
    pub fn queues(&self) -> Vec<QueueState> {
        let mut names: Vec<String> =
            self.stores.cluster_queues.iter().filter_map(|queue| queue.metadata.name.clone()).collect();
        names.sort_unstable();
        names.into_iter().filter_map(|name| self.queue(name)).collect()
    }

    fn queue(&self, name: String) -> Option<QueueState> {
        let engine = self.scheduler.engine();
        let figures = engine.cluster_queue_figures(&name)?;
        let waiting = engine.pending_part(&name, None, 0..NAMED_MAX).into_iter();
        let waiting = waiting.map(|it| format!("{}/{}", it.workload.namespace, it.workload.name)).collect();
        let cohort = figures.cohort.as_deref().unwrap_or_default().to_owned();
        let (status, inadmissible) = (figures.status, figures.inadmissible);
        Some(QueueState { cluster_queue: name, cohort, status, waiting, inadmissible })
    }

    /// Logs the state of every ClusterQueue, one line each, at level info.
    pub fn log(&self) {
        let queues = self.queues();
        tracing::info!("state of {} ClusterQueues:", queues.len());
        for queue in &queues {
            let status = &queue.status;
            tracing::info!(
                clusterQueue = queue.cluster_queue,
                cohort = queue.cohort,
                active = status.readiness.is_active(),
                pending = status.pending,
                inadmissible = queue.inadmissible,
                reserving = status.reserving,
                admitted = status.admitted,
                reserved = %Reserved(&status.flavors_reservation),
                waiting = queue.waiting.join(" "),
                "ClusterQueue"
            );
        }
        tracing::info!("end of the state of ClusterQueues");
    }
}

/// Reserved amounts as `flavor/resource=amount`, in base units.
struct Reserved<'a>(&'a [(Name, std::collections::BTreeMap<Name, berth_engine::FlavorUsage>)]);

impl fmt::Display for Reserved<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amounts = self.0.iter().flat_map(|(flavor, resources)| resources.iter().map(move |it| (flavor, it)));
        for (index, (flavor, (resource, amount))) in amounts.enumerate() {
            let space = if index == 0 { "" } else { " " };
            write!(f, "{space}{flavor}/{resource}={}", amount.total)?;
        }
        Ok(())
    }
}
