//! Leader election by Lease: of several replicas one acts, the others stand by.
//!
//! The semantics are those of client-go's `leaderelection` package, so that replicas of either agree on one Lease: who
//! holds it writes `renewTime` every retry period; another may take it once it has *seen* no change for the lease's
//! duration, counted from when it looked and not by anybody's wall clock. A holder that cannot renew within the renew
//! deadline, which is shorter than the lease, stops acting before anyone else may start. Writes are guarded by
//! resourceVersion.
//!
//! Where client-go waits for the answer to one request, a request that is not answered soon is sent once more beside it, on a
//! connection of its own: a server that is slow gets the whole deadline to answer, and a connection that is dead costs a third.
//! One that stands by looks again at the moment the lease runs out, not a retry period later.

use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::Clock;

/// Replicas wait up to this much longer than the retry period between attempts, so that they do not all ask at once.
const JITTER_FACTOR: f64 = 1.2;
/// How often a request is sent that is not answered, evenly over the renew deadline.
const TRIES: u32 = 3;

/// Which Lease, in whose name, and how patiently. Durations are cluster time of the clock the elector is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderElection {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Who this replica is; written to `holderIdentity`, must differ between replicas.
    pub identity: String,
    /// How long others wait after the last renewal they have seen before they take over.
    pub lease_duration: Duration,
    /// How long the holder tries to renew before it gives up.
    pub renew_deadline: Duration,
    /// Time between attempts to acquire or renew.
    pub retry_period: Duration,
}

impl LeaderElection {
    /// What is wrong with the durations; nothing when they are fine. The rules are client-go's.
    pub fn problem(&self) -> Option<String> {
        if self.identity.is_empty() {
            return Some("the identity must not be empty".to_owned());
        }
        if self.lease_duration.as_secs() == 0 {
            return Some("the lease duration must be at least 1s: Leases count whole seconds".to_owned());
        }
        if self.retry_period.is_zero() {
            return Some("the retry period must be longer than 0s".to_owned());
        }
        if self.lease_duration <= self.renew_deadline {
            let (lease, renew) = (self.lease_duration, self.renew_deadline);
            return Some(format!("the lease duration ({lease:?}) must be longer than the renew deadline ({renew:?})"));
        }
        if self.renew_deadline <= self.retry_period.mul_f64(JITTER_FACTOR) {
            let (renew, retry) = (self.renew_deadline, self.retry_period);
            return Some(format!(
                "the renew deadline ({renew:?}) must be longer than {JITTER_FACTOR} times the retry period ({retry:?})"
            ));
        }
        None
    }
}

/// Takes part in one election.
pub struct Elector {
    api: Api<Lease>,
    clock: Clock,
    settings: LeaderElection,
    /// The Lease as it was last seen, and when a change of it was last seen.
    observed: Option<(Lease, Instant)>,
    holder: watch::Sender<String>,
}

impl Elector {
    /// An elector that has not asked yet. Settings with a [`LeaderElection::problem`] must not come here.
    pub fn new(client: Client, clock: Clock, settings: LeaderElection) -> Self {
        let api = Api::namespaced(client, &settings.namespace);
        Self { api, clock, settings, observed: None, holder: watch::Sender::new(String::new()) }
    }

    /// Who holds the Lease as far as this replica has seen; empty when nobody does.
    pub fn holder(&self) -> watch::Receiver<String> {
        self.holder.subscribe()
    }

    /// Waits until this replica is the leader.
    pub async fn acquire(&mut self) {
        let jitter = self.jitter();
        let mut said = String::new();
        loop {
            match self.attempt(self.settings.renew_deadline).await {
                Ok(true) => return,
                Ok(false) if said != *self.holder.borrow() => {
                    said = self.holder.borrow().clone();
                    tracing::info!(lease = %self.lease(), holder = said, "the lease is held by another replica");
                }
                Ok(false) => {}
                Err(error) => tracing::warn!(lease = %self.lease(), error, "the lease cannot be acquired, retrying"),
            }
            let wait = self.settings.retry_period.mul_f64(jitter);
            let ends = self.observed.as_ref().map(|(lease, seen)| self.valid_for(lease, *seen));
            // Not all replicas at the same moment.
            let ends = ends.map(|left| left + self.settings.retry_period.mul_f64(jitter - 1.0));
            self.clock.sleep(ends.filter(|left| *left < wait && !left.is_zero()).unwrap_or(wait)).await;
        }
    }

