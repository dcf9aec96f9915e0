//! Agreement with the recorded cases: the disagreements are exactly those listed in `xtask/disagreements`. A case that
//! starts to disagree fails, and so does a listed one that starts to agree: then its line goes.

use std::process::Command;

use crate::workspace_root;

fn check(folder: &str) {
    let directory = workspace_root().join("../shared/conformance").join(folder);
    if !directory.is_dir() {
        println!("skipped: {} is not present", directory.display());
        return;
    }
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["conformance", "--check"])
        .arg(&directory)
        .output()
        .expect("the runner was built with this test");
    println!("{folder}:\n{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_engine_agrees_with_recorded_kueue() {
    check("kueue");
}

#[test]
fn the_engine_agrees_with_recorded_random_histories() {
    check("kueue-random");
}

#[test]
fn the_engine_agrees_with_recorded_random_topologies() {
    check("kueue-random-tas");
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
