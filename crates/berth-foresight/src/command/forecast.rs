//! The command `berth forecast --backtest`.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::json;

use super::Common;
use crate::forecast::backtest::{Backtest, Errors, backtest};
use crate::policy::Prices;
use crate::replay::Replay;
use crate::report::{percent, time};
use crate::trace::Trace;

/// Options of `berth forecast`.
#[derive(Debug, Args)]
pub struct Options {
    /// Make forecasts within this trace, and compare them with what happened then.
    #[arg(long, value_name = "TRACE")]
    backtest: PathBuf,
    #[command(flatten)]
    common: Common,
    /// Maximum number of forecasts; they are spread evenly over the jobs that had to wait.
    #[arg(long, default_value = "200")]
    forecasts: usize,
    /// Number of runs per forecast, each with other run times.
    #[arg(long, default_value = "20", value_parser = clap::value_parser!(u16).range(1..))]
    draws: u16,
    /// Format of the report.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

/// Format of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Text.
    Table,
    /// One JSON object.
    Json,
}

/// Backtests forecasts and returns the report to print.
pub fn run(options: &Options) -> anyhow::Result<String> {
    let trace = options.common.trace(&options.backtest)?;
    let policies = options.common.policies(&trace, &Prices::default())?;
    let mut results = Vec::new();
    for policy in &policies {
        let replay = Replay::new(&trace, policy)?;
        let history = replay.run(&mut berth_load::Untimed);
        results.push(backtest(&trace, &replay, &history, options.forecasts, usize::from(options.draws)));
    }
    Ok(match options.output {
        Output::Table => table(&trace, &results),
        Output::Json => format!("{:#}\n", json!({"trace": trace.name, "backtests": results})),
    })
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
