//! What would change, and for which jobs?
//!
//! The same state runs forward twice, once with the changes and once without, with the median of
//! each run time. Nothing is changed in the cluster.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_engine::Name;
use berth_engine::model::{Time, WorkloadKey};

use super::State;
use super::forecast::Prospect;
use super::future::{Future, JobFuture};
use crate::figures::{cost, jain, slowdown, utilization};
use crate::policy::{Prices, nominal_quota};

/// A job in both futures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// `namespace/name` of the job.
    pub job: String,
    /// True if a change submits it.
    pub is_new: bool,
    /// True if it holds quota now.
    pub holds: bool,
    /// Without the changes; `None` if the job is not there.
    pub before: Option<JobFuture>,
    /// With the changes; `None` if the job is not there.
    pub after: Option<JobFuture>,
}

impl Row {
    /// True if the futures differ.
    pub fn differs(&self) -> bool {
        self.before != self.after
    }
}

/// Figures of one future.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Figures {
    /// Waiting jobs that are admitted.
    pub admitted: usize,
    /// Waiting jobs whose admission is not known.
    pub unknown: usize,
    /// Mean time from now to the admission of the waiting jobs that are admitted.
    pub wait_mean: Duration,
    /// Longest such time.
    pub wait_max: Duration,
    /// Evictions.
    pub evictions: u64,
    /// Work that evictions lose.
    pub lost: Duration,
    /// Share of nominal quota in use per resource, from now until the last waiting job of both
    /// futures is admitted: later, nothing competes for it. Empty if nothing waits.
    pub utilization: BTreeMap<Name, f64>,
    /// Jain's index over the mean bounded slowdowns of the cluster queues' jobs that end: 1 if all
    /// queues' jobs are slowed down alike.
    pub fairness: f64,
    /// Cost of the quota used from now until the last job of both futures has ended; `None` without
    /// prices.
    pub cost: Option<f64>,
    /// The part of the cost whose work evictions lose.
    pub lost_cost: Option<f64>,
    /// Time until the last job with a known run time has ended, or the futures end.
    pub wall: Duration,
    /// Instants at which jobs preempt each other again and again.
    pub restless: u64,
}

/// Where two futures end before everything has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// The end of both futures: nothing later is known.
    pub at: Time,
    /// The number of starts of waiting jobs that ended them.
    pub starts_max: usize,
}

/// Both futures.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// Now.
    pub at: Time,
    /// The common end of both futures, if one of them reached the limit of starts.
    pub cut: Option<Cut>,
    /// All jobs of both states, in order of creation.
    pub rows: Vec<Row>,
    /// Figures without the changes.
    pub before: Figures,
    /// Figures with the changes.
    pub after: Figures,
}

/// A state and what its future needs.
pub type Side<'a> = (&'a State, &'a Prospect);

/// Compares the future of a state without changes to that of a state with changes.
pub fn compare(before: Side<'_>, after: Side<'_>, prices: &Prices) -> Comparison {
    let (old, new) = futures(before.1, after.1);
    let mut rows = Vec::new();
    let numbers = |state: &State| -> BTreeMap<WorkloadKey, usize> {
        state.jobs.iter().enumerate().map(|(number, job)| (job.key.clone(), number)).collect()
    };
    let (known, changed) = (numbers(before.0), numbers(after.0));
    for (job, future) in before.0.jobs.iter().zip(&old.jobs) {
        let other = changed.get(&job.key).copied();
        rows.push(Row {
            job: job.title(),
            is_new: false,
            holds: job.holds(),
            before: Some(future.clone()),
            after: other.map(|number| new.jobs[number].clone()),
        });
    }
    for (job, future) in after.0.jobs.iter().zip(&new.jobs) {
        if !known.contains_key(&job.key) {
            let after = Some(future.clone());
            rows.push(Row { job: job.title(), is_new: true, holds: job.holds(), before: None, after });
        }
    }
    let spans = [(before.0, &old), (after.0, &new)].map(|(state, future)| Span::of(state, future));
    let span = Span { contended: spans[0].contended.max(spans[1].contended), all: spans[0].all.max(spans[1].all) };
    Comparison {
        at: before.0.at,
        cut: new.cut.or(old.cut).map(|at| Cut { at, starts_max: before.1.starts_max() }),
        rows,
        before: figures(before, &old, span, prices),
        after: figures(after, &new, span, prices),
    }
}

