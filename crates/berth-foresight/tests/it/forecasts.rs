//! Forecasts within a replayed trace.

use std::time::Duration;

use berth_engine::model::{Time, WorkloadKey};
use berth_foresight::forecast::backtest::backtest;
use berth_foresight::forecast::calibration::{Calibration, Made};
use berth_foresight::forecast::estimate::{Estimator, random};
use berth_foresight::policy::built_in::BuiltIn;
use berth_foresight::replay::Replay;
use berth_foresight::trace::Trace;
use berth_load::Untimed;

use super::trace;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// One CPU, and a job of ten minutes every five: the queue grows.
fn growing() -> Trace {
    let mut text = String::from("submit,run,limit,user,request:cpu\n");
    for number in 0..40 {
        text += &format!("{},600,600,ann,1\n", number * 300);
    }
    let mut trace = trace(&text);
    trace.machine = Some([(berth_engine::Name::from("cpu"), 1000)].into());
    trace
}

#[test]
fn with_constant_run_times_every_forecast_is_exact() {
    let trace = growing();
    let policy = BuiltIn::Fifo.policy(&trace);
    let replay = Replay::new(&trace, &policy).expect("every job has a queue");
    let history = replay.run(&mut Untimed);
    let mut made = 0;
    let result = backtest(&trace, &replay, &history, 20, 5, &mut || made += 1);
    assert_eq!(made, result.forecasts);
    assert_eq!((result.waited, result.forecasts, result.unknown), (39, 20, 0));
    // The first forecasts are made before enough jobs have ended; declared limits are exact here.
    assert_eq!((result.limits.count, result.limits.median_seconds), (20, 0.0));
    assert_eq!(result.median.median_seconds, 0.0, "{result:?}");
    assert_eq!(result.within_p90, 1.0);
    assert_eq!(backtest(&trace, &replay, &history, 20, 5, &mut || ()), result, "the same draws each time");
}

/// Learns jobs that start at zero; those with a run time have ended.
fn learned(trace: &Trace, ended: &[usize], running: &[usize]) -> Estimator {
    let mut estimator = Estimator::default();
    for number in ended.iter().chain(running) {
        estimator.start(*number, &trace.jobs[*number], Time::from_seconds(0));
    }
    for number in ended {
        estimator.end(*number, &trace.jobs[*number]);
    }
    estimator
}

#[test]
fn run_times_come_from_the_closest_group_and_exceed_the_time_already_run() {
    let trace = trace(
        "submit,run,limit,user,tenant,pods,request:cpu\n\
         0,10,,ann,a,1,1\n0,20,,ann,a,1,1\n0,30,,ann,a,1,1\n0,40,,ann,a,1,1\n0,50,,ann,a,1,1\n\
         0,900,,bob,a,1,1\n0,1,25,ann,a,1,1\n0,1,,eve,b,9,1\n",
    );
    let estimator = learned(&trace, &[0, 1, 2, 3, 4, 5], &[]);
    let mut known = estimator.at(Time::from_seconds(1000));
    let mut times = |number: usize, elapsed: u64| {
        let estimate = known.guess(&trace.jobs[number], seconds(elapsed));
        [0.0, 0.3, 0.5, 0.7, 0.99].map(|share| estimate.quantile(share).as_secs())
    };
    assert_eq!(times(0, 0), [10, 20, 30, 40, 50], "those of ann's jobs of one pod");
    assert_eq!(times(0, 35), [40, 40, 50, 50, 50]);
    assert_eq!(times(0, 60), [900; 5], "no job of ann ran so long, but one of the tenant");
    assert_eq!(times(0, 1000), [2000; 5], "nothing is known about jobs that ran so long");
    assert_eq!(times(6, 0), [10, 20, 25, 25, 25], "not longer than the declared limit");
    assert_eq!(times(7, 0), [10, 20, 40, 50, 900], "another tenant has the times of all");
    assert_eq!(estimator.limit(&trace.jobs[6]), seconds(25));
    assert_eq!(estimator.limit(&trace.jobs[0]), seconds(900));
}

#[test]
fn jobs_that_still_run_make_the_run_times_of_their_group_longer() {
    let rows = |user: &str, run: u64| format!("0,{run},,{user},a,1,1\n").repeat(5);
    let text = format!(
        "submit,run,limit,user,tenant,pods,request:cpu\n{}{}{}",
        rows("ann", 10),
        rows("ann", 1),
        rows("bob", 500)
    );
    let trace = trace(&text);
    let (ended, running) = ([0, 1, 2, 3, 4, 10, 11, 12, 13, 14], [5, 6, 7, 8, 9]);
    let at = Time::from_seconds(100);
    let alone = learned(&trace, &ended, &[]);
    let estimate = alone.at(at).guess(&trace.jobs[0], Duration::ZERO);
    assert_eq!([0.4, 0.6].map(|share| estimate.quantile(share)), [seconds(10); 2]);
    // Half of ann's jobs have ended after 10 seconds. The other half still runs after 100, and
    // longer times are known of the tenant only.
    let both = learned(&trace, &ended, &running);
    let estimate = both.at(at).guess(&trace.jobs[0], Duration::ZERO);
    assert_eq!([0.4, 0.6].map(|share| estimate.quantile(share)), [seconds(10), seconds(500)]);
    assert!(!estimate.is_certain());
}

