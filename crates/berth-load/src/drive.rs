//! Runs a load through the engine in virtual time.
//!
//! A decision takes effect at once: an admitted workload runs immediately, and a preempted workload
//! releases its quota and is requeued immediately. The result is the schedule of the policies
//! alone, "ideal with policy".
//!
//! A [`Load`] is a plan of a generator file ([`drive`]), a trace of a real cluster, or the state of
//! a cluster from which the future is computed: its workloads may already run at the start.
//! [`run`] records what happened to each job. [`run_on`] adds a [`Capacity`], the nodes behind the
//! quota: pods of admitted jobs may have to wait for them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::time::Duration;

use berth_engine::model::{Admission, Eviction, Time, Workload, WorkloadKey};
use berth_engine::{CycleOutcome, Decision, Effects, Engine, EngineConfig, Event, HEADS_PER_PART, Name, Verdict};

use crate::history::{History, Holding, Holdings, JobRecord, JobRun};
use crate::plan::Plan;

/// Maximum number of cycles at one instant.
const CYCLES_PER_INSTANT_MAX: u32 = 100_000;
/// Maximum number of times that a job is evicted at the instant of its admission. More indicate
/// preemptions that repeat endlessly: some policies let two workloads preempt each other. No
/// further workload is preempted at this instant then.
const BOUNCES_MAX: u32 = 20;
/// Maximum number of consecutive cycles without a change, once no workload is preempted any more.
const IDLE_CYCLES_MAX: u32 = 200;

/// Start of virtual time, unless the load has another.
const START: Time = Time(1_700_000_000_000_000_000);

/// Jobs, when they are created, and the configuration under which they run.
pub trait Load {
    /// Start of virtual time.
    fn start(&self) -> Time {
        START
    }

    /// The configuration objects as events, ordered so that every referenced object exists.
    fn objects(&self) -> Vec<Event>;

    /// Number of jobs.
    fn jobs(&self) -> usize;

    /// Time from the start to the creation of a job. A job is not created before any job of a
    /// smaller number.
    fn created(&self, number: usize) -> Duration;

    /// The workload of a job. If it holds an admission, it runs since its `reserved_at`. If its
    /// `created` is unset, it is created at [`Load::created`].
    fn workload(&self, number: usize) -> Workload;

    /// Time from the start of the pods of a job to its end. Without a [`Capacity`], the pods start
    /// when the job is admitted.
    fn run_time(&self, number: usize) -> Duration;

    /// Further state that the engine has at the start, as events. They are applied after the jobs
    /// that exist at the start are created.
    fn restored(&self) -> Vec<Event> {
        Vec::new()
    }

    /// Changes of the configuration, with their times from the start, in order of time.
    fn changes(&self) -> Vec<(Duration, Event)> {
        Vec::new()
    }
}

/// The nodes behind the quota: they decide when the pods of an admitted job run.
pub trait Capacity {
    /// A job holds quota since `since`: it was admitted, or held the quota already at the start.
    fn admitted(&mut self, number: usize, workload: &Workload, admission: &Admission, since: Time, now: Time);

    /// A job holds no quota any more: it ended or was evicted.
    fn released(&mut self, number: usize, now: Time);

    /// When pods end or nodes become ready next.
    fn next(&self) -> Option<Time>;

    /// Moves to `now`. Returns the jobs for which it has become known when all pods run, each with
    /// that time.
    fn running(&mut self, now: Time) -> Vec<(usize, Time)>;
}

/// As many nodes as the quota promises: pods run as soon as their job is admitted.
#[derive(Debug, Clone, Default)]
pub struct Unlimited {
    admitted: Vec<(usize, Time)>,
}

impl Capacity for Unlimited {
    fn admitted(&mut self, number: usize, _: &Workload, _: &Admission, since: Time, _: Time) {
        self.admitted.push((number, since));
    }

    fn released(&mut self, number: usize, _: Time) {
        // A job that is evicted at the instant of its admission never runs.
        self.admitted.retain(|(admitted, _)| *admitted != number);
    }

    fn next(&self) -> Option<Time> {
        None
    }

