//! `berth dashboard`: the web pages, served on this machine with the permissions of a kubeconfig,
//! as `kubectl proxy` serves the API.

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Context;
use berth_dashboard::Hosts;
use berth_runtime::Clock;
use clap::Args;
use tokio::net::TcpListener;

use crate::component::connect::{self, ConnectOptions};
use crate::page::Pages;
use crate::page::readers::Access;
use crate::process;

/// Options of `berth dashboard`.
#[derive(Args)]
pub struct Options {
    /// Address to serve on. Every client that reaches it sees what the kubeconfig's user may read.
    /// Port 0 selects a free port.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Host name of requests that the dashboard accepts in addition to localhost and IP addresses,
    /// such as the name of a proxy. May be repeated.
    #[arg(long = "host", value_name = "NAME")]
    hosts: Vec<String>,
    #[command(flatten)]
    connect: ConnectOptions,
}

/// Serves until a signal stops it.
pub fn main(options: &Options) -> anyhow::Result<ExitCode> {
    process::run(serve(options))
}

async fn serve(options: &Options) -> anyhow::Result<ExitCode> {
    let config = options.connect.config().await?;
    let cluster = config.cluster_url.to_string();
    let client = connect::asking(config)?;
    let listener = TcpListener::bind(options.listen)
        .await
        .with_context(|| format!("--listen {}: cannot listen on this address; choose another one", options.listen))?;
    let address = listener.local_addr().context("--listen")?;
    let hosts = Hosts { beyond_loopback: !address.ip().is_loopback(), names: options.hosts.clone() };
    if hosts.beyond_loopback {
        tracing::warn!("{address}: every client that reaches this address sees what you may read");
    }
    let pages = Pages { access: Access::Everyone(client), hosts, clock: Clock::system() };
    say!("Dashboard of {cluster} on http://{address}");
    tokio::select! {
        () = pages.serve(listener, None) => {}
        signal = process::signal() => drop(signal?),
    }
    Ok(ExitCode::SUCCESS)
}
