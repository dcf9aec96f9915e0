//! When does each waiting job start?
//!
//! The engine runs forward from the state as often as there are draws, each with other run times.
//! The admissions of all draws give the median and the 90th percentile. A job that is not admitted
//! in a draw, because it waits for jobs of unknown run time, counts as admitted last; if the
//! percentile is one of these, it is unknown. The percentile is corrected by earlier forecasts, if
//! the objects come with a record of them ([`record`](super::record)).

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use berth_engine::model::{Time, WorkloadKey};
use berth_engine::{Event, Name};

use super::future::{self, Future, Places, Until};
use super::run_times::{RunTime, RunTimes};
use super::{LiveJob, State};
use crate::forecast::calibration::Factors;
use crate::live::capacity::Pools;
use crate::objects::{ObjectRef, Objects, Template};

/// Most jobs that a forecast names as those it waits for.
const NAMED_MAX: usize = 5;

/// Number of waiting jobs after whose starts a forecast, or a comparison, ends: later starts depend
/// on too much that is not known, and an answer takes a few seconds at most.
pub const STARTS_MAX: usize = 20_000;

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
    /// 90th percentile of its admission, corrected by earlier forecasts.
    pub p90: Option<Time>,
    /// 90th percentile of its admission in the draws.
    pub drawn: Option<Time>,
    /// Median of the time at which all its pods run.
    pub running: Option<Time>,
    /// Flavors of its admission in the median draw.
    pub flavors: Vec<Name>,
    /// Jobs that end, or are evicted, when it is admitted in the median draw.
    pub waits_for: Vec<String>,
    /// Why the median is unknown.
    pub unknown: Option<Unknown>,
    /// Number of further jobs that it waits for, which are not named.
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

    /// Names only the first jobs that it waits for, and counts the others.
    pub fn name_at_most(&mut self, count: usize) {
        self.withheld += self.waits_for.len().saturating_sub(count);
        self.waits_for.truncate(count);
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
    factors: Factors,
    starts_max: usize,
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
            run_times: times.of_jobs(state),
            factors: objects.memory.as_ref().map(|memory| memory.calibration().at(state.at)).unwrap_or_default(),
            starts_max: STARTS_MAX,
        }
    }

    /// Ends forecasts and comparisons after the starts of so many waiting jobs, instead of
    /// [`STARTS_MAX`].
    #[must_use]
    pub fn with_starts_max(self, starts_max: usize) -> Prospect {
        Prospect { starts_max, ..self }
    }

    /// One future, with the run times that `choose` takes.
    pub fn run(&self, choose: impl Fn(usize, &RunTime) -> Duration, until: Until) -> Future {
        let mut load = self.load.clone();
        for (place, job) in load.jobs.iter_mut().enumerate() {
            job.run_time = choose(place, &self.run_times[place]);
        }
        future::run(&load, &self.config, Some(&self.pools), until)
    }

    /// The future with the median of each run time, up to the limit of starts and to the instant
    /// `last`.
    pub fn expected(&self, last: Option<Time>) -> Future {
        self.run(|_, time| time.median(), Until::Limit { starts_max: self.starts_max, last })
    }

    /// The number of starts of waiting jobs after which a future ends.
    pub fn starts_max(&self) -> usize {
        self.starts_max
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
        self.run_times.iter().all(|time| !matches!(time, RunTime::Learned(estimate) if !estimate.is_certain()))
    }
}

/// Forecasts of the waiting jobs of a state, in the order of their creation.
pub fn forecast(state: &State, prospect: &Prospect, plan: Plan) -> Vec<JobForecast> {
    let starts_max = prospect.starts_max;
    let until = plan.only.map_or(Until::AllStarted { starts_max }, |job| Until::Started { job, starts_max });
    let draws = if prospect.is_certain() { 1 } else { plan.draws.max(1) };
    let futures = drawn(prospect, draws, until);
    let ends = futures.iter().map(Ends::of).collect::<Vec<_>>();
    let places = Places::of(&prospect.load, &prospect.config);
    let waiting = state.jobs.iter().enumerate().filter(|(_, job)| !job.holds());
    let wanted = waiting.filter(|(number, _)| plan.only.is_none_or(|only| only == *number));
    let of_job = |(number, job)| JobForecast {
        place: places.of_job(job),
        ..of_job(state, prospect, &futures, &ends, number, job)
    };
    wanted.map(of_job).collect()
}

