//! The books of a real run: what was seen to happen to every workload, in the order it happened, the figures that
//! follow, and every rule that was broken.
//!
//! The order must be the API's: one watch of all workloads gives it. Then quota is never held twice, not even for the
//! moment between two changes, and the ledger can tell.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::drive::{ClassFigures, Outcome, Spread};
use crate::plan::Plan;

/// Violations described in words; further ones are only counted.
const DESCRIBED_MAX: usize = 20;

/// What is going on at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moment {
    /// Time from the start of the plan.
    pub at: Duration,
    /// Thousandths of a cpu that workloads hold.
    pub used: i64,
    /// Workloads that were created and hold no quota.
    pub pending: u64,
    /// Admissions so far.
    pub admissions: u64,
    /// Workloads that have finished so far.
    pub finished: u64,
}

/// One workload's life.
#[derive(Debug, Clone, Default)]
struct Life {
    created: Option<Duration>,
    /// When it was given the quota it holds.
    held: Option<Duration>,
    /// When it was seen admitted, if it is.
    admitted: Option<Duration>,
    last_admitted: Option<Duration>,
    evictions: u64,
    evicting: bool,
    lost: Duration,
    finished: Option<Duration>,
}

/// The books.
#[derive(Debug)]
pub struct Ledger<'a> {
    plan: &'a Plan,
    lives: Vec<Life>,
    by_queue: Vec<i64>,
    by_cohort: BTreeMap<&'a str, (i64, i64)>,
    now: Moment,
    /// Thousandths of a cpu times nanoseconds.
    work: i128,
    violations: Vec<String>,
    violated: u64,
    moments: Vec<Moment>,
    every: Duration,
}

impl<'a> Ledger<'a> {
    /// Books for a plan; a moment is kept `every` so often, for the chart.
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

    /// The creation of a workload was asked for. Watches may show it before the answer is there.
    pub fn created(&mut self, number: usize, at: Duration) {
        self.pass(at);
        if self.lives[number].created.replace(at).is_some() {
            self.violate(number, "was created twice");
            return;
        }
        self.now.pending += 1;
    }

    /// It holds quota.
    pub fn reserved(&mut self, number: usize, at: Duration) {
        self.pass(at);
        if self.lives[number].finished.is_some() {
            return self.violate(number, "was given quota after it had finished");
        }
        if self.lives[number].held.is_some() {
            return self.violate(number, "was given quota twice");
        }
        self.lives[number].held = Some(at);
        self.now.pending = self.now.pending.saturating_sub(1);
        self.add(number, 1);
    }

    /// It may run.
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

    /// It has to go, and still holds quota.
    pub fn evicted(&mut self, number: usize, at: Duration) {
        self.pass(at);
        let life = &mut self.lives[number];
        if !std::mem::replace(&mut life.evicting, true) {
            life.evictions += 1;
        }
    }

    /// It holds quota no more and waits again.
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

    /// It has finished.
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
        // Observed times are not exact to the last millisecond.
        if admitted.is_none_or(|from| at.saturating_sub(from) + Duration::from_millis(5) < class.runtime) {
            self.violate(number, "finished before it had run");
        }
        self.worked(number, at.saturating_sub(since));
        self.add(number, -1);
    }

    /// It is gone from the API.
    pub fn deleted(&mut self, number: usize) {
        self.violate(number, "disappeared");
    }

    /// Something outside of one workload's life is not as it should be.
    pub fn violation(&mut self, text: String) {
        self.violated += 1;
        if self.violations.len() < DESCRIBED_MAX {
            self.violations.push(text);
        }
    }

    /// The present moment.
    pub fn now(&self) -> Moment {
        self.now
    }

    /// When the last admission was seen.
    pub fn last_admission(&self) -> Duration {
        self.lives.iter().filter_map(|life| life.last_admitted).max().unwrap_or_default()
    }

    /// True when every workload has finished.
    pub fn is_over(&self) -> bool {
        self.now.finished == self.lives.len() as u64
    }

    /// Closes the books: figures, moments for a chart, and what was wrong.
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
        // A moment stands for what was so until the next change.
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
            self.violation(format!("cohort {} gave {in_cohort}m cpu of {quota}m", queue.cohort));
        }
        let limit = queue.borrowing_limit.map(|limit| queue.nominal.saturating_add(limit));
        if sign > 0
            && let Some(limit) = limit
            && in_queue > limit
        {
            self.violation(format!("queue {} took {in_queue}m cpu, may take {limit}m", queue.name));
        }
    }

    fn violate(&mut self, number: usize, what: &str) {
        let arrival = &self.plan.arrivals[number];
        let queue = &self.plan.queues[arrival.queue].name;
        self.violation(format!("workload {queue}/{} {what}", arrival.name));
    }
}

/// Rules that were broken.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Violations {
    /// How often.
    pub count: u64,
    /// The first of them in words.
    pub described: Vec<String>,
}
