//! `berth up`: a whole cluster in one process, on a loopback port, for kubectl and other clients of
//! Kubernetes. `berth apiserver`, `berth cluster` and `berth controller` run the same parts as
//! separate processes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use berth_controllers::Decisions;
use berth_embedded::{Embedded, Options as EmbeddedOptions, cluster_configuration};
use clap::Args;

use crate::audit::AuditOptions;
use crate::bound_server::{BoundServer, ServerOptions};
use crate::forecast_options::ForecastOptions;
use crate::journal::JournalOptions;
use crate::node::{NodeOptions, OpenNode};
use crate::node_health::{self, AutopilotOptions};
use crate::page::options::UpPages;
use crate::time::TimeOptions;
use crate::{identity, process};

/// Options of `berth up`.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    server: ServerOptions,
    /// Node pools and timing: a ClusterConfiguration file. Default: a few CPU nodes and a small L4
    /// pool.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Configuration of the queueing controllers: a Kueue Configuration file.
    #[arg(long, value_name = "FILE")]
    controller_config: Option<PathBuf>,
    #[command(flatten)]
    audit: AuditOptions,
    #[command(flatten)]
    journal: JournalOptions,
    #[command(flatten)]
    forecasts: ForecastOptions,
    #[command(flatten)]
    time: TimeOptions,
    #[command(flatten)]
    node: NodeOptions,
    #[command(flatten)]
    autopilot: AutopilotOptions,
    #[command(flatten)]
    pages: UpPages,
}

/// Runs until Ctrl-C (or SIGTERM).
pub fn main(options: &Options) -> anyhow::Result<ExitCode> {
    process::run(up(options))
}

async fn up(options: &Options) -> anyhow::Result<ExitCode> {
    let bound = BoundServer::open(&options.server).await?;
    let time = options.time.clock(bound.data_dir())?;
    let decisions = Decisions::default();
    let journal = options.journal.open(&decisions)?;
    let keeper = time.keep();
    let cluster = options.config.as_deref().map(process::read).transpose()?;
    let configured = cluster_configuration(cluster.clone())?;
    if options.node.runs_processes(&configured) && !options.time.is_real_speed() {
        bail!(
            "--time-scale needs simulated pods, because processes run in real time; omit --time-scale or --runtime process"
        );
    }
    let opened = options.node.open(&bound, &configured).await?;
    let autopilot = options.autopilot.bind().await?;
    let pages = options.pages.bind().await?;
    let report = opened.as_ref().map(|node| node.report.clone()).unwrap_or_default();
    let (node, closing) = opened.map(OpenNode::split).unzip();
    let embedded = Embedded::start(EmbeddedOptions {
        clock: time.clock,
        seed: process::entropy()?,
        storage: bound.storage(),
        cluster,
        configuration: options.controller_config.as_deref().map(process::read).transpose()?,
        root_ca: Some(bound.pki().authority_pem().to_owned()),
        token_key: Some(bound.pki().token_key().clone()),
        audit: options.audit.log()?,
        front_proxy: Some(bound.front_proxy()?),
        pod_security: options.node.pod_security(&configured),
        node,
        apart: false,
        unattended: false,
        jobs_only: false,
        decisions,
        forecasts: options.forecasts.written(),
    })
    .await?;
    bound.write_kubeconfig()?;
    let (url, kubeconfig) = (bound.url(), bound.kubeconfig().to_owned());
    let serving = bound.serve(embedded.server().clone());
    let identity = identity::announce(embedded.server(), embedded.clock(), process::entropy()?);

    let mut tasks = tokio::task::JoinSet::new();
    let health = autopilot.as_ref().and_then(|listener| listener.local_addr().ok());
    if let Some(listener) = autopilot {
        tasks.spawn(node_health::serve(listener, embedded.autopilot()));
    }

    let pages = match pages {
        Some(pages) => {
            let (owner, clock) = (embedded.admin_client(), embedded.clock().clone());
            Some(pages.serve_owner(owner, &kubeconfig, clock, &mut tasks).await?)
        }
        None => None,
    };

    print(&url, &kubeconfig, &report, health, pages.as_deref());
    let signal = process::signal().await?;
    eprintln!("berth: {signal}, stopping");
    identity.abort();
    tasks.shutdown().await;
    let leftovers = serving.stop().await;
    embedded.stop().await;
    if let Some(closing) = closing {
        closing.close().await;
    }
    if let Some(journal) = journal {
        journal.close();
    }
    if let Some(keeper) = keeper {
        keeper.close().await;
    }
    leftovers.clear();
    Ok(ExitCode::SUCCESS)
}

/// Prints where the parts of the cluster are served.
fn print(url: &str, kubeconfig: &Path, report: &[String], health: Option<SocketAddr>, pages: Option<&str>) {
    say!("Kubernetes API  {url}");
    say!("kubeconfig      {}", kubeconfig.display());
    for line in report {
        say!("Node            {line}");
    }
    if let Some(address) = health {
        say!("Health agents   http://{address}/status");
    }
    if let Some(address) = pages {
        say!("Web pages       {address}");
    }
    say!("Next            export KUBECONFIG={} && kubectl get nodes", kubeconfig.display());
}
