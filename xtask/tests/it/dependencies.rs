//! The allowed dependencies between crates (ARCHITECTURE.md). The tests read the manifests.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::workspace_root;

/// The dependencies of a crate, without dev-dependencies.
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
    assert!(text.contains("[package]"), "{name}: Cargo.toml has no [package]: adapt this test");
    found
}

/// The files of a folder and its subfolders.
pub fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the folder is readable") {
        let path = entry.expect("the folder is readable").path();
        if path.is_dir() { files.extend(sources(&path)) } else { files.push(path) }
    }
    files
}

/// Fails if the crate depends on a forbidden one.
fn check(name: &str, forbidden: &[&str]) {
    let used = dependencies(name);
    let violations: Vec<&str> = forbidden.iter().copied().filter(|other| used.contains(*other)).collect();
    assert!(violations.is_empty(), "{name} must not depend on {violations:?}");
}

/// The crates of the workspace that have rules here.
const CRATES: &[&str] = &[
    "berth-engine",
    "berth-load",
    "berth-apimachinery",
    "berth-cel",
    "berth-store",
    "berth-api",
    "berth-runtime",
    "berth-controllers",
    "berth-kinds",
    "berth-apiserver",
    "berth-cluster",
    "berth-embedded",
    "berth-process",
    "berth-bench",
    "berth-foresight",
    "berth-simulator",
    "berth-dashboard",
    "berth-network",
    "berth-images",
    "berth-machine",
    "berth-operators",
];

#[test]
fn the_product_derives_no_schemas() {
    for entry in std::fs::read_dir(workspace_root().join("crates")).expect("the folder is readable") {
        let path = entry.expect("the folder is readable").path().join("Cargo.toml");
        let text = std::fs::read_to_string(&path).expect("the manifest is readable");
        let normal = text.split("[dev-dependencies]").next().unwrap_or_default();
        for line in normal.lines().filter(|line| line.starts_with("schemars") || line.contains("\"schemars\"")) {
            assert!(line.contains("optional = true"), "{}: {line}", path.display());
        }
        for line in normal.lines().filter(|line| line.starts_with("berth-api")) {
            assert!(!line.contains("schema\""), "{}: only tests and xtask derive schemas: {line}", path.display());
        }
    }
}

#[test]
fn the_engine_depends_on_no_other_crate_of_berth() {
    check("berth-engine", &CRATES[1..]);
    check("berth-engine", &["kube", "k8s-openapi", "tokio", "futures", "rand", "tracing", "jiff", "serde_json"]);
}

#[test]
fn load_plans_depend_on_the_engine_and_on_no_cluster() {
    let others =
        CRATES.iter().copied().filter(|name| !["berth-engine", "berth-load", "berth-apimachinery"].contains(name));
    check("berth-load", &others.collect::<Vec<_>>());
    check("berth-load", &["kube", "k8s-openapi", "tokio", "rand"]);
}

#[test]
fn replays_depend_on_no_cluster_and_read_no_clock() {
    let allowed =
        ["berth-foresight", "berth-load", "berth-controllers", "berth-engine", "berth-api", "berth-apimachinery"];
    check("berth-foresight", &CRATES.iter().copied().filter(|name| !allowed.contains(name)).collect::<Vec<_>>());
    check("berth-foresight", &["kube", "tokio", "futures", "rand", "tracing"]);
    let files = sources(&workspace_root().join("crates/berth-foresight/src"));
    for path in &files {
        let text = std::fs::read_to_string(path).expect("the file is readable");
        assert!(!text.contains("::now("), "{} reads the clock", path.display());
        let reads_files = text.contains("std::fs::");
        let is_command = path.components().any(|part| part.as_os_str() == "command");
        assert!(!reads_files || is_command, "{} reads files", path.display());
    }
    assert!(files.len() > 10, "found {} source files only: adapt the path in this test", files.len());
}

#[test]
fn api_machinery_and_store_depend_on_no_client() {
    // The store uses the packed form of objects, which `berth-apimachinery` defines.
    for (name, allowed) in [("berth-apimachinery", ""), ("berth-store", "berth-apimachinery")] {
        let others = CRATES.iter().copied().filter(|other| *other != name && *other != allowed);
        check(name, &others.collect::<Vec<_>>());
        check(name, &["kube", "k8s-openapi", "rand"]);
    }
}

#[test]
fn expressions_depend_on_the_api_machinery_only_and_read_no_clock() {
    let allowed = ["berth-cel", "berth-apimachinery"];
    check("berth-cel", &CRATES.iter().copied().filter(|name| !allowed.contains(name)).collect::<Vec<_>>());
    check("berth-cel", &["kube", "k8s-openapi", "rand", "tokio", "chrono"]);
    // `jiff` is needed for time zones, but can also read the clock. The value of an expression must
    // not depend on the clock.
    let files = sources(&workspace_root().join("crates/berth-cel/src"));
    for path in &files {
        let text = std::fs::read_to_string(path).expect("the file is readable");
        assert!(!text.contains("::now("), "{} reads the clock", path.display());
    }
    assert!(files.len() > 20, "found {} source files only: adapt the path in this test", files.len());
}

