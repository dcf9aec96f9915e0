//! What every process that runs controllers has: a way to the cluster, a clock, leader election, health and metrics.

pub mod connect;
pub mod election;
pub mod endpoints;
pub mod limit;
pub mod listen;

use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;

use berth_runtime::{Clock, Elector, LeaderElection, Manager};
use clap::Args;
use kube::Client;
use tokio::sync::{oneshot, watch};

use crate::process;
use crate::time::TimeOptions;
use connect::ConnectOptions;
use election::ElectionOptions;
use endpoints::EndpointOptions;

/// Options of every such process.
#[derive(Args)]
pub struct ComponentOptions {
    #[command(flatten)]
    pub connect: ConnectOptions,
    #[command(flatten)]
    pub election: ElectionOptions,
    #[command(flatten)]
    pub endpoints: EndpointOptions,
    #[command(flatten)]
    pub time: TimeOptions,
}

/// Whether this replica acts; clones share the answer.
#[derive(Clone, Default)]
pub struct Leading(Arc<watch::Sender<bool>>);

impl Leading {
    /// Whether it does now.
    pub fn is(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until it does.
    pub async fn begun(&self) {
        // The sender is this very one: it cannot be gone.
        let _ = self.0.subscribe().wait_for(|leads| *leads).await;
    }

    /// The answer in the Prometheus text format, under client-go's name. `name` is the component's.
    pub fn text(&self, name: &str) -> String {
        const NAME: &str = "leader_election_master_status";
        let leads = u8::from(self.is());
        format!("# HELP {NAME} Whether this replica leads\n# TYPE {NAME} gauge\n{NAME}{{name=\"{name}\"}} {leads}\n")
    }
}

/// Runs a manager until Ctrl-C or SIGTERM, while this replica is the leader if there is an election. Caches are filled
/// while another one leads.
///
/// The exit code is a failure when leadership is lost: a fresh process, started by whoever looks after this one, stands
/// by again with nothing left over.
pub async fn run(
    manager: Manager,
    client: Client,
    election: Option<LeaderElection>,
    leading: &Leading,
) -> anyhow::Result<ExitCode> {
    let (start, started) = oneshot::channel::<()>();
    let elected = async move {
        if started.await.is_err() {
            // The election ended without this replica winning; what ended it is reported there.
            std::future::pending::<()>().await;
        }
    };
    // Leases are about processes that can die, so they are counted in real time, however fast the cluster's runs.
    let mut elector = election.map(|election| Elector::new(client, Clock::system(), election));
    let outcome = {
        let mut managed = pin!(manager.run_when(elected, std::future::pending()));
        let mut election = pin!(lead(elector.as_mut(), start, leading));
        tokio::select! {
            biased;
            signal = process::signal() => {
                eprintln!("berth: {}, stopping", signal?);
                Ok(ExitCode::SUCCESS)
            }
            reason = &mut election => {
                eprintln!("berth: no longer the leader: {reason}");
                Ok(ExitCode::FAILURE)
            }
            ended = &mut managed => Err(match ended {
                Ok(()) => anyhow::anyhow!("the controllers stopped early"),
                Err(error) => error.into(),
            }),
        }
    };
    // The controllers have stopped; only now may another replica start at once.
    if let Some(elector) = &mut elector {
        elector.release().await;
    }
    outcome
}

/// Lets the controllers start once this replica leads; returns why it no longer does.
async fn lead(elector: Option<&mut Elector>, start: oneshot::Sender<()>, leading: &Leading) -> String {
    // Nobody listens when the manager has ended, and that is what is reported then.
    let act = || {
        leading.0.send_replace(true);
        let _ = start.send(());
    };
    let Some(elector) = elector else {
        act();
        return std::future::pending().await;
    };
    elector.acquire().await;
    tracing::info!("this replica leads");
    act();
    let reason = elector.hold().await;
    leading.0.send_replace(false);
    reason
}
