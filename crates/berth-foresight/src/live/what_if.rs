//! What would change, and for which jobs?
//!
//! The same state runs forward twice, once with the changes and once without, with the median of each
//! run time. Nothing is changed in the cluster.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_engine::Name;
use berth_engine::model::{Time, WorkloadKey};

use super::State;
use super::forecast::Prospect;
use super::future::{Future, JobFuture};

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
    pub before: Option<Fate>,
    /// With the changes; `None` if the job is not there.
    pub after: Option<Fate>,
}

/// What happens to a job in one future.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fate {
    /// When it is admitted; `None` if that is not known.
    pub admitted: Option<Time>,
    /// When all its pods run.
    pub running: Option<Time>,
    /// When it ends; `None` if that is not known.
    pub ended: Option<Time>,
    /// Flavors of its next admission.
    pub flavors: Vec<Name>,
    /// Number of evictions.
    pub evictions: u64,
    /// When it is evicted first.
    pub evicted: Option<Time>,
}

impl Row {
    /// True if the futures differ.
    pub fn differs(&self) -> bool {
        self.before != self.after
    }
}

/// Figures of one future.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
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
    /// Time until the last job with a known run time has ended.
    pub wall: Duration,
    /// Instants at which jobs preempt each other again and again.
    pub restless: u64,
}

/// Both futures.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// Now.
    pub at: Time,
    /// All jobs of both states, in order of creation.
    pub rows: Vec<Row>,
    /// Figures without the changes.
    pub before: Figures,
    /// Figures with the changes.
    pub after: Figures,
}

/// Compares the future of a state without changes to that of a state with changes.
pub fn compare(before: (&State, &Prospect), after: (&State, &Prospect)) -> Comparison {
    let (old, new) = (before.1.expected(), after.1.expected());
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
            before: Some(fate(future)),
            after: other.map(|number| fate(&new.jobs[number])),
        });
    }
    for (job, future) in after.0.jobs.iter().zip(&new.jobs) {
        if !known.contains_key(&job.key) {
            let fate = Some(fate(future));
            rows.push(Row { job: job.title(), is_new: true, holds: job.holds(), before: None, after: fate });
        }
    }
    Comparison { at: before.0.at, rows, before: figures(before.0, &old), after: figures(after.0, &new) }
}

fn fate(future: &JobFuture) -> Fate {
    Fate {
        admitted: future.admitted,
        running: future.running,
        ended: future.ended,
        flavors: future.flavors.clone(),
        evictions: future.evictions,
        evicted: future.evicted,
    }
}

fn figures(state: &State, future: &Future) -> Figures {
    let mut figures = Figures { wall: future.wall, restless: future.restless, ..Figures::default() };
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
