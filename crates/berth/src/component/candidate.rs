//! This replica's part in the leader election. It has its own thread, runtime and connections, so
//! that renewals of the Lease do not wait behind requests or computation of the process.

use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, anyhow};
use berth_runtime::{Clock, Elector, LeaderElection};
use kube::Config;
use tokio::sync::watch;

use super::connect;

/// Phase of this replica.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// It does not hold the Lease. After a term, the reason why it was lost.
    Follower(String),
    /// It holds the Lease.
    Leader,
}

/// Intended state of this replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    /// Not to lead: the replica is not ready.
    Wait,
    /// To lead, for the term of this number. After a lost term, the replica must stop acting before
    /// it requests the next.
    Lead(u64),
    /// To leave the election.
    Leave,
}

/// A replica in an election.
pub struct Candidate {
    wish: watch::Sender<Wish>,
    terms: u64,
    phase: watch::Receiver<Phase>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Candidate {
    /// A replica that does not request leadership yet.
    pub fn new(config: Config, election: LeaderElection) -> anyhow::Result<Self> {
        let (wish, wishes) = watch::channel(Wish::Wait);
        let (phases, phase) = watch::channel(Phase::Follower(String::new()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("leader election cannot start")?;
        let thread = std::thread::Builder::new().name("leader-election".to_owned());
        let thread = thread.spawn(move || runtime.block_on(stand(config, election, wishes, phases)));
        Ok(Self { wish, terms: 0, phase, thread: Some(thread.context("leader election cannot start")?) })
    }

    /// Waits until this replica leads. It must not act before.
    pub async fn elected(&mut self) -> anyhow::Result<()> {
        self.terms += 1;
        self.wish.send_replace(Wish::Lead(self.terms));
        let elected = self.phase.wait_for(|phase| *phase == Phase::Leader).await.is_ok();
        if elected { Ok(()) } else { Err(self.ended()) }
    }

    /// Waits until this replica no longer leads. Returns the reason.
    pub async fn lost(&mut self) -> String {
        let lost = |phase: &Phase| *phase != Phase::Leader;
        let phase = self.phase.wait_for(lost).await.map(|phase| phase.clone());
        match phase {
            Ok(Phase::Follower(reason)) => reason,
            Ok(Phase::Leader) => String::new(),
            Err(_) => format!("{:#}", self.ended()),
        }
    }

    /// Leaves the election. A held Lease is released, so that another replica need not wait until
    /// it expires. This replica must have stopped acting.
    pub async fn leave(mut self) {
        self.wish.send_replace(Wish::Leave);
        // The phases end with the thread.
        while self.phase.changed().await.is_ok() {}
    }

    fn ended(&mut self) -> anyhow::Error {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => error,
            _ => anyhow!("the thread of the leader election has ended unexpectedly"),
        }
    }
}

/// Takes part in the election until the replica intends to leave.
async fn stand(
    config: Config,
    election: LeaderElection,
    mut wishes: watch::Receiver<Wish>,
    phases: watch::Sender<Phase>,
) -> anyhow::Result<()> {
    // A response with Retry-After is retried at the next regular attempt, and not minutes later.
    let client = connect::asking(config)?;
    // A Lease protects against processes that die, so it is measured in real time, regardless of
    // the speed of the cluster's clock.
    let mut elector = Elector::new(client, Clock::system(), election);
    let phases = Arc::new(phases);
    loop {
        let Ok(wish) = wishes.wait_for(|wish| *wish != Wish::Wait).await.map(|wish| *wish) else { break };
        if wish == Wish::Leave {
            break;
        }
        let gone = |now: &Wish| *now != wish;
        tokio::select! {
            biased;
            _ = wishes.wait_for(gone) => continue,
            () = elector.acquire() => {}
        }
        phases.send_replace(Phase::Leader);
        let lost = tokio::select! {
            biased;
            _ = wishes.wait_for(gone) => continue,
            reason = elector.hold() => reason,
        };
        phases.send_replace(Phase::Follower(lost));
        // The controllers of the lost term stop first. The next attempt follows when they have
        // stopped.
        if wishes.wait_for(gone).await.is_err() {
            break;
        }
    }
    elector.release().await;
    Ok(())
}
