//! The API's responses to invalid input: Kubernetes' own Status with code, reason and field.
//! Rejected input changes no object.

use std::time::Duration;

use http::{Method, Request};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use crate::cluster;

struct Answer {
    code: u16,
    body: Value,
    warnings: Vec<String>,
}

async fn send(client: &Client, method: Method, path: &str, content_type: &str, body: impl Into<Vec<u8>>) -> Answer {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", content_type)
        .body(Body::from(body.into()))
        .expect("a valid request");
    let response = client.send(request).await.expect("the server answers");
    let code = response.status().as_u16();
    let warnings = response
        .headers()
        .get_all("warning")
        .iter()
        .map(|value| value.to_str().expect("warnings are ASCII").to_owned())
        .collect();
    let bytes = response.into_body().collect().await.expect("the body arrives").to_bytes();
    let body =
        serde_json::from_slice(&bytes).unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
    Answer { code, body, warnings }
}

async fn create(client: &Client, path: &str, object: &Value) -> Answer {
    send(client, Method::POST, path, "application/json", object.to_string()).await
}

async fn get(client: &Client, path: &str) -> Answer {
    send(client, Method::GET, path, "application/json", Vec::new()).await
}

fn assert_status(answer: &Answer, code: u16, reason: &str, text: &str) {
    assert_eq!(answer.code, code, "{}", answer.body);
    assert_eq!(answer.body["kind"], "Status", "{}", answer.body);
    assert_eq!(answer.body["apiVersion"], "v1");
    assert_eq!(answer.body["status"], "Failure");
    assert_eq!(answer.body["code"], code);
    assert_eq!(answer.body["reason"], reason, "{}", answer.body);
    let message = answer.body["message"].as_str().expect("a Status has a message");
    assert!(message.contains(text), "expected {text:?} in {message:?}");
}

const QUEUES: &str = "/apis/kueue.x-k8s.io/v1beta2/clusterqueues";

fn queue(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec})
}

fn group(resources: &[&str], flavor: &str, quota: Value) -> Value {
    let quotas: Vec<Value> = resources
        .iter()
        .map(|name| {
            let mut entry = quota.clone();
            entry["name"] = json!(name);
            entry
        })
        .collect();
    json!({"coveredResources": resources, "flavors": [{"name": flavor, "resources": quotas}]})
}

#[tokio::test(start_paused = true)]
async fn an_invalid_cluster_queue_is_rejected_with_its_field_and_not_stored() {
    let (cluster, _) = cluster().await;
    let client = cluster.admin_client();

    let mut unknown = queue("unknown", json!({"resourceGroups": [group(&["cpu"], "f", json!({"nominalQuota": 1}))]}));
    unknown["spec"]["qeueingStrategy"] = json!("StrictFIFO");
    let strict = create(&client, &format!("{QUEUES}?fieldValidation=Strict"), &unknown).await;
    assert_status(&strict, 400, "BadRequest", "unknown field \"spec.qeueingStrategy\"");
    assert_eq!(get(&client, &format!("{QUEUES}/unknown")).await.code, 404);
    let warned = create(&client, &format!("{QUEUES}?fieldValidation=Warn"), &unknown).await;
    assert_eq!(warned.code, 201, "{}", warned.body);
    assert!(
        warned.warnings.iter().any(|w| w.contains("unknown field \\\"spec.qeueingStrategy\\\"")),
        "{:?}",
        warned.warnings
    );
    assert!(warned.body["spec"].get("qeueingStrategy").is_none());

    let quota = |quota: Value| queue("bad", json!({"resourceGroups": [group(&["cpu"], "f", quota)]}));
    let negative = create(&client, QUEUES, &quota(json!({"nominalQuota": -1}))).await;
    // If Kueue is installed, its webhook rejects this object. Clients check for the code of that
    // rejection, so code and message are the same here.
    assert_status(&negative, 403, "Forbidden", "admission webhook \"vclusterqueue.kb.io\" denied the request: spec");
    assert_status(&negative, 403, "Forbidden", "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota");

    let borrowing = create(&client, QUEUES, &quota(json!({"nominalQuota": 1, "borrowingLimit": 1}))).await;
    assert_status(&borrowing, 422, "Invalid", "borrowingLimit must be nil when cohort is empty");

    let groups = [group(&["cpu"], "a", json!({"nominalQuota": 1})), group(&["cpu"], "b", json!({"nominalQuota": 1}))];
    let twice = create(&client, QUEUES, &queue("bad", json!({"resourceGroups": groups}))).await;
    assert_status(&twice, 403, "Forbidden", "spec.resourceGroups[1].coveredResources[0]");
    assert_eq!(get(&client, &format!("{QUEUES}/bad")).await.code, 404);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_no_object_is_rejected_when_it_is_decoded() {
    let (cluster, _) = cluster().await;
    let client = cluster.admin_client();
    let maps = "/api/v1/namespaces/default/configmaps";
    let json_type = "application/json";

    let broken = send(&client, Method::POST, maps, json_type, "{\"kind\": \"ConfigMap\"").await;
    assert_status(&broken, 400, "BadRequest", "");
    let yaml = send(&client, Method::POST, maps, "application/yaml", "kind: ConfigMap\n bad: [").await;
    assert_status(&yaml, 400, "BadRequest", "");
    let big = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "big"}, "data": {"x": "y".repeat(4 << 20)}});
    assert_status(&create(&client, maps, &big).await, 413, "RequestEntityTooLarge", "");
    assert_eq!(get(&client, &format!("{maps}/big")).await.code, 404);

    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "map"}, "data": {"x": "1"}});
    let mut stored = create(&client, maps, &map).await.body;
    stored["data"]["x"] = json!("2");
    let put = format!("{maps}/map");
    assert_eq!(send(&client, Method::PUT, &put, json_type, stored.to_string()).await.code, 200);
    stored["data"]["x"] = json!("3");
    let stale = send(&client, Method::PUT, &put, json_type, stored.to_string()).await;
    assert_status(&stale, 409, "Conflict", "the object has been modified");
    assert_eq!(get(&client, &put).await.body["data"]["x"], "2");
    cluster.stop().await;
}

