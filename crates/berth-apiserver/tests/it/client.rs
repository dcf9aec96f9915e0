//! The client library kube, connected to the server without a socket.

use std::pin::pin;

use berth_apiserver::UserInfo;
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};

use crate::harness::server;

#[tokio::test(start_paused = true)]
async fn a_kube_client_works_in_process() {
    let server = server();
    let client = kube::Client::new(server.api.in_process(UserInfo::master("client")), "default");
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let map: ConfigMap =
        serde_json::from_value(serde_json::json!({"metadata": {"name": "a"}, "data": {"k": "v"}})).unwrap();
    let created = maps.create(&PostParams::default(), &map).await.unwrap();
    let version = created.metadata.resource_version.unwrap();
    let mut events = pin!(maps.watch(&WatchParams::default(), &version).await.unwrap());
    let patch = serde_json::json!({"data": {"k": "w"}});
    maps.patch("a", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    match events.next().await.unwrap().unwrap() {
        WatchEvent::Modified(map) => assert_eq!(map.data.unwrap()["k"], "w"),
        other => panic!("{other:?}"),
    }
    assert_eq!(maps.list(&ListParams::default()).await.unwrap().items.len(), 1);
    let missing = maps.get("b").await.unwrap_err();
    assert!(matches!(missing, kube::Error::Api(status) if status.code == 404));
}

/// A client without `managedFields` receives the same objects as other clients, without this field.
#[tokio::test(start_paused = true)]
async fn a_lean_client_gets_everything_but_managed_fields() {
    let server = server();
    let user = || UserInfo::master("client");
    let lean: Api<ConfigMap> =
        Api::namespaced(kube::Client::new(server.api.in_process(user()).lean(), "default"), "default");
    let whole: Api<ConfigMap> = Api::namespaced(kube::Client::new(server.api.in_process(user()), "default"), "default");
    let text = serde_json::json!({"metadata": {"name": "a", "labels": {"x": "1"}}, "data": {"managedFields": "kept"}});
    let made = lean.create(&PostParams::default(), &serde_json::from_value(text).unwrap()).await.unwrap();

    let mut expected = whole.get("a").await.unwrap();
    assert!(expected.metadata.managed_fields.take().is_some_and(|fields| !fields.is_empty()));
    assert_eq!(made, expected);
    assert_eq!(lean.get("a").await.unwrap(), expected);
    assert_eq!(lean.list(&ListParams::default()).await.unwrap().items, std::slice::from_ref(&expected));
    let mut events = pin!(lean.watch(&WatchParams::default(), "0").await.unwrap());
    match events.next().await {
        Some(Ok(WatchEvent::Added(seen))) => assert_eq!(seen, expected),
        other => panic!("{other:?}"),
    }
    // Writing the object back does not remove field managers.
    let before = whole.get("a").await.unwrap().metadata.managed_fields;
    lean.replace("a", &PostParams::default(), &expected).await.unwrap();
    assert_eq!(whole.get("a").await.unwrap().metadata.managed_fields, before);
}

/// A controller in this process has one bookmark and one watch a day, regardless of its request.
#[tokio::test(start_paused = true)]
async fn a_client_with_long_watches_has_no_idle_traffic_for_a_day() {
    let server = server();
    let connection = server.api.in_process(UserInfo::master("client")).long_watches();
    let maps: Api<ConfigMap> = Api::default_namespaced(kube::Client::new(connection, "default"));
    let start = tokio::time::Instant::now();
    let params = WatchParams::default().timeout(290);
    let mut events = pin!(maps.watch(&params, "0").await.unwrap());
    let bookmark = events.next().await;
    assert!(matches!(bookmark, Some(Ok(WatchEvent::Bookmark(_)))), "{bookmark:?}");
    assert_eq!(start.elapsed().as_secs(), 24 * 3600 - 2);
    assert!(events.next().await.is_none());
    assert_eq!(start.elapsed().as_secs(), 24 * 3600);
}
