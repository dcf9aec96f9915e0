//! The record of a real run: the observed events of every workload in order, the resulting
//! statistics, and every violated rule.
//!
//! Events must be in the order of the API, which a single watch of all workloads provides. A
//! correct controller then never assigns quota twice, not even between two events, and the ledger
//! detects a violation.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::drive::{ClassFigures, Outcome, Spread};
use crate::plan::Plan;

/// Maximum number of violations described in words; further ones are only counted.
const DESCRIBED_MAX: usize = 20;

/// The state of a run at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moment {
    /// Time from the start of the plan.
    pub at: Duration,
    /// Thousandths of a CPU of reserved quota.
    pub used: i64,
    /// Number of workloads that exist and hold no quota.
    pub pending: u64,
    /// Number of admissions so far.
    pub admissions: u64,
    /// Number of finished workloads so far.
    pub finished: u64,
}

/// The state of one workload.
#[derive(Debug, Clone, Default)]
struct Life {
    created: Option<Duration>,
    /// Time of its quota reservation, while it holds quota.
    held: Option<Duration>,
    /// Time when its admission was observed, while it is admitted.
    admitted: Option<Duration>,
    last_admitted: Option<Duration>,
    evictions: u64,
    evicting: bool,
    lost: Duration,
    finished: Option<Duration>,
}

/// The record.
#[derive(Debug)]
pub struct Ledger<'a> {
    plan: &'a Plan,
    lives: Vec<Life>,
    by_queue: Vec<i64>,
    by_cohort: BTreeMap<&'a str, (i64, i64)>,
    now: Moment,
    /// Thousandths of a CPU times nanoseconds.
    work: i128,
    violations: Vec<String>,
    violated: u64,
    moments: Vec<Moment>,
    every: Duration,
}

impl<'a> Ledger<'a> {
    /// The record of a plan. The state is sampled once per `every` for the chart.
    pub fn new(plan: &'a Plan, every: Duration) -> Self {
        let mut by_cohort: BTreeMap<&str, (i64, i64)> = BTreeMap::new();
        for queue in &plan.queues {
            by_cohort.entry(&queue.cohort).or_default().1 += queue.nominal;
        }
        Ledger {
            plan,
            lives: vec![Life::default(); plan.arrivals.len()],
            by_queue: vec![0; plan.queues.len()],
            by_cohort,
            now: Moment::default(),
            work: 0,
            violations: Vec::new(),
            violated: 0,
            moments: vec![Moment::default()],
            every,
        }
    }

    /// Records that the creation of a workload was requested. Watches may report the workload
    /// before the response arrives.
    pub fn created(&mut self, number: usize, at: Duration) {
        self.pass(at);
        if self.lives[number].created.replace(at).is_some() {
            self.violate(number, "was created twice");
            return;
        }
        self.now.pending += 1;
    }

    /// Records that the workload reserved quota.
    pub fn reserved(&mut self, number: usize, at: Duration) {
        self.pass(at);
        if self.lives[number].finished.is_some() {
            return self.violate(number, "got quota after it had finished");
        }
        if self.lives[number].held.is_some() {
            return self.violate(number, "got quota twice");
        }
        self.lives[number].held = Some(at);
        self.now.pending = self.now.pending.saturating_sub(1);
        self.add(number, 1);
    }

    /// Records that the workload was admitted.
    pub fn admitted(&mut self, number: usize, at: Duration) {
        self.pass(at);
        if self.lives[number].held.is_none() {
            return self.violate(number, "was admitted without quota");
        }
        if self.lives[number].admitted.is_some() {
            return self.violate(number, "was admitted twice");
        }
        self.lives[number].admitted = Some(at);
        self.lives[number].last_admitted = Some(at);
        self.now.admissions += 1;
    }

    /// Records that the workload was evicted. It still holds quota.
    pub fn evicted(&mut self, number: usize, at: Duration) {
        self.pass(at);
        let life = &mut self.lives[number];
        if !std::mem::replace(&mut life.evicting, true) {
            life.evictions += 1;
        }
    }

    /// Records that an eviction was withdrawn: the workload kept its quota and continues to run.
    /// The eviction remains counted, because it was written.
    pub fn kept(&mut self, number: usize, at: Duration) {
        self.pass(at);
        self.lives[number].evicting = false;
    }

    /// Records that the workload released its quota and is pending again.
    pub fn released(&mut self, number: usize, at: Duration) {
        self.pass(at);
        let life = &mut self.lives[number];
        let Some(since) = life.held.take() else { return };
        if let Some(admitted) = life.admitted.take() {
            life.lost += at.saturating_sub(admitted);
        }
        life.evicting = false;
        self.now.pending += 1;
        self.worked(number, at.saturating_sub(since));
        self.add(number, -1);
    }

