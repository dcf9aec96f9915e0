//! `berth explain`: why a job waits, asked of the running controllers.

use std::process::ExitCode;

use anyhow::anyhow;
use berth_controllers::explain::{GROUP, VERSION};
use clap::{Args, ValueEnum};
use http::Request;
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
    #[arg(long, value_name = "SERVICE", default_value = "berth-system/berth-metrics:8080")]
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
            ask(&client, &format!("/explain/{namespace}/{name}")).await.map_err(|refusal| refusal.into_error(url))?
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
    let path = format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/workloads/{name}/explanation");
    let here = match ask(client, &path).await {
        Ok(explanation) => return Ok(explanation),
        Err(refusal) if !refusal.is_elsewhere() => return Err(refusal.into_error("the API server")),
        Err(refusal) => refusal.into_error("the API server"),
    };
    let (of_service, port) =
        service.split_once('/').ok_or_else(|| anyhow!("--service {service}: expected NAMESPACE/NAME:PORT"))?;
    let path = format!("/api/v1/namespaces/{of_service}/services/{port}/proxy/explain/{namespace}/{name}");
    ask(client, &path).await.map_err(|refusal| {
        let service = format!("the controllers (Service {service})");
        refusal.into_error(service).context(format!("{here}; give --service, or --controller with their address"))
    })
}

/// Why a question was not answered.
enum Refusal {
    /// With this status.
    Status { code: u16, message: String, names_object: bool },
    /// Not at all.
    Failed(kube::Error),
}

impl Refusal {
    /// Whoever was asked does not have the controllers.
    fn is_elsewhere(&self) -> bool {
        matches!(self, Refusal::Status { code: 404, names_object: false, .. } | Refusal::Status { code: 503, .. })
    }

    fn into_error(self, who: impl std::fmt::Display) -> anyhow::Error {
        match self {
            Refusal::Status { message, .. } => anyhow!(message),
            Refusal::Failed(error) => anyhow::Error::new(error).context(format!("{who} cannot be asked")),
        }
    }
}

async fn ask(client: &Client, path: &str) -> Result<Value, Refusal> {
    let request =
        Request::get(path).body(Vec::new()).map_err(|error| Refusal::Failed(kube::Error::HttpError(error)))?;
    match client.request::<Value>(request).await {
        Ok(explanation) => Ok(explanation),
        Err(kube::Error::Api(status)) => Err(Refusal::Status {
            code: status.code,
            names_object: status.details.as_ref().is_some_and(|details| !details.name.is_empty()),
            message: status.message.clone(),
        }),
        Err(error) => Err(Refusal::Failed(error)),
    }
}
