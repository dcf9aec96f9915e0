//! The figures of a replay: waits, slowdown, use, fairness, lost work and cost.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_engine::Name;
use berth_engine::model::Time;
use berth_load::{History, JobRecord, JobRun};
use serde::Serialize;

use crate::policy::{Policy, Prices, unit};
use crate::trace::{Job, Trace};

/// Run times below this count as this in the bounded slowdown, so that jobs of a second do not
/// decide it: ten seconds, as in the literature on job scheduling.
pub const SLOWDOWN_BOUND: Duration = Duration::from_secs(10);
/// Number of intervals of the figures over time.
pub const INTERVALS: usize = 240;

/// The figures of one policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Figures {
    /// Name of the policy.
    pub policy: String,
    /// Number of jobs.
    pub jobs: usize,
    /// Jobs that ran to their end.
    pub finished: usize,
    /// Jobs that never started: no capacity of the policy is large enough, or their queue is
    /// blocked by such a job.
    pub never_started: usize,
    /// Time from the first submission to the last end, in seconds.
    pub makespan_seconds: f64,
    /// Time from the submission of a job to the start of the run that finished, in seconds.
    pub wait_seconds: Distribution,
    /// Wait and run time, divided by the run time, which counts at least [`SLOWDOWN_BOUND`].
    pub slowdown: Distribution,
    /// Share of nominal quota in use per resource, from the first submission to the last end.
    pub utilization: BTreeMap<Name, f64>,
    /// The same until the last submission: without the drain at the end.
    pub utilization_until_last_submission: BTreeMap<Name, f64>,
    /// Jain's index over the tenants' served share (see [`TenantFigures::served`]): 1 if all
    /// tenants are served alike, 1/n if one of n tenants is served alone.
    pub fairness: f64,
    /// Jain's index over the tenants' mean bounded slowdown: 1 if all tenants are slowed down
    /// alike.
    pub slowdown_fairness: f64,
    /// Number of evictions.
    pub evictions: u64,
    /// Work lost by evictions per resource, in unit hours.
    pub lost_hours: BTreeMap<Name, f64>,
    /// Cost of all used quota, lost work included; `None` without prices.
    pub cost: Option<f64>,
    /// Cost of the work that evictions lost.
    pub lost_cost: Option<f64>,
    /// Figures of each tenant.
    pub tenants: BTreeMap<Name, TenantFigures>,
    /// Figures over time.
    pub over_time: OverTime,
    /// Number of scheduling cycles.
    pub cycles: u64,
    /// Number of instants at which decisions did not come to rest, because workloads preempted each
    /// other again and again.
    pub restless_instants: u64,
}

/// The figures of one tenant.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TenantFigures {
    /// Number of jobs.
    pub jobs: usize,
    /// Waits in seconds.
    pub wait_seconds: Distribution,
    /// Bounded slowdowns.
    pub slowdown: Distribution,
    /// Work of finished jobs per resource, in unit hours.
    pub work_hours: BTreeMap<Name, f64>,
    /// Served share: work done until the last submission, divided by the work that would be done
    /// until then if each job started at its submission. In the trace's main resource.
    pub served: f64,
    /// Number of evictions.
    pub evictions: u64,
}

/// Figures over time, as means of equal intervals.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OverTime {
    /// Length of an interval in seconds.
    pub interval_seconds: f64,
    /// Share of nominal quota in use, per resource.
    pub utilization: BTreeMap<Name, Vec<f64>>,
    /// Number of jobs that wait.
    pub waiting: Vec<f64>,
}

/// Mean and percentiles.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Distribution {
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub median: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Maximum.
    pub max: f64,
}

impl Distribution {
    /// The statistics of values, which are sorted in place. All are zero without values.
    pub fn of(values: &mut [f64]) -> Distribution {
        values.sort_unstable_by(f64::total_cmp);
        let Some(last) = values.last().copied() else { return Distribution::default() };
        let at = |percent: usize| values[(values.len() * percent / 100).min(values.len() - 1)];
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        Distribution { mean, median: at(50), p90: at(90), p99: at(99), max: last }
    }
}

/// The resource in which tenants are compared: GPUs if any job requests some, else CPUs, else the
/// first one.
pub fn main_resource(trace: &Trace) -> Name {
    let mut found: Option<&Name> = None;
    for resource in trace.jobs.iter().flat_map(|job| job.requests.keys()) {
        if resource.contains("gpu") {
            return resource.clone();
        }
        if found.is_none_or(|known| &**resource == "cpu" && &**known != "cpu") {
            found = Some(resource);
        }
    }
    found.cloned().unwrap_or_else(|| Name::from("cpu"))
}

