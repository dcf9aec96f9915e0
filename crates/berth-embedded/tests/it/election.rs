//! Leader election against an API, in virtual time, with client-go's semantics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use berth_apiserver::{InProcess, UserInfo};
use berth_embedded::Embedded;
use berth_runtime::{Clock, Elector, LeaderElection};
use http::{Method, Request};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::Instant;
use tower::Service;

use crate::cluster;

const LEASE: Duration = Duration::from_secs(15);
const RETRY: Duration = Duration::from_secs(2);

fn elector(embedded: &Embedded, clock: &Clock, identity: &str) -> Elector {
    elector_of(embedded.admin_client(), clock, identity)
}

fn elector_of(client: Client, clock: &Clock, identity: &str) -> Elector {
    let settings = LeaderElection {
        namespace: "berth-system".to_owned(),
        name: "test".to_owned(),
        identity: identity.to_owned(),
        lease_duration: LEASE,
        renew_deadline: Duration::from_secs(10),
        retry_period: RETRY,
    };
    assert_eq!(settings.problem(), None);
    Elector::new(client, clock.clone(), settings)
}

fn leases(embedded: &Embedded) -> Api<Lease> {
    Api::namespaced(embedded.admin_client(), "berth-system")
}

#[tokio::test(start_paused = true)]
async fn a_replica_takes_over_when_the_lease_expires() {
    let (embedded, clock) = cluster().await;
    let mut first = elector(&embedded, &clock, "first");
    first.acquire().await;
    let mut second = elector(&embedded, &clock, "second");
    {
        // While the first replica renews the Lease, the second does not acquire it.
        let hold = first.hold();
        let wait = tokio::time::timeout(Duration::from_secs(300), second.acquire());
        tokio::select! {
            reason = hold => panic!("lost: {reason}"),
            won = wait => assert!(won.is_err(), "two leaders"),
        }
    }
    // The first replica stops renewing without releasing the Lease.
    let silent = Instant::now();
    second.acquire().await;
    let waited = silent.elapsed();
    // The second replica tries again when the Lease expires. It observed the last renewal at most
    // one retry period late.
    assert!(waited <= LEASE + RETRY.mul_f64(1.2 + 0.2), "{waited:?}");
    let spec = leases(&embedded).get("test").await.expect("the lease").spec.expect("a spec");
    assert_eq!(spec.holder_identity.as_deref(), Some("second"));
    assert_eq!((spec.lease_transitions, spec.lease_duration_seconds), (Some(1), Some(15)));
    assert!(first.hold().await.contains("is held by second"));
    embedded.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_is_taken_at_the_next_attempt() {
    let (embedded, clock) = cluster().await;
    let mut first = elector(&embedded, &clock, "first");
    first.acquire().await;
    let mut second = elector(&embedded, &clock, "second");
    let acquiring = tokio::spawn(async move {
        second.acquire().await;
        Instant::now()
    });
    clock.sleep(Duration::from_secs(1)).await;
    first.release().await;
    let released = Instant::now();
    let taken = acquiring.await.expect("acquired");
    assert!(taken - released <= RETRY.mul_f64(1.2), "{:?}", taken - released);
    embedded.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_lease_was_taken_stops() {
    let (embedded, clock) = cluster().await;
    let mut first = elector(&embedded, &clock, "first");
    let holder = first.holder();
    first.acquire().await;
    assert_eq!(*holder.borrow(), "first");
    let usurped = json!({"spec": {"holderIdentity": "other"}});
    leases(&embedded).patch("test", &PatchParams::default(), &Patch::Merge(&usurped)).await.expect("patched");
    assert!(first.hold().await.contains("is held by other"));
    assert_eq!(*holder.borrow(), "other");
    // A replica that does not hold the Lease does not release it.
    first.release().await;
    let spec = leases(&embedded).get("test").await.expect("the lease").spec.expect("a spec");
    assert_eq!(spec.holder_identity.as_deref(), Some("other"));
    embedded.stop().await;
}

/// A client on a connection on which every third write gets no response. Half of those writes take
/// effect.
fn deaf(connection: InProcess, writes: Arc<AtomicUsize>) -> Client {
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let number = if request.method() == Method::PUT { writes.fetch_add(1, Ordering::SeqCst) } else { 1 };
        let mut connection = connection.clone();
        async move {
            if number % 6 == 0 {
                std::future::pending::<()>().await;
            }
            let response = connection.call(request).await;
            if number % 6 == 3 {
                std::future::pending::<()>().await;
            }
            response
        }
    });
    Client::new(service, "default")
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_write_does_not_lose_the_lead() {
    let (embedded, clock) = cluster().await;
    let connection = embedded.server().in_process(UserInfo::master("replica"));
    let writes = Arc::new(AtomicUsize::new(0));
    let mut first = elector_of(deaf(connection, writes.clone()), &clock, "first");
    first.acquire().await;
    let mut second = elector(&embedded, &clock, "second");
    let hold = first.hold();
    let wait = tokio::time::timeout(Duration::from_secs(600), second.acquire());
    tokio::select! {
        reason = hold => panic!("lost: {reason}"),
        won = wait => assert!(won.is_err(), "two leaders"),
    }
    assert!(writes.load(Ordering::SeqCst) > 100);
    embedded.stop().await;
}

/// A client on a connection to an API server that is down from some time on.
fn down(connection: InProcess, is_down: Arc<AtomicBool>, requests: Arc<AtomicUsize>) -> Client {
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        requests.fetch_add(1, Ordering::SeqCst);
        let (mut connection, is_down) = (connection.clone(), is_down.load(Ordering::SeqCst));
        async move {
            if is_down {
                return Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
            }
            connection.call(request).await.map_err(|never| match never {})
        }
    });
    Client::new(service, "default")
}

#[tokio::test(start_paused = true)]
async fn an_expired_lease_is_tried_at_intervals_while_the_api_server_is_down() {
    let (embedded, clock) = cluster().await;
    elector(&embedded, &clock, "first").acquire().await;
    let connection = embedded.server().in_process(UserInfo::master("replica"));
    let (is_down, requests) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut second = elector_of(down(connection, is_down.clone(), requests.clone()), &clock, "second");
    let acquiring = tokio::spawn(async move { second.acquire().await });
    clock.sleep(RETRY).await;
    is_down.store(true, Ordering::SeqCst);
    clock.sleep(LEASE * 2).await;
    let before = requests.load(Ordering::SeqCst);
    clock.sleep(RETRY * 30).await;
    let tries = requests.load(Ordering::SeqCst) - before;
    assert!((20..=31).contains(&tries), "{tries} requests in 30 intervals");
    is_down.store(false, Ordering::SeqCst);
    tokio::time::timeout(RETRY * 2, acquiring).await.expect("at the next try").expect("acquired");
    embedded.stop().await;
}
