//! Run times of jobs that have not ended, from those of jobs that have, and of those that still
//! run.
//!
//! The estimate of a job is a distribution: the run times of the last jobs of the same user and
//! size; if fewer than [`ENOUGH`] of them have ended, those of the same user, of the same tenant
//! and size, of the same tenant, or of all.
//!
//! - Jobs that still run count, too: they run longer than they have run so far. Without them, the
//!   jobs that have ended since a batch of jobs started are its shortest, and all others are taken
//!   to be as short. The distribution is the estimate of Kaplan and Meier, of the jobs in the order
//!   of their starts, back to the one with which [`KEPT`] of them have ended.
//! - Times longer than any that ended in a group are taken from the next wider group.
//! - A job that already runs for some time has a longer run time than that. No run time is longer
//!   than the declared limit.
//! - Jobs of one group vary together ([`Estimate::rank`]), as much as consecutive jobs of the group
//!   did.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use berth_engine::Name;
use berth_engine::model::Time;

use crate::trace::Job;

/// Number of run times that a distribution needs; a wider group is used otherwise.
pub const ENOUGH: usize = 5;
/// Number of run times that are kept per group.
pub const KEPT: usize = 60;
/// Shares that differ by less are equal.
const ROUNDING: f64 = 1e-9;
/// Maximum number of jobs that are kept per group, with those that still run.
const KEPT_WITH_RUNNING: usize = 20 * KEPT;

/// Jobs whose run times are taken together, from the closest to the widest.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Group {
    UserAndSize(Name, Name, i32),
    User(Name, Name),
    TenantAndSize(Name, i32),
    Tenant(Name),
    All,
}

fn groups(job: &Job) -> Vec<Group> {
    let tenant = &job.owner.tenant;
    let mut groups = Vec::with_capacity(5);
    if let Some(user) = &job.owner.user {
        groups.push(Group::UserAndSize(tenant.clone(), user.clone(), job.pods));
        groups.push(Group::User(tenant.clone(), user.clone()));
    }
    groups.extend([Group::TenantAndSize(tenant.clone(), job.pods), Group::Tenant(tenant.clone()), Group::All]);
    groups
}

/// A job of a group.
#[derive(Debug, Clone, Copy)]
struct Run {
    /// Its number in the order of all starts.
    number: u64,
    from: Time,
    /// Its run time, once it has ended.
    ended: Option<Duration>,
}

/// The last jobs of a group, in the order of their starts.
#[derive(Debug, Default)]
struct Runs {
    runs: VecDeque<Run>,
    /// Number of those that have ended.
    ended: usize,
}

impl Runs {
    fn start(&mut self, run: Run) {
        self.runs.push_back(run);
        self.trim();
    }

    fn place(&self, number: u64) -> Option<usize> {
        self.runs.binary_search_by_key(&number, |run| run.number).ok()
    }

    fn end(&mut self, number: u64, run_time: Duration) {
        let Some(place) = self.place(number) else { return };
        self.runs[place].ended = Some(run_time);
        self.ended += 1;
        self.trim();
    }

    fn forget(&mut self, number: u64) {
        if let Some(place) = self.place(number) {
            self.runs.remove(place);
        }
    }

    fn trim(&mut self) {
        while let Some(first) = self.runs.front() {
            let without = self.ended - usize::from(first.ended.is_some());
            if without < KEPT && self.runs.len() <= KEPT_WITH_RUNNING {
                break;
            }
            self.ended = without;
            self.runs.pop_front();
        }
    }

    /// What the jobs show at an instant.
    fn curve(&self, now: Time) -> Curve {
        let mut seen: Vec<(Duration, bool)> = self
            .runs
            .iter()
            .map(|run| match run.ended {
                Some(time) => (time, false),
                None => (run.from.until(now), true),
            })
            .collect();
        // A job that still runs after some time runs longer than one that ended then.
        seen.sort_unstable();
        let (mut left, count) = (1.0, seen.len());
        let mut curve = Curve { dependence: self.dependence(), ..Curve::default() };
        for (place, (time, runs)) in seen.into_iter().enumerate() {
            if runs {
                continue;
            }
            left *= 1.0 - 1.0 / (count - place) as f64;
            curve.times.push(time);
            curve.below.push(1.0 - left);
        }
        curve
    }

