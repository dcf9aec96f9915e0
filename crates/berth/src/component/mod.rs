//! Common parts of every process that runs controllers: a client, a clock, leader election, health
//! checks and metrics.

pub mod candidate;
pub mod certificate;
pub mod clients;
pub mod election;
pub mod endpoints;
pub mod guard;

use std::pin::{Pin, pin};
use std::process::ExitCode;
use std::sync::Arc;

use berth_apimachinery::exposition::{Exposition, Family};
pub use berth_process::{connect, limit, listen};
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

/// State of this replica: true while it acts. Clones share the state.
#[derive(Clone, Default)]
pub struct Leading(Arc<watch::Sender<bool>>);

impl Leading {
    /// True if this replica acts now.
    pub fn is(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until this replica acts.
    pub async fn begun(&self) {
        // The sender is part of `self`, so it is not dropped.
        let _ = self.0.subscribe().wait_for(|leads| *leads).await;
    }

    /// Waits until this replica does not act.
    pub async fn ended(&self) {
        let _ = self.0.subscribe().wait_for(|leads| !*leads).await;
    }

    /// Writes the state as a metric, under client-go's name. `name` is the component's.
    pub fn write(&self, name: &str, exposition: &mut Exposition) {
        const STATUS: Family =
            Family::gauge("leader_election_master_status", "1 if this replica is the leader, 0 otherwise");
        exposition.add(&STATUS, &[("name", name)], f64::from(u8::from(self.is())));
    }
}

/// Installs controllers in a manager. Called once per term of leadership.
pub type Install = Box<dyn Fn(&mut Manager)>;

/// Runs a manager's controllers, which `install` has installed, until Ctrl-C or SIGTERM. With
/// leader election they run while this replica leads. Caches are filled before the election, and
/// updated while another replica leads.
///
/// A leader that loses its Lease stops its controllers and continues to serve. It then waits like
/// any other replica, and builds new controllers over its caches for the next term.
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
    // The controllers have stopped: another replica may start now.
    if let Some(candidate) = candidate {
        candidate.leave().await;
    }
    eprintln!("berth: {}, stopping", outcome?);
    Ok(ExitCode::SUCCESS)
}

/// Runs one term after another until a signal arrives. Returns the signal.
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
        tracing::warn!("this replica no longer leads: {reason}; it stands by");
        manager.renew(|manager| install(manager)).await;
    }
}
