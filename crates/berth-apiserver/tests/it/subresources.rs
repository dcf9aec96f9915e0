//! Validation of bindings, scales and evictions, and the effect of evictions on disruption budgets.

use serde_json::{Value, json};

use crate::harness::{Server, server};

const PODS: &str = "/api/v1/namespaces/default/pods";
const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

async fn rejected(server: &Server, uri: &str, body: Value, code: u16, why: &str) {
    let rejected = server.post(uri, body.clone()).await.expect(code);
    let message = rejected["message"].as_str().unwrap();
    assert!(message.contains(why), "{body}: {message}");
}

#[tokio::test(start_paused = true)]
async fn a_binding_must_name_its_pod_and_adds_labels_and_annotations() {
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
        rejected(&server, &uri, body, code, why).await;
    }
    rejected(&server, "/api/v1/namespaces/default/bindings", to(json!({})), 400, "name must be provided").await;
    assert!(server.get(&format!("{PODS}/p")).await.expect(200)["spec"]["nodeName"].is_null());
    // A null label is stored as the empty string. It does not remove the label.
    let more = json!({"name": "p", "labels": {"app": null, "zone": "z"}, "annotations": {"a/b": "c"}});
    server.post(&uri, to(more)).await.expect(201);
    let bound = server.get(&format!("{PODS}/p")).await.expect(200);
    assert_eq!(bound["spec"]["nodeName"], "n");
    assert_eq!(bound["metadata"]["labels"], json!({"app": "", "zone": "z"}));
    assert_eq!(bound["metadata"]["annotations"], json!({"a/b": "c"}));
}

#[tokio::test(start_paused = true)]
async fn a_scale_must_be_valid_and_name_its_object() {
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
        let patched = server.patch(&uri, "merge-patch", json!({"spec": spec})).await.expect(422);
        for rejected in [put, patched] {
            assert!(rejected["message"].as_str().unwrap().ends_with(why), "{rejected}");
        }
    }
    let misspelt = scale(json!({"replica": 7, "replicas": 2}));
    let warned = server.put(&uri, misspelt.clone()).await;
    assert_eq!(warned.warnings, ["299 - \"unknown field \\\"spec.replica\\\"\""]);
    warned.expect(200);
    let strict = format!("{uri}?fieldValidation=Strict");
    let put = server.put(&strict, misspelt).await.expect(400);
    let patched = server.patch(&strict, "merge-patch", json!({"spec": {"replica": 7}})).await.expect(422);
    for rejected in [put, patched] {
        let message = rejected["message"].as_str().unwrap();
        assert!(message.ends_with("strict decoding error: unknown field \"spec.replica\""), "{message}");
    }
    // Scales of another object, or of a deleted object of the same name.
    let other = json!({"metadata": {"name": "other"}, "spec": {"replicas": 1}});
    server.put(&uri, other).await.expect(400);
    server.put(&uri, json!({"spec": {"replicas": 1}})).await.expect(400);
    let other = json!({"metadata": {"name": "rs", "namespace": "other"}, "spec": {"replicas": 1}});
    server.put(&uri, other).await.expect(400);
    let before = json!({"metadata": {"name": "rs", "uid": "before"}, "spec": {"replicas": 1}});
    let rejected = server.put(&uri, before).await.expect(409);
    assert!(rejected["message"].as_str().unwrap().contains("UID in precondition: before"), "{rejected}");
    let patch = json!({"metadata": {"name": "other"}, "spec": {"replicas": 1}});
    server.patch(&uri, "merge-patch", patch).await.expect(400);
    let stored = server.get(&format!("{sets}/rs")).await.expect(200);
    assert_eq!((&stored["spec"]["replicas"], &stored["metadata"]["generation"]), (&json!(2), &json!(1)));
    server.put(&uri, scale(json!({"replicas": 7}))).await.expect(200);
    assert_eq!(server.get(&format!("{sets}/rs")).await.expect(200)["spec"]["replicas"], 7);
}

