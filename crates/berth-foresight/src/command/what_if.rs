//! The command `berth what-if`.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use berth_apimachinery::printed::Table;
use berth_engine::model::Time;
use clap::Args;
use serde_json::{Value, json};

use super::forecasts::{from_now, timestamp};
use super::source::SourceOptions;
use super::{Output, progress};
use crate::live::future::JobFuture;
use crate::live::what_if::{Comparison, Cut, Figures, Row, compare};
use crate::objects::Template;
use crate::objects::read::complete_namespace;
use crate::policy::unit_name;
use crate::report::{number, percent, time};
use crate::snapshot::{Changes, Snapshot};

/// Options of `berth what-if`.
#[derive(Debug, Args)]
pub struct Options {
    /// Where the state comes from.
    #[command(flatten)]
    pub source: SourceOptions,
    /// Manifests to apply: changed queues, pools or priorities, and jobs to submit. A file, or a
    /// folder; may be repeated.
    #[arg(short, long = "filename", value_name = "FILE|FOLDER")]
    files: Vec<PathBuf>,
    /// Change a nominal quota: blue/spot/nvidia.com/gpu=+8 adds 8, =-8 takes 8 away, =8 sets 8. May
    /// be repeated.
    #[arg(long, value_name = "CLUSTERQUEUE/FLAVOR/RESOURCE=QUANTITY", allow_hyphen_values = true)]
    quota: Vec<String>,
    /// Give a job or Workload another priority. May be repeated.
    #[arg(long, value_name = "[NAMESPACE/]NAME=PRIORITY")]
    priority: Vec<String>,
    /// Give a node pool another maximum number of nodes. May be repeated.
    #[arg(long, value_name = "NODEPOOL=NODES")]
    pool: Vec<String>,
    /// Leave out an object, such as Node/gpu-7 or LocalQueue/blue/main, or all objects with a
    /// label, such as Node/example.com/rack=r3 for a lost rack. May be repeated.
    #[arg(long, value_name = "KIND/[NAMESPACE/]NAME|KIND/LABEL=VALUE")]
    without: Vec<String>,
    /// A price per hour of a CPU, a GiB of memory or a piece of another resource, for the cost of
    /// both futures; may be repeated.
    #[arg(long = "price", value_name = "[FLAVOR/]RESOURCE=PRICE")]
    prices: Vec<String>,
    /// Show all jobs, not only those for which something changes.
    #[arg(short, long)]
    all: bool,
    /// Format of the report.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

/// Compares a state with and without the changes, as the report to print. Manifests and jobs that
/// name no namespace are those of `namespace`.
///
/// # Errors
/// A file cannot be read, a change cannot be made, or the state cannot be used.
pub fn run(options: &Options, snapshot: &Snapshot, template: Template<'_>, namespace: &str) -> anyhow::Result<String> {
    let (documents, _) = super::check::documents(&options.files)?;
    let placed = |mut manifest: Value| {
        complete_namespace(&mut manifest, namespace);
        manifest
    };
    let of_namespace = |job: &String| if job.contains('/') { job.clone() } else { format!("{namespace}/{job}") };
    let changes = Changes {
        manifests: documents.into_iter().map(|document| placed(document.value)).collect(),
        quotas: options.quota.clone(),
        priorities: options.priority.iter().map(of_namespace).collect(),
        pools: options.pool.clone(),
        without: options.without.clone(),
    };
    if changes.is_empty() {
        bail!("nothing would change: use -f for manifests, or --quota, --priority, --pool or --without");
    }
    let changed = changes.apply(snapshot)?;
    let before = options.source.prepare(snapshot, template)?;
    let after = options.source.prepare(&changed, template)?;
    let prices = super::prices(&options.prices)?;
    let jobs = after.state.jobs.len();
    let text =
        |passed: Duration| format!("the future of {jobs} jobs without and with the changes, {} s", passed.as_secs());
    let comparison = progress::during(&text, || {
        compare((&before.state, &before.prospect), (&after.state, &after.prospect), &prices)
    });
    Ok(match options.output {
        Output::Table => table(&comparison, options.all),
        Output::Json => format!("{:#}\n", json(&comparison, options.all)),
    })
}

fn shown(comparison: &Comparison, all: bool) -> impl Iterator<Item = &Row> {
    comparison.rows.iter().filter(move |row| all || row.differs())
}

fn table(comparison: &Comparison, all: bool) -> String {
    let mut out = String::new();
    let (before, after) = (&comparison.before, &comparison.after);
    let cells = |name: &str, of: &dyn Fn(&Figures) -> String| vec![name.to_owned(), of(before), of(after)];
    let spent = |duration: Duration| time(duration.as_secs_f64());
    let mut rows = vec![
        cells("waiting jobs that start", &|it| it.admitted.to_string()),
        cells("waiting jobs whose start is unknown", &|it| it.unknown.to_string()),
        cells("mean time to their start", &|it| spent(it.wait_mean)),
        cells("longest time to their start", &|it| spent(it.wait_max)),
        cells("evictions", &|it| it.evictions.to_string()),
        cells("lost work", &|it| spent(it.lost)),
        cells("time until all known jobs ended", &|it| spent(it.wall)),
    ];
    for resource in after.utilization.keys() {
        let share = |it: &Figures| it.utilization.get(resource).map_or("-".to_owned(), |share| percent(*share));
        rows.push(cells(&format!("{} in use until all have started", unit_name(resource)), &share));
    }
    rows.push(cells("fairness of the queues (1 is best)", &|it| format!("{:.2}", it.fairness)));
    if before.cost.is_some() {
        let price = |cost: Option<f64>| cost.map_or("-".to_owned(), number);
        rows.push(cells("cost", &|it| price(it.cost)));
        rows.push(cells("cost of lost work", &|it| price(it.lost_cost)));
    }
    if before.restless + after.restless > 0 {
        rows.push(cells("instants of endless preemptions", &|it| it.restless.to_string()));
    }
    let columns = ["", "AS IT IS", "WITH THE CHANGES"].map(str::to_owned).to_vec();
    out.push_str(&Table { columns, rows }.render());
    if let Some(text) = comparison.cut.map(|cut| end(comparison.at, cut)) {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "\n{text}");
    }
    let rows: Vec<Vec<String>> = shown(comparison, all).map(|row| cells_of(comparison, row)).collect();
    if rows.is_empty() {
        out.push_str("\nNothing changes for any job.\n");
        return out;
    }
    let columns =
        ["JOB", "STARTS AS IT IS", "WITH THE CHANGES", "ENDS", "FLAVORS", "EVICTED"].map(str::to_owned).to_vec();
    out.push('\n');
    out.push_str(&Table { columns, rows }.render());
    for row in shown(comparison, all).filter(|row| row.is_new) {
        let Some(fate) = &row.after else { continue };
        let victims = victims(comparison, fate);
        if !victims.is_empty() {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "\n{} would evict {}.", row.job, victims.join(", "));
        }
    }
    out
}

