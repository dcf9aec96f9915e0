//! The commands of kueuectl under the same names, with the same options and columns: `berth list`,
//! `create`, `stop`, `resume`, `delete`, `version`, and those that kubectl runs.

pub mod create;
pub mod delete;
pub mod kubectl;
pub mod list;
mod output;
pub mod pods;
mod quota;
pub mod stop;
mod written;

use std::process::ExitCode;

use clap::Args;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::ListParams;

use crate::component::connect::{self, ConnectOptions};
use crate::process;

/// Options of `berth version`.
#[derive(Args)]
pub struct VersionOptions {
    #[command(flatten)]
    connect: ConnectOptions,
}

/// Labels of the Deployments of queueing controllers: Berth's, and Kueue's.
const CONTROLLERS: &str = "app.kubernetes.io/name in (berth, kueue)";

/// Prints the version of this program, and the images of the controllers of the cluster, if there
/// is one and it runs them.
pub fn version(options: &VersionOptions) -> anyhow::Result<ExitCode> {
    say!("Client Version: v{}", env!("CARGO_PKG_VERSION"));
    process::run(async {
        let Ok(config) = options.connect.config().await else { return Ok(ExitCode::SUCCESS) };
        let api: Api<Deployment> = Api::all(connect::asking(config)?);
        match api.list(&ListParams::default().labels(CONTROLLERS)).await {
            Ok(found) => {
                let specs = found.items.iter().filter_map(|it| it.spec.as_ref()?.template.spec.as_ref());
                for container in specs.flat_map(|spec| &spec.containers) {
                    say!("Controller Image: {}", container.image.as_deref().unwrap_or_default());
                }
            }
            Err(error) => eprintln!("berth: the controllers' image is not known: {}", berth_runtime::message(&error)),
        }
        Ok(ExitCode::SUCCESS)
    })
}
