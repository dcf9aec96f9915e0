use serde_json::{Value, json};

use crate::harness::server;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test(start_paused = true)]
async fn an_object_is_created_read_changed_and_deleted() {
    let server = server();
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "1"}});
    let created = server.post(MAPS, map.clone()).await.expect(201);
    assert_eq!(created["metadata"]["namespace"], "default");
    assert_eq!(created["metadata"]["creationTimestamp"], "2026-01-01T00:00:00Z");
    assert_eq!(created["metadata"]["uid"].as_str().unwrap().len(), 36);
    let version = created["metadata"]["resourceVersion"].as_str().unwrap().to_owned();

    let rejected = server.post(MAPS, map).await.expect(409);
    assert_eq!(rejected["reason"], "AlreadyExists");
    assert_eq!(rejected["message"], "configmaps \"a\" already exists");

    let read = server.get(&format!("{MAPS}/a")).await.expect(200);
    assert_eq!(read, created);

    let mut changed = read.clone();
    changed["data"]["k"] = json!("2");
    let changed = server.put(&format!("{MAPS}/a"), changed).await.expect(200);
    assert_ne!(changed["metadata"]["resourceVersion"], version.as_str());

    let mut stale = read;
    stale["data"]["k"] = json!("3");
    let conflict = server.put(&format!("{MAPS}/a"), stale).await.expect(409);
    assert_eq!(
        conflict["message"],
        "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again"
    );

    let gone = server.delete(&format!("{MAPS}/a"), json!(null)).await.expect(200);
    assert_eq!(gone["status"], "Success");
    let missing = server.get(&format!("{MAPS}/a")).await.expect(404);
    assert_eq!(missing["message"], "configmaps \"a\" not found");
    assert_eq!(missing["details"], json!({"name": "a", "kind": "configmaps"}));
}

#[tokio::test(start_paused = true)]
async fn a_write_that_changes_nothing_keeps_the_revision() {
    let server = server();
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "1"}});
    let created = server.post(MAPS, map).await.expect(201);
    let same = server.put(&format!("{MAPS}/a"), created.clone()).await.expect(200);
    assert_eq!(same["metadata"]["resourceVersion"], created["metadata"]["resourceVersion"]);
}

#[tokio::test(start_paused = true)]
async fn all_pages_of_a_list_have_the_same_revision() {
    let server = server();
    for name in ["a", "b", "c", "d", "e"] {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"odd": (name < "c").to_string()}}});
        server.post(MAPS, map).await.expect(201);
    }
    let first = server.get(&format!("{MAPS}?limit=2")).await.expect(200);
    assert_eq!(first["kind"], "ConfigMapList");
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    // Later pages do not show changes after the first page.
    server.delete(&format!("{MAPS}/c"), json!(null)).await.expect(200);
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = server.get(&format!("{MAPS}?limit=2&continue={token}")).await.expect(200);
    let names: Vec<&str> =
        second["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["c", "d"]);
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);

    let odd = server.get("/api/v1/configmaps?labelSelector=odd%3Dtrue").await.expect(200);
    assert_eq!(odd["items"].as_array().unwrap().len(), 2);
    let one = server.get(&format!("{MAPS}?fieldSelector=metadata.name%3De")).await.expect(200);
    assert_eq!(one["items"].as_array().unwrap().len(), 1);
    let rejected = server.get(&format!("{MAPS}?fieldSelector=data.k%3De")).await.expect(400);
    let expected = r#""data.k" is not a known field selector: only "metadata.name", "metadata.namespace""#;
    assert_eq!(rejected["message"], expected);
    let rejected = server.get("/api/v1/pods?fieldSelector=data.k%3De").await.expect(400);
    assert_eq!(rejected["message"], "field label not supported: data.k");
}

#[tokio::test(start_paused = true)]
async fn names_are_generated_from_the_seed() {
    let server = server();
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "job-"}});
    let first = server.post(MAPS, map.clone()).await.expect(201);
    let name = first["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("job-") && name.len() == 9, "{name}");
    let other = crate::harness::server().post(MAPS, map).await.expect(201);
    assert_eq!(other["metadata"]["name"], first["metadata"]["name"]);
    assert_eq!(other["metadata"]["uid"], first["metadata"]["uid"]);
}

