//! `berth check`, `snapshot`, `forecast` and `what-if` as a user runs them.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::cluster::{Cluster, file};

fn berth(cluster: Option<&Cluster>, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    if let Some(cluster) = cluster {
        command.env("KUBECONFIG", &cluster.kubeconfig);
    }
    command.args(arguments).output().expect("berth runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn done(cluster: Option<&Cluster>, arguments: &[&str]) -> String {
    let output = berth(cluster, arguments);
    assert!(output.status.success(), "berth {arguments:?}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn check_exits_with_2_without_input_and_with_1_on_findings() {
    let output = berth(None, &["check"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("nothing to check: use -f FILE"), "{output:?}");
    let output = berth(None, &["check", "-f", "no-such-folder"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");

    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("queue.yaml");
    let queue = "apiVersion: kueue.x-k8s.io/v1beta2\nkind: LocalQueue\nmetadata: {name: main, namespace: a}\n\
                 spec: {clusterQueue: none}\n";
    std::fs::write(&path, queue).expect("a writable folder");
    let path = path.display().to_string();
    let output = berth(None, &["check", "-f", &path]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let wanted = format!("{path}:1: error: LocalQueue a/main [queue-missing]\n");
    assert!(text(&output.stdout).starts_with(&wanted), "{output:?}");
    assert_eq!(berth(None, &["check", "-f", &path, "--fail-on", "never"]).status.code(), Some(0));
}

/// A queue of two CPUs, and two jobs that run for an hour each.
const JOBS: &str = r#"
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: default}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: small}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [cpu]
    flavors: [{name: default, resources: [{name: cpu, nominalQuota: 2}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: main, namespace: default}
spec: {clusterQueue: small}
---
"#;

fn job(name: &str) -> String {
    format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: {name}, namespace: default, labels: \
         {{kueue.x-k8s.io/queue-name: main}}}}\nspec:\n  suspend: true\n  template:\n    metadata: {{annotations: \
         {{berth.dev/run-duration: 1h}}}}\n    spec:\n      restartPolicy: Never\n      containers: [{{name: c, image: \
         example.com/secret, resources: {{requests: {{cpu: 2}}}}}}]\n---\n"
    )
}

/// Repeats a command until its output has a text.
fn eventually(cluster: &Cluster, arguments: &[&str], wanted: &str) -> String {
    let mut output = String::new();
    cluster.wait_until(&format!("berth {arguments:?} to show {wanted:?}"), 60, |cluster| {
        output = text(&berth(Some(cluster), arguments).stdout);
        output.contains(wanted)
    });
    output
}

fn apply(cluster: &Cluster, folder: &Path, name: &str, manifests: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, manifests).expect("a writable folder");
    let path = path.display().to_string();
    if !manifests.contains("kind: Job\nmetadata: {name: new") {
        let output = cluster.kubectl(&["apply", "-f", &path]);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    path
}

#[test]
fn forecasts_comparisons_and_snapshots_of_a_cluster_agree() {
    if !berth_testing::has_kubectl() {
        return;
    }
    let cluster = Cluster::ephemeral(&["--config", &file("examples/gke-batch-refarch/cluster.yaml")]);
    let folder = tempfile::tempdir().expect("a temporary folder");
    apply(&cluster, folder.path(), "jobs.yaml", &format!("{JOBS}{}{}", job("first"), job("second")));
    let table = eventually(&cluster, &["forecast"], "in 60 min");
    let row = table.lines().nth(1).expect("one job waits");
    let cells: Vec<&str> = row.split("   ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    assert_eq!(cells, ["default/second", "small", "1", "in 60 min", "in 60 min", "default", "default/first"]);

    // The options and formats of other lists.
    let both = berth(Some(&cluster), &["forecast", "-A", "-n", "default"]);
    assert!(text(&both.stderr).contains("cannot be used with"), "{}", text(&both.stderr));
    let csv = done(Some(&cluster), &["forecast", "second", "-n", "default", "-o", "csv"]);
    let (header, cells) = csv.split_once('\n').expect("a row");
    assert!(header.starts_with("job,cluster_queue,place,") && header.ends_with(",start,start_by,workload"), "{csv}");
    assert!(cells.starts_with("default/second,small,1,") && cells.matches("Z,").count() == 2, "{csv}");
    let place = ["forecast", "-n", "default", "-o", "jsonpath={.forecasts[*].place}"];
    assert_eq!(done(Some(&cluster), &place), "1");
    let name = done(Some(&cluster), &["forecast", "-A", "-o", "name"]);
    assert!(name.starts_with("workload.kueue.x-k8s.io/job-second-"), "{name}");
    let none = done(Some(&cluster), &["forecast", "-n", "kube-system"]);
    assert!(none.starts_with("No job waits in namespace kube-system at "), "{none}");

    let explained = done(Some(&cluster), &["explain", "default/second", "--forecast"]);
    let wanted = "Forecast: starts in 60 min, on flavor default, after default/first.\n";
    assert!(explained.ends_with(wanted), "{explained}");

    // Pre-submission: the new job starts after both, and with more quota at once.
    let new = apply(&cluster, folder.path(), "new.yaml", &job("new"));
    let table = done(Some(&cluster), &["what-if", "-f", &new]);
    let row = table.lines().find(|line| line.starts_with("default/new (new)")).unwrap_or_else(|| panic!("{table}"));
    assert!(row.contains("in 2.0 h"), "{row}");
    let quota = "small/default/cpu=+2";
    let table = done(Some(&cluster), &["what-if", "--quota", quota]);
    let row = table.lines().find(|line| line.starts_with("default/second")).unwrap_or_else(|| panic!("{table}"));
    assert!(row.contains("in 60 min") && row.contains("now"), "{row}");

    let snapshot = folder.path().join("state.json").display().to_string();
    done(Some(&cluster), &["snapshot", "--anonymous", "-o", &snapshot]);
    let state = std::fs::read_to_string(&snapshot).expect("the file");
    for secret in ["second", "small", "secret"] {
        assert!(!state.contains(secret), "{secret} is in the file");
    }
    // What the controllers know beside the objects is part of it; a forecast without it says so.
    let mut whole: Value = serde_json::from_str(&state).expect("JSON");
    let times = whole["memory"]["times"].as_array().map(Vec::len);
    assert!(times.is_some_and(|count| count > 0), "parts of seconds are known: {}", whole["memory"]);
    whole["memory"].take();
    let objects_only = folder.path().join("objects.json").display().to_string();
    std::fs::write(&objects_only, whole.to_string()).expect("the file is written");
    for (path, wanted) in [(&snapshot, ""), (&objects_only, "berth: not part of the state: what the controllers know")]
    {
        let said = text(&berth(None, &["forecast", "--snapshot", path]).stderr);
        assert!(said.starts_with(wanted) && said.is_empty() == wanted.is_empty(), "{said}");
    }
    let once = done(None, &["forecast", "--snapshot", &snapshot, "-o", "json"]);
    assert_eq!(once, done(None, &["forecast", "--snapshot", &snapshot, "-o", "json"]));
    let once: Value = serde_json::from_str(&once).expect("JSON");
    assert_eq!(once["forecasts"].as_array().map(Vec::len), Some(1));
    assert!(once["forecasts"][0]["start"]["median"].is_string(), "{once}");

    let output = berth(Some(&cluster), &["check", "--live", "-o", "json"]);
    let checked: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((output.status.code(), &checked["findings"]), (Some(0), &serde_json::json!([])), "{checked:#}");
}
