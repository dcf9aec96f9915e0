//! Clients that disconnect while their write waits for the disk, and writes that arrive while
//! another write waits.

use std::sync::Arc;

use berth_apiserver::{ApiServer, UserInfo};
use berth_store::{CommitError, CommitFuture, MemoryStore, Store, Write};
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::harness::{Server, config_on};
use crate::intercepted_store::{CommitInterceptor, InterceptedStore};

const SERVICES: &str = "/api/v1/namespaces/default/services";
const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Delays or rejects writes of some keys. A delayed write is visible before it is reported as
/// durable.
struct DelayedCommits {
    /// Suffix of the keys whose writes are delayed until this is `None`.
    held: watch::Sender<Option<&'static str>>,
    /// Suffix of the keys whose writes are rejected as busy.
    busy: watch::Sender<Option<&'static str>>,
    /// While true, writes that are committed for no user (the empty name) do not complete.
    backlog: watch::Sender<bool>,
}

fn key_of(write: &Write) -> &str {
    match write {
        Write::Create { key, .. } | Write::Update { key, .. } | Write::Delete { key, .. } => key,
    }
}

impl CommitInterceptor for DelayedCommits {
    fn commit(&self, store: &MemoryStore, user: &str, write: Write) -> CommitFuture {
        let matches = |suffix: &Option<&'static str>| suffix.is_some_and(|end| key_of(&write).ends_with(end));
        if matches(&self.busy.borrow()) {
            return Box::pin(async { Err(CommitError::Busy { reason: "too many writes are waiting for the disk" }) });
        }
        let is_held = matches(&self.held.borrow());
        let (mut held, mut backlog) = (self.held.subscribe(), self.backlog.subscribe());
        let waits = user.is_empty();
        let answer = store.commit_for(user, write);
        Box::pin(async move {
            if waits {
                backlog.wait_for(|backlog| !backlog).await.expect("the sender is alive");
            }
            if is_held {
                held.wait_for(Option::is_none).await.expect("the sender is alive");
            }
            answer.await
        })
    }
}

fn slow() -> (Arc<Server>, Arc<InterceptedStore<DelayedCommits>>) {
    let (held, busy) = (watch::Sender::new(None), watch::Sender::new(None));
    let store = InterceptedStore::new(DelayedCommits { held, busy, backlog: watch::Sender::new(false) });
    (Arc::new(Server { api: ApiServer::new(config_on(store.clone())) }), store)
}

/// Runs all tasks until they wait.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// Sends a request, and disconnects while the request waits.
async fn disconnect(server: &Server, method: Method, uri: &str, body: &Value) {
    let request = Request::builder().method(method).uri(uri).header("content-type", "application/json");
    let request = request.body(Full::new(body.to_string().into())).unwrap();
    let mut answer = Box::pin(server.api.handle(request, UserInfo::master("tester")));
    assert!(futures::poll!(answer.as_mut()).is_pending(), "the request was answered before the disconnect");
}

fn service(name: &str, spec: Value) -> Value {
    let mut service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec});
    service["spec"]["ports"] = json!([{"port": 80}]);
    service
}

/// All IPAddresses, each with the name of its Service.
async fn addresses(server: &Server) -> Vec<(String, String)> {
    let list = server.get(ADDRESSES).await.expect(200);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let of = |it: &Value| (text(&it["metadata"]["name"]), text(&it["spec"]["parentRef"]["name"]));
    list["items"].as_array().into_iter().flatten().map(of).collect()
}

