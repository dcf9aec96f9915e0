//! Compares forecasts within a replayed trace with what happened then.
//!
//! The trace is replayed under a policy. At the submissions of jobs that had to wait, evenly
//! chosen, a forecast is made from what was known at that instant: the jobs that ran and waited,
//! and their run times so far. Two anchors are computed from the same knowledge:
//!
//! - position: the job's position in its queue, times the mean time between the last starts of the
//!   queue;
//! - limits: Slurm's rule. The engine runs forward once, every job runs as long as its declared
//!   limit allows, and no job arrives.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use berth_engine::Name;
use berth_engine::model::{Time, WorkloadKey};
use berth_load::{History, JobRun};
use serde::Serialize;

use super::calibration::{Calibration, Made};
use super::estimate::{Estimate, Estimator, random};
use super::state::State;
use crate::replay::Replay;
use crate::trace::Trace;

/// Arrivals of this time are repeated in a forecast.
const REPEATED: Duration = Duration::from_secs(86_400);
/// Number of past days, one of which is repeated in a draw.
const DAYS_MAX: u32 = 7;
/// Number of starts from which the mean time between starts of a queue is taken.
const STARTS_KEPT: usize = 100;
/// Relative errors count true waits below this as this.
const LEAST_WAIT: Duration = Duration::from_secs(60);

/// How well forecasts matched a trace.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Backtest {
    /// Name of the policy.
    pub policy: String,
    /// Jobs that had to wait.
    pub waited: usize,
    /// Forecasts that were made.
    pub forecasts: usize,
    /// Forecasts that were "unknown", because the job did not start in some draws.
    pub unknown: usize,
    /// Share of the true starts at or before the 90th percentile of their forecast.
    pub within_p90: f64,
    /// Share of the true starts at or before the median of their forecast.
    pub within_median: f64,
    /// Errors of the median.
    pub median: Errors,
    /// Errors of the anchor "position times mean time between starts".
    pub position: Errors,
    /// Errors of the anchor "declared limits".
    pub limits: Errors,
}

/// Errors of a prediction.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Errors {
    /// Number of predictions.
    pub count: usize,
    /// Median of the absolute error in seconds.
    pub median_seconds: f64,
    /// Median of the absolute error, divided by the true wait, which counts at least a minute.
    pub median_relative: f64,
}

impl Errors {
    /// The errors of predictions, each with the true wait.
    fn of(pairs: &[(Duration, Duration)]) -> Errors {
        let error = |(predicted, truth): &(Duration, Duration)| predicted.abs_diff(*truth).as_secs_f64();
        let relative = |pair: &(Duration, Duration)| error(pair) / pair.1.max(LEAST_WAIT).as_secs_f64();
        let median = |mut values: Vec<f64>| {
            values.sort_unstable_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(0.0)
        };
        Errors {
            count: pairs.len(),
            median_seconds: median(pairs.iter().map(error).collect()),
            median_relative: median(pairs.iter().map(relative).collect()),
        }
    }
}

/// What a forecast says about one job, as times from its submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Forecast {
    /// The true wait.
    truth: Duration,
    /// Median and 90th percentile; `None` if unknown.
    predicted: Option<(Duration, Duration)>,
    position: Option<Duration>,
    limits: Option<Duration>,
}

