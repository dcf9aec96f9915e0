//! `berth snapshot`, `berth forecast` and `berth what-if`: the state of a cluster, and its future.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use berth_controllers::explain::ask;
use berth_embedded::objects;
use berth_foresight::command::{forecast, source::SourceOptions, what_if};
use berth_foresight::memory::Memory;
use berth_foresight::snapshot::Snapshot;
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::{Api, Client};

use crate::component::connect::{self, ConnectOptions};
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
    #[command(flatten)]
    forecast: forecast::Options,
    #[command(flatten)]
    connect: ConnectOptions,
}

/// Options of `berth what-if`.
#[derive(Args)]
pub struct WhatIfOptions {
    #[command(flatten)]
    what_if: what_if::Options,
    #[command(flatten)]
    connect: ConnectOptions,
}

/// Writes a snapshot.
pub fn snapshot(options: &SnapshotOptions) -> anyhow::Result<ExitCode> {
    process::run(async {
        let mut snapshot = of_cluster(&options.connect).await?;
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
        process::print(&forecast::run(&options.forecast)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    process::run(async {
        let snapshot = state(&options.forecast.source, &options.connect).await?;
        process::print(&forecast::live(&options.forecast, &snapshot, &objects::template)?)?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Prints a comparison.
pub fn what_if(options: &WhatIfOptions) -> anyhow::Result<ExitCode> {
    process::run(async {
        let snapshot = state(&options.what_if.source, &options.connect).await?;
        process::print(&what_if::run(&options.what_if, &snapshot, &objects::template)?)?;
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

/// The snapshot that the options name, or the state of the cluster.
async fn state(source: &SourceOptions, connect: &ConnectOptions) -> anyhow::Result<Snapshot> {
    match source.read()? {
        Some(snapshot) => {
            if snapshot.memory.is_none() {
                missing_memory("the snapshot has none");
            }
            Ok(snapshot)
        }
        None => of_cluster(connect).await,
    }
}

async fn of_cluster(connect: &ConnectOptions) -> anyhow::Result<Snapshot> {
    of_client(&connect::asking(connect.config().await?)?).await
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

/// The time on the API server's clock. The cluster of `berth up --time-scale` has a clock of its own.
pub async fn now(client: &Client) -> anyhow::Result<Timestamp> {
    let api: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = api.create(&PostParams::default(), &SelfSubjectReview::default()).await;
    let review = review.map_err(|error| in_words("the time of the API server", error))?;
    let at = review.metadata.creation_timestamp.context("the API server does not report its time")?;
    Ok(at.0)
}