#[tokio::test(start_paused = true)]
async fn a_definition_is_served_although_its_client_disconnected() {
    let (server, store) = slow();
    let name = "tests.example.com";
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": name},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "tests", "singular": "test", "kind": "Test", "listKind": "TestList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
    });
    let tests = "/apis/example.com/v1/namespaces/default/tests";
    store.interceptor.held.send_replace(Some(name));
    disconnect(&server, Method::POST, DEFINITIONS, &definition).await;
    settle().await;
    server.get(tests).await.expect(404);
    store.interceptor.held.send_replace(None);
    settle().await;
    server.get(tests).await.expect(200);

    // Deleting the definition also completes without its client.
    store.interceptor.held.send_replace(Some(name));
    disconnect(&server, Method::DELETE, &format!("{DEFINITIONS}/{name}"), &json!({})).await;
    store.interceptor.held.send_replace(None);
    settle().await;
    server.get(tests).await.expect(404);
    server.get(&format!("{DEFINITIONS}/{name}")).await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn a_claimed_address_belongs_to_its_service_or_is_released() {
    let (server, store) = slow();
    // The client disconnects while the address waits for the disk: the Service is created.
    store.interceptor.held.send_replace(Some("/10.96.0.11"));
    disconnect(&server, Method::POST, SERVICES, &service("first", json!({}))).await;
    store.interceptor.held.send_replace(None);
    settle().await;
    server.get(&format!("{SERVICES}/first")).await.expect(200);
    let first = ("10.96.0.11".to_owned(), "first".to_owned());
    assert_eq!(addresses(&server).await, std::slice::from_ref(&first));
    // The Service cannot be stored: its address is released.
    store.interceptor.busy.send_replace(Some("/second"));
    let rejected = server.post(SERVICES, service("second", json!({}))).await.expect(429);
    assert_eq!(
        (&rejected["reason"], &rejected["details"]["retryAfterSeconds"]),
        (&json!("TooManyRequests"), &json!(1))
    );
    store.interceptor.busy.send_replace(None);
    assert_eq!(addresses(&server).await, [first]);
    // The address of a deleted Service is released although the client disconnected.
    store.interceptor.held.send_replace(Some("/first"));
    disconnect(&server, Method::DELETE, &format!("{SERVICES}/first"), &json!({})).await;
    store.interceptor.held.send_replace(None);
    settle().await;
    assert_eq!(addresses(&server).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_service_recreated_during_its_deletion_keeps_its_address() {
    let (server, store) = slow();
    server.post(SERVICES, service("again", json!({"clusterIP": "10.96.0.50"}))).await.expect(201);
    store.interceptor.held.send_replace(Some("/again"));
    let deleting = server.clone();
    let deleting =
        tokio::spawn(async move { deleting.delete(&format!("{SERVICES}/again"), json!(null)).await.expect(200) });
    settle().await;
    server.get(&format!("{SERVICES}/again")).await.expect(404);
    let creating = server.clone();
    let creating = tokio::spawn(async move {
        creating.post(SERVICES, service("again", json!({"clusterIP": "10.96.0.50"}))).await.expect(201)
    });
    settle().await;
    store.interceptor.held.send_replace(None);
    deleting.await.expect("no panic");
    creating.await.expect("no panic");
    assert_eq!(addresses(&server).await, [("10.96.0.50".to_owned(), "again".to_owned())]);
    let other = server.post(SERVICES, service("other", json!({"clusterIP": "10.96.0.50"}))).await.expect(422);
    assert!(other["message"].as_str().unwrap().contains("provided IP is already allocated"), "{other}");
}

#[tokio::test(start_paused = true)]
async fn an_external_name_service_that_becomes_a_cluster_ip_service_gets_an_address() {
    let (server, store) = slow();
    server.post(SERVICES, service("owner", json!({"clusterIP": "10.96.0.50"}))).await.expect(201);
    let name = json!({"type": "ExternalName", "externalName": "example.com"});
    server.post(SERVICES, service("name", name.clone())).await.expect(201);
    let path = format!("{SERVICES}/name");
    let patch = async |spec: Value| server.patch(&path, "merge-patch", json!({"spec": spec})).await;
    // The address of another Service is rejected.
    let rejected = patch(json!({"type": "ClusterIP", "clusterIP": "10.96.0.50"})).await.expect(422);
    assert!(rejected["message"].as_str().unwrap().contains("provided IP is already allocated"), "{rejected}");
    // The address is released if the Service cannot be stored.
    store.interceptor.busy.send_replace(Some("/name"));
    patch(json!({"type": "ClusterIP", "clusterIP": "10.96.0.60"})).await.expect(429);
    store.interceptor.busy.send_replace(None);
    let owner = ("10.96.0.50".to_owned(), "owner".to_owned());
    assert_eq!(addresses(&server).await, std::slice::from_ref(&owner));
    // Without a requested address, a free one is assigned.
    let given = patch(json!({"type": "ClusterIP"})).await.expect(200);
    assert_eq!(given["spec"]["clusterIPs"], json!(["10.96.0.11"]));
    assert_eq!(addresses(&server).await, [("10.96.0.11".to_owned(), "name".to_owned()), owner.clone()]);
    // It is released when the type changes back.
    let back = patch(name).await.expect(200);
    assert_eq!((&back["spec"]["clusterIP"], &back["spec"]["clusterIPs"]), (&json!(null), &json!(null)));
    assert_eq!(addresses(&server).await, [owner]);
    let rejected = patch(json!({"clusterIP": "10.96.0.70", "clusterIPs": ["10.96.0.70"]})).await.expect(422);
    assert!(rejected["message"].as_str().unwrap().contains("may not be set for ExternalName"), "{rejected}");
}

#[tokio::test(start_paused = true)]
async fn service_writes_do_not_wait_for_another_users_backlog() {
    let (server, store) = slow();
    store.interceptor.backlog.send_replace(true);
    let path = format!("{SERVICES}/a");
    let all = async {
        server.post(SERVICES, service("a", json!({}))).await.expect(201);
        server.patch(&path, "merge-patch", json!({"metadata": {"labels": {"l": "1"}}})).await.expect(200);
        server.delete(&path, json!(null)).await.expect(200);
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), all)
        .await
        .expect("the writes of the Service do not wait for the backlog");
    assert_eq!(addresses(&server).await, []);
}

#[tokio::test(start_paused = true)]
async fn an_address_is_released_once_the_store_is_no_longer_busy() {
    let (server, store) = slow();
    server.post(SERVICES, service("a", json!({"clusterIP": "10.96.0.50"}))).await.expect(201);
    store.interceptor.busy.send_replace(Some("/10.96.0.50"));
    let deleting = server.clone();
    let deleting =
        tokio::spawn(async move { deleting.delete(&format!("{SERVICES}/a"), json!(null)).await.expect(200) });
    settle().await;
    assert!(!deleting.is_finished());
    store.interceptor.busy.send_replace(None);
    deleting.await.expect("no panic");
    assert_eq!(addresses(&server).await, []);
}

#[tokio::test(start_paused = true)]
async fn objects_that_are_not_stored_are_not_charged_to_quotas() {
    let (server, store) = slow();
    let (quotas, services) = ("/api/v1/namespaces/default/resourcequotas", SERVICES);
    for name in ["q", "r"] {
        let hard = json!({"services": "2", "count/configmaps": "2", "services.nodeports": "2"});
        server.post(quotas, json!({"metadata": {"name": name}, "spec": {"hard": hard}})).await.expect(201);
    }
    let used = async |what: &str| {
        let mut both = Vec::new();
        for name in ["q", "r"] {
            both.push(server.get(&format!("{quotas}/{name}")).await.expect(200)["status"]["used"][what].clone());
        }
        both
    };
    // A create that the store rejects, a create whose second quota cannot be charged, and a create
    // whose address is taken.
    let maps = "/api/v1/namespaces/default/configmaps";
    store.interceptor.busy.send_replace(Some("/m"));
    server.post(maps, json!({"metadata": {"name": "m"}})).await.expect(429);
    assert_eq!(used("count/configmaps").await, ["0", "0"]);
    store.interceptor.busy.send_replace(Some("/r"));
    server.post(maps, json!({"metadata": {"name": "m"}})).await.expect(429);
    store.interceptor.busy.send_replace(None);
    assert_eq!(used("count/configmaps").await, ["0", "0"]);
    server.post(services, service("a", json!({"clusterIP": "10.96.0.50"}))).await.expect(201);
    server.post(services, service("b", json!({"clusterIP": "10.96.0.50"}))).await.expect(422);
    assert_eq!(used("services").await, ["1", "1"]);
    // An update that the store rejects.
    let ported = json!({"spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]}});
    store.interceptor.busy.send_replace(Some("/a"));
    server.patch(&format!("{services}/a"), "merge-patch", ported).await.expect(429);
    store.interceptor.busy.send_replace(None);
    assert_eq!(used("services.nodeports").await, ["0", "0"]);
    // A deletion releases its quota once the store is no longer busy.
    store.interceptor.busy.send_replace(Some("/q"));
    let deleting = server.clone();
    let deleting =
        tokio::spawn(async move { deleting.delete(&format!("{SERVICES}/a"), json!(null)).await.expect(200) });
    settle().await;
    store.interceptor.busy.send_replace(None);
    deleting.await.expect("no panic");
    assert_eq!(used("services").await, ["0", "0"]);
}