#[test]
fn an_evicted_run_says_nothing_about_run_times() {
    let rows = "0,10,,ann,a,1,1\n".repeat(6);
    let trace = trace(&format!("submit,run,limit,user,tenant,pods,request:cpu\n{rows}"));
    let mut estimator = learned(&trace, &[0, 1, 2, 3, 4], &[5]);
    let late = Time::from_seconds(100);
    assert!(!estimator.at(late).guess(&trace.jobs[0], Duration::ZERO).is_certain());
    estimator.evict(5, &trace.jobs[5]);
    assert!(estimator.at(late).guess(&trace.jobs[0], Duration::ZERO).is_certain());
}

#[test]
fn jobs_of_one_group_vary_together_if_consecutive_ones_did() {
    // Batches of ten jobs, each with one run time; and the same run times in turn.
    let text = |run: &dyn Fn(usize) -> usize| {
        let rows: String = (0..60).map(|number| format!("0,{},,ann,a,1,1\n", 1000 * run(number))).collect();
        trace(&format!("submit,run,limit,user,tenant,pods,request:cpu\n{rows}"))
    };
    let all: Vec<usize> = (0..60).collect();
    let spread = |trace: &Trace| {
        let estimator = learned(trace, &all, &[]);
        let estimate = estimator.at(Time::from_seconds(0)).guess(&trace.jobs[0], Duration::ZERO);
        let sums: Vec<u64> =
            (0..50).map(|seed| (0..100).map(|place| estimate.drawn(seed, place).as_secs()).sum()).collect();
        sums.iter().max().expect("draws") - sums.iter().min().expect("draws")
    };
    let (batches, turns) =
        (spread(&text(&|number| 1 + number / 10)), spread(&text(&|number| [1, 4, 2, 5, 3, 6][number % 6])));
    assert!(batches > 3 * turns, "{batches} and {turns}");
}

fn made(number: i64, queue: &str, drawn: u64, wait: u64) -> Made {
    Made {
        workload: WorkloadKey { namespace: "team".into(), name: format!("job-{number}").into() },
        cluster_queue: queue.into(),
        at: Time::from_seconds(number),
        drawn: seconds(drawn),
        stated: seconds(drawn),
        started: Some(Time::from_seconds(number + wait as i64)),
    }
}

fn corrected(calibration: &Calibration, at: i64, queue: &str, drawn: u64) -> u64 {
    let factors = calibration.at(Time::from_seconds(at));
    factors.correct(Some(&queue.into()), seconds(drawn), Duration::ZERO).as_secs()
}

#[test]
fn percentiles_are_corrected_by_the_forecasts_that_came_true() {
    let mut calibration = Calibration::default();
    for number in 0..19 {
        // True waits of twice the forecast percentile, and the offset of a minute.
        calibration.add(made(number, "a", 40, 140));
    }
    assert_eq!(corrected(&calibration, 148, "a", 40), 40, "nine starts are too few");
    assert_eq!(corrected(&calibration, 200, "a", 40), 140);
    assert_eq!(corrected(&calibration, 200, "b", 40), 140, "another queue has those of all");
    for number in 20..40 {
        calibration.add(made(number, "b", 40, 15));
    }
    assert_eq!([corrected(&calibration, 200, "a", 40), corrected(&calibration, 200, "b", 40)], [140, 15]);
    let factors = calibration.at(Time::from_seconds(200));
    assert_eq!(factors.correct(Some(&"b".into()), seconds(40), seconds(30)), seconds(30), "not before the median");
}

#[test]
fn late_starts_and_waits_beyond_the_percentile_move_it() {
    // One of twenty was late: less than the two that may be.
    let mut calibration = Calibration::default();
    for number in 0..20 {
        calibration.add(made(number, "a", 40, if number < 19 { 40 } else { 140 }));
    }
    assert_eq!(corrected(&calibration, 1000, "a", 40), 40);
    // Three jobs wait for longer than was stated. They count before they start.
    for number in 900..903 {
        calibration.add(Made { started: None, ..made(number, "a", 40, 0) });
    }
    assert_eq!(corrected(&calibration, 930, "a", 40), 40);
    assert_eq!(corrected(&calibration, 1000, "a", 40), 140);
}

#[test]
fn draws_repeat() {
    let all = |seed: u64| (0..50).map(|position| random(seed, position)).collect::<Vec<_>>();
    assert_eq!(all(7), all(7));
    assert_ne!(all(7), all(8));
}
