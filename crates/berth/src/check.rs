//! `berth check`: finds configuration that cannot work, in files and in a cluster.

use std::process::ExitCode;

use anyhow::bail;
use berth_embedded::objects::{self, Listed};
use berth_foresight::command::check;
use berth_runtime::Clock;
use clap::Args;

use crate::component::connect::{self, ConnectOptions};
use crate::process;
use crate::team::in_words;

/// Options of `berth check`.
#[derive(Args)]
pub struct CheckOptions {
    #[command(flatten)]
    check: check::Options,
    /// Check the objects of the cluster. With -f, files are checked together with the cluster's
    /// objects, and replace those of the same name.
    #[arg(long)]
    live: bool,
    #[command(flatten)]
    connect: ConnectOptions,
}

/// Prints the findings. Exit codes: 0 if there is no finding as severe as `--fail-on`, 1 if there
/// is one, 2 if the check could not be made.
pub fn main(options: &CheckOptions) -> ExitCode {
    process::run_check(run(options))
}

async fn run(options: &CheckOptions) -> anyhow::Result<bool> {
    if options.check.files.is_empty() && !options.live {
        bail!("nothing to check: use -f FILE or -f FOLDER for manifests, or --live for the cluster of the kubeconfig");
    }
    let listed = match options.live {
        true => objects::list(&connect::asking(options.connect.config().await?)?, false)
            .await
            .map_err(|unlisted| in_words(&unlisted.plural, unlisted.source))?,
        false => Listed::default(),
    };
    for missing in &listed.missing {
        eprintln!("berth: not checked: {missing}");
    }
    let report = check::run(&options.check, listed.documents, &objects::template, Clock::system().now())?;
    process::print(&report.text)?;
    Ok(!report.failed)
}
