//! The pages over an API with hostile content, and with hostile requests.

use std::convert::Infallible;

use berth_runtime::Clock;
use http::{Method, Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use crate::{ask, dashboard, get};

const HOSTILE: &str = "\"><script>alert('x')</script><img src=x onerror=alert(1)>";

/// A client of an API whose responses come from a function.
pub fn client(answer: impl Fn(&str) -> Value + Clone + Send + Sync + 'static) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let value = answer(request.uri().path());
        let code = value["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(200);
        async move {
            let body = Body::from(value.to_string().into_bytes());
            let response = Response::builder().status(code).header("Content-Type", "application/json");
            let response = response.header("Date", "Mon, 05 Jan 2026 09:00:00 GMT").body(body);
            Ok::<_, Infallible>(response.expect("a response"))
        }
    });
    Client::new(service, "default")
}

fn list(items: Vec<Value>) -> Value {
    json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "List", "metadata": {}, "items": items})
}

pub fn refusal(code: u16, message: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "message": message,
        "reason": "Whatever", "code": code})
}

pub fn clock() -> Clock {
    Clock::scaled("2026-01-05T09:00:00Z".parse().expect("a timestamp"), 1.0)
}

fn condition(name: &str) -> Value {
    json!({"type": name, "status": "False", "reason": HOSTILE, "message": HOSTILE,
        "lastTransitionTime": "2026-01-05T08:00:00Z"})
}

fn hostile_queue() -> Value {
    json!({"metadata": {"name": HOSTILE}, "spec": {"cohortName": HOSTILE, "resourceGroups": [
        {"coveredResources": [HOSTILE], "flavors": [{"name": HOSTILE, "resources": [
            {"name": HOSTILE, "nominalQuota": HOSTILE, "borrowingLimit": "1"}]}]}]},
        "status": {"conditions": [condition("Active")], "pendingWorkloads": 1, "flavorsReservation": [
            {"name": HOSTILE, "resources": [{"name": HOSTILE, "total": "-5", "borrowed": HOSTILE}]}]}})
}

fn hostile_workload() -> Value {
    let owner = json!({"apiVersion": "v1", "kind": HOSTILE, "name": HOSTILE, "uid": "u", "controller": true});
    json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
        "metadata": {"name": HOSTILE, "namespace": HOSTILE, "ownerReferences": [owner]},
        "spec": {"queueName": HOSTILE, "podSets": [{"name": HOSTILE, "count": 1, "template": {"spec": {"containers": []}}}],
            "priority": 1, "priorityClassRef": {"group": "kueue.x-k8s.io", "kind": "x", "name": HOSTILE}},
        "status": {"conditions": [condition("QuotaReserved"), condition(HOSTILE)],
            "admission": {"clusterQueue": "a", "podSetAssignments": [
                {"name": HOSTILE, "flavors": {HOSTILE: HOSTILE}, "resourceUsage": {HOSTILE: HOSTILE}, "count": 1}]},
            "admissionChecks": [{"name": HOSTILE, "state": "Pending", "message": HOSTILE,
                "lastTransitionTime": "2026-01-05T08:00:00Z"}]}})
}

fn hostile_explanation() -> Value {
    let name = json!({"namespace": HOSTILE, "name": HOSTILE});
    let topology = json!({"topology": HOSTILE, "sliceSize": 2, "needed": 3, "fits": 1, "nodes": 2,
        "layers": [{"level": HOSTILE}], "levels": [{"level": HOSTILE}], "excluded": [{"nodes": 1, "reason": HOSTILE}]});
    let finding = json!({"message": HOSTILE, "topology": topology,
        "quota": {"resource": HOSTILE, "asked": HOSTILE, "available": HOSTILE, "shortAt": HOSTILE,
            "preemptionForbiddenBy": HOSTILE}});
    let outlook = json!({"mode": HOSTILE, "reason": HOSTILE, "message": HOSTILE,
        "podSets": [{"name": HOSTILE, "findings": [finding], "flavors": [
            {"flavor": HOSTILE, "mode": HOSTILE, "preemptionMode": HOSTILE, "findings": [finding]}]}],
        "shortages": [{"podSet": HOSTILE, "flavor": HOSTILE, "resource": HOSTILE, "asked": HOSTILE, "available": HOSTILE,
            "shortAt": HOSTILE, "levels": [{"name": HOSTILE, "kind": HOSTILE, "nominal": HOSTILE, "inUse": HOSTILE}],
            "holders": [{"workload": name, "clusterQueue": HOSTILE, "amount": HOSTILE, "preemptible": HOSTILE,
                "why": HOSTILE}],
            "holdersWithheld": [{"clusterQueue": HOSTILE, "workloads": 1, "amount": HOSTILE, "preemptible": HOSTILE,
                "why": HOSTILE}]}],
        "victims": [{"workload": name, "reason": HOSTILE}],
        "victimsWithheld": [{"reason": HOSTILE, "workloads": 1}], "unreadyWithheld": 1,
        "victimSearches": [{"flavor": HOSTILE, "resource": HOSTILE, "outcome": HOSTILE, "message": HOSTILE,
            "candidates": [{"workload": name, "clusterQueue": HOSTILE, "fate": HOSTILE, "message": HOSTILE}],
            "candidatesWithheld": [{"clusterQueue": HOSTILE, "workloads": 1, "fate": HOSTILE, "message": HOSTILE}]}]});
    let standing = json!({"state": "Waiting", "priority": 1, "ahead": [name], "positionInClusterQueue": 1});
    json!({"apiVersion": "explain.berth.dev/v1alpha1", "kind": "WorkloadExplanation", "metadata": name,
        "job": {"kind": HOSTILE, "name": HOSTILE}, "queue": HOSTILE, "clusterQueue": HOSTILE, "queueInactive": HOSTILE,
        "standing": standing, "outlook": outlook, "text": HOSTILE, "withheld": {"reason": HOSTILE, "message": HOSTILE},
        "variants": [{"name": HOSTILE, "flavor": HOSTILE, "standing": {"state": "NotQueued", "reason": HOSTILE},
            "outlook": outlook}]})
}

