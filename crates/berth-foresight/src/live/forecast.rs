//! When does each waiting job start?
//!
//! The engine runs forward from the state as often as there are draws, each with other run times. The
//! admissions of all draws give the median and the 90th percentile. A job that is not admitted in a
//! draw, because it waits for jobs of unknown run time, counts as admitted last; if the percentile is
//! one of these, it is unknown.

use std::fmt;
use std::time::Duration;

use berth_engine::model::{Time, WorkloadKey};
use berth_engine::{Event, Name};

use super::future::{self, Future, Places, Until};
use super::run_times::{RunTime, RunTimes};
use super::{LiveJob, State};
use crate::live::capacity::Pools;
use crate::objects::{ObjectRef, Objects, Template};

/// Most jobs that a forecast names as those it waits for.
const NAMED_MAX: usize = 5;

/// How to forecast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Number of draws. One suffices if all run times are stated.
    pub draws: usize,
    /// Number of a job in the state, if only one is asked for.
    pub only: Option<usize>,
}

/// The forecast of one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobForecast {
    /// Its Workload.
    pub key: WorkloadKey,
    /// The job that owns it.
    pub owner: Option<ObjectRef>,
    /// The cluster queue.
    pub cluster_queue: Option<Name>,
    /// Its place in the cluster queue, from 1.
    pub place: usize,
    /// Median of its admission.
    pub median: Option<Time>,
    /// 90th percentile of its admission.
    pub p90: Option<Time>,
    /// Median of the time at which all its pods run.
    pub running: Option<Time>,
    /// Flavors of its admission in the median draw.
    pub flavors: Vec<Name>,
    /// Jobs that end, or are evicted, when it is admitted in the median draw.
    pub waits_for: Vec<String>,
    /// Why the median is unknown.
    pub unknown: Option<Unknown>,
    /// Number of further jobs that it waits for, and that the reader may not know.
    pub withheld: usize,
}

/// Why a start is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unknown {
    /// A property of the job or of its queue.
    Reason(String),
    /// Nothing is known about the run times of jobs that hold quota; some of them.
    RunTimes(Vec<String>),
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = match self {
            Unknown::Reason(reason) => return f.write_str(reason),
            Unknown::RunTimes(names) => names,
        };
        f.write_str("nothing is known about the run times of jobs that hold quota")?;
        if !names.is_empty() {
            write!(f, ", such as {}", names.join(", "))?;
        }
        f.write_str(
            "; declare a maximum with the label kueue.x-k8s.io/max-exec-time-seconds, or state a time with --run-time",
        )
    }
}

impl JobForecast {
    /// Removes the names of jobs in namespaces of which the reader may not list the workloads.
    pub fn withhold(&mut self, may_name: &dyn Fn(&str) -> bool) {
        let known = |title: &String| may_name(namespace(title));
        let before = self.waits_for.len();
        self.waits_for.retain(known);
        self.withheld += before - self.waits_for.len();
        if let Some(Unknown::RunTimes(names)) = &mut self.unknown {
            names.retain(known);
        }
    }

    /// Namespaces of the job and of those that it names.
    pub fn namespaces(&self) -> impl Iterator<Item = &str> {
        let unknown = match &self.unknown {
            Some(Unknown::RunTimes(names)) => names.as_slice(),
            _ => &[],
        };
        std::iter::once(&*self.key.namespace).chain(self.waits_for.iter().chain(unknown).map(|title| namespace(title)))
    }
}

/// The namespace of a job's title.
pub fn namespace(title: &str) -> &str {
    title.split_once('/').map_or("", |(namespace, _)| namespace)
}

/// Everything that runs of a state need.
#[derive(Debug)]
pub struct Prospect {
    load: crate::forward::Forward,
    config: berth_engine::EngineConfig,
    pools: Pools,
    run_times: Vec<RunTime>,
}

impl Prospect {
    /// Prepares a state.
    pub fn new(objects: &Objects, state: &State, times: &RunTimes, template: Template<'_>) -> Prospect {
        let mut pools = Pools::of(objects, state, template);
        for name in objects.flavors.keys() {
            let flavor = Name::from(name.as_str());
            if let Some(delay) = times.start_delay(&flavor) {
                pools.set_delay(flavor, delay);
            }
        }
        Prospect {
            load: future::load(objects, state),
            config: future::config(objects),
            pools,
            run_times: state.jobs.iter().map(|job| times.run_time(job, state.at)).collect(),
        }
    }

    /// One future, with the run times that `choose` takes.
    pub fn run(&self, choose: impl Fn(usize, &RunTime) -> Duration, until: Until) -> Future {
        let mut load = self.load.clone();
        for (place, job) in load.jobs.iter_mut().enumerate() {
            job.run_time = choose(place, &self.run_times[place]);
        }
        future::run(&load, &self.config, Some(&self.pools), until)
    }

    /// The future with the median of each run time.
    pub fn expected(&self) -> Future {
        self.run(|_, time| time.median(), Until::TheEnd)
    }

