//! `berth explain`: why a job waits, asked of the running controllers.

use std::process::ExitCode;

use anyhow::anyhow;
use berth_controllers::explain::ask;
use clap::{Args, ValueEnum};
use kube::{Client, Config};
use serde_json::Value;

use crate::component::connect::{self, ConnectOptions, Requests};
use crate::component::limit::Limiter;
use crate::process;

/// Options of `berth explain`.
#[derive(Args)]
pub struct Options {
    /// The job or its Workload: NAME, or NAMESPACE/NAME.
    #[arg(value_name = "[NAMESPACE/]NAME")]
    job: String,
    /// The namespace. Default: the context's.
    #[arg(short, long)]
    namespace: Option<String>,
    /// A page of text, or everything that is known as JSON.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// The Service of the controllers' metrics, through which they are asked in a cluster that `berth install` set up:
    /// NAMESPACE/NAME:PORT.
    #[arg(long, value_name = "SERVICE", default_value = ask::SERVICE)]
    service: String,
    /// Ask the controllers here and not through the API server: the address of their metrics, as http://127.0.0.1:8080.
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
    let (of_job, name) = match options.job.split_once('/') {
        Some((namespace, name)) => (Some(namespace.to_owned()), name),
        None => (None, options.job.as_str()),
    };
    let explanation = match &options.controller {
        Some(url) => {
            let namespace = of_job.or_else(|| options.namespace.clone()).unwrap_or_else(|| "default".to_owned());
            let client = connect::client(Config::new(url.clone()), &Requests::default(), &Limiter::new(None))?;
            ask::controllers(&client, &namespace, name).await.map_err(|error| told(error, url))?
        }
        None => {
            let config = options.connect.config().await?;
            let of_context = config.default_namespace.clone();
            let namespace = of_job.or_else(|| options.namespace.clone()).unwrap_or(of_context);
            let client = connect::client(config, &Requests::default(), &Limiter::new(None))?;
            through_api_server(&client, &options.service, &namespace, name).await?
        }
    };
    match options.output {
        Output::Json => say!("{explanation:#}"),
        Output::Text => say!("{}", explanation["text"].as_str().unwrap_or_default().trim_end()),
    }
    Ok(ExitCode::SUCCESS)
}

/// `berth up` answers as an API group of its own; elsewhere the API server hands the question on to the Service.
async fn through_api_server(client: &Client, service: &str, namespace: &str, name: &str) -> anyhow::Result<Value> {
    let here = match ask::api_server(client, namespace, name).await {
        Ok(explanation) => return Ok(explanation),
        Err(error) if !ask::is_elsewhere(&error) => return Err(told(error, "the API server")),
        Err(error) => told(error, "the API server"),
    };
    if !service.contains('/') {
        return Err(anyhow!("--service {service}: expected NAMESPACE/NAME:PORT"));
    }
    ask::service(client, service, namespace, name).await.map_err(|error| {
        let who = format!("the controllers (Service {service})");
        told(error, who).context(format!("{here}; give --service, or --controller with their address"))
    })
}

fn told(error: kube::Error, who: impl std::fmt::Display) -> anyhow::Error {
    match error {
        kube::Error::Api(status) => anyhow!(status.message.clone()),
        error => anyhow::Error::new(error).context(format!("{who} cannot be asked")),
    }
}
