//! `berth bench deletions`: one team deletes all of its waiting Jobs at once. Measures how long
//! that takes, and how long Jobs of another team wait for their admission during the deletion.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use berth_load::drive::Spread;
use berth_process::{process, say};
use clap::Args;
use futures::AsyncBufReadExt;
use futures::stream::StreamExt;
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::Output;
use crate::measure::{Cost, mebibytes};
use crate::simulated::{STALLED, Simulated, Team, jobs_path, submit, submit_many};
use crate::target::{Writes, since};

/// The team that deletes its Jobs.
const CROWD: &str = "crowd";
/// Nominal quota of that team, in CPUs. A Job requests 1 CPU, so this is how many of its Jobs run.
const CROWD_CPUS: u64 = 2;
/// The team whose Jobs are submitted during the deletion.
const OTHER: &str = "other";
/// Pause between the admission of a Job of the other team and the submission of the next one.
const PROBE_PAUSE: Duration = Duration::from_millis(100);
/// Interval at which the remaining Workloads are counted.
const COUNT_PAUSE: Duration = Duration::from_millis(250);
const WORKLOADS: &str = "/apis/kueue.x-k8s.io/v1beta2/namespaces/crowd/workloads";

/// Options of `berth bench deletions`.
#[derive(Args)]
pub struct Options {
    /// Number of Jobs to submit and delete.
    #[arg(long, default_value_t = 40_000)]
    count: usize,
    /// Number of nodes, each with 32 CPUs.
    #[arg(long, default_value_t = 4)]
    nodes: u32,
    /// Folder for the store, on the disk to measure; kept afterwards. Default: a temporary folder,
    /// removed afterwards.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<std::path::PathBuf>,
    /// Format of the report.
    #[arg(long, value_enum, default_value = "text")]
    output: Output,
}

/// Runs the bench. It fails if Workloads remain, or if a ClusterQueue still counts deleted Jobs.
pub fn main(options: &Options) -> anyhow::Result<ExitCode> {
    process::run(run(options))
}

async fn run(options: &Options) -> anyhow::Result<ExitCode> {
    // Run time of a pod: longer than the bench, so that no pod ends by itself.
    let hour = Duration::from_secs(3600);
    let cluster = Simulated::start(options.data_dir.as_deref(), options.nodes, hour).await?;
    let crowd = Team { name: CROWD, cpus: CROWD_CPUS, cohort: Some("all") };
    let other = Team { name: OTHER, cpus: u64::from(options.nodes) * 30, cohort: Some("all") };
    cluster.prepare(&[crowd, other]).await?;
    let begun = Instant::now();
    submit_many(&cluster.client, CROWD, options.count).await?;
    let made = |left: Left| left.workloads == options.count && left.counted == options.count;
    until(&cluster, "every Job to have a Workload that its ClusterQueue counts", made).await?;
    let submitted = begun.elapsed();
    quiet(&cluster).await;

    let (stop, stopped) = watch::channel(false);
    let probes = tokio::spawn(probe(cluster.client.clone(), stopped));
    // Some probes run before the deletion, so that the first probe during it finds a warm system.
    tokio::time::sleep(PROBE_PAUSE * 5).await;
    let (cost, writes_before) = (Cost::own(), cluster.controller_writes());
    let begun = Instant::now();
    let path = format!("{}?propagationPolicy=Background", jobs_path(CROWD));
    let request = http::Request::delete(path).body(Vec::new())?;
    cluster.client.request_text(request).await.context("deleting the Jobs")?;
    let answered = begun.elapsed();
    until(&cluster, "the Workloads of deleted Jobs to be deleted", |left| left.workloads == 0).await?;
    let wall = begun.elapsed();
    until(&cluster, "the ClusterQueue to count none of the deleted Jobs", |left| left.counted == 0).await?;
    let counted = begun.elapsed();
    let cost = Cost::own().since(cost);
    let writes = since(&cluster.controller_writes(), &writes_before);
    // Fails only if the probes have already ended with an error, which the next line returns.
    let _ = stop.send(true);
    let waits = probes.await.context("the other team's Jobs")??;
    let report = Report { count: options.count, submitted, answered, wall, counted, cost, writes, waits };
    match options.output {
        Output::Text => say!("{}", report.text()),
        Output::Json => say!("{}", serde_json::to_string_pretty(&report.json())?),
    }
    cluster.stop().await;
    Ok(ExitCode::SUCCESS)
}

/// Waits until the controllers write nothing but events, which have low priority. Writes that
/// follow the creation of Jobs must not count as cost of their deletion.
async fn quiet(cluster: &Simulated) {
    let count = || -> u64 {
        let writes = cluster.controller_writes();
        writes.iter().filter(|(kind, _)| !kind.ends_with(" events")).map(|(_, count)| count).sum()
    };
    let deadline = Instant::now() + STALLED;
    let mut last = count();
    loop {
        tokio::time::sleep(COUNT_PAUSE * 2).await;
        let now = count();
        if now == last || Instant::now() > deadline {
            return;
        }
        last = now;
    }
}

/// State of the Jobs to delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Left {
    /// Number of their Workloads.
    workloads: usize,
    /// Number of workloads that the ClusterQueue's status counts as pending or reserving.
    counted: usize,
}

impl Left {
    async fn now(cluster: &Simulated) -> anyhow::Result<Self> {
        let page = cluster.get(&format!("{WORKLOADS}?limit=1")).await?;
        let number = |value: &Value| usize::try_from(value.as_u64().unwrap_or(0)).unwrap_or(usize::MAX);
        let first = page["items"].as_array().map_or(0, Vec::len);
        let queue = cluster.get(&format!("/apis/kueue.x-k8s.io/v1beta2/clusterqueues/{CROWD}")).await?;
        let status = &queue["status"];
        Ok(Left {
            workloads: first + number(&page["metadata"]["remainingItemCount"]),
            counted: number(&status["pendingWorkloads"]) + number(&status["reservingWorkloads"]),
        })
    }
}

