//! Fields that pods, claims and ingresses get from their classes.

use serde_json::{Value, json};

use crate::harness::{Server, server};

const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
const PODS: &str = "/api/v1/namespaces/default/pods";

async fn storage_class(server: &Server, name: &str, is_default: bool) {
    let annotations = json!({"storageclass.kubernetes.io/is-default-class": is_default.to_string()});
    let class = json!({"metadata": {"name": name, "annotations": annotations}, "provisioner": "example.com/x",
        "allowVolumeExpansion": name == "grows"});
    server.post(CLASSES, class).await.expect(201);
}

fn claim(name: &str, class: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
        "resources": {"requests": {"storage": "1Gi"}}}})
}

#[tokio::test(start_paused = true)]
async fn a_claim_without_a_class_gets_the_newest_default_class() {
    let server = server();
    storage_class(&server, "other", false).await;
    let created = server.post(CLAIMS, claim("none", json!(null))).await.expect(201);
    assert_eq!(created["spec"]["storageClassName"], Value::Null);
    storage_class(&server, "a-old", true).await;
    tokio::time::advance(std::time::Duration::from_secs(5)).await;
    storage_class(&server, "new", true).await;
    let created = server.post(CLAIMS, claim("default", json!(null))).await.expect(201);
    assert_eq!(created["spec"]["storageClassName"], "new");
    let created = server.post(CLAIMS, claim("empty", json!(""))).await.expect(201);
    assert_eq!(created["spec"]["storageClassName"], "");
    let created = server.post(CLAIMS, claim("named", json!("other"))).await.expect(201);
    assert_eq!(created["spec"]["storageClassName"], "other");
}

#[tokio::test(start_paused = true)]
async fn a_claim_grows_only_if_it_is_bound_and_its_class_allows_it() {
    let server = server();
    storage_class(&server, "grows", false).await;
    storage_class(&server, "fixed", false).await;
    let more = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    for name in ["grows", "fixed"] {
        server.post(CLAIMS, claim(name, json!(name))).await.expect(201);
        let uri = format!("{CLAIMS}/{name}");
        let rejected = server.patch(&uri, "merge-patch", more.clone()).await;
        assert!(matches!(rejected.code, 403 | 422), "an unbound claim: {rejected:?}");
        let status = json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}});
        server.patch(&format!("{uri}/status"), "merge-patch", status).await.expect(200);
    }
    server.patch(&format!("{CLAIMS}/grows"), "merge-patch", more.clone()).await.expect(200);
    let rejected = server.patch(&format!("{CLAIMS}/fixed"), "merge-patch", more).await.expect(403);
    assert_eq!(
        rejected["message"],
        "persistentvolumeclaims \"fixed\" is forbidden: only dynamically provisioned pvc can be resized and the \
         storageclass that provisions the pvc must support resize"
    );
}

#[tokio::test(start_paused = true)]
async fn an_ingress_without_a_class_gets_the_default_class() {
    let server = server();
    let ingresses = "/apis/networking.k8s.io/v1/namespaces/default/ingresses";
    let ingress = |name: &str, annotations: Value| {
        json!({"metadata": {"name": name, "annotations": annotations},
            "spec": {"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}}})
    };
    let created = server.post(ingresses, ingress("none", json!({}))).await.expect(201);
    assert_eq!(created["spec"]["ingressClassName"], Value::Null);
    let annotations = json!({"ingressclass.kubernetes.io/is-default-class": "true"});
    let class =
        json!({"metadata": {"name": "nginx", "annotations": annotations}, "spec": {"controller": "x.io/nginx"}});
    server.post("/apis/networking.k8s.io/v1/ingressclasses", class).await.expect(201);
    let created = server.post(ingresses, ingress("default", json!({}))).await.expect(201);
    assert_eq!(created["spec"]["ingressClassName"], "nginx");
    let named = json!({"kubernetes.io/ingress.class": "other"});
    let created = server.post(ingresses, ingress("annotated", named)).await.expect(201);
    assert_eq!(created["spec"]["ingressClassName"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn a_pod_gets_the_fields_of_its_runtime_class() {
    let server = server();
    let pod = |name: &str, more: Value| {
        let mut spec = json!({"containers": [{"name": "c", "image": "i"}]});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"metadata": {"name": name}, "spec": spec})
    };
    let rejected = server.post(PODS, pod("p", json!({"runtimeClassName": "gvisor"}))).await.expect(403);
    assert_eq!(rejected["message"], "pods \"p\" is forbidden: pod rejected: RuntimeClass \"gvisor\" not found");
    let class = json!({"metadata": {"name": "gvisor"}, "handler": "runsc", "overhead": {"podFixed": {"cpu": "250m"}},
        "scheduling": {"nodeSelector": {"runtime": "gvisor"}}});
    server.post("/apis/node.k8s.io/v1/runtimeclasses", class).await.expect(201);
    let created = server.post(PODS, pod("p", json!({"runtimeClassName": "gvisor"}))).await.expect(201);
    assert_eq!(created["spec"]["overhead"], json!({"cpu": "250m"}));
    assert_eq!(created["spec"]["nodeSelector"], json!({"runtime": "gvisor"}));
    let rejected = server.post(PODS, pod("q", json!({"overhead": {"cpu": "1"}}))).await.expect(403);
    assert_eq!(
        rejected["message"],
        "pods \"q\" is forbidden: pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
    );
    let elsewhere = json!({"runtimeClassName": "gvisor", "nodeSelector": {"runtime": "runc"}});
    let rejected = server.post(PODS, pod("r", elsewhere)).await.expect(403);
    assert_eq!(
        rejected["message"],
        "pods \"r\" is forbidden: conflict: runtimeClass.scheduling.nodeSelector[runtime] = gvisor; \
         pod.spec.nodeSelector[runtime] = runc"
    );
}
