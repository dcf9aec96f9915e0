//! Leader election by Lease: one of several replicas leads, and the others stand by.
//!
//! The semantics are those of client-go's `leaderelection` package, so replicas of both kinds can
//! share one Lease. The holder writes `renewTime` every retry period. Another replica may take the
//! Lease over once it has *seen* no change of it for the lease duration, measured on that replica's
//! own monotonic clock. A holder that cannot renew within the renew deadline, which is shorter than
//! the lease duration, stops before another replica may start. Writes are guarded by
//! resourceVersion.
//!
//! There are two differences. client-go waits for the response to one request. Here, a request
//! without a response is sent again on another connection while the first one is still waiting. A
//! slow server then has the whole deadline to respond, and a dead connection costs only a third of
//! it. The second difference: a standby replica tries again at the moment when the lease expires,
//! not a retry period later.

use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::Clock;

/// Maximum factor on the retry period between attempts, so that replicas do not send their requests
/// at once.
const JITTER_FACTOR: f64 = 1.2;
/// Number of times that an unanswered request is sent, evenly over the renew deadline.
const TRIES: u32 = 3;

/// Settings of an election. Durations are in the cluster time of the elector's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderElection {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Identity of this replica for `holderIdentity`; must differ between replicas.
    pub identity: String,
    /// Time without a seen renewal after which another replica may take over.
    pub lease_duration: Duration,
    /// How long the holder tries to renew before it gives up.
    pub renew_deadline: Duration,
    /// Time between attempts to acquire or renew.
    pub retry_period: Duration,
}

