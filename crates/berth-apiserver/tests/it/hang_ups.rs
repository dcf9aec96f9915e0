//! Clients that go while their write waits for the disk, and writes that come while another one waits.

use std::sync::Arc;

use berth_apiserver::{ApiServer, UserInfo};
use berth_store::{CommitError, CommitFuture, MemoryStore, Store, Write};
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::harness::{Server, config_on};
use crate::meddled::{Meddled, Meddler};

const SERVICES: &str = "/api/v1/namespaces/default/services";
const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Holds back the store's answers about some keys. What was written is visible before.
struct Slow {
    /// What the keys end with; with nothing here answers come at once.
    held: watch::Sender<Option<&'static str>>,
    /// Keys that cannot be written as too much is waiting.
    busy: watch::Sender<Option<&'static str>>,
    /// Whether the row of who asks is so long that its writes are not done before this ends.
    backlog: watch::Sender<bool>,
}

fn key_of(write: &Write) -> &str {
    match write {
        Write::Create { key, .. } | Write::Update { key, .. } | Write::Delete { key, .. } => key,
    }
}

impl Meddler for Slow {
    fn commit(&self, store: &MemoryStore, user: &str, write: Write) -> CommitFuture {
        let is_about = |held: &Option<&'static str>| held.is_some_and(|end| key_of(&write).ends_with(end));
        if is_about(&self.busy.borrow()) {
            return Box::pin(async { Err(CommitError::Busy { reason: "too many writes are waiting for the disk" }) });
        }
        let is_held = is_about(&self.held.borrow());
        let (mut held, mut backlog) = (self.held.subscribe(), self.backlog.subscribe());
        let waits = user.is_empty();
        let answer = store.commit_for(user, write);
        Box::pin(async move {
            if waits {
                backlog.wait_for(|backlog| !backlog).await.expect("the store is there");
            }
            if is_held {
                held.wait_for(Option::is_none).await.expect("the store is there");
            }
            answer.await
        })
    }
}

fn slow() -> (Arc<Server>, Arc<Meddled<Slow>>) {
    let (held, busy) = (watch::Sender::new(None), watch::Sender::new(None));
    let store = Meddled::by(Slow { held, busy, backlog: watch::Sender::new(false) });
    (Arc::new(Server { api: ApiServer::new(config_on(store.clone())) }), store)
}

/// Lets all tasks do what they can.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// Sends a request and hangs up when it waits.
async fn hang_up(server: &Server, method: Method, uri: &str, body: &Value) {
    let request = Request::builder().method(method).uri(uri).header("content-type", "application/json");
    let request = request.body(Full::new(body.to_string().into())).unwrap();
    let mut answer = Box::pin(server.api.handle(request, UserInfo::master("tester")));
    assert!(futures::poll!(answer.as_mut()).is_pending(), "it was answered before anybody could hang up");
}

fn service(name: &str, spec: Value) -> Value {
    let mut service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec});
    service["spec"]["ports"] = json!([{"port": 80}]);
    service
}

/// The addresses there are, each with the name of the Service that has it.
async fn addresses(server: &Server) -> Vec<(String, String)> {
    let list = server.get(ADDRESSES).await.expect(200);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let of = |it: &Value| (text(&it["metadata"]["name"]), text(&it["spec"]["parentRef"]["name"]));
    list["items"].as_array().into_iter().flatten().map(of).collect()
}

