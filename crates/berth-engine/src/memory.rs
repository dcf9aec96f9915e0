//! What an engine knows beside the objects of its events.
//!
//! Decisions depend on a little that no object shows. An engine that starts from the objects and
//! from this memory decides as the running one: forecasts take it from the controllers.

use crate::engine::Engine;
use crate::ids::{Id, Name, QueueId, WorkloadId};
use crate::model::{Time, WorkloadKey};

/// A workload that waits for preemptions that it started: it goes first in its cluster queue
/// (§3.4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingPreemptor {
    /// The cluster queue.
    pub cluster_queue: Name,
    /// The workload.
    pub workload: WorkloadKey,
    /// The generation of the workload that started them.
    pub generation: i64,
}

/// Times of a workload, of which some have parts of a second. Objects have whole seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExactTimes {
    /// The workload.
    pub workload: WorkloadKey,
    /// Its creation.
    pub created: Time,
    /// Its quota reservation.
    pub reserved: Option<Time>,
    /// Its last eviction.
    pub evicted: Option<Time>,
    /// Its last preemption.
    pub preempted: Option<Time>,
}

/// See [`Engine::memory`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Memory {
    /// In the order of the cluster queues.
    pub preemptors: Vec<WaitingPreemptor>,
    /// Of workloads that have not ended.
    pub times: Vec<ExactTimes>,
}

impl Engine {
    /// What the engine knows beside the objects. Its progress of searches through flavors (§8.12)
    /// is not part of it: a search that has flavors left goes on in the next cycle, and ends before
    /// the engine comes to rest. Costs one check of each workload.
    pub fn memory(&self) -> Memory {
        let preemptor = |at: usize| {
            let queue = QueueId::from_index(at);
            let (id, generation) = self.pending_queues.get(queue)?.preemptor?;
            let workload = self.world.record(id).key().clone();
            Some(WaitingPreemptor { cluster_queue: self.world.queue(queue).name.clone(), workload, generation })
        };
        let unfinished = self.world.workloads.iter().filter(|(_, record)| !record.facts.finished);
        let times = unfinished.map(|(_, record)| {
            let facts = &record.facts;
            ExactTimes {
                workload: facts.key.clone(),
                created: facts.created,
                reserved: facts.reserved_at,
                evicted: facts.evicted.as_ref().map(|eviction| eviction.at),
                preempted: facts.preempted.as_ref().map(|eviction| eviction.at),
            }
        });
        let is_exact = |times: &ExactTimes| {
            let all = [Some(times.created), times.reserved, times.evicted, times.preempted];
            all.into_iter().flatten().any(|at| at != Time::from_seconds(at.seconds()))
        };
        Memory {
            preemptors: (0..self.world.queues.len()).filter_map(preemptor).collect(),
            times: times.filter(is_exact).collect(),
        }
    }

    /// Restores a preemptor, if the workload waits in the cluster queue.
    pub(crate) fn restore_preemptor(&mut self, known: &WaitingPreemptor) {
        let waits = |id: &WorkloadId| {
            let queue = self.world.record(*id).place.queue()?;
            (self.world.queue(queue).name == known.cluster_queue).then_some(queue)
        };
        let id = self.world.workloads.id(&known.workload);
        if let Some((id, queue)) = id.and_then(|id| Some((id, waits(&id)?))) {
            self.pending_queues.get_or_insert(queue).preemptor = Some((id, known.generation));
        }
    }
}
