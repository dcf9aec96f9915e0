//! `berth usage`: hours, waits, lost work and cost by team, user, queue or flavor.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use berth_api::berth::usage::{ResourceUse, UsageGroup, UsageReport};
use berth_apimachinery::percent::component;
use berth_apimachinery::printed::Table;
use berth_apimachinery::times;
use berth_controllers::explain::ask;
use berth_controllers::usage::By;
use berth_controllers::usage::sums::Sums;
use berth_foresight::command;
use berth_foresight::policy::{Prices, unit_name};
use berth_foresight::report::{number, percent};
use berth_runtime::Clock;
use clap::Args;
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::{PeriodOptions, each_stay, prices, request_error};
use crate::component::connect::{self, ConnectOptions};
use crate::flat::{Cell, Column, Flat, Kind};
use crate::listing::{Format, Listing};
use crate::{foresee, process};

/// Options of `berth usage`.
#[derive(Args)]
pub struct Options {
    /// What to group by: team (namespace), user, queue (ClusterQueue), localqueue or flavor.
    #[arg(long, default_value = "team", value_parser = |text: &str| text.parse::<By>())]
    by: By,
    #[command(flatten)]
    period: PeriodOptions,
    /// Only this namespace. Default: all namespaces, or the context's if you may not read all of
    /// them.
    #[arg(short, long)]
    namespace: Option<String>,
    /// All namespaces. Fails if you may not read all of them.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Price per hour of a CPU, a GiB of memory or a piece of another resource; may be repeated.
    /// Default: the prices of the cluster's NodePools.
    #[arg(long = "price", value_name = "[FLAVOR/]RESOURCE=PRICE")]
    prices: Vec<String>,
    /// Read the decision journal in this folder instead of asking a cluster; may be repeated, for
    /// the journals of several replicas. Only stays that have ended are known.
    #[arg(long, value_name = "DIR")]
    journal: Vec<PathBuf>,
    /// Output format: table, csv or parquet with a row per group, flavor and resource, json, yaml,
    /// name, jsonpath=TEMPLATE or go-template=TEMPLATE.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,
    #[command(flatten)]
    connect: ConnectOptions,
}

/// Prints the report.
pub fn main(options: &Options) -> anyhow::Result<ExitCode> {
    process::run(async {
        let given = command::prices(&options.prices)?;
        let (report, prices) = match options.journal.is_empty() {
            false => (of_journals(options)?, given),
            true => of_cluster(options, given).await?,
        };
        let text = match &options.output {
            Format::Table | Format::Wide => table(&report, &prices),
            Format::Csv => rows(&report, &prices).csv()?,
            Format::Parquet => {
                rows(&report, &prices).print_parquet()?;
                return Ok(ExitCode::SUCCESS);
            }
            format => {
                let names = report.groups.iter().map(|group| group.name.clone()).collect();
                let items = vec![with_cost(&report, &prices)];
                Listing { names, items, ..Listing::default() }.render_one(format)?
            }
        };
        process::print(&text)?;
        Ok(ExitCode::SUCCESS)
    })
}

fn of_journals(options: &Options) -> anyhow::Result<UsageReport> {
    let mut sums = Sums::new(options.by, options.period.period(Clock::system().now())?);
    each_stay(&options.journal, "", &mut |stay| {
        if options.namespace.as_ref().is_none_or(|namespace| *namespace == stay.workload.namespace) {
            sums.add(stay);
        }
    })?;
    Ok(sums.report(None))
}

async fn of_cluster(options: &Options, given: Prices) -> anyhow::Result<(UsageReport, Prices)> {
    let config = options.connect.config().await?;
    let of_context = config.default_namespace.clone();
    let client = connect::asking(config)?;
    let query = options.period.query(foresee::now(&client).await?)?;
    let query = format!("by={}&{query}", component(options.by.name()));
    let mut answer = ask::usage(&client, options.namespace.as_deref(), &query).await;
    if options.namespace.is_none() && !options.all_namespaces && is_forbidden(&answer) {
        eprintln!("berth: only namespace {of_context}, because you may not read the usage of all namespaces");
        answer = ask::usage(&client, Some(&of_context), &query).await;
    }
    let report = serde_json::from_value(answer.map_err(|error| request_error(error, "the usage"))?)?;
    let prices = if given.is_empty() { prices::of_cluster(&client).await } else { given };
    Ok((report, prices))
}

fn is_forbidden(answer: &kube::Result<Value>) -> bool {
    matches!(answer, Err(kube::Error::Api(status)) if status.code == 403)
}

fn cost_of(used: &ResourceUse, prices: &Prices, hours: f64) -> f64 {
    hours * prices.of(&used.flavor.as_str().into(), &used.resource.as_str().into())
}