    fn running(&mut self, _: Time) -> Vec<(usize, Time)> {
        std::mem::take(&mut self.admitted)
    }
}

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

    /// A job was admitted, or ran already at the start.
    fn started(&mut self, _number: usize, _at: Time) {}

    /// All pods of a job run from this time on, which may be in the future.
    fn running(&mut self, _number: usize, _from: Time) {}

    /// The object of a job changed: it was created, admitted or evicted, or it finished.
    fn changed(&mut self, _number: usize, _object: &Workload, _now: Time) {}

    /// A job ended.
    fn ended(&mut self) {}

    /// True if the run may stop here.
    fn is_enough(&self) -> bool {
        false
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

/// Runs a plan through an engine. The engine's flush delay should be zero, because waiting for
/// further events only costs time here.
pub fn drive(plan: &Plan, config: EngineConfig, probe: &mut impl Probe) -> Outcome {
    summarize(plan, &run(plan, config, probe))
}

/// Runs a load through an engine until no further event is due, or the probe has enough. The
/// engine's flush delay should be zero, because waiting for further events only costs time here.
pub fn run(load: &impl Load, config: EngineConfig, probe: &mut impl Probe) -> History {
    run_on(load, config, probe, &mut Unlimited::default())
}

/// Like [`run`], on limited capacity.
pub fn run_on(load: &impl Load, config: EngineConfig, probe: &mut impl Probe, capacity: &mut impl Capacity) -> History {
    let jobs = load.jobs();
    let mut changes = load.changes();
    changes.reverse();
    let mut drive = Drive {
        load,
        engine: Engine::new(config),
        probe,
        capacity,
        changes,
        restored: load.restored(),
        now: load.start(),
        live: Vec::with_capacity(jobs),
        numbers: HashMap::new(),
        finishes: BinaryHeap::new(),
        wake: false,
        is_restless: false,
        holdings: Holdings::default(),
        history: History { start: Some(load.start()), jobs: Vec::with_capacity(jobs), ..History::default() },
    };
    for event in load.objects() {
        drive.apply(event);
    }
    drive.run();
    drive.close()
}

/// A job that was created and has not ended.
struct Live {
    object: Workload,
    /// While the job is admitted: time of its admission, and index of its amounts in
    /// [`History::holdings`].
    admitted: Option<(Time, u32)>,
    /// Number of admissions; distinguishes a valid finish event from one of an earlier admission.
    lives: u32,
    /// Number of times that it was evicted at the instant of its admission, and that instant.
    bounces: (Time, u32),
}

/// What a cycle did.
struct Cycle {
    /// True if it changed an object.
    changed: bool,
    /// True if another cycle at this instant may make further decisions.
    again: bool,
}

struct Drive<'a, L, P, C> {
    load: &'a L,
    engine: Engine,
    probe: &'a mut P,
    capacity: &'a mut C,
    /// Changes that are not due yet, the last one first.
    changes: Vec<(Duration, Event)>,
    /// Events of [`Load::restored`] that are not applied yet.
    restored: Vec<Event>,
    now: Time,
    /// By number; `None` once the job ended.
    live: Vec<Option<Box<Live>>>,
    numbers: HashMap<WorkloadKey, usize>,
    finishes: BinaryHeap<Reverse<(Time, usize, u32)>>,
    wake: bool,
    /// True if the decisions at this instant do not come to rest.
    is_restless: bool,
    holdings: Holdings,
    history: History,
}

