//! `berth bench jobs`: batch Jobs of one pod through the whole path from the Job to its completion:
//! Workload, admission, pod, node.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use berth_load::drive::Spread;
use berth_process::{process, say};
use clap::Args;
use futures::AsyncBufReadExt;
use futures::stream::StreamExt;
use kube::Client;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::Output;
use crate::measure::{Cost, mebibytes, milliseconds, spreads_json};
use crate::simulated::{STALLED, Simulated, Team, jobs_path, submit, submit_many};
use crate::target::{Writes, since};

const TEAM: &str = "bench";
/// Pause between two Jobs submitted to an idle system.
const IDLE_PAUSE: Duration = Duration::from_millis(50);

/// Options of `berth bench jobs`.
#[derive(Args)]
pub struct Options {
    /// Number of Jobs to submit as fast as the API accepts them.
    #[arg(long, default_value_t = 5000)]
    count: usize,
    /// Number of Jobs to submit to the idle system first, each after the previous one was admitted.
    #[arg(long, default_value_t = 200)]
    idle: usize,
    /// Run time of a pod, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    runtime: u64,
    /// Number of nodes, each with 32 CPUs.
    #[arg(long, default_value_t = 50)]
    nodes: u32,
    /// Folder for the store, on the disk to measure; kept afterwards. Default: a temporary folder,
    /// removed afterwards.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<std::path::PathBuf>,
    /// Format of the report.
    #[arg(long, value_enum, default_value = "text")]
    output: Output,
}

/// Times of a Job's life that were observed, in order.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    submitted: Option<Instant>,
    admitted: Option<Instant>,
    completed: Option<Instant>,
}

#[derive(Deserialize)]
struct Line {
    #[serde(rename = "type")]
    kind: String,
    object: Job,
}

#[derive(Deserialize)]
struct Job {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: String,
    resource_version: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Spec {
    suspend: bool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    succeeded: u32,
    failed: u32,
    conditions: Vec<Condition>,
}

#[derive(Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

/// Runs the Jobs. The exit code is a failure unless every Job succeeded exactly once.
pub fn main(options: &Options) -> anyhow::Result<ExitCode> {
    process::run(run(options))
}

async fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let runtime = Duration::from_millis(options.runtime);
    let cluster = Simulated::start(options.data_dir.as_deref(), options.nodes, runtime).await?;
    let cpus = u64::from(options.nodes).saturating_mul(30);
    cluster.prepare(&[Team { name: TEAM, cpus, cohort: None }]).await?;
    let client = cluster.client.clone();

    let mut seen: BTreeMap<String, Seen> = BTreeMap::new();
    let mut problems = Vec::new();
    let (sender, mut changes) = mpsc::unbounded_channel();
    let watcher = tokio::spawn(watch(client.clone(), sender));
    for number in 0..options.idle {
        let name = format!("idle-{number}");
        seen.entry(name.clone()).or_default().submitted = Some(Instant::now());
        submit(&client, TEAM, &name).await.context("submitting a job")?;
        while seen[&name].admitted.is_none() {
            take(next(&mut changes).await?, &mut seen, &mut problems);
        }
        tokio::time::sleep(IDLE_PAUSE).await;
    }
    while seen.values().any(|it| it.completed.is_none()) {
        take(next(&mut changes).await?, &mut seen, &mut problems);
    }
    let idle: Vec<Duration> = seen.values().filter_map(|it| Some(it.admitted? - it.submitted?)).collect();
    seen.clear();