    /// Renews until that fails for the renew deadline or another replica has taken over; returns why. This replica must
    /// not act any more then.
    pub async fn hold(&mut self) -> String {
        let mut last = Instant::now();
        loop {
            self.clock.sleep(self.settings.retry_period).await;
            let deadline = self.settings.renew_deadline;
            let spent = self.clock.of_tokio(last.elapsed());
            let Some(left) = deadline.checked_sub(spent).filter(|left| !left.is_zero()) else {
                return format!("lease {} could not be renewed for {deadline:?}", self.lease());
            };
            let started = Instant::now();
            match self.attempt(left).await {
                Ok(true) => last = started,
                Ok(false) => return format!("lease {} is held by {}", self.lease(), self.holder.borrow().as_str()),
                Err(error) => tracing::warn!(lease = %self.lease(), error, "the lease cannot be renewed, retrying"),
            }
        }
    }

    /// Gives the Lease up, so that another replica need not wait for it to run out. Failing to is no harm but that wait.
    pub async fn release(&mut self) {
        let Some((lease, _)) = self.observed.take() else { return };
        if holder_of(&lease) != self.settings.identity {
            return;
        }
        let now = MicroTime(self.clock.now());
        let transitions = lease.spec.as_ref().and_then(|spec| spec.lease_transitions);
        let spec = LeaseSpec {
            holder_identity: Some(String::new()),
            // What client-go writes: the shortest lease there is.
            lease_duration_seconds: Some(1),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            lease_transitions: transitions,
            ..LeaseSpec::default()
        };
        let released = Lease { spec: Some(spec), ..lease };
        let limit = Instant::now() + self.clock.to_tokio(self.settings.renew_deadline);
        match timeout_at(limit, self.api.replace(&self.settings.name, &PostParams::default(), &released)).await {
            Ok(Ok(_)) => {
                self.holder.send_replace(String::new());
            }
            Ok(Err(error)) => tracing::warn!(lease = %self.lease(), %error, "the lease was not released"),
            Err(_) => tracing::warn!(lease = %self.lease(), "the lease was not released in time"),
        }
    }

    fn lease(&self) -> String {
        format!("{}/{}", self.settings.namespace, self.settings.name)
    }

