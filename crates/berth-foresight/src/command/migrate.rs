//! The command `berth migrate --check`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use jiff::Timestamp;

use super::check::{Report, documents};
use crate::migrate::{self, Inventory, Verdict, report};

/// What to check, and how to report it.
#[derive(Debug, Args)]
pub struct Options {
    /// A file or folder of manifests, such as the output of `kubectl get -o yaml`, instead of the
    /// cluster of the kubeconfig. May be repeated.
    #[arg(short, long = "filename", value_name = "FILE|FOLDER")]
    pub files: Vec<PathBuf>,
    /// Format of the report.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
    /// Also list the objects that work the same with Berth.
    #[arg(long)]
    all: bool,
    /// Exit with 1 if an object or a decision has this verdict or a worse one.
    #[arg(long, value_enum, default_value = "unsupported", value_name = "VERDICT")]
    fail_on: FailOn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Text.
    Text,
    /// One JSON object.
    Json,
}

/// The least verdict that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FailOn {
    /// Any difference.
    Different,
    /// A part that is not supported, or a job that would be stopped.
    Unsupported,
    /// Nothing.
    Never,
}

/// Checks the files, or the inventory of a cluster.
pub fn run(options: &Options, live: Inventory, now: Timestamp) -> anyhow::Result<Report> {
    let mut inventory = live;
    let (found, unreadable) = documents(&options.files)?;
    inventory.documents.extend(found);
    inventory.unread.extend(unreadable.iter().map(|it| format!("{}: {}", it.object, it.problems.join("; "))));
    let migration = migrate::check(inventory, now);
    let failed = match options.fail_on {
        FailOn::Different => migration.verdict() >= Verdict::Different,
        FailOn::Unsupported => migration.verdict() >= Verdict::Unsupported,
        FailOn::Never => false,
    };
    let text = match options.output {
        Output::Text => report::text(&migration, options.all),
        Output::Json => format!("{:#}\n", report::json(&migration)),
    };
    Ok(Report { text, failed })
}
