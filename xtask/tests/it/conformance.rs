//! Agreement with the recorded cases, held by a baseline: a suite may agree in more cases than the baseline says, and
//! then the baseline is raised; it may never agree in fewer.

use std::collections::BTreeMap;
use std::process::Command;

use crate::workspace_root;

/// `suite agree` or `folder/suite agree` a line; comments start with `#`.
fn baseline() -> BTreeMap<String, usize> {
    let path = workspace_root().join("xtask/conformance-baseline.txt");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
        .map(|line| {
            let (suite, agree) = line.split_once(' ').unwrap_or_else(|| panic!("expected `suite agree`: {line}"));
            (suite.to_owned(), agree.parse().unwrap_or_else(|_| panic!("expected a number: {line}")))
        })
        .collect()
}

fn check(folder: &str) {
    let directory = workspace_root().join("../shared/conformance").join(folder);
    if !directory.is_dir() {
        println!("skipped: {} is not present", directory.display());
        return;
    }
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .arg("conformance")
        .arg(&directory)
        .output()
        .expect("the runner was built with this test");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{folder}:\n{text}");
    let baseline = baseline();
    let mut worse = Vec::new();
    for line in text.lines() {
        let (suite, counts) = line.split_once(' ').expect("the runner prints `suite agree/total`");
        let (agree, _total) = counts.split_once('/').expect("the runner prints `suite agree/total`");
        let agree: usize = agree.parse().expect("the runner prints numbers");
        // Folders share some suite names; where they differ, the baseline names the folder too.
        if let Some(expected) = baseline.get(&format!("{folder}/{suite}")).or_else(|| baseline.get(suite))
            && agree < *expected
        {
            worse.push(format!("{suite}: {agree} agree, the baseline has {expected}"));
        }
    }
    assert!(worse.is_empty(), "{}", worse.join("\n"));
}

#[test]
fn the_engine_agrees_with_recorded_kueue() {
    check("kueue");
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
