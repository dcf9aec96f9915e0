//! `cargo xtask http-conformance`: tests of the Kubernetes API over HTTP.
//!
//! A *walk* is a file of requests, in order, with the expected responses
//! (`xtask/http-conformance/*.yaml`, see [`walk`]). Walks test the Kubernetes API conventions only,
//! so they run against any API server:
//!
//! ```text
//! cargo xtask http-conformance                          # an embedded server, over TLS on loopback
//! cargo xtask http-conformance --kubeconfig ~/.kube/config
//! cargo xtask http-conformance --kubeconfig ~/.kube/config --webhook-address 192.0.2.1
//! ```
//!
//! This program also serves the webhooks that walks register. It listens on loopback, or on all
//! interfaces if `--webhook-address` names the host under which the API server reaches it.
//!
//! If the server cannot reach a webhook, or lacks a feature that a walk needs, the rest of the walk
//! is skipped and the reason is printed.
//!
//! A run creates one namespace per walk, and cluster-scoped objects whose names contain the walk's
//! id, and deletes them. It needs administrator rights, because it impersonates users.

#[cfg(test)]
mod clauses;
mod embedded;
mod expect;
mod http2;
mod protobuf;
mod session;
mod walk;
mod webhooks;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use session::Session;
use walk::Walk;
use webhooks::Webhooks;

/// Options of the command line.
#[derive(Debug, Default)]
pub struct Options {
    kubeconfig: Option<PathBuf>,
    only: Option<String>,
    webhook_address: Option<String>,
    verbose: bool,
}

impl Options {
    /// Parses the arguments after `http-conformance`.
    pub fn parse(args: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options::default();
        let mut args = args;
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--kubeconfig" => options.kubeconfig = Some(value()?.into()),
                "--webhook-address" => options.webhook_address = Some(value()?),
                "--walk" => options.only = Some(value()?),
                "--verbose" | "-v" => options.verbose = true,
                other => return Err(format!("unknown argument `{other}`")),
            }
        }
        Ok(options)
    }
}

/// Runs the walks. Fails if the response of a step differs from the expected one.
pub fn main(options: &Options) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("xtask http-conformance: {error}");
            return ExitCode::from(2);
        }
    };
    match runtime.block_on(run(options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask http-conformance: {error:#}");
            ExitCode::from(2)
        }
    }
}

async fn run(options: &Options) -> anyhow::Result<bool> {
    let walks = load(options.only.as_deref())?;
    let (config, server) = match &options.kubeconfig {
        Some(path) => (session::config_of(path).await?, None),
        None => {
            let server = embedded::start().await?;
            (server.config().await?, Some(server))
        }
    };
    let webhooks = Webhooks::start(options.webhook_address.as_deref()).await?;
    let (mut agree, mut total, mut skipped) = (0, 0, 0);
    for walk in &walks {
        let mut session = Session::start(&config, &webhooks, &walk.name).await?;
        let outcome = session.run(walk).await;
        session.end().await;
        agree += outcome.agree;
        total += outcome.total;
        skipped += outcome.skipped;
        println!("{} {}/{}", walk.name, outcome.agree, outcome.total);
        if let Some(reason) = &outcome.reason {
            println!("  - {} steps skipped: {reason}", outcome.skipped);
        }
        for (step, difference) in &outcome.failures {
            println!("  - {step}\n      {}", difference.replace('\n', "\n      "));
        }
        if options.verbose {
            outcome.steps.iter().for_each(|step| println!("  + {step}"));
        }
    }
    match skipped {
        0 => println!("total {agree}/{total}"),
        skipped => println!("total {agree}/{total}, {skipped} skipped"),
    }
    // The embedded server must not skip steps: otherwise no server would run them.
    Ok(agree == total && (skipped == 0 || server.is_none()))
}

fn load(only: Option<&str>) -> anyhow::Result<Vec<Walk>> {
    let folder = crate::workspace_root().join("xtask/http-conformance");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .with_context(|| folder.display().to_string())?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    files.sort();
    let mut walks = Vec::new();
    for file in files {
        let name = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        if only.is_some_and(|only| !name.contains(only)) {
            continue;
        }
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        walks.push(Walk::parse(&name, &text).with_context(|| file.display().to_string())?);
    }
    anyhow::ensure!(!walks.is_empty(), "no walk in {} matches --walk", folder.display());
    Ok(walks)
}