/// Where cut futures end, in a sentence.
fn end(now: Time, cut: Cut) -> String {
    format!(
        "Both futures end {}, when {} waiting jobs have started in one of them. Later starts, ends and evictions are \
         unknown, and the figures do not count them.",
        from_now(now, Some(cut.at)),
        cut.starts_max
    )
}

/// Jobs that are evicted when a new job is admitted, and not without it.
fn victims<'a>(comparison: &'a Comparison, fate: &JobFuture) -> Vec<&'a str> {
    let is_victim = |row: &&Row| {
        let at = row.after.as_ref().and_then(|after| after.evicted);
        let without = row.before.as_ref().and_then(|before| before.evicted);
        at.is_some() && at == fate.admitted && at != without
    };
    comparison.rows.iter().filter(is_victim).map(|row| row.job.as_str()).collect()
}

/// What would happen to a new job, in a sentence without names of other jobs.
fn verdict(comparison: &Comparison, row: &Row) -> String {
    let Some(fate) = &row.after else { return "It would not be queued.".to_owned() };
    let Some(admitted) = fate.admitted else {
        return match comparison.cut {
            Some(cut) => {
                format!("It would not be among the next {} jobs to start; later starts are unknown.", cut.starts_max)
            }
            None => "It would wait, and its start is unknown.".to_owned(),
        };
    };
    let start = from_now(comparison.at, Some(admitted));
    let flavors: Vec<&str> = fate.flavors.iter().map(|flavor| &**flavor).collect();
    let mut text = format!("It would start {start}");
    if !flavors.is_empty() {
        let _ = write!(text, " on flavor {}", flavors.join(", "));
    }
    let evicted = victims(comparison, fate).len();
    if evicted > 0 {
        let _ = write!(text, ", and evict {evicted} {}", if evicted == 1 { "job" } else { "jobs" });
    }
    text.push('.');
    if fate.evicted.is_some() {
        let _ = write!(text, " It would be evicted {}.", from_now(comparison.at, fate.evicted));
    }
    text
}

