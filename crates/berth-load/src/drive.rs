//! Runs a plan through the engine in virtual time.
//!
//! A decision takes effect at once: an admitted workload runs immediately, and a preempted workload
//! releases its quota and is requeued immediately. The result is the schedule of the policies
//! alone, "ideal with policy".

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::time::Duration;

use berth_engine::model::{Eviction, Time, Workload, WorkloadKey};
use berth_engine::{CycleOutcome, Decision, Effects, Engine, EngineConfig, Event, HEADS_PER_PART, Name, Verdict};

use crate::plan::Plan;

/// Maximum number of cycles at one instant; more indicate preemptions that repeat endlessly.
const CYCLES_PER_INSTANT_MAX: u32 = 100_000;

/// Start of virtual time.
const START: Time = Time(1_700_000_000_000_000_000);

/// Wraps the engine's calls, for measurements.
pub trait Probe {
    /// Applies an event.
    fn apply(&mut self, engine: &mut Engine, event: Event, now: Time) -> Effects {
        engine.apply(event, now)
    }

    /// Runs one part of a cycle, as the controllers do.
    fn cycle(&mut self, engine: &mut Engine, now: Time) -> CycleOutcome {
        engine.cycle_part(HEADS_PER_PART, now)
    }
}

/// A probe that measures nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Untimed;

impl Probe for Untimed {}

/// The result of a plan.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outcome {
    /// Time from the start of the plan until the last workload finished.
    pub wall: Duration,
    /// Figures per class name.
    pub classes: BTreeMap<String, ClassFigures>,
    /// Number of scheduling cycles.
    pub cycles: u64,
    /// Number of admissions; a workload that was evicted and admitted again counts each time.
    pub admissions: u64,
    /// Fraction of nominal quota in use, averaged over time and queues. Borrowing can raise one
    /// queue above 1.
    pub quota_use: f64,
    /// Workloads that had not finished when no further event was due.
    pub unfinished: usize,
}

/// Figures of one class.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ClassFigures {
    /// Number of workloads.
    pub count: usize,
    /// Time from creation to the last admission.
    pub admission: Spread,
    /// Number of evictions.
    pub evictions: u64,
    /// Run time that was lost by evictions.
    pub lost: Duration,
}

/// Mean and percentiles of durations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spread {
    /// Arithmetic mean.
    pub mean: Duration,
    /// Median.
    pub median: Duration,
    /// 99th percentile.
    pub p99: Duration,
}

impl Spread {
    /// The statistics of a list of durations, which is sorted in place.
    pub fn of(times: &mut [Duration]) -> Spread {
        times.sort_unstable();
        let at = |percent: usize| times.get((times.len() * percent / 100).min(times.len().saturating_sub(1))).copied();
        let count = u32::try_from(times.len()).unwrap_or(u32::MAX).max(1);
        Spread {
            mean: times.iter().sum::<Duration>() / count,
            median: at(50).unwrap_or_default(),
            p99: at(99).unwrap_or_default(),
        }
    }
}

/// State of one workload.
struct Run {
    object: Workload,
    admitted: Option<Time>,
    /// Number of admissions; distinguishes a valid finish event from one of an earlier admission.
    lives: u32,
    evictions: u64,
    lost: Duration,
    finished: bool,
}

/// Runs a plan through an engine. The engine's flush delay should be zero, because waiting for
/// further events only costs time here.
pub fn drive(plan: &Plan, config: EngineConfig, probe: &mut impl Probe) -> Outcome {
    let mut drive = Drive {
        plan,
        engine: Engine::new(config),
        probe,
        now: START,
        runs: Vec::with_capacity(plan.arrivals.len()),
        numbers: HashMap::with_capacity(plan.arrivals.len()),
        finishes: BinaryHeap::new(),
        wake: false,
        outcome: Outcome::default(),
        work: 0,
    };
    for event in plan.objects() {
        drive.apply(event);
    }
    drive.run();
    drive.summarize()
}

struct Drive<'a, P> {
    plan: &'a Plan,
    engine: Engine,
    probe: &'a mut P,
    now: Time,
    runs: Vec<Run>,
    numbers: HashMap<WorkloadKey, usize>,
    finishes: BinaryHeap<Reverse<(Time, usize, u32)>>,
    wake: bool,
    outcome: Outcome,
    /// Thousandths of a CPU times nanoseconds, of runs that finished or were discarded.
    work: i128,
}