#[tokio::test(start_paused = true)]
async fn a_definition_is_served_though_its_sender_hung_up() {
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
    store.meddler.held.send_replace(Some(name));
    hang_up(&server, Method::POST, DEFINITIONS, &definition).await;
    settle().await;
    server.get(tests).await.expect(404);
    store.meddler.held.send_replace(None);
    settle().await;
    server.get(tests).await.expect(200);

    // The same when it goes.
    store.meddler.held.send_replace(Some(name));
    hang_up(&server, Method::DELETE, &format!("{DEFINITIONS}/{name}"), &json!({})).await;
    store.meddler.held.send_replace(None);
    settle().await;
    server.get(tests).await.expect(404);
    server.get(&format!("{DEFINITIONS}/{name}")).await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn an_address_taken_for_a_service_is_that_services_or_nobodys() {
    let (server, store) = slow();
    // Its sender goes while the address waits for the disk: the Service comes all the same.
    store.meddler.held.send_replace(Some("/10.96.0.11"));
    hang_up(&server, Method::POST, SERVICES, &service("first", json!({}))).await;
    store.meddler.held.send_replace(None);
    settle().await;
    server.get(&format!("{SERVICES}/first")).await.expect(200);
    let first = ("10.96.0.11".to_owned(), "first".to_owned());
    assert_eq!(addresses(&server).await, std::slice::from_ref(&first));
    // It cannot be stored: its address is nobody's again.
    store.meddler.busy.send_replace(Some("/second"));
    let refused = server.post(SERVICES, service("second", json!({}))).await.expect(429);
    assert_eq!((&refused["reason"], &refused["details"]["retryAfterSeconds"]), (&json!("TooManyRequests"), &json!(1)));
    store.meddler.busy.send_replace(None);
    assert_eq!(addresses(&server).await, [first]);
    // Neither is one left when the sender of a deletion goes.
    store.meddler.held.send_replace(Some("/first"));
    hang_up(&server, Method::DELETE, &format!("{SERVICES}/first"), &json!({})).await;
    store.meddler.held.send_replace(None);
    settle().await;
    assert_eq!(addresses(&server).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_comes_again_keeps_the_address_of_the_one_that_goes() {
    let (server, store) = slow();
    server.post(SERVICES, service("again", json!({"clusterIP": "10.96.0.50"}))).await.expect(201);
    store.meddler.held.send_replace(Some("/again"));
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
    store.meddler.held.send_replace(None);
    deleting.await.expect("no panic");
    creating.await.expect("no panic");
    assert_eq!(addresses(&server).await, [("10.96.0.50".to_owned(), "again".to_owned())]);
    let other = server.post(SERVICES, service("other", json!({"clusterIP": "10.96.0.50"}))).await.expect(422);
    assert!(other["message"].as_str().unwrap().contains("provided IP is already allocated"), "{other}");
}

#[tokio::test(start_paused = true)]
async fn a_service_that_was_only_a_name_gets_an_address_as_a_new_one_does() {
    let (server, store) = slow();
    server.post(SERVICES, service("owner", json!({"clusterIP": "10.96.0.50"}))).await.expect(201);
    let name = json!({"type": "ExternalName", "externalName": "example.com"});
    server.post(SERVICES, service("name", name.clone())).await.expect(201);
    let path = format!("{SERVICES}/name");
    let patch = async |spec: Value| server.patch(&path, "merge-patch", json!({"spec": spec})).await;
    // Not somebody else's.
    let refused = patch(json!({"type": "ClusterIP", "clusterIP": "10.96.0.50"})).await.expect(422);
    assert!(refused["message"].as_str().unwrap().contains("provided IP is already allocated"), "{refused}");
    // One that could not be stored is given back.
    store.meddler.busy.send_replace(Some("/name"));
    patch(json!({"type": "ClusterIP", "clusterIP": "10.96.0.60"})).await.expect(429);
    store.meddler.busy.send_replace(None);
    let owner = ("10.96.0.50".to_owned(), "owner".to_owned());
    assert_eq!(addresses(&server).await, std::slice::from_ref(&owner));
    // One of its own, when none is asked for.
    let given = patch(json!({"type": "ClusterIP"})).await.expect(200);
    assert_eq!(given["spec"]["clusterIPs"], json!(["10.96.0.11"]));
    assert_eq!(addresses(&server).await, [("10.96.0.11".to_owned(), "name".to_owned()), owner.clone()]);
    // It goes with the type.
    let back = patch(name).await.expect(200);
    assert_eq!((&back["spec"]["clusterIP"], &back["spec"]["clusterIPs"]), (&json!(null), &json!(null)));
    assert_eq!(addresses(&server).await, [owner]);
    let refused = patch(json!({"clusterIP": "10.96.0.70", "clusterIPs": ["10.96.0.70"]})).await.expect(422);
    assert!(refused["message"].as_str().unwrap().contains("may not be set for ExternalName"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn service_writes_do_not_wait_for_another_users_backlog() {
    let (server, store) = slow();
    store.meddler.backlog.send_replace(true);
    let path = format!("{SERVICES}/a");
    let all = async {
        server.post(SERVICES, service("a", json!({}))).await.expect(201);
        server.patch(&path, "merge-patch", json!({"metadata": {"labels": {"l": "1"}}})).await.expect(200);
        server.delete(&path, json!(null)).await.expect(200);
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), all).await.expect("it waits for other writes");
    assert_eq!(addresses(&server).await, []);
}

#[tokio::test(start_paused = true)]
async fn an_address_goes_when_the_disk_has_time_for_it() {
    let (server, store) = slow();
    server.post(SERVICES, service("a", json!({"clusterIP": "10.96.0.50"}))).await.expect(201);
    store.meddler.busy.send_replace(Some("/10.96.0.50"));
    let deleting = server.clone();
    let deleting =
        tokio::spawn(async move { deleting.delete(&format!("{SERVICES}/a"), json!(null)).await.expect(200) });
    settle().await;
    assert!(!deleting.is_finished());
    store.meddler.busy.send_replace(None);
    deleting.await.expect("no panic");
    assert_eq!(addresses(&server).await, []);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_stored_is_not_charged() {
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
    // A create that the store refuses, one that is too late for its address, one that is charged to one of two quotas.
    let maps = "/api/v1/namespaces/default/configmaps";
    store.meddler.busy.send_replace(Some("/m"));
    server.post(maps, json!({"metadata": {"name": "m"}})).await.expect(429);
    assert_eq!(used("count/configmaps").await, ["0", "0"]);
    store.meddler.busy.send_replace(Some("/r"));
    server.post(maps, json!({"metadata": {"name": "m"}})).await.expect(429);
    store.meddler.busy.send_replace(None);
    assert_eq!(used("count/configmaps").await, ["0", "0"]);
    server.post(services, service("a", json!({"clusterIP": "10.96.0.50"}))).await.expect(201);
    server.post(services, service("b", json!({"clusterIP": "10.96.0.50"}))).await.expect(422);
    assert_eq!(used("services").await, ["1", "1"]);
    // A change.
    let ported = json!({"spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]}});
    store.meddler.busy.send_replace(Some("/a"));
    server.patch(&format!("{services}/a"), "merge-patch", ported).await.expect(429);
    store.meddler.busy.send_replace(None);
    assert_eq!(used("services.nodeports").await, ["0", "0"]);
    // What goes while too much waits for the disk gives back when there is time for it.
    store.meddler.busy.send_replace(Some("/q"));
    let deleting = server.clone();
    let deleting =
        tokio::spawn(async move { deleting.delete(&format!("{SERVICES}/a"), json!(null)).await.expect(200) });
    settle().await;
    store.meddler.busy.send_replace(None);
    deleting.await.expect("no panic");
    assert_eq!(used("services").await, ["0", "0"]);
}