fn cells_of(comparison: &Comparison, row: &Row) -> Vec<String> {
    let now = comparison.at;
    let start = |fate: Option<&JobFuture>| match fate {
        None => "-".to_owned(),
        Some(_) if row.holds => "runs".to_owned(),
        Some(fate) => from_now(now, fate.admitted),
    };
    let after = row.after.as_ref();
    let flavors: Vec<&str> = after.map(|fate| fate.flavors.iter().map(|it| &**it).collect()).unwrap_or_default();
    let evicted = after.filter(|fate| fate.evictions > 0).map(|fate| from_now(now, fate.evicted)).unwrap_or_default();
    let title = if row.is_new { format!("{} (new)", row.job) } else { row.job.clone() };
    let ends = after.map_or("-".to_owned(), |fate| from_now(now, fate.ended));
    vec![title, start(row.before.as_ref()), start(after), ends, flavors.join(","), evicted]
}

/// The comparison as one JSON object, with all jobs or only those for which something changes.
pub fn json(comparison: &Comparison, all: bool) -> Value {
    let fate = |fate: Option<&JobFuture>| {
        fate.map(|fate| {
            json!({
                "start": fate.admitted.and_then(timestamp),
                "running": fate.running.and_then(timestamp),
                "end": fate.ended.and_then(timestamp),
                "flavors": fate.flavors.iter().map(|flavor| &**flavor).collect::<Vec<_>>(),
                "evictions": fate.evictions,
                "evicted": fate.evicted.and_then(timestamp),
            })
        })
    };
    let row = |row: &Row| {
        let after = row.after.as_ref();
        let evicts = after.filter(|_| row.is_new).map(|fate| victims(comparison, fate)).unwrap_or_default();
        json!({"job": row.job, "new": row.is_new, "holdsQuota": row.holds,
               "before": fate(row.before.as_ref()), "after": fate(after), "evicts": evicts,
               "verdict": row.is_new.then(|| verdict(comparison, row))})
    };
    let figures = |it: &Figures| {
        json!({
            "start": it.admitted, "unknown": it.unknown, "meanWaitSeconds": it.wait_mean.as_secs_f64(),
            "longestWaitSeconds": it.wait_max.as_secs_f64(), "evictions": it.evictions,
            "lostSeconds": it.lost.as_secs_f64(), "wallSeconds": it.wall.as_secs_f64(), "restless": it.restless,
            "utilization": it.utilization, "fairness": it.fairness, "cost": it.cost, "lostCost": it.lost_cost,
        })
    };
    let rows: Vec<Value> = shown(comparison, all).map(row).collect();
    let cut = comparison
        .cut
        .map(|cut| json!({"at": timestamp(cut.at), "startsMax": cut.starts_max, "text": end(comparison.at, cut)}));
    json!({"at": timestamp(comparison.at), "cut": cut, "before": figures(&comparison.before), "after": figures(&comparison.after),
           "jobs": rows})
}
