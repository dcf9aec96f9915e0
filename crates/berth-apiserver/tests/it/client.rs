//! A real client library, wired to the server without a socket.

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
