//! Two writers of one object: the second comes between the first one's reading and writing.

use std::sync::{Arc, Mutex};

use berth_apiserver::ApiServer;
use berth_store::{CommitFuture, MemoryStore, Store, Write};
use serde_json::{Value, json};

use crate::harness::{Server, config_on};
use crate::meddled::{Meddled, Meddler};

const MAP: &str = "/api/v1/namespaces/default/configmaps/a";
/// Where the store keeps it.
const MAP_NAME: &str = "/a";

/// Somebody else who writes right before the next update of an object.
struct Raced {
    /// What the other writer sets in the object's data; taken by the update it comes before.
    rival: Mutex<Option<Value>>,
}

impl Meddler for Raced {
    fn commit(&self, store: &MemoryStore, user: &str, write: Write) -> CommitFuture {
        if let Write::Update { key, .. } = &write
            && key.ends_with(MAP_NAME)
            && let Some(data) = self.rival.lock().unwrap().take()
        {
            let record = store.get(key).unwrap();
            let mut value = record.value().as_ref().clone();
            value["data"]["rival"] = data;
            // In memory a write has happened when it was queued.
            drop(store.commit(Write::Update { key: key.clone(), expected: record.revision, value }));
        }
        store.commit_for(user, write)
    }
}

/// A server with a ConfigMap, and the store under it.
async fn raced() -> (Server, Arc<Meddled<Raced>>, Value) {
    let store = Meddled::by(Raced { rival: Mutex::default() });
    let server = Server { api: ApiServer::new(config_on(store.clone())) };
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "1"}});
    let created = server.post("/api/v1/namespaces/default/configmaps", map).await.expect(201);
    (server, store, created)
}

impl Raced {
    fn write_first(&self, what: &str) {
        *self.rival.lock().unwrap() = Some(what.into());
    }

    #[track_caller]
    fn expect_written(&self) {
        assert!(self.rival.lock().unwrap().is_none(), "nobody came in between");
    }
}

#[tokio::test(start_paused = true)]
async fn a_patch_without_a_revision_takes_in_what_was_written_in_between() {
    let (server, store, _) = raced().await;
    let patches = [
        ("merge-patch", json!({"data": {"k": "merge"}})),
        ("strategic-merge-patch", json!({"data": {"k": "strategic"}})),
        ("json-patch", json!([{"op": "replace", "path": "/data/k", "value": "json"}])),
    ];
    for (kind, patch) in patches {
        store.meddler.write_first(kind);
        let patched = server.patch(MAP, kind, patch).await.expect(200);
        store.meddler.expect_written();
        let own = kind.split('-').next().unwrap();
        assert_eq!(patched["data"], json!({"k": own, "rival": kind}));
        assert_eq!(server.get(MAP).await.expect(200)["data"], patched["data"]);
    }
    store.meddler.write_first("apply");
    let applied = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"own": "1"}});
    let applied = server.patch(&format!("{MAP}?fieldManager=tester"), "apply", applied).await.expect(200);
    store.meddler.expect_written();
    assert_eq!(applied["data"], json!({"k": "json", "own": "1", "rival": "apply"}));
}

#[tokio::test(start_paused = true)]
async fn who_names_a_revision_is_refused_when_somebody_writes_in_between() {
    let (server, store, created) = raced().await;
    store.meddler.write_first("put");
    let mut put = created.clone();
    put["data"]["k"] = "2".into();
    let refused = server.put(MAP, put).await.expect(409);
    store.meddler.expect_written();
    assert_eq!(refused["reason"], "Conflict");

    let seen = server.get(MAP).await.expect(200);
    store.meddler.write_first("patch");
    let patch = json!({"metadata": {"resourceVersion": seen["metadata"]["resourceVersion"]}, "data": {"k": "2"}});
    let refused = server.patch(MAP, "merge-patch", patch).await.expect(409);
    store.meddler.expect_written();
    assert_eq!(refused["reason"], "Conflict");
    assert_eq!(server.get(MAP).await.expect(200)["data"], json!({"k": "1", "rival": "patch"}));
}

#[tokio::test(start_paused = true)]
async fn a_replacement_without_a_revision_comes_last() {
    let (server, store, _) = raced().await;
    store.meddler.write_first("put");
    let whole = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "2"}});
    let replaced = server.put(MAP, whole).await.expect(200);
    store.meddler.expect_written();
    assert_eq!(replaced["data"], json!({"k": "2"}));
}