fn lost(used: &ResourceUse) -> f64 {
    used.lost_by_preemption + used.lost_by_eviction + used.lost_by_failure
}

fn wait(group: &UsageGroup, seconds: f64) -> String {
    match group.wait.admissions {
        0 => "-".to_owned(),
        _ => times::duration(SignedDuration::from_secs(seconds.round() as i64)),
    }
}

/// Use of a resource, summed over the flavors of a group.
#[derive(Clone, Copy, Default)]
struct Summed {
    hours: f64,
    lost: f64,
    quota: f64,
    cost: f64,
}

fn by_resource<'a>(group: &'a UsageGroup, prices: &Prices) -> BTreeMap<&'a str, Summed> {
    let mut sums: BTreeMap<&str, Summed> = BTreeMap::new();
    for used in &group.used {
        let sum = sums.entry(used.resource.as_str()).or_default();
        sum.hours += used.hours;
        sum.lost += lost(used);
        sum.quota += used.quota_hours.unwrap_or(0.0);
        sum.cost += cost_of(used, prices, used.hours);
    }
    sums
}

/// A row per group and resource, and the totals.
fn table(report: &UsageReport, prices: &Prices) -> String {
    let mut columns = vec![report.by.to_uppercase()];
    let rest = ["JOBS", "FAILED", "PREEMPTED", "WAIT P50", "WAIT P90", "RESOURCE", "HOURS", "LOST", "OF QUOTA"];
    columns.extend(rest.map(str::to_owned));
    let has_prices = !prices.is_empty();
    columns.extend(has_prices.then(|| "COST".to_owned()));
    let mut rows = Vec::new();
    for (is_total, group) in report.groups.iter().map(|group| (false, group)).chain([(true, &report.total)]) {
        let name = match (is_total, group.name.as_str()) {
            (true, _) => "total",
            (false, "") => "<none>",
            (false, name) => name,
        };
        let mut first = vec![name.to_owned()];
        first.extend([group.jobs, group.failed, group.preemptions].map(|count| count.to_string()));
        first.extend([wait(group, group.wait.p50), wait(group, group.wait.p90)]);
        let resources = by_resource(group, prices);
        let mut of_group: Vec<Vec<String>> = resources
            .into_iter()
            .map(|(resource, sum)| {
                let quota = if sum.quota > 0.0 { percent(sum.hours / sum.quota) } else { "-".to_owned() };
                let mut cells = vec![unit_name(resource).to_owned(), number(sum.hours), number(sum.lost), quota];
                cells.extend(has_prices.then(|| format!("{:.2}", sum.cost)));
                cells
            })
            .collect();
        if of_group.is_empty() {
            of_group.push(vec!["-".to_owned(); columns.len() - first.len()]);
        }
        for (at, cells) in of_group.into_iter().enumerate() {
            let mut row = if at == 0 { first.clone() } else { vec![String::new(); first.len()] };
            row.extend(cells);
            rows.push(row);
        }
    }
    let at = |time: &Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| {
        time.as_ref().map(|time| times::time(time.0)).unwrap_or_default()
    };
    let mut text = format!("Usage from {} to {}\n\n", at(&report.since), at(&report.until));
    text.push_str(&Table { columns, rows }.render());
    if let Some(withheld) = &report.withheld {
        text.push_str(&format!("\n{} of other namespaces not included. {}\n", withheld.stays, withheld.why.message));
    }
    text
}

