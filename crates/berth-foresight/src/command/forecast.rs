//! The command `berth forecast`: forecasts of a live state, and backtests within a trace.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use serde_json::json;

use super::progress::{self, Counted};
use super::source::SourceOptions;
use super::{Common, forecasts};
use crate::forecast::backtest::{Backtest, Errors, backtest};
use crate::live::State;
use crate::live::forecast::{self, JobForecast, Plan};
use crate::objects::Template;
use crate::policy::{Policy, Prices};
use crate::replay::Replay;
use crate::report::{percent, time};
use crate::snapshot::Snapshot;
use crate::trace::Trace;

/// Options of `berth forecast`.
#[derive(Debug, Args)]
pub struct Options {
    /// Where the state comes from.
    #[command(flatten)]
    pub source: SourceOptions,
    /// Make forecasts within this trace, and compare them with the starts of jobs in its replay.
    #[arg(long, value_name = "TRACE", help_heading = "Backtest")]
    pub backtest: Option<PathBuf>,
    #[command(flatten, next_help_heading = "Backtest")]
    common: Common,
    /// Maximum number of forecasts of a backtest; they are spread evenly over the jobs that had to
    /// wait.
    #[arg(long, default_value = "200", help_heading = "Backtest")]
    forecasts: usize,
    /// Number of runs per forecast, each with other run times.
    #[arg(long, default_value = "20", value_parser = clap::value_parser!(u16).range(1..))]
    draws: u16,
}

/// Forecasts of a live state.
#[derive(Debug)]
pub struct Live {
    /// The state.
    pub state: State,
    /// The forecasts of its waiting jobs.
    pub forecasts: Vec<JobForecast>,
}

/// Forecasts for the waiting jobs of a snapshot, or for one of them: NAMESPACE/NAME of the job or
/// its Workload.
///
/// # Errors
/// The state cannot be read, or the job is not in it, or does not wait.
pub fn live(options: &Options, snapshot: &Snapshot, template: Template<'_>, job: Option<&str>) -> anyhow::Result<Live> {
    let known = options.source.prepare(snapshot, template)?;
    let only = job.map(|job| known.find(job)).transpose()?;
    let plan = Plan { draws: usize::from(options.draws), only };
    let jobs = known.state.jobs.len();
    let text = |passed: Duration| format!("the future of {jobs} jobs, {} runs, {} s", plan.draws, passed.as_secs());
    let forecasts = progress::during(&text, || forecast::forecast(&known.state, &known.prospect, plan));
    if let (Some(number), true) = (only, forecasts.is_empty()) {
        bail!("{} does not wait: it holds quota", known.state.jobs[number].title());
    }
    Ok(Live { state: known.state, forecasts })
}

/// The forecast of one job in a sentence, for an explanation; `None` if the job does not wait.
pub fn sentence(
    source: &SourceOptions,
    snapshot: &Snapshot,
    template: Template<'_>,
    job: &str,
) -> anyhow::Result<Option<String>> {
    let known = source.prepare(snapshot, template)?;
    let only = Some(known.find(job)?);
    let forecasts = forecast::forecast(&known.state, &known.prospect, Plan { draws: 20, only });
    Ok(forecasts.first().map(|forecast| forecasts::sentence(&known.state, forecast)))
}

/// The median start of each waiting Workload, by namespace and name, as a time from now.
///
/// # Errors
/// The state cannot be read.
pub fn starts(snapshot: &Snapshot, template: Template<'_>) -> anyhow::Result<BTreeMap<(String, String), String>> {
    let known = SourceOptions::default().prepare(snapshot, template)?;
    let forecasts = forecast::forecast(&known.state, &known.prospect, Plan { draws: 20, only: None });
    let start = |it: &forecast::JobForecast| {
        ((it.key.namespace.to_string(), it.key.name.to_string()), forecasts::from_now(known.state.at, it.median))
    };
    Ok(forecasts.iter().map(start).collect())
}

/// Backtests forecasts and returns the report to print: text, or one JSON object.
///
/// # Errors
/// No trace is given, or a file cannot be used.
pub fn run(options: &Options, as_json: bool) -> anyhow::Result<String> {
    let Some(path) = &options.backtest else { bail!("--backtest TRACE is required without a cluster or a snapshot") };
    let trace = options.common.trace(path)?;
    let policies = options.common.policies(&trace, &Prices::default())?;
    let results = policies.iter().map(|policy| backtested(options, &trace, policy)).collect::<Result<Vec<_>, _>>()?;
    Ok(match as_json {
        false => table(&trace, &results),
        true => format!("{:#}\n", json!({"trace": trace.name, "backtests": results})),
    })
}

fn backtested(options: &Options, trace: &Trace, policy: &Policy) -> anyhow::Result<Backtest> {
    let replay = Replay::new(trace, policy)?;
    let (ended, made) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let history = progress::during(&|_| progress::counted(&ended, trace.jobs.len(), "jobs ended"), || {
        replay.run(&mut Counted(&ended))
    });
    let text = |_: Duration| progress::counted(&made, options.forecasts, "forecasts made");
    Ok(progress::during(&text, || {
        let mut each = || {
            made.fetch_add(1, Ordering::Relaxed);
        };
        backtest(trace, &replay, &history, options.forecasts, usize::from(options.draws), &mut each)
    }))
}

fn table(trace: &Trace, results: &[Backtest]) -> String {
    let mut out = format!("{} ({}): {} jobs\n", trace.name, trace.format, trace.jobs.len());
    for result in results {
        if result.waited == 0 {
            let _ = writeln!(out, "\n{}: no job had to wait; --scale makes jobs arrive faster", result.policy);
            continue;
        }
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "\n{}: {} jobs had to wait, {} forecasts at their submission, {} of them unknown",
            result.policy, result.waited, result.forecasts, result.unknown
        );
        let _ = writeln!(out, "true start at or before the 90th percentile   {}", percent(result.within_p90));
        let _ = writeln!(out, "true start at or before the median            {}", percent(result.within_median));
        let rows: [(&str, &Errors); 3] = [
            ("forecast, median", &result.median),
            ("anchor: position x mean time between starts", &result.position),
            ("anchor: declared limits (Slurm's rule)", &result.limits),
        ];
        let _ = writeln!(out, "{:<46}MEDIAN ERROR   OF THE WAIT   FORECASTS", "");
        for (name, errors) in rows {
            let (error, relative) = (time(errors.median_seconds), percent(errors.median_relative));
            let _ = writeln!(out, "{name:<46}{error:>12}   {relative:>11}   {:>9}", errors.count);
        }
    }
    out
}