/// The futures without and with the changes. If one of them reaches the limit of starts, both end
/// at the earlier end: a job that starts in one of them only would look like a difference.
fn futures(before: &Prospect, after: &Prospect) -> (Future, Future) {
    let old = before.expected(None);
    let new = after.expected(old.cut);
    match new.cut {
        Some(at) if old.cut != Some(at) => (before.expected(Some(at)), new),
        _ => (old, new),
    }
}

/// Ends of the times to which figures refer. Both futures are measured over the same times.
#[derive(Clone, Copy)]
struct Span {
    /// The last admission of a job that waits now.
    contended: Time,
    /// The end of the last job.
    all: Time,
}

impl Span {
    fn of(state: &State, future: &Future) -> Span {
        let waiting = state.jobs.iter().zip(&future.jobs).filter(|(job, _)| !job.holds());
        let last = waiting.filter_map(|(_, future)| future.admitted).max();
        Span { contended: future.cut.or(last).unwrap_or(state.at).max(state.at), all: last_end(state, future) }
    }
}

/// The end of the last job whose end is known, or of the future if it is cut.
fn last_end(state: &State, future: &Future) -> Time {
    future.cut.or_else(|| future.jobs.iter().filter_map(|job| job.ended).max()).unwrap_or(state.at)
}

fn figures((state, prospect): Side<'_>, future: &Future, span: Span, prices: &Prices) -> Figures {
    let history = &future.history;
    let priced = |lost_only: bool| cost(history, prices, (state.at, span.all), lost_only);
    let quota = if span.contended > state.at { nominal_quota(prospect.objects()) } else { BTreeMap::new() };
    let mut figures = Figures {
        wall: state.at.until(last_end(state, future)),
        restless: history.restless,
        utilization: utilization(history, &quota, state.at, span.contended),
        fairness: fairness(state, prospect, future),
        cost: priced(false),
        lost_cost: priced(true),
        ..Figures::default()
    };
    let mut waits = Vec::new();
    for (job, of_job) in state.jobs.iter().zip(&future.jobs) {
        figures.evictions += of_job.evictions;
        figures.lost += of_job.lost;
        if job.holds() {
            continue;
        }
        match of_job.admitted {
            Some(at) => waits.push(state.at.until(at)),
            None => figures.unknown += 1,
        }
    }
    figures.admitted = waits.len();
    figures.wait_max = waits.iter().max().copied().unwrap_or_default();
    let count = u32::try_from(waits.len()).unwrap_or(u32::MAX).max(1);
    figures.wait_mean = waits.iter().sum::<Duration>() / count;
    figures
}

/// Jain's index over the cluster queues' mean slowdowns.
fn fairness(state: &State, prospect: &Prospect, future: &Future) -> f64 {
    let mut slowdowns: BTreeMap<&Name, Vec<f64>> = BTreeMap::new();
    for (number, (job, of_job)) in state.jobs.iter().zip(&future.jobs).enumerate() {
        let (Some(queue), Some(ended)) = (&job.cluster_queue, of_job.ended) else { continue };
        let run = prospect.run_time(number).as_secs_f64();
        let wait = job.workload.created.until(ended).as_secs_f64() - run;
        slowdowns.entry(queue).or_default().push(slowdown(wait.max(0.0), run));
    }
    let means: Vec<f64> =
        slowdowns.values().map(|of_queue| of_queue.iter().sum::<f64>() / of_queue.len() as f64).collect();
    jain(&means)
}