/// The figures of a trace that was replayed under a policy.
pub fn figures(trace: &Trace, policy: &Policy, history: &History) -> Figures {
    let start = history.start.unwrap_or(Time::UNSET);
    let last_submission = start.after(trace.jobs.last().map_or(Duration::ZERO, |job| job.submitted));
    let end = start.after(history.wall);
    let records = || trace.jobs.iter().zip(&history.jobs);
    let (mut waits, mut slowdowns) = waits(records());
    let use_until = |until: Time| utilization(history, &policy.quota(), start, until);
    let tenants = tenants(trace, history, last_submission);
    let served: Vec<f64> = tenants.values().map(|tenant| tenant.served).collect();
    let finishing = tenants.values().filter(|tenant| tenant.slowdown.mean > 0.0);
    let slowdown_means: Vec<f64> = finishing.map(|tenant| tenant.slowdown.mean).collect();
    let priced = |lost_only: bool| cost(history, &policy.prices, (start, end), lost_only);
    Figures {
        policy: policy.name.clone(),
        jobs: trace.jobs.len(),
        finished: history.jobs.iter().filter(|record| record.ended.is_some()).count(),
        never_started: history.jobs.iter().filter(|record| record.first_started.is_none()).count(),
        makespan_seconds: history.wall.as_secs_f64(),
        wait_seconds: Distribution::of(&mut waits),
        slowdown: Distribution::of(&mut slowdowns),
        utilization: use_until(end),
        utilization_until_last_submission: use_until(last_submission),
        fairness: jain(&served),
        slowdown_fairness: jain(&slowdown_means),
        evictions: history.jobs.iter().map(|record| record.evictions).sum(),
        lost_hours: hours(history, |run| run.evicted),
        cost: priced(false),
        lost_cost: priced(true),
        tenants,
        over_time: over_time(history, &policy.quota(), start, end),
        cycles: history.cycles,
        restless_instants: history.restless,
    }
}

/// Jain's fairness index of non-negative values: 1 if all are equal, 1/n if all but one are zero.
pub fn jain(values: &[f64]) -> f64 {
    let (sum, squares) = values.iter().fold((0.0, 0.0), |(sum, squares), value| (sum + value, squares + value * value));
    if squares > 0.0 { sum * sum / (values.len() as f64 * squares) } else { 1.0 }
}

/// Waits and bounded slowdowns of the jobs that finished.
fn waits<'a>(jobs: impl Iterator<Item = (&'a Job, &'a JobRecord)>) -> (Vec<f64>, Vec<f64>) {
    let finished = jobs.filter(|(_, record)| record.ended.is_some());
    let wait = |(job, record): (&Job, &JobRecord)| {
        let wait = record.created.until(record.started?).as_secs_f64();
        let run = job.run_time.as_secs_f64();
        Some((wait, slowdown(wait, run)))
    };
    finished.filter_map(wait).unzip()
}

/// The bounded slowdown of a job, from its wait and its run time in seconds.
pub(crate) fn slowdown(wait: f64, run: f64) -> f64 {
    ((wait + run) / run.max(SLOWDOWN_BOUND.as_secs_f64())).max(1.0)
}

fn tenants(trace: &Trace, history: &History, until: Time) -> BTreeMap<Name, TenantFigures> {
    let resource = main_resource(trace);
    let mut members: BTreeMap<Name, Vec<usize>> = BTreeMap::new();
    for (number, job) in trace.jobs.iter().enumerate() {
        members.entry(job.owner.tenant.clone()).or_default().push(number);
    }
    // Work that was kept: in all, and until the last submission.
    let mut done: Vec<f64> = vec![0.0; trace.jobs.len()];
    let mut kept: Vec<(u32, f64)> = vec![(0, 0.0); trace.jobs.len()];
    for run in history.runs.iter().filter(|run| !run.evicted) {
        let number = run.job as usize;
        done[number] += run.from.until(run.to.unwrap_or(until).min(until)).as_secs_f64();
        kept[number] = (run.holding, run.to.map_or(0.0, |to| run.from.until(to).as_secs_f64()));
    }
    let figures = |numbers: Vec<usize>| {
        let records = numbers.iter().map(|number| (&trace.jobs[*number], &history.jobs[*number]));
        let (mut waits, mut slowdowns) = waits(records.clone());
        let mut work_hours: BTreeMap<Name, f64> = BTreeMap::new();
        let (mut served, mut wanted) = (0.0, 0.0);
        for number in &numbers {
            let (job, record) = (&trace.jobs[*number], &history.jobs[*number]);
            let demand = job.demand(&resource) as f64;
            served += demand * done[*number];
            wanted += demand * job.run_time.min(record.created.until(until)).as_secs_f64();
            let (holding, seconds) = kept[*number];
            for (_, resource, amount) in history.holdings.get(holding as usize).into_iter().flat_map(|it| &it.amounts) {
                *work_hours.entry(resource.clone()).or_default() += *amount as f64 / unit(resource) * seconds / 3600.0;
            }
        }
        TenantFigures {
            jobs: numbers.len(),
            wait_seconds: Distribution::of(&mut waits),
            slowdown: Distribution::of(&mut slowdowns),
            work_hours,
            served: if wanted > 0.0 { (served / wanted).min(1.0) } else { 1.0 },
            evictions: records.map(|(_, record)| record.evictions).sum(),
        }
    };
    members.into_iter().map(|(tenant, numbers)| (tenant, figures(numbers))).collect()
}

