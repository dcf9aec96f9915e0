//! Two concurrent writers of one object: the second writes between the read and the write of the
//! first.

use std::sync::{Arc, Mutex};

use berth_apiserver::ApiServer;
use berth_store::{CommitFuture, MemoryStore, Store, Write};
use serde_json::{Value, json};

use crate::harness::{Answer, Server, config_on};
use crate::intercepted_store::{CommitInterceptor, InterceptedStore};

const MAP: &str = "/api/v1/namespaces/default/configmaps/a";
/// Suffix of the ConfigMap's key in the store.
const MAP_NAME: &str = "/a";

/// Another client that writes immediately before the next update of the ConfigMap.
struct RivalWriter {
    /// Value that the other client sets in the data. The next update takes it.
    rival: Mutex<Option<Value>>,
}

impl CommitInterceptor for RivalWriter {
    fn commit(&self, store: &MemoryStore, user: &str, write: Write) -> CommitFuture {
        if let Write::Update { key, .. } = &write
            && key.ends_with(MAP_NAME)
            && let Some(data) = self.rival.lock().unwrap().take()
        {
            let record = store.get(key).unwrap();
            let mut value = record.value().as_ref().clone();
            value["data"]["rival"] = data;
            // An in-memory store executes a write as soon as it is queued.
            drop(store.commit(Write::Update { key: key.clone(), expected: record.revision, value }));
        }
        store.commit_for(user, write)
    }
}

/// A server with a ConfigMap, its store, and the ConfigMap.
async fn raced() -> (Server, Arc<InterceptedStore<RivalWriter>>, Value) {
    let store = InterceptedStore::new(RivalWriter { rival: Mutex::default() });
    let server = Server { api: ApiServer::new(config_on(store.clone())) };
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "1"}});
    let created = server.post("/api/v1/namespaces/default/configmaps", map).await.expect(201);
    (server, store, created)
}

impl RivalWriter {
    fn write_first(&self, what: &str) {
        *self.rival.lock().unwrap() = Some(what.into());
    }

    #[track_caller]
    fn expect_written(&self) {
        assert!(self.rival.lock().unwrap().is_none(), "the other client did not write");
    }
}

#[tokio::test(start_paused = true)]
async fn a_patch_without_a_revision_includes_concurrent_changes() {
    let (server, store, _) = raced().await;
    let patches = [
        ("merge-patch", json!({"data": {"k": "merge"}})),
        ("strategic-merge-patch", json!({"data": {"k": "strategic"}})),
        ("json-patch", json!([{"op": "replace", "path": "/data/k", "value": "json"}])),
    ];
    for (kind, patch) in patches {
        store.interceptor.write_first(kind);
        let patched = server.patch(MAP, kind, patch).await.expect(200);
        store.interceptor.expect_written();
        let own = kind.split('-').next().unwrap();
        assert_eq!(patched["data"], json!({"k": own, "rival": kind}));
        assert_eq!(server.get(MAP).await.expect(200)["data"], patched["data"]);
    }
    store.interceptor.write_first("apply");
    let applied = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"own": "1"}});
    let applied = server.patch(&format!("{MAP}?fieldManager=tester"), "apply", applied).await.expect(200);
    store.interceptor.expect_written();
    assert_eq!(applied["data"], json!({"k": "json", "own": "1", "rival": "apply"}));
}

#[tokio::test(start_paused = true)]
async fn a_write_with_a_stale_revision_is_rejected() {
    let (server, store, created) = raced().await;
    store.interceptor.write_first("put");
    let mut put = created.clone();
    put["data"]["k"] = "2".into();
    let rejected = server.put(MAP, put).await.expect(409);
    store.interceptor.expect_written();
    assert_eq!(rejected["reason"], "Conflict");

    let seen = server.get(MAP).await.expect(200);
    store.interceptor.write_first("patch");
    let patch = json!({"metadata": {"resourceVersion": seen["metadata"]["resourceVersion"]}, "data": {"k": "2"}});
    let rejected = server.patch(MAP, "merge-patch", patch).await.expect(409);
    store.interceptor.expect_written();
    assert_eq!(rejected["reason"], "Conflict");
    assert_eq!(server.get(MAP).await.expect(200)["data"], json!({"k": "1", "rival": "patch"}));
}

#[tokio::test(start_paused = true)]
async fn a_replacement_without_a_revision_overwrites_concurrent_changes() {
    let (server, store, _) = raced().await;
    store.interceptor.write_first("put");
    let whole = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "2"}});
    let replaced = server.put(MAP, whole).await.expect(200);
    store.interceptor.expect_written();
    assert_eq!(replaced["data"], json!({"k": "2"}));
}

