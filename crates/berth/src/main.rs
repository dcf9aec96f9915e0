//! The `berth` command line. Assembles the crates, and owns what only a program may use: the
//! operating system's clock and entropy, signals, and files in the user's folders.

#[macro_use]
extern crate berth_process;

mod accounting;
mod apiserver;
mod audit;
mod batch;
mod bound_server;
mod check;
mod cluster;
mod component;
mod controller;
mod dashboard;
mod explain;
mod flat;
mod forecast_options;
mod foresee;
mod go_template;
mod identity;
mod image;
mod import;
mod install;
mod job_name;
mod journal;
mod kueuectl;
mod listing;
mod log;
mod manual;
mod migrate;
mod node;
mod node_health;
mod page;
mod populate;
mod replay;
mod run;
mod team;
mod template;
mod time;
mod top;
mod unqueued;
mod up;

use std::process::ExitCode;

use batch::control::Change;
use berth_process::{connect, process};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// A batch platform for Kubernetes in one binary: queues, quotas, preemption and capacity for
/// shared accelerators.
#[derive(Parser)]
#[command(name = "berth", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a whole cluster in this process: API server, controllers and nodes. Use it with kubectl.
    Up(up::Options),
    /// Run the embedded Kubernetes API alone.
    Apiserver(apiserver::Options),
    /// Run the controllers, the pod scheduler, the kubelet and the autoscaler of a simulated
    /// cluster against an API server.
    Cluster(cluster::Options),
    /// Run the queueing controllers against a cluster: admission, quotas, preemption.
    Controller(controller::Options),
    /// Explain why a job waits or was evicted: its place in the queue, the quota that is short, the
    /// workloads that hold it, and the candidates for preemption.
    Explain(explain::Options),
    /// Find configuration that cannot work, in a folder of manifests or in a cluster: quota above
    /// supply, unreachable queues, jobs that never fit.
    Check(check::CheckOptions),
    /// Check whether Berth can take over from Kueue: its stored objects, and decisions that would
    /// differ.
    Migrate(migrate::MigrateOptions),
    /// Import running pods into queues: each pod gets an admitted Workload and keeps running. The
    /// options are those of Kueue's importer.
    Import(import::ImportOptions),
    /// Create the LocalQueues that are missing in the namespaces that ClusterQueues select.
    Populate(populate::PopulateOptions),
    /// Serve web pages on this machine, with the permissions of a kubeconfig: queues, workloads,
    /// and why they wait.
    Dashboard(dashboard::Options),
    /// Import, pull, list and remove the images of pods that run on this machine.
    Image(image::Options),
    /// Run a scenario in virtual time and check its expectations.
    Run(run::Options),
    /// Create, list and delete teams that share a cluster: namespaces, quotas, queues and users.
    Team(team::Options),
    /// Replay the trace of a real cluster in virtual time, under one or several policies: waits,
    /// use, fairness, lost work, cost.
    Replay(berth_foresight::command::replay::Options),
    /// Forecast when waiting jobs start, and after which jobs; or backtest forecasts within the
    /// trace of a real cluster.
    Forecast(Box<foresee::ForecastOptions>),
    /// Compare the future with and without changes: quota, pools, priorities, a new job. Nothing is
    /// changed.
    WhatIf(foresee::WhatIfOptions),
    /// Write the state of a cluster to a file, for forecasts and comparisons elsewhere.
    Snapshot(foresee::SnapshotOptions),
    /// Report the use of quota in a period: hours, waits, lost work and cost by team, user, queue
    /// or flavor.
    Usage(accounting::report::Options),
    /// Show what happened to a job: its states with times, quota, evictions, decisions and pods.
    History(accounting::history::Options),
    /// Explain the last preemption of a job: by which workload and rule, quota and shares before
    /// and after, and every candidate.
    WhyPreempted(accounting::history::Options),
    /// List the jobs that wait and run: state, reason, and with --start a forecast of the start.
    Queue(batch::lists::QueueOptions),
    /// List the jobs of a period, ended ones too: state, wait, run time.
    Jobs(batch::lists::JobsOptions),
    /// List the nodes: state, and what the pods on them request.
    Nodes(batch::nodes::Options),
    /// Show queues, jobs, nodes and events on the terminal, live. The key ? lists all keys.
    Top(top::Options),
    /// Submit a command as a queued Job.
    Submit(batch::submit::Options),
    /// Hold jobs: they leave their queue, and stop if they run.
    Hold(batch::control::Options),
    /// Release jobs that are held.
    Release(batch::control::Options),
    /// Stop jobs that run, and queue them again.
    Requeue(batch::control::Options),
    /// Cancel jobs: they are stopped and deleted.
    Cancel(batch::control::Options),
    /// List queues, workloads, flavors or the pods of a job, with kueuectl's filters and columns.
    #[command(subcommand)]
    List(kueuectl::list::List),
    /// Create a ClusterQueue, LocalQueue or ResourceFlavor.
    #[command(subcommand)]
    Create(kueuectl::create::Create),
    /// Stop a queue or Workload until it is resumed.
    #[command(subcommand)]
    Stop(kueuectl::stop::Stop),
    /// Resume a stopped queue or Workload.
    #[command(subcommand)]
    Resume(kueuectl::stop::Resume),
    /// Delete Workloads with their jobs, or other objects with kubectl.
    #[command(subcommand)]
    Delete(kueuectl::delete::Delete),
    /// Run kubectl get.
    Get(kueuectl::kubectl::Arguments),
    /// Run kubectl describe.
    Describe(kueuectl::kubectl::Arguments),
    /// Run kubectl edit.
    Edit(kueuectl::kubectl::Arguments),
    /// Run kubectl patch.
    Patch(kueuectl::kubectl::Arguments),
    /// Print the version of berth and the images of the cluster's controllers.
    Version(kueuectl::VersionOptions),
    /// Print a script that completes berth's commands in a shell.
    Completion(manual::CompletionOptions),
    /// Print the manual page of berth, or write a page for each command.
    Man(manual::ManOptions),
    /// Print or apply the objects that the controllers need in a cluster: definitions, roles,
    /// Deployment, webhooks.
    Install(install::Options),
    /// Run a load against an API server and its controllers in real time, and report the
    /// measurements.
    Bench(berth_bench::Options),
    /// Print the CustomResourceDefinitions that Berth serves, as YAML for `kubectl apply -f -`.
    Crds,
}

