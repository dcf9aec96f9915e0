//! Clients can read an object and write it back, although they do not send exactly the object that
//! they received: Go encodes empty structs, and omits empty lists, strings and flags.

use serde_json::{Map, Value, json};

use crate::harness::server;

/// Number of times that each object is written back.
const TIMES: usize = 30;

/// The empty value that a marker (a string that begins with `?`) represents.
fn empty_value(mark: &Value) -> Option<Value> {
    Some(match mark.as_str()? {
        "?map" => json!({}),
        "?list" => json!([]),
        "?null" => Value::Null,
        "?text" => json!(""),
        "?false" => json!(false),
        _ => return None,
    })
}

/// The template without its markers.
fn bare(form: &Value) -> Value {
    match form {
        Value::Object(fields) => {
            let set = fields.iter().filter(|(_, field)| empty_value(field).is_none());
            Value::Object(set.map(|(name, field)| (name.clone(), bare(field))).collect::<Map<_, _>>())
        }
        Value::Array(items) => items.iter().map(bare).collect(),
        other => other.clone(),
    }
}

/// Randomly adds or removes the empty values that the template marks.
fn rewrite(stored: &mut Value, form: &Value, state: &mut u64) {
    match (stored, form) {
        (Value::Object(stored), Value::Object(form)) => {
            for (name, field) in form {
                let Some(empty) = empty_value(field) else {
                    rewrite(&mut stored[name], field, state);
                    continue;
                };
                // Knuth's linear congruential generator: the same in every run.
                *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                match stored.get(name) {
                    Some(known) if !known.is_null() && *known != empty => {}
                    _ if *state >> 63 == 0 => drop(stored.remove(name)),
                    _ => drop(stored.insert(name.clone(), empty)),
                }
            }
        }
        (Value::Array(stored), Value::Array(form)) => {
            stored.iter_mut().zip(form).for_each(|(stored, form)| rewrite(stored, form, state));
        }
        _ => {}
    }
}

fn objects() -> Vec<(&'static str, Value)> {
    let pod = |restart: &str| {
        json!({
            "containers": [{"name": "c", "image": "i", "args": "?list", "stdin": "?false", "workingDir": "?text",
                "env": [{"name": "A", "value": "?text"}], "resources": {"requests": {"cpu": "1000m"}, "limits": "?map"}},
                {"name": "d", "image": "i", "resources": "?map", "volumeMounts": "?list", "ports": "?null"}],
            "nodeSelector": "?map", "affinity": "?map", "securityContext": "?map", "hostNetwork": "?false",
            "tolerations": [{"key": "k", "operator": "Exists", "value": "?text", "effect": "?text"}],
            "volumes": [{"name": "v", "emptyDir": {"medium": "?text"}}], "imagePullSecrets": "?list",
            "restartPolicy": restart,
        })
    };
    let labels = json!({"app": "a"});
    let template = |restart: &str| {
        let metadata = json!({"creationTimestamp": "?null", "labels": labels, "annotations": "?map"});
        json!({"metadata": metadata, "spec": pod(restart)})
    };
    let selector = json!({"matchLabels": labels, "matchExpressions": "?list"});
    let workload = || json!({"selector": selector, "template": template("Always")});
    let mut set = workload();
    set["serviceName"] = json!("?text");
    let claim = json!({"accessModes": ["ReadWriteOnce"], "volumeName": "?text", "selector": "?map",
        "resources": {"requests": {"storage": "1024Mi"}, "limits": "?map"}});
    set["volumeClaimTemplates"] =
        json!([{"metadata": {"name": "data", "creationTimestamp": "?null"}, "spec": claim, "status": "?map"}]);
    let spec = |spec: Value| json!({"spec": spec, "status": "?map"});
    let namespaced =
        |group: &str| -> &'static str { Box::leak(format!("{group}/namespaces/default").into_boxed_str()) };
    let at = |group: &str, resource: &str| -> &'static str {
        Box::leak(format!("{}/{resource}", namespaced(group)).into_boxed_str())
    };
    vec![
        (at("/apis/batch/v1", "jobs"), spec(json!({"template": template("Never")}))),
        (at("/apis/apps/v1", "deployments"), spec(workload())),
        (at("/apis/apps/v1", "replicasets"), spec(workload())),
        (at("/apis/apps/v1", "daemonsets"), spec(workload())),
        (at("/apis/apps/v1", "statefulsets"), spec(set)),
        (at("/apis/apps/v1", "controllerrevisions"), json!({"revision": 1, "data": {"a": {}}})),
        (at("/api/v1", "pods"), spec(pod("Never"))),
        (at("/api/v1", "configmaps"), json!({"immutable": true, "data": {"a": "b"}, "binaryData": "?map"})),
        (
            at("/api/v1", "secrets"),
            json!({"immutable": true, "data": {"a": "Yg=="}, "stringData": "?map", "type": "?text"}),
        ),
        (at("/api/v1", "persistentvolumeclaims"), spec(claim)),
        (
            "/api/v1/persistentvolumes",
            spec(json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "mountOptions": "?list",
                "hostPath": {"path": "/x", "type": "?text"}, "storageClassName": "?text"})),
        ),
        (
            "/apis/storage.k8s.io/v1/storageclasses",
            json!({"provisioner": "p", "parameters": "?map", "mountOptions": "?list", "allowedTopologies": "?list"}),
        ),
        (
            "/apis/storage.k8s.io/v1/csidrivers",
            json!({"spec": {"attachRequired": true, "tokenRequests": "?list", "volumeLifecycleModes": "?list"}}),
        ),
        (
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            json!({"value": 7, "globalDefault": "?false", "description": "?text"}),
        ),
        ("/apis/node.k8s.io/v1/runtimeclasses", json!({"handler": "h", "scheduling": {"nodeSelector": "?map"}})),
        (
            at("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
            json!({"subjects": "?list", "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}}),
        ),
        (
            at("/apis/discovery.k8s.io/v1", "endpointslices"),
            json!({"addressType": "IPv4", "endpoints": "?list", "ports": "?list"}),
        ),
        (at("/api/v1", "services"), spec(json!({"ports": [{"port": 80, "name": "?text"}], "selector": "?map"}))),
        (
            at("/apis/resource.k8s.io/v1", "resourceclaims"),
            spec(json!({"devices": {"constraints": "?list", "config": "?list",
                "requests": [{"name": "r", "exactly": {"deviceClassName": "d", "selectors": "?list"}}]}})),
        ),
    ]
}

#[tokio::test(start_paused = true)]
async fn objects_that_are_read_and_written_back_are_accepted() {
    let server = server();
    let mut state = 7;
    for (path, form) in objects() {
        let mut made = bare(&form);
        made["metadata"]["name"] = json!("o");
        server.post(path, made).await.expect(201);
        let path = format!("{path}/o");
        for _ in 0..TIMES {
            let mut object = server.get(&path).await.expect(200);
            rewrite(&mut object, &form, &mut state);
            let answer = server.put(&path, object.clone()).await;
            assert_eq!(answer.code, 200, "{}: {path}\n{object:#}", answer.body);
        }
    }
}
