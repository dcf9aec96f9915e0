//! Runs the engine forward from a state.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use berth_engine::model::{Admission, Time, Workload, WorkloadKey};
use berth_engine::{Engine, EngineConfig, Event, Name};
use berth_load::{Capacity, History, Probe, Unlimited, drive};

use super::capacity::Pools;
use super::run_times::NEVER;
use super::{LiveJob, State};
use crate::forward::{Forward, ForwardJob};
use crate::memory::Memory;
use crate::objects::Objects;

/// What happens to a job.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobFuture {
    /// When it is admitted next; `None` if that does not happen. A job that holds quota at the
    /// start has the time of that admission.
    pub admitted: Option<Time>,
    /// When all its pods run after that admission.
    pub running: Option<Time>,
    /// When it ends.
    pub ended: Option<Time>,
    /// Flavors of its first admission.
    pub flavors: Vec<Name>,
    /// Number of evictions.
    pub evictions: u64,
    /// Time of its first eviction.
    pub evicted: Option<Time>,
    /// Work that evictions lost.
    pub lost: Duration,
}

impl JobFuture {
    /// Forgets what would happen after the end of a job whose run time is unknown.
    fn forget_after(&mut self, horizon: Time) {
        for time in [&mut self.admitted, &mut self.running, &mut self.ended, &mut self.evicted] {
            *time = time.filter(|at| *at < horizon);
        }
        if self.admitted.is_none() {
            self.flavors.clear();
        }
    }
}

/// What happens to the jobs of a state, in their order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Future {
    /// Per job.
    pub jobs: Vec<JobFuture>,
    /// The periods in which they hold quota, and figures of the run.
    pub history: History,
    /// When the run ended at its limit; nothing later is known.
    pub cut: Option<Time>,
}

/// When a run may stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// When nothing more happens.
    TheEnd,
    /// When nothing more happens, or at a limit. Nothing later is part of the future.
    Limit {
        /// When so many waiting jobs were admitted.
        starts_max: usize,
        /// After this instant.
        last: Option<Time>,
    },
    /// When this job was admitted.
    Started {
        /// Number of the job.
        job: usize,
        /// When so many waiting jobs were admitted before it.
        starts_max: usize,
    },
    /// When every waiting job was admitted.
    AllStarted {
        /// When so many waiting jobs were admitted.
        starts_max: usize,
    },
}

/// The configuration of the engine for runs in virtual time.
pub fn config(objects: &Objects) -> EngineConfig {
    let mut config = objects.config.engine();
    config.flush_delay = Duration::ZERO;
    config
}

/// A state as a load, without run times.
pub fn load(objects: &Objects, state: &State) -> Forward {
    // Pods of the state are part of the capacity, not of topologies: jobs that run take their own
    // room.
    let events = objects.events().into_iter().filter(|event| !matches!(event, Event::NodePodUpserted(_)));
    let job = |workload: &Workload| ForwardJob {
        workload: workload.clone(),
        created: Duration::ZERO,
        run_time: Duration::ZERO,
    };
    Forward {
        start: state.at,
        objects: events.collect(),
        jobs: state.jobs.iter().map(|live| job(&live.workload)).collect(),
        restored: objects.memory.as_ref().map(Memory::events).unwrap_or_default(),
    }
}

/// The places of waiting jobs in their cluster queues.
#[derive(Debug, Clone, Default)]
pub struct Places {
    places: HashMap<WorkloadKey, usize>,
    lengths: BTreeMap<Name, usize>,
}

impl Places {
    /// The places at the start of a load, before the first decision, in the engine's order.
    pub fn of(load: &Forward, config: &EngineConfig) -> Places {
        let mut engine = Engine::new(config.clone());
        let jobs = load.jobs.iter().map(|job| Event::WorkloadUpserted(Box::new(job.workload.clone())));
        for event in load.objects.iter().cloned().chain(jobs).chain(load.restored.iter().cloned()) {
            engine.apply(event, load.start);
        }
        let mut found = Places::default();
        for event in &load.objects {
            let Event::ClusterQueueUpserted(queue) = event else { continue };
            let pending = engine.pending(&queue.name);
            found.lengths.insert(queue.name.clone(), pending.len());
            found.places.extend(pending.into_iter().zip(1..).map(|(it, place)| (it.workload, place)));
        }
        found
    }

    /// The place of a job, from 1. A job that the queue does not consider yet, for example because
    /// of a backoff, comes after those that it considers.
    pub fn of_job(&self, job: &LiveJob) -> usize {
        let last = || 1 + job.cluster_queue.as_ref().and_then(|queue| self.lengths.get(queue)).copied().unwrap_or(0);
        self.places.get(&job.key).copied().unwrap_or_else(last)
    }
}