/// Makes at most `forecasts` forecasts of `draws` draws each; calls `each` after each of them.
pub fn backtest(
    trace: &Trace,
    replay: &Replay<'_>,
    history: &History,
    forecasts: usize,
    draws: usize,
    each: &mut dyn FnMut(),
) -> Backtest {
    let mut waited: Vec<usize> = (0..trace.jobs.len())
        .filter(|number| {
            let record = &history.jobs[*number];
            record.first_started.is_some_and(|started| started > record.created)
        })
        .collect();
    let count = waited.len();
    if count > forecasts {
        waited = (0..forecasts).map(|at| waited[at * count / forecasts]).collect();
    }
    let mut past = Past::new(trace, history);
    let mut calibration = Calibration::default();
    let mut made: Vec<Forecast> = Vec::with_capacity(waited.len());
    for job in waited {
        let mut forecast = forecast(job, trace, replay, history, &mut past, draws);
        if let Some((median, drawn)) = forecast.predicted {
            let (created, queue) = (history.jobs[job].created, replay.cluster_queue(job));
            let stated = calibration.at(created).correct(queue, drawn, median);
            forecast.predicted = Some((median, stated));
            calibration.add(Made {
                workload: WorkloadKey {
                    namespace: replay.queue(job).namespace.clone(),
                    name: trace.jobs[job].name.clone(),
                },
                cluster_queue: queue.cloned().unwrap_or_else(|| Name::from("")),
                at: created,
                drawn,
                stated,
                started: Some(created.after(forecast.truth)),
            });
        }
        made.push(forecast);
        each();
    }
    let known: Vec<(Duration, (Duration, Duration))> =
        made.iter().filter_map(|it| Some((it.truth, it.predicted?))).collect();
    let share = |within: &dyn Fn(&(Duration, (Duration, Duration))) -> bool| {
        known.iter().filter(|it| within(it)).count() as f64 / known.len().max(1) as f64
    };
    let pairs = |predicted: &dyn Fn(&Forecast) -> Option<Duration>| {
        made.iter().filter_map(|it| Some((predicted(it)?, it.truth))).collect::<Vec<_>>()
    };
    Backtest {
        policy: replay.policy().name.clone(),
        waited: count,
        forecasts: made.len(),
        unknown: made.len() - known.len(),
        within_p90: share(&|(truth, (_, p90))| truth <= p90),
        within_median: share(&|(truth, (median, _))| truth <= median),
        median: Errors::of(&pairs(&|it| it.predicted.map(|(median, _)| median))),
        position: Errors::of(&pairs(&|it| it.position)),
        limits: Errors::of(&pairs(&|it| it.limits)),
    }
}

fn forecast(
    job: usize,
    trace: &Trace,
    replay: &Replay<'_>,
    history: &History,
    past: &mut Past<'_>,
    draws: usize,
) -> Forecast {
    let record = &history.jobs[job];
    past.advance(record.created);
    let mut state = past.state();
    let position = past.position(job, replay, &state);
    let estimator = &past.estimator;
    let alone = State { arrivals: Vec::new(), ..state.clone() };
    let limits = alone.start_of(job, replay, &history.holdings, &|_, number, elapsed| {
        estimator.limit(&trace.jobs[number]).max(elapsed)
    });
    let mut known = estimator.at(record.created);
    let estimates: Vec<Estimate> =
        (0..state.present()).map(|place| known.guess(&trace.jobs[state.number(place)], state.elapsed(place))).collect();
    let mut of_arrivals: HashMap<usize, Estimate> = HashMap::new();
    let days = past.days();
    let mut starts: Vec<Option<Duration>> = Vec::with_capacity(draws);
    for number in 0..draws {
        let seed = ((job as u64) << 16) | number as u64;
        state.arrivals = past.arrivals(1 + (random(seed, u64::MAX) % u64::from(days)) as u32);
        for (_, number) in &state.arrivals {
            of_arrivals.entry(*number).or_insert_with(|| known.guess(&trace.jobs[*number], Duration::ZERO));
        }
        starts.push(state.start_of(job, replay, &history.holdings, &|place, number, _| {
            estimates.get(place).unwrap_or_else(|| &of_arrivals[&number]).drawn(seed, place)
        }));
    }
    // A draw in which the job does not start comes last.
    starts.sort_unstable_by_key(|start| start.unwrap_or(Duration::MAX));
    let at = |percent: usize| starts.get((starts.len() * percent / 100).min(starts.len().saturating_sub(1)));
    let predicted = at(50).copied().flatten().zip(at(90).copied().flatten());
    let truth = record.first_started.map_or(Duration::MAX, |started| record.created.until(started));
    Forecast { truth, predicted, position, limits }
}

/// What is known at an instant that only moves forward.
struct Past<'a> {
    trace: &'a Trace,
    history: &'a History,
    now: Time,
    /// Indices of runs in order of their starts, and in order of their ends.
    by_start: Vec<usize>,
    by_end: Vec<usize>,
    started: usize,
    ended: usize,
    created: usize,
    running: BTreeMap<usize, (Time, u32)>,
    /// Jobs that were created and have not ended.
    open: BTreeMap<usize, Time>,
    estimator: Estimator,
    /// The last starts per cluster queue.
    starts: BTreeMap<Name, VecDeque<Time>>,
}