impl<L: Load, P: Probe, C: Capacity> Drive<'_, L, P, C> {
    fn apply(&mut self, event: Event) {
        self.wake |= self.probe.apply(&mut self.engine, event, self.now).wake;
    }

    /// When the next job is created, if any.
    fn next_creation(&self) -> Option<Time> {
        let number = self.history.jobs.len();
        (number < self.load.jobs()).then(|| self.load.start().after(self.load.created(number)))
    }

    fn run(&mut self) {
        loop {
            self.forget_ends_of_lost_runs();
            let finish = self.finishes.peek().map(|Reverse((at, ..))| *at);
            let change = self.changes.last().map(|(at, _)| self.load.start().after(*at));
            let due = [self.next_creation(), finish, change, self.capacity.next(), self.engine.next_wakeup()];
            let Some(next) = due.into_iter().flatten().min() else { break };
            self.now = self.now.max(next);
            self.settle();
            while let Some(Reverse((at, number, life))) = self.finishes.peek().copied()
                && at <= self.now
            {
                self.finishes.pop();
                self.finish(number, life);
            }
            while self.changes.last().is_some_and(|(at, _)| self.load.start().after(*at) <= self.now) {
                if let Some((_, event)) = self.changes.pop() {
                    self.apply(event);
                }
            }
            while self.next_creation().is_some_and(|at| at <= self.now) {
                self.create();
            }
            for event in std::mem::take(&mut self.restored) {
                self.apply(event);
            }
            self.decide();
            self.settle();
            if self.probe.is_enough() {
                break;
            }
        }
    }

    fn create(&mut self) {
        let number = self.history.jobs.len();
        let mut object = self.load.workload(number);
        if object.created == Time::UNSET {
            object.created = self.now;
        }
        self.numbers.insert(object.key.clone(), number);
        self.history.jobs.push(JobRecord::new(object.created));
        let event = Box::new(object.clone());
        let running = object.admission.clone().zip(object.reserved_at);
        self.probe.changed(number, &object, self.now);
        self.live.push(Some(Box::new(Live { object, admitted: None, lives: 0, bounces: (self.now, 0) })));
        if let Some((admission, since)) = running {
            self.start(number, &admission, since);
        }
        self.apply(Event::WorkloadUpserted(event));
    }

    /// Records that a job is admitted since `since`.
    fn start(&mut self, number: usize, admission: &Admission, since: Time) {
        let holding = self.holdings.index(Holding::of(admission), &mut self.history);
        let Some(live) = &mut self.live[number] else { return };
        live.admitted = Some((since, holding));
        live.lives += 1;
        self.capacity.admitted(number, &live.object, admission, since, self.now);
        let record = &mut self.history.jobs[number];
        record.started = Some(since);
        record.first_started.get_or_insert(since);
        self.history.admissions += 1;
        self.probe.started(number, since);
    }

    /// Removes the scheduled ends of runs that an eviction ended earlier, so that no cycle runs at
    /// those times.
    fn forget_ends_of_lost_runs(&mut self) {
        let live = &self.live;
        let is_lost = |number: usize, life: u32| {
            live[number].as_ref().is_none_or(|live| live.lives != life || live.admitted.is_none())
        };
        while self.finishes.peek().is_some_and(|Reverse((_, number, life))| is_lost(*number, *life)) {
            self.finishes.pop();
        }
    }

    /// Schedules the ends of the jobs whose pods run.
    fn settle(&mut self) {
        for (number, from) in self.capacity.running(self.now) {
            let Some(live) = self.live[number].as_ref().filter(|live| live.admitted.is_some()) else { continue };
            let end = from.after(self.load.run_time(number)).max(self.now);
            self.finishes.push(Reverse((end, number, live.lives)));
            self.probe.running(number, from);
        }
    }

    /// Records the end of a run that began at `from`.
    fn record(&mut self, number: usize, (from, holding): (Time, u32), to: Option<Time>, evicted: bool) {
        let job = u32::try_from(number).expect("a load has fewer than 2^32 jobs");
        self.history.runs.push(JobRun { job, holding, from, to, evicted });
    }

    fn finish(&mut self, number: usize, life: u32) {
        let live = self.live[number].take_if(|live| live.lives == life && live.admitted.is_some());
        let Some((mut object, run)) = live.and_then(|live| Some((live.object, live.admitted?))) else { return };
        self.record(number, run, Some(self.now), false);
        self.history.jobs[number].ended = Some(self.now);
        self.history.wall = self.load.start().until(self.now);
        self.probe.ended();
        self.capacity.released(number, self.now);
        object.finished = true;
        self.probe.changed(number, &object, self.now);
        let key = object.key.clone();
        self.numbers.remove(&key);
        self.apply(Event::WorkloadUpserted(Box::new(object)));
        self.apply(Event::WorkloadRemoved(key));
    }

    /// Runs cycles until no further decision is made at this instant.
    fn decide(&mut self) {
        self.is_restless = false;
        let (mut cycles, mut idle) = (0, 0);
        while cycles < CYCLES_PER_INSTANT_MAX && idle < IDLE_CYCLES_MAX {
            cycles += 1;
            let cycle = self.cycle();
            // A preemption that is not carried out is decided again in each cycle.
            idle = if self.is_restless && !cycle.changed { idle + 1 } else { 0 };
            if !cycle.again {
                break;
            }
        }
        self.history.cycles += u64::from(cycles);
        self.history.restless += u64::from(self.is_restless);
    }

    /// Runs a whole cycle, part by part.
    fn cycle(&mut self) -> Cycle {
        self.wake = false;
        let mut changed = false;
        loop {
            let outcome = self.probe.cycle(&mut self.engine, self.now);
            for decision in outcome.decisions {
                changed |= self.carry_out(decision);
            }
            if !outcome.is_incomplete {
                return Cycle { changed, again: outcome.more || (changed && self.wake) };
            }
        }
    }

    /// Applies a decision. True if that changed an object.
    fn carry_out(&mut self, decision: Decision) -> bool {
        match decision.verdict {
            Verdict::Admit(admit) => self.admit(&decision.workload, admit.admission),
            Verdict::Preempt { victims, .. } if self.is_restless => {
                for victim in victims.into_iter().filter(|victim| victim.write) {
                    self.apply(Event::PreemptionFailed(victim.workload));
                }
                false
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

    fn admit(&mut self, key: &WorkloadKey, admission: Admission) -> bool {
        let Some(&number) = self.numbers.get(key) else { return false };
        self.start(number, &admission, self.now);
        let Some(Live { object, .. }) = self.live[number].as_deref_mut() else { return false };
        object.admission = Some(admission);
        object.admitted = true;
        object.reserved_at = Some(self.now);
        object.evicted = None;
        object.preempted = None;
        object.requeued = None;
        let object = Box::new(object.clone());
        self.probe.changed(number, &object, self.now);
        self.apply(Event::WorkloadUpserted(object));
        true
    }

    fn evict(&mut self, key: &WorkloadKey, reason: Name, preempted: Name) {
        let Some(&number) = self.numbers.get(key) else { return };
        let Some(live) = &mut self.live[number] else { return };
        let Some(run) = live.admitted.take() else { return };
        if run.0 == self.now {
            let before = if live.bounces.0 == self.now { live.bounces.1 } else { 0 };
            live.bounces = (self.now, before + 1);
            self.is_restless |= before >= BOUNCES_MAX;
        }
        let object = &mut live.object;
        object.evicted = Some(Eviction { reason, at: self.now });
        object.preempted = Some(Eviction { reason: preempted, at: self.now });
        object.admission = None;
        object.admitted = false;
        object.reserved_at = None;
        object.requeued = Some(true);
        let object = Box::new(object.clone());
        self.probe.changed(number, &object, self.now);
        self.capacity.released(number, self.now);
        self.record(number, run, Some(self.now), true);
        let record = &mut self.history.jobs[number];
        record.started = None;
        record.evictions += 1;
        record.lost += run.0.until(self.now);
        self.apply(Event::WorkloadUpserted(object));
    }

    /// Adds the runs that have not ended.
    fn close(mut self) -> History {
        for number in 0..self.live.len() {
            if let Some(run) = self.live[number].as_ref().and_then(|live| live.admitted) {
                self.record(number, run, None, false);
            }
        }
        self.history
    }
}

/// The figures of a plan's run.
fn summarize(plan: &Plan, history: &History) -> Outcome {
    let mut outcome =
        Outcome { wall: history.wall, cycles: history.cycles, admissions: history.admissions, ..Outcome::default() };
    let mut times: BTreeMap<String, Vec<Duration>> = BTreeMap::new();
    for (arrival, record) in plan.arrivals.iter().zip(&history.jobs) {
        let class = &plan.classes[arrival.class].name;
        let figures = outcome.classes.entry(class.clone()).or_default();
        figures.count += 1;
        figures.evictions += record.evictions;
        figures.lost += record.lost;
        outcome.unfinished += usize::from(record.ended.is_none());
        if let Some(at) = record.started {
            times.entry(class.clone()).or_default().push(plan.start().after(arrival.at).until(at));
        }
    }
    for (class, mut times) in times {
        outcome.classes.entry(class).or_default().admission = Spread::of(&mut times);
    }
    // Thousandths of a CPU times nanoseconds, of runs that finished or were discarded.
    let work: i128 = history
        .runs
        .iter()
        .filter_map(|run| {
            let class = &plan.classes[plan.arrivals[run.job as usize].class];
            Some(i128::from(class.demand()) * nanos(run.from.until(run.to?)))
        })
        .sum();
    let quota: i128 = plan.queues.iter().map(|queue| i128::from(queue.nominal)).sum();
    let possible = quota * nanos(history.wall);
    outcome.quota_use = if possible > 0 { work as f64 / possible as f64 } else { 0.0 };
    outcome
}

fn nanos(duration: Duration) -> i128 {
    i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX)
}
