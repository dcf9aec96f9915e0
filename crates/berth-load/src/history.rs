//! The record of a run in virtual time: what happened to each job, and each of its runs.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use berth_engine::Name;
use berth_engine::model::{Admission, Time};

/// What happened during a run of a load.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct History {
    /// Start of virtual time.
    pub start: Option<Time>,
    /// One record per job of the load, by number.
    pub jobs: Vec<JobRecord>,
    /// Every period during which a job held quota, in the order in which the periods ended. Periods
    /// that had not ended follow last.
    pub runs: Vec<JobRun>,
    /// The distinct amounts of quota that runs held.
    pub holdings: Vec<Holding>,
    /// Number of scheduling cycles.
    pub cycles: u64,
    /// Number of instants at which decisions did not come to rest: workloads preempted each other
    /// again and again.
    pub restless: u64,
    /// Number of admissions; a job that was evicted and admitted again counts each time.
    pub admissions: u64,
    /// Time from the start until the last job ended.
    pub wall: Duration,
}

/// The distinct amounts of a history, while it is recorded.
#[derive(Debug, Clone, Default)]
pub struct Holdings(HashMap<Holding, u32>);

impl Holdings {
    /// Index of the amounts in [`History::holdings`], to which new ones are added.
    pub fn index(&mut self, holding: Holding, history: &mut History) -> u32 {
        if let Some(known) = self.0.get(&holding) {
            return *known;
        }
        let index = u32::try_from(history.holdings.len()).expect("fewer holdings than jobs");
        history.holdings.push(holding.clone());
        self.0.insert(holding, index);
        index
    }
}

/// What happened to one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobRecord {
    /// Its creation.
    pub created: Time,
    /// Its first admission.
    pub first_started: Option<Time>,
    /// Its last admission, unless it was evicted since.
    pub started: Option<Time>,
    /// Its end after its full run time.
    pub ended: Option<Time>,
    /// Number of evictions.
    pub evictions: u64,
    /// Run time that was lost by evictions.
    pub lost: Duration,
}

impl JobRecord {
    /// A job of which nothing but the creation is known.
    pub fn new(created: Time) -> JobRecord {
        JobRecord { created, first_started: None, started: None, ended: None, evictions: 0, lost: Duration::ZERO }
    }
}

/// A period during which a job held quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobRun {
    /// Number of the job.
    pub job: u32,
    /// Index of the held amounts in [`History::holdings`].
    pub holding: u32,
    /// Admission.
    pub from: Time,
    /// End or eviction; `None` if it still ran when no further event was due.
    pub to: Option<Time>,
    /// True if it ended by an eviction, so that its work was lost.
    pub evicted: bool,
}

/// Quota of one cluster queue that a run held.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Holding {
    /// The cluster queue.
    pub cluster_queue: Name,
    /// Flavor, resource and amount, in order of the names.
    pub amounts: Vec<(Name, Name, i64)>,
}

impl Holding {
    /// What an admission holds.
    pub fn of(admission: &Admission) -> Holding {
        let mut sums: BTreeMap<(&Name, &Name), i64> = BTreeMap::new();
        for set in &admission.pod_sets {
            for (resource, flavor) in &set.flavors {
                *sums.entry((flavor, resource)).or_default() += set.usage.get(resource).copied().unwrap_or(0);
            }
        }
        let amounts = sums.into_iter().map(|((flavor, resource), sum)| (flavor.clone(), resource.clone(), sum));
        Holding { cluster_queue: admission.cluster_queue.clone(), amounts: amounts.collect() }
    }

    /// The amount of a resource over all flavors.
    pub fn amount(&self, resource: &str) -> i64 {
        self.amounts.iter().filter(|(_, name, _)| &**name == resource).map(|(.., amount)| amount).sum()
    }
}