#[tokio::test(start_paused = true)]
async fn rejections_report_the_reason() {
    let server = server();
    let not_json = server.raw(http::Method::POST, MAPS, &[("content-type", "application/json")], "{\"a\": ").await;
    assert_eq!(not_json.status(), 400);
    let kind = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}});
    let kind = server.post(MAPS, kind).await.expect(400);
    assert!(kind["message"].as_str().unwrap().contains("does not match the expected"), "{kind}");
    let huge = server.raw(http::Method::POST, MAPS, &[], vec![b' '; 4 << 20]).await;
    assert_eq!(huge.status(), 413);
    let name = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "Not_A_Name"}});
    let name = server.post(MAPS, name).await.expect(422);
    assert_eq!(name["reason"], "Invalid");
    assert_eq!(name["details"]["causes"][0]["field"], "metadata.name");
    let nowhere = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    let nowhere = server.post("/api/v1/namespaces/nowhere/configmaps", nowhere).await.expect(404);
    assert_eq!(nowhere["message"], "namespaces \"nowhere\" not found");
    server.get("/api/v1/namespaces/default/nothings").await.expect(404);
    server.get("/apis/nothing.dev/v1/things").await.expect(404);
    let cbor = server.raw(http::Method::POST, MAPS, &[("content-type", "application/cbor")], "x").await;
    assert_eq!(cbor.status(), 415);
}

#[tokio::test(start_paused = true)]
async fn unknown_fields_are_rejected_reported_or_ignored() {
    let server = server();
    let job = |name: &str| {
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"paralellism": 2,
            "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "b"}]}}}})
    };
    let jobs = "/apis/batch/v1/namespaces/default/jobs";
    let strict = server.post(&format!("{jobs}?fieldValidation=Strict"), job("strict")).await.expect(400);
    assert_eq!(
        strict["message"],
        "Job in version \"v1\" cannot be handled as a Job: strict decoding error: unknown field \"spec.paralellism\""
    );
    let warned = server.post(jobs, job("warned")).await;
    assert_eq!(warned.warnings, ["299 - \"unknown field \\\"spec.paralellism\\\"\""]);
    assert!(warned.expect(201)["spec"].get("paralellism").is_none());
    let ignored = server.post(&format!("{jobs}?fieldValidation=Ignore"), job("ignored")).await;
    assert!(ignored.warnings.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_stores_nothing() {
    let server = server();
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    server.post(&format!("{MAPS}?dryRun=All"), map).await.expect(201);
    server.get(&format!("{MAPS}/a")).await.expect(404);
}

/// The expected responses were recorded from kube-apiserver 1.36.
#[tokio::test(start_paused = true)]
async fn dry_runs_of_deletions_return_the_object_in_its_state_after_the_deletion() {
    let server = server();
    let pods = "/api/v1/namespaces/default/pods";
    let pod = |name: &str, node: Value, finalizers: Value| {
        json!({"metadata": {"name": name, "finalizers": finalizers},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}})
    };
    for object in [
        pod("unbound", json!(null), json!(null)),
        pod("held", json!(null), json!(["a.b/c"])),
        pod("bound", json!("n"), json!(null)),
        pod("ending", json!("n"), json!(null)),
    ] {
        server.post(pods, object).await.expect(201);
    }
    server.delete(&format!("{pods}/ending"), Value::Null).await.expect(200);
    let map = |name: &str, finalizers: Value| json!({"metadata": {"name": name, "finalizers": finalizers}});
    server.post(MAPS, map("m", json!(null))).await.expect(201);
    server.post(MAPS, map("f", json!(["a.b/c"]))).await.expect(201);
    server.post("/api/v1/namespaces", json!({"metadata": {"name": "team"}})).await.expect(201);
    let before = server.api.store_handle().revision();
    let (now, soon) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:30Z");
    for (path, options, expected) in [
        (format!("{pods}/unbound"), json!({}), json!([now, 0, 2, null])),
        (format!("{pods}/unbound"), json!({"gracePeriodSeconds": 0}), json!([now, 0, 2, null])),
        (
            format!("{pods}/unbound"),
            json!({"propagationPolicy": "Foreground"}),
            json!([now, 0, 2, ["foregroundDeletion"]]),
        ),
        (format!("{pods}/held"), json!({"gracePeriodSeconds": 0}), json!([now, 0, 2, ["a.b/c"]])),
        (format!("{pods}/bound"), json!({}), json!([soon, 30, 2, null])),
        (format!("{pods}/bound"), json!({"gracePeriodSeconds": 0}), json!([now, 0, 2, null])),
        (format!("{pods}/bound"), json!({"gracePeriodSeconds": 7}), json!(["2026-01-01T00:00:07Z", 7, 2, null])),
        (format!("{pods}/ending"), json!({}), json!([soon, 30, 2, null])),
        (format!("{pods}/ending"), json!({"gracePeriodSeconds": 3}), json!(["2026-01-01T00:00:03Z", 3, 2, null])),
        (format!("{MAPS}/m"), json!({}), Value::Null),
        (
            format!("{MAPS}/m"),
            json!({"propagationPolicy": "Foreground"}),
            json!([now, 0, null, ["foregroundDeletion"]]),
        ),
        (format!("{MAPS}/m"), json!({"propagationPolicy": "Orphan"}), json!([now, 0, null, ["orphan"]])),
        (format!("{MAPS}/f"), json!({}), json!([now, 0, null, ["a.b/c"]])),
        (
            format!("{MAPS}/f"),
            json!({"propagationPolicy": "Foreground"}),
            json!([now, 0, null, ["a.b/c", "foregroundDeletion"]]),
        ),
        ("/api/v1/namespaces/team".to_owned(), json!({}), json!([now, null, null, null])),
    ] {
        let mut options = options;
        options["dryRun"] = json!(["All"]);
        let answer = server.delete(&path, options.clone()).await.expect(200);
        let metadata = &answer["metadata"];
        let fields = ["deletionTimestamp", "deletionGracePeriodSeconds", "generation", "finalizers"];
        let values: Vec<_> = fields.iter().map(|field| metadata[*field].clone()).collect();
        match expected {
            Value::Null => assert_eq!(answer["status"], "Success"),
            expected => assert_eq!(Value::from(values), expected, "{path} {options}"),
        }
    }
    let tried = server.delete(&format!("{MAPS}?dryRun=All"), Value::Null).await.expect(200);
    assert_eq!(tried["items"].as_array().map(Vec::len), Some(2));
    assert_eq!(server.api.store_handle().revision(), before, "a dry run was stored");
    // A real deletion returns the same state.
    let gone = server.delete(&format!("{pods}/unbound"), Value::Null).await.expect(200);
    assert_eq!((&gone["metadata"]["deletionTimestamp"], &gone["metadata"]["generation"]), (&json!(now), &json!(2)));
    server.get(&format!("{pods}/unbound")).await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn an_object_with_finalizers_is_deleted_when_they_are_removed() {
    let server = server();
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "a", "finalizers": ["berth.dev/hold"]}});
    server.post(MAPS, map).await.expect(201);
    let going = server.delete(&format!("{MAPS}/a"), json!({"propagationPolicy": "Foreground"})).await.expect(200);
    assert_eq!(going["metadata"]["deletionTimestamp"], "2026-01-01T00:00:00Z");
    assert_eq!(going["metadata"]["finalizers"], json!(["berth.dev/hold", "foregroundDeletion"]));
    let freed = json!({"metadata": {"finalizers": null}});
    server.patch(&format!("{MAPS}/a"), "merge-patch", freed).await.expect(200);
    server.get(&format!("{MAPS}/a")).await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_is_deleted_when_it_is_finalized() {
    let server = server();
    let space = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}});
    let created = server.post("/api/v1/namespaces", space).await.expect(201);
    assert_eq!(created["metadata"]["labels"]["kubernetes.io/metadata.name"], "team");
    assert_eq!(created["status"]["phase"], "Active");
    let going = server.delete("/api/v1/namespaces/team", json!(null)).await.expect(200);
    assert_eq!(going["status"]["phase"], "Terminating");
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    let rejected = server.post("/api/v1/namespaces/team/configmaps", map).await.expect(403);
    assert_eq!(rejected["details"]["causes"][0]["reason"], "NamespaceTerminating");
    let mut empty = going;
    empty["spec"]["finalizers"] = json!([]);
    server.put("/api/v1/namespaces/team/finalize", empty).await.expect(200);
    server.get("/api/v1/namespaces/team").await.expect(404);
    server.delete("/api/v1/namespaces/default", json!(null)).await.expect(403);
}

