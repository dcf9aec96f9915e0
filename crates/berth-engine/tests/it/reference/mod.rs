//! A slow, obvious model of the engine. It computes quota from its definition at every call, and
//! runs a scheduling cycle step by step as the semantics state it. It shares no code with the
//! engine, keeps no state between calls except what workloads hold, and tries changes on copies.
//!
//! Placement in topologies is separate from quota, in [`placement`]. Left out: second passes,
//! usage-based fairness, elastic slices, concurrent admission.

pub mod assign;
pub mod cycle;
pub mod placement;
pub mod preempt;
pub mod quota;

use std::collections::{BTreeMap, BTreeSet};

use crate::random::plan::{Job, Plan};

/// A flavor and a resource.
pub type Fr = (usize, usize);

/// Amounts per flavor and resource.
pub type Amounts = BTreeMap<Fr, i64>;

/// Amounts in use per queue and flavor-resource.
pub type Use = BTreeMap<(usize, Fr), i64>;

/// State of the model.
#[derive(Debug, Clone)]
pub struct Model {
    pub plan: Plan,
    /// Unfinished workloads by name. The names sort in order of arrival.
    pub jobs: BTreeMap<String, Entry>,
    pending_queues: Vec<PendingQueue>,
    /// Cohort trees whose inadmissible workloads return to the heap before the next cycle. Each is
    /// named by one of its queues.
    flushes: BTreeSet<usize>,
    cycle: u64,
    time: i64,
}

/// A workload.
#[derive(Debug, Clone)]
pub struct Entry {
    pub job: Job,
    pub created: i64,
    pub place: Place,
    scan: Option<Scan>,
}

/// Place of a workload; it is in exactly one.
#[derive(Debug, Clone, PartialEq)]
pub enum Place {
    Active,
    Inadmissible,
    Holding(Held),
}

/// Quota of a workload.
#[derive(Debug, Clone, PartialEq)]
pub struct Held {
    /// Pods per pod set.
    pub counts: Vec<i32>,
    /// Flavor of all resources, per pod set.
    pub flavors: Vec<usize>,
    pub usage: Amounts,
    pub since: i64,
    pub evicted: bool,
}

/// Progress of a search through the flavors.
#[derive(Debug, Clone)]
struct Scan {
    /// Last flavor tried, per pod set; `None` if no flavor was found or no later one is left.
    tried: Vec<Option<usize>>,
    /// `tried` of the earlier searches, since the last search that began at the first flavors.
    ends: Vec<Vec<Option<usize>>>,
    generation: u64,
    cycle: u64,
}

impl Scan {
    /// True if untried flavors are left and the searches do not repeat (§4.4, §8.12). They repeat
    /// if this search ended at the same flavors as the latest earlier search whose number is a
    /// power of two.
    fn has_more(&self) -> bool {
        let left = |end: &[Option<usize>]| {
            let left = end.iter().enumerate().filter_map(|(set, last)| Some((set, (*last)?)));
            left.collect::<Vec<(usize, usize)>>()
        };
        let goes_round = self.ends.len().checked_ilog2().is_some_and(|power| {
            let earlier = &self.ends[(1 << power) - 1];
            left(earlier) == left(&self.tried)
        });
        !left(&self.tried).is_empty() && !goes_round && self.ends.len() + 1 < 1024
    }
}

/// State of a queue between cycles.
#[derive(Debug, Clone, Default)]
struct PendingQueue {
    no_fit: Vec<Class>,
    preemptor: Option<String>,
    /// Number of workloads that released their quota (§7.8).
    generation: u64,
}

/// Properties that scheduling equivalence depends on.
type Class = (i64, Vec<crate::random::plan::PodSet>, bool, bool);

impl Entry {
    fn class(&self) -> Class {
        (self.job.priority, self.job.sets.clone(), self.job.selects, self.job.tolerates)
    }

    /// Quota that the workload holds; `None` if it holds none.
    pub fn held(&self) -> Option<&Held> {
        match &self.place {
            Place::Holding(held) => Some(held),
            Place::Active | Place::Inadmissible => None,
        }
    }
}

impl Model {
    /// A model of a plan's queues, without workloads.
    pub fn new(plan: &Plan) -> Self {
        let pending_queues = plan.queues.iter().map(|_| PendingQueue::default()).collect();
        Model { plan: plan.clone(), jobs: BTreeMap::new(), pending_queues, flushes: BTreeSet::new(), cycle: 0, time: 0 }
    }

    /// Adds a workload.
    pub fn arrive(&mut self, name: String, job: &Job) {
        self.time += 1;
        let entry = Entry { job: job.clone(), created: self.time, place: Place::Inadmissible, scan: None };
        self.jobs.insert(name.clone(), entry);
        self.queue_up(&name);
    }

    /// Finishes a workload.
    pub fn finish(&mut self, name: &str) {
        let Some(entry) = self.jobs.remove(name) else { return };
        let queue = entry.job.queue;
        if entry.held().is_some() {
            self.pending_queues[queue].generation += 1;
        }
        if self.pending_queues[queue].preemptor.as_deref() == Some(name) {
            self.pending_queues[queue].preemptor = None;
        }
        self.flushes.insert(queue);
    }

    /// Stops an evicted workload, which queues again.
    pub fn stop(&mut self, name: &str) {
        let Some(entry) = self.jobs.get_mut(name) else { return };
        let queue = entry.job.queue;
        entry.place = Place::Inadmissible;
        self.pending_queues[queue].generation += 1;
        self.flushes.insert(queue);
        self.queue_up(name);
    }

    fn queue_up(&mut self, name: &str) {
        let entry = &self.jobs[name];
        let pending_queue = &self.pending_queues[entry.job.queue];
        let hopeless = self.is_best_effort(entry.job.queue) && pending_queue.no_fit.contains(&entry.class());
        let place = if hopeless { Place::Inadmissible } else { Place::Active };
        self.jobs.get_mut(name).expect("the workload was read above").place = place;
    }

    fn is_best_effort(&self, queue: usize) -> bool {
        self.plan.queues[queue].strategy == berth_engine::model::QueueingStrategy::BestEffortFifo
    }

    /// Quota in use by all workloads except those in `gone`.
    pub fn in_use(&self, gone: &BTreeSet<String>) -> Use {
        let mut usage = Use::new();
        for (name, entry) in &self.jobs {
            if let (Some(held), false) = (entry.held(), gone.contains(name)) {
                quota::add(&mut usage, entry.job.queue, &held.usage);
            }
        }
        usage
    }
}
