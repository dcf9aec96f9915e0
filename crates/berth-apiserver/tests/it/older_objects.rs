//! Objects that were stored before the server had some of its defaults and rules.

use berth_apiserver::ApiServer;
use berth_store::{MemoryStore, Store, Write};
use serde_json::{Value, json};

use crate::harness::{Server, config_on};

/// Default values that older servers did not set in pods and templates.
const LATER: [(&str, &str); 5] = [
    ("/containers/0/lifecycle/preStop/httpGet", "scheme"),
    ("/containers/0/livenessProbe/grpc", "service"),
    ("/volumes/0/projected/sources/0/serviceAccountToken", "expirationSeconds"),
    ("/volumes/1/downwardAPI/items/0/fieldRef", "apiVersion"),
    ("/volumes/2/ephemeral/volumeClaimTemplate/spec", "volumeMode"),
];

fn pod_spec() -> Value {
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    json!({
        "containers": [{
            "name": "c", "image": "i", "lifecycle": {"preStop": {"httpGet": {"port": 80}}},
            "livenessProbe": {"grpc": {"port": 80}},
        }],
        "restartPolicy": "Never",
        "volumes": [
            {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
            {"name": "self", "downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}},
            {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": claim}}},
        ],
    })
}

/// Rewrites a stored object as an older server would have stored it. `spec` is the path of the pod
/// specification.
async fn age(server: &Server, store: &MemoryStore, key: &str, spec: &str) {
    let record = store.get(key).expect("stored");
    let mut value = record.value().as_ref().clone();
    for (path, field) in LATER {
        let holder = value.pointer_mut(&format!("{spec}{path}")).and_then(Value::as_object_mut).expect("present");
        assert!(holder.remove(field).is_some(), "{field} has no default");
    }
    let write = Write::Update { key: key.to_owned(), expected: record.revision, value };
    server.api.store_handle().commit(write).await.expect("stored");
}

#[tokio::test(start_paused = true)]
async fn an_object_without_a_later_default_can_be_updated_and_no_manager_owns_the_default() {
    let store = std::sync::Arc::new(MemoryStore::new());
    let server = Server { api: ApiServer::new(config_on(store.clone())) };
    let jobs = "/apis/batch/v1/namespaces/default/jobs";
    let job = json!({"metadata": {"name": "j"}, "spec": {"suspend": true, "template": {"spec": pod_spec()}}});
    server.post(jobs, job).await.expect(201);
    age(&server, &store, "/batch/jobs/default/j", "/spec/template/spec").await;
    let started =
        server.patch(&format!("{jobs}/j"), "merge-patch", json!({"spec": {"suspend": false}})).await.expect(200);
    assert_eq!(started["metadata"]["generation"], 2);
    let other = json!({"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 7}}}});
    server.patch(&format!("{jobs}/j"), "merge-patch", other).await.expect(422);

    let pods = "/api/v1/namespaces/default/pods";
    let mut spec = pod_spec();
    spec["schedulingGates"] = json!([{"name": "g"}]);
    let pod = json!({"metadata": {"name": "p", "finalizers": ["example.com/f"]}, "spec": spec});
    server.post(&format!("{pods}?fieldManager=maker"), pod).await.expect(201);
    let key = "/core/pods/default/p";
    age(&server, &store, key, "/spec").await;
    let labelled = json!({"metadata": {"labels": {"a": "b"}}});
    let labelled = server.patch(&format!("{pods}/p?fieldManager=other"), "merge-patch", labelled).await.expect(200);
    assert_eq!(labelled["metadata"]["generation"], 1);
    let owners = labelled["metadata"]["managedFields"].as_array().expect("a list");
    let other = owners.iter().find(|owner| owner["manager"] == "other").expect("an entry");
    assert_eq!(other["fieldsV1"], json!({"f:metadata": {"f:labels": {".": {}, "f:a": {}}}}));
    for change in [json!({"spec": {"schedulingGates": []}}), json!({"metadata": {"finalizers": []}})] {
        age(&server, &store, key, "/spec").await;
        server.patch(&format!("{pods}/p"), "merge-patch", change).await.expect(200);
    }
}

#[tokio::test(start_paused = true)]
async fn policies_see_older_objects_with_the_later_defaults() {
    let store = std::sync::Arc::new(MemoryStore::new());
    let server = Server { api: ApiServer::new(config_on(store.clone())) };
    let group = "/apis/admissionregistration.k8s.io/v1";
    let spec = json!({
        "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
            "operations": ["UPDATE", "DELETE"], "resources": ["pods", "pods/status"]}]},
        "validations": [{"expression": "oldObject.spec.containers[0].lifecycle.preStop.httpGet.scheme == 'HTTP'"}],
    });
    let policies = format!("{group}/validatingadmissionpolicies");
    server.post(&policies, json!({"metadata": {"name": "p"}, "spec": spec})).await.expect(201);
    let spec = json!({"policyName": "p", "validationActions": ["Deny"]});
    let bindings = format!("{group}/validatingadmissionpolicybindings");
    server.post(&bindings, json!({"metadata": {"name": "b"}, "spec": spec})).await.expect(201);
    let pods = "/api/v1/namespaces/default/pods";
    server.post(pods, json!({"metadata": {"name": "p"}, "spec": pod_spec()})).await.expect(201);
    let path = format!("{pods}/p");
    age(&server, &store, "/core/pods/default/p", "/spec").await;
    let status = json!({"status": {"message": "m"}});
    server.patch(&format!("{path}/status"), "merge-patch", status).await.expect(200);
    age(&server, &store, "/core/pods/default/p", "/spec").await;
    server.patch(&path, "merge-patch", json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
    age(&server, &store, "/core/pods/default/p", "/spec").await;
    server.delete(&path, json!({"gracePeriodSeconds": 0})).await.expect(200);
}

/// Changes a stored object without validation, as if it had been stored before some rules existed.
async fn rewrite_stored(server: &Server, key: &str, change: impl FnOnce(&mut Value)) {
    let store = server.api.store_handle();
    let record = store.get(key).expect("stored");
    let mut value = record.value().as_ref().clone();
    change(&mut value);
    let write = Write::Update { key: key.to_owned(), expected: record.revision, value };
    store.commit(write).await.expect("stored");
}

/// The fields that a rejection names.
fn causes(rejected: &Value) -> Vec<&str> {
    let causes = rejected["details"]["causes"].as_array().expect("causes");
    causes.iter().map(|cause| cause["field"].as_str().expect("a text")).collect()
}

#[tokio::test(start_paused = true)]
async fn a_stored_load_balancer_without_health_check_port_gets_one_on_update() {
    let server = crate::harness::server();
    let services = "/api/v1/namespaces/default/services";
    let spec = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": [{"port": 80}]});
    server.post(services, json!({"metadata": {"name": "s"}, "spec": spec})).await.expect(201);
    let (path, key) = (format!("{services}/s"), "/core/services/default/s");
    let forget = |service: &mut Value| drop(service["spec"].as_object_mut().unwrap().remove("healthCheckNodePort"));
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    rewrite_stored(&server, key, forget).await;
    let changed = server.patch(&path, "merge-patch", label.clone()).await.expect(200);
    let port = changed["spec"]["healthCheckNodePort"].as_i64().expect("a port");
    assert!((30_000..=32_767).contains(&port));
    // A requested port is used, and is immutable from then on.
    rewrite_stored(&server, key, forget).await;
    let wanted = json!({"spec": {"healthCheckNodePort": 31_234}});
    let changed = server.patch(&path, "merge-patch", wanted).await.expect(200);
    assert_eq!(changed["spec"]["healthCheckNodePort"], 31_234);
    let other = json!({"spec": {"healthCheckNodePort": 31_235}});
    let rejected = server.patch(&path, "merge-patch", other).await.expect(422);
    assert_eq!(causes(&rejected), ["spec.healthCheckNodePort"]);
    let changed = server.patch(&path, "merge-patch", json!({"spec": {"healthCheckNodePort": null}})).await.expect(200);
    assert_eq!(changed["spec"]["healthCheckNodePort"], 31_234);
}

#[tokio::test(start_paused = true)]
async fn an_object_that_violates_a_later_rule_can_be_updated_without_new_violations() {
    let server = crate::harness::server();
    let services = "/api/v1/namespaces/default/services";
    let metadata = json!({"name": "s", "finalizers": ["example.com/f"]});
    server.post(services, json!({"metadata": metadata, "spec": {"ports": [{"port": 80}]}})).await.expect(201);
    let path = format!("{services}/s");
    rewrite_stored(&server, "/core/services/default/s", |service| {
        service["spec"]["ports"][0]["name"] = "Not_A_Name".into()
    })
    .await;
    let rejected = server.patch(&path, "merge-patch", json!({"spec": {"type": "Any"}})).await.expect(422);
    assert_eq!(causes(&rejected), ["spec.type"], "earlier violations are not reported");
    server.patch(&path, "merge-patch", json!({"spec": {"sessionAffinity": "ClientIP"}})).await.expect(200);
    server.delete(&path, Value::Null).await.expect(200);
    server.patch(&path, "merge-patch", json!({"metadata": {"finalizers": null}})).await.expect(200);
    server.get(&path).await.expect(404);

    let jobs = "/apis/batch/v1/namespaces/default/jobs";
    let job = json!({"metadata": {"name": "j"}, "spec": {"suspend": true, "template": {"spec": pod_spec()}}});
    server.post(jobs, job).await.expect(201);
    let path = format!("{jobs}/j");
    let spoil = |job: &mut Value| job["spec"]["template"]["spec"]["containers"][0]["image"] = "".into();
    rewrite_stored(&server, "/batch/jobs/default/j", spoil).await;
    server.patch(&path, "merge-patch", json!({"spec": {"suspend": false}})).await.expect(200);
    let worse = json!({"spec": {"parallelism": -1, "completions": 2}});
    let rejected = server.patch(&path, "merge-patch", worse).await.expect(422);
    assert_eq!(causes(&rejected), ["spec.parallelism", "spec.completions"]);
    let mut whole = server.get(&path).await.expect(200);
    whole["spec"]["template"]["spec"]["containers"][0]["name"] = "D".into();
    let rejected = server.put(&path, whole).await.expect(422);
    assert_eq!(causes(&rejected), ["spec.template.spec.containers[0].name", "spec.template"]);

    let sets = "/apis/apps/v1/namespaces/default/statefulsets";
    let labels = json!({"app": "a"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let spec = json!({"selector": {"matchLabels": labels}, "template": template});
    server.post(sets, json!({"metadata": {"name": "s"}, "spec": spec})).await.expect(201);
    rewrite_stored(&server, "/apps/statefulsets/default/s", |set| set["spec"]["podManagementPolicy"] = "Any".into())
        .await;
    let path = format!("{sets}/s");
    server.patch(&path, "merge-patch", json!({"spec": {"replicas": 3}})).await.expect(200);
    server.patch(&format!("{path}/scale"), "merge-patch", json!({"spec": {"replicas": 4}})).await.expect(200);
    let mended = json!({"spec": {"podManagementPolicy": "Parallel"}});
    assert_eq!(
        causes(&server.patch(&path, "merge-patch", mended).await.expect(422)),
        ["spec"],
        "the field is immutable"
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_violates_a_later_rule_can_be_resized_and_debugged() {
    let server = crate::harness::server();
    let pods = "/api/v1/namespaces/default/pods";
    let container = json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}});
    for name in ["p", "mirror"] {
        let pod = json!({"metadata": {"name": name}, "spec": {"containers": [container]}});
        server.post(pods, pod).await.expect(201);
        rewrite_stored(&server, &format!("/core/pods/default/{name}"), |pod| {
            pod["spec"]["hostname"] = "Not_A_Name".into();
            if name == "mirror" {
                pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
            }
        })
        .await;
    }
    let larger = json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}});
    server.patch(&format!("{pods}/p/resize"), "strategic-merge-patch", larger).await.expect(200);
    let debugger = json!({"spec": {"ephemeralContainers": [{"name": "d", "image": "i"}]}});
    let path = |name: &str| format!("{pods}/{name}/ephemeralcontainers");
    server.patch(&path("p"), "strategic-merge-patch", debugger.clone()).await.expect(200);
    let rejected = server.patch(&path("mirror"), "strategic-merge-patch", debugger).await.expect(422);
    assert!(rejected["message"].as_str().unwrap().contains("static pods do not support"), "{rejected}");
}

#[tokio::test(start_paused = true)]
async fn an_object_with_an_invalid_stored_timestamp_accepts_an_apply() {
    let store = std::sync::Arc::new(MemoryStore::new());
    let server = Server { api: ApiServer::new(config_on(store.clone())) };
    let jobs = "/apis/batch/v1/namespaces/default/jobs";
    let job = |parallelism: u32| {
        let spec = json!({"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"});
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"},
            "spec": {"suspend": true, "parallelism": parallelism, "template": {"spec": spec}}})
    };
    server.patch(&format!("{jobs}/j?fieldManager=m"), "apply", job(1)).await.expect(201);
    let key = "/batch/jobs/default/j";
    let record = store.get(key).expect("stored");
    let mut value = record.value().as_ref().clone();
    value["status"] = json!({"startTime": "soon"});
    let write = Write::Update { key: key.to_owned(), expected: record.revision, value };
    server.api.store_handle().commit(write).await.expect("stored");

    let applied = server.patch(&format!("{jobs}/j?fieldManager=m"), "apply", job(2)).await.expect(200);
    assert_eq!(applied["spec"]["parallelism"], 2);
    assert_eq!(applied["status"]["startTime"], "soon");
    // An apply of the status validates the timestamp.
    let status = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "status": {"active": 1}});
    let url = format!("{jobs}/j/status?fieldManager=m");
    let rejected = server.patch(&url, "apply", status.clone()).await.expect(400);
    assert!(rejected["message"].as_str().unwrap().starts_with("status.startTime: parsing time"), "{rejected}");
    let mut mended = status;
    mended["status"]["startTime"] = "2026-11-22T20:00:00Z".into();
    server.patch(&format!("{url}&force=true"), "apply", mended).await.expect(200);
}
