//! What is posted and put to bindings and scales is read as its type.

use serde_json::{Value, json};

use crate::harness::{Server, server};

const PODS: &str = "/api/v1/namespaces/default/pods";

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

async fn refused(server: &Server, uri: &str, body: Value, code: u16, why: &str) {
    let refused = server.post(uri, body.clone()).await.expect(code);
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains(why), "{body}: {message}");
}

#[tokio::test(start_paused = true)]
async fn a_binding_is_of_the_pod_it_names_and_adds_texts() {
    let server = server();
    server.post(PODS, pod("p")).await.expect(201);
    let uri = format!("{PODS}/p/binding");
    let target = json!({"kind": "Node", "name": "n"});
    let to = |metadata: Value| json!({"metadata": metadata, "target": target});
    let cases = [
        (to(json!({"name": "p", "labels": {"x": 1}})), 400, "field ObjectMeta.metadata.labels of type string"),
        (
            to(json!({"name": "p", "annotations": ["x"]})),
            400,
            "cannot be handled as a Binding: json: cannot unmarshal array",
        ),
        (to(json!({"name": "q"})), 400, "name in URL does not match name in Binding object"),
        (to(json!({})), 400, "name in URL does not match name in Binding object"),
        (
            json!({"metadata": {"name": "p"}, "target": "n"}),
            400,
            "cannot unmarshal string into Go struct field Binding.target",
        ),
        (
            json!({"metadata": {"name": "p"}, "target": {"kind": "Pod"}}),
            422,
            "[target.kind: Unsupported value: \"Pod\": supported values: \"Node\", \"<empty>\", target.name: Required value]",
        ),
    ];
    for (body, code, why) in cases {
        refused(&server, &uri, body, code, why).await;
    }
    refused(&server, "/api/v1/namespaces/default/bindings", to(json!({})), 400, "name must be provided").await;
    assert!(server.get(&format!("{PODS}/p")).await.expect(200)["spec"]["nodeName"].is_null());
    // A null is no text, so it is an empty one; it takes nothing away.
    let more = json!({"name": "p", "labels": {"app": null, "zone": "z"}, "annotations": {"a/b": "c"}});
    server.post(&uri, to(more)).await.expect(201);
    let bound = server.get(&format!("{PODS}/p")).await.expect(200);
    assert_eq!(bound["spec"]["nodeName"], "n");
    assert_eq!(bound["metadata"]["labels"], json!({"app": "", "zone": "z"}));
    assert_eq!(bound["metadata"]["annotations"], json!({"a/b": "c"}));
}

#[tokio::test(start_paused = true)]
async fn a_scale_says_a_number_of_what_it_names() {
    let server = server();
    let sets = "/apis/apps/v1/namespaces/default/replicasets";
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let spec = json!({"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": template});
    server.post(sets, json!({"metadata": {"name": "rs"}, "spec": spec})).await.expect(201);
    let uri = format!("{sets}/rs/scale");
    let scale = |spec: Value| json!({"metadata": {"name": "rs"}, "spec": spec});
    let number = "cannot unmarshal number 3000000000 into Go struct field ScaleSpec.spec.replicas of type int32";
    let text = "cannot unmarshal string into Go struct field ScaleSpec.spec.replicas of type int32";
    for (spec, why) in [(json!({"replicas": "7"}), text), (json!({"replicas": 3_000_000_000_u32}), number)] {
        let put = server.put(&uri, scale(spec.clone())).await.expect(400);
        assert!(put["message"].as_str().unwrap().starts_with("Scale in version \"v1\" cannot be handled as a Scale"));
        let patched = server.patch(&uri, "merge-patch", json!({"spec": spec})).await.expect(400);
        for refused in [put, patched] {
            assert!(refused["message"].as_str().unwrap().ends_with(why), "{refused}");
        }
    }
    let misspelt = scale(json!({"replica": 7, "replicas": 2}));
    let warned = server.put(&uri, misspelt.clone()).await;
    assert_eq!(warned.warnings, ["299 - \"unknown field \\\"spec.replica\\\"\""]);
    warned.expect(200);
    let strict = format!("{uri}?fieldValidation=Strict");
    let put = server.put(&strict, misspelt).await.expect(400);
    let patched = server.patch(&strict, "merge-patch", json!({"spec": {"replica": 7}})).await.expect(400);
    for refused in [put, patched] {
        let message = refused["message"].as_str().unwrap();
        assert!(message.ends_with("strict decoding error: unknown field \"spec.replica\""), "{message}");
    }
    // Of another object, or of one that was there before.
    let other = json!({"metadata": {"name": "other"}, "spec": {"replicas": 1}});
    server.put(&uri, other).await.expect(400);
    server.put(&uri, json!({"spec": {"replicas": 1}})).await.expect(400);
    let other = json!({"metadata": {"name": "rs", "namespace": "other"}, "spec": {"replicas": 1}});
    server.put(&uri, other).await.expect(400);
    let before = json!({"metadata": {"name": "rs", "uid": "before"}, "spec": {"replicas": 1}});
    let refused = server.put(&uri, before).await.expect(409);
    assert!(refused["message"].as_str().unwrap().contains("UID in precondition: before"), "{refused}");
    let patch = json!({"metadata": {"name": "other"}, "spec": {"replicas": 1}});
    server.patch(&uri, "merge-patch", patch).await.expect(400);
    let stored = server.get(&format!("{sets}/rs")).await.expect(200);
    assert_eq!((&stored["spec"]["replicas"], &stored["metadata"]["generation"]), (&json!(2), &json!(1)));
    server.put(&uri, scale(json!({"replicas": 7}))).await.expect(200);
    assert_eq!(server.get(&format!("{sets}/rs")).await.expect(200)["spec"]["replicas"], 7);
}
