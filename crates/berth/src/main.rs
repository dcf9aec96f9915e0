//! The `berth` command line: puts the rooms together and owns what only a program may touch: the operating system's
//! clock and entropy, signals, files in the user's folders.

#[macro_use]
extern crate berth_process;

mod apiserver;
mod audit;
mod cluster;
mod component;
mod controller;
mod dashboard;
mod explain;
mod front;
mod identity;
mod image;
mod install;
mod journal;
mod run;
mod time;
mod unqueued;
mod up;

use std::io::IsTerminal;
use std::process::ExitCode;

use berth_process::process;
use clap::{Parser, Subcommand};

/// Objects are JSON trees of many small strings: a quarter of a run's time is spent allocating them, and this allocator
/// does it faster than the system's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A batch platform for Kubernetes in one binary: queues, quotas, preemption and capacity for shared accelerators.
#[derive(Parser)]
#[command(name = "berth", version, about, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a whole cluster in this process: API server, controllers, simulated nodes. kubectl just works.
    Up(up::Options),
    /// Run the embedded Kubernetes API alone.
    Apiserver(apiserver::Options),
    /// Run the simulated rest of a cluster against an API server: Jobs, JobSets, pods, nodes, capacity.
    Cluster(cluster::Options),
    /// Run the queueing controllers against a cluster: admission, quotas, preemption.
    Controller(controller::Options),
    /// Say why a job waits: its place, what is short and who holds it, whom it could preempt.
    Explain(explain::Options),
    /// Serve web pages on this machine, with the rights of the kubeconfig: queues, who waits, and why.
    Dashboard(dashboard::Options),
    /// Import, pull, list and remove the images of pods that run on this machine.
    Image(image::Options),
    /// Run a scenario in virtual time and check what it expects.
    Run(run::Options),
    /// Print, or apply, what a cluster needs to run the controllers: kinds, rights, Deployment, webhooks.
    Install(install::Options),
    /// Run a load against an API server and its controllers in real time, and report what it took.
    Bench(berth_bench::Options),
    /// Print the CustomResourceDefinitions Berth serves, as `kubectl apply -f -` takes them.
    Crds,
}

fn main() -> ExitCode {
    // Two TLS providers in the dependency tree would make rustls refuse to choose; ring is ours.
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        tracing::debug!("a TLS provider was installed already");
    }
    let command = Cli::parse().command;
    // Who watches one process of several wants to know what it is at.
    let level =
        if matches!(command, Command::Controller(_) | Command::Cluster(_)) { "warn,berth=info" } else { "warn" };
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("BERTH_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level)),
        )
        .init();
    let result = match command {
        Command::Up(options) => up::main(&options),
        Command::Apiserver(options) => apiserver::main(&options),
        Command::Cluster(options) => cluster::main(&options),
        Command::Controller(options) => controller::main(&options),
        Command::Explain(options) => explain::main(&options),
        Command::Dashboard(options) => dashboard::main(&options),
        Command::Image(options) => image::main(&options),
        Command::Run(options) => run::main(&options),
        Command::Install(options) => install::main(&options),
        Command::Bench(options) => berth_bench::main(&options),
        Command::Crds => crds(),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("berth: {}", process::in_full(&error));
            ExitCode::FAILURE
        }
    }
}

fn crds() -> anyhow::Result<ExitCode> {
    let mut text = String::new();
    for crd in berth_api::crds() {
        // JSON is YAML, and a document a line keeps the output usable with other tools.
        text.push_str(&format!("---\n{}\n", serde_json::to_string(&crd)?));
    }
    process::print(&text)?;
    Ok(ExitCode::SUCCESS)
}