#[test]
fn kinds_depend_on_no_server_and_no_store() {
    let allowed = ["berth-kinds", "berth-apimachinery", "berth-cel"];
    check("berth-kinds", &CRATES.iter().copied().filter(|name| !allowed.contains(name)).collect::<Vec<_>>());
    check("berth-kinds", &["kube", "k8s-openapi", "tokio", "futures", "hyper", "http", "rand"]);
    let files = sources(&workspace_root().join("crates/berth-kinds/src"));
    for path in &files {
        let text = std::fs::read_to_string(path).expect("the file is readable");
        assert!(!text.contains("::now("), "{} reads the clock", path.display());
    }
    assert!(files.len() > 50, "found {} source files only: adapt the path in this test", files.len());
}

#[test]
fn the_api_server_depends_on_no_typed_objects() {
    check(
        "berth-apiserver",
        &["kube", "k8s-openapi", "berth-api", "berth-controllers", "berth-cluster", "berth-engine"],
    );
}

#[test]
fn the_request_path_has_no_code_for_services() {
    let files = sources(&workspace_root().join("crates/berth-apiserver/src/rest"));
    for path in &files {
        let text = std::fs::read_to_string(path).expect("the file is readable");
        for word in ["\"services\"", "service_ports", "service_addresses", "clusterIP"] {
            assert!(!text.contains(word), "{} mentions {word}: use a hook of the kind", path.display());
        }
    }
    assert!(files.len() > 15, "found {} source files only: adapt the path in this test", files.len());
}

#[test]
fn controllers_depend_on_no_api_server_and_no_simulated_cluster() {
    check(
        "berth-controllers",
        &["berth-apiserver", "berth-store", "berth-cluster", "berth-embedded", "berth-simulator", "berth-dashboard"],
    );
}

#[test]
fn the_simulated_cluster_depends_on_no_api_server_and_no_queueing() {
    check(
        "berth-cluster",
        &["berth-apiserver", "berth-store", "berth-controllers", "berth-engine", "berth-embedded", "berth-simulator"],
    );
}

#[test]
fn the_embedded_cluster_depends_on_no_scenarios() {
    let forbidden =
        ["berth-engine", "berth-load", "berth-process", "berth-bench", "berth-simulator", "berth-dashboard"];
    check("berth-embedded", &forbidden);
    check("berth-simulator", &["berth-process", "berth-bench", "berth-dashboard"]);
}

#[test]
fn benchmarks_depend_on_no_scenarios_and_no_dashboard() {
    check("berth-bench", &["berth-simulator", "berth-dashboard"]);
    let allowed = ["berth-process", "berth-apimachinery", "berth-apiserver", "berth-controllers", "berth-runtime"];
    check("berth-process", &CRATES.iter().copied().filter(|name| !allowed.contains(name)).collect::<Vec<_>>());
}

#[test]
fn the_process_runtime_knows_no_queueing_and_no_api() {
    check("berth-node", CRATES);
    check("berth-node", &["kube", "k8s-openapi", "rand"]);
}

#[test]
fn only_run_and_replay_import_the_simulator() {
    let imports =
        |path: &Path| std::fs::read_to_string(path).expect("the file is readable").contains("berth_simulator");
    let root = workspace_root().join("crates/berth/src");
    let mut importing: Vec<PathBuf> = sources(&root).into_iter().filter(|path| imports(path)).collect();
    importing.sort();
    assert_eq!(importing, [root.join("replay.rs"), root.join("run.rs")]);
}

#[test]
fn the_dashboard_depends_only_on_crates_for_clients_of_a_cluster() {
    let allowed = ["berth-dashboard", "berth-controllers", "berth-runtime", "berth-api", "berth-apimachinery"];
    check("berth-dashboard", &CRATES.iter().copied().filter(|name| !allowed.contains(name)).collect::<Vec<_>>());
}

#[test]
fn the_pod_network_depends_only_on_crates_for_clients_of_a_cluster() {
    let allowed = ["berth-network", "berth-runtime", "berth-api", "berth-apimachinery"];
    check("berth-network", &CRATES.iter().copied().filter(|name| !allowed.contains(name)).collect::<Vec<_>>());
}

#[test]
fn operators_depend_only_on_crates_for_clients_of_a_cluster() {
    let allowed = ["berth-operators", "berth-runtime", "berth-api", "berth-apimachinery"];
    check("berth-operators", &CRATES.iter().copied().filter(|name| !allowed.contains(name)).collect::<Vec<_>>());
}

#[test]
fn the_runtime_depends_on_no_api_server_and_no_controllers() {
    check("berth-runtime", &["berth-apiserver", "berth-store", "berth-cluster", "berth-controllers", "berth-engine"]);
}

#[test]
fn images_and_the_machine_depend_on_the_runtime_interface_only() {
    for name in ["berth-images", "berth-machine"] {
        check(name, CRATES);
        check(name, &["kube", "k8s-openapi", "jiff"]);
    }
}
