//! `berth bench load`: runs a generator file against a real API in real time.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use berth_api::kueue::v1beta2::ClusterQueue;
use berth_controllers::conditions;
use berth_engine::EngineConfig;
use berth_load::bound::{limited_bound, lower_bound};
use berth_load::{Config, Plan, Untimed, drive};
use berth_process::{process, say};
use clap::Args;
use futures::stream::{self, StreamExt};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::Output;
use crate::mimic::Mimic;
use crate::objects;
use crate::report::{Clock as Times, Report};
use crate::target::{Target, TargetOptions};

/// Maximum number of creations in flight.
const CREATIONS_MAX: usize = 128;
/// Maximum time for queues to become active.
const ACTIVE_MAX: Duration = Duration::from_secs(120);
/// Time without any progress after which a run fails.
const STALLED: Duration = Duration::from_secs(60);
/// Maximum time for the statuses of queues to be up to date at the end.
const SETTLED_MAX: Duration = Duration::from_secs(60);

/// Options of `berth bench load`.
#[derive(Args)]
pub struct Options {
    /// Generator file, in the format of the generator configurations of Kueue's scalability test.
    config: PathBuf,
    #[command(flatten)]
    target: TargetOptions,
    /// Create all workloads while the queues are stopped, then release the queues: measures the
    /// cost of waiting workloads, and how fast a deep queue drains.
    #[arg(long)]
    hold: bool,
    /// Number of running pods to create in addition to the load, to measure their cost.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pods: usize,
    /// With --hold: end once all workloads wait, and do not release the queues. Measures the memory
    /// of waiting workloads.
    #[arg(long, requires = "hold")]
    only_wait: bool,
    /// Format of the report.
    #[arg(long, value_enum, default_value = "text")]
    output: Output,
    /// SVG file for a chart of usage, waiting workloads and admissions over time.
    #[arg(long, value_name = "FILE")]
    chart: Option<PathBuf>,
}

/// Runs the load. The exit code is a failure unless every workload finished exactly once and all
/// counts were correct.
pub fn main(options: &Options) -> anyhow::Result<ExitCode> {
    process::run(run(options))
}

async fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let name = options.config.display().to_string();
    let text = std::fs::read_to_string(&options.config).with_context(|| name.clone())?;
    let config = Config::parse(&text).with_context(|| name.clone())?;
    // Leaked, because every task of the process may keep a reference to the plan.
    let plan: &'static Plan = Box::leak(Box::new(Plan::new(&config)));
    let ideal = drive(plan, EngineConfig { flush_delay: Duration::ZERO, ..EngineConfig::default() }, &mut Untimed);
    let floor = options.target.limit().map(|limit| limited_bound(plan.arrivals.len(), limit.qps, limit.burst));
    let bound = lower_bound(plan).max(floor.unwrap_or_default());

    // Start the target, and create what the load needs.
    let mut target = Target::start(&options.target).await?;
    eprintln!("berth bench: {}", options.target.describe());
    let mut memory = Memory { empty: resident(&target), ..Memory::default() };
    prepare(&target.client, plan, options.hold).await?;
    memory.environment = settled_memory(&target).await;
    if options.pods > 0 {
        objects::pods(&target.client, plan, options.pods).await?;
        memory.pods = settled_memory(&target).await.saturating_sub(memory.environment);
    }
    let (writes_before, costs_before) = (target.controller_writes().await?, target.costs());

    // Run the load until every workload has finished, or there is no more progress.
    let mimic = Mimic::new(target.client.clone(), plan, Instant::now());
    let Followed { ended, released } = follow(&mut target, &mimic, plan, options, &mut memory).await?;
    // Compare what is left with what was expected.
    let costs = target.costs();
    let mut ledger = mimic.take_ledger();
    if ended {
        for problem in settle(&target.client, plan).await? {
            ledger.violation(problem);
        }
    }
    let drain = released.map(|at| (ledger.now().admissions, ledger.last_admission().saturating_sub(at)));
    let (outcome, moments, mut violations) = ledger.close();
    if options.only_wait {
        // No workload was planned to finish.
        violations = berth_load::ledger::Violations::default();
    }
    let writes = difference(target.controller_writes().await?, &writes_before);
    let quota = plan.queues.iter().map(|queue| queue.nominal).sum();
    if let Some(path) = &options.chart {
        let picture = berth_load::chart::svg(&format!("{name}: {}", options.target.describe()), &moments, quota);
        std::fs::write(path, picture).with_context(|| path.display().to_string())?;
    }
    // Report.
    let report = Report {
        configuration: name,
        target: options.target.describe(),
        limit: options.target.limit(),
        plan,
        outcome,
        ideal,
        times: Times { lower_bound: bound },
        controller_writes: writes,
        load_writes: target.own_writes(),
        failures: mimic.failures(),
        costs: costs
            .into_iter()
            .zip(costs_before)
            .map(|((name, cost), (_, before))| (name.to_owned(), cost.since(before)))
            .collect(),
        disk: target.disk(),
        memory: options.hold.then(|| memory.each(plan.nodes.len(), options.pods, plan.arrivals.len())),
        drain,
        violations,
    };
    let good = report.violations.count == 0;
    match options.output {
        Output::Text => say!("{}", report.text().trim_end()),
        Output::Json => say!("{}", serde_json::to_string_pretty(&report.json())?),
    }
    target.stop().await;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// How a run went.
