//! Responses in protobuf equal those in JSON.

use berth_kinds::protobuf::{MEDIA_TYPE, from_json, to_json};
use bytes::{Buf, Bytes};
use http::Method;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use berth_apiserver::ApiServer;
use berth_store::{MemoryStore, Store, Write};

use crate::harness::{Server, config_on, server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const METADATA: &str = "as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

struct Answer {
    code: u16,
    media: String,
    bytes: Bytes,
}

async fn ask(server: &Server, method: Method, uri: &str, accept: &str, body: &Value) -> Answer {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let headers = [("accept", accept), ("content-type", "application/json")];
    let response = server.raw(method, uri, &headers, body).await;
    let code = response.status().as_u16();
    let media = response.headers()["content-type"].to_str().unwrap().to_owned();
    Answer { code, media, bytes: response.into_body().collect().await.unwrap().to_bytes() }
}

async fn get(server: &Server, uri: &str, accept: &str) -> Answer {
    ask(server, Method::GET, uri, accept, &Value::Null).await
}

/// A JSON response after encoding to protobuf and back: items have no kind, and empty lists are
/// absent.
fn through(json: &Value) -> Value {
    to_json(&from_json(json).expect("encodes")).expect("decodes")
}

/// The response in protobuf, compared with that in JSON.
async fn same(server: &Server, uri: &str) -> Value {
    let json = get(server, uri, "application/json").await;
    let answer = get(server, uri, MEDIA_TYPE).await;
    assert_eq!((answer.code, answer.media.as_str()), (json.code, MEDIA_TYPE), "{uri}");
    let answer = to_json(&answer.bytes).expect("protobuf");
    assert_eq!(answer, through(&serde_json::from_slice(&json.bytes).expect("JSON")), "{uri}");
    answer
}

async fn definition(server: &Server) {
    let schema =
        json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"n": {"type": "integer"}}}}});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
    server.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await.expect(201);
}

#[tokio::test(start_paused = true)]
async fn objects_lists_errors_and_discovery_equal_those_in_json() {
    let server = server();
    definition(&server).await;
    let map = json!({"metadata": {"name": "a", "labels": {"x": "1"}}, "data": {"k": "v"}, "binaryData": {"b": "AAEC"}});
    let made = ask(&server, Method::POST, MAPS, MEDIA_TYPE, &map).await;
    assert_eq!((made.code, made.media.as_str()), (201, MEDIA_TYPE));
    assert_eq!(to_json(&made.bytes).unwrap()["data"], json!({"k": "v"}));
    server.post(MAPS, json!({"metadata": {"name": "b"}})).await.expect(201);
    let pods = "/api/v1/namespaces/default/pods";
    server.post("/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i",
        "resources": {"limits": {"cpu": "500m"}}, "livenessProbe": {"httpGet": {"port": "web"}}}]}});
    server.post(pods, pod).await.expect(201);
    for uri in [
        &format!("{MAPS}/a"),
        MAPS,
        &format!("{MAPS}?limit=1"),
        &format!("{MAPS}?labelSelector=x%3D1"),
        pods,
        &format!("{pods}/p"),
        "/api/v1/namespaces",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
        "/api/v1/componentstatuses",
        &format!("{MAPS}/none"),
        &format!("{MAPS}?limit=x"),
        "/api",
        "/apis",
        "/api/v1",
        "/apis/apps/v1",
        "/apis/batch",
    ] {
        same(&server, uri).await;
    }
    let page = same(&server, &format!("{MAPS}?limit=1")).await;
    assert_eq!(page["metadata"]["remainingItemCount"], 1);
    assert!(page["metadata"]["continue"].is_string());
    let missing = get(&server, &format!("{MAPS}/none"), MEDIA_TYPE).await;
    assert_eq!((missing.code, to_json(&missing.bytes).unwrap()["reason"].as_str()), (404, Some("NotFound")));
    let gone = ask(&server, Method::DELETE, &format!("{MAPS}/b"), MEDIA_TYPE, &Value::Null).await;
    assert_eq!(to_json(&gone.bytes).unwrap()["status"], "Success");
    let review = json!({"spec": {"user": "alice", "nonResourceAttributes": {"path": "/", "verb": "get"}}});
    let uri = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let review = ask(&server, Method::POST, uri, MEDIA_TYPE, &review).await;
    assert_eq!((review.code, to_json(&review.bytes).unwrap()["spec"]["user"].as_str()), (201, Some("alice")));

    // Media types with parameters.
    let discovery = format!("{MEDIA_TYPE};g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
    let answer = get(&server, "/apis", &discovery).await;
    assert_eq!(answer.media, discovery);
    let plain = discovery.replace(MEDIA_TYPE, "application/json");
    let json = serde_json::from_slice(&get(&server, "/apis", &plain).await.bytes).unwrap();
    assert_eq!(to_json(&answer.bytes).unwrap(), through(&json));
    let table = format!("{MEDIA_TYPE};as=Table;g=meta.k8s.io;v=v1");
    let rejected = get(&server, MAPS, &table).await;
    assert_eq!((rejected.code, rejected.media.as_str()), (406, "application/json"));
    let version = get(&server, "/version", MEDIA_TYPE).await;
    assert_eq!(version.media, "application/json");
}