/// A row per group, flavor and resource, in plain numbers.
fn rows(report: &UsageReport, prices: &Prices) -> Flat {
    let required = |kind: Kind| move |title: &&str| Column::required(title, kind);
    let mut columns: Vec<Column> = ["BY", "NAME"].iter().map(required(Kind::Text)).collect();
    let counts = ["JOBS", "SUCCEEDED", "FAILED", "PREEMPTIONS", "EVICTIONS", "ADMISSIONS"];
    columns.extend(counts.iter().map(required(Kind::Integer)));
    let waits = ["WAIT MEAN SECONDS", "WAIT P50 SECONDS", "WAIT P90 SECONDS", "WAIT P99 SECONDS"];
    columns.extend(waits.iter().map(required(Kind::Number)));
    columns.extend(["FLAVOR", "RESOURCE", "UNIT"].iter().map(required(Kind::Text)));
    let hours = ["HOURS", "LOST BY PREEMPTION", "LOST BY EVICTION", "LOST BY FAILURE"];
    columns.extend(hours.iter().map(required(Kind::Number)));
    columns.extend(["QUOTA HOURS", "COST"].map(|title| Column::optional(title, Kind::Number)));

    let text = |text: &str| Cell::Text(text.to_owned());
    let count = |count: u64| Cell::Integer(i64::try_from(count).unwrap_or(i64::MAX));
    let number = |number: Option<f64>| number.map_or(Cell::Empty, Cell::Number);
    let mut rows = Vec::new();
    for group in &report.groups {
        let mut first = vec![text(&report.by), text(&group.name)];
        let counts = [group.jobs, group.succeeded, group.failed, group.preemptions, group.evictions];
        first.extend(counts.map(count));
        first.push(count(group.wait.admissions));
        first.extend([group.wait.mean, group.wait.p50, group.wait.p90, group.wait.p99].map(Cell::Number));
        let none = ResourceUse::default();
        let used: Vec<&ResourceUse> = if group.used.is_empty() { vec![&none] } else { group.used.iter().collect() };
        for used in used {
            let mut row = first.clone();
            row.extend([text(&used.flavor), text(&used.resource), text(unit_name(&used.resource))]);
            let hours = [used.hours, used.lost_by_preemption, used.lost_by_eviction, used.lost_by_failure];
            row.extend(hours.map(Cell::Number));
            row.push(number(used.quota_hours));
            row.push(number((!prices.is_empty()).then(|| cost_of(used, prices, used.hours))));
            rows.push(row);
        }
    }
    Flat { columns, rows }
}

/// The report as JSON, with costs if there are prices.
fn with_cost(report: &UsageReport, prices: &Prices) -> Value {
    let mut value = json!(report);
    if prices.is_empty() {
        return value;
    }
    let add = |value: &mut Value, group: &UsageGroup| {
        for (at, used) in group.used.iter().enumerate() {
            value["used"][at]["cost"] = json!(cost_of(used, prices, used.hours));
            value["used"][at]["lostCost"] = json!(cost_of(used, prices, lost(used)));
        }
        value["cost"] = json!(group.used.iter().map(|used| cost_of(used, prices, used.hours)).sum::<f64>());
    };
    for (at, group) in report.groups.iter().enumerate() {
        add(&mut value["groups"][at], group);
    }
    add(&mut value["total"], &report.total);
    value
}

#[cfg(test)]
mod tests {
    use berth_api::berth::usage::Waits;

    use super::*;

    fn report() -> UsageReport {
        let used = |flavor: &str, resource: &str, hours: f64, quota: Option<f64>| ResourceUse {
            flavor: flavor.to_owned(),
            resource: resource.to_owned(),
            hours,
            lost_by_failure: hours / 4.0,
            quota_hours: quota,
            ..ResourceUse::default()
        };
        let wait = Waits { admissions: 2, mean: 60.0, p50: 30.0, p90: 90.0, p99: 90.0, max: 90.0 };
        let both = vec![used("l4", "nvidia.com/gpu", 8.0, Some(32.0)), used("spot", "nvidia.com/gpu", 4.0, None)];
        let blue =
            UsageGroup { name: "blue".to_owned(), jobs: 3, failed: 1, wait, used: both, ..UsageGroup::default() };
        let total = UsageGroup { name: String::new(), ..blue.clone() };
        UsageReport {
            by: "team".to_owned(),
            groups: vec![blue, UsageGroup::default()],
            total,
            ..UsageReport::default()
        }
    }

    fn prices() -> Prices {
        command::prices(&["l4/nvidia.com/gpu=2.5".to_owned()]).expect("a price")
    }

    #[test]
    fn the_table_sums_the_flavors_of_a_resource() {
        let text = table(&report(), &prices());
        let rows: Vec<Vec<&str>> = text.lines().skip(3).map(|line| line.split_whitespace().collect()).collect();
        let expected = ["blue", "3", "1", "0", "30s", "1m30s", "GPU", "12.0", "3.00", "37.5", "%", "20.00"];
        assert_eq!(rows[0], expected, "{text}");
        assert_eq!(rows[1], ["<none>", "0", "0", "0", "-", "-", "-", "-", "-", "-", "-"], "{text}");
        assert!(!table(&report(), &Prices::default()).contains("COST"));
    }

    #[test]
    fn csv_and_json_have_every_flavor() {
        let text = rows(&report(), &prices()).csv().expect("CSV");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[0].starts_with("by,name,jobs,") && lines[0].ends_with("quota_hours,cost"), "{text}");
        assert!(lines[1].ends_with("l4,nvidia.com/gpu,GPU,8,0,0,2,32,20"), "{text}");
        let value = with_cost(&report(), &prices());
        assert_eq!(
            (&value["groups"][0]["cost"], &value["groups"][0]["used"][0]["lostCost"]),
            (&json!(20.0), &json!(5.0))
        );
    }
}
