//! Options of deletions, and continuation of lists and of deletions of collections.

use berth_kinds::protobuf::{MEDIA_TYPE, to_json};
use berth_store::Store;
use http::Method;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::harness::{Server, config_on, server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn make(server: &Server, names: &[&str]) {
    for name in names {
        let labels = json!({"made": "here"});
        server.post(MAPS, json!({"metadata": {"name": name, "labels": labels}})).await.expect(201);
    }
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn options_of_a_deletion_come_from_the_body_or_else_from_the_query() {
    let server = server();
    let spec = json!({"nodeName": "n", "containers": [{"name": "c", "image": "i"}]});
    let pods = "/api/v1/namespaces/default/pods";
    for name in ["by-body", "by-query"] {
        server.post(pods, json!({"metadata": {"name": name}, "spec": spec})).await.expect(201);
    }
    let going = server.delete(&format!("{pods}/by-body?gracePeriodSeconds=7"), json!({"kind": "DeleteOptions"})).await;
    assert_eq!(
        going.expect(200)["metadata"]["deletionGracePeriodSeconds"],
        30,
        "the query is ignored, so the pod's period applies"
    );
    let going = server.delete(&format!("{pods}/by-query?gracePeriodSeconds=7"), Value::Null).await;
    assert_eq!(going.expect(200)["metadata"]["deletionGracePeriodSeconds"], 7);

    make(&server, &["a"]).await;
    let map = format!("{MAPS}/a");
    for (body, path) in [
        (json!({"gracePeriodSeconds": "5"}), "gracePeriodSeconds"),
        (json!({"gracePeriodSeconds": 1.5}), "gracePeriodSeconds"),
        (json!({"propagationPolicy": 1}), "propagationPolicy"),
        (json!({"orphanDependents": "yes"}), "orphanDependents"),
        (json!({"dryRun": "All"}), "dryRun"),
        (json!({"dryRun": [1]}), "dryRun"),
        (json!({"preconditions": []}), "preconditions"),
        (json!({"preconditions": {"uid": 1}}), "preconditions.uid"),
        (json!([]), "<nil>"),
    ] {
        let rejected = server.delete(&map, body.clone()).await.expect(400);
        let message = rejected["message"].as_str().unwrap();
        assert!(message.contains(&format!("cannot be handled as a DeleteOptions: {path}: Invalid value")), "{message}");
    }
    // A body of another kind is rejected, also for a collection.
    let other = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}});
    for path in [map.as_str(), MAPS] {
        let rejected = server.delete(path, other.clone()).await.expect(400);
        let message = "the kind in the data (Pod) does not match the expected kind (DeleteOptions)";
        assert_eq!(rejected["message"], message);
    }
    server.get(&map).await.expect(200);
    // No object has an empty uid or revision, so these preconditions fail.
    for field in ["uid", "resourceVersion"] {
        server.delete(&map, json!({"preconditions": { field: "" }})).await.expect(409);
    }
    server.delete(&map, json!({"dryRun": ["All"]})).await.expect(200);
    server.get(&map).await.expect(200);
    // With a body, `dryRun` in the query is ignored.
    server.delete(&format!("{map}?dryRun=All"), json!({"gracePeriodSeconds": null})).await.expect(200);
    server.get(&map).await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn a_list_of_a_compacted_revision_can_continue_at_the_current_one() {
    let store = std::sync::Arc::new(berth_store::MemoryStore::new());
    let server = Server { api: berth_apiserver::ApiServer::new(config_on(store.clone())) };
    make(&server, &["a", "b", "c"]).await;
    let page = |more: &str| format!("{MAPS}?labelSelector=made&limit=2{more}");
    let first = server.get(&page("")).await.expect(200);
    assert_eq!(names(&first), ["a", "b"]);
    let token = |answer: &Value| format!("&continue={}", answer["metadata"]["continue"].as_str().expect("a token"));
    make(&server, &["bb", "d"]).await;
    server.delete(&format!("{MAPS}/c"), Value::Null).await.expect(200);
    store.compact(store.revision());
    let expired = server.get(&page(&token(&first))).await.expect(410);
    assert_eq!(expired["reason"], "Expired");
    assert!(expired["message"].as_str().unwrap().contains("results in an inconsistent list"), "{expired}");
    let second = server.get(&page(&token(&expired))).await.expect(200);
    assert_eq!(names(&second), ["bb", "d"]);
    assert_eq!(second["metadata"]["resourceVersion"], store.revision().to_string());
    // Without a continue token in the request, the error has none.
    let forgotten = server.get(&format!("{MAPS}?resourceVersion=1&resourceVersionMatch=Exact")).await.expect(410);
    assert_eq!(forgotten["metadata"], json!({}));
}