struct Followed {
    /// True if every workload has finished; false if there is no more progress.
    ended: bool,
    /// Time at which the queues were released, if they were held.
    released: Option<Duration>,
}

/// Generates the load and follows it until every workload has finished, or there is no more
/// progress. Measures `memory` while all workloads wait.
async fn follow(
    target: &mut Target,
    mimic: &Mimic,
    plan: &'static Plan,
    options: &Options,
    memory: &mut Memory,
) -> anyhow::Result<Followed> {
    let client = target.client.clone();
    let generate = generate(&client, plan, mimic, options.hold);
    let mut parts = std::pin::pin!(async { tokio::try_join!(mimic.run(), generate).map(|_| ()) });
    let mut progress = Progress::new(plan.arrivals.len());
    let mut released = None;
    loop {
        tokio::select! {
            biased;
            signal = process::signal() => bail!("{}: the run is aborted", signal?),
            ended = &mut parts => {
                ended?;
                bail!("the watch of workloads ended");
            }
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
        }
        let (now, over) = {
            let ledger = mimic.ledger();
            (ledger.now(), ledger.is_over())
        };
        progress.show(mimic.elapsed(), now);
        if over {
            return Ok(Followed { ended: true, released });
        }
        if options.hold && released.is_none() && mimic.all_seen() {
            memory.workloads = settled_memory(target).await.saturating_sub(memory.environment + memory.pods);
            if options.only_wait {
                return Ok(Followed { ended: false, released });
            }
            released = Some(mimic.elapsed());
            release(&target.client, plan).await?;
            progress.moved = Instant::now();
        }
        if let Some(why) = target.dead() {
            bail!("{why}");
        }
        if progress.stalled() {
            return Ok(Followed { ended: false, released });
        }
    }
}

