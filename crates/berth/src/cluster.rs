//! `berth cluster`: the rest of a simulated cluster (Jobs, JobSets, pods, nodes, capacity) against
//! an API server in another process.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use berth_controllers::configuration::process::Election;
use berth_embedded::cluster_configuration;
use berth_runtime::Manager;
use clap::Args;
use tokio::task::JoinSet;

use crate::component::candidate::Candidate;
use crate::component::connect::{self, Requests};
use crate::component::endpoints::Endpoints;
use crate::component::limit::Limiter;
use crate::component::{self, ComponentOptions, Leading, election, endpoints::Places, listen::BindAddress};
use crate::process;

/// The API groups that the simulated cluster uses, in addition to Kubernetes' own.
const GROUPS: [&str; 3] = ["autoscaling.x-k8s.io", "berth.dev", "jobset.x-k8s.io"];

/// Options of `berth cluster`.
#[derive(Args)]
pub struct Options {
    /// Node pools and timing: a ClusterConfiguration file. Default: a few CPU nodes and a small L4
    /// pool.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    component: ComponentOptions,
}

/// Runs until Ctrl-C (or SIGTERM).
pub fn main(options: &Options) -> anyhow::Result<ExitCode> {
    process::run(simulate(options))
}

async fn simulate(options: &Options) -> anyhow::Result<ExitCode> {
    let configuration = cluster_configuration(options.config.as_deref().map(process::read).transpose()?)?;
    let options = &options.component;
    let clock = options.time.joining_clock()?;
    let alone = Election { elect: Some(false), ..Election::default() };
    let election = options.election.election("berth-cluster", &election::own_namespace(), &alone)?;
    let config = options.connect.config().await?;
    let root_ca = connect::authority_pem(&config);
    let bound = options.endpoints.bind(Places::at(BindAddress::Off, BindAddress::Off)).await?;
    let requests = Requests::default();
    let candidate = election.map(|election| Candidate::new(config.clone(), election)).transpose()?;
    let client = connect::client(config, &requests, &Limiter::none())?;
    connect::wait_for_groups(&client, &clock, &GROUPS).await?;

    let reviewer = client.clone();
    let mut manager = Manager::new(client, clock);
    let seed = process::entropy()?;
    let cluster = berth_cluster::Options { configuration, seed, root_ca, ..berth_cluster::Options::default() };
    let operators = berth_operators::Options::from(&cluster.configuration.operators);
    let (figures, state) = (operators.clone(), cluster.state.clone());
    let install: component::Install = Box::new(move |manager| {
        berth_cluster::install(manager, cluster.clone());
        berth_operators::install(manager, operators.clone());
    });
    install(&mut manager);
    let (caches, work) = (manager.cache_state(), manager.work());
    let leading = Leading::default();
    let leads = leading.clone();
    let endpoints = Endpoints {
        pending: Arc::new(move || caches.pending().iter().map(|kind| format!("caches: waiting for {kind}")).collect()),
        metrics: Arc::new(move |exposition| {
            leads.write("berth-cluster", exposition);
            requests.write(exposition);
            figures.write_metrics(exposition);
            state.write(exposition);
            work.write(exposition);
            berth_runtime::process::write(exposition);
        }),
        explain: None,
    };
    let mut tasks = JoinSet::new();
    bound.serve(&endpoints, reviewer, None, &mut tasks)?;
    component::run(manager, candidate, &leading, install).await
}