impl LeaderElection {
    /// Returns the first invalid setting, or `None` if all are valid. The rules are those of
    /// client-go.
    pub fn problem(&self) -> Option<String> {
        if self.identity.is_empty() {
            return Some("the identity must not be empty".to_owned());
        }
        if self.lease_duration.as_secs() == 0 {
            return Some("the lease duration must be at least 1s: Leases use whole seconds".to_owned());
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

/// One candidate in an election.
pub struct Elector {
    api: Api<Lease>,
    clock: Clock,
    settings: LeaderElection,
    /// The last seen Lease, and the time of its last seen change.
    observed: Option<(Lease, Instant)>,
    holder: watch::Sender<String>,
}

impl Elector {
    /// Creates an elector. The settings must have no [`LeaderElection::problem`].
    pub fn new(client: Client, clock: Clock, settings: LeaderElection) -> Self {
        let api = Api::namespaced(client, &settings.namespace);
        Self { api, clock, settings, observed: None, holder: watch::Sender::new(String::new()) }
    }

    /// Returns a receiver of the last seen holder of the Lease. The value is empty without a
    /// holder.
    pub fn holder(&self) -> watch::Receiver<String> {
        self.holder.subscribe()
    }

    /// Waits until this replica is the leader.
    pub async fn acquire(&mut self) {
        let jitter = self.jitter();
        let mut logged = String::new();
        loop {
            match self.attempt(self.settings.renew_deadline).await {
                Ok(true) => return,
                Ok(false) if logged != *self.holder.borrow() => {
                    logged = self.holder.borrow().clone();
                    tracing::info!(lease = %self.lease(), holder = logged, "the lease is held by another replica");
                }
                Ok(false) => {}
                Err(error) => tracing::warn!(lease = %self.lease(), error, "the lease cannot be acquired, retrying"),
            }
            let wait = self.settings.retry_period.mul_f64(jitter);
            // An expired Lease is tried at intervals: the API server may not respond.
            let expires_in = self.observed.as_ref().map(|(lease, seen)| self.valid_for(lease, *seen));
            let expires_in = expires_in.filter(|left| !left.is_zero());
            // Add jitter, so that not all replicas try at the same moment.
            let expires_in = expires_in.map(|left| left + self.settings.retry_period.mul_f64(jitter - 1.0));
            self.clock.sleep(expires_in.filter(|left| *left < wait).unwrap_or(wait)).await;
        }
    }

    /// Renews the Lease until renewals have failed for the renew deadline, or another replica has
    /// taken the Lease over. Returns the reason. This replica must then stop its controllers.
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

    /// Releases the Lease, so that another replica need not wait until it expires. If the release
    /// fails, that wait is the only consequence.
    pub async fn release(&mut self) {
        let Some((lease, _)) = self.observed.take() else { return };
        if holder_of(&lease) != self.settings.identity {
            return;
        }
        let now = MicroTime(self.clock.now());
        let transitions = lease.spec.as_ref().and_then(|spec| spec.lease_transitions);
        let spec = LeaseSpec {
            holder_identity: Some(String::new()),
            // As in client-go: the shortest lease duration.
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
            Ok(Err(error)) => tracing::warn!(lease = %self.lease(), %error, "cannot release the lease"),
            Err(_) => tracing::warn!(lease = %self.lease(), "cannot release the lease before the deadline"),
        }
    }

    fn lease(&self) -> String {
        format!("{}/{}", self.settings.namespace, self.settings.name)
    }

    /// Returns a factor from 1 to [`JITTER_FACTOR`], which depends on the identity only.
    fn jitter(&self) -> f64 {
        let hash = self
            .settings
            .identity
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        1.0 + (JITTER_FACTOR - 1.0) * (hash >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Tries once to acquire or renew the Lease. Returns true if this replica holds it afterwards.
    async fn attempt(&mut self, limit: Duration) -> Result<bool, String> {
        let limit = Instant::now() + self.clock.to_tokio(limit);
        match timeout_at(limit, self.acquire_or_renew()).await {
            Ok(Ok(held)) => Ok(held),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("no response before the deadline".to_owned()),
        }
    }

    async fn acquire_or_renew(&mut self) -> Result<bool, kube::Error> {
        // The holder need not read the Lease first: if it has changed, the guarded write is a
        // conflict.
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
        let Some(lease) = self.send_repeatedly(|| self.api.get_opt(&self.settings.name)).await? else {
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
            // Another replica was faster. The next attempt reads the holder.
            Err(error) if crate::is_conflict(&error) || crate::is_not_found(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// True if the holder may still lead.
    fn is_valid(&self, lease: &Lease, seen: Instant) -> bool {
        !self.valid_for(lease, seen).is_zero()
    }

    /// Returns the time for which the holder may still lead.
    fn valid_for(&self, lease: &Lease, seen: Instant) -> Duration {
        let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).unwrap_or(0);
        let duration = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        duration.saturating_sub(self.clock.of_tokio(seen.elapsed()))
    }

    /// Sends an idempotent request, and sends it again after each pause without a response. Returns
    /// the first success. If two writes are guarded by the same resourceVersion, the server rejects
    /// the second. The Lease was then written, perhaps by this replica, and the caller reads it
    /// again.
    async fn send_repeatedly<T, F>(&self, send: impl Fn() -> F) -> Result<T, kube::Error>
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
                        tracing::debug!(lease = %self.lease(), %error, "a request for the lease failed while another is in progress");
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

    /// Creates the Lease. Returns false if another replica was faster.
    async fn create(&mut self) -> Result<bool, kube::Error> {
        let metadata = ObjectMeta { name: Some(self.settings.name.clone()), ..ObjectMeta::default() };
        let lease = Lease { metadata, spec: Some(self.spec(None)) };
        match self.api.create(&PostParams::default(), &lease).await {
            Ok(created) => {
                self.set_held(created);
                Ok(true)
            }
            Err(error) if crate::is_already_exists(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes the Lease with this replica as its holder, guarded by its resourceVersion.
    async fn write(&mut self, before: &Lease) -> Result<(), kube::Error> {
        let lease = Lease { metadata: before.metadata.clone(), spec: Some(self.spec(before.spec.as_ref())) };
        let params = PostParams::default();
        let written = self.send_repeatedly(|| self.api.replace(&self.settings.name, &params, &lease)).await?;
        self.set_held(written);
        Ok(())
    }

    /// Records a Lease that this replica has just written.
    fn set_held(&mut self, lease: Lease) {
        self.observed = Some((lease, Instant::now()));
        if *self.holder.borrow() != self.settings.identity {
            self.holder.send_replace(self.settings.identity.clone());
        }
    }

    /// Returns the spec with which this replica acquires or renews the Lease.
    fn spec(&self, before: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(self.clock.now());
        let own = before.filter(|spec| spec.holder_identity.as_deref() == Some(&self.settings.identity));
        let transitions = before.map_or(0, |spec| spec.lease_transitions.unwrap_or(0));
        LeaseSpec {
            holder_identity: Some(self.settings.identity.clone()),
            lease_duration_seconds: Some(i32::try_from(self.settings.lease_duration.as_secs()).unwrap_or(i32::MAX)),
            acquire_time: own.and_then(|spec| spec.acquire_time.clone()).or_else(|| Some(now.clone())),
            renew_time: Some(now),
            // Counts changes of the holder: neither the first holder nor a renewal is one.
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
    fn invalid_settings_are_rejected() {
        assert_eq!(settings().problem(), None);
        let problem = |change: &dyn Fn(&mut LeaderElection)| {
            let mut settings = settings();
            change(&mut settings);
            settings.problem().expect("a problem")
        };
        assert!(problem(&|s| s.renew_deadline = Duration::from_secs(15)).contains("must be longer than the renew"));
        assert!(problem(&|s| s.retry_period = Duration::from_secs(9)).contains("1.2 times the retry period"));
        assert!(problem(&|s| s.lease_duration = Duration::from_millis(900)).contains("at least 1s"));
        assert!(problem(&|s| s.identity.clear()).contains("identity"));
    }
}