fn hostile_api(path: &str) -> Value {
    let pending = json!({"metadata": {"name": HOSTILE, "namespace": HOSTILE, "ownerReferences": [
        {"apiVersion": "v1", "kind": HOSTILE, "name": HOSTILE, "uid": "u"}]}, "localQueueName": HOSTILE});
    match path {
        "/apis/kueue.x-k8s.io/v1beta2/clusterqueues" => list(vec![hostile_queue()]),
        "/apis/kueue.x-k8s.io/v1beta2/cohorts" => list(vec![json!({"metadata": {"name": HOSTILE}})]),
        "/apis/kueue.x-k8s.io/v1beta2/clusterqueues/a" => hostile_queue(),
        it if it.ends_with("/pendingworkloads") => json!({"items": [pending]}),
        it if it.ends_with("/holders") => json!({"total": 2, "withheld": {"reason": HOSTILE, "message": HOSTILE,
            "workloads": 1, "holds": [{"flavor": HOSTILE, "resource": HOSTILE, "amount": HOSTILE}]},
            "items": [{"metadata": pending["metadata"],
            "localQueueName": HOSTILE, "evicted": HOSTILE,
            "holds": [{"flavor": HOSTILE, "resource": HOSTILE, "amount": HOSTILE}]}]}),
        it if it.ends_with("/explanation") => hostile_explanation(),
        _ => hostile_workload(),
    }
}

#[tokio::test(start_paused = true)]
async fn all_content_of_the_cluster_is_escaped() {
    let pages = dashboard(client(hostile_api), clock());
    for path in ["/", "/queues/a", "/workloads/team/job"] {
        let page = get(&pages, path).await;
        for markup in ["<script>", "<img", "onerror=alert(1)>"] {
            assert!(!page.contains(markup), "{path}: {page}");
        }
        assert!(page.contains("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;"), "{path} shows it as text: {page}");
        // A link with such a name stays within the dashboard.
        for link in page.split("href=\"").skip(1) {
            let is_within = link.starts_with('/') && !link.starts_with("//");
            assert!(is_within || link.starts_with("#content"), "{path}: {link}");
        }
    }
    let refused = dashboard(client(|_| refusal(403, HOSTILE)), clock());
    let page = ask(&refused, Method::GET, "/", "localhost").await;
    assert!(page.status() == StatusCode::FORBIDDEN && !page.body().contains("<script>"), "{}", page.body());
}

