//! Watches: events, selectors, bookmarks, initial events, compaction and tables.

use serde_json::json;

use crate::harness::{Server, server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn create(server: &Server, name: &str, color: &str) -> String {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"color": color}}});
    let created = server.post(MAPS, map).await.expect(201);
    created["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn a_watch_reports_every_change_after_its_revision() {
    let server = server();
    let version = create(&server, "a", "red").await;
    create(&server, "b", "red").await;
    let mut watch = server.watch(&format!("{MAPS}?watch=true&resourceVersion={version}")).await;
    assert_eq!(watch.brief().await, "ADDED b");
    server.patch(&format!("{MAPS}/a"), "merge-patch", json!({"data": {"k": "v"}})).await.expect(200);
    assert_eq!(watch.brief().await, "MODIFIED a");
    server.delete(&format!("{MAPS}/b"), json!(null)).await.expect(200);
    let (kind, last) = watch.next().await.unwrap();
    assert_eq!((kind.as_str(), &last["metadata"]["name"]), ("DELETED", &json!("b")));
    let version: u64 = version.parse().unwrap();
    assert!(last["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap() > version);
}

#[tokio::test(start_paused = true)]
async fn a_watch_with_a_selector_reports_objects_that_start_or_stop_matching() {
    let server = server();
    create(&server, "a", "red").await;
    let mut watch = server.watch(&format!("{MAPS}?watch=true&labelSelector=color%3Dred")).await;
    assert_eq!(watch.brief().await, "ADDED a");
    create(&server, "b", "blue").await;
    server
        .patch(&format!("{MAPS}/b"), "merge-patch", json!({"metadata": {"labels": {"color": "red"}}}))
        .await
        .expect(200);
    assert_eq!(watch.brief().await, "ADDED b");
    server
        .patch(&format!("{MAPS}/a"), "merge-patch", json!({"metadata": {"labels": {"color": "blue"}}}))
        .await
        .expect(200);
    assert_eq!(watch.brief().await, "DELETED a");
}

#[tokio::test(start_paused = true)]
async fn a_watch_sends_bookmarks_and_ends_at_its_timeout() {
    let server = server();
    let version = create(&server, "a", "red").await;
    let uri = format!("{MAPS}?watch=true&resourceVersion={version}&allowWatchBookmarks=true&timeoutSeconds=90");
    let mut watch = server.watch(&uri).await;
    // A write of another kind advances the revision. The bookmark has the new revision.
    server.post("/api/v1/namespaces", json!({"metadata": {"name": "other"}})).await.expect(201);
    let (kind, object) = watch.next().await.unwrap();
    assert_eq!(kind, "BOOKMARK");
    assert!(object["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap() > version.parse().unwrap());
    assert_eq!(watch.next().await.unwrap().0, "BOOKMARK");
    assert!(watch.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn initial_events_end_with_a_marked_bookmark() {
    let server = server();
    create(&server, "a", "red").await;
    let uri =
        format!("{MAPS}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true");
    let mut watch = server.watch(&uri).await;
    assert_eq!(watch.brief().await, "ADDED a");
    let (kind, object) = watch.next().await.unwrap();
    assert_eq!(kind, "BOOKMARK");
    assert_eq!(object["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
}

#[tokio::test(start_paused = true)]
async fn a_watch_from_a_compacted_revision_gets_an_error_event() {
    let server = server();
    let version = create(&server, "a", "red").await;
    create(&server, "b", "red").await;
    create(&server, "c", "red").await;
    let store = server.api.store_handle();
    store.compact(store.revision());
    let mut watch = server.watch(&format!("{MAPS}?watch=true&resourceVersion={version}")).await;
    let (kind, status) = watch.next().await.unwrap();
    assert_eq!((kind.as_str(), &status["code"], &status["reason"]), ("ERROR", &json!(410), &json!("Expired")));
    assert!(watch.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_watch_can_be_a_table() {
    let server = server();
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let uri = format!("{MAPS}?watch=true");
    create(&server, "a", "red").await;
    let response = server.raw(http::Method::GET, &uri, &[("accept", accept)], "").await;
    let mut body = response.into_body();
    let chunk = http_body_util::BodyExt::frame(&mut body).await.unwrap().unwrap().into_data().unwrap();
    let event: serde_json::Value = serde_json::from_slice(&chunk).unwrap();
    assert_eq!(event["object"]["kind"], "Table");
    assert_eq!(event["object"]["rows"][0]["cells"][0], "a");
}
