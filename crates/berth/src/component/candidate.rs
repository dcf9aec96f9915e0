//! This replica in the election: on a thread, with a runtime and connections of its own, so that the Lease's writes wait behind
//! nothing that the process does, neither requests nor thinking.

use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, anyhow};
use berth_runtime::{Clock, Elector, LeaderElection};
use kube::Config;
use tokio::sync::watch;

use super::connect;

/// Where this replica stands.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// It does not hold the Lease; after a term, why not any more.
    Follower(String),
    /// It holds the Lease.
    Leader,
}

/// What this replica wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    /// Not to lead: it is not ready to.
    Wait,
    /// To lead, for a term of this number. After one that it has lost it must have stopped acting before it wishes for the next.
    Lead(u64),
    /// To take no part any more.
    Leave,
}

/// A replica that takes part in an election.
pub struct Candidate {
    wish: watch::Sender<Wish>,
    terms: u64,
    phase: watch::Receiver<Phase>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Candidate {
    /// One that does not want to lead yet.
    pub fn new(config: Config, election: LeaderElection) -> anyhow::Result<Self> {
        let (wish, wishes) = watch::channel(Wish::Wait);
        let (phases, phase) = watch::channel(Phase::Follower(String::new()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("leader election cannot start")?;
        let thread = std::thread::Builder::new().name("leader-election".to_owned());
        let thread = thread.spawn(move || runtime.block_on(stand(config, election, wishes, phases)));
        Ok(Self { wish, terms: 0, phase, thread: Some(thread.context("leader election cannot start")?) })
    }

    /// Waits until this replica leads; it must not be acting.
    pub async fn elected(&mut self) -> anyhow::Result<()> {
        self.terms += 1;
        self.wish.send_replace(Wish::Lead(self.terms));
        let elected = self.phase.wait_for(|phase| *phase == Phase::Leader).await.is_ok();
        if elected { Ok(()) } else { Err(self.ended()) }
    }

    /// Waits until it does not any more; returns why.
    pub async fn lost(&mut self) -> String {
        let lost = |phase: &Phase| *phase != Phase::Leader;
        let phase = self.phase.wait_for(lost).await.map(|phase| phase.clone());
        match phase {
            Ok(Phase::Follower(reason)) => reason,
            Ok(Phase::Leader) => String::new(),
            Err(_) => format!("{:#}", self.ended()),
        }
    }

    /// Takes no part any more. A Lease that is held is given up, so that another replica need not wait for it to run out:
    /// this replica must have stopped acting.
    pub async fn leave(mut self) {
        self.wish.send_replace(Wish::Leave);
        // The phases end with the thread.
        while self.phase.changed().await.is_ok() {}
    }

    fn ended(&mut self) -> anyhow::Error {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => error,
            _ => anyhow!("leader election has died"),
        }
    }
}

/// Takes part until told to leave.
async fn stand(
    config: Config,
    election: LeaderElection,
    mut wishes: watch::Receiver<Wish>,
    phases: watch::Sender<Phase>,
) -> anyhow::Result<()> {
    // One that is told to come back later does so when its next attempt is due, not minutes later.
    let client = connect::asking(config)?;
    // Leases are about processes that can die, so they are counted in real time, however fast the cluster's runs.
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
        // Its controllers are given the time to stop: it tries again when they have.
        if wishes.wait_for(gone).await.is_err() {
            break;
        }
    }
    elector.release().await;
    Ok(())
}