#[tokio::test(start_paused = true)]
async fn kubectl_gets_tables() {
    let server = server();
    let table = server.table("/api/v1/namespaces").await.expect(200);
    assert_eq!(table["kind"], "Table");
    assert_eq!(table["columnDefinitions"][0]["name"], "Name");
    assert_eq!(table["rows"][0]["cells"][0], "default");
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
}

#[tokio::test(start_paused = true)]
async fn a_collection_is_deleted_by_label_selector() {
    let server = server();
    for name in ["a", "b", "c"] {
        let map =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"name": name}}});
        server.post(MAPS, map).await.expect(201);
    }
    server.delete(&format!("{MAPS}?labelSelector=name%20in%20(a,b)"), json!(null)).await.expect(200);
    let left = server.get(MAPS).await.expect(200);
    assert_eq!(left["items"].as_array().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_value_of_a_priority_class_is_immutable() {
    let server = server();
    let classes = "/apis/scheduling.k8s.io/v1/priorityclasses";
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000});
    let created = server.post(classes, class).await.expect(201);
    assert_eq!(created["preemptionPolicy"], "PreemptLowerPriority");
    let rejected = server.patch(&format!("{classes}/high"), "merge-patch", json!({"value": 2000})).await.expect(422);
    assert_eq!(
        rejected["message"],
        "PriorityClass.scheduling.k8s.io \"high\" is invalid: value: Forbidden: may not be changed in an update."
    );
}

