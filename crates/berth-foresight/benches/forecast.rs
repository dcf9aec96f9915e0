//! The time of a forecast with 10,000 waiting jobs.
//!
//! Ten teams with two flavors share a cohort. 400 jobs run, and 10,000 wait. Measured is the time
//! from the state to the forecast of one job, and of all jobs; the state is read before.

use std::time::Duration;

use berth_foresight::live::State;
use berth_foresight::live::forecast::{Plan, Prospect, forecast};
use berth_foresight::live::run_times::RunTimes;
use berth_foresight::objects::{Document, Objects};
use criterion::{Criterion, criterion_group, criterion_main};
use jiff::Timestamp;
use serde_json::{Value, json};

/// The allocator of `berth`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TEAMS: usize = 10;
const RUNNING: usize = 400;
const WAITING: usize = 10_000;
const AT: &str = "2026-01-01T12:00:00Z";

fn workload(number: usize) -> Value {
    let team = number % TEAMS;
    let seconds = 600 + (number * 7919) % 7200;
    let mut object = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
        "metadata": {"name": format!("job-{number}"), "namespace": "teams", "uid": format!("{number:06}"),
                     "creationTimestamp": "2026-01-01T10:00:00Z"},
        "spec": {"queueName": format!("team-{team}"), "priority": 0, "podSets": [{"name": "main", "count": 1 + number % 4,
            "template": {"metadata": {"annotations": {"berth.dev/run-duration": format!("{seconds}s")}},
                         "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}}]},
    });
    if number < RUNNING {
        let count = 1 + number % 4;
        let condition = |type_: &str| {
            json!({"type": type_, "status": "True", "reason": type_, "message": "",
                   "lastTransitionTime": "2026-01-01T11:50:00Z"})
        };
        object["status"] = json!({
            "admission": {"clusterQueue": format!("team-{team}"), "podSetAssignments": [
                {"name": "main", "count": count, "flavors": {"cpu": "reserved"},
                 "resourceUsage": {"cpu": count.to_string()}}]},
            "conditions": [condition("QuotaReserved"), condition("Admitted")],
        });
    }
    object
}

fn objects() -> Objects {
    let mut all: Vec<Value> = ["reserved", "spot"]
        .map(|name| json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": name}}))
        .to_vec();
    for team in 0..TEAMS {
        let name = format!("team-{team}");
        let quota = |flavor: &str| json!({"name": flavor, "resources": [{"name": "cpu", "nominalQuota": "100"}]});
        all.push(json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": name},
            "spec": {"cohortName": "all", "namespaceSelector": {}, "resourceGroups": [
                {"coveredResources": ["cpu"], "flavors": [quota("reserved"), quota("spot")]}]}}));
        all.push(json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue",
            "metadata": {"name": name, "namespace": "teams"}, "spec": {"clusterQueue": name}}));
    }
    all.extend((0..RUNNING + WAITING).map(workload));
    Objects::read(all.into_iter().map(|value| Document { value, source: None }).collect())
}

fn forecasts(bencher: &mut Criterion) {
    let objects = objects();
    assert_eq!(objects.invalid, []);
    let at: Timestamp = AT.parse().expect("a time");
    let state = State::of(&objects, at);
    let prospect = Prospect::new(&objects, &state, &RunTimes::of(&objects, None), &|_| Vec::new());
    let middle = RUNNING + WAITING / 10;
    let mut group = bencher.benchmark_group("forecast with 10,000 waiting");
    group.sample_size(10).measurement_time(Duration::from_secs(5));
    group.bench_function("of a job with 1,000 ahead", |bench| {
        bench.iter(|| forecast(&state, &prospect, Plan { draws: 1, only: Some(middle) }));
    });
    group.bench_function("of all jobs", |bench| {
        bench.iter(|| forecast(&state, &prospect, Plan { draws: 1, only: None }));
    });
    group.finish();
}

criterion_group!(benches, forecasts);
criterion_main!(benches);
