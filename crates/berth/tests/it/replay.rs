//! `berth replay` as a user runs it.

use std::process::{Command, Output};

fn berth(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_berth")).args(arguments).output().expect("berth runs")
}

#[test]
fn replay_prints_a_report_and_its_errors_name_the_line() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("jobs.csv");
    std::fs::write(&file, "submit,run,tenant,request:cpu\n0,60,a,2\n5,60,b,2\n").expect("a writable folder");
    let path = file.to_string_lossy();
    let output = berth(&["replay", &path, "--policy", "fifo", "--policy", "reclaim"]);
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(table.starts_with("jobs.csv (CSV): 2 jobs of 2 tenants") && table.contains("slowdown, p99"), "{table}");
    assert_eq!(output.stderr, b"", "no progress without a terminal");

    std::fs::write(&file, "submit,run,tenant,request:cpu\n0,60,a,two\n").expect("a writable folder");
    let output = berth(&["replay", &path]);
    assert_eq!(output.status.code(), Some(1));
    let wanted = "berth: jobs.csv:2: request:cpu is \"two\": expected a quantity such as 2, 500m or 4Gi\n";
    assert_eq!(String::from_utf8_lossy(&output.stderr), wanted);
}
