//! The command `berth replay`.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context;
use berth_load::History;
use clap::{Args, ValueEnum};

use super::progress::{self, Counted};
use super::{Common, bytes, file_name, prices};
use crate::figures::{Figures, figures};
use crate::packing::{self, Packing, Placement};
use crate::policy::Policy;
use crate::replay::Replay;
use crate::report::{self, Report, Summary};
use crate::trace::{self, Trace, openb};

/// Options of `berth replay`.
#[derive(Debug, Args)]
pub struct Options {
    /// The trace: Standard Workload Format, Philly's or openb's CSV, or Berth's own CSV; plain or
    /// compressed with gzip.
    trace: PathBuf,
    #[command(flatten)]
    common: Common,
    /// Run every job as a Job through the API, the controllers and a simulated cluster in virtual
    /// time, instead of the engine alone.
    #[arg(long)]
    whole: bool,
    /// A price per hour of a CPU, a GiB of memory or a piece of another resource; may be repeated.
    #[arg(long = "price", value_name = "[FLAVOR/]RESOURCE=PRICE")]
    prices: Vec<String>,
    /// Format of the report.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
    /// Write a self-contained HTML report to this file, too.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl Options {
    /// Number of threads for each policy, of which as many are replayed at once as there are CPUs.
    pub fn threads_each(&self) -> usize {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        (cpus / self.common.policies.len().max(1)).max(1)
    }
}

/// Format of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// A row per figure and a column per policy.
    Table,
    /// One JSON object.
    Json,
    /// A line per policy.
    Csv,
}

/// Replays a trace through a whole cluster, and counts the jobs that ended.
pub type Whole<'a> = &'a (dyn Fn(&Replay<'_>, &AtomicUsize) -> anyhow::Result<History> + Sync);

/// Replays the trace and returns the report to print. `whole` is used for `--whole`.
pub fn run(options: &Options, whole: Whole<'_>) -> anyhow::Result<String> {
    let trace = options.common.trace(&options.trace)?;
    let policies = options.common.policies(&trace, &prices(&options.prices)?)?;
    let engine: Whole<'_> = &|replay, ended| Ok(replay.run(&mut Counted(ended)));
    let policies = replay_all(&trace, &policies, if options.whole { whole } else { engine })?;
    let report = Report { trace: Summary::of(&trace), policies, packings: packings(options)? };
    if let Some(path) = &options.html {
        std::fs::write(path, report::html(&report)).with_context(|| path.display().to_string())?;
    }
    Ok(match options.output {
        Output::Table => report::table(&report),
        Output::Json => format!("{:#}\n", report.json()),
        Output::Csv => report.csv(),
    })
}

/// Packs the pods of an openb trace on its nodes, by each rule.
fn packings(options: &Options) -> anyhow::Result<Vec<Packing>> {
    let Some(nodes) = options.common.node_list()? else { return Ok(Vec::new()) };
    let text = trace::text(&bytes(&options.trace)?).and_then(|text| openb::pods(&text));
    let pods = text.map_err(|problem| problem.in_file(&file_name(&options.trace)))?;
    let rules = [Placement::BestFit, Placement::LeastFragmentation];
    Ok(rules.into_iter().map(|rule| packing::pack(&nodes, &pods, rule)).collect())
}

/// Replays the trace under each policy; as many at once as there are CPUs. Policies are
/// independent, so the figures do not depend on the number of CPUs.
fn replay_all(trace: &Trace, policies: &[Policy], run: Whole<'_>) -> anyhow::Result<Vec<Figures>> {
    let replays = policies.iter().map(|policy| Replay::new(trace, policy)).collect::<Result<Vec<_>, _>>()?;
    let ended = AtomicUsize::new(0);
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(policies.len());
    let work = || {
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some((replay, policy)) = replays.get(number).zip(policies.get(number)) else { return done };
            let history = run(replay, &ended).with_context(|| format!("policy {}", policy.name));
            done.push((number, history.map(|history| figures(trace, policy, &history))));
        }
    };
    let jobs = trace.jobs.len() * policies.len();
    let mut all: Vec<(usize, anyhow::Result<Figures>)> =
        progress::during(&|_| progress::counted(&ended, jobs, "jobs ended"), || {
            std::thread::scope(|scope| {
                let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
                let join = |worker: std::thread::ScopedJoinHandle<'_, _>| match worker.join() {
                    Ok(done) => done,
                    Err(panic) => std::panic::resume_unwind(panic),
                };
                workers.into_iter().flat_map(join).collect()
            })
        });
    all.sort_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, figures)| figures).collect()
}
