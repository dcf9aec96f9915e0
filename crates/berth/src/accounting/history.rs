//! `berth history` and `berth why-preempted`: what happened to a workload.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use berth_api::berth::usage::WorkloadHistory;
use berth_apimachinery::printed::Table;
use berth_apimachinery::times;
use berth_controllers::decisions::journal;
use berth_controllers::explain::ask;
use berth_controllers::usage::history::{self, Search};
use clap::Args;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::{each_stay, request_error};
use crate::component::connect::{self, ConnectOptions};
use crate::job_name::JobName;
use crate::kueuectl::pods::is_job_label;
use crate::listing::TextFormat;
use crate::process;

/// Options of both commands.
#[derive(Args)]
pub struct Options {
    /// The job or its Workload: NAME, or NAMESPACE/NAME. It may be deleted.
    #[arg(value_name = "[NAMESPACE/]NAME")]
    job: JobName,
    /// The namespace. Default: the context's.
    #[arg(short, long)]
    namespace: Option<String>,
    /// Read the decision journal in this folder instead of asking a cluster; may be repeated.
    #[arg(long, value_name = "DIR")]
    journal: Vec<PathBuf>,
    /// Output format: text, or the whole history: json, yaml, jsonpath=TEMPLATE or
    /// go-template=TEMPLATE.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: TextFormat,
    #[command(flatten)]
    connect: ConnectOptions,
}

/// Prints the history of a workload.
pub fn main(options: &Options) -> anyhow::Result<ExitCode> {
    process::run(async {
        let (history, client) = found(options).await?;
        let pods = match (client, &options.output) {
            (Some(client), TextFormat::Text) => pods(&client, &history).await,
            _ => String::new(),
        };
        process::print(&options.output.render(&format!("{}{pods}", history.text), &json!(history))?)?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Prints the last preemption of a workload.
pub fn why_preempted(options: &Options) -> anyhow::Result<ExitCode> {
    process::run(async {
        let (history, _) = found(options).await?;
        let text = history::why_preempted(&history).map_err(|problem| anyhow!(problem))?;
        let last = history.decisions.iter().rfind(|record| record.preemption.is_some());
        process::print(&options.output.render(&text, &json!(last))?)?;
        Ok(ExitCode::SUCCESS)
    })
}

/// The history, and the client of the cluster that has it.
async fn found(options: &Options) -> anyhow::Result<(WorkloadHistory, Option<Client>)> {
    let JobName { namespace, name } = &options.job;
    if !options.journal.is_empty() {
        let namespace = namespace.as_ref().or(options.namespace.as_ref());
        let namespace = namespace.context("--journal needs the namespace: use NAMESPACE/NAME")?;
        return Ok((of_journals(&options.journal, namespace, name)?, None));
    }
    let config = options.connect.config().await?;
    let namespace = options.job.namespace_or(options.namespace.as_deref(), &config.default_namespace);
    let client = connect::asking(config)?;
    Ok((of_cluster(&client, &namespace, name).await?, Some(client)))
}

/// The history as text, with the pods that exist now.
pub async fn text(client: &Client, namespace: &str, name: &str) -> anyhow::Result<String> {
    let history = of_cluster(client, namespace, name).await?;
    Ok(format!("{}{}", history.text, pods(client, &history).await))
}

async fn of_cluster(client: &Client, namespace: &str, name: &str) -> anyhow::Result<WorkloadHistory> {
    let answer = ask::history(client, namespace, name).await;
    let answer = answer.map_err(|error| match &error {
        kube::Error::Api(status) if status.code == 404 && !ask::is_elsewhere(&error) => anyhow!(
            "no workload or job {namespace}/{name} is known; deleted workloads are known for as long as the controllers \
             run, or as long as their decision journal reaches"
        ),
        _ => request_error(error, "the history"),
    })?;
    Ok(serde_json::from_value(answer)?)
}

fn of_journals(folders: &[PathBuf], namespace: &str, name: &str) -> anyhow::Result<WorkloadHistory> {
    let mut search = Search::new(namespace, name);
    each_stay(folders, name, &mut |stay| search.add(stay))?;
    let missing = || format!("the journal has no ended stay of a workload or job {namespace}/{name}");
    let stays = search.newest().with_context(missing)?;
    let mut decisions = Vec::new();
    for folder in folders {
        let failed = |folder: &Path| format!("--journal {}", folder.display());
        let each = &mut |record: berth_api::berth::decision::DecisionRecord| {
            if !decisions.contains(&record) {
                decisions.push(record);
            }
        };
        journal::each_decision_of(folder, &stays[0].uid, each).with_context(|| failed(folder))?;
    }
    decisions.sort_by_key(|record| record.time.as_ref().map(|time| time.0));
    history::history(stays, decisions, None).with_context(missing)
}

/// The pods of the job that exist now; empty if the user may not list them.
async fn pods(client: &Client, history: &WorkloadHistory) -> String {
    let Some(job) = history.stays.last().and_then(|stay| stay.job.as_ref()) else { return String::new() };
    let api: Api<Pod> = Api::namespaced(client.clone(), &history.metadata.namespace);
    let Ok(listed) = api.list(&ListParams::default()).await else { return String::new() };
    let is_of_job = |pod: &&Pod| {
        pod.owner_references().iter().any(|owner| owner.name == job.name && owner.kind == job.kind)
            || (pod.name_any() == job.name && job.kind == "Pod")
            || pod.labels().iter().any(|(key, value)| *value == job.name && is_job_label(key))
    };
    let row = |pod: &Pod| {
        let status = pod.status.as_ref();
        let text = |text: Option<&String>| text.cloned().unwrap_or_default();
        vec![
            pod.name_any(),
            text(status.and_then(|status| status.phase.as_ref())),
            text(pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref())),
            status.and_then(|status| status.start_time.as_ref()).map(|at| times::time(at.0)).unwrap_or_default(),
        ]
    };
    let rows: Vec<_> = listed.items.iter().filter(is_of_job).map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let columns = ["POD", "PHASE", "NODE", "STARTED"].map(str::to_owned).to_vec();
    format!("\n{}", Table { columns, rows }.render())
}