#[tokio::test(start_paused = true)]
async fn custom_resources_are_served_in_protobuf_only_as_metadata() {
    let server = server();
    definition(&server).await;
    let things = "/apis/example.com/v1/namespaces/default/things";
    let thing = json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": {"n": 1}});
    server.post(things, thing).await.expect(201);
    let rejected = get(&server, things, MEDIA_TYPE).await;
    assert_eq!((rejected.code, rejected.media.as_str()), (406, MEDIA_TYPE));
    assert_eq!(to_json(&rejected.bytes).unwrap()["reason"], "NotAcceptable");
    let either = get(&server, things, &format!("{MEDIA_TYPE},application/json")).await;
    assert_eq!((either.code, either.media.as_str()), (200, "application/json"));
    for uri in [things, &format!("{things}/a"), MAPS] {
        for version in ["v1", "v1beta1"] {
            let form = METADATA.replace("v=v1", &format!("v={version}"));
            let json = get(&server, uri, &format!("application/json;{form}")).await;
            let answer = get(&server, uri, &format!("{MEDIA_TYPE};{form}")).await;
            assert_eq!((answer.code, answer.media.as_str()), (200, MEDIA_TYPE), "{uri}");
            let json = serde_json::from_slice(&json.bytes).unwrap();
            assert_eq!(to_json(&answer.bytes).unwrap(), through(&json), "{uri}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_list_is_sent_in_parts() {
    let server = server();
    let data = "0123456789".repeat(800);
    for index in 0..600 {
        let map = json!({"metadata": {"name": format!("m-{index}")}, "data": {"k": data}});
        server.post(MAPS, map).await.expect(201);
    }
    let list = same(&server, MAPS).await;
    assert_eq!(list["items"].as_array().map(Vec::len), Some(600));
    let response = server.raw(Method::GET, MAPS, &[("accept", MEDIA_TYPE)], "").await;
    assert_eq!(response.body().bytes(), None, "the response is streamed");
}

/// Removes and returns a length-delimited field.
fn field(from: &mut Bytes, number: u8) -> Bytes {
    assert_eq!(from.get_u8(), number << 3 | 2);
    let (mut length, mut shift) = (0, 0);
    loop {
        let byte = from.get_u8();
        length |= usize::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            return from.split_to(length);
        }
    }
}

/// The events of the next chunk: their types, and their objects decoded from their envelopes.
async fn events(body: &mut berth_apiserver::Body) -> Vec<(String, Value)> {
    let mut chunk = body.frame().await.expect("the watch is open").unwrap().into_data().unwrap();
    let mut events = Vec::new();
    while chunk.has_remaining() {
        let length = chunk.get_u32() as usize;
        let mut event = chunk.split_to(length);
        let kind = field(&mut event, 1);
        // The object is a message of one field.
        let mut object = field(&mut event, 2);
        let object = field(&mut object, 1);
        assert!(!event.has_remaining());
        events.push((String::from_utf8(kind.to_vec()).unwrap(), to_json(&object).expect("an object")));
    }
    events
}

#[tokio::test(start_paused = true)]
async fn a_watch_is_a_stream_of_length_prefixed_messages() {
    let server = server();
    server.post(MAPS, json!({"metadata": {"name": "a"}, "data": {"k": "v"}})).await.expect(201);
    let query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    for form in ["stream=watch", METADATA] {
        let uri = format!("{MAPS}?{query}&timeoutSeconds=90");
        let response = server.raw(Method::GET, &uri, &[("accept", &format!("{MEDIA_TYPE};{form}"))], "").await;
        assert_eq!(response.headers()["content-type"], "application/vnd.kubernetes.protobuf;stream=watch");
        let mut body = response.into_body();
        let initial = events(&mut body).await;
        assert_eq!((initial.len(), initial[0].0.as_str()), (1, "ADDED"));
        let whole = form == "stream=watch";
        assert_eq!(initial[0].1["kind"], if whole { "ConfigMap" } else { "PartialObjectMetadata" });
        assert_eq!(initial[0].1["data"], if whole { json!({"k": "v"}) } else { Value::Null });
        let end = events(&mut body).await.remove(0);
        assert_eq!((end.0.as_str(), &end.1["kind"]), ("BOOKMARK", &initial[0].1["kind"]));
        assert_eq!(end.1["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
        let change = json!({"metadata": {"labels": {"l": form.split('=').next()}}});
        server.patch(&format!("{MAPS}/a"), "merge-patch", change).await.expect(200);
        let changed = events(&mut body).await.remove(0);
        assert_eq!((changed.0.as_str(), &changed.1["metadata"]["name"]), ("MODIFIED", &json!("a")));
        assert_eq!(events(&mut body).await[0].0, "BOOKMARK");
    }
}

#[tokio::test(start_paused = true)]
async fn invalid_fields_of_a_stored_object_are_omitted() {
    let store = std::sync::Arc::new(MemoryStore::new());
    let server = Server { api: ApiServer::new(config_on(store.clone())) };
    definition(&server).await;
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let key = "/apiextensions.k8s.io/customresourcedefinitions/things.example.com";
    let record = store.get(key).expect("stored");
    let mut value = record.value().as_ref().clone();
    let version = value.pointer_mut("/spec/versions/0").expect("a version");
    version["subresources"] =
        json!({"status": true, "scale": {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n"}});
    version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["n"]["items"] = json!("x");
    let write = Write::Update { key: key.to_owned(), expected: record.revision, value };
    server.api.store_handle().commit(write).await.expect("stored");

    let one = get(&server, &format!("{definitions}/things.example.com"), MEDIA_TYPE).await;
    let list = get(&server, definitions, MEDIA_TYPE).await;
    assert_eq!((one.code, list.code), (200, 200));
    let mut one = to_json(&one.bytes).expect("protobuf");
    let list = to_json(&list.bytes).expect("protobuf");
    let watched = format!("{definitions}?watch=true&resourceVersion=0&timeoutSeconds=5");
    let response = server.raw(Method::GET, &watched, &[("accept", &format!("{MEDIA_TYPE};stream=watch"))], "").await;
    let (kind, event) = events(&mut response.into_body()).await.remove(0);
    assert_eq!((kind.as_str(), &event), ("ADDED", &one));
    let version = &one["spec"]["versions"][0];
    assert_eq!(
        version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["n"],
        json!({"type": "integer"})
    );
    assert_eq!(
        version["subresources"].as_object().map(|it| it.keys().map(String::as_str).collect()),
        Some(vec!["scale"])
    );
    for field in ["apiVersion", "kind"] {
        one.as_object_mut().unwrap().remove(field);
    }
    let found = list["items"].as_array().unwrap().iter().find(|it| it["metadata"]["name"] == "things.example.com");
    assert_eq!(found, Some(&one));
}

#[tokio::test(start_paused = true)]
async fn the_scale_of_a_custom_resource_is_served_in_protobuf() {
    let server = server();
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    definition(&server).await;
    let subresources = json!({"scale": {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n"}});
    let patch = json!([{"op": "add", "path": "/spec/versions/0/subresources", "value": subresources}]);
    server.patch(&format!("{definitions}/things.example.com"), "json-patch", patch).await.expect(200);
    let things = "/apis/example.com/v1/namespaces/default/things";
    let thing = json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": {"n": 1}});
    server.post(things, thing).await.expect(201);
    let sets = "/apis/apps/v1/namespaces/default/replicasets";
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "a"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}});
    server.post(sets, set).await.expect(201);
    for (uri, count) in [(format!("{things}/a"), "/spec/n"), (format!("{sets}/a"), "/spec/replicas")] {
        let url = format!("{uri}/scale");
        let mut scale = same(&server, &url).await;
        assert_eq!((&scale["kind"], &scale["spec"]["replicas"]), (&json!("Scale"), &json!(1)), "{uri}");
        scale["spec"]["replicas"] = 3.into();
        let headers = [("accept", MEDIA_TYPE), ("content-type", MEDIA_TYPE)];
        let answer = server.raw(Method::PUT, &url, &headers, from_json(&scale).expect("a scale")).await;
        assert_eq!((answer.status().as_u16(), &answer.headers()["content-type"]), (200, &MEDIA_TYPE.parse().unwrap()));
        let answer = to_json(&answer.into_body().collect().await.unwrap().to_bytes()).expect("protobuf");
        assert_eq!((&answer["kind"], &answer["spec"]["replicas"]), (&json!("Scale"), &json!(3)), "{uri}");
        assert_eq!(server.get(&uri).await.expect(200).pointer(count), Some(&json!(3)), "{uri}");
    }
    // The custom resource itself has no protobuf encoding.
    assert_eq!(get(&server, &format!("{things}/a"), MEDIA_TYPE).await.code, 406);
}

#[tokio::test(start_paused = true)]
async fn a_protobuf_body_that_is_too_large_as_json_is_rejected() {
    let server = server();
    let map = |text: String| {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"k": text}});
        from_json(&map).expect("encodes")
    };
    let post = async |body: Vec<u8>| {
        assert!(body.len() < 3 * 1024 * 1024);
        crate::harness::read(server.raw(Method::POST, MAPS, &[("content-type", MEDIA_TYPE)], body).await).await
    };
    // Each of these bytes is six bytes in JSON.
    let rejected = post(map("\u{1}".repeat(600_000))).await.expect(413);
    assert_eq!(rejected["message"], "Request entity too large: limit is 3145728");
    server.get(&format!("{MAPS}/m")).await.expect(404);
    post(map("\u{1}".repeat(500_000))).await.expect(201);
}
