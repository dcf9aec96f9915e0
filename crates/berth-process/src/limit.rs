//! Limits the request rate of a client for each kind of object, with a burst, as in client-go.

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

/// Delays the requests of a client to keep a limit. The limit applies to each kind of object
/// separately, as in controllers built on controller-runtime. Watches are not limited: they are
/// rare and long-lived. Clones share the state.
#[derive(Clone)]
pub struct Limiter {
    limit: Option<Limit>,
    kinds: Arc<Mutex<BTreeMap<(String, String), Bucket>>>,
}

/// Number of requests that may be sent at once; negative if requests are waiting.
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Limiter {
    /// A limiter. If `limit` is `None`, it does not delay requests.
    pub fn new(limit: Option<Limit>) -> Self {
        Limiter { limit, kinds: Arc::default() }
    }

    /// Reserves a place for a request. Returns the time until it may be sent.
    fn reserve(&self, group: &str, resource: &str) -> Duration {
        let Some(limit) = self.limit else { return Duration::ZERO };
        let now = Instant::now();
        let burst = f64::from(limit.burst);
        let mut kinds = self.kinds.lock();
        let key = (group.to_owned(), resource.to_owned());
        let bucket = kinds.entry(key).or_insert(Bucket { tokens: burst, at: now });
        let earned = now.saturating_duration_since(bucket.at).as_secs_f64() * limit.qps;
        bucket.tokens = (bucket.tokens + earned).min(burst) - 1.0;
        bucket.at = now;
        Duration::from_secs_f64((-bucket.tokens / limit.qps).max(0.0))
    }
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
        let limiter = Limiter::new(Some(Limit { qps: 10.0, burst: 2 }));
        let waits: Vec<u128> = (0..4).map(|_| limiter.reserve("g", "a").as_millis()).collect();
        assert_eq!(waits, [0, 0, 100, 200]);
        assert_eq!(limiter.reserve("g", "b"), Duration::ZERO);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(limiter.reserve("g", "a"), Duration::ZERO);
    }
}
