//! Limits the request rate of a client with a burst, as in client-go: for all its requests, or for
//! each kind of object.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use berth_apiserver::RequestInfo;
use berth_controllers::configuration::ClientLimit;
use http::{Request, Response};
use parking_lot::Mutex;
use tokio::time::Instant;
use tower::{Layer, Service};

/// A rate of requests and a burst.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Requests per second.
    pub qps: f64,
    /// Maximum number of requests at once after a pause.
    pub burst: u32,
}

impl Limit {
    /// A limit. `None` unless both numbers are above 0 and finite.
    pub fn new(qps: f64, burst: u32) -> Option<Self> {
        (qps > 0.0 && qps.is_finite() && burst > 0).then_some(Limit { qps, burst })
    }

    /// The limit in the format of the controllers' configuration. The controllers order their
    /// writes by it.
    pub fn of_controllers(self) -> ClientLimit {
        ClientLimit { qps: self.qps, burst: self.burst }
    }
}

impl From<ClientLimit> for Limit {
    fn from(limit: ClientLimit) -> Self {
        Limit { qps: limit.qps, burst: limit.burst }
    }
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?}: expected QPS/BURST, such as 50/100");
        let (qps, burst) = text.split_once('/').ok_or_else(wrong)?;
        let (qps, burst) = (qps.parse().map_err(|_| wrong())?, burst.parse().map_err(|_| wrong())?);
        Limit::new(qps, burst).ok_or_else(wrong)
    }
}

/// Part of a client's limit that events may use while it is busy. Otherwise the events of a
/// decision would delay the next decisions.
const EVENTS_PART: f64 = 0.1;
/// Events may use all of a client's limit while at least this part of its burst is left.
const IDLE_PART: f64 = 0.5;
/// Resource of events, in both of their groups.
const EVENTS: &str = "events";

/// Delays the requests of a client to keep a limit. Watches are not limited: they are rare and
/// long-lived. Clones share the state.
#[derive(Clone)]
pub struct Limiter {
    limit: Option<Limit>,
    /// True if the limit applies to each kind of object separately.
    per_kind: bool,
    /// By group and resource. Without `per_kind`, one bucket without names for all requests, and
    /// one for events.
    buckets: Arc<Mutex<BTreeMap<(String, String), Bucket>>>,
}

/// Number of requests that could be sent at once at a moment; negative if requests were waiting.
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn full(limit: Limit, now: Instant) -> Self {
        Bucket { tokens: limit.burst.into(), at: now }
    }

    /// Number of requests that may be sent now; negative if requests are waiting.
    fn tokens(&self, limit: Limit, now: Instant) -> f64 {
        let earned = now.saturating_duration_since(self.at).as_secs_f64() * limit.qps;
        (self.tokens + earned).min(limit.burst.into())
    }

    /// Takes a token. Returns the time until its request may be sent.
    fn take(&mut self, limit: Limit, now: Instant) -> Duration {
        (self.tokens, self.at) = (self.tokens(limit, now) - 1.0, now);
        Duration::from_secs_f64((-self.tokens / limit.qps).max(0.0))
    }
}

impl Limiter {
    /// Limits all requests of a client together, as `clientConnection` of Kueue's configuration
    /// does. Events have a tenth of a busy client's requests. If `limit` is `None`, it does not
    /// delay requests.
    pub fn of_client(limit: Option<Limit>) -> Self {
        Limiter { limit, per_kind: false, buckets: Arc::default() }
    }

    /// Limits the requests for each kind of object separately, as in programs that are built on
    /// controller-runtime and have no limiter of their own. If `limit` is `None`, it does not delay
    /// requests.
    pub fn per_kind(limit: Option<Limit>) -> Self {
        Limiter { limit, per_kind: true, buckets: Arc::default() }
    }

    /// Does not delay requests.
    pub fn none() -> Self {
        Self::of_client(None)
    }

    /// Reserves a place for a request. Returns the time until it may be sent.
    fn reserve(&self, group: &str, resource: &str) -> Duration {
        let Some(limit) = self.limit else { return Duration::ZERO };
        let now = Instant::now();
        let mut buckets = self.buckets.lock();
        if self.per_kind {
            return buckets.entry(key(group, resource)).or_insert_with(|| Bucket::full(limit, now)).take(limit, now);
        }
        let all = buckets.entry(key("", "")).or_insert_with(|| Bucket::full(limit, now));
        let is_idle = all.tokens(limit, now) >= f64::from(limit.burst) * IDLE_PART;
        let wait = all.take(limit, now);
        if resource != EVENTS || is_idle {
            return wait;
        }
        // Its token is taken from what later requests may use, so that the sum keeps the limit.
        let part = Limit { qps: limit.qps * EVENTS_PART, burst: 1 };
        buckets.entry(key("", EVENTS)).or_insert_with(|| Bucket::full(part, now)).take(part, now)
    }
}

fn key(group: &str, resource: &str) -> (String, String) {
    (group.to_owned(), resource.to_owned())
}

impl<S> Layer<S> for Limiter {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited { inner, limiter: self.clone() }
    }
}

/// A client's connection whose requests are limited.
#[derive(Clone)]
pub struct Limited<S> {
    inner: S,
    limiter: Limiter,
}

impl<S, B, R> Service<Request<B>> for Limited<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut TaskContext<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let wait = if self.limiter.limit.is_some() {
            let uri = request.uri();
            let info = RequestInfo::parse(request.method(), uri.path(), uri.query().unwrap_or_default());
            match info.is_resource_request && info.verb != "watch" {
                true => self.limiter.reserve(&info.api_group, &info.resource),
                false => Duration::ZERO,
            }
        } else {
            Duration::ZERO
        };
        // The inner service sends the request only when its future is first polled.
        let answer = self.inner.call(request);
        Box::pin(async move {
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            answer.await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_parsed() {
        assert_eq!("50/100".parse(), Ok(Limit { qps: 50.0, burst: 100 }));
        for wrong in ["50", "0/1", "1/0", "a/b", "-1/5", "inf/1"] {
            assert!(wrong.parse::<Limit>().unwrap_err().contains("QPS/BURST"), "{wrong}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_beyond_the_burst_wait_per_kind() {
        let limiter = Limiter::per_kind(Some(Limit { qps: 10.0, burst: 2 }));
        let waits: Vec<u128> = (0..4).map(|_| limiter.reserve("g", "a").as_millis()).collect();
        assert_eq!(waits, [0, 0, 100, 200]);
        assert_eq!(limiter.reserve("g", "b"), Duration::ZERO);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(limiter.reserve("g", "a"), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn the_kinds_of_a_client_share_its_limit_and_events_have_a_tenth_of_it_while_it_is_busy() {
        let limiter = Limiter::of_client(Some(Limit { qps: 10.0, burst: 4 }));
        let waits = |resource: &str, count: usize| -> Vec<u128> {
            (0..count).map(|_| limiter.reserve("g", resource).as_millis()).collect()
        };
        assert_eq!(waits("events", 2), [0, 0], "more than half of the burst was left");
        assert_eq!(waits("workloads", 1), [0]);
        assert_eq!(waits("jobs", 2), [0, 100], "both kinds share the burst");
        // Events no longer delay other requests for more than their part.
        assert_eq!(waits("events", 3), [0, 1000, 2000]);
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(waits("events", 2), [0, 0], "the client is idle again");
    }
}
