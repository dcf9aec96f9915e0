//! The walls of ARCHITECTURE.md, read from the crates' manifests: which crate may know which.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::workspace_root;

/// The dependencies of a crate: those it ships with, not those of its tests.
fn dependencies(name: &str) -> BTreeSet<String> {
    let path = workspace_root().join("crates").join(name).join("Cargo.toml");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut inside = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        if line.starts_with('[') {
            inside = line == "[dependencies]";
        } else if inside && let Some((name, _)) = line.split_once('=') {
            found.insert(name.trim().trim_end_matches(".workspace").to_owned());
        }
    }
    assert!(text.contains("[package]"), "{name}: did the manifest's form change?");
    found
}

/// The files of a folder and of the folders in it.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { files.extend(sources(&path)) } else { files.push(path) }
    }
    files
}

fn check(name: &str, forbidden: &[&str]) {
    let used = dependencies(name);
    let over: Vec<&str> = forbidden.iter().copied().filter(|wall| used.contains(*wall)).collect();
    assert!(over.is_empty(), "{name} must not depend on {over:?}");
}

const OURS: [&str; 15] = [
    "berth-engine",
    "berth-load",
    "berth-apimachinery",
    "berth-cel",
    "berth-store",
    "berth-api",
    "berth-runtime",
    "berth-controllers",
    "berth-apiserver",
    "berth-cluster",
    "berth-embedded",
    "berth-process",
    "berth-bench",
    "berth-simulator",
    "berth-dashboard",
];

#[test]
fn the_engine_knows_nothing_but_itself() {
    check("berth-engine", &OURS[1..]);
    check("berth-engine", &["kube", "k8s-openapi", "tokio", "futures", "rand", "tracing", "jiff", "serde_json"]);
}

#[test]
fn load_plans_know_the_engine_and_no_cluster() {
    let others =
        OURS.iter().copied().filter(|ours| !["berth-engine", "berth-load", "berth-apimachinery"].contains(ours));
    check("berth-load", &others.collect::<Vec<_>>());
    check("berth-load", &["kube", "k8s-openapi", "tokio", "rand"]);
}

#[test]
fn machinery_and_store_know_no_client_and_no_clock() {
    // The store reads and writes objects in the packed form, which is API mechanics.
    for (name, allowed) in [("berth-apimachinery", ""), ("berth-store", "berth-apimachinery")] {
        let others = OURS.iter().copied().filter(|ours| *ours != name && *ours != allowed);
        check(name, &others.collect::<Vec<_>>());
        check(name, &["kube", "k8s-openapi", "rand"]);
    }
}

#[test]
fn expressions_know_api_mechanics_and_nothing_else() {
    let allowed = ["berth-cel", "berth-apimachinery"];
    check("berth-cel", &OURS.iter().copied().filter(|ours| !allowed.contains(ours)).collect::<Vec<_>>());
    check("berth-cel", &["kube", "k8s-openapi", "rand", "tokio", "chrono"]);
    // Time zones come with a library that could ask for the time: an expression's value must not depend on that.
    let files = sources(&workspace_root().join("crates/berth-cel/src"));
    for path in &files {
        let text = std::fs::read_to_string(path).expect("a source file");
        assert!(!text.contains("::now("), "{} asks for the time", path.display());
    }
    assert!(files.len() > 20, "{} files only: have the sources moved?", files.len());
}

#[test]
fn the_server_is_untyped() {
    check(
        "berth-apiserver",
        &["kube", "k8s-openapi", "berth-api", "berth-controllers", "berth-cluster", "berth-engine"],
    );
}

#[test]
fn controllers_know_no_server_and_no_simulated_cluster() {
    check(
        "berth-controllers",
        &["berth-apiserver", "berth-store", "berth-cluster", "berth-embedded", "berth-simulator", "berth-dashboard"],
    );
}

#[test]
fn the_simulated_cluster_knows_no_server_and_no_queueing() {
    check(
        "berth-cluster",
        &["berth-apiserver", "berth-store", "berth-controllers", "berth-engine", "berth-embedded", "berth-simulator"],
    );
}

#[test]
fn the_embedded_cluster_knows_no_scenario() {
    let forbidden =
        ["berth-engine", "berth-load", "berth-process", "berth-bench", "berth-simulator", "berth-dashboard"];
    check("berth-embedded", &forbidden);
    check("berth-simulator", &["berth-load", "berth-process", "berth-bench", "berth-dashboard"]);
}

#[test]
fn benches_know_no_scenario_and_no_page() {
    check("berth-bench", &["berth-simulator", "berth-dashboard"]);
    let allowed = ["berth-process", "berth-apiserver", "berth-controllers", "berth-runtime"];
    check("berth-process", &OURS.iter().copied().filter(|ours| !allowed.contains(ours)).collect::<Vec<_>>());
}

#[test]
fn only_run_imports_the_simulator() {
    let imports = |path: &Path| std::fs::read_to_string(path).expect("a source file").contains("berth_simulator");
    let root = workspace_root().join("crates/berth/src");
    let importing: Vec<PathBuf> = sources(&root).into_iter().filter(|path| imports(path)).collect();
    assert_eq!(importing, [root.join("run.rs")]);
}

#[test]
fn the_pages_know_what_any_client_of_a_cluster_may_know() {
    let allowed = ["berth-dashboard", "berth-controllers", "berth-runtime", "berth-api", "berth-apimachinery"];
    check("berth-dashboard", &OURS.iter().copied().filter(|ours| !allowed.contains(ours)).collect::<Vec<_>>());
}

#[test]
fn the_runtime_knows_kubernetes_only_through_a_client() {
    check("berth-runtime", &["berth-apiserver", "berth-store", "berth-cluster", "berth-controllers", "berth-engine"]);
}
