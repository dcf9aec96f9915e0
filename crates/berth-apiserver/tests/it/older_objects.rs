//! Objects that were stored before the server had some of its defaults.

use berth_apiserver::ApiServer;
use berth_store::{MemoryStore, Store, Write};
use serde_json::{Value, json};

use crate::harness::{Server, config_on};

/// What pods and templates had none of once.
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

/// Stores what is at a URL as an older server did.
async fn age(server: &Server, store: &MemoryStore, key: &str, spec: &str) {
    let record = store.get(key).expect("it is stored");
    let mut value = record.value().as_ref().clone();
    for (path, field) in LATER {
        let holder = value.pointer_mut(&format!("{spec}{path}")).and_then(Value::as_object_mut).expect("it is there");
        assert!(holder.remove(field).is_some(), "{field} is no default");
    }
    let write = Write::Update { key: key.to_owned(), expected: record.revision, value };
    server.api.store_handle().commit(write).await.expect("stored");
}

#[tokio::test(start_paused = true)]
async fn what_is_older_than_a_default_can_be_changed_and_the_default_is_nobodys_change() {
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
    let other = owners.iter().find(|owner| owner["manager"] == "other").expect("it wrote");
    assert_eq!(other["fieldsV1"], json!({"f:metadata": {"f:labels": {".": {}, "f:a": {}}}}));
    for change in [json!({"spec": {"schedulingGates": []}}), json!({"metadata": {"finalizers": []}})] {
        age(&server, &store, key, "/spec").await;
        server.patch(&format!("{pods}/p"), "merge-patch", change).await.expect(200);
    }
}

#[tokio::test(start_paused = true)]
async fn policies_see_what_is_older_than_a_default_with_it() {
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