impl<P: Probe> Drive<'_, P> {
    fn apply(&mut self, event: Event) {
        self.wake |= self.probe.apply(&mut self.engine, event, self.now).wake;
    }

    fn run(&mut self) {
        loop {
            let arrival = self.plan.arrivals.get(self.runs.len()).map(|arrival| START.after(arrival.at));
            let finish = self.finishes.peek().map(|Reverse((at, ..))| *at);
            let Some(next) = [arrival, finish, self.engine.next_wakeup()].into_iter().flatten().min() else { break };
            self.now = self.now.max(next);
            while let Some(Reverse((at, number, life))) = self.finishes.peek().copied()
                && at <= self.now
            {
                self.finishes.pop();
                self.finish(number, life);
            }
            while let Some(arrival) = self.plan.arrivals.get(self.runs.len())
                && START.after(arrival.at) <= self.now
            {
                self.create();
            }
            self.decide();
        }
    }

    fn create(&mut self) {
        let number = self.runs.len();
        let mut object = self.plan.workload(number);
        object.created = self.now;
        self.numbers.insert(object.key.clone(), number);
        self.runs.push(Run {
            object: object.clone(),
            admitted: None,
            lives: 0,
            evictions: 0,
            lost: Duration::ZERO,
            finished: false,
        });
        self.apply(Event::WorkloadUpserted(Box::new(object)));
    }

    fn finish(&mut self, number: usize, life: u32) {
        let run = &mut self.runs[number];
        if run.lives != life || run.admitted.is_none() {
            return;
        }
        run.finished = true;
        run.object.finished = true;
        let key = run.object.key.clone();
        let class = &self.plan.classes[self.plan.arrivals[number].class];
        self.work += i128::from(class.demand()) * nanos(class.runtime);
        let object = Box::new(run.object.clone());
        self.outcome.wall = START.until(self.now);
        self.apply(Event::WorkloadUpserted(object));
        self.apply(Event::WorkloadRemoved(key));
    }

    /// Runs cycles until no further decision is made at this instant.
    fn decide(&mut self) {
        for _ in 0..CYCLES_PER_INSTANT_MAX {
            self.outcome.cycles += 1;
            if !self.cycle() {
                return;
            }
        }
    }

    /// Runs a whole cycle, part by part. True if another cycle at this instant may make further
    /// decisions.
    fn cycle(&mut self) -> bool {
        self.wake = false;
        let mut changed = false;
        loop {
            let outcome = self.probe.cycle(&mut self.engine, self.now);
            for decision in outcome.decisions {
                changed |= self.carry_out(decision);
            }
            if !outcome.is_incomplete {
                return outcome.more || (changed && self.wake);
            }
        }
    }

    /// Applies a decision. True if that changed an object.
    fn carry_out(&mut self, decision: Decision) -> bool {
        match decision.verdict {
            Verdict::Admit(admit) => {
                let Some(&number) = self.numbers.get(&decision.workload) else { return false };
                let run = &mut self.runs[number];
                run.object.admission = Some(admit.admission);
                run.object.admitted = true;
                run.object.reserved_at = Some(self.now);
                run.object.evicted = None;
                run.object.preempted = None;
                run.object.requeued = None;
                run.admitted = Some(self.now);
                run.lives += 1;
                let runtime = self.plan.classes[self.plan.arrivals[number].class].runtime;
                self.finishes.push(Reverse((self.now.after(runtime), number, run.lives)));
                self.outcome.admissions += 1;
                let object = Box::new(run.object.clone());
                self.apply(Event::WorkloadUpserted(object));
                true
            }
            Verdict::Preempt { victims, .. } => {
                for victim in victims.into_iter().filter(|victim| victim.write) {
                    self.evict(&victim.workload, Name::from("Preempted"), Name::from(victim.reason.as_str()));
                }
                true
            }
            Verdict::Evict(eviction) => {
                let reason = Name::from(eviction.reason());
                self.evict(&decision.workload, reason.clone(), reason);
                true
            }
            Verdict::Wait(_) => false,
        }
    }

    fn evict(&mut self, key: &WorkloadKey, reason: Name, preempted: Name) {
        let Some(&number) = self.numbers.get(key) else { return };
        let run = &mut self.runs[number];
        let Some(since) = run.admitted.take() else { return };
        let ran = since.until(self.now);
        run.evictions += 1;
        run.lost += ran;
        let class = &self.plan.classes[self.plan.arrivals[number].class];
        self.work += i128::from(class.demand()) * nanos(ran);
        run.object.evicted = Some(Eviction { reason, at: self.now });
        run.object.preempted = Some(Eviction { reason: preempted, at: self.now });
        run.object.admission = None;
        run.object.admitted = false;
        run.object.reserved_at = None;
        run.object.requeued = Some(true);
        let object = Box::new(run.object.clone());
        self.apply(Event::WorkloadUpserted(object));
    }

    fn summarize(mut self) -> Outcome {
        let mut times: BTreeMap<String, Vec<Duration>> = BTreeMap::new();
        for (arrival, run) in self.plan.arrivals.iter().zip(&self.runs) {
            let class = &self.plan.classes[arrival.class].name;
            let figures = self.outcome.classes.entry(class.clone()).or_default();
            figures.count += 1;
            figures.evictions += run.evictions;
            figures.lost += run.lost;
            self.outcome.unfinished += usize::from(!run.finished);
            if let Some(at) = run.admitted {
                times.entry(class.clone()).or_default().push(START.after(arrival.at).until(at));
            }
        }
        for (class, mut times) in times {
            self.outcome.classes.entry(class).or_default().admission = Spread::of(&mut times);
        }
        let quota: i128 = self.plan.queues.iter().map(|queue| i128::from(queue.nominal)).sum();
        let possible = quota * nanos(self.outcome.wall);
        self.outcome.quota_use = if possible > 0 { self.work as f64 / possible as f64 } else { 0.0 };
        self.outcome
    }
}

fn nanos(duration: Duration) -> i128 {
    i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX)
}
