//! `berth bench` on shortened loads. The tests fail on lost or doubled work, never on slowness.

use std::process::Command;

use serde_json::Value;

use crate::cluster::file;

fn bench(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_berth"))
        .arg("bench")
        .args(arguments)
        .arg("--output=json")
        .output()
        .expect("berth runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "berth bench {arguments:?} ended with {}: {text}\n{errors}", output.status);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}\n{errors}"))
}

/// Every workload of a small load finishes exactly once, and the queues' usage ends at zero.
fn check_load(arguments: &[&str]) -> Value {
    let report = bench(&[&["load", &file("crates/berth-load/configurations/shortened.yaml")], arguments].concat());
    assert_eq!(report["workloads"], report["finished"], "{report:#}");
    assert_eq!(report["violations"]["count"], 0, "{report:#}");
    let evictions: u64 =
        report["classes"].as_object().into_iter().flatten().filter_map(|(_, it)| it["evictions"].as_u64()).sum();
    let (admissions, workloads) = (report["admissions"].as_u64(), report["workloads"].as_u64());
    assert!(admissions >= workloads, "{report:#}");
    assert!(
        admissions <= workloads.map(|count| count + evictions),
        "there are more admissions than workloads and evictions: {report:#}"
    );
    report
}

#[test]
fn a_load_in_one_process_neither_loses_nor_repeats_work() {
    let chart = tempfile::tempdir().expect("a temporary folder");
    let path = chart.path().join("chart.svg").display().to_string();
    check_load(&["--chart", &path]);
    let drawn = std::fs::read_to_string(path).expect("the chart was written");
    assert!(drawn.contains("<polyline"), "{drawn}");
}

#[test]
fn a_load_on_separate_processes_neither_loses_nor_repeats_work_even_when_limited() {
    let report = check_load(&["--api=processes", "--limit=100/50"]);
    assert!(report["costs"]["controller"]["cpuSeconds"].as_f64() > Some(0.0), "{report:#}");
}

#[test]
fn a_deep_queue_drains_completely() {
    let report = check_load(&["--hold"]);
    assert_eq!(report["drain"]["admissions"], report["admissions"], "{report:#}");
}

#[test]
fn no_jobs_or_api_objects_are_lost() {
    let report = bench(&["jobs", "--count=30", "--idle=2", "--nodes=2"]);
    assert_eq!(report["violations"].as_array().map(Vec::len), Some(0), "{report:#}");
    let few = ["--clients=5", "--writes=50", "--watchers=5", "--changes=5", "--listed=70", "--page=20"];
    let report = bench(&[&["api", "--tenant-calls=20"][..], &few].concat());
    assert!(report["tenant"]["p99Ratio"].as_f64() > Some(0.0) && report["tenant"]["floodCalls"] != 0, "{report:#}");
    assert_eq!((&report["list"]["lost"], &report["watch"]["missed"]), (&0.into(), &0.into()), "{report:#}");
}

#[test]
fn deleting_a_teams_jobs_removes_their_workloads_and_other_teams_continue() {
    // The command fails if a Workload remains or a queue's usage is not zero.
    let report = bench(&["deletions", "--count=400", "--nodes=1"]);
    assert_eq!(report["jobs"], 400, "{report:#}");
    assert!(report["otherTeam"]["jobs"].as_u64() > Some(0), "{report:#}");
}
