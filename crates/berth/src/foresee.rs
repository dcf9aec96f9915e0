//! `berth snapshot`, `berth forecast` and `berth what-if`: the state of a cluster, and its future.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use berth_controllers::explain::ask;
use berth_embedded::objects;
use berth_foresight::command::{forecast, forecasts, source::SourceOptions, what_if};
use berth_foresight::live::forecast::JobForecast;
use berth_foresight::memory::Memory;
use berth_foresight::snapshot::Snapshot;
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::{Api, Client};

use crate::component::connect::{self, ConnectOptions};
use crate::job_name::JobName;
use crate::listing::{Column, Format, Listing};
use crate::process;
use crate::team::in_words;

/// Options of `berth snapshot`.
#[derive(Args)]
pub struct SnapshotOptions {
    /// The file to write. Default: standard output.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace the names of objects, and labels outside Kubernetes' own, by numbers.
    #[arg(long)]
    anonymous: bool,
    #[command(flatten)]
    connect: ConnectOptions,
}

/// Options of `berth forecast`.
#[derive(Args)]
pub struct ForecastOptions {
    /// The waiting job or its Workload: NAME, or NAMESPACE/NAME. Default: all waiting jobs.
    #[arg(value_name = "[NAMESPACE/]NAME", conflicts_with = "backtest")]
    job: Option<JobName>,
    /// Only jobs of this namespace. Default: all namespaces; for NAME, the context's, and `default`
    /// in a snapshot.
    #[arg(short, long, conflicts_with = "backtest")]
    namespace: Option<String>,
    /// Jobs of all namespaces, as without -n.
    #[arg(short = 'A', long, conflicts_with_all = ["namespace", "job", "backtest"])]
    all_namespaces: bool,
    /// Output format: table, wide, json, yaml, name, csv, parquet, jsonpath=TEMPLATE or
    /// go-template=TEMPLATE; of a backtest, table or json.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,
    #[command(flatten)]
    forecast: forecast::Options,
    #[command(flatten)]
    connect: ConnectOptions,
}

/// Options of `berth what-if`.
#[derive(Args)]
pub struct WhatIfOptions {
    /// Namespace of manifests, and of jobs of --priority, that name none. Default: the context's,
    /// and `default` in a snapshot.
    #[arg(short, long)]
    namespace: Option<String>,
    #[command(flatten)]
    what_if: what_if::Options,
    #[command(flatten)]
    connect: ConnectOptions,
}

