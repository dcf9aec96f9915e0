//! Health of nodes: the options of the reaction to it, the measurements of this machine's GPUs with
//! the vendor's tools, and the HTTP API of the health agents.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use anyhow::anyhow;
use berth_api::appwrapper::AppWrapperConfiguration;
use berth_api::berth::NodeHealthConfiguration;
use berth_machine::ToolError;
use berth_machine::health::{HealthTools, Reading, parse_diagnostics};
use berth_operators::autopilot::{AutopilotApi, Measurement, Probe, Request, Unavailable};
use berth_runtime::Manager;
use clap::Args;
use http::{Method, StatusCode};

use crate::component::listen::{self, BindAddress, Handler};
use crate::process;

/// Options of the reaction to unhealthy nodes.
#[derive(Args)]
#[command(next_help_heading = "Node health")]
pub struct NodeHealthOptions {
    /// ClusterQueue whose lending limits follow the capacity that unhealthy nodes take away.
    #[arg(long, value_name = "NAME")]
    slack_queue: Option<String>,
    /// React to unhealthy nodes: new pods of queued jobs avoid them, running pods leave them, and
    /// queues report the quota that they lack. FILE has the labels, taints and states that make a
    /// node unhealthy: the fields of section autopilot of AppWrapper's configuration. Default:
    /// Autopilot's labels, cordons, and nodes that do not report. With --slack-queue, this option
    /// is on.
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    node_health: Option<Option<PathBuf>>,
}

/// The reaction of the queueing controllers to unhealthy nodes.
#[derive(Clone)]
pub struct NodeHealth {
    configuration: Arc<NodeHealthConfiguration>,
    slack_queue: String,
}

impl NodeHealthOptions {
    /// Reads the options; `None` if neither is given. AppWrapper's configuration has the same
    /// settings; an option overrides its setting.
    ///
    /// # Errors
    /// The file cannot be read or is invalid.
    pub fn load(&self, wrappers: Option<&AppWrapperConfiguration>) -> anyhow::Result<Option<NodeHealth>> {
        let of_wrappers = wrappers.map(|wrappers| wrappers.slack_queue_name.clone()).filter(|name| !name.is_empty());
        let slack_queue = self.slack_queue.clone().or(of_wrappers);
        if slack_queue.is_none() && self.node_health.is_none() {
            return Ok(None);
        }
        let configuration = match self.node_health.as_ref().and_then(Option::as_ref) {
            Some(file) => NodeHealthConfiguration::from_value(process::read(file)?)
                .map_err(|error| anyhow!("{}: {error}", file.display()))?,
            None => wrappers.map(|wrappers| wrappers.autopilot.clone()).unwrap_or_default(),
        };
        let slack_queue = slack_queue.unwrap_or_default();
        Ok(Some(NodeHealth { configuration: Arc::new(configuration), slack_queue }))
    }
}

impl NodeHealth {
    /// What makes a node unhealthy.
    pub fn configuration(&self) -> Arc<NodeHealthConfiguration> {
        self.configuration.clone()
    }

    /// Adds the controllers to the manager.
    pub fn install(&self, manager: &mut Manager) {
        berth_operators::health::monitor::install(manager, self.configuration.clone());
        berth_operators::slack_queue::install(manager, self.configuration.clone(), &self.slack_queue);
    }
}

/// Options of the agents' HTTP API.
#[derive(Args)]
pub struct AutopilotOptions {
    /// Address at which the health agents of nodes serve Autopilot's HTTP API and /metrics:
    /// ADDRESS:PORT, :PORT for every address, 0 to disable. Clients are not authenticated, and a
    /// request runs checks.
    #[arg(long, value_name = "ADDRESS", default_value = "0")]
    autopilot_bind_address: BindAddress,
}

impl AutopilotOptions {
    /// Binds the address; `None` if the API is not served.
    ///
    /// # Errors
    /// The address is in use.
    pub async fn bind(&self) -> anyhow::Result<Option<tokio::net::TcpListener>> {
        listen::bind(self.autopilot_bind_address, "--autopilot-bind-address").await
    }
}

/// Serves the API until dropped.
pub async fn serve(listener: tokio::net::TcpListener, api: AutopilotApi) {
    let handler: Handler = Arc::new(move |request| {
        let api = api.clone();
        Box::pin(async move {
            if request.method() != Method::GET {
                return listen::text(StatusCode::METHOD_NOT_ALLOWED, "only GET is supported\n");
            }
            let answer = api.respond(request.uri().path(), request.uri().query().unwrap_or_default()).await;
            let code = StatusCode::from_u16(answer.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            listen::text(code, answer.text)
        })
    });
    listen::serve(listener, None, handler).await;
}

/// The measurements of a check, or why there are none.
type Measured = Result<Vec<Measurement>, Unavailable>;

/// The probe of this machine.
pub struct MachineProbe(HealthTools);

impl MachineProbe {
    /// The probe of this machine's tools.
    pub fn new() -> Self {
        Self(HealthTools::new(Path::new("/")))
    }
}

fn measurements(readings: Result<Vec<Reading>, ToolError>) -> Measured {
    let readings = readings.map_err(|error| Unavailable(error.to_string()))?;
    let measurement = |reading: Reading| Measurement::new(reading.device, reading.value, &reading.detail);
    Ok(readings.into_iter().map(measurement).collect())
}

/// Measures for a check. Blocks until the tool ends.
fn measure(tools: &HealthTools, request: &Request) -> Measured {
    measurements(match request.check.as_str() {
        "pciebw" => tools.bandwidth(),
        "remapped" => tools.remapped_rows(),
        "gpupower" => tools.power_slowdown(),
        "gpumem" => tools.memory(),
        "dcgm" => tools.diagnostics(request.level),
        "ping" => {
            let peers = request.peers.iter().map(|peer| (peer.name.clone(), peer.address.clone()));
            tools.ping(&peers.collect::<Vec<_>>())
        }
        // The agent creates a claim.
        "pvc" => Ok(Vec::new()),
        other => return Err(Unavailable(format!("this machine has no measurement for {other:?}"))),
    })
}

impl Probe for MachineProbe {
    fn measure<'a>(&'a self, request: &'a Request) -> Pin<Box<dyn Future<Output = Measured> + Send + 'a>> {
        let (tools, request) = (self.0.clone(), request.clone());
        Box::pin(async move {
            let measured = tokio::task::spawn_blocking(move || measure(&tools, &request)).await;
            measured.unwrap_or_else(|error| Err(Unavailable(format!("the measurement did not end: {error}"))))
        })
    }

    fn invasive_obstacle(&self) -> Option<Unavailable> {
        self.0.has_diagnostics().err().map(|error| Unavailable(error.to_string()))
    }

    fn invasive_result(&self, output: &str) -> Option<Measured> {
        Some(measurements(parse_diagnostics(output)))
    }
}
