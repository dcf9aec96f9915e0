//! The commands: they read the files, run the traces, and write the reports.

pub mod check;
pub mod forecast;
pub mod forecasts;
pub mod migrate;
pub mod progress;
pub mod replay;
pub mod source;
pub mod what_if;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use berth_apimachinery::quantity::Quantity;
use berth_controllers::translate::amounts;
use berth_engine::Name;
use clap::{Args, ValueEnum};

use crate::policy::built_in::BuiltIn;
use crate::policy::{Policy, Prices, file};
use crate::trace::{self, Format, Selection, Trace, openb};

/// Format of a report on jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Text.
    Table,
    /// One JSON object.
    Json,
}

/// The part of a trace to use, and the policies.
#[derive(Debug, Args)]
pub struct Common {
    /// A file of Kueue's manifests, or one of the policies made from the trace: best-effort, fifo,
    /// reclaim, fair-sharing, no-borrowing. May be repeated; default: best-effort.
    #[arg(long = "policy", value_name = "FILE|NAME")]
    policies: Vec<String>,
    /// Format of the trace; by default it is recognized by its contents.
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// The list of nodes of openb's trace: gives the size of the cluster.
    #[arg(long, value_name = "FILE")]
    nodes: Option<PathBuf>,
    /// Size of the cluster instead of the trace's, such as cpu=512 or nvidia.com/gpu=400; may be
    /// repeated.
    #[arg(long = "machine", value_name = "RESOURCE=QUANTITY", value_parser = amount)]
    machine: Vec<(String, i64)>,
    /// Leave out jobs submitted before this time from the start of the trace, such as 36h or 10d.
    #[arg(long, value_parser = duration)]
    from: Option<Duration>,
    /// Leave out jobs submitted at or after this time from the start of the trace.
    #[arg(long, value_parser = duration)]
    until: Option<Duration>,
    /// Maximum number of jobs.
    #[arg(long, value_name = "JOBS")]
    limit: Option<usize>,
    /// Factor by which jobs arrive faster than in the trace.
    #[arg(long, value_name = "FACTOR", value_parser = scale)]
    scale: Option<f64>,
    /// Maximum number of pods of a job. A job with more pods gets fewer and larger ones.
    #[arg(long, value_name = "PODS", value_parser = clap::value_parser!(i32).range(1..))]
    pods_max: Option<i32>,
}

impl Common {
    /// Reads the selected part of a trace.
    fn trace(&self, path: &Path) -> anyhow::Result<Trace> {
        let mut trace = trace::read(&file_name(path), &bytes(path)?, self.format)?;
        if let Some(nodes) = self.node_list()? {
            trace.machine = Some(openb::machine(&nodes));
        }
        for (resource, size) in &self.machine {
            trace.machine.get_or_insert_default().insert(Name::from(resource.as_str()), *size);
        }
        let (from, until, limit, scale) = (self.from, self.until, self.limit, self.scale);
        let selection = Selection { from, until, limit, scale, pods_max: self.pods_max };
        selection.apply(&mut trace);
        if trace.jobs.is_empty() {
            bail!("{}: no job is selected: widen --from, --until and --limit", path.display());
        }
        Ok(trace)
    }

    fn node_list(&self) -> anyhow::Result<Option<Vec<openb::Node>>> {
        let Some(path) = &self.nodes else { return Ok(None) };
        let nodes = trace::text(&bytes(path)?).and_then(|text| openb::nodes(&text));
        Ok(Some(nodes.map_err(|problem| problem.in_file(&file_name(path)))?))
    }

    /// The policies, with further prices.
    fn policies(&self, trace: &Trace, prices: &Prices) -> anyhow::Result<Vec<Policy>> {
        let default = [BuiltIn::BestEffort.name()];
        let names = if self.policies.is_empty() { default.as_slice() } else { self.policies.as_slice() };
        let mut policies = Vec::new();
        for name in names {
            let mut policy = match BuiltIn::from_str(name, false) {
                Ok(built_in) => built_in.policy(trace),
                Err(_) => policy_file(name)?,
            };
            policy.prices.extend(prices);
            policies.push(policy);
        }
        Ok(policies)
    }
}

/// A time: Go's syntax, and whole days.
///
/// # Errors
/// The expected form.
pub fn duration(text: &str) -> Result<Duration, String> {
    let days = text.strip_suffix('d').and_then(|days| days.parse::<f64>().ok());
    if let Some(days) = days {
        return Duration::try_from_secs_f64(days * 86_400.0).map_err(|error| error.to_string());
    }
    text.parse::<berth_api::berth::Duration>()
        .map(|duration| duration.0)
        .map_err(|_| "expected a time such as 90m, 36h or 10d".to_owned())
}

/// A resource and its amount in the engine's base units.
fn amount(text: &str) -> Result<(String, i64), String> {
    let parsed = text.split_once('=').and_then(|(resource, quantity)| {
        let amount = amounts::request(resource, &Quantity::parse(quantity).ok()?);
        (amount > 0 && !resource.is_empty()).then(|| (resource.to_owned(), amount))
    });
    parsed.ok_or_else(|| "expected RESOURCE=QUANTITY above 0, such as cpu=512".to_owned())
}

fn scale(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| value.is_finite() && *value > 0.0);
    value.ok_or_else(|| "expected a number above 0".to_owned())
}

fn bytes(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| path.display().to_string())
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

fn policy_file(name: &str) -> anyhow::Result<Policy> {
    let text = std::fs::read_to_string(name).with_context(|| {
        let names: Vec<String> = BuiltIn::value_variants().iter().map(|it| it.name()).collect();
        format!("--policy {name}: neither a readable file nor one of {}", names.join(", "))
    })?;
    Ok(file::parse(name, &text)?)
}

/// The prices of options `--price [FLAVOR/]RESOURCE=PRICE`.
///
/// # Errors
/// The option that is no price.
pub fn prices(given: &[String]) -> anyhow::Result<Prices> {
    let mut prices = Prices::default();
    for text in given {
        prices.add(text).map_err(|problem| anyhow!("--price {problem}"))?;
    }
    Ok(prices)
}
