//! What every process that runs controllers has: a way to the cluster, a clock, leader election, health and metrics.

pub mod candidate;
pub mod election;
pub mod endpoints;
pub mod listen;

use std::pin::{Pin, pin};
use std::process::ExitCode;
use std::sync::Arc;

pub use berth_process::{connect, limit};
use berth_runtime::Manager;
use clap::Args;
use tokio::sync::watch;

use crate::process;
use crate::time::TimeOptions;
use candidate::Candidate;
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

    /// Waits until it does not.
    pub async fn ended(&self) {
        let _ = self.0.subscribe().wait_for(|leads| !*leads).await;
    }

    /// The answer in the Prometheus text format, under client-go's name. `name` is the component's.
    pub fn text(&self, name: &str) -> String {
        const NAME: &str = "leader_election_master_status";
        let leads = u8::from(self.is());
        format!("# HELP {NAME} Whether this replica leads\n# TYPE {NAME} gauge\n{NAME}{{name=\"{name}\"}} {leads}\n")
    }
}

/// Installs controllers in a manager; done anew for every term of leading.
pub type Install = Box<dyn Fn(&mut Manager)>;

/// Runs a manager's controllers, which `install` has installed in it, until Ctrl-C or SIGTERM: while this replica is the leader if
/// it is a candidate. Caches are filled before it is one, and followed while another one leads.
///
/// A leader that loses its Lease stops acting, and nothing else: what it serves goes on, and it stands by like any other replica,
/// with new controllers over the caches it has.
pub async fn run(
    mut manager: Manager,
    mut candidate: Option<Candidate>,
    leading: &Leading,
    install: Install,
) -> anyhow::Result<ExitCode> {
    let outcome = {
        let mut signal = pin!(process::signal());
        terms(&mut manager, candidate.as_mut(), leading, &install, signal.as_mut()).await
    };
    leading.0.send_replace(false);
    // The controllers have stopped; only now may another replica start at once.
    if let Some(candidate) = candidate {
        candidate.leave().await;
    }
    eprintln!("berth: {}, stopping", outcome?);
    Ok(ExitCode::SUCCESS)
}

/// Term after term of leading, until there is a signal; returns that.
async fn terms(
    manager: &mut Manager,
    mut candidate: Option<&mut Candidate>,
    leading: &Leading,
    install: &Install,
    mut signal: Pin<&mut impl Future<Output = anyhow::Result<&'static str>>>,
) -> anyhow::Result<&'static str> {
    tokio::select! {
        biased;
        signal = &mut signal => return signal,
        filled = manager.fill() => filled?,
    }
    loop {
        let elected = async {
            match &mut candidate {
                Some(candidate) => candidate.elected().await,
                None => Ok(()),
            }
        };
        tokio::select! {
            biased;
            signal = &mut signal => return signal,
            elected = elected => elected?,
            died = manager.follow() => return Err(died.into()),
        }
        if candidate.is_some() {
            tracing::info!("this replica leads");
        }
        leading.0.send_replace(true);
        let (mut stopped, mut reason) = (None, String::new());
        let ends = async {
            let lost = async {
                match &mut candidate {
                    Some(candidate) => candidate.lost().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                signal = &mut signal => stopped = Some(signal),
                lost = lost => reason = lost,
            }
        };
        manager.act(ends).await?;
        leading.0.send_replace(false);
        if let Some(signal) = stopped {
            return signal;
        }
        tracing::warn!("this replica does not lead any more: {reason}; it stands by");
        manager.renew(|manager| install(manager)).await;
    }
}
