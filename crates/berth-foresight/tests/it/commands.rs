//! The command: options, files and reports.

use std::path::Path;

use berth_foresight::command::forecast;
use berth_foresight::command::replay::{Options, run};
use clap::Parser;

use super::SMALL;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    options: Options,
}

/// The output of `berth replay` with these arguments, in a folder with `small.csv`.
fn replay(folder: &Path, arguments: &[&str]) -> Result<String, String> {
    let file = folder.join("small.csv");
    std::fs::write(&file, SMALL).expect("a writable folder");
    std::fs::write(folder.join("policy.yaml"), super::policies::MANIFESTS).expect("a writable folder");
    let file = file.to_string_lossy().into_owned();
    let arguments = ["replay", file.as_str()].into_iter().chain(arguments.iter().copied());
    let cli = Cli::try_parse_from(arguments).map_err(|error| error.to_string())?;
    run(&cli.options, &|_, _| anyhow::bail!("the tests of this crate have no cluster"))
        .map_err(|error| format!("{error:#}"))
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

#[test]
fn the_table_has_a_column_per_policy() {
    let folder = folder();
    let file = folder.path().join("policy.yaml").to_string_lossy().into_owned();
    let policies = ["--policy", "fifo", "--policy", "fair-sharing", "--policy", file.as_str()];
    let table = replay(folder.path(), &policies).expect("a report");
    let line =
        |start: &str| table.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start}\n{table}"));
    assert!(table.starts_with("small.csv (CSV): 5 jobs of 2 tenants, submitted within 30 s\n"), "{table}");
    assert_eq!(line("POLICY").split_whitespace().collect::<Vec<_>>()[1..3], ["fifo", "fair-sharing"]);
    assert_eq!(line("finished").split_whitespace().collect::<Vec<_>>(), ["finished", "5", "5", "5"]);
    for row in ["wait, p99", "slowdown, median", "use of CPU", "fairness", "evictions", "lost CPU hours"] {
        line(row);
    }
    assert!(!table.contains("cost"), "no price was given");
}

#[test]
fn json_and_csv_have_the_same_figures() {
    let folder = folder();
    let arguments = ["--price", "cpu=2", "-o"];
    let json = replay(folder.path(), &[&arguments[..], &["json"]].concat()).expect("a report");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let csv = replay(folder.path(), &[&arguments[..], &["csv"]].concat()).expect("a report");
    let mut lines = csv.lines();
    let columns: Vec<&str> = lines.next().expect("a header").split(',').collect();
    let values: Vec<&str> = lines.next().expect("a policy").split(',').collect();
    let value = |column: &str| values[columns.iter().position(|it| *it == column).expect(column)];
    let policy = &json["policies"][0];
    assert_eq!(value("policy"), policy["policy"].as_str().expect("a name"));
    assert_eq!(value("wait_s_p90").parse::<f64>().ok(), policy["waitSeconds"]["p90"].as_f64());
    assert_eq!(value("cost").parse::<f64>().ok(), policy["cost"].as_f64());
    assert!(policy["cost"].as_f64().is_some_and(|cost| cost > 0.0));
    assert_eq!(policy["overTime"]["waiting"].as_array().map(Vec::len), Some(240));
    assert_eq!(json["trace"]["tenants"], 2);
}

#[test]
fn the_html_report_loads_nothing_and_is_the_same_each_time() {
    let folder = folder();
    let file = folder.path().join("report.html");
    let path = file.to_string_lossy().into_owned();
    let arguments = ["--policy", "fifo", "--policy", "reclaim", "--html", path.as_str()];
    replay(folder.path(), &arguments).expect("a report");
    let page = std::fs::read_to_string(&file).expect("the report");
    for external in ["<script", "<link", "<img", "@import", "src=", "href="] {
        assert!(!page.contains(external), "{external}");
    }
    assert_eq!(page.matches("http").count(), page.matches("xmlns=\"http://www.w3.org/2000/svg\"").count());
    assert!(page.contains("<svg") && page.contains("Tenants under reclaim") && page.ends_with("</html>\n"));
    replay(folder.path(), &arguments).expect("a report");
    assert_eq!(std::fs::read_to_string(&file).expect("the report"), page);
}

#[test]
fn a_part_of_the_trace_is_replayed() {
    let folder = folder();
    let table = replay(folder.path(), &["--from", "10s", "--until", "0.00034d", "--limit", "3"]).expect("a report");
    assert!(table.contains("3 jobs of 2 tenants"), "{table}");
    let error = replay(folder.path(), &["--from", "1h"]).expect_err("no job");
    assert!(error.ends_with("no job is selected: widen --from, --until and --limit"), "{error}");
}

#[test]
fn the_size_of_the_cluster_can_be_given() {
    let folder = folder();
    let json = replay(folder.path(), &["--machine", "cpu=2500m", "-o", "json"]).expect("a report");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["trace"]["machine"]["cpu"], 2.5);
    assert!(json["policies"][0]["waitSeconds"]["max"].as_f64().is_some_and(|wait| wait >= 90.0), "{json:#}");
    let error = replay(folder.path(), &["--machine", "cpu"]).expect_err("no quantity");
    assert!(error.contains("expected RESOURCE=QUANTITY above 0"), "{error}");
}

#[test]
fn errors_name_the_option_and_the_accepted_values() {
    let folder = folder();
    let error = |arguments: &[&str]| replay(folder.path(), arguments).expect_err("an error");
    let text = error(&["--policy", "lottery"]);
    assert!(
        text.starts_with(
            "--policy lottery: neither a readable file nor one of best-effort, fifo, reclaim, fair-sharing, no-borrowing"
        ),
        "{text}"
    );
    assert!(error(&["--price", "cpu"]).starts_with("--price cpu: expected [FLAVOR/]RESOURCE=PRICE"));
    assert!(error(&["--scale", "0"]).contains("expected a number above 0"));
    assert!(error(&["--from", "soon"]).contains("expected a time such as 90m, 36h or 10d"));
    assert!(error(&["--format", "swf"]).starts_with("small.csv:1: column 1 (job number) is \"job,"));
}

#[derive(Parser)]
struct ForecastCli {
    #[command(flatten)]
    options: forecast::Options,
}

#[test]
fn a_backtest_reports_forecasts_beside_the_anchors() {
    let folder = folder();
    let file = folder.path().join("small.csv");
    std::fs::write(&file, SMALL).expect("a writable folder");
    let path = file.to_string_lossy().into_owned();
    let run = |as_json: bool, arguments: &[&str]| {
        let arguments = ["forecast", "--backtest", path.as_str()].into_iter().chain(arguments.iter().copied());
        let cli = ForecastCli::try_parse_from(arguments).map_err(|error| error.to_string())?;
        forecast::run(&cli.options, as_json).map_err(|error| format!("{error:#}"))
    };
    let json = run(true, &["--policy", "no-borrowing"]).expect("a report");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    // Two jobs of a and one of b need more than their tenants' quotas have left.
    assert_eq!(json["backtests"][0]["waited"], 3, "{json:#}");
    let table = run(false, &["--policy", "no-borrowing"]).expect("a report");
    assert!(table.contains("no-borrowing: 3 jobs had to wait, 3 forecasts at their submission"), "{table}");
    assert!(table.contains("anchor: declared limits (Slurm's rule)"), "{table}");
    assert!(run(false, &["--draws", "0"]).expect_err("no draw").contains("--draws"));
}
