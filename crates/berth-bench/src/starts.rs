//! `berth bench starts`: measures how long pods of one process on this machine take from their
//! creation to the first instruction of their program.
//!
//! Each pod writes the time of this machine's clock into its termination message, so both ends of
//! an interval are read from one clock. The time between a pod's binding and its first instruction
//! is measured twice: from the creation request (an upper bound, which includes the scheduler), and
//! from the watch event that shows the binding.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use berth_load::drive::Spread;
use berth_process::{process, say};
use berth_runtime::Clock;
use clap::Args;
use futures::AsyncBufReadExt;
use futures::stream::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use kube::Client;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::Output;
use crate::measure::{Cost, mebibytes, milliseconds, spreads_json};
use crate::objects::create;
use crate::simulated::{STALLED, SUBMISSIONS_MAX};
use crate::target::Machine;

const PODS: &str = "/api/v1/namespaces/default/pods";
/// Pause before the idle system is measured.
const SETTLED: Duration = Duration::from_secs(10);

/// Options of `berth bench starts`.
#[derive(Args)]
pub struct Options {
    /// Number of pods to create at once.
    #[arg(long, default_value_t = 100)]
    count: usize,
    /// Number of pods to create one after another first.
    #[arg(long, default_value_t = 100)]
    paced: usize,
    /// Pause between two pods that are created one after another, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 50)]
    pace: u64,
    /// Isolation of the pods, as for `berth up`.
    #[arg(long, default_value = "full", value_parser = ["full", "rootless", "plain"])]
    isolation: String,
    /// Time for which the idle cluster is measured at the end, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 15)]
    idle: u64,
    /// Folder for the cluster's files; kept afterwards. Default: a temporary folder, removed
    /// afterwards.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<std::path::PathBuf>,
    /// Format of the report.
    #[arg(long, value_enum, default_value = "text")]
    output: Output,
}

/// Times of a pod's start.
#[derive(Clone, Copy, Debug, Default)]
struct Start {
    created: Option<Timestamp>,
    bound: Option<Timestamp>,
    /// Time of the first instruction of the pod's program.
    started: Option<Timestamp>,
    /// True once the pod has ended, with or without success.
    ended: bool,
}

/// Runs the bench. The exit code is a failure unless every pod succeeded.
pub fn main(options: &Options) -> anyhow::Result<ExitCode> {
    process::run(run(options))
}

async fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let machine = Machine::start(options.data_dir.as_deref(), &options.isolation).await?;
    let client = machine.client.clone();
    let (sender, changes) = mpsc::unbounded_channel();
    let watcher = tokio::spawn(watch(client.clone(), sender));
    let mut watched = Watched { changes, starts: BTreeMap::new(), problems: Vec::new() };

    // The first pod also prepares what later pods share, for example the pod network.
    watched.create(&client, "first-0").await?;
    watched.wait("first-").await?;

    let before = machine.cost();
    for number in 0..options.paced {
        watched.create(&client, &format!("paced-{number}")).await?;
        tokio::time::sleep(Duration::from_millis(options.pace)).await;
    }
    watched.wait("paced-").await?;
    let paced_cost = machine.cost().since(before);

    watched.create_all(&client, (0..options.count).map(|number| format!("burst-{number}"))).await?;
    watched.wait("burst-").await?;
    watcher.abort();

    tokio::time::sleep(SETTLED).await;
    let before = machine.cost();
    tokio::time::sleep(Duration::from_secs(options.idle)).await;
    let idle = machine.cost().since(before);
    machine.stop().await?;

    let report = Report {
        isolation: options.isolation.clone(),
        pace: Duration::from_millis(options.pace),
        paced: watched.of("paced-"),
        burst: watched.of("burst-"),
        paced_cost,
        idle: (idle, Duration::from_secs(options.idle)),
        problems: watched.problems,
    };
    match options.output {
        Output::Text => say!("{}", report.text()),
        Output::Json => say!("{}", serde_json::to_string_pretty(&report.json())?),
    }
    Ok(if report.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[derive(Deserialize)]
struct Line {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

/// A change to a pod, as the watch shows it.
struct Change {
    name: String,
    at: Timestamp,
    bound: bool,
    /// Phase and termination message of a pod that has ended.
    end: Option<(String, String)>,
}

async fn watch(client: Client, changes: mpsc::UnboundedSender<Change>) -> anyhow::Result<()> {
    let mut version = "0".to_owned();
    loop {
        let path = format!("{PODS}?watch=true&resourceVersion={version}");
        let stream = client.request_stream(http::Request::get(path).body(Vec::new())?).await?;
        let mut lines = stream.lines();
        while let Some(line) = lines.next().await {
            let (line, at) = (line?, Clock::system().now());
            let Line { kind, object } = serde_json::from_str(&line).context("an event of the watch of pods")?;
            let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
            if kind == "ERROR" {
                bail!("the watch of pods failed: {line}");
            }
            version = text("/metadata/resourceVersion");
            let phase = text("/status/phase");
            let message = text("/status/containerStatuses/0/state/terminated/message");
            let change = Change {
                name: text("/metadata/name"),
                at,
                bound: !text("/spec/nodeName").is_empty(),
                end: matches!(phase.as_str(), "Succeeded" | "Failed").then_some((phase, message)),
            };
            if changes.send(change).is_err() {
                return Ok(());
            }
        }
    }
}

/// A pod whose program writes the time of its start.
fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [{
            "name": "main", "image": "host", "command": ["/bin/sh", "-c", "date +%s%N > /dev/termination-log"],
        }]},
    })
}

/// The pods that were created so far, with the times that the watch has shown.
struct Watched {
    changes: mpsc::UnboundedReceiver<Change>,
    starts: BTreeMap<String, Start>,
    problems: Vec<String>,
}

