//! `berth apiserver`: the embedded Kubernetes API alone, for controllers in other processes.

use std::path::PathBuf;
use std::process::ExitCode;

use berth_controllers::rights;
use berth_embedded::api::{ApiOptions, Apiserver, CLUSTER_USER};
use berth_embedded::{cluster_configuration, controller_configuration};
use berth_runtime::Manager;
use clap::Args;

use crate::audit::AuditOptions;
use crate::bound_server::{BoundServer, ServerOptions};
use crate::time::TimeOptions;
use crate::{identity, process};

/// Options of `berth apiserver`.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    server: ServerOptions,
    /// The ClusterConfiguration file that `berth cluster` reads with --config. The logs of
    /// simulated containers and the admission of AppWrappers depend on it.
    #[arg(long, value_name = "FILE")]
    cluster_config: Option<PathBuf>,
    /// The Configuration file that `berth controller` reads with --config. It decides which jobs
    /// are held at creation.
    #[arg(long, value_name = "FILE")]
    controller_config: Option<PathBuf>,
    /// Omit Berth's kinds, roles, admission and conversion. `berth install` adds them, as to any
    /// cluster, and the API server calls the webhooks of `berth controller`.
    #[arg(long, hide = true, conflicts_with = "controller_config")]
    bare: bool,
    #[command(flatten)]
    audit: AuditOptions,
    #[command(flatten)]
    time: TimeOptions,
}

/// Runs until Ctrl-C (or SIGTERM).
pub fn main(options: &Options) -> anyhow::Result<ExitCode> {
    process::run(serve(options))
}

async fn serve(options: &Options) -> anyhow::Result<ExitCode> {
    let bound = BoundServer::open(&options.server).await?;
    let time = options.time.clock(bound.data_dir())?;
    let (clock, same_time) = (time.clock.clone(), time.options()?);
    let keeper = time.keep();
    let read = |file: &Option<PathBuf>| file.as_deref().map(process::read).transpose();
    let cluster = cluster_configuration(read(&options.cluster_config)?)?;
    let seed = process::entropy()?;
    let api = Apiserver::start(ApiOptions {
        operators: berth_operators::Options::from(&cluster.operators),
        clock: clock.clone(),
        seed,
        storage: bound.storage(),
        controllers: controller_configuration(read(&options.controller_config)?)?,
        pod_security: Default::default(),
        token_key: Some(bound.pki().token_key().clone()),
        audit: options.audit.log()?,
        front_proxy: Some(bound.front_proxy()?),
        controllers_elsewhere: true,
        bare: options.bare,
        field_owners: true,
    })
    .await?;
    // The logs of simulated containers are computed from their pods, so the server needs no other
    // process.
    let mut manager = Manager::new(api.client("berth:logs"), clock.clone());
    api.logs().connect(&mut manager, cluster.pods, seed);
    let logs = tokio::spawn(manager.run(std::future::pending()));

    bound.write_kubeconfig()?;
    let cluster = bound.pki().client(CLUSTER_USER, Some("system:masters"))?;
    let cluster = bound.write_kubeconfig_of("cluster", &cluster)?;
    let controller = bound.pki().client(rights::USER, Some("system:serviceaccounts"))?;
    let controller = bound.write_kubeconfig_of("controller", &controller)?;
    let (url, kubeconfig) = (bound.url(), bound.kubeconfig().to_owned());
    let serving = bound.serve(api.server().clone());
    let identity = identity::announce(api.server(), clock, seed);

    let time = same_time.map(|options| format!(" {options}")).unwrap_or_default();
    say!("Kubernetes API  {url}");
    say!("kubeconfig      {}", kubeconfig.display());
    say!("Next            berth cluster --kubeconfig {}{time}", cluster.display());
    say!("                berth controller --kubeconfig {}{time}", controller.display());
    say!("Ready");

    let signal = process::signal().await?;
    eprintln!("berth: {signal}, stopping");
    logs.abort();
    identity.abort();
    serving.stop().await.clear();
    if let Some(keeper) = keeper {
        keeper.close().await;
    }
    Ok(ExitCode::SUCCESS)
}