/// Waits until `reached` returns true. Fails if the state does not change for [`STALLED`].
async fn until(cluster: &Simulated, what: &str, reached: impl Fn(Left) -> bool) -> anyhow::Result<()> {
    let (mut last, mut changed) = (None, Instant::now());
    loop {
        let left = Left::now(cluster).await?;
        if reached(left) {
            return Ok(());
        }
        if last != Some(left) {
            (last, changed) = (Some(left), Instant::now());
        } else if changed.elapsed() > STALLED {
            bail!("waited for {what}: no change for {} s, last state {left:?}", STALLED.as_secs());
        }
        tokio::time::sleep(COUNT_PAUSE).await;
    }
}

/// Submits Jobs of the other team one by one until `stopped`. Returns the time to admission of each
/// Job.
async fn probe(client: Client, mut stopped: watch::Receiver<bool>) -> anyhow::Result<Vec<Duration>> {
    let mut waits = Vec::new();
    while !*stopped.borrow() {
        let name = format!("probe-{}", waits.len());
        let begun = Instant::now();
        submit(&client, OTHER, &name).await.with_context(|| name.clone())?;
        admitted(&client, &name).await.with_context(|| name.clone())?;
        waits.push(begun.elapsed());
        // The deletion releases the Job's quota for the next one.
        let path = format!("{}/{name}?propagationPolicy=Background", jobs_path(OTHER));
        client.request_text(http::Request::delete(path).body(Vec::new())?).await.with_context(|| name.clone())?;
        // An error means that the pause has passed, or that the bench has failed. A failed bench
        // ends the process, and the probes with it.
        let _ = tokio::time::timeout(PROBE_PAUSE, stopped.wait_for(|stop| *stop)).await;
    }
    Ok(waits)
}

/// Waits until a Job of the other team is no longer suspended.
async fn admitted(client: &Client, name: &str) -> anyhow::Result<()> {
    let path = format!("{}?watch=true&fieldSelector=metadata.name%3D{name}", jobs_path(OTHER));
    let stream = client.request_stream(http::Request::get(path).body(Vec::new())?).await?;
    let mut lines = stream.lines();
    while let Some(line) = tokio::time::timeout(STALLED, lines.next()).await.context("the Job is still suspended")? {
        let event: Value = serde_json::from_str(&line?).context("an event of a watch")?;
        if event["object"]["spec"]["suspend"] == json!(false) {
            return Ok(());
        }
    }
    bail!("the watch of the Job ended")
}

struct Report {
    count: usize,
    /// Time until every Job had a Workload that its ClusterQueue counted.
    submitted: Duration,
    /// Time until the API server responded to the deletion.
    answered: Duration,
    /// Time until all Workloads were deleted.
    wall: Duration,
    /// Time until the ClusterQueue's status counted no deleted Job.
    counted: Duration,
    /// Cost since the deletion.
    cost: Cost,
    /// Writes of the controllers for both teams, since the deletion.
    writes: Writes,
    /// Time to admission of each Job of the other team.
    waits: Vec<Duration>,
}

impl Report {
    fn text(&self) -> String {
        let waits = Spread::of(&mut self.waits.clone());
        let [mean, median, p99, most] =
            [waits.mean, waits.median, waits.p99, self.longest()].map(|time| time.as_secs_f64() * 1000.0);
        let mut lines = vec![
            format!("{} Jobs were queued after {:.2} s", self.count, self.submitted.as_secs_f64()),
            format!("the response to their deletion came after {:.2} s", self.answered.as_secs_f64()),
            format!("their Workloads were deleted after {:.2} s", self.wall.as_secs_f64()),
            format!("their ClusterQueue counted no Jobs after {:.2} s", self.counted.as_secs_f64()),
            format!(
                "time to admission of {} Jobs of another team: mean {mean:.0} ms, median {median:.0} ms, p99 {p99:.0} ms, \
                 longest {most:.0} ms",
                self.waits.len()
            ),
            format!("{:.2} s cpu, peak {:.0} MiB", self.cost.cpu.as_secs_f64(), mebibytes(self.cost.peak)),
            "\nwrites of controllers and simulated cluster since the deletion".to_owned(),
        ];
        lines.extend(self.writes.iter().map(|(kind, count)| format!("{kind:48} {count:9}")));
        lines.join("\n")
    }

    fn longest(&self) -> Duration {
        self.waits.iter().max().copied().unwrap_or_default()
    }

    fn json(&self) -> Value {
        let waits = Spread::of(&mut self.waits.clone());
        let milliseconds = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1000.0;
        json!({
            "jobs": self.count,
            "queuedSeconds": self.submitted.as_secs_f64(),
            "answeredSeconds": self.answered.as_secs_f64(),
            "goneSeconds": self.wall.as_secs_f64(),
            "countedSeconds": self.counted.as_secs_f64(),
            "otherTeam": {
                "jobs": self.waits.len(),
                "meanMs": milliseconds(waits.mean),
                "medianMs": milliseconds(waits.median),
                "p99Ms": milliseconds(waits.p99),
                "longestMs": milliseconds(self.longest()),
            },
            "controllerWrites": self.writes,
            "cpuSeconds": self.cost.cpu.as_secs_f64(),
            "peakMiB": mebibytes(self.cost.peak).round(),
        })
    }
}