#[tokio::test(start_paused = true)]
async fn ages_are_computed_with_the_clock_of_the_api_server() {
    let workload = json!({"metadata": {"name": "job", "namespace": "team", "creationTimestamp": "2026-01-05T08:58:30Z"},
        "spec": {"podSets": []}});
    let api = move |path: &str| if path.ends_with("/workloads/job") { workload.clone() } else { refusal(404, "none") };
    for own in ["2026-01-05T09:00:00Z", "2025-12-01T00:00:00Z", "2027-01-01T00:00:00Z"] {
        let own = Clock::scaled(own.parse().expect("a timestamp"), 1.0);
        let page = get(&dashboard(client(api.clone()), own), "/workloads/team/job").await;
        assert!(page.contains("90s"), "{page}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_large_cluster_has_pages_of_bounded_size() {
    let many = |path: &str| match path {
        "/apis/kueue.x-k8s.io/v1beta2/clusterqueues" => list(
            (0..3000)
                .map(|at| {
                    json!({"metadata": {"name": format!("q{at:04}")}, "spec": {"cohortName": format!("c{}", at / 10)},
                        "status": {"pendingWorkloads": 20}})
                })
                .collect(),
        ),
        "/apis/kueue.x-k8s.io/v1beta2/clusterqueues/a" => json!({"metadata": {"name": "a"}}),
        it if it.ends_with("/holders") => json!({"total": 100_000, "items": (0..200)
            .map(|at| json!({"metadata": {"name": format!("w{at}"), "namespace": "team"}, "admitted": true}))
            .collect::<Vec<_>>()}),
        it if it.ends_with("/pendingworkloads") => json!({"items": (0..50)
            .map(|at| json!({"metadata": {"name": format!("w{at}"), "namespace": "team"}, "positionInClusterQueue": at}))
            .collect::<Vec<_>>()}),
        it if it.ends_with("/cohorts") => list(Vec::new()),
        _ => refusal(404, "not found"),
    };
    let pages = dashboard(client(many), clock());
    let overview = get(&pages, "/?from=200").await;
    assert_eq!(overview.matches("<tbody>").count(), 200);
    assert!(overview.contains("60000 workloads wait"), "the sum is of all pages");
    assert!(overview.contains("href=\"/?from=400\"") && overview.contains("201–400 of 3300"), "{overview}");
    let last = get(&pages, "/?from=3200").await;
    assert!(last.matches("<tbody>").count() == 100 && !last.contains("Next →"), "{last}");
    // The two lists of a queue have separate offsets.
    let queue = get(&pages, "/queues/a?from=50").await;
    assert!(queue.contains("href=\"/queues/a?from=100\"") && queue.contains("href=\"/queues/a\""), "{queue}");
    assert!(queue.contains("href=\"/queues/a?from=50&amp;held=200\"") && queue.contains("1–200 of 100000"), "{queue}");
    assert_eq!(queue.matches("not readable").count(), 50);
    // Below 50 rows, the holders are not on the first screen.
    let (_, later) = queue.split_once("<div class=\"later\">").expect("a part for later");
    assert!(later.contains("w199") && !later.contains("not readable"), "{later}");
}

#[tokio::test(start_paused = true)]
async fn only_read_requests_for_this_machine_are_accepted() {
    let pages = dashboard(client(|_| list(Vec::new())), clock());
    let foreign = ask(&pages, Method::GET, "/", "evil.example:8080").await;
    assert_eq!(foreign.status(), StatusCode::MISDIRECTED_REQUEST);
    assert!(!foreign.body().contains("Queue"), "{}", foreign.body());
    for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
        let refused = ask(&pages, method, "/", "localhost").await;
        assert_eq!(
            (refused.status(), &refused.headers()["Allow"]),
            (StatusCode::METHOD_NOT_ALLOWED, &"GET, HEAD".parse().unwrap())
        );
    }
    let head = ask(&pages, Method::HEAD, "/", "127.0.0.1:8080").await;
    assert!(head.status() == StatusCode::OK && head.body().is_empty());
    for path in ["/", "/style.css", "/nothing"] {
        let page = ask(&pages, Method::GET, path, "[::1]:8080").await;
        let policy = page.headers()["Content-Security-Policy"].to_str().expect("text");
        let expected = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; ";
        assert!(policy.starts_with(expected) && !policy.contains("unsafe"), "{policy}");
        assert_eq!(page.headers()["X-Content-Type-Options"], "nosniff");
        // A browser does not load what the policy forbids.
        assert!(!page.body().contains(" style=") && !page.body().contains(" onclick"), "{path}");
        let scripts = page.body().matches("<script").count();
        assert_eq!(scripts, page.body().matches("<script src=\"/script.js\" defer></script>").count(), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_that_fails_or_never_responds_is_reported() {
    let odd = dashboard(client(|_| json!({"items": "none"})), clock());
    let page = ask(&odd, Method::GET, "/", "localhost").await;
    assert!(
        page.status() == StatusCode::BAD_GATEWAY && page.body().contains("sent no valid response"),
        "{}",
        page.body()
    );
    let silent = tower::service_fn(|_: Request<Body>| std::future::pending::<Result<Response<Body>, Infallible>>());
    let silent = dashboard(Client::new(silent, "default"), clock());
    let page = ask(&silent, Method::GET, "/workloads/team/job", "localhost").await;
    assert!(page.status() == StatusCode::BAD_GATEWAY && page.body().contains("no response within"), "{}", page.body());
}

#[tokio::test(start_paused = true)]
async fn pages_reload_themselves_unless_reloading_is_off() {
    let pages = dashboard(client(|_| list(Vec::new())), clock());
    let page = get(&pages, "/").await;
    let reload = "<noscript><meta http-equiv=\"refresh\" content=\"10\"></noscript>";
    assert!(page.contains(reload) && page.contains("data-live=\"true\"") && page.contains("href=\"/?refresh=off\""));
    let paused = get(&pages, "/?refresh=off").await;
    assert!(!paused.contains("http-equiv") && paused.contains("data-live=\"false\"") && paused.contains("Resume"));
    let found = ask(&pages, Method::GET, "/find?what=team/job", "localhost").await;
    assert_eq!(
        (found.status(), &found.headers()["Location"]),
        (StatusCode::SEE_OTHER, &"/workloads/team/job".parse().unwrap())
    );
    let odd = ask(&pages, Method::GET, "/find?what=%2F%2Fevil.example", "localhost").await;
    assert_eq!(odd.status(), StatusCode::NOT_FOUND);
}
