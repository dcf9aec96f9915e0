//! Agreement with the recorded cases: the disagreements must be exactly those that
//! `xtask/disagreements` lists.
//!
//! A test fails if a case starts to disagree, or if a listed case starts to agree: remove its line
//! then. A case also disagrees if its runner does not read one of its fields, accepts a corrupted
//! expectation, or does not know a feature gate that the case sets.
//!
//! The tests print the number of agreeing cases per suite even if they pass.

use std::path::Path;
use std::process::Command;

use crate::{print_uncaptured, workspace_root};

/// Checks the recorded cases of a folder next to the repository, if the folder exists.
fn check(folder: &str) {
    if let Some(directory) = berth_testing::shared(&format!("conformance/{folder}")) {
        check_cases(folder, &directory);
    }
}

/// Checks recorded cases that are in the repository as a packed file.
fn check_packed(folder: &str) {
    check_cases(folder, &workspace_root().join(format!("xtask/recorded/{folder}.jsonl.gz")));
}

fn check_cases(folder: &str, directory: &Path) {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["conformance", "--check"])
        .arg(directory)
        .output()
        .expect("cargo builds the command before this test");
    print_uncaptured(&format!("agreement with recorded {folder}:\n{}", String::from_utf8_lossy(&output.stdout)));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_engine_agrees_with_recorded_kueue() {
    check("kueue");
}

#[test]
fn the_engine_agrees_with_recorded_random_histories() {
    check_packed("kueue-random");
}

#[test]
fn the_engine_agrees_with_recorded_random_topologies() {
    check_packed("kueue-random-tas");
}

#[test]
fn the_controllers_agree_with_recorded_kueue_and_jobset() {
    check("kueue-controllers");
}

#[test]
fn the_api_machinery_agrees_with_recorded_kubernetes() {
    check("apimachinery");
}

#[test]
fn the_api_server_agrees_with_recorded_kubernetes() {
    check("apiserver");
}

#[test]
fn every_folder_of_recorded_cases_is_checked() {
    let checked = ["kueue", "kueue-random", "kueue-random-tas", "kueue-controllers", "apimachinery", "apiserver"];
    let Some(directory) = berth_testing::shared("conformance") else { return };
    for folder in std::fs::read_dir(directory)
        .expect("conformance is a readable folder")
        .filter_map(Result::ok)
        .filter(|entry| entry.path().is_dir())
    {
        let name = folder.file_name().to_string_lossy().into_owned();
        assert!(checked.contains(&name.as_str()), "no test checks the folder {name}");
    }
}