/// Runs a load forward; `pools` are the nodes behind the quota, if they are known.
pub fn run(load: &Forward, config: &EngineConfig, pools: Option<&Pools>, until: Until) -> Future {
    match pools {
        Some(pools) => {
            let times = load.jobs.iter().map(|job| job.run_time).collect();
            run_on(load, config, &mut pools.with_run_times(times), until)
        }
        None => run_on(load, config, &mut Unlimited::default(), until),
    }
}

fn run_on(load: &Forward, config: &EngineConfig, capacity: &mut impl Capacity, until: Until) -> Future {
    let waits: Vec<bool> = load.jobs.iter().map(|job| job.workload.admission.is_none()).collect();
    let open = waits.iter().filter(|waits| **waits).count();
    let jobs = load.jobs.len();
    let (starts_max, last) = match until {
        Until::TheEnd => (usize::MAX, None),
        Until::Limit { starts_max, last } => (starts_max, last),
        Until::Started { starts_max, .. } | Until::AllStarted { starts_max } => (starts_max, None),
    };
    let mut watch = Watch {
        jobs: vec![JobFuture::default(); jobs],
        since: vec![Since::default(); jobs],
        waits,
        waited: open,
        open,
        starts_max,
        last,
        now: load.start,
        is_past: false,
        until,
    };
    let history = drive::run_on(load, config.clone(), &mut watch, capacity);
    let cut = watch.cut();
    let mut horizon = load.start.after(NEVER / 2);
    if let (Until::Limit { .. }, Some(cut)) = (until, cut) {
        horizon = horizon.min(cut.after(Duration::from_nanos(1)));
    }
    let mut jobs = watch.jobs;
    for job in &mut jobs {
        job.forget_after(horizon);
    }
    Future { jobs, history, cut }
}

/// Records what happens to each job.
struct Watch {
    jobs: Vec<JobFuture>,
    /// The current admission of each job.
    since: Vec<Since>,
    /// True for jobs that were never admitted.
    waits: Vec<bool>,
    /// Number of jobs that wait at the start.
    waited: usize,
    /// Number of jobs that were never admitted.
    open: usize,
    starts_max: usize,
    /// The last instant that is recorded.
    last: Option<Time>,
    /// The instant of the last change.
    now: Time,
    /// True once something happened after the last instant.
    is_past: bool,
    until: Until,
}

/// The current admission of a job.
#[derive(Debug, Clone, Copy, Default)]
struct Since {
    /// Since when the job holds quota.
    holds: Option<Time>,
    /// Since when its pods run.
    runs: Option<Time>,
}

impl Watch {
    /// The instant at which the run ended at a limit.
    fn cut(&self) -> Option<Time> {
        if self.is_past {
            return self.last;
        }
        (self.open > 0 && self.waited - self.open >= self.starts_max).then_some(self.now)
    }

    fn admit(&mut self, number: usize, admission: &Admission, at: Time) {
        let (job, since) = (&mut self.jobs[number], &mut self.since[number]);
        if since.holds.is_some() {
            return;
        }
        *since = Since { holds: Some(at), runs: None };
        if job.admitted.is_none() {
            job.admitted = Some(at);
            let mut flavors: Vec<Name> =
                admission.pod_sets.iter().flat_map(|set| set.flavors.values().cloned()).collect();
            flavors.sort();
            flavors.dedup();
            job.flavors = flavors;
        }
    }
}

impl Probe for Watch {
    fn changed(&mut self, number: usize, object: &Workload, now: Time) {
        if self.last.is_some_and(|last| now > last) {
            self.is_past = true;
            return;
        }
        self.now = now;
        if object.finished {
            self.jobs[number].ended = Some(now);
            return;
        }
        match &object.admission {
            Some(admission) => {
                self.admit(number, admission, object.reserved_at.unwrap_or(now));
                self.open -= usize::from(std::mem::take(&mut self.waits[number]));
            }
            None => {
                let (job, since) = (&mut self.jobs[number], std::mem::take(&mut self.since[number]));
                if let Some(holds) = since.holds {
                    job.evictions += 1;
                    job.evicted.get_or_insert(now);
                    job.lost += since.runs.map_or(Duration::ZERO, |from| from.max(holds).until(now));
                }
            }
        }
    }

    fn running(&mut self, number: usize, from: Time) {
        self.since[number].runs = Some(from);
        self.jobs[number].running.get_or_insert(from);
    }

    fn is_enough(&self) -> bool {
        let is_there = match self.until {
            Until::TheEnd => return false,
            Until::Limit { .. } => false,
            Until::Started { job, .. } => self.jobs.get(job).is_none_or(|job| job.admitted.is_some()),
            Until::AllStarted { .. } => self.open == 0,
        };
        is_there || self.cut().is_some()
    }
}
