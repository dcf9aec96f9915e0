//! The resource metrics API: what `kubectl top` and autoscalers request.

use std::time::Duration;

use berth_apiserver::UserInfo;
use berth_embedded::{Embedded, Options};
use berth_runtime::Clock;
use kube::Client;
use serde_json::{Value, json};

use crate::visibility::create;

const BASE: &str = "/apis/metrics.k8s.io/v1beta1";

async fn get(client: &Client, path: &str) -> Result<Value, kube::Error> {
    client.request(http::Request::get(format!("{BASE}{path}")).body(Vec::new()).unwrap()).await
}

fn pod(name: &str, annotations: Value) -> Value {
    let container = json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}});
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": name}, "annotations": annotations},
        "spec": {"containers": [container]}})
}

/// A cluster of one node with two running pods.
async fn cluster() -> Embedded {
    let clock = Clock::scaled("2026-01-05T09:00:00Z".parse().unwrap(), 1.0);
    let pools =
        json!([{"name": "w", "machineType": "e2-standard-4", "zones": ["z"], "initialNodes": 1, "static": true}]);
    let options = Options::in_memory(clock.clone(), 1, Some(json!({"nodePools": pools})), None);
    let embedded = Embedded::start(options).await.unwrap();
    let client = embedded.admin_client();
    create(&client, pod("half", json!({}))).await;
    create(&client, pod("full", json!({"berth.dev/cpu-usage": "100%", "berth.dev/memory-usage": "200Mi"}))).await;
    for _ in 0..120 {
        let list = get(&client, "/pods").await.expect("a response");
        if list["items"].as_array().unwrap().len() == 2 {
            return embedded;
        }
        clock.sleep(Duration::from_secs(1)).await;
    }
    panic!("the pods never ran");
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn pods_and_nodes_have_usage() {
    let embedded = cluster().await;
    let client = embedded.admin_client();
    let half = get(&client, "/namespaces/default/pods/half").await.unwrap();
    assert_eq!((&half["kind"], &half["apiVersion"]), (&json!("PodMetrics"), &json!("metrics.k8s.io/v1beta1")));
    assert_eq!(half["containers"], json!([{"name": "c", "usage": {"cpu": "500m", "memory": "629145Ki"}}]));
    let full = get(&client, "/namespaces/default/pods?labelSelector=app%3Dfull").await.unwrap();
    assert_eq!(names(&full), ["full"]);
    assert_eq!(full["items"][0]["containers"][0]["usage"], json!({"cpu": "1", "memory": "204800Ki"}));
    let nodes = get(&client, "/nodes").await.unwrap();
    let node = &nodes["items"][0];
    assert_eq!(node["usage"], json!({"cpu": "1550m", "memory": "1243545Ki"}), "the pods and the system");
    let name = node["metadata"]["name"].as_str().unwrap();
    assert_eq!(&get(&client, &format!("/nodes/{name}")).await.unwrap()["usage"], &node["usage"]);
    for path in ["/namespaces/default/pods/none", "/nodes/none"] {
        let error = get(&client, path).await.unwrap_err();
        assert!(berth_runtime::is_not_found(&error), "{path}: {error}");
    }
    let error = get(&client, "/pods?fieldSelector=spec.color%3Dred").await.unwrap_err();
    assert!(matches!(&error, kube::Error::Api(status) if status.code == 400), "{error}");
}

#[tokio::test(start_paused = true)]
async fn usage_is_shown_as_a_table() {
    let embedded = cluster().await;
    let request = http::Request::get(format!("{BASE}/namespaces/default/pods"))
        .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
        .body(Vec::new())
        .unwrap();
    let table: Value = embedded.admin_client().request(request).await.unwrap();
    let headers: Vec<_> = table["columnDefinitions"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(headers, ["Name", "cpu", "memory", "Window"]);
    assert_eq!(table["rows"][1]["cells"], json!(["half", "500m", "629145Ki", "15s"]));
}

#[tokio::test(start_paused = true)]
async fn users_see_usage_by_their_roles() {
    let embedded = cluster().await;
    let user = Client::new(embedded.server().in_process(UserInfo::new("ann", &[])), "default");
    let error = get(&user, "/namespaces/default/pods").await.unwrap_err();
    assert!(matches!(&error, kube::Error::Api(status) if status.code == 403), "{error}");
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "ann", "namespace": "default"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ann"}]});
    create(&embedded.admin_client(), binding).await;
    assert_eq!(names(&get(&user, "/namespaces/default/pods").await.unwrap()), ["full", "half"]);
    let request = http::Request::delete(format!("{BASE}/namespaces/default/pods/half")).body(Vec::new()).unwrap();
    let error = embedded.admin_client().request::<Value>(request).await.unwrap_err();
    assert!(matches!(&error, kube::Error::Api(status) if status.code == 405), "{error}");
}

#[tokio::test(start_paused = true)]
async fn nodes_have_what_each_of_their_gpus_reports() {
    let clock = Clock::scaled("2026-01-05T09:00:00Z".parse().unwrap(), 1.0);
    let pools =
        json!([{"name": "l4", "machineType": "g2-standard-24", "zones": ["z"], "initialNodes": 1, "static": true}]);
    let options = Options::in_memory(clock.clone(), 1, Some(json!({"nodePools": pools})), None);
    let embedded = Embedded::start(options).await.unwrap();
    let client = embedded.admin_client();
    let mut train = pod("train", json!({"berth.dev/gpu-usage": "35%", "berth.dev/gpu-memory-usage": "50%"}));
    train["spec"]["containers"][0]["resources"]["limits"] = json!({"nvidia.com/gpu": "1"});
    train["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    create(&client, train).await;
    for _ in 0..600 {
        let nodes = get(&client, "/nodes").await.expect("a response");
        let annotation = nodes["items"][0]["metadata"]["annotations"]["berth.dev/gpus"].as_str().unwrap_or("[]");
        let gpus: Value = serde_json::from_str(annotation).expect("JSON");
        if gpus[0]["utilization"] == 35.0 {
            assert_eq!(gpus.as_array().unwrap().len(), 2, "{gpus}");
            assert_eq!((&gpus[1]["gpu"], &gpus[1]["utilization"]), (&json!(1), &json!(0.0)), "{gpus}");
            let [used, all] = ["memoryUsed", "memory"].map(|name| gpus[0][name].as_f64().expect("a number"));
            assert!(used > 0.45 * all && used < 0.55 * all, "half of the memory is in use: {gpus}");
            return;
        }
        clock.sleep(Duration::from_secs(1)).await;
    }
    panic!("the GPU was never busy");
}