    /// The configuration objects of the state.
    pub fn objects(&self) -> &[Event] {
        &self.load.objects
    }

    /// The median of a job's run time; it lies beyond the end of a future if it is not known.
    pub fn run_time(&self, number: usize) -> Duration {
        self.run_times.get(number).map_or(Duration::MAX, RunTime::median)
    }

    /// True if the run time of a job is not known.
    pub fn is_unknown(&self, number: usize) -> bool {
        self.run_times.get(number).is_none_or(|time| *time == RunTime::Unknown)
    }

    /// True if all draws are equal.
    fn is_certain(&self) -> bool {
        self.run_times.iter().all(|time| !matches!(time, RunTime::OneOf(times) if times.len() > 1))
    }
}

/// Forecasts of the waiting jobs of a state, in the order of their creation.
pub fn forecast(state: &State, prospect: &Prospect, plan: Plan) -> Vec<JobForecast> {
    let until = plan.only.map_or(Until::AllStarted, Until::Started);
    let draws = if prospect.is_certain() { 1 } else { plan.draws.max(1) };
    let futures = drawn(prospect, draws, until);
    let places = Places::of(&prospect.load, &prospect.config);
    let waiting = state.jobs.iter().enumerate().filter(|(_, job)| !job.holds());
    let wanted = waiting.filter(|(number, _)| plan.only.is_none_or(|only| only == *number));
    wanted.map(|(number, job)| of_job(state, prospect, &futures, number, places.of_job(job))).collect()
}

/// The futures of all draws, as many at once as there are CPUs. Draws are independent, so the result
/// does not depend on the number of CPUs.
fn drawn(prospect: &Prospect, draws: usize, until: Until) -> Vec<Future> {
    let one = |number: usize| prospect.run(|place, time| time.drawn(number as u64, place), until);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(draws);
    if threads == 1 {
        return (0..draws).map(one).collect();
    }
    let share = |first: usize| -> Vec<(usize, Future)> {
        (first..draws).step_by(threads).map(|number| (number, one(number))).collect()
    };
    let share = &share;
    let mut all: Vec<(usize, Future)> = Vec::with_capacity(draws);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|first| scope.spawn(move || share(first))).collect();
        for worker in workers {
            match worker.join() {
                Ok(done) => all.extend(done),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    all.sort_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, future)| future).collect()
}

fn of_job(state: &State, prospect: &Prospect, futures: &[Future], number: usize, place: usize) -> JobForecast {
    let job = &state.jobs[number];
    let mut order: Vec<(Time, usize)> = futures
        .iter()
        .enumerate()
        .map(|(draw, future)| (future.jobs[number].admitted.unwrap_or(Time(i64::MAX)), draw))
        .collect();
    order.sort_unstable();
    let at = |percent: usize| order[(order.len() * percent / 100).min(order.len() - 1)];
    let known = |(time, _): (Time, usize)| (time != Time(i64::MAX)).then_some(time);
    let (median, p90) = (known(at(50)), known(at(90)));
    let in_median = &futures[at(50).1];
    let of_job = &in_median.jobs[number];
    let waits_for = median.map(|median| ends_at(state, in_median, median)).unwrap_or_default();
    JobForecast {
        key: job.key.clone(),
        owner: job.owner.clone(),
        cluster_queue: job.cluster_queue.clone(),
        place,
        median,
        p90,
        running: median.and(of_job.running),
        flavors: of_job.flavors.clone(),
        waits_for,
        unknown: median.is_none().then(|| why_unknown(state, prospect, job)),
        withheld: 0,
    }
}

/// The jobs that end or lose their quota at an instant after the start.
fn ends_at(state: &State, future: &Future, at: Time) -> Vec<String> {
    if at <= state.at {
        return Vec::new();
    }
    let ends = state.jobs.iter().zip(&future.jobs);
    let ends = ends.filter(|(_, future)| future.ended == Some(at) || future.evicted == Some(at));
    ends.take(NAMED_MAX).map(|(job, _)| job.title()).collect()
}

fn why_unknown(state: &State, prospect: &Prospect, job: &LiveJob) -> Unknown {
    let workload = &job.workload;
    let reason = |reason: &str| Unknown::Reason(reason.to_owned());
    if job.cluster_queue.is_none() {
        let queue = &workload.queue;
        return Unknown::Reason(format!("its LocalQueue {queue} does not exist or leads to no ClusterQueue"));
    }
    if !workload.active {
        return reason("it is not active (spec.active is false)");
    }
    if workload.on_hold || workload.admission_gated {
        return reason("it is on hold");
    }
    if let Some(problem) = &workload.inadmissible {
        return reason(problem);
    }
    let mut holders = state.jobs.iter().enumerate().filter(|(_, it)| it.holds());
    let unknown = holders.by_ref().filter(|(number, _)| prospect.is_unknown(*number));
    let names: Vec<String> = unknown.map(|(_, job)| job.title()).take(NAMED_MAX).collect();
    if names.is_empty() {
        return reason("no quota becomes free for it, even when all running jobs have ended");
    }
    Unknown::RunTimes(names)
}