impl Watched {
    async fn create(&mut self, client: &Client, name: &str) -> anyhow::Result<()> {
        self.create_all(client, std::iter::once(name.to_owned())).await
    }

    /// Creates pods as fast as the API accepts them.
    async fn create_all(&mut self, client: &Client, names: impl Iterator<Item = String>) -> anyhow::Result<()> {
        let starts = &mut self.starts;
        let requests = names.map(|name| {
            let object = pod(&name).to_string().into_bytes();
            starts.entry(name).or_default().created = Some(Clock::system().now());
            create(client, PODS, object)
        });
        let requests = futures::stream::iter(requests).buffer_unordered(SUBMISSIONS_MAX);
        requests.map(|created| created.context("creating a pod")).try_collect().await
    }

    /// Waits until all created pods whose names have this prefix have ended.
    async fn wait(&mut self, prefix: &str) -> anyhow::Result<()> {
        while self.starts.iter().any(|(name, start)| name.starts_with(prefix) && !start.ended) {
            match tokio::time::timeout(STALLED, self.changes.recv()).await {
                Ok(Some(change)) => self.take(change),
                Ok(None) => bail!("the watch of pods ended"),
                Err(_) => bail!("no pod changed for {} s", STALLED.as_secs()),
            }
        }
        Ok(())
    }

    fn take(&mut self, change: Change) {
        let Some(start) = self.starts.get_mut(&change.name) else { return };
        if change.bound && start.bound.is_none() {
            start.bound = Some(change.at);
        }
        let Some((phase, message)) = change.end.filter(|_| !start.ended) else { return };
        start.ended = true;
        let nanoseconds = message.trim().parse::<i128>().ok();
        start.started = nanoseconds.and_then(|it| Timestamp::from_nanosecond(it).ok());
        if phase != "Succeeded" || start.started.is_none() {
            self.problems.push(format!("{} is {phase}, with the message `{message}`", change.name));
        }
    }

    fn of(&self, prefix: &str) -> Vec<Start> {
        self.starts.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, start)| *start).collect()
    }
}

struct Report {
    isolation: String,
    pace: Duration,
    paced: Vec<Start>,
    burst: Vec<Start>,
    /// Cost of `berth up` while the paced pods ran, without the cost of the pods' own processes.
    paced_cost: Cost,
    /// Cost of the idle cluster, and the time for which it was measured.
    idle: (Cost, Duration),
    problems: Vec<String>,
}

fn between(from: Option<Timestamp>, to: Option<Timestamp>) -> Option<Duration> {
    // The watch may show a binding after the program has started.
    Some(Duration::try_from(to?.duration_since(from?)).unwrap_or_default())
}

impl Report {
    /// Starts per second. The interval begins with the first creation and ends when the last pod
    /// executes its first instruction.
    fn rate(&self) -> f64 {
        let first = self.burst.iter().filter_map(|it| it.created).min();
        let last = self.burst.iter().filter_map(|it| it.started).max();
        let wall = between(first, last).unwrap_or_default();
        (self.burst.len() as f64 / wall.as_secs_f64().max(1e-9) * 10.0).round() / 10.0
    }

    fn spreads(&self) -> [(&'static str, Spread); 3] {
        let spread = |starts: &[Start], from: fn(&Start) -> Option<Timestamp>| {
            Spread::of(&mut starts.iter().filter_map(|it| between(from(it), it.started)).collect::<Vec<_>>())
        };
        [
            ("paced, created to first instruction", spread(&self.paced, |it| it.created)),
            ("paced, bound to first instruction", spread(&self.paced, |it| it.bound)),
            ("at once, created to first instruction", spread(&self.burst, |it| it.created)),
        ]
    }

    fn idle_percent(&self) -> f64 {
        let (cost, time) = self.idle;
        (cost.cpu.as_secs_f64() / time.as_secs_f64().max(1e-9) * 10_000.0).round() / 100.0
    }

    fn cpu_per_start(&self) -> Duration {
        self.paced_cost.cpu / u32::try_from(self.paced.len()).unwrap_or(u32::MAX).max(1)
    }

    fn text(&self) -> String {
        let mut lines = vec![
            format!("isolation {}", self.isolation),
            format!("{} pods of one process created at once: {} starts/s", self.burst.len(), self.rate()),
            format!("{} pods created every {} ms", self.paced.len(), self.pace.as_millis()),
            format!("{:40} {:>9} {:>9} {:>9}", "milliseconds", "mean", "median", "p99"),
        ];
        for (name, spread) in self.spreads() {
            let [mean, median, p99] = [spread.mean, spread.median, spread.p99].map(milliseconds);
            lines.push(format!("{name:40} {mean:9.2} {median:9.2} {p99:9.2}"));
        }
        lines.push(format!("{} ms cpu of berth up per paced pod", milliseconds(self.cpu_per_start())));
        lines.push(format!("idle: {} % of a core, {:.0} MiB", self.idle_percent(), mebibytes(self.idle.0.resident)));
        lines.push(format!("{} violations", self.problems.len()));
        lines.extend(self.problems.iter().take(20).map(|problem| format!("  {problem}")));
        lines.join("\n")
    }

    fn json(&self) -> Value {
        json!({
            "isolation": self.isolation,
            "pods": {"atOnce": self.burst.len(), "paced": self.paced.len(), "paceMs": milliseconds(self.pace)},
            "startsPerSecond": self.rate(),
            "times": spreads_json(self.spreads()),
            "cpuMsPerPacedPod": milliseconds(self.cpu_per_start()),
            "idlePercentOfCore": self.idle_percent(),
            "idleResidentMiB": mebibytes(self.idle.0.resident).round(),
            "violations": self.problems,
        })
    }
}