async fn platform(client: &Client) {
    for namespace in ["blue", "green"] {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        assert_eq!(create(client, "/api/v1/namespaces", &object).await.code, 201);
    }
    let flavor = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "f"}});
    assert_eq!(create(client, "/apis/kueue.x-k8s.io/v1beta2/resourceflavors", &flavor).await.code, 201);
    let only_blue = json!({
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "blue"}},
        "resourceGroups": [group(&["cpu"], "f", json!({"nominalQuota": 4}))],
    });
    assert_eq!(create(client, QUEUES, &queue("cq", only_blue)).await.code, 201);
    for namespace in ["blue", "green"] {
        let path = format!("/apis/kueue.x-k8s.io/v1beta2/namespaces/{namespace}/localqueues");
        let local = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue",
            "metadata": {"name": "main"}, "spec": {"clusterQueue": "cq"}});
        assert_eq!(create(client, &path, &local).await.code, 201);
    }
}

/// Creates a job of one pod and returns the QuotaReserved condition of its Workload some seconds
/// later.
async fn submit(client: &Client, namespace: &str, name: &str, queue: &str, cpu: &str) -> Value {
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": queue}},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [
            {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]}}},
    });
    let path = format!("/apis/batch/v1/namespaces/{namespace}/jobs");
    let answer = create(client, &path, &job).await;
    assert_eq!(answer.code, 201, "{}", answer.body);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let stored = get(client, &format!("{path}/{name}")).await.body;
    assert_eq!(stored["spec"]["suspend"], true, "a job that cannot be admitted stays suspended");
    let workloads = get(client, &format!("/apis/kueue.x-k8s.io/v1beta2/namespaces/{namespace}/workloads")).await.body;
    let items = workloads["items"].as_array().expect("a list has items");
    let workload =
        items.iter().find(|w| w["metadata"]["ownerReferences"][0]["name"] == name).expect("the job has a workload");
    let conditions = workload["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let condition = conditions.into_iter().find(|c| c["type"] == "QuotaReserved").unwrap_or_default();
    assert_eq!(condition["status"], "False", "{workload}");
    condition
}

fn message(condition: &Value) -> &str {
    condition["message"].as_str().unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_job_that_cannot_run_stays_suspended_and_its_workload_has_the_reason() {
    let (cluster, _) = cluster().await;
    let client = cluster.admin_client();
    platform(&client).await;

    let missing = submit(&client, "blue", "lost", "nowhere", "1").await;
    assert!(message(&missing).contains("LocalQueue nowhere doesn't exist"), "{missing}");
    let events = get(&client, "/api/v1/namespaces/blue/events").await.body.to_string();
    assert!(events.contains("LocalQueue nowhere doesn't exist"), "an event reports it too: {events}");

    let other = submit(&client, "green", "foreign", "main", "1").await;
    assert!(message(&other).contains("namespace doesn't match ClusterQueue selector"), "{other}");

    let huge = submit(&client, "blue", "huge", "main", "5").await;
    let text = message(&huge);
    for part in ["cpu", "flavor f", "5", "maximum capacity (4)"] {
        assert!(text.contains(part), "expected {part:?} in {text:?}");
    }

    let metrics = get(&client, "/metrics").await.body;
    let metrics = metrics.as_str().expect("metrics are text");
    assert!(metrics.contains("kueue_pending_workloads{cluster_queue=\"cq\""), "{metrics}");
    cluster.stop().await;
}