    /// Between 1 and [`JITTER_FACTOR`], different for each identity, the same at every run.
    fn jitter(&self) -> f64 {
        let hash = self
            .settings
            .identity
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        1.0 + (JITTER_FACTOR - 1.0) * (hash >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Acquires or renews once; true when this replica holds the Lease afterwards.
    async fn attempt(&mut self, limit: Duration) -> Result<bool, String> {
        let limit = Instant::now() + self.clock.to_tokio(limit);
        match timeout_at(limit, self.acquire_or_renew()).await {
            Ok(Ok(held)) => Ok(held),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("no answer in time".to_owned()),
        }
    }

    async fn acquire_or_renew(&mut self) -> Result<bool, kube::Error> {
        // The holder need not look: a write guarded by the resourceVersion it knows finds out.
        if let Some((lease, seen)) = self.observed.clone()
            && holder_of(&lease) == self.settings.identity
            && self.is_valid(&lease, seen)
        {
            match self.write(&lease).await {
                Ok(()) => return Ok(true),
                Err(error) if crate::is_conflict(&error) || crate::is_not_found(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let Some(lease) = self.insistently(|| self.api.get_opt(&self.settings.name)).await? else {
            return self.create().await;
        };
        let seen = match self.observed.take() {
            Some((known, seen)) if known.spec == lease.spec => seen,
            _ => Instant::now(),
        };
        let holder = holder_of(&lease).to_owned();
        self.observed = Some((lease.clone(), seen));
        self.holder.send_if_modified(|known| {
            let changed = *known != holder;
            known.clone_from(&holder);
            changed
        });
        if !holder.is_empty() && holder != self.settings.identity && self.is_valid(&lease, seen) {
            return Ok(false);
        }
        match self.write(&lease).await {
            Ok(()) => Ok(true),
            // Somebody was faster; the next attempt sees who.
            Err(error) if crate::is_conflict(&error) || crate::is_not_found(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether the holder may still believe to be the leader.
    fn is_valid(&self, lease: &Lease, seen: Instant) -> bool {
        !self.valid_for(lease, seen).is_zero()
    }

    /// How long the holder may still believe so.
    fn valid_for(&self, lease: &Lease, seen: Instant) -> Duration {
        let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).unwrap_or(0);
        let duration = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        duration.saturating_sub(self.clock.of_tokio(seen.elapsed()))
    }

    /// Sends a request that does no harm when it is carried out twice, and once more when there is no answer for a while, and so
    /// on; the first that succeeds counts. Of two writes guarded by one resourceVersion the server refuses the second: the Lease
    /// was written, perhaps by this replica, which a look at it shows at once.
    async fn insistently<T, F>(&self, send: impl Fn() -> F) -> Result<T, kube::Error>
    where
        F: Future<Output = Result<T, kube::Error>>,
    {
        let pause = self.clock.to_tokio(self.settings.renew_deadline / TRIES);
        let mut sent = FuturesUnordered::from_iter([send()]);
        let mut tries = 1;
        loop {
            tokio::select! {
                biased;
                Some(answer) = sent.next() => match answer {
                    Err(error) if !sent.is_empty() && !crate::is_conflict(&error) => {
                        tracing::debug!(lease = %self.lease(), %error, "another request for the lease is under way");
                    }
                    answer => return answer,
                },
                () = tokio::time::sleep(pause), if tries < TRIES => {
                    tries += 1;
                    sent.push(send());
                }
            }
        }
    }

    async fn create(&mut self) -> Result<bool, kube::Error> {
        let metadata = ObjectMeta { name: Some(self.settings.name.clone()), ..ObjectMeta::default() };
        let lease = Lease { metadata, spec: Some(self.spec(None)) };
        match self.api.create(&PostParams::default(), &lease).await {
            Ok(made) => {
                self.took(made);
                Ok(true)
            }
            Err(error) if crate::is_already_exists(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn write(&mut self, before: &Lease) -> Result<(), kube::Error> {
        let lease = Lease { metadata: before.metadata.clone(), spec: Some(self.spec(before.spec.as_ref())) };
        let params = PostParams::default();
        let written = self.insistently(|| self.api.replace(&self.settings.name, &params, &lease)).await?;
        self.took(written);
        Ok(())
    }

    fn took(&mut self, lease: Lease) {
        self.observed = Some((lease, Instant::now()));
        if *self.holder.borrow() != self.settings.identity {
            self.holder.send_replace(self.settings.identity.clone());
        }
    }

    fn spec(&self, before: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(self.clock.now());
        let own = before.filter(|spec| spec.holder_identity.as_deref() == Some(&self.settings.identity));
        let transitions = before.map_or(0, |spec| spec.lease_transitions.unwrap_or(0));
        LeaseSpec {
            holder_identity: Some(self.settings.identity.clone()),
            lease_duration_seconds: Some(i32::try_from(self.settings.lease_duration.as_secs()).unwrap_or(i32::MAX)),
            acquire_time: own.and_then(|spec| spec.acquire_time.clone()).or_else(|| Some(now.clone())),
            renew_time: Some(now),
            // Counts changes of hands: neither the first holder nor a renewal is one.
            lease_transitions: Some(if before.is_some() && own.is_none() { transitions + 1 } else { transitions }),
            ..LeaseSpec::default()
        }
    }
}

fn holder_of(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> LeaderElection {
        LeaderElection {
            namespace: "berth-system".to_owned(),
            name: "lease".to_owned(),
            identity: "a".to_owned(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }

    #[test]
    fn durations_that_would_let_two_lead_are_refused() {
        assert_eq!(settings().problem(), None);
        let refused = |change: &dyn Fn(&mut LeaderElection)| {
            let mut settings = settings();
            change(&mut settings);
            settings.problem().expect("a problem")
        };
        assert!(refused(&|s| s.renew_deadline = Duration::from_secs(15)).contains("must be longer than the renew"));
        assert!(refused(&|s| s.retry_period = Duration::from_secs(9)).contains("1.2 times the retry period"));
        assert!(refused(&|s| s.lease_duration = Duration::from_millis(900)).contains("at least 1s"));
        assert!(refused(&|s| s.identity.clear()).contains("identity"));
    }
}
