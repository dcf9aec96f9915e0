//! Runs the published load configurations through the engine in virtual time, and reports
//! admissions per second of engine time.
//!
//! Engine time is the time of events and cycles. It excludes building objects and recording the
//! plan, which the drive does. It also excludes reading the clock, which takes a considerable part
//! of an event's time. In addition to criterion's measurements, this bench prints once per
//! configuration the schedule, and how long decisions block other callers: the distribution of the
//! durations of whole cycles, and of the parts into which a cycle is split.

#[path = "../../berth-engine/benches/measure.rs"]
mod measure;

use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_engine::model::Time;
use berth_engine::{CycleOutcome, Effects, Engine, EngineConfig, Event, HEADS_PER_PART};
use berth_load::drive::{Outcome, Spread};
use berth_load::{Config, Plan, Probe, drive};
use criterion::{Criterion, criterion_group, criterion_main};

use measure::timed;

/// The allocator of `berth`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Berth's own small configurations, in the format of the published ones.
const OWN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configurations");
/// Folder of the published configurations, next to the checkout.
const PUBLISHED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/perf");

/// Sums up the time of the engine.
struct Stopwatch {
    events: Duration,
    parts: Vec<Duration>,
    /// Durations of whole cycles; the last one is incomplete while `is_incomplete`.
    cycles: Vec<Duration>,
    is_incomplete: bool,
    /// Minimum time that reading the clock adds to a measurement.
    clock: Duration,
}

impl Stopwatch {
    fn new() -> Stopwatch {
        let clock = (0..10_000).map(|_| timed(|| ()).0).min();
        Stopwatch {
            events: Duration::ZERO,
            parts: Vec::new(),
            cycles: Vec::new(),
            is_incomplete: false,
            clock: clock.unwrap_or_default(),
        }
    }

    fn total(&self) -> Duration {
        self.events + self.cycles.iter().sum::<Duration>()
    }
}

impl Probe for Stopwatch {
    fn apply(&mut self, engine: &mut Engine, event: Event, now: Time) -> Effects {
        let (time, effects) = timed(|| engine.apply(event, now));
        self.events += time.saturating_sub(self.clock);
        effects
    }

    fn cycle(&mut self, engine: &mut Engine, now: Time) -> CycleOutcome {
        let (time, outcome) = timed(|| engine.cycle_part(HEADS_PER_PART, now));
        let time = time.saturating_sub(self.clock);
        self.parts.push(time);
        match self.cycles.last_mut().filter(|_| self.is_incomplete) {
            Some(cycle) => *cycle += time,
            None => self.cycles.push(time),
        }
        self.is_incomplete = outcome.is_incomplete;
        outcome
    }
}

fn run(plan: &Plan) -> (Stopwatch, Outcome) {
    let mut stopwatch = Stopwatch::new();
    // Events of one instant arrive together; waiting for more only costs time.
    let config = EngineConfig { flush_delay: Duration::ZERO, ..EngineConfig::default() };
    let outcome = drive(plan, config, &mut stopwatch);
    (stopwatch, outcome)
}

fn describe(name: &str, plan: &Plan) {
    let (mut stopwatch, outcome) = run(plan);
    let seconds = stopwatch.total().as_secs_f64();
    let cycles: Duration = stopwatch.cycles.iter().sum();
    let (events, clock) = (stopwatch.events, stopwatch.clock);
    println!(
        "{name}: {} workloads, {} admissions in {seconds:.3} s of engine time ({events:.3?} events, {cycles:.3?} cycles): \
         {:.0}/s",
        plan.arrivals.len(),
        outcome.admissions,
        outcome.admissions as f64 / seconds,
    );
    for (what, times) in [("parts", &mut stopwatch.parts), ("whole cycles", &mut stopwatch.cycles)] {
        let spread = Spread::of(times);
        println!(
            "{name}: {} {what}, mean {:.1?}, median {:.1?}, p99 {:.1?}, longest {:.1?}",
            times.len(),
            spread.mean,
            spread.median,
            spread.p99,
            times.last().copied().unwrap_or_default(),
        );
    }
    println!("{name}: reading the clock took another {clock:.0?} each time");
    println!(
        "{name}: schedule {:.2} s, lower bound {:.2} s, quota use {:.1} %, {} unfinished",
        outcome.wall.as_secs_f64(),
        berth_load::bound::lower_bound(plan).as_secs_f64(),
        outcome.quota_use * 100.0,
        outcome.unfinished,
    );
    for (class, figures) in &outcome.classes {
        println!(
            "{name}: {class}: mean time to admission {:.2} s, p99 {:.2} s, {} evictions, {:.1} s lost",
            figures.admission.mean.as_secs_f64(),
            figures.admission.p99.as_secs_f64(),
            figures.evictions,
            figures.lost.as_secs_f64(),
        );
    }
}

fn configurations(criterion: &mut Criterion) {
    let mut files = files(Path::new(OWN));
    let published = files_or_skip(Path::new(PUBLISHED));
    files.extend(published);
    let mut group = criterion.benchmark_group("configurations");
    group.sample_size(10);
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let config = Config::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let plan = Plan::new(&config);
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let mut printed = false;
        group.bench_function(&name, |bencher| {
            if !std::mem::replace(&mut printed, true) {
                describe(&name, &plan);
            }
            bencher.iter_custom(|rounds| (0..rounds).map(|_| run(&plan).0.total()).sum());
        });
    }
    group.finish();
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    files
}

fn files_or_skip(folder: &Path) -> Vec<PathBuf> {
    if folder.is_dir() {
        return files(folder);
    }
    println!("skipped: the published configurations are not at {}", folder.display());
    Vec::new()
}

criterion_group!(benches, configurations);
criterion_main!(benches);
