//! The commands of docs/usage.md, on the cluster of the README's tour, over a restart, and on the
//! files of the journal.

use std::process::{Command, Output};

use serde_json::Value;

use crate::clients::{installed, succeeds};
use crate::cluster::{Cluster, file};
use crate::terminal;

fn shell(cluster: &Cluster, journal: &str, command: &str) -> Output {
    let folder = std::path::Path::new(env!("CARGO_BIN_EXE_berth")).parent().expect("a folder").display().to_string();
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).env("PATH", path).env("KUBECONFIG", &cluster.kubeconfig).env("JOURNAL", journal);
    shell.output().expect("sh runs")
}

fn done(cluster: &Cluster, journal: &str, command: &str) -> String {
    let output = shell(cluster, journal, command);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command}\n{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// The commands of a page, each with the line of its output that the page shows.
fn commands(page: &str) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(file(page)).expect("the page");
    let mut found: Vec<(String, String)> = Vec::new();
    let mut in_console = false;
    for line in text.lines() {
        match (line.strip_prefix("```"), line.strip_prefix("$ ")) {
            (Some(kind), _) => in_console = kind == "console",
            (None, Some(command)) if in_console => found.push((command.to_owned(), String::new())),
            (None, None) if in_console => found.last_mut().expect("a command").1.push_str(line),
            _ => {}
        }
    }
    found
}

/// Numbers of the group of a team in a report.
fn team(report: &Value, name: &str) -> Value {
    let groups = report["groups"].as_array().expect("groups");
    groups.iter().find(|group| group["name"] == name).unwrap_or_else(|| panic!("{name}: {report:#}")).clone()
}

/// Checks by a reader of another project that a Parquet file has the values of a CSV file.
fn same_values(parquet: &str, csv: &str) {
    let Some(python) = installed("python/bin/python") else { return };
    let has_reader = Command::new(&python).args(["-c", "import duckdb"]).output();
    if !has_reader.is_ok_and(|output| output.status.success()) {
        return berth_testing::skip("duckdb is not installed; tests/clients/install installs it");
    }
    succeeds(Command::new(python).arg(file("tests/clients/python/parquet.py")).args([parquet, csv]));
}

#[test]
fn the_commands_of_the_usage_page_print_what_it_shows() {
    if !berth_testing::has_kubectl() {
        return;
    }
    let data = tempfile::tempdir().expect("a temporary folder");
    let journal = data.path().join("journal").display().to_string();
    let arguments = ["--time-scale", "60", "--decision-journal", &journal];
    let cluster = Cluster::durable(data.path(), &arguments);
    cluster.run(&["apply", "-f", &file("examples/quickstart/queues.yaml")]);
    cluster.run(&["apply", "-f", &file("examples/quickstart/blue-jobs.yaml")]);
    let admitted = |cluster: &Cluster, team: &str, count: usize| {
        let list = cluster.get(&["workloads", "-n", team]);
        let is_true = |item: &&Value| crate::history::is_true(item, "Admitted");
        list["items"].as_array().is_some_and(|items| items.iter().filter(is_true).count() == count)
    };
    cluster.wait_until("two jobs of blue to be admitted", 60, |cluster| admitted(cluster, "team-blue", 2));
    cluster.run(&["apply", "-f", &file("examples/quickstart/green-job.yaml")]);
    cluster.wait_until("green's job to be admitted", 60, |cluster| admitted(cluster, "team-green", 1));

    // Which job is preempted depends on the order of admissions: the page names the one of the
    // README.
    let preempted = ["train-1", "train-2", "train-3"].into_iter().find(|name| {
        let output = shell(&cluster, &journal, &format!("berth why-preempted team-blue/{name}"));
        output.status.success()
    });
    let preempted = preempted.expect("a job was preempted");
    for (command, shown) in commands("docs/usage.md") {
        let command = command.replace("train-2", preempted);
        let text = done(&cluster, &journal, &command);
        let columns = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let wanted = columns(&shown);
        let is_shown = text.lines().any(|line| columns(line).starts_with(&wanted));
        assert!(is_shown && !wanted.is_empty(), "{command} does not print {shown:?}:\n{text}");
    }
    // Parquet has the values of CSV. What goes on is not in the journal, so both are of the same
    // time.
    let usage = "berth usage --journal \"$JOURNAL\" --price cpu=0.04";
    for (number, command) in [usage, "berth jobs -n team-blue -s preempted"].into_iter().enumerate() {
        let [parquet, csv] = ["parquet", "csv"].map(|format| {
            let path = data.path().join(format!("{number}.{format}")).display().to_string();
            done(&cluster, &journal, &format!("{command} -o {format} > {path}"));
            path
        });
        same_values(&parquet, &csv);
    }
    let (_user, terminal) = terminal::sides();
    let mut on_terminal = Command::new(env!("CARGO_BIN_EXE_berth"));
    on_terminal.args(["usage", "--journal", &journal, "-o", "parquet"]).stdout(terminal);
    let refused = on_terminal.output().expect("berth runs");
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && message.contains("no terminal can show"), "{message}");
    let by_user = done(&cluster, &journal, "berth usage --by user");
    assert!(by_user.contains("\nberth-admin "), "{by_user}");
    let never = shell(&cluster, &journal, "berth why-preempted team-green/none");
    assert!(
        String::from_utf8_lossy(&never.stderr).contains("no workload or job team-green/none is known"),
        "{never:?}"
    );

    // What is known survives a kill, and the journal has the same figures.
    let report = |cluster: &Cluster, extra: &str| -> Value {
        serde_json::from_str(&done(cluster, &journal, &format!("berth usage -o json {extra}"))).expect("JSON")
    };
    let before = team(&report(&cluster, ""), "team-blue");
    assert_eq!((&before["preemptions"], before["used"][0]["lostByPreemption"].as_f64() > Some(0.0)), (&1.into(), true));
    cluster.kill();
    let cluster = Cluster::durable(data.path(), &arguments);
    cluster.wait_until("the controllers to serve usage", 60, |cluster| {
        shell(cluster, &journal, "berth usage").status.success()
    });
    let after = team(&report(&cluster, ""), "team-blue");
    let of_journal = team(&report(&cluster, "--journal \"$JOURNAL\""), "team-blue");
    for other in [&after, &of_journal] {
        assert_eq!(other["preemptions"], 1);
        assert_eq!(other["used"][0]["lostByPreemption"], before["used"][0]["lostByPreemption"], "{other:#}");
    }
}
