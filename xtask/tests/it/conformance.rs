//! Agreement with the recorded cases: the disagreements are exactly those listed in `xtask/disagreements`. A case that
//! starts to disagree fails, and so does a listed one that starts to agree: then its line goes. So does a case whose
//! runner leaves aside a part of it, and one whose runner does not notice when what it wants is made wrong.
//!
//! How many cases of each suite agree is said whether or not tests pass, so that every run of them shows it.

use std::path::Path;
use std::process::Command;

use crate::{say, workspace_root};

/// Checks the recorded cases of a folder beside the repository.
fn check(folder: &str) {
    if let Some(directory) = berth_testing::shared(&format!("conformance/{folder}")) {
        check_cases(folder, &directory);
    }
}

/// Checks the recorded cases of a folder that the repository holds as one packed file.
fn check_packed(folder: &str) {
    check_cases(folder, &workspace_root().join(format!("xtask/recorded/{folder}.jsonl.gz")));
}

fn check_cases(folder: &str, directory: &Path) {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["conformance", "--check"])
        .arg(directory)
        .output()
        .expect("the runner was built with this test");
    say(&format!("agreement with recorded {folder}:\n{}", String::from_utf8_lossy(&output.stdout)));
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
fn the_machinery_agrees_with_recorded_kubernetes() {
    check("apimachinery");
}

#[test]
fn the_server_agrees_with_recorded_kubernetes() {
    check("apiserver");
}

#[test]
fn every_folder_of_recorded_cases_is_checked() {
    let ours = ["kueue", "kueue-random", "kueue-random-tas", "kueue-controllers", "apimachinery", "apiserver"];
    let Some(directory) = berth_testing::shared("conformance") else { return };
    for folder in std::fs::read_dir(directory)
        .expect("a readable folder")
        .filter_map(Result::ok)
        .filter(|entry| entry.path().is_dir())
    {
        let name = folder.file_name().to_string_lossy().into_owned();
        assert!(ours.contains(&name.as_str()), "no test checks {name}");
    }
}