#[tokio::test(start_paused = true)]
async fn events_are_served_in_two_groups() {
    let server = server();
    let event = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"},
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"}, "note": "hello", "reason": "Greeting",
        "type": "Normal", "action": "Greet", "reportingController": "berth.dev/test", "reportingInstance": "a",
        "eventTime": "2026-01-01T00:00:00.000000Z"});
    server.post("/apis/events.k8s.io/v1/namespaces/default/events", event).await.expect(201);
    let core = server.get("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dp").await.expect(200);
    assert_eq!((&core["items"][0]["message"], &core["items"][0]["apiVersion"]), (&json!("hello"), &json!("v1")));
    let new = server.get("/apis/events.k8s.io/v1/namespaces/default/events/e").await.expect(200);
    assert_eq!(new["note"], "hello");
}

#[tokio::test(start_paused = true)]
async fn malformed_objects_are_rejected_without_a_panic() {
    let server = server();
    let shapes = [
        json!("text"),
        json!(7),
        json!([]),
        json!({"spec": "x"}),
        json!({"metadata": 3}),
        json!({"metadata": {"name": "a", "labels": {"x": 1}}}),
        json!({"metadata": {"name": "a"}, "spec": []}),
        json!({"metadata": {"name": "a"}, "spec": {"template": "x"}, "status": 1}),
        json!({"metadata": {"name": "a"}, "spec": {"containers": [null]}}),
        json!({"metadata": {"name": "a"}, "spec": {"containers": [{"resources": {"limits": {"cpu": {}}}}]}}),
        json!({"metadata": {"name": "a"}, "spec": {"ports": [{"port": "x"}], "versions": [1], "names": 2}}),
    ];
    for uri in [
        "/api/v1/namespaces/default/pods",
        "/api/v1/namespaces/default/services",
        "/api/v1/namespaces/default/secrets",
        "/apis/batch/v1/namespaces/default/jobs",
        "/apis/batch/v1/namespaces/default/cronjobs",
        "/apis/apps/v1/namespaces/default/deployments",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    ] {
        for shape in &shapes {
            let answer = server.post(&format!("{uri}?dryRun=All"), shape.clone()).await;
            assert!(matches!(answer.code, 201 | 400 | 422), "{uri} {shape}: {answer:?}");
        }
    }
    server.post("/api/v1/namespaces", json!({"metadata": {"name": "odd"}})).await.expect(201);
    for kind in ["merge-patch", "json-patch", "strategic-merge-patch", "apply"] {
        for shape in &shapes {
            let answer = server.patch("/api/v1/namespaces/odd?fieldManager=x", kind, shape.clone()).await;
            assert!(matches!(answer.code, 200 | 400 | 409 | 422), "{kind} {shape}: {answer:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn contradictory_list_options_are_rejected() {
    let server = server();
    for query in
        ["resourceVersionMatch=Exact", "resourceVersion=0&resourceVersionMatch=Exact", "sendInitialEvents=true"]
    {
        let rejected = server.get(&format!("/api/v1/namespaces?{query}")).await.expect(422);
        assert_eq!((&rejected["reason"], &rejected["details"]["kind"]), (&"Invalid".into(), &"ListOptions".into()));
    }
    server.get("/api/v1/namespaces?resourceVersion=0&resourceVersionMatch=NotOlderThan").await.expect(200);
}

#[tokio::test(start_paused = true)]
async fn escapes_in_the_path_are_decoded_once() {
    let server = server();
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "team:a.b"}, "rules": []});
    server.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", role).await.expect(201);
    for path in ["clusterroles/team%3Aa%2eb", "cluster%72oles/team:a.b", "clusterroles%2Fteam%3aa.b"] {
        let read = server.get(&format!("/apis/rbac.authorization.k8s.io/v1/{path}")).await.expect(200);
        assert_eq!(read["metadata"]["name"], "team:a.b", "{path}");
    }
    let missing = server.get(&format!("{MAPS}/%C3%BC")).await.expect(404);
    assert_eq!(missing["message"], "configmaps \"ü\" not found");
    let twice = server.get(&format!("{MAPS}/a%252Fb")).await.expect(400);
    assert_eq!(twice["message"], "Name parameter invalid: \"a%2Fb\": may not contain '%'");
    let malformed = server.get(&format!("{MAPS}/a%zz")).await.expect(400);
    assert_eq!(malformed["message"], "path of the URL: invalid URL escape \"%zz\"");
}
