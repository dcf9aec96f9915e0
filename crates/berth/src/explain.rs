//! `berth explain`: requests an explanation from the running controllers.

use std::process::ExitCode;

use anyhow::{anyhow, bail};
use berth_api::berth::explanation::{ClusterQueueHolders, Held};
use berth_controllers::explain::ask;
use clap::Args;
use kube::{Client, Config};
use serde_json::Value;

use crate::component::connect::{self, ConnectOptions};
use crate::job_name::JobName;
use crate::listing::TextFormat;
use crate::{foresee, process, unqueued};

/// Options of `berth explain`.
#[derive(Args)]
pub struct Options {
    /// The job or its Workload: NAME, or NAMESPACE/NAME.
    #[arg(value_name = "[NAMESPACE/]NAME", required_unless_present = "cluster_queue")]
    job: Option<JobName>,
    /// List the workloads that hold quota of this ClusterQueue, longest holders first, instead of
    /// explaining a job.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["job", "namespace", "controller"])]
    cluster_queue: Option<String>,
    /// Maximum number of holders to list.
    #[arg(long, value_name = "N", default_value_t = 50, requires = "cluster_queue")]
    limit: usize,
    /// The namespace. Default: the context's.
    #[arg(short, long)]
    namespace: Option<String>,
    /// Add a forecast of the start. This reads the state of the whole cluster, with your permissions:
    /// docs/forecast.md.
    #[arg(long, conflicts_with_all = ["cluster_queue", "controller", "output"])]
    forecast: bool,
    /// Output format: text, or the whole explanation: json, yaml, jsonpath=TEMPLATE or
    /// go-template=TEMPLATE.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: TextFormat,
    /// Address of the controllers' metrics, such as http://127.0.0.1:8080: request the explanation
    /// there, without the API server. For controllers on this machine or behind a port-forward.
    #[arg(long, value_name = "URL")]
    controller: Option<http::Uri>,
    #[command(flatten)]
    connect: ConnectOptions,
}

/// Prints the explanation.
pub fn main(options: &Options) -> anyhow::Result<ExitCode> {
    process::run(explain(options))
}