/// Writes a snapshot.
pub fn snapshot(options: &SnapshotOptions) -> anyhow::Result<ExitCode> {
    process::run(async {
        let mut snapshot = of_client(&connect::asking(options.connect.config().await?)?).await?;
        if options.anonymous {
            snapshot = snapshot.anonymous();
        }
        match &options.output {
            Some(path) => std::fs::write(path, snapshot.text()).with_context(|| path.display().to_string())?,
            None => process::print(&snapshot.text())?,
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Prints forecasts.
pub fn forecast(options: &ForecastOptions) -> anyhow::Result<ExitCode> {
    if options.forecast.backtest.is_some() {
        let as_json = match options.output {
            Format::Table => false,
            Format::Json => true,
            _ => bail!("--output: the report of a backtest is table or json"),
        };
        process::print(&forecast::run(&options.forecast, as_json)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    process::run(async {
        let (snapshot, of_context) = state(&options.forecast.source, &options.connect).await?;
        let job = options.job.as_ref().map(|job| {
            let namespace = job.namespace_or(options.namespace.as_deref(), &of_context);
            format!("{namespace}/{}", job.name)
        });
        let mut found = forecast::live(&options.forecast, &snapshot, &objects::template, job.as_deref())?;
        if let (Some(namespace), None) = (&options.namespace, &job) {
            found.forecasts.retain(|it| *it.key.namespace == **namespace);
        }
        if found.forecasts.is_empty() && matches!(options.output, Format::Table | Format::Wide) {
            let place = options.namespace.as_ref().map(|it| format!(" in namespace {it}")).unwrap_or_default();
            say!("No job waits{place} at {}.", snapshot.at);
            return Ok(ExitCode::SUCCESS);
        }
        let value = || forecasts::json(snapshot.at, &found.forecasts);
        listing(&found).print_with(&options.output, &value)?;
        Ok(ExitCode::SUCCESS)
    })
}

/// The list of forecasts.
fn listing(found: &forecast::Live) -> Listing {
    let usual = forecasts::COLUMNS.map(Column::Usual);
    let wide = ["START", "START BY", "WORKLOAD"].map(Column::Wide);
    let row = |it: &JobForecast| {
        let starts = forecasts::starts(it).map(|at| at.unwrap_or_else(|| "unknown".to_owned()));
        let cells = forecasts::cells(&found.state, it).into_iter().chain(starts);
        cells.chain([it.key.name.to_string()]).collect()
    };
    let names = found.forecasts.iter().map(|it| format!("workload.kueue.x-k8s.io/{}", it.key.name));
    Listing {
        columns: usual.into_iter().chain(wide).collect(),
        rows: found.forecasts.iter().map(row).collect(),
        names: names.collect(),
        ..Listing::default()
    }
}

/// Prints a comparison.
pub fn what_if(options: &WhatIfOptions) -> anyhow::Result<ExitCode> {
    process::run(async {
        let (snapshot, of_context) = state(&options.what_if.source, &options.connect).await?;
        let namespace = options.namespace.as_deref().unwrap_or(&of_context);
        process::print(&what_if::run(&options.what_if, &snapshot, &objects::template, namespace)?)?;
        Ok(ExitCode::SUCCESS)
    })
}

/// The forecast of a job of the cluster as a sentence; `None` if the job does not wait.
pub async fn sentence(client: &Client, job: &str) -> anyhow::Result<Option<String>> {
    let snapshot = of_client(client).await?;
    forecast::sentence(&SourceOptions::default(), &snapshot, &objects::template, job)
}

/// The forecast start of each waiting Workload of the cluster, by namespace and name.
pub async fn starts(client: &Client) -> anyhow::Result<BTreeMap<(String, String), String>> {
    forecast::starts(&of_client(client).await?, &objects::template)
}

/// The snapshot that the options name, or the state of the cluster; and the namespace of objects
/// that name none.
async fn state(source: &SourceOptions, connect: &ConnectOptions) -> anyhow::Result<(Snapshot, String)> {
    match source.read()? {
        Some(snapshot) => {
            if snapshot.memory.is_none() {
                missing_memory("the snapshot has none");
            }
            Ok((snapshot, "default".to_owned()))
        }
        None => {
            let config = connect.config().await?;
            let namespace = config.default_namespace.clone();
            Ok((of_client(&connect::asking(config)?).await?, namespace))
        }
    }
}

async fn of_client(client: &Client) -> anyhow::Result<Snapshot> {
    let listed = objects::list(client, true).await;
    let listed = listed.map_err(|unlisted| in_words(&unlisted.plural, unlisted.source))?;
    if let Some(missing) = listed.incomplete() {
        bail!("the state of the cluster cannot be read: {missing}");
    }
    for missing in &listed.missing {
        eprintln!("berth: not part of the state: {missing}");
    }
    let memory = memory(client).await?;
    let at = now(client).await?;
    Ok(Snapshot::of(listed.documents.into_iter().map(|document| document.value), at).with_memory(memory))
}

/// What the controllers know beside the objects; `None` if they do not say it.
async fn memory(client: &Client) -> anyhow::Result<Option<Memory>> {
    let mut answer = match ask::memory(client).await {
        Ok(answer) => answer,
        Err(kube::Error::Api(status)) => {
            missing_memory(&status.message);
            return Ok(None);
        }
        Err(error) => return Err(in_words("the memory of the controllers", error)),
    };
    let memory = answer["memory"].take();
    if memory.is_null() {
        missing_memory("these controllers do not report it");
        return Ok(None);
    }
    Ok(Some(serde_json::from_value(memory).context("the memory of the controllers")?))
}

/// States that a future is not computed from everything that decides it.
fn missing_memory(why: &str) {
    eprintln!(
        "berth: not part of the state: what the controllers know beside the objects, which are parts of seconds and the \
         workloads that go first because they preempt others ({why})"
    );
}

/// The time on the API server's clock. The cluster of `berth up --time-scale` has a clock of its
/// own.
pub async fn now(client: &Client) -> anyhow::Result<Timestamp> {
    let api: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = api.create(&PostParams::default(), &SelfSubjectReview::default()).await;
    let review = review.map_err(|error| in_words("the time of the API server", error))?;
    let at = review.metadata.creation_timestamp.context("the API server does not report its time")?;
    Ok(at.0)
}
