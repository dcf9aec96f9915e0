//! Runs the operators alone, against the cluster of the kubeconfig: without the controllers of
//! built-in kinds, as the test environments of the operators' own projects have it.
//!
//! `cargo run -p berth-operators --example operators -- leader-worker-sets trainer`
//!
//! `app-wrappers=FILE` names AppWrapper's configuration file. `mpi=NAME` and `training=NAME` name
//! the scheduler that starts all pods of a job together.

use std::error::Error;

use berth_operators::appwrapper::{self, config::ConfigurationFile};
use berth_operators::{leader_worker_set, mpi, ray, trainer, training};
use berth_runtime::{Clock, Manager};
use kube::Client;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::try_default().await?;
    let mut manager = Manager::new(client, Clock::system());
    for argument in std::env::args().skip(1) {
        let (operator, value) = argument.split_once('=').map_or((&*argument, None), |(name, it)| (name, Some(it)));
        match (operator, value) {
            ("app-wrappers", file) => appwrapper::install(&mut manager, &app_wrappers(file)?),
            ("leader-worker-sets", None) => leader_worker_set::install(&mut manager),
            ("mpi", scheduler) => mpi::install(&mut manager, scheduler),
            ("ray", None) => ray::install(&mut manager),
            ("trainer", None) => trainer::install(&mut manager),
            ("training", scheduler) => training::install(&mut manager, scheduler),
            _ => {
                let known =
                    "app-wrappers[=FILE], leader-worker-sets, mpi[=SCHEDULER], ray, trainer, training[=SCHEDULER]";
                return Err(format!("unknown operator {argument:?}; known are {known}").into());
            }
        }
    }
    manager.run(std::future::pending()).await?;
    Ok(())
}

fn app_wrappers(file: Option<&str>) -> Result<appwrapper::Options, Box<dyn Error>> {
    let Some(file) = file else { return Ok(appwrapper::Options::default()) };
    let value = serde_saphyr::from_str(&std::fs::read_to_string(file)?)?;
    Ok(appwrapper::Options::new(ConfigurationFile::read(value)?.appwrapper))
}
