//! Forecasts within a replayed trace.

use std::time::Duration;

use berth_engine::model::Time;
use berth_foresight::forecast::backtest::backtest;
use berth_foresight::forecast::calibration::Calibration;
use berth_foresight::forecast::estimate::{Estimator, draw, random};
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

#[test]
fn run_times_come_from_the_closest_group_and_exceed_the_time_already_run() {
    let trace = trace(
        "submit,run,limit,user,tenant,pods,request:cpu\n\
         0,10,,ann,a,1,1\n0,20,,ann,a,1,1\n0,30,,ann,a,1,1\n0,40,,ann,a,1,1\n0,50,,ann,a,1,1\n\
         0,900,,bob,a,1,1\n0,1,25,ann,a,1,1\n0,1,,eve,b,9,1\n",
    );
    let mut estimator = Estimator::default();
    for job in &trace.jobs[..6] {
        estimator.learn(job);
    }
    let times = |number: usize, elapsed: u64| {
        let times = estimator.distribution(&trace.jobs[number], seconds(elapsed));
        times.iter().map(Duration::as_secs).collect::<Vec<_>>()
    };
    assert_eq!(times(0, 0), [10, 20, 30, 40, 50], "those of ann's jobs of one pod");
    assert_eq!(times(0, 35), [40, 50]);
    assert_eq!(times(0, 60), [900], "no job of ann ran so long, but one of the tenant");
    assert_eq!(times(0, 1000), [2000], "nothing is known about jobs that ran so long");
    assert_eq!(times(6, 0), [10, 20, 25, 25, 25], "not longer than the declared limit");
    assert_eq!(times(7, 0), [10, 20, 30, 40, 50, 900], "another tenant has the times of all");
    assert_eq!(estimator.limit(&trace.jobs[6]), seconds(25));
    assert_eq!(estimator.limit(&trace.jobs[0]), seconds(900));
}

#[test]
fn percentiles_are_corrected_by_the_forecasts_that_came_true() {
    let mut calibration = Calibration::default();
    let at = Time::from_seconds;
    for number in 0..19 {
        // True waits of twice the forecast percentile, and the offset of a minute.
        calibration.record(at(number), seconds(40), seconds(140));
    }
    assert_eq!(calibration.correct(at(8), seconds(40)), seconds(40), "nine starts are too few");
    assert_eq!(calibration.correct(at(100), seconds(40)), seconds(140));
    calibration.record(at(20), seconds(40), seconds(4000));
    assert_eq!(calibration.correct(at(100), seconds(40)), seconds(140), "one of twenty may be later");
}

#[test]
fn draws_reach_every_value_and_repeat() {
    let values = [seconds(1), seconds(2), seconds(3)];
    let drawn: Vec<Duration> = (0..50).map(|position| draw(&values, random(7, position))).collect();
    assert!(values.iter().all(|value| drawn.contains(value)));
    let again: Vec<Duration> = (0..50).map(|position| draw(&values, random(7, position))).collect();
    assert_eq!(again, drawn);
}