/// The jobs that end, or lose their quota, by the time.
struct Ends(HashMap<Time, Vec<usize>>);

impl Ends {
    fn of(future: &Future) -> Ends {
        let mut ends: HashMap<Time, Vec<usize>> = HashMap::new();
        for (number, job) in future.jobs.iter().enumerate() {
            for at in job.ended.into_iter().chain(job.evicted.filter(|at| job.ended != Some(*at))) {
                let numbers = ends.entry(at).or_default();
                if numbers.len() < NAMED_MAX {
                    numbers.push(number);
                }
            }
        }
        Ends(ends)
    }
}

/// The futures of all draws, as many at once as there are CPUs. Draws are independent, so the
/// result does not depend on the number of CPUs.
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

/// The forecast of a job, without its place.
fn of_job(
    state: &State,
    prospect: &Prospect,
    futures: &[Future],
    ends: &[Ends],
    number: usize,
    job: &LiveJob,
) -> JobForecast {
    let mut order: Vec<(Time, usize)> = futures
        .iter()
        .enumerate()
        .map(|(draw, future)| (future.jobs[number].admitted.unwrap_or(Time(i64::MAX)), draw))
        .collect();
    order.sort_unstable();
    let at = |percent: usize| order[(order.len() * percent / 100).min(order.len() - 1)];
    let known = |(time, _): (Time, usize)| (time != Time(i64::MAX)).then_some(time);
    let (median, drawn) = (known(at(50)), known(at(90)));
    let p90 = median.zip(drawn).map(|(median, drawn)| {
        let [drawn, median] = [drawn, median].map(|at| state.at.until(at));
        state.at.after(prospect.factors.correct(job.cluster_queue.as_ref(), drawn, median))
    });
    let in_median = at(50).1;
    let of_job = &futures[in_median].jobs[number];
    let waits_for = median.map(|median| ends_at(state, &ends[in_median], median)).unwrap_or_default();
    let is_cut = futures.iter().any(|future| future.cut.is_some());
    JobForecast {
        key: job.key.clone(),
        owner: job.owner.clone(),
        cluster_queue: job.cluster_queue.clone(),
        place: 0,
        median,
        p90,
        drawn,
        running: median.and(of_job.running),
        flavors: of_job.flavors.clone(),
        waits_for,
        unknown: median.is_none().then(|| why_unknown(state, prospect, job, is_cut)),
        withheld: 0,
    }
}

/// The first jobs that end or lose their quota at an instant after the start.
fn ends_at(state: &State, ends: &Ends, at: Time) -> Vec<String> {
    if at <= state.at {
        return Vec::new();
    }
    ends.0.get(&at).into_iter().flatten().map(|number| state.jobs[*number].title()).collect()
}

fn why_unknown(state: &State, prospect: &Prospect, job: &LiveJob, is_cut: bool) -> Unknown {
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
    if is_cut {
        let count = prospect.starts_max;
        return Unknown::Reason(format!(
            "it is not among the next {count} jobs to start, and forecasts do not go further; its place shows how many \
             wait before it"
        ));
    }
    let mut holders = state.jobs.iter().enumerate().filter(|(_, it)| it.holds());
    let unknown = holders.by_ref().filter(|(number, _)| prospect.is_unknown(*number));
    let names: Vec<String> = unknown.map(|(_, job)| job.title()).take(NAMED_MAX).collect();
    if names.is_empty() {
        return reason("no quota becomes free for it, even when all running jobs have ended");
    }
    Unknown::RunTimes(names)
}