    /// Records that the workload finished.
    pub fn finished(&mut self, number: usize, at: Duration) {
        self.pass(at);
        let life = &mut self.lives[number];
        if life.finished.replace(at).is_some() {
            return self.violate(number, "finished twice");
        }
        self.now.finished += 1;
        let (held, admitted) = (life.held.take(), life.admitted.take());
        let Some(since) = held else { return self.violate(number, "finished without quota") };
        let class = &self.plan.classes[self.plan.arrivals[number].class];
        // Observed times are not exact to the millisecond.
        if admitted.is_none_or(|from| at.saturating_sub(from) + Duration::from_millis(5) < class.runtime) {
            self.violate(number, "finished before it had run");
        }
        self.worked(number, at.saturating_sub(since));
        self.add(number, -1);
    }

    /// Records that the workload was deleted.
    pub fn deleted(&mut self, number: usize) {
        self.violate(number, "disappeared");
    }

    /// Records a violation that does not concern a single workload.
    pub fn violation(&mut self, text: String) {
        self.violated += 1;
        if self.violations.len() < DESCRIBED_MAX {
            self.violations.push(text);
        }
    }

    /// The current state.
    pub fn now(&self) -> Moment {
        self.now
    }

    /// Time of the last observed admission.
    pub fn last_admission(&self) -> Duration {
        self.lives.iter().filter_map(|life| life.last_admitted).max().unwrap_or_default()
    }

    /// True if every workload has finished.
    pub fn is_over(&self) -> bool {
        self.now.finished == self.lives.len() as u64
    }

    /// Ends the record: statistics, samples for a chart, and violations.
    pub fn close(mut self) -> (Outcome, Vec<Moment>, Violations) {
        let mut outcome = Outcome::default();
        let mut times: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
        for number in 0..self.lives.len() {
            let life = self.lives[number].clone();
            let class = &self.plan.classes[self.plan.arrivals[number].class].name;
            let figures = outcome.classes.entry(class.clone()).or_insert_with(ClassFigures::default);
            figures.count += 1;
            figures.evictions += life.evictions;
            figures.lost += life.lost;
            if let (Some(created), Some(admitted)) = (life.created, life.last_admitted) {
                times.entry(class).or_default().push(admitted.saturating_sub(created));
            }
            match life.finished {
                Some(at) => outcome.wall = outcome.wall.max(at),
                None => {
                    outcome.unfinished += 1;
                    self.violate(number, "never finished");
                }
            }
        }
        for (class, mut times) in times {
            outcome.classes.entry(class.to_owned()).or_default().admission = Spread::of(&mut times);
        }
        outcome.admissions = self.now.admissions;
        let quota: i128 = self.plan.queues.iter().map(|queue| i128::from(queue.nominal)).sum();
        let possible = quota * i128::try_from(outcome.wall.as_nanos()).unwrap_or(i128::MAX);
        outcome.quota_use = if possible > 0 { self.work as f64 / possible as f64 } else { 0.0 };
        self.moments.push(self.now);
        (outcome, self.moments, Violations { count: self.violated, described: self.violations })
    }

    fn pass(&mut self, at: Duration) {
        // A sample is valid until the next one.
        while self.moments.last().is_some_and(|last| last.at + self.every <= at) {
            let next = self.moments.last().map_or(Duration::ZERO, |last| last.at) + self.every;
            self.moments.push(Moment { at: next, ..self.now });
        }
        self.now.at = self.now.at.max(at);
    }

    fn worked(&mut self, number: usize, ran: Duration) {
        let demand = self.plan.classes[self.plan.arrivals[number].class].demand();
        self.work += i128::from(demand) * i128::try_from(ran.as_nanos()).unwrap_or(i128::MAX);
    }

    fn add(&mut self, number: usize, sign: i64) {
        let arrival = &self.plan.arrivals[number];
        let queue = &self.plan.queues[arrival.queue];
        let demand = self.plan.classes[arrival.class].demand() * sign;
        self.now.used += demand;
        self.by_queue[arrival.queue] += demand;
        let in_queue = self.by_queue[arrival.queue];
        let (in_cohort, quota) = match self.by_cohort.get_mut(&*queue.cohort) {
            Some((used, quota)) => {
                *used += demand;
                (*used, *quota)
            }
            None => return,
        };
        if sign > 0 && in_cohort > quota {
            self.violation(format!("cohort {} has {in_cohort}m cpu in use, but a quota of {quota}m", queue.cohort));
        }
        let limit = queue.borrowing_limit.map(|limit| queue.nominal.saturating_add(limit));
        if sign > 0
            && let Some(limit) = limit
            && in_queue > limit
        {
            self.violation(format!("queue {} has {in_queue}m cpu in use, but a limit of {limit}m", queue.name));
        }
    }

    fn violate(&mut self, number: usize, what: &str) {
        let arrival = &self.plan.arrivals[number];
        let queue = &self.plan.queues[arrival.queue].name;
        self.violation(format!("workload {queue}/{} {what}", arrival.name));
    }
}

/// Violated rules.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Violations {
    /// Number of violations.
    pub count: u64,
    /// Descriptions of the first violations.
    pub described: Vec<String>,
}