impl<'a> Past<'a> {
    fn new(trace: &'a Trace, history: &'a History) -> Past<'a> {
        let order = |key: &dyn Fn(&JobRun) -> Time| {
            let mut order: Vec<usize> = (0..history.runs.len()).collect();
            order.sort_by_key(|index| key(&history.runs[*index]));
            order
        };
        Past {
            trace,
            history,
            now: Time::UNSET,
            by_start: order(&|run| run.from),
            by_end: order(&|run| run.to.unwrap_or(Time(i64::MAX))),
            started: 0,
            ended: 0,
            created: 0,
            running: BTreeMap::new(),
            open: BTreeMap::new(),
            estimator: Estimator::default(),
            starts: BTreeMap::new(),
        }
    }

    /// Moves to an instant, after the decisions at that instant.
    fn advance(&mut self, now: Time) {
        self.now = now;
        while let Some(record) = self.history.jobs.get(self.created).filter(|record| record.created <= now) {
            self.open.insert(self.created, record.created);
            self.created += 1;
        }
        while let Some(index) = self.by_start.get(self.started).filter(|index| self.history.runs[**index].from <= now) {
            let run = &self.history.runs[*index];
            // A run that ended meanwhile is removed below.
            self.running.insert(run.job as usize, (run.from, run.holding));
            self.estimator.start(run.job as usize, &self.trace.jobs[run.job as usize], run.from);
            let queue = self.history.holdings[run.holding as usize].cluster_queue.clone();
            let starts = self.starts.entry(queue).or_default();
            starts.push_back(run.from);
            if starts.len() > STARTS_KEPT {
                starts.pop_front();
            }
            self.started += 1;
        }
        while let Some(index) = self.by_end.get(self.ended) {
            let run = &self.history.runs[*index];
            if run.to.is_none_or(|to| to > now) {
                break;
            }
            let number = run.job as usize;
            if self.running.get(&number).is_some_and(|(from, _)| *from == run.from) {
                self.running.remove(&number);
            }
            if run.evicted {
                self.estimator.evict(number, &self.trace.jobs[number]);
            } else {
                self.open.remove(&number);
                self.estimator.end(number, &self.trace.jobs[number]);
            }
            self.ended += 1;
        }
    }

    /// The jobs that run and wait now.
    fn state(&self) -> State {
        let waiting = self.open.iter().filter(|(number, _)| !self.running.contains_key(*number));
        State {
            at: Some(self.now),
            running: self.running.iter().map(|(number, (from, holding))| (*number, *from, *holding)).collect(),
            waiting: waiting.map(|(number, created)| (*number, *created)).collect(),
            arrivals: Vec::new(),
        }
    }

    /// Number of whole days in the past, from 1 to [`DAYS_MAX`].
    fn days(&self) -> u32 {
        let first = self.history.jobs.first().map_or(self.now, |record| record.created);
        ((first.until(self.now).as_secs() / REPEATED.as_secs()) as u32).clamp(1, DAYS_MAX)
    }

    /// The arrivals of a day that ended `day` - 1 days ago, as those of the next one.
    fn arrivals(&self, day: u32) -> Vec<(Duration, usize)> {
        let jobs = &self.history.jobs[..self.created];
        let ago = |record: &berth_load::JobRecord| record.created.until(self.now);
        let since = jobs.partition_point(|record| ago(record) >= REPEATED * day);
        let until = jobs.partition_point(|record| ago(record) >= REPEATED * (day - 1));
        let later = |number: usize| ((REPEATED * day).saturating_sub(ago(&jobs[number])), number);
        (since..until).map(later).filter(|(later, _)| !later.is_zero()).collect()
    }

    /// The first anchor for a job that waits.
    fn position(&self, job: usize, replay: &Replay<'_>, state: &State) -> Option<Duration> {
        let queue = replay.cluster_queue(job)?;
        let in_queue = state.waiting.iter().filter(|(number, _)| replay.cluster_queue(*number) == Some(queue));
        let position = u32::try_from(in_queue.take_while(|(number, _)| *number != job).count()).ok()? + 1;
        let starts = self.starts.get(queue).filter(|starts| starts.len() > 1)?;
        let between = starts.front()?.until(self.now) / u32::try_from(starts.len()).ok()?;
        Some(between.saturating_mul(position))
    }
}