    let (start, cost_before, writes_before) = (Instant::now(), Cost::own(), cluster.controller_writes());
    let submitting = {
        let (client, count) = (client.clone(), options.count);
        tokio::spawn(async move { submit_many(&client, TEAM, count).await })
    };
    let mut completed = 0;
    while completed < options.count {
        let change = next(&mut changes).await?;
        if change.name.starts_with("job-") {
            completed += usize::from(take(change, &mut seen, &mut problems));
        }
    }
    let wall = start.elapsed();
    let cost = Cost::own().since(cost_before);
    let controller_writes = since(&cluster.controller_writes(), &writes_before);
    let submitted = submitting.await??;
    watcher.abort();
    let times = |of: &dyn Fn(&Seen) -> Option<Instant>| -> Vec<Duration> {
        let seen = &seen;
        submitted.iter().filter_map(|(name, at)| Some(of(seen.get(name)?)?.saturating_duration_since(*at))).collect()
    };
    let last_submitted = submitted.values().max().map_or(Duration::ZERO, |at| *at - start);
    let report = Report {
        count: options.count,
        wall,
        last_submitted,
        idle,
        admitted: times(&|it| it.admitted),
        completed: times(&|it| it.completed),
        cost,
        controller_writes,
        problems,
    };
    match options.output {
        Output::Text => say!("{}", report.text()),
        Output::Json => say!("{}", serde_json::to_string_pretty(&report.json())?),
    }
    cluster.stop().await;
    Ok(if report.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A change to a Job, as the watch shows it.
struct Change {
    name: String,
    at: Instant,
    suspended: bool,
    succeeded: u32,
    failed: u32,
    complete: bool,
}

async fn watch(client: Client, changes: mpsc::UnboundedSender<Change>) -> anyhow::Result<()> {
    let mut version = "0".to_owned();
    loop {
        let path = format!("{}?watch=true&resourceVersion={version}", jobs_path(TEAM));
        let stream = client.request_stream(http::Request::get(path).body(Vec::new())?).await?;
        let mut lines = stream.lines();
        while let Some(line) = lines.next().await {
            let line = line?;
            let Line { kind, object } = serde_json::from_str(&line).context("an event of the watch of jobs")?;
            if kind == "ERROR" {
                bail!("the watch of jobs failed: {line}");
            }
            version.clone_from(&object.metadata.resource_version);
            let complete = object.status.conditions.iter().any(|it| it.kind == "Complete" && it.status == "True");
            let change = Change {
                name: object.metadata.name,
                at: Instant::now(),
                suspended: object.spec.suspend,
                succeeded: object.status.succeeded,
                failed: object.status.failed,
                complete,
            };
            if changes.send(change).is_err() {
                return Ok(());
            }
        }
    }
}

async fn next(changes: &mut mpsc::UnboundedReceiver<Change>) -> anyhow::Result<Change> {
    match tokio::time::timeout(STALLED, changes.recv()).await {
        Ok(Some(change)) => Ok(change),
        Ok(None) => bail!("the watch of jobs ended"),
        Err(_) => bail!("nothing happened for {} s", STALLED.as_secs()),
    }
}

/// Records a change; true if the change completed its Job.
fn take(change: Change, seen: &mut BTreeMap<String, Seen>, problems: &mut Vec<String>) -> bool {
    let known = seen.entry(change.name.clone()).or_default();
    if !change.suspended && known.admitted.is_none() {
        known.admitted = Some(change.at);
    }
    if change.failed > 0 || change.succeeded > 1 {
        problems.push(format!("{}: {} pods failed, {} succeeded", change.name, change.failed, change.succeeded));
    }
    if change.complete && change.succeeded != 1 {
        problems.push(format!("{} is complete with {} pods", change.name, change.succeeded));
    }
    let completes = change.complete && known.completed.is_none();
    if completes {
        known.completed = Some(change.at);
    }
    completes
}

struct Report {
    count: usize,
    wall: Duration,
    last_submitted: Duration,
    idle: Vec<Duration>,
    admitted: Vec<Duration>,
    completed: Vec<Duration>,
    /// Cost of the Jobs, without those for the idle system.
    cost: Cost,
    /// Writes of the controllers and of the simulated cluster for the same Jobs.
    controller_writes: Writes,
    problems: Vec<String>,
}

impl Report {
    fn rate(&self) -> f64 {
        (self.count as f64 / self.wall.as_secs_f64().max(1e-9)).round()
    }

    fn per_job(&self, count: u64) -> f64 {
        (count as f64 / self.count.max(1) as f64 * 1000.0).round() / 1000.0
    }

    fn spreads(&self) -> [(&'static str, Spread); 3] {
        let spread = |times: &[Duration]| Spread::of(&mut times.to_vec());
        [
            ("idle, submitted to admitted", spread(&self.idle)),
            ("loaded, submitted to admitted", spread(&self.admitted)),
            ("loaded, submitted to complete", spread(&self.completed)),
        ]
    }

    fn text(&self) -> String {
        let mut lines = vec![format!(
            "{} jobs of one pod in {:.2} s: {:.0}/s sustained; the last was submitted after {:.2} s",
            self.count,
            self.wall.as_secs_f64(),
            self.rate(),
            self.last_submitted.as_secs_f64()
        )];
        lines.push(format!("{:32} {:>9} {:>9} {:>9}", "milliseconds", "mean", "median", "p99"));
        for (name, spread) in self.spreads() {
            let [mean, median, p99] = [spread.mean, spread.median, spread.p99].map(milliseconds);
            lines.push(format!("{name:32} {mean:9.2} {median:9.2} {p99:9.2}"));
        }
        lines.push("\nwrites of controllers and simulated cluster per job".to_owned());
        let writes =
            self.controller_writes.iter().map(|(kind, count)| format!("{kind:48} {:9.3}", self.per_job(*count)));
        lines.extend(writes);
        let events =
            self.controller_writes.iter().filter(|(kind, _)| kind.ends_with(" events")).map(|(_, count)| count);
        let others = self.controller_writes.values().sum::<u64>() - events.sum::<u64>();
        lines.push(format!("{:48} {:9.3}\n", "all but events", self.per_job(others)));
        let each = self.cost.cpu.as_secs_f64() * 1000.0 / self.count.max(1) as f64;
        lines.push(format!("{each:.2} ms cpu per job"));
        lines.push(format!("{:.2} s cpu, peak {:.0} MiB", self.cost.cpu.as_secs_f64(), mebibytes(self.cost.peak)));
        lines.push(format!("{} violations", self.problems.len()));
        lines.extend(self.problems.iter().take(20).map(|problem| format!("  {problem}")));
        lines.join("\n")
    }

    fn json(&self) -> Value {
        json!({
            "jobs": self.count,
            "wallSeconds": milliseconds(self.wall) / 1000.0,
            "jobsPerSecond": self.rate(),
            "times": spreads_json(self.spreads()),
            "cpuSeconds": milliseconds(self.cost.cpu) / 1000.0,
            "controllerWritesPerJob": self.controller_writes.iter()
                .map(|(kind, count)| (kind.clone(), self.per_job(*count))).collect::<BTreeMap<_, _>>(),
            "peakMiB": mebibytes(self.cost.peak).round(),
            "violations": self.problems,
        })
    }
}