/// Unit hours per resource of the runs that are selected.
fn hours(history: &History, selected: impl Fn(&JobRun) -> bool) -> BTreeMap<Name, f64> {
    let mut hours: BTreeMap<Name, f64> = BTreeMap::new();
    for run in history.runs.iter().filter(|run| selected(run)) {
        let Some(to) = run.to else { continue };
        let time = run.from.until(to).as_secs_f64() / 3600.0;
        for (_, resource, amount) in &history.holdings[run.holding as usize].amounts {
            *hours.entry(resource.clone()).or_default() += *amount as f64 / unit(resource) * time;
        }
    }
    hours
}

/// Cost of the quota used between two instants, or of the part whose work evictions lost; `None`
/// without prices.
pub(crate) fn cost(history: &History, prices: &Prices, (start, end): (Time, Time), lost_only: bool) -> Option<f64> {
    if prices.is_empty() {
        return None;
    }
    // Price per hour of each holding.
    let rates: Vec<f64> = history
        .holdings
        .iter()
        .map(|holding| {
            let amounts = holding.amounts.iter();
            amounts
                .map(|(flavor, resource, amount)| *amount as f64 / unit(resource) * prices.of(flavor, resource))
                .sum()
        })
        .collect();
    let is_lost = |run: &JobRun| run.evicted && run.to.is_some_and(|to| to <= end);
    let runs = history.runs.iter().filter(|run| !lost_only || is_lost(run));
    let hours = |run: &JobRun| run.from.max(start).until(run.to.unwrap_or(end).min(end)).as_secs_f64() / 3600.0;
    Some(runs.map(|run| rates[run.holding as usize] * hours(run)).sum())
}

/// Share of nominal quota in use between two instants, per resource.
pub(crate) fn utilization(
    history: &History,
    quota: &BTreeMap<Name, i64>,
    start: Time,
    until: Time,
) -> BTreeMap<Name, f64> {
    let time = start.until(until).as_secs_f64();
    let mut used: BTreeMap<&Name, f64> = quota.keys().map(|resource| (resource, 0.0)).collect();
    for run in &history.runs {
        let seconds = run.from.max(start).until(run.to.unwrap_or(until).min(until)).as_secs_f64();
        for (_, resource, amount) in &history.holdings[run.holding as usize].amounts {
            if let Some(used) = used.get_mut(resource) {
                *used += *amount as f64 * seconds;
            }
        }
    }
    let share = |resource: &Name, used: f64| {
        let possible = quota[resource] as f64 * time;
        if possible > 0.0 { used / possible } else { 0.0 }
    };
    used.into_iter().map(|(resource, used)| (resource.clone(), share(resource, used))).collect()
}

fn over_time(history: &History, quota: &BTreeMap<Name, i64>, start: Time, end: Time) -> OverTime {
    let total = start.until(end).as_secs_f64();
    let interval = (total / INTERVALS as f64).max(f64::MIN_POSITIVE);
    let mut waiting = vec![0.0; INTERVALS];
    let mut used: BTreeMap<Name, Vec<f64>> = quota.keys().map(|name| (name.clone(), vec![0.0; INTERVALS])).collect();
    let seconds = |at: Time| start.until(at.min(end)).as_secs_f64();
    let mut busy: Vec<Vec<f64>> = vec![vec![0.0; INTERVALS]; history.holdings.len()];
    for run in &history.runs {
        spread(&mut busy[run.holding as usize], interval, seconds(run.from), run.to.map_or(total, seconds), 1.0);
    }
    for (holding, busy) in history.holdings.iter().zip(&busy) {
        for (_, resource, amount) in &holding.amounts {
            let (Some(series), Some(quota)) = (used.get_mut(resource), quota.get(resource)) else { continue };
            for (sum, time) in series.iter_mut().zip(busy) {
                *sum += *amount as f64 * time / interval / (*quota).max(1) as f64;
            }
        }
    }
    // A job waits from its creation to its end, except while it runs.
    for record in &history.jobs {
        let to = record.ended.map_or(total, seconds);
        spread(&mut waiting, interval, seconds(record.created), to, 1.0 / interval);
    }
    for run in &history.runs {
        spread(&mut waiting, interval, seconds(run.from), run.to.map_or(total, seconds), -1.0 / interval);
    }
    for value in &mut waiting {
        // Sums of floating-point numbers leave a rest where nothing waits.
        *value = (*value * 1e6).round().max(0.0) / 1e6;
    }
    OverTime { interval_seconds: interval, utilization: used, waiting }
}

/// Adds `rate` times the part of `from..to` that lies in each interval.
fn spread(series: &mut [f64], interval: f64, from: f64, to: f64, rate: f64) {
    if to <= from {
        return;
    }
    let last = series.len() - 1;
    let (first, end) = (((from / interval) as usize).min(last), ((to / interval) as usize).min(last));
    for (number, value) in series.iter_mut().enumerate().take(end + 1).skip(first) {
        let (left, right) = (number as f64 * interval, (number + 1) as f64 * interval);
        *value += rate * (to.min(right) - from.max(left)).max(0.0);
    }
}
