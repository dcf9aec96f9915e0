//! Behaviour at limits: a full disk, many warnings, stalled watches.

use std::sync::Arc;

use berth_apiserver::{ApiServer, Config};
use berth_store::{MemoryStore, SqliteOptions, SqliteStore};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::harness::{Server, config, server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str, bytes: usize) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "x".repeat(bytes)}})
}

// Real time: paused time would not wait for the store's writer thread.
#[tokio::test]
async fn a_full_disk_rejects_writes_keeps_reads_and_recovers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let open = |bytes_max| {
        let options = SqliteOptions { bytes_max, ..SqliteOptions::default() };
        let store = Arc::new(SqliteStore::open(&path, options).unwrap());
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        Server { api: ApiServer::new(Config::new(store, Arc::new(move || now))) }
    };
    // A megabyte holds the objects of every cluster and some ConfigMaps.
    let server = open(Some(1024 * 1024));
    server.api.ready().await.unwrap();
    let mut stored = 0;
    let rejected = loop {
        let answer = server.post(MAPS, map(&format!("m{stored}"), 50_000)).await;
        if answer.code != 201 {
            break answer;
        }
        stored += 1;
        assert!(stored < 100, "the disk did not become full");
    };
    assert!(stored > 0);
    assert_eq!((rejected.code, &rejected.body["reason"]), (503, &json!("ServiceUnavailable")));
    let message = rejected.body["message"].as_str().unwrap();
    assert!(message.contains("the store cannot write") && message.contains("full"), "{message}");

    // Rejected objects are not stored, accepted ones are, and a rejected update changed nothing.
    let list = server.get(MAPS).await.expect(200);
    assert_eq!(list["items"].as_array().unwrap().len(), stored);
    let patch = json!({"data": {"more": "y".repeat(50_000)}});
    assert_eq!(server.patch(&format!("{MAPS}/m0"), "merge-patch", patch.clone()).await.code, 503);
    assert_eq!(server.get(&format!("{MAPS}/m0")).await.expect(200)["data"]["more"], Value::Null);

    // The server is not ready. It is alive, as a restart would not help.
    let ready = server.raw(http::Method::GET, "/readyz", &[], "").await;
    assert_eq!(ready.status(), 500);
    let body = ready.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&body).contains("the store cannot write"), "{body:?}");
    assert_eq!(server.raw(http::Method::GET, "/livez", &[], "").await.status(), 200);
    // Only deletions are accepted.
    stored -= 1;
    let last = format!("{MAPS}/m{stored}");
    server.delete(&last, Value::Null).await.expect(200);
    assert_eq!(server.patch(&format!("{MAPS}/m0"), "merge-patch", json!({"data": {"a": "b"}})).await.code, 503);
    assert_eq!(server.get(&last).await.code, 404);

    // The same file on a disk that has space again.
    drop(server);
    let server = open(None);
    server.api.ready().await.unwrap();
    assert_eq!(server.get(MAPS).await.expect(200)["items"].as_array().unwrap().len(), stored);
    server.patch(&format!("{MAPS}/m0"), "merge-patch", patch).await.expect(200);
    server.post(MAPS, map("after", 50_000)).await.expect(201);
}

#[tokio::test(start_paused = true)]
async fn the_number_and_length_of_warnings_are_limited() {
    let server = server();
    let post = async |fields: Vec<String>| {
        let mut object = json!({"metadata": {"generateName": "m-"}});
        for field in fields {
            object[field] = 1.into();
        }
        let answer = server.post(MAPS, object).await;
        assert_eq!(answer.code, 201, "{}", answer.body);
        answer.warnings
    };
    let many = post((0..3000).map(|index| format!("f{index:04}")).collect()).await;
    assert_eq!((many.len(), many[0].as_str()), (64, "299 - \"unknown field \\\"f0000\\\"\""));
    assert!(many[63].ends_with(" more warnings are omitted\""), "{many:?}");
    // Long warnings are complete if there are few, and truncated if there are many.
    let long = |index: usize| format!("{index:02}{}", "x".repeat(1000));
    let whole = post((0..4).map(long).collect()).await;
    assert!(whole.len() == 4 && whole.iter().all(|text| text.len() > 1000), "{whole:?}");
    let cut = post((0..30).map(long).collect()).await;
    assert_eq!((cut.len(), cut[0].len()), (17, "299 - \"\"".len() + 256 + "\\".len()));
    assert_eq!(cut[16], "299 - \"14 more warnings are omitted\"");
}

#[tokio::test(start_paused = true)]
async fn a_watcher_that_does_not_read_is_dropped_and_resumes() {
    let mut config = config();
    config.store = Arc::new(MemoryStore::with_limits(1_000, Some(100)));
    let server = Server { api: ApiServer::new(config) };
    let first = server.post(MAPS, map("first", 1)).await.expect(201);
    let seen: u64 = first["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    let mut slow = server.raw(http::Method::GET, &format!("{MAPS}?watch=true&resourceVersion={seen}"), &[], "").await;
    // More changes than the server buffers for a client that does not read.
    const CHANGES: usize = 300;
    for change in 0..CHANGES {
        server
            .patch(&format!("{MAPS}/first"), "merge-patch", json!({"data": {"k": change.to_string()}}))
            .await
            .expect(200);
    }
    // The stream ends. The events before its end are complete and in order.
    let mut lines = Vec::new();
    while let Some(frame) = slow.body_mut().frame().await {
        lines.extend_from_slice(&frame.unwrap().into_data().unwrap());
    }
    let events: Vec<Value> = lines
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    assert!(events.len() < CHANGES, "the watch was not dropped");
    let version =
        |event: &Value| event["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
    let mut last = seen;
    for event in &events {
        assert_eq!(version(event), last + 1);
        last += 1;
    }
    // A new watch resumes there without a gap.
    let mut resumed = server.watch(&format!("{MAPS}?watch=true&resourceVersion={last}")).await;
    for expected in last + 1..=seen + CHANGES as u64 {
        let (kind, object) = resumed.next().await.unwrap();
        assert_eq!((kind.as_str(), version(&json!({"object": object}))), ("MODIFIED", expected));
    }
}
