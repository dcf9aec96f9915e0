//! `berth run` on our own and on recorded scenarios: all expectations hold, and two runs print the
//! same bytes.

use std::process::{Command, Output};

use berth_testing::shared;

use crate::cluster::file;

fn berth_run(scenario: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_berth")).args(["run", scenario]).output().expect("berth runs")
}

fn run(scenario: &str) -> (String, bool) {
    let output = berth_run(scenario);
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (text, output.status.success())
}

fn report(scenario: &str) -> String {
    String::from_utf8_lossy(&berth_run(scenario).stdout).into_owned()
}

#[test]
fn two_teams_share_the_reference_cluster() {
    let (text, ok) = run(&file("examples/gke-batch-refarch/scenario.yaml"));
    assert!(ok, "{text}");
}

#[test]
fn the_gke_reference_architecture_runs_verbatim() {
    if shared("scenarios/gke-batch-refarch").is_none() {
        return;
    }
    let (text, ok) = run(&file("tests/scenarios/gke-batch-refarch.yaml"));
    assert!(ok, "{text}");
}

#[test]
fn skypilot_with_queued_provisioning_runs_verbatim() {
    if shared("scenarios/skypilot-dws").is_none() {
        return;
    }
    let (text, ok) = run(&file("tests/scenarios/skypilot-dws.yaml"));
    assert!(ok, "{text}");
}

#[test]
fn tpu_training_on_ray_falls_back_to_queued_capacity() {
    if shared("scenarios/tpu-dws-rayjob").is_none() {
        return;
    }
    let (text, ok) = run(&file("tests/scenarios/tpu-dws-rayjob.yaml"));
    assert!(ok, "{text}");
}

#[test]
fn the_tutorial_of_mlbatch_runs_verbatim() {
    if shared("scenarios/mlbatch").is_none() {
        return;
    }
    let (text, ok) = run(&file("tests/scenarios/mlbatch.yaml"));
    assert!(ok, "{text}");
}

#[test]
fn the_same_seed_gives_the_same_report() {
    let scenario = file("examples/gke-batch-refarch/scenario.yaml");
    assert_eq!(report(&scenario), report(&scenario));
}

#[test]
fn a_failed_expectation_names_the_cell_and_fails_the_run() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("wrong.yaml");
    let text = "apiVersion: berth.dev/v1alpha1\nkind: Scenario\nmetadata: {name: wrong}\nspec:\n  cluster: {nodePools: []}\n  steps:\n    - name: look\n      expect:\n        - count: {of: nodes, is: 3}\n";
    std::fs::write(&path, text).expect("the scenario can be written");
    let (report, ok) = run(&path.display().to_string());
    assert!(!ok);
    assert!(report.contains("number of nodes: expected 3, found 0"), "{report}");
}
