//! Commands in the manner of other batch systems: `berth queue`, `jobs`, `nodes`, `submit`, `hold`,
//! `release`, `requeue` and `cancel`.

pub mod control;
pub mod lists;
pub mod nodes;
pub mod submit;
mod watch;

use clap::Args;
use kube::Client;

use crate::component::connect::{self, ConnectOptions};

/// Options that select a cluster and a namespace.
#[derive(Args)]
pub struct Place {
    /// The namespace. Default: the context's.
    #[arg(short, long)]
    pub namespace: Option<String>,
    #[command(flatten)]
    pub connect: ConnectOptions,
}

impl Place {
    /// A client, and the namespace.
    pub async fn open(&self) -> anyhow::Result<(Client, String)> {
        let config = self.connect.config().await?;
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        Ok((connect::asking(config)?, namespace))
    }
}
