//! `berth explain`: requests an explanation from the running controllers.

use std::process::ExitCode;

use anyhow::anyhow;
use berth_api::berth::explanation::{ClusterQueueHolders, Held};
use berth_controllers::explain::ask;
use clap::{Args, ValueEnum};
use kube::{Client, Config};
use serde_json::Value;

use crate::component::connect::{self, ConnectOptions};
use crate::{foresee, process, unqueued};

/// Options of `berth explain`.
#[derive(Args)]
pub struct Options {
    /// The job or its Workload: NAME, or NAMESPACE/NAME.
    #[arg(value_name = "[NAMESPACE/]NAME", required_unless_present = "cluster_queue")]
    job: Option<String>,
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
    /// Output format: text, or the whole explanation as JSON.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// Address of the controllers' metrics, such as http://127.0.0.1:8080: request the explanation
    /// there, without the API server. For controllers on this machine or behind a port-forward.
    #[arg(long, value_name = "URL")]
    controller: Option<http::Uri>,
    #[command(flatten)]
    connect: ConnectOptions,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

/// Prints the explanation.
pub fn main(options: &Options) -> anyhow::Result<ExitCode> {
    process::run(explain(options))
}

async fn explain(options: &Options) -> anyhow::Result<ExitCode> {
    let job = match (&options.cluster_queue, &options.job) {
        (Some(queue), _) => return holders(options, queue).await,
        (None, job) => job.as_deref().unwrap_or_default(),
    };
    let (of_job, name) = match job.split_once('/') {
        Some((namespace, name)) => (Some(namespace.to_owned()), name),
        None => (None, job),
    };
    let explanation = match &options.controller {
        Some(url) => {
            let namespace = of_job.or_else(|| options.namespace.clone()).unwrap_or_else(|| "default".to_owned());
            let client = connect::asking(Config::new(url.clone()))?;
            ask::controllers(&client, &namespace, name).await.map_err(|error| request_error(error, url))?
        }
        None => {
            let config = options.connect.config().await?;
            let of_context = config.default_namespace.clone();
            let namespace = of_job.or_else(|| options.namespace.clone()).unwrap_or(of_context);
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
    match options.output {
        Output::Json => say!("{explanation:#}"),
        Output::Text => say!("{}", explanation["text"].as_str().unwrap_or_default().trim_end()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the holders of a cluster queue's quota.
async fn holders(options: &Options, queue: &str) -> anyhow::Result<ExitCode> {
    let client = connect::asking(options.connect.config().await?)?;
    let answer =
        ask::holders(&client, queue, options.limit, 0).await.map_err(|error| request_error(error, "the API server"))?;
    if let Output::Json = options.output {
        say!("{answer:#}");
        return Ok(ExitCode::SUCCESS);
    }
    let found: ClusterQueueHolders = serde_json::from_value(answer)?;
    let unnamed = found.withheld.as_ref();
    let (total, listed) = (found.total, found.items.len() + unnamed.map_or(0, |unnamed| unnamed.workloads));
    let amounts = |holds: &[Held]| {
        let amounts = holds.iter().map(|it| format!("{} {} of flavor {}", it.amount.0, it.resource, it.flavor));
        amounts.collect::<Vec<_>>().join(", ")
    };
    say!("{total} workload{} quota of ClusterQueue {queue}.", if total == 1 { " holds" } else { "s hold" });
    for it in &found.items {
        let since = it.since.as_ref().map(|since| format!(" since {}", since.0)).unwrap_or_default();
        let state = match (&it.evicted, it.admitted) {
            (Some(reason), _) => format!("; being evicted: {reason}"),
            (None, true) => String::new(),
            (None, false) => "; not admitted yet".to_owned(),
        };
        let name = |name: &Option<String>| name.clone().unwrap_or_default();
        let (namespace, name) = (name(&it.metadata.namespace), name(&it.metadata.name));
        say!("  {namespace}/{name}: {}{since}, priority {}{state}", amounts(&it.holds), it.priority);
    }
    if let Some(unnamed) = unnamed {
        say!("  {} not named here: {}", unnamed.workloads, amounts(&unnamed.holds));
    }
    if total > listed {
        say!("  and {} more", total - listed);
    }
    if let Some(unnamed) = unnamed {
        say!("{}", unnamed.why.message);
    }
    Ok(ExitCode::SUCCESS)
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