#[tokio::test(start_paused = true)]
async fn a_limited_deletion_of_a_collection_returns_a_continue_token() {
    let server = server();
    make(&server, &["a", "b", "c"]).await;
    let some = format!("{MAPS}?labelSelector=made&limit=2");
    let gone = server.delete(&some, Value::Null).await.expect(200);
    assert_eq!(names(&gone), ["a", "b"]);
    let next = format!("{some}&continue={}", gone["metadata"]["continue"].as_str().expect("a token"));
    let gone = server.delete(&next, Value::Null).await.expect(200);
    assert_eq!((names(&gone), gone["metadata"].get("continue")), (vec!["c"], None));
}

#[tokio::test(start_paused = true)]
async fn the_deletion_of_a_collection_returns_the_requested_media_type() {
    let server = server();
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({"metadata": {"name": "things.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
    server.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await.expect(201);
    let things = "/apis/example.com/v1/namespaces/default/things";
    let delete = async |form: &str| {
        let thing =
            json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": {"n": 1}});
        server.post(things, thing).await.expect(201);
        let answer = server.raw(Method::DELETE, things, &[("accept", form)], "").await;
        assert_eq!(answer.status(), 200, "{form}");
        assert_eq!(server.get(things).await.expect(200)["items"], json!([]));
        answer.into_body().collect().await.unwrap().to_bytes()
    };
    let metadata = "as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let answer = delete(&format!("{MEDIA_TYPE};{metadata}")).await;
    let answer = to_json(&answer).expect("protobuf");
    assert_eq!((names(&answer), &answer["kind"]), (vec!["a"], &json!("PartialObjectMetadataList")));
    let answer: Value = serde_json::from_slice(&delete(&format!("application/json;{metadata}")).await).unwrap();
    let item = &answer["items"][0];
    assert_eq!((&item["kind"], item.get("spec")), (&json!("PartialObjectMetadata"), None));
    let answer = delete("application/json;as=Table;g=meta.k8s.io;v=v1").await;
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!((&answer["kind"], &answer["rows"][0]["cells"][0]), (&json!("Table"), &json!("a")));
    let answer: Value = serde_json::from_slice(&delete("application/json").await).unwrap();
    assert_eq!((&answer["kind"], &answer["items"][0]["spec"]), (&json!("ThingList"), &json!({"n": 1})));
}

#[tokio::test(start_paused = true)]
async fn the_end_of_initial_events_is_sent_to_clients_that_allow_bookmarks() {
    let server = server();
    make(&server, &["a"]).await;
    let watch = |more: &str| {
        format!(
            "{MAPS}?watch=true&labelSelector=made&sendInitialEvents=true&timeoutSeconds=5&resourceVersionMatch={more}"
        )
    };
    let mut with_bookmarks = server.watch(&watch("NotOlderThan&allowWatchBookmarks=true")).await;
    assert_eq!(with_bookmarks.brief().await, "ADDED a");
    let (kind, bookmark) = with_bookmarks.next().await.expect("a bookmark");
    assert_eq!(
        (kind.as_str(), &bookmark["metadata"]["annotations"]["k8s.io/initial-events-end"]),
        ("BOOKMARK", &json!("true"))
    );
    let mut without_bookmarks = server.watch(&watch("NotOlderThan")).await;
    assert_eq!(without_bookmarks.brief().await, "ADDED a");
    assert_eq!(without_bookmarks.next().await, None, "no event before the watch ends");
    let rejected = server.get(&watch("Exact")).await.expect(422);
    assert_eq!(rejected["details"]["causes"].as_array().unwrap().len(), 2, "{rejected}");
}
