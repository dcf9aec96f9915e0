//! The report of `berth what-if` on a state whose two futures are computed by hand.

use berth_foresight::command::what_if;
use berth_foresight::snapshot::Snapshot;
use clap::Parser;
use jiff::Timestamp;
use serde_json::{Value, json};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    options: what_if::Options,
}

/// Two queues of one CPU each. Two jobs of an hour wait in blue, one in green.
fn snapshot() -> Snapshot {
    let mut objects = vec![
        json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "default"}}),
    ];
    for team in ["blue", "green"] {
        objects.extend([
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team}}),
            json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": team},
                   "spec": {"namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [
                       {"name": "default", "resources": [{"name": "cpu", "nominalQuota": "1"}]}]}]}}),
            json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue",
                   "metadata": {"name": "main", "namespace": team}, "spec": {"clusterQueue": team}}),
        ]);
    }
    objects.extend([job("blue", "first"), job("blue", "second"), job("green", "only")]);
    Snapshot::of(objects, "2026-01-05T08:00:00Z".parse::<Timestamp>().expect("a time"))
}

fn job(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "batch/v1", "kind": "Job",
           "metadata": {"name": name, "namespace": namespace, "uid": name,
                        "labels": {"kueue.x-k8s.io/queue-name": "main"}},
           "spec": {"template": {
               "metadata": {"annotations": {"berth.dev/run-duration": "1h"}},
               "spec": {"restartPolicy": "Never", "containers": [
                   {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}}}})
}

fn report(arguments: &[&str]) -> Result<String, String> {
    let arguments = ["what-if"].into_iter().chain(arguments.iter().copied());
    let cli = Cli::try_parse_from(arguments).map_err(|error| error.to_string())?;
    what_if::run(&cli.options, &snapshot(), &|_| Vec::new(), "blue").map_err(|error| format!("{error:#}"))
}

#[test]
fn use_fairness_and_cost_are_those_of_the_same_hours() {
    let text = report(&["--quota", "blue/default/cpu=+3", "--price", "cpu=2", "-o", "json"]).expect("a report");
    let json: Value = serde_json::from_str(&text).expect("JSON");
    let (before, after) = (&json["before"], &json["after"]);
    // In the hour before the second job of blue starts, both CPUs are in use; with the change,
    // three of five.
    assert_eq!((&before["utilization"]["cpu"], &after["utilization"]["cpu"]), (&json!(1.0), &json!(0.6)), "{json:#}");
    // The mean slowdowns of blue and green are 1.5 and 1: (1.5 + 1)² / (2 × (1.5² + 1²)).
    let fairness = before["fairness"].as_f64().expect("a number");
    assert!((fairness - 6.25 / 6.5).abs() < 1e-9, "{fairness}");
    assert_eq!(after["fairness"], 1.0);
    // Three CPU hours in both futures.
    assert_eq!((&before["cost"], &after["cost"]), (&json!(6.0), &json!(6.0)));
    assert_eq!((&before["lostCost"], &after["lostCost"]), (&json!(0.0), &json!(0.0)));
}

#[test]
fn the_table_shows_a_cost_if_there_are_prices() {
    let table = report(&["--quota", "blue/default/cpu=+3"]).expect("a report");
    assert!(!table.contains("cost"), "{table}");
    let row = |table: &str, start: &str| {
        let line = table.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start}: {table}"));
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(row(&table, "CPU in use until all have started"), ["100.0 %", "60.0 %"]);
    assert_eq!(row(&table, "fairness of the queues"), ["0.96", "1.00"]);
    let table = report(&["--quota", "blue/default/cpu=+3", "--price", "default/cpu=2"]).expect("a report");
    assert_eq!(row(&table, "cost  "), ["6.00", "6.00"]);
    assert_eq!(report(&["--quota", "blue/default/cpu=+3", "--price", "cpu"]).expect_err("no price"), {
        "--price cpu: expected [FLAVOR/]RESOURCE=PRICE, such as spot/cpu=0.01"
    });
}

#[test]
fn manifests_and_jobs_without_namespace_are_those_of_the_given_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("job.json");
    let mut new = job("", "new");
    new["metadata"].as_object_mut().expect("an object").remove("namespace");
    std::fs::write(&file, new.to_string()).expect("a file");
    let text = report(&["-f", &file.to_string_lossy(), "-o", "json"]).expect("a report");
    assert!(text.contains("\"blue/new\""), "{text}");
    // `second` waits behind `first` of the same namespace.
    let error = report(&["--priority", "nothing=100"]).expect_err("no such job");
    assert!(error.contains("there is no Workload blue/nothing"), "{error}");
}