/// Creates queues and nodes, and waits until the queues are active unless they are stopped.
async fn prepare(client: &Client, plan: &Plan, hold: bool) -> anyhow::Result<()> {
    let (inner, outer): (Vec<_>, Vec<_>) =
        objects::environment(plan, hold).into_iter().partition(|(path, _)| path.contains("/namespaces/"));
    // Namespaced objects are created after all others.
    for group in [outer, inner] {
        let results: Vec<anyhow::Result<()>> = stream::iter(group)
            .map(|(path, object)| async move {
                objects::create(client, &path, object.to_string().into_bytes()).await.with_context(|| path.clone())
            })
            .buffer_unordered(16)
            .collect()
            .await;
        results.into_iter().collect::<anyhow::Result<()>>()?;
    }
    let deadline = Instant::now() + ACTIVE_MAX;
    loop {
        let queues: Api<ClusterQueue> = Api::all(client.clone());
        let list = queues.list(&ListParams::default()).await.context("listing cluster queues")?;
        let active = |queue: &ClusterQueue| {
            queue.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, conditions::ACTIVE))
        };
        let names: std::collections::BTreeSet<&str> = plan.queues.iter().map(|queue| queue.name.as_ref()).collect();
        if hold {
            // A stopped queue does not become active.
            return Ok(());
        }
        let waiting: Vec<String> = list
            .iter()
            .filter(|queue| names.contains(queue.name_any().as_str()) && !active(queue))
            .map(ResourceExt::name_any)
            .collect();
        if waiting.is_empty() && list.items.len() >= names.len() {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("{} cluster queues did not become active, among them {:?}", waiting.len(), waiting.first());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Releases the stopped queues.
async fn release(client: &Client, plan: &Plan) -> anyhow::Result<()> {
    for queue in &plan.queues {
        let path = format!("/apis/kueue.x-k8s.io/v1beta2/clusterqueues/{}", queue.name);
        let request = http::Request::patch(path)
            .header(http::header::CONTENT_TYPE, "application/merge-patch+json")
            .body(br#"{"spec":{"stopPolicy":"None"}}"#.to_vec())?;
        client.request_text(request).await.context("releasing a queue")?;
    }
    Ok(())
}

/// Resident memory in bytes, over all known processes but the load's.
#[derive(Default)]
struct Memory {
    /// Before any object was created.
    empty: u64,
    /// With the queues and nodes.
    environment: u64,
    /// Added by the pods.
    pods: u64,
    /// Added by the workloads.
    workloads: u64,
}

impl Memory {
    /// Bytes per object of each kind. The memory of queues counts as that of nodes.
    fn each(&self, nodes: usize, pods: usize, workloads: usize) -> BTreeMap<&'static str, u64> {
        let per = |bytes: u64, count: usize| bytes.checked_div(count as u64);
        let environment = self.environment.saturating_sub(self.empty);
        let all = [
            ("node", per(environment, nodes)),
            ("pod", per(self.pods, pods)),
            ("workload", per(self.workloads, workloads)),
        ];
        all.into_iter().filter_map(|(name, bytes)| Some((name, bytes?))).collect()
    }
}

fn resident(target: &Target) -> u64 {
    target.costs().iter().filter(|(name, _)| *name != "load").map(|(_, cost)| cost.resident).sum()
}

/// Resident memory once it no longer changes.
async fn settled_memory(target: &Target) -> u64 {
    let mut last = resident(target);
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = resident(target);
        if now.abs_diff(last) < 1 << 20 {
            return now;
        }
        last = now;
    }
    last
}