async fn explain(options: &Options) -> anyhow::Result<ExitCode> {
    let job = match (&options.cluster_queue, &options.job) {
        (Some(queue), _) => return holders(options, queue).await,
        (None, Some(job)) => job,
        (None, None) => bail!("name a job, or a ClusterQueue with --cluster-queue"),
    };
    let (of_options, name) = (options.namespace.as_deref(), job.name.as_str());
    let explanation = match &options.controller {
        Some(url) => {
            let namespace = job.namespace_or(of_options, "default");
            let client = connect::asking(Config::new(url.clone()))?;
            ask::controllers(&client, &namespace, name).await.map_err(|error| request_error(error, url))?
        }
        None => {
            let config = options.connect.config().await?;
            let namespace = job.namespace_or(of_options, &config.default_namespace);
            let client = connect::asking(config)?;
            let mut explanation = through_api_server(&client, &namespace, name).await?;
            if options.forecast
                && let Some(forecast) = foresee::sentence(&client, &format!("{namespace}/{name}")).await?
            {
                let text = explanation["text"].as_str().unwrap_or_default().trim_end();
                explanation["text"] = Value::String(format!("{text}\n\n{forecast}"));
            }
            explanation
        }
    };
    let text = explanation["text"].as_str().unwrap_or_default();
    process::print(&options.output.render(text, &explanation)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the holders of a cluster queue's quota.
async fn holders(options: &Options, queue: &str) -> anyhow::Result<ExitCode> {
    let client = connect::asking(options.connect.config().await?)?;
    let found = request_holders(&client, queue, options.limit).await?;
    process::print(&options.output.render(&holders_as_text(&serde_json::from_value(found.clone())?, queue), &found)?)?;
    Ok(ExitCode::SUCCESS)
}

async fn request_holders(client: &Client, queue: &str, limit: usize) -> anyhow::Result<Value> {
    ask::holders(client, queue, limit, 0).await.map_err(|error| request_error(error, "the API server"))
}

/// The explanation of a Workload or job as text.
pub async fn text(client: &Client, namespace: &str, name: &str) -> anyhow::Result<String> {
    let explanation = through_api_server(client, namespace, name).await?;
    Ok(explanation["text"].as_str().unwrap_or_default().trim_end().to_owned())
}

/// The holders of a cluster queue's quota as text, at most `limit` of them.
pub async fn holders_text(client: &Client, queue: &str, limit: usize) -> anyhow::Result<String> {
    let found: ClusterQueueHolders = serde_json::from_value(request_holders(client, queue, limit).await?)?;
    Ok(holders_as_text(&found, queue))
}

fn holders_as_text(found: &ClusterQueueHolders, queue: &str) -> String {
    let unnamed = found.withheld.as_ref();
    let (total, listed) = (found.total, found.items.len() + unnamed.map_or(0, |unnamed| unnamed.workloads));
    let amounts = |holds: &[Held]| {
        let amounts = holds.iter().map(|it| format!("{} {} of flavor {}", it.amount.0, it.resource, it.flavor));
        amounts.collect::<Vec<_>>().join(", ")
    };
    let hold = if total == 1 { " holds" } else { "s hold" };
    let mut lines = vec![format!("{total} workload{hold} quota of ClusterQueue {queue}.")];
    for it in &found.items {
        let since = it.since.as_ref().map(|since| format!(" since {}", since.0)).unwrap_or_default();
        let state = match (&it.evicted, it.admitted) {
            (Some(reason), _) => format!("; being evicted: {reason}"),
            (None, true) => String::new(),
            (None, false) => "; not admitted yet".to_owned(),
        };
        let name = |name: &Option<String>| name.clone().unwrap_or_default();
        let (namespace, name) = (name(&it.metadata.namespace), name(&it.metadata.name));
        lines.push(format!("  {namespace}/{name}: {}{since}, priority {}{state}", amounts(&it.holds), it.priority));
    }
    if let Some(unnamed) = unnamed {
        lines.push(format!("  {} not named here: {}", unnamed.workloads, amounts(&unnamed.holds)));
    }
    if total > listed {
        lines.push(format!("  and {} more", total - listed));
    }
    if let Some(unnamed) = unnamed {
        lines.push(unnamed.why.message.clone());
    }
    lines.join("\n") + "\n"
}

/// Requests the explanation from the API server. For a pod or Job without a Workload, it is
/// computed here.
async fn through_api_server(client: &Client, namespace: &str, name: &str) -> anyhow::Result<Value> {
    let response = ask::api_server(client, namespace, name).await;
    if let Err(error) = &response
        && berth_runtime::is_not_found(error)
        && !ask::is_elsewhere(error)
        && let Some(explained) = unqueued::explain(client, namespace, name).await
    {
        return Ok(explained);
    }
    response.map_err(|error| match ask::is_elsewhere(&error) {
        false if berth_runtime::is_not_found(&error) => anyhow!(
            "no Workload, and no queued job, is named {namespace}/{name}; `berth queue -n {namespace}` lists those that \
             wait and run"
        ),
        true => request_error(error, "the API server").context(
            "the controllers do not respond through the API server (kubectl get apiservice v1alpha1.explain.berth.dev \
             shows the reason); for controllers on this machine, use --controller with their metrics address",
        ),
        false => request_error(error, "the API server"),
    })
}

/// The error message of the server, or that the request to `server` failed.
fn request_error(error: kube::Error, server: impl std::fmt::Display) -> anyhow::Error {
    match error {
        kube::Error::Api(status) => anyhow!(status.message.clone()),
        error => anyhow::Error::new(error).context(format!("cannot request the explanation from {server}")),
    }
}