/// The commands with their options.
fn command_line() -> clap::Command {
    connect::with_names_of_kubectl(Cli::command())
}

fn main() -> ExitCode {
    // The helper commands of pods run without logging, runtime and threads.
    let arguments = || std::env::args_os().skip(1);
    if let Some(code) = berth_node::helper::run(arguments()).or_else(|| berth_network::helper::run(arguments())) {
        return code;
    }
    // rustls refuses to choose between the two TLS providers of the dependency tree. Berth uses
    // ring.
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        tracing::debug!("a TLS provider was installed already");
    }
    let arguments: Vec<String> = std::env::args_os().map(|it| it.to_string_lossy().into_owned()).collect();
    if let Some(words) = manual::kubectl_completions(&arguments, &command_line()) {
        return report(Ok(words)).unwrap_or(ExitCode::FAILURE);
    }
    let name = manual::usage_name(arguments.first().map_or("", String::as_str));
    let matches = command_line().bin_name(name).get_matches();
    let command = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).command;
    // A component in its own process logs its progress by default.
    let usual = match command {
        Command::Controller(_) | Command::Cluster(_) => log::PROGRESS,
        // The screen belongs to the views, which show failures themselves.
        Command::Top(_) => "off",
        _ => "warn",
    };
    match &command {
        Command::Controller(options) => options.log.start(usual),
        _ => log::LogOptions::default().start(usual),
    }
    match run_command(command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("berth: {}", process::in_full(&error));
            ExitCode::FAILURE
        }
    }
}

fn run_command(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Up(options) => up::main(&options),
        Command::Apiserver(options) => apiserver::main(&options),
        Command::Cluster(options) => cluster::main(&options),
        Command::Controller(options) => controller::main(&options),
        Command::Explain(options) => explain::main(&options),
        Command::Check(options) => Ok(check::main(&options)),
        Command::Migrate(options) => Ok(migrate::main(&options)),
        Command::Import(options) => import::main(&options),
        Command::Populate(options) => populate::main(&options),
        Command::Dashboard(options) => dashboard::main(&options),
        Command::Image(options) => image::main(&options),
        Command::Run(options) => run::main(&options),
        Command::Team(options) => team::main(&options),
        Command::Replay(options) => report(replay::main(&options)),
        Command::Forecast(options) => foresee::forecast(&options),
        Command::WhatIf(options) => foresee::what_if(&options),
        Command::Snapshot(options) => foresee::snapshot(&options),
        Command::Usage(options) => accounting::report::main(&options),
        Command::History(options) => accounting::history::main(&options),
        Command::WhyPreempted(options) => accounting::history::why_preempted(&options),
        Command::Queue(options) => batch::lists::queue(options),
        Command::Jobs(options) => batch::lists::jobs(&options),
        Command::Nodes(options) => batch::nodes::main(&options),
        Command::Top(options) => top::main(&options),
        Command::Submit(options) => batch::submit::main(&options),
        Command::Hold(options) => batch::control::main(&options, Change::Hold),
        Command::Release(options) => batch::control::main(&options, Change::Release),
        Command::Requeue(options) => batch::control::main(&options, Change::Requeue),
        Command::Cancel(options) => batch::control::main(&options, Change::Cancel),
        Command::List(list) => kueuectl::list::main(&list),
        Command::Create(create) => kueuectl::create::main(&create),
        Command::Stop(stop) => kueuectl::stop::stop(&stop),
        Command::Resume(resume) => kueuectl::stop::resume(&resume),
        Command::Delete(delete) => kueuectl::delete::main(&delete),
        Command::Get(arguments) => kueuectl::kubectl::run("get", &arguments),
        Command::Describe(arguments) => kueuectl::kubectl::run("describe", &arguments),
        Command::Edit(arguments) => kueuectl::kubectl::run("edit", &arguments),
        Command::Patch(arguments) => kueuectl::kubectl::run("patch", &arguments),
        Command::Version(options) => kueuectl::version(&options),
        Command::Completion(options) => manual::completion(&options, command_line()),
        Command::Man(options) => manual::man(&options, command_line()),
        Command::Install(options) => install::main(&options),
        Command::Bench(options) => berth_bench::main(&options),
        Command::Crds => crds(),
    }
}

/// Prints a report.
fn report(text: anyhow::Result<String>) -> anyhow::Result<ExitCode> {
    process::print(&text?)?;
    Ok(ExitCode::SUCCESS)
}

fn crds() -> anyhow::Result<ExitCode> {
    let mut text = String::new();
    for crd in berth_api::crds() {
        // JSON is YAML. One document per line keeps the output usable with line-based tools.
        text.push_str(&format!("---\n{}\n", serde_json::to_string(&crd)?));
    }
    process::print(&text)?;
    Ok(ExitCode::SUCCESS)
}