    /// Rank correlation of the run times of consecutive jobs; 0 if it is not positive.
    fn dependence(&self) -> f64 {
        let times: Vec<Duration> = self.runs.iter().filter_map(|run| run.ended).collect();
        let mut sorted = times.clone();
        sorted.sort_unstable();
        // Equal times share the mean of their ranks.
        let rank = |time: &Duration| {
            let (from, to) = (sorted.partition_point(|it| it < time), sorted.partition_point(|it| it <= time));
            (from + to) as f64
        };
        let ranks: Vec<f64> = times.iter().map(rank).collect();
        let mean = ranks.iter().sum::<f64>() / ranks.len().max(1) as f64;
        let variance = ranks.iter().map(|rank| (rank - mean).powi(2)).sum::<f64>() / ranks.len().max(1) as f64;
        let pairs = ranks.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean));
        let covariance = pairs.sum::<f64>() / ranks.len().saturating_sub(1).max(1) as f64;
        if variance > 0.0 { (covariance / variance).clamp(0.0, 1.0) } else { 0.0 }
    }
}

/// The distribution of the run times of a group, at one instant.
#[derive(Debug, Default, PartialEq)]
struct Curve {
    /// Run times of jobs that have ended, sorted.
    times: Vec<Duration>,
    /// Share of the run times up to each of them. The last one is below 1 if longer jobs still run.
    below: Vec<f64>,
    dependence: f64,
}

impl Curve {
    /// Share of the run times up to `time`.
    fn share(&self, time: Duration) -> f64 {
        let place = self.times.partition_point(|it| *it <= time);
        place.checked_sub(1).map_or(0.0, |place| self.below[place])
    }
}

/// Run times of the jobs that started so far.
#[derive(Debug, Default)]
pub struct Estimator {
    groups: HashMap<Group, (u64, Runs)>,
    longest: HashMap<Name, Duration>,
    /// The numbers of the jobs that run, in the order of all starts.
    running: HashMap<usize, u64>,
    starts: u64,
}

impl Estimator {
    /// A job started. `id` is any number that no other job has that runs.
    pub fn start(&mut self, id: usize, job: &Job, at: Time) {
        let run = Run { number: self.starts, from: at, ended: None };
        self.starts += 1;
        self.running.insert(id, run.number);
        for group in groups(job) {
            let next = self.groups.len() as u64;
            self.groups.entry(group).or_insert_with(|| (next, Runs::default())).1.start(run);
        }
    }

    /// A job ended that started before, with the run time of `job`.
    pub fn end(&mut self, id: usize, job: &Job) {
        let Some(number) = self.running.remove(&id) else { return };
        self.each(job, |runs| runs.end(number, job.run_time));
        let longest = self.longest.entry(job.owner.tenant.clone()).or_default();
        *longest = job.run_time.max(*longest);
    }

    /// A job was evicted: how long it would have run is not known.
    pub fn evict(&mut self, id: usize, job: &Job) {
        if let Some(number) = self.running.remove(&id) {
            self.each(job, |runs| runs.forget(number));
        }
    }

    fn each(&mut self, job: &Job, mut change: impl FnMut(&mut Runs)) {
        for group in groups(job) {
            if let Some((_, runs)) = self.groups.get_mut(&group) {
                change(runs);
            }
        }
    }

    /// What is known at an instant.
    pub fn at(&self, now: Time) -> Known<'_> {
        Known { estimator: self, now, curves: HashMap::new() }
    }

    /// The declared limit of a job; without one, the longest run time of its tenant so far, and one
    /// day if there is none.
    pub fn limit(&self, job: &Job) -> Duration {
        const DAY: Duration = Duration::from_secs(86_400);
        job.limit.or_else(|| self.longest.get(&job.owner.tenant).copied()).unwrap_or(DAY)
    }
}

/// What an [`Estimator`] knows at one instant.
#[derive(Debug)]
pub struct Known<'a> {
    estimator: &'a Estimator,
    now: Time,
    curves: HashMap<u64, Arc<Curve>>,
}