/// Running pods of one application, and a budget with this status.
async fn guarded(server: &Server, pods: &[&str], status: Value) {
    for name in pods {
        let mut guarded = pod(name);
        guarded["spec"]["nodeName"] = "n".into();
        server.post(PODS, guarded).await.expect(201);
        let ready = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        server.patch(&format!("{PODS}/{name}/status"), "merge-patch", json!({"status": ready})).await.expect(200);
    }
    let spec = json!({"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}});
    server.post(BUDGETS, json!({"metadata": {"name": "b"}, "spec": spec})).await.expect(201);
    server.patch(&format!("{BUDGETS}/b/status"), "merge-patch", json!({"status": status})).await.expect(200);
}

fn eviction(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

#[tokio::test(start_paused = true)]
async fn evictions_decrement_the_allowed_disruptions() {
    let server = server();
    let status = json!({"observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 3, "desiredHealthy": 2,
        "expectedPods": 3});
    guarded(&server, &["p1", "p2", "p3"], status).await;
    let evict =
        async |name: &str, query: &str| server.post(&format!("{PODS}/{name}/eviction{query}"), eviction(name)).await;
    let budget = async || server.get(&format!("{BUDGETS}/b")).await.expect(200)["status"].clone();
    evict("p1", "?dryRun=All").await.expect(201);
    assert_eq!(budget().await["disruptionsAllowed"], 1);
    evict("p1", "").await.expect(201);
    let evicted = server.get(&format!("{PODS}/p1")).await.expect(200);
    assert!(!evicted["metadata"]["deletionTimestamp"].is_null());
    let conditions = evicted["status"]["conditions"].as_array().expect("conditions");
    let target = conditions.iter().find(|it| it["type"] == "DisruptionTarget").expect("marked");
    assert_eq!((&target["status"], &target["reason"]), (&json!("True"), &json!("EvictionByEvictionAPI")));
    let charged = budget().await;
    assert_eq!(
        (&charged["disruptionsAllowed"], &charged["disruptedPods"]),
        (&json!(0), &json!({"p1": "2026-01-01T00:00:00Z"}))
    );
    let condition = &charged["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"], &condition["reason"]),
        (&json!("DisruptionAllowed"), &json!("False"), &json!("InsufficientPods"))
    );
    for query in ["", "?dryRun=All"] {
        let rejected = evict("p2", query).await.expect(429);
        assert_eq!(rejected["message"], "Cannot evict pod as it would violate the pod's disruption budget.");
        let cause = &rejected["details"]["causes"][0];
        let why = "The disruption budget b needs 2 healthy pods and has 3 currently";
        assert_eq!((&cause["reason"], &cause["message"]), (&json!("DisruptionBudget"), &json!(why)));
    }
    assert!(server.get(&format!("{PODS}/p2")).await.expect(200)["metadata"]["deletionTimestamp"].is_null());
    // Evictions of a pod that is not ready, or is being deleted, are not counted.
    let unready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    server.patch(&format!("{PODS}/p3/status"), "merge-patch", unready).await.expect(200);
    evict("p3", "").await.expect(201);
    evict("p1", "").await.expect(201);
    // The controller has not yet processed the new specification.
    let patch = json!({"spec": {"minAvailable": 0}});
    server.patch(&format!("{BUDGETS}/b"), "merge-patch", patch).await.expect(200);
    let rejected = evict("p2", "").await.expect(429);
    let why = "The disruption budget b is still being processed by the server.";
    assert_eq!(rejected["details"]["causes"][0]["message"], why);
    assert_eq!(rejected["details"]["retryAfterSeconds"], 10);
}

#[tokio::test(start_paused = true)]
async fn an_invalid_eviction_does_not_decrement_the_budget() {
    let server = server();
    guarded(&server, &["p"], json!({"observedGeneration": 1, "disruptionsAllowed": 1})).await;
    let uri = format!("{PODS}/p/eviction");
    let with = |options: Value| json!({"metadata": {"name": "p"}, "deleteOptions": options});
    let cases = [
        (with(json!("x")), 400, "cannot unmarshal string into Go struct field Eviction.deleteOptions"),
        (with(json!({"gracePeriodSeconds": "1"})), 400, "deleteOptions.gracePeriodSeconds of type int64"),
        (with(json!({"propagationPolicy": "Sometimes"})), 422, "propagationPolicy"),
        (eviction("q"), 400, "name in URL does not match name in Eviction object"),
        (json!({"metadata": {"name": "p"}, "kind": "Binding"}), 400, "does not match the expected kind (Eviction)"),
    ];
    for (body, code, why) in cases {
        rejected(&server, &uri, body, code, why).await;
    }
    assert_eq!(server.get(&format!("{BUDGETS}/b")).await.expect(200)["status"]["disruptionsAllowed"], 1);
    assert!(server.get(&format!("{PODS}/p")).await.expect(200)["metadata"]["deletionTimestamp"].is_null());
    server.post(&uri, with(json!({"kind": "DeleteOptions", "gracePeriodSeconds": 7}))).await.expect(201);
    assert_eq!(server.get(&format!("{PODS}/p")).await.expect(200)["metadata"]["deletionGracePeriodSeconds"], 7);
    // A pod with two budgets cannot be evicted.
    let spec = json!({"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}});
    server.post(BUDGETS, json!({"metadata": {"name": "c"}, "spec": spec})).await.expect(201);
    let mut second = pod("two");
    second["spec"]["nodeName"] = "n".into();
    server.post(PODS, second).await.expect(201);
    let running = json!({"status": {"phase": "Running"}});
    server.patch(&format!("{PODS}/two/status"), "merge-patch", running).await.expect(200);
    rejected(&server, &format!("{PODS}/two/eviction"), eviction("two"), 500, "more than one PodDisruptionBudget").await;
}
