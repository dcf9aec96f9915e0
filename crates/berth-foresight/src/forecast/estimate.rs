//! Run times of jobs that have not ended, from those of jobs that have.
//!
//! The estimate of a job is a distribution: the run times of the last jobs of the same user and
//! size; if there are fewer than [`ENOUGH`], those of the same user, of the same tenant and size,
//! of the same tenant, or of all. A job that already runs for some time has a longer run time than
//! that. No run time is longer than the declared limit.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use berth_engine::Name;

use crate::trace::Job;

/// Number of run times that a distribution needs; a wider group is used otherwise.
pub const ENOUGH: usize = 5;
/// Number of run times that are kept per group.
pub const KEPT: usize = 60;

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

/// Run times of the jobs that ended so far.
#[derive(Debug, Default)]
pub struct Estimator {
    groups: HashMap<Group, VecDeque<Duration>>,
    longest: HashMap<Name, Duration>,
}

impl Estimator {
    /// Learns the run time of a job that ended.
    pub fn learn(&mut self, job: &Job) {
        for group in groups(job) {
            let times = self.groups.entry(group).or_default();
            times.push_back(job.run_time);
            if times.len() > KEPT {
                times.pop_front();
            }
        }
        let longest = self.longest.entry(job.owner.tenant.clone()).or_default();
        *longest = job.run_time.max(*longest);
    }

    /// The run times from which those of a job that has run for `elapsed` are drawn, sorted; all of
    /// them are longer than `elapsed`.
    pub fn distribution(&self, job: &Job, elapsed: Duration) -> Vec<Duration> {
        if let Some(times) = self.known(job, elapsed) {
            return times;
        }
        // Nothing is known about jobs that ran so long: they may run as long again.
        let limit = job.limit.unwrap_or(Duration::MAX).max(elapsed);
        let longest = if elapsed.is_zero() { Duration::from_secs(3600) } else { elapsed * 2 };
        vec![longest.min(limit)]
    }

    /// Like [`Estimator::distribution`]; `None` if nothing is known about such jobs.
    pub fn known(&self, job: &Job, elapsed: Duration) -> Option<Vec<Duration>> {
        let limit = job.limit.unwrap_or(Duration::MAX).max(elapsed);
        groups(job).iter().find_map(|group| {
            let known = self.groups.get(group).filter(|known| known.len() >= ENOUGH)?;
            let longer = known.iter().filter(|time| **time > elapsed);
            let mut times: Vec<Duration> = longer.map(|time| (*time).min(limit)).collect();
            times.sort_unstable();
            (!times.is_empty()).then_some(times)
        })
    }

    /// The declared limit of a job; without one, the longest run time of its tenant so far, and one
    /// day if there is none.
    pub fn limit(&self, job: &Job) -> Duration {
        const DAY: Duration = Duration::from_secs(86_400);
        job.limit.or_else(|| self.longest.get(&job.owner.tenant).copied()).unwrap_or(DAY)
    }
}

/// Random numbers that depend on a seed and a position only (splitmix64): the same forecast draws
/// the same numbers on every machine.
pub fn random(seed: u64, position: u64) -> u64 {
    let mut mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(position.wrapping_mul(0xbf58_476d_1ce4_e5b9));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A run time of a distribution, which is not empty.
pub fn draw(distribution: &[Duration], random: u64) -> Duration {
    let count = distribution.len().max(1) as u64;
    distribution.get((random % count) as usize).copied().unwrap_or_default()
}
