//! Forecasts of a live state: places, and how far they go.

use std::time::Duration;

use berth_engine::model::Time;
use berth_foresight::command::what_if;
use berth_foresight::forecast::calibration::{Calibration, Made};
use berth_foresight::live::State;
use berth_foresight::live::forecast::{Plan, Prospect, Unknown, forecast};
use berth_foresight::live::record;
use berth_foresight::live::run_times::RunTimes;
use berth_foresight::live::what_if::{Comparison, compare};
use berth_foresight::memory::Memory;
use berth_foresight::objects::{Document, Objects};
use berth_foresight::policy::Prices;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::template;

/// Ten jobs of one CPU for an hour wait in a queue of one CPU. The last one has the highest
/// priority.
fn objects() -> Objects {
    with_quota(1)
}

/// The same jobs in a queue of another size.
fn with_quota(cpus: u32) -> Objects {
    let kueue = "kueue.x-k8s.io/v1beta2";
    let mut all = vec![
        json!({"apiVersion": kueue, "kind": "ResourceFlavor", "metadata": {"name": "default"}}),
        json!({"apiVersion": kueue, "kind": "ClusterQueue", "metadata": {"name": "team"}, "spec": {
            "namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [
                {"name": "default", "resources": [{"name": "cpu", "nominalQuota": cpus}]}]}]}}),
        json!({"apiVersion": kueue, "kind": "LocalQueue", "metadata": {"name": "main", "namespace": "team"},
               "spec": {"clusterQueue": "team"}}),
    ];
    all.extend((0..10).map(|number| -> Value {
        json!({"apiVersion": kueue, "kind": "Workload",
            "metadata": {"name": format!("job-{number}"), "namespace": "team", "uid": format!("{number}"),
                         "creationTimestamp": format!("2026-01-01T10:00:{number:02}Z")},
            "spec": {"queueName": "main", "priority": i32::from(number == 9), "podSets": [{"name": "main", "count": 1, "template": {
                "metadata": {"annotations": {"berth.dev/run-duration": "1h"}},
                "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}}]}})
    }));
    Objects::read(all.into_iter().map(|value| Document { value, source: None }).collect())
}

fn known(objects: &Objects) -> (State, Prospect) {
    let at: Timestamp = "2026-01-01T12:00:00Z".parse().expect("a time");
    let state = State::of(objects, at);
    let prospect = Prospect::new(objects, &state, &RunTimes::of(objects, None), &template);
    (state, prospect)
}

#[test]
fn places_are_by_priority_and_creation() {
    let objects = objects();
    let (state, prospect) = known(&objects);
    let forecasts = forecast(&state, &prospect, Plan { draws: 1, only: None });
    let places: Vec<usize> = forecasts.iter().map(|it| it.place).collect();
    assert_eq!(places, [2, 3, 4, 5, 6, 7, 8, 9, 10, 1]);
    let hours = |at: Time| state.at.until(at).as_secs() / 3600;
    for it in &forecasts {
        assert_eq!(it.median.map(hours), Some(it.place as u64 - 1), "{:?}", it.key);
    }
    assert_eq!(forecasts[0].waits_for, ["team/job-9"], "the first in the queue waits for the more urgent job");
}

#[test]
fn starts_beyond_the_limit_are_unknown_with_the_reason() {
    let objects = objects();
    let (state, prospect) = known(&objects);
    let prospect = prospect.with_starts_max(3);
    let forecasts = forecast(&state, &prospect, Plan { draws: 1, only: None });
    for it in &forecasts {
        assert_eq!(it.median.is_some(), it.place <= 3, "{it:?}");
        if it.place > 3 {
            let reason = it.unknown.as_ref().map(Unknown::to_string).unwrap_or_default();
            assert!(reason.starts_with("it is not among the next 3 jobs to start"), "{reason}");
        }
    }
    let last = forecast(&state, &prospect, Plan { draws: 1, only: Some(8) });
    assert_eq!((last.len(), last[0].median, last[0].place), (1, None, 10));
    // A limit that no job reaches changes nothing.
    let (state, prospect) = known(&objects);
    let whole = forecast(&state, &prospect.with_starts_max(10), Plan { draws: 1, only: None });
    assert!(whole.iter().all(|it| it.median.is_some() && it.unknown.is_none()));
}

/// Compares queues of two sizes, with a limit of three starts.
fn compared(before: u32, after: u32) -> Comparison {
    let sides = [before, after].map(|cpus| known(&with_quota(cpus)));
    let [before, after] = sides.map(|(state, prospect)| (state, prospect.with_starts_max(3)));
    compare((&before.0, &before.1), (&after.0, &after.1), &Prices::default())
}

#[test]
fn both_futures_of_a_comparison_end_when_one_of_them_reaches_the_limit() {
    // Of two CPUs, the third and the fourth job start after an hour. Of one CPU, two jobs have
    // started then.
    for (before, after, starts) in [(1, 2, [2, 4]), (2, 1, [4, 2])] {
        let comparison = compared(before, after);
        let cut = comparison.cut.expect("an end");
        assert_eq!((comparison.at.until(cut.at).as_secs(), cut.starts_max), (3600, 3));
        assert_eq!([comparison.before.admitted, comparison.after.admitted], starts);
        assert_eq!([comparison.before.unknown, comparison.after.unknown], starts.map(|it| 10 - it));
        let shares = [&comparison.before, &comparison.after].map(|it| it.utilization["cpu"]);
        assert_eq!(shares, [1.0, 1.0], "all quota is in use until the end");
        let late = |at: Option<Time>| at.is_some_and(|at| at > cut.at);
        for row in &comparison.rows {
            for future in row.before.iter().chain(&row.after) {
                assert!(!late(future.admitted) && !late(future.running) && !late(future.ended), "{row:?}");
            }
        }
        let json = what_if::json(&comparison, false);
        assert_eq!((&json["cut"]["startsMax"], &json["cut"]["at"]), (&json!(3), &json!("2026-01-01T13:00:00Z")));
        let text = json["cut"]["text"].as_str().unwrap_or_default();
        assert!(text.starts_with("Both futures end in 60 min, when 3 waiting jobs have started"), "{text}");
    }
}

#[test]
fn a_comparison_below_the_limit_has_no_end() {
    let (state, prospect) = known(&objects());
    let comparison = compare((&state, &prospect), (&state, &prospect), &Prices::default());
    assert_eq!((comparison.cut, comparison.before.admitted), (None, 10));
    assert_eq!(what_if::json(&comparison, false)["cut"], Value::Null);
}

/// The objects with one more Workload in the queue, which got quota at `reserved`.
fn with_start(name: &str, created: &str, reserved: Option<&str>) -> Objects {
    let kueue = "kueue.x-k8s.io/v1beta2";
    let condition = |at: &str| {
        json!({"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved", "message": "",
               "lastTransitionTime": at})
    };
    let object = json!({"apiVersion": kueue, "kind": "Workload",
        "metadata": {"name": name, "namespace": "team", "creationTimestamp": created},
        "spec": {"queueName": "main", "podSets": [{"name": "main", "count": 1, "template": {
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}}]},
        "status": {"conditions": reserved.map(condition).into_iter().collect::<Vec<_>>()}});
    Objects::read(vec![Document { value: object, source: None }])
}

#[test]
fn a_running_cluster_records_the_forecast_of_the_newest_job_and_its_start() {
    let (state, prospect) = known(&objects());
    let forecasts = forecast(&state, &prospect, Plan { draws: 1, only: None });
    let mut calibration = Calibration::default();
    record::add(&mut calibration, &forecasts, state.at);
    record::add(&mut calibration, &forecasts, state.at);
    let made: Vec<_> =
        calibration.made().map(|made| (&*made.workload.name, made.drawn.as_secs(), made.started)).collect();
    assert_eq!(made, [("job-9", 0, None)], "once per job, and the other nine are no further evidence");

    let settled = |objects: &Objects| {
        let mut calibration = calibration.clone();
        record::settle(&mut calibration, objects);
        calibration.made().map(|made| made.started.map(|at| state.at.until(at).as_secs())).collect::<Vec<_>>()
    };
    let created = "2026-01-01T10:00:09Z";
    assert_eq!(settled(&with_start("job-9", created, None)), [None], "it still waits");
    assert_eq!(settled(&with_start("job-9", created, Some("2026-01-01T12:01:00Z"))), [Some(60)]);
    assert_eq!(settled(&with_start("job-9", "2026-01-01T12:00:30Z", None)), [], "another Workload of the name");
    assert_eq!(settled(&with_start("job-8", created, None)), [], "it was deleted before it started");
}

#[test]
fn the_percentile_of_a_live_forecast_is_corrected_by_the_memory_and_the_median_is_not() {
    let mut objects = objects();
    let mut calibration = Calibration::default();
    let begin: Timestamp = "2026-01-01T11:00:00Z".parse().expect("a time");
    for number in 0..12_i64 {
        let at = Time::from_seconds(begin.as_second() + number);
        calibration.add(Made {
            workload: berth_engine::model::WorkloadKey {
                namespace: "team".into(),
                name: format!("old-{number}").into(),
            },
            cluster_queue: "team".into(),
            at,
            drawn: Duration::from_secs(60),
            stated: Duration::from_secs(180),
            // Twice the forecast, with the minute that is added to both.
            started: Some(at.after(Duration::from_secs(180))),
        });
    }
    objects.memory = Some(Memory::default().with_forecasts(&calibration));
    assert_eq!(objects.memory.as_ref().map(Memory::calibration), Some(calibration), "nothing is lost");
    let (state, prospect) = known(&objects);
    let last = forecast(&state, &prospect, Plan { draws: 1, only: Some(8) }).remove(0);
    let seconds = |at: Option<Time>| at.map(|at| state.at.until(at).as_secs());
    let nine = 9 * 3600;
    assert_eq!(
        [seconds(last.median), seconds(last.drawn), seconds(last.p90)],
        [Some(nine), Some(nine), Some(2 * nine + 60)]
    );
}