impl Known<'_> {
    /// The run time of a job that has run for `elapsed`; `None` if nothing is known about such
    /// jobs.
    pub fn estimate(&mut self, job: &Job, elapsed: Duration) -> Option<Estimate> {
        let mut found =
            Estimate { curves: Vec::new(), group: 0, elapsed, limit: job.limit.unwrap_or(Duration::MAX).max(elapsed) };
        for group in groups(job) {
            let Some((number, runs)) = self.estimator.groups.get(&group).filter(|(_, runs)| runs.ended >= ENOUGH)
            else {
                continue;
            };
            if found.curves.is_empty() {
                found.group = *number;
            }
            let now = self.now;
            let curve = self.curves.entry(*number).or_insert_with(|| Arc::new(runs.curve(now))).clone();
            found.curves.push(curve);
        }
        found.curves.iter().any(|curve| curve.times.last().is_some_and(|last| *last > elapsed)).then_some(found)
    }

    /// Like [`Known::estimate`]. If nothing is known about jobs that ran so long, they may run as
    /// long again, and new ones an hour.
    pub fn guess(&mut self, job: &Job, elapsed: Duration) -> Estimate {
        self.estimate(job, elapsed).unwrap_or_else(|| Estimate {
            curves: Vec::new(),
            group: 0,
            elapsed,
            limit: job.limit.unwrap_or(Duration::MAX).max(elapsed),
        })
    }
}

/// The distribution of the run time of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// From the closest group to the widest.
    curves: Vec<Arc<Curve>>,
    /// Number of the closest group.
    group: u64,
    elapsed: Duration,
    limit: Duration,
}

impl Estimate {
    /// The run time below which a share of such jobs stays, from 0 to 1.
    pub fn quantile(&self, share: f64) -> Duration {
        let (mut after, mut share) = (self.elapsed, share.clamp(0.0, 1.0 - 2.0 * ROUNDING));
        for curve in &self.curves {
            // Equal times of one group and the next are not longer.
            let (before, most) = (curve.share(after), curve.below.last().copied().unwrap_or(0.0));
            let left = 1.0 - before;
            if left <= ROUNDING || most <= before {
                continue;
            }
            let wanted = before + share * left;
            let place = curve.below.partition_point(|below| *below <= wanted + ROUNDING);
            if let Some(time) = curve.times.get(place) {
                return (*time).min(self.limit);
            }
            share = ((wanted - most) / (1.0 - most).max(ROUNDING)).clamp(0.0, 1.0 - 2.0 * ROUNDING);
            after = curve.times.last().copied().unwrap_or(after).max(after);
        }
        let longest = if after.is_zero() { Duration::from_secs(3600) } else { after * 2 };
        longest.min(self.limit)
    }

    /// The run time in one draw, of the job at a place.
    ///
    /// Jobs of one group vary together: with some chance, a job has the rank that is common to the
    /// group in this draw, and its own rank otherwise. The chance is the root of the correlation of
    /// consecutive jobs of the group, so that two jobs of a draw are correlated as much.
    pub fn drawn(&self, seed: u64, place: usize) -> Duration {
        self.quantile(self.rank(seed, place as u64))
    }

    /// The rank of a job in one draw, from 0 to 1.
    fn rank(&self, seed: u64, place: u64) -> f64 {
        let dependence = self.curves.first().map_or(0.0, |curve| curve.dependence);
        let is_common = unit(random(seed.rotate_left(32), place)) < dependence.sqrt();
        unit(if is_common { random(!seed, self.group) } else { random(seed, place) })
    }

    /// True if all draws are equal.
    pub fn is_certain(&self) -> bool {
        self.quantile(0.0) == self.quantile(1.0)
    }
}

/// A random number from 0 to 1.
fn unit(random: u64) -> f64 {
    (random >> 11) as f64 / (1_u64 << 53) as f64
}

/// Random numbers that depend on a seed and a position only (splitmix64): the same forecast draws
/// the same numbers on every machine.
pub fn random(seed: u64, position: u64) -> u64 {
    let mut mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(position.wrapping_mul(0xbf58_476d_1ce4_e5b9));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
