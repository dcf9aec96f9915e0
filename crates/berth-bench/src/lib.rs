//! The command `berth bench`: runs loads against a real API in real time and reports their duration
//! and cost.

mod deletions;
mod jobs;
mod load;
mod measure;
mod mimic;
mod objects;
mod report;
mod sender;
mod simulated;
mod starts;
mod target;
mod throughput;

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};

/// Options of `berth bench`.
#[derive(Args)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Create the queues and workloads of a generator file, simulate the execution of the
    /// workloads, and report how long they waited.
    Load(load::Options),
    /// Run batch Jobs of one pod on simulated nodes, from their creation to their completion.
    Jobs(jobs::Options),
    /// Delete all waiting Jobs of one team at once, and measure how long another team's Jobs wait
    /// during the deletion.
    Deletions(deletions::Options),
    /// Start pods on this machine, each as one process, and measure the time to their first
    /// instruction.
    Starts(starts::Options),
    /// Measure the API server: durable creates, patches, watch fan-out, paged lists.
    Api(throughput::Options),
}

/// Format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Plain text.
    Text,
    /// One JSON object.
    Json,
}

/// Runs a bench. The exit code is a failure if the bench found an error, such as an object that was
/// lost, admitted twice or miscounted.
pub fn main(options: &Options) -> anyhow::Result<ExitCode> {
    match &options.command {
        Command::Load(options) => load::main(options),
        Command::Jobs(options) => jobs::main(options),
        Command::Deletions(options) => deletions::main(options),
        Command::Starts(options) => starts::main(options),
        Command::Api(options) => throughput::main(options),
    }
}