/// Creates every workload at its planned time, or as soon afterwards as the API allows.
async fn generate(client: &Client, plan: &'static Plan, mimic: &Mimic, hold: bool) -> anyhow::Result<()> {
    let slots = Arc::new(Semaphore::new(CREATIONS_MAX));
    for number in 0..plan.arrivals.len() {
        let due = if hold { Duration::ZERO } else { plan.arrivals[number].at };
        let elapsed = mimic.elapsed();
        if due > elapsed {
            tokio::time::sleep(due - elapsed).await;
        }
        let slot = slots.clone().acquire_owned().await?;
        let (client, mimic) = (client.clone(), mimic.clone());
        tokio::spawn(async move {
            let (path, body) = objects::workload(plan, number);
            let at = mimic.elapsed();
            mimic.ledger().created(number, at);
            while let Err(error) = objects::create(&client, &path, body.clone()).await {
                mimic.failed("creating a workload", &error);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            drop(slot);
        });
    }
    // The run ends with the watch.
    std::future::pending().await
}

/// Checks the end state: every queue's status must count no workload and no usage, and the API
/// must have as many finished workloads as were created. Returns the violations.
async fn settle(client: &Client, plan: &Plan) -> anyhow::Result<Vec<String>> {
    let deadline = Instant::now() + SETTLED_MAX;
    let problems = loop {
        let queues: Api<ClusterQueue> = Api::all(client.clone());
        let list = queues.list(&ListParams::default()).await.context("listing cluster queues")?;
        let problems: Vec<String> = list.iter().filter_map(leftover).collect();
        if problems.is_empty() || Instant::now() > deadline {
            break problems;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    };
    let mut problems = problems;
    let request = http::Request::get(objects::WORKLOADS).body(Vec::new())?;
    let list: Value = client.request(request).await.context("listing workloads")?;
    let finished = list["items"].as_array().into_iter().flatten().filter(|workload| {
        let conditions = workload["status"]["conditions"].as_array();
        conditions.into_iter().flatten().any(|it| it["type"] == conditions::FINISHED && it["status"] == "True")
    });
    let finished = finished.count();
    if finished != plan.arrivals.len() {
        problems.push(format!("the API has {finished} finished workloads of {}", plan.arrivals.len()));
    }
    Ok(problems)
}

/// The violation if a queue's status still counts workloads or usage although none is left.
fn leftover(queue: &ClusterQueue) -> Option<String> {
    let status = queue.status.as_ref()?;
    let used = status.flavors_reservation.iter().chain(&status.flavors_usage).flat_map(|flavor| &flavor.resources);
    let used: Vec<&str> = used.map(|resource| resource.total.0.as_str()).filter(|total| *total != "0").collect();
    let counts = (status.pending_workloads, status.reserving_workloads, status.admitted_workloads);
    (counts != (0, 0, 0) || !used.is_empty()).then(|| {
        let name = queue.name_any();
        format!("queue {name} reports (pending, reserving, admitted) {counts:?} and usage {used:?}, expected none")
    })
}

fn difference(after: BTreeMap<String, u64>, before: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    after
        .into_iter()
        .map(|(key, count)| {
            let earlier = before.get(&key).copied().unwrap_or_default();
            (key, count - earlier.min(count))
        })
        .filter(|(_, count)| *count > 0)
        .collect()
}

/// The progress bar; without a terminal, a line every ten seconds.
struct Progress {
    total: usize,
    shown: Option<Instant>,
    seen: u64,
    moved: Instant,
}

impl Progress {
    fn new(total: usize) -> Self {
        Progress { total, shown: None, seen: 0, moved: Instant::now() }
    }

    fn stalled(&self) -> bool {
        self.moved.elapsed() > STALLED
    }

    fn show(&mut self, elapsed: Duration, now: berth_load::ledger::Moment) {
        const BAR: usize = 30;
        let done = now.finished >= self.total as u64;
        let seen = now.finished + now.admissions + now.pending;
        if seen != self.seen {
            self.seen = seen;
            self.moved = Instant::now();
        }
        let terminal = std::io::stderr().is_terminal();
        let pause = if terminal { Duration::from_millis(200) } else { Duration::from_secs(10) };
        if self.shown.is_some_and(|last| last.elapsed() < pause) && !done {
            return;
        }
        self.shown = Some(Instant::now());
        let filled = (BAR as u64 * now.finished / (self.total as u64).max(1)) as usize;
        let line = format!(
            "{:6.1} s [{}{}] {}/{} finished, {} waiting, {:.0} cpu in use",
            elapsed.as_secs_f64(),
            "#".repeat(filled.min(BAR)),
            ".".repeat(BAR - filled.min(BAR)),
            now.finished,
            self.total,
            now.pending,
            now.used as f64 / 1000.0
        );
        let mut out = std::io::stderr();
        // A closed terminal does not end the run.
        let _ = match (terminal, done) {
            (true, false) => write!(out, "\r{line}\x1b[K"),
            (true, true) => writeln!(out, "\r{line}\x1b[K"),
            (false, _) => writeln!(out, "{line}"),
        };
        let _ = out.flush();
    }
}