/// Another client that writes a pod's status immediately before the pod is deleted.
struct StatusWriter {
    /// Statuses to write before the next deletions, the last one first.
    statuses: Mutex<Vec<Value>>,
}

impl CommitInterceptor for StatusWriter {
    fn commit(&self, store: &MemoryStore, user: &str, write: Write) -> CommitFuture {
        let (Write::Update { key, value, .. } | Write::Delete { key, last: Some(value), .. }) = &write else {
            return store.commit_for(user, write);
        };
        let is_deletion = matches!(write, Write::Delete { .. }) || !value["metadata"]["deletionTimestamp"].is_null();
        if is_deletion
            && key.ends_with("/pods/default/p")
            && let Some(status) = self.statuses.lock().unwrap().pop()
        {
            let record = store.get(key).unwrap();
            let mut value = record.value().as_ref().clone();
            value["status"] = status;
            drop(store.commit(Write::Update { key: key.clone(), expected: record.revision, value }));
        }
        store.commit_for(user, write)
    }
}

/// Evicts a pod with the status `before`. Immediately before each deletion, another client sets the
/// last status of `meanwhile`. The budget of the pod allows no eviction.
async fn evicted(before: Value, meanwhile: Vec<Value>, options: Value) -> (Server, Answer) {
    let store = InterceptedStore::new(StatusWriter { statuses: Mutex::default() });
    let server = Server { api: ApiServer::new(config_on(store.clone())) };
    let (pods, budgets) =
        ("/api/v1/namespaces/default/pods", "/apis/policy/v1/namespaces/default/poddisruptionbudgets");
    let spec = json!({"nodeName": "n", "containers": [{"name": "c", "image": "i"}]});
    server.post(pods, json!({"metadata": {"name": "p", "labels": {"app": "a"}}, "spec": spec})).await.expect(201);
    let spec = json!({"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}});
    server.post(budgets, json!({"metadata": {"name": "b"}, "spec": spec})).await.expect(201);
    let counted = json!({"status": {"observedGeneration": 1, "disruptionsAllowed": 0, "currentHealthy": 1,
        "desiredHealthy": 1, "expectedPods": 2}});
    server.patch(&format!("{budgets}/b/status"), "merge-patch", counted).await.expect(200);
    server.patch(&format!("{pods}/p/status"), "merge-patch", json!({"status": before})).await.expect(200);
    let revision = server.get(&format!("{pods}/p")).await.expect(200)["metadata"]["resourceVersion"].clone();
    let mut options = options;
    if options["preconditions"]["resourceVersion"] == "seen" {
        options["preconditions"]["resourceVersion"] = revision;
    }
    *store.interceptor.statuses.lock().unwrap() = meanwhile;
    let eviction = json!({"metadata": {"name": "p"}, "deleteOptions": options});
    let answer = server.post(&format!("{pods}/p/eviction"), eviction).await;
    (server, answer)
}

fn running(ready: &str) -> Value {
    json!({"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]})
}

#[tokio::test(start_paused = true)]
async fn an_eviction_is_checked_again_if_the_pod_becomes_ready() {
    let uri = "/api/v1/namespaces/default/pods/p";
    for before in [running("False"), json!({"phase": "Pending"})] {
        let (server, answer) = evicted(before, vec![running("True")], json!({})).await;
        let rejected = answer.expect(429);
        assert_eq!(rejected["message"], "Cannot evict pod as it would violate the pod's disruption budget.");
        assert!(server.get(uri).await.expect(200)["metadata"]["deletionTimestamp"].is_null());
    }
    // A pod that is still not ready is not counted by the budget.
    let (server, answer) = evicted(json!({"phase": "Pending"}), vec![running("False")], json!({})).await;
    answer.expect(201);
    let gone = server.get(uri).await;
    assert!(gone.code == 404 || !gone.body["metadata"]["deletionTimestamp"].is_null(), "{}", gone.body);
    // Preconditions on the uid and the revision are checked.
    let other = json!({"preconditions": {"uid": "other"}});
    evicted(running("False"), Vec::new(), other).await.1.expect(409);
    let seen = json!({"preconditions": {"resourceVersion": "seen"}});
    evicted(running("False"), vec![running("False")], seen).await.1.expect(409);
    // The eviction of a pod that changes all the time is rejected with 429.
    let always: Vec<Value> = (0..99).map(|n| json!({"phase": "Pending", "message": n.to_string()})).collect();
    let rejected = evicted(json!({"phase": "Pending"}), always, json!({})).await.1.expect(429);
    assert_eq!(rejected["details"]["retryAfterSeconds"], 10);
}
