//! Both depths of a replay take the same decisions: the engine on modelled capacity, and every job
//! as a Job through API, controllers and cluster.
//!
//! In a whole cluster, a job does not hold its quota exactly as long as it runs. A small difference
//! can change what comes after it, so the engine gets the time for which each job held its quota in
//! the cluster. What it decides then must be what the cluster decided: the same starts, in the same
//! order, at the same times to [`GRANULARITY`], with the same flavors, and the same evictions.

use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use berth_engine::Name;
use berth_engine::model::Time;
use berth_foresight::policy::Policy;
use berth_foresight::policy::built_in::BuiltIn;
use berth_foresight::replay::Replay;
use berth_foresight::trace::{Selection, Trace, read};
use berth_load::{History, Untimed};
use berth_simulator::whole::{self, Division};
use clap::ValueEnum;

/// Differences between starts in both depths: a decision takes no time in the engine.
const GRANULARITY: Duration = Duration::from_millis(200);
/// The time for which a job holds its quota differs at most this much from its run time: pods are
/// bound and counted, and the start of a pod is a whole second.
const OVERHEAD: Duration = Duration::from_secs(2);

/// Three teams on eight CPUs, with jobs of one, two and three pods. Later jobs have higher
/// priorities.
fn small() -> Trace {
    let mut text = String::from("job,submit,run,tenant,pods,request:cpu,priority\n");
    for number in 0..40_u64 {
        let (submit, run) = (number * 71, 120 + (number * 7919) % 900);
        let (pods, team) = (1 + number % 3, number % 3);
        text += &format!("j{number},{submit},{run},Team_{team},{pods},1,{}\n", (number / 10) % 3);
    }
    let mut trace = read("small.csv", text.as_bytes(), None).expect("a trace");
    trace.machine = Some([(Name::from("cpu"), 8000)].into());
    trace
}

/// The time for which each job held its quota when it finished.
fn held(history: &History) -> Vec<Option<Duration>> {
    history.jobs.iter().map(|record| Some(record.started?.until(record.ended?))).collect()
}

/// The starts in order: time, job.
fn starts(history: &History) -> Vec<(Time, u32)> {
    let mut starts: Vec<(Time, u32)> = history.runs.iter().map(|run| (run.from, run.job)).collect();
    starts.sort_unstable();
    starts
}

/// Replays a trace at both depths and compares what was decided.
fn compare(trace: &Trace, policy: &Policy) -> History {
    let replay = Replay::new(trace, policy).expect("every job has a queue");
    let whole = whole::replay(&replay, &AtomicUsize::new(0)).unwrap_or_else(|error| panic!("{}: {error}", policy.name));
    assert_eq!(whole.jobs.len(), trace.jobs.len());
    let mut as_held = trace.clone();
    for (job, held) in as_held.jobs.iter_mut().zip(held(&whole)) {
        let held = held.unwrap_or_else(|| panic!("{}: job {} did not end", policy.name, job.name));
        let apart = held.abs_diff(job.run_time);
        assert!(apart <= OVERHEAD, "{}: {} ran {:?}, held {held:?}", policy.name, job.name, job.run_time);
        job.run_time = held;
    }
    let engine = Replay::new(&as_held, policy).expect("every job has a queue").run(&mut Untimed);
    let (of_whole, of_engine) = (starts(&whole), starts(&engine));
    for (number, (whole, engine)) in of_whole.iter().zip(&of_engine).enumerate() {
        let name = &trace.jobs[engine.1 as usize].name;
        let apart = if whole.0 > engine.0 { engine.0.until(whole.0) } else { whole.0.until(engine.0) };
        assert!(
            whole.1 == engine.1 && apart <= GRANULARITY,
            "{}: start {number}: the engine starts {name} at {:?}, the cluster {} at {:?}",
            policy.name,
            engine.0,
            trace.jobs[whole.1 as usize].name,
            whole.0
        );
    }
    assert_eq!(of_whole.len(), of_engine.len(), "{}", policy.name);
    let evictions = |history: &History| history.jobs.iter().map(|job| job.evictions).collect::<Vec<_>>();
    assert_eq!(evictions(&whole), evictions(&engine), "{}", policy.name);
    let holdings = |history: &History| {
        let of = |run: &berth_load::JobRun| (run.job, history.holdings[run.holding as usize].clone());
        let mut all: Vec<_> = history.runs.iter().map(of).collect();
        all.sort_unstable_by_key(|(job, holding)| (*job, holding.amounts.clone()));
        all
    };
    assert_eq!(holdings(&whole), holdings(&engine), "{}: the same quota is held", policy.name);
    whole
}

#[test]
fn both_depths_decide_alike_under_every_policy() {
    let trace = small();
    let mut evictions = 0;
    for built_in in BuiltIn::value_variants() {
        let history = compare(&trace, &built_in.policy(&trace));
        evictions += history.jobs.iter().map(|job| job.evictions).sum::<u64>();
        let waited = history.jobs.iter().filter(|job| job.first_started > Some(job.created.after(OVERHEAD))).count();
        assert!(waited > 5, "{built_in:?}: {waited} jobs waited");
    }
    assert!(evictions > 3, "some policies preempt: {evictions}");
}

#[test]
fn both_depths_decide_alike_on_the_log_of_nasa() {
    const FILE: &str = "traces/nasa-ipsc-1993/NASA-iPSC-1993-3.1-cln.swf.gz";
    let Some(file) = berth_testing::shared(FILE) else { return };
    let bytes = std::fs::read(file).expect("a readable file");
    let mut trace = read(FILE, &bytes, None).unwrap_or_else(|error| panic!("{error}"));
    // More arrivals than the machine can take, so that jobs wait.
    let selection = Selection { limit: Some(80), scale: Some(4.0), pods_max: Some(4), ..Selection::default() };
    selection.apply(&mut trace);
    let history = compare(&trace, &BuiltIn::BestEffort.policy(&trace));
    let waited = history.jobs.iter().filter(|job| job.first_started > Some(job.created.after(OVERHEAD))).count();
    assert!(waited > 10, "{waited} jobs waited");
}

/// Thirty jobs of the small trace with hours without jobs: after every ten, the next one comes
/// later.
fn with_pauses() -> Trace {
    let mut trace = small();
    trace.jobs.truncate(30);
    for (number, job) in trace.jobs.iter_mut().enumerate() {
        job.submitted += Duration::from_secs(4 * 3600) * u32::try_from(number / 10).expect("few jobs");
    }
    trace
}

#[test]
fn clusters_that_divide_a_trace_decide_as_one_cluster_does() {
    let trace = with_pauses();
    let policy = BuiltIn::Reclaim.policy(&trace);
    let replay = Replay::new(&trace, &policy).expect("every job has a queue");
    let ended = AtomicUsize::new(0);
    let by = |threads, cost_min| {
        let division = Division { threads, cost_min };
        whole::replay_divided(&replay, &division, &ended).unwrap_or_else(|error| panic!("{error}"))
    };
    let (one, divided, on_one_thread) = (by(1, u64::MAX), by(3, 1), by(1, 1));
    assert_eq!(divided, on_one_thread, "the number of threads does not matter");
    assert_eq!(divided, one);
    assert_eq!(ended.into_inner(), 3 * trace.jobs.len());
    let waited = one.jobs.iter().filter(|job| job.first_started > Some(job.created.after(OVERHEAD))).count();
    assert!(waited > 3, "{waited} jobs waited");
}
